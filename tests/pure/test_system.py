"""What servers say of themselves, read and judged without a server."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.credentials import claims
from penstock.errors import InputError, LoginError, RemoteProtocolError
from penstock.system.check_assets import (
    ConsumerLevels,
    MessageLevels,
    ReplicaLevels,
    StreamLevels,
    check_consumer,
    check_message,
    check_replicas,
    check_stream,
    with_metadata,
)
from penstock.system.check_servers import (
    AccountLevels,
    CredentialLevels,
    MetaLevels,
    ServerLevels,
    check_account,
    check_credential,
    check_meta,
    check_server,
)
from penstock.system.events import read_event
from penstock.system.fields import fields, figure, moment, read_object, rows, texts, word
from penstock.system.questions import ServerFilter, is_server_id, subject_of
from penstock.system.reports import accounts_of, connections_in, leaders_of, needing_more, sort_rows, without_jwts
from penstock.system.result import CheckResult, Gauge, judge
from penstock.system.seen import ServerSeen, clusters_of, known_servers, sort_servers
from tests.support import Operator

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def result() -> CheckResult:
    return CheckResult("stream", "ORDERS")


# -- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "warning", "critical", "level"),
    [
        (4, 5, 10, "OK"),
        (5, 5, 10, "WARNING"),
        (10, 5, 10, "CRITICAL"),
        (11, 10, 5, "OK"),
        (10, 10, 5, "WARNING"),
        (5, 10, 5, "CRITICAL"),
        (1, None, 5, "OK"),
        (5, None, 5, "CRITICAL"),
        (6, 5, None, "OK"),
        (5, 5, None, "WARNING"),
        (0, 5, None, "WARNING"),
    ],
)
def test_a_critical_level_below_the_warning_turns_the_comparison(
    value: int, warning: int | None, critical: int | None, level: str
):
    """At a level or above it, or at it and below where critical is less: as `nats server check` has it."""
    assert judge(value, warning, critical) == level


def test_a_result_is_as_bad_as_the_worst_that_was_found():
    """One critical makes all of it critical, one warning a warning; the code is that of a Nagios plugin."""
    found = result()
    assert (found.status, found.code) == ("OK", 0)
    found.warn("slow")
    assert (found.status, found.code) == ("WARNING", 1)
    found.critical("gone")
    assert (found.status, found.code) == ("CRITICAL", 2)


def test_nagios_gets_one_line_whatever_a_name_holds():
    """A bar or a line break from outside does not end the text, which would make gauges of it."""
    found = CheckResult("stream", "A|B")
    found.ok("first\nsecond | third")
    found.measure("lag", 3, critical=10)
    found.measure("active", 0.25, warning=1, critical=2, unit="s")
    found.measure("sources", 0)
    assert found.nagios() == "OK A/B OK:first second / third | lag=3;;10 active=0.2500s;1.0000;2.0000 sources=0"


def test_prometheus_gets_every_gauge_and_the_status():
    """Names are namespace, suite and gauge; what no label may hold is replaced."""
    found = CheckResult("stream", 'A"\n\\')
    found.measure("lag", 2.5, "How far it is behind")
    lines = found.prometheus("x").splitlines()
    assert lines[:3] == [
        "# HELP x_stream_lag How far it is behind",
        "# TYPE x_stream_lag gauge",
        'x_stream_lag{item="A. \\\\"} 2.5',
    ]
    assert lines[-1] == 'x_stream_status_code{item="A. \\\\",status="OK"} 0'


def test_json_leaves_out_what_there_is_nothing_of():
    """The keys are those of `nats server check --format json`; whole numbers are whole."""
    found = result()
    found.critical("gone")
    found.measure("lag", 2.0, critical=1, unit="s")
    assert found.to_json() == {
        "status": "CRITICAL",
        "check_suite": "stream",
        "check_name": "ORDERS",
        "critical": ["gone"],
        "perf_data": [{"name": "lag", "value": 2, "warning": 0, "critical": 1, "unit": "s"}],
    }
    assert json.dumps(found.to_json()["perf_data"][0]["value"]) == "2"


def test_text_shows_sentences_and_gauges():
    """For people: what was found, worst first, and each figure with the levels that it has."""
    found = result()
    found.ok("fine")
    found.critical("gone\x1b[31m")
    found.gauges.append(Gauge("lag", 1234567.0, critical=5))
    text = found.text().splitlines()
    assert text[0] == "ORDERS: CRITICAL"
    assert [line.split(":")[0].strip() for line in text[1:3]] == ["critical", "ok"]
    assert "\x1b" not in found.text()
    assert text[-1].split() == ["lag:", "1.23457e+06", "(critical", "5)"]


# -- streams and consumers -------------------------------------------------------------------------------------------


def stream(**about: Any) -> dict[str, Any]:
    return {"config": {"name": "S", "num_replicas": 1}, "state": {"messages": 5, "num_subjects": 2}, **about}


def replicated(*peers: dict[str, Any], leader: str = "n1", replicas: int = 3) -> dict[str, Any]:
    return stream(config={"name": "S", "num_replicas": replicas}, cluster={"leader": leader, "replicas": list(peers)})


PEER = {"name": "n2", "current": True, "active": 1_000_000}


@pytest.mark.parametrize(
    ("info", "levels", "status", "said"),
    [
        (stream(), {}, "OK", "0 sources"),
        (stream(), {"msgs_critical": 5}, "CRITICAL", "5 messages"),
        (stream(), {"msgs_warn": 5, "msgs_critical": 4}, "WARNING", "5 messages"),
        (stream(), {"subjects_critical": 2}, "CRITICAL", "2 subjects"),
        (stream(), {"peer_expect": 3}, "CRITICAL", "no peers"),
        (stream(), {"lag_critical": 1}, "CRITICAL", "not a mirror"),
        (replicated(PEER, PEER), {}, "OK", "3 peers"),
        (replicated(PEER), {"peer_expect": 3}, "CRITICAL", "2 peers, and not 3"),
        (replicated(PEER, leader=""), {}, "CRITICAL", "no leader"),
        (replicated({**PEER, "offline": True}), {}, "CRITICAL", "offline: n2"),
        (replicated({**PEER, "lag": 11}), {"peer_lag_critical": 10}, "CRITICAL", "behind: n2"),
        (replicated({**PEER, "active": 3_000_000_000}), {"peer_seen_critical": 2.0}, "CRITICAL", "not seen"),
        (replicated(PEER), {"peer_lag_critical": 10, "peer_seen_critical": 2.0}, "OK", "active"),
        (stream(sources=[{"name": "a", "lag": 3, "active": 0}]), {"lag_critical": 3}, "CRITICAL", "behind: a"),
        (stream(sources=[{"name": "a", "lag": 0, "active": -1}]), {"seen_critical": 1.0}, "CRITICAL", "seen"),
        (stream(sources=[{"name": "a"}]), {"min_sources": 2}, "CRITICAL", "1 sources"),
        (stream(sources=[{"name": "a"}, {"name": "b"}]), {"max_sources": 1}, "CRITICAL", "2 sources"),
    ],
)
def test_a_stream_is_checked_by_its_levels(info: dict[str, Any], levels: dict[str, Any], status: str, said: str):
    """Peers, messages, subjects, sources: each level that is given is held, and what is wrong is named."""
    found = result()
    check_stream(found, info, StreamLevels(**levels))
    assert found.status == status
    assert said in " ".join([*found.criticals, *found.warnings, *found.oks])


def test_a_mirror_that_was_never_seen_is_critical():
    """The server writes -1 for a mirror without contact; that is no recent one."""
    config = {"name": "S", "num_replicas": 1, "mirror": {"name": "O"}}
    for active, status in ((-1, "CRITICAL"), (0, "OK"), (10**12, "CRITICAL")):
        found = result()
        check_stream(
            found,
            stream(config=config, mirror={"name": "O", "lag": 0, "active": active}),
            StreamLevels(seen_critical=60.0),
        )
        assert found.status == status


def test_metadata_gives_levels_that_nobody_gave():
    """A stream says its own levels in its metadata; what the caller says goes first, what cannot be read is told."""
    metadata = {
        "io.nats.monitor.lag-critical": "5",
        "io.nats.monitor.seen-critical": "2m",
        "io.nats.monitor.enabled": "1",
    }
    assert with_metadata(StreamLevels(lag_critical=9), metadata) == StreamLevels(lag_critical=9, seen_critical=120.0)
    assert with_metadata(ConsumerLevels(), {"io.nats.monitor.pinned": "true"}).pinned is True
    with pytest.raises(InputError, match=r"io\.nats\.monitor\.lag-critical"):
        with_metadata(StreamLevels(), {"io.nats.monitor.lag-critical": "many"})


def test_a_consumer_is_checked_by_its_levels():
    """Counts at a level are critical, and so is a last delivery that is too long ago or never was."""
    info = {
        "config": {"priority_policy": "pinned_client", "priority_groups": ["a", "b"]},
        "num_ack_pending": 3,
        "num_pending": 7,
        "delivered": {"last_active": "2026-05-01T11:59:00Z"},
        "priority_groups": [{"group": "a", "pinned_client_id": "x"}, {"group": "b"}],
    }
    found = result()
    check_consumer(found, info, ConsumerLevels(outstanding_ack_critical=3, unprocessed_critical=8, pinned=True), NOW)
    assert found.criticals == ["3 ack pending", "1 of 2 groups are pinned"]
    assert found.oks == ["7 pending"]
    assert [item.name for item in found.gauges][-3:] == ["last_delivery", "pinned_groups", "groups"]
    found = result()
    check_consumer(found, info, ConsumerLevels(last_delivery_critical=60.0, last_ack_critical=60.0), NOW)
    assert found.criticals == ["last delivery 1m0s ago", "no ack yet"]


def test_a_message_is_checked_by_age_and_body():
    """The age is that of the server's time, or of the Unix time in the body; the body is searched."""
    stored = NOW - timedelta(seconds=30)
    for levels, data, status in (
        (MessageLevels(age_warn=31), b"x", "OK"),
        (MessageLevels(age_warn=29), b"x", "WARNING"),
        (MessageLevels(age_critical=29), b"x", "CRITICAL"),
        (MessageLevels(content="^y"), b"x", "CRITICAL"),
        (MessageLevels(), b"", "CRITICAL"),
        (MessageLevels(age_critical=60, body_timestamp=True), str(int(NOW.timestamp()) - 61).encode(), "CRITICAL"),
        (MessageLevels(body_timestamp=True), b"soon", "CRITICAL"),
        (MessageLevels(body_timestamp=True), b"9" * 40, "CRITICAL"),
    ):
        found = result()
        check_message(found, "a", data, stored, levels, NOW)
        assert found.status == status, (levels, data)


def test_replicas_of_all_streams_are_counted():
    """Each unhealthy stream is counted by what is wrong with it; those that nobody answers for fail."""
    found = result()
    infos = [
        stream(),
        replicated(PEER, PEER),
        replicated(PEER),
        replicated(PEER, PEER, leader=""),
        replicated({**PEER, "lag": 300}, {**PEER, "offline": True}),
    ]
    check_replicas(found, infos, 1, ReplicaLevels())
    counts = {item.name.removeprefix("replicas_"): item.value for item in found.gauges}
    assert counts == {"ok": 2, "no_leader": 1, "missing_replicas": 1, "lagged": 1, "not_seen": 0, "fail": 2}
    assert found.status == "CRITICAL"


# -- servers ---------------------------------------------------------------------------------------------------------

VARZ = {
    "server_name": "n1",
    "cpu": 12.5,
    "mem": 1000,
    "connections": 3,
    "subscriptions": 50,
    "auth_required": True,
    "start": "2026-05-01T11:59:00Z",
    "now": "2026-05-01T12:00:00Z",
    "jetstream": {"config": {"store_dir": "x"}},
    "cluster": {"tls_cert_not_after": "2026-05-01T13:00:00Z"},
}


@pytest.mark.parametrize(
    ("levels", "status", "said"),
    [
        ({}, "OK", ""),
        ({"cpu_warn": 12}, "WARNING", "12.5% CPU"),
        ({"mem_critical": 1000}, "CRITICAL", "1,000 bytes of memory"),
        ({"conn_warn": 5, "conn_critical": 3}, "CRITICAL", "3 connections"),
        ({"subs_critical": 51}, "OK", "50 subscriptions"),
        ({"uptime_warn": 60.0}, "WARNING", "up 1m0s"),
        ({"uptime_critical": 61.0}, "CRITICAL", "up 1m0s"),
        ({"js_required": True, "auth_required": True}, "OK", "login required"),
        ({"tls_required": True}, "CRITICAL", "TLS not required"),
        ({"tls_cert_warn": 7200.0, "tls_cert_crit": 60.0}, "WARNING", "cluster certificate"),
        ({"tls_cert_crit": 3600.0}, "CRITICAL", "cluster certificate"),
    ],
)
def test_a_server_is_checked_by_its_levels(levels: dict[str, Any], status: str, said: str):
    """CPU, memory, connections, uptime and certificates, over what the server says."""
    found = result()
    check_server(found, VARZ, ServerLevels(**levels))
    assert found.status == status
    assert said in " ".join([*found.criticals, *found.warnings, *found.oks])
    assert [item.name for item in found.gauges] == ["uptime", "cpu", "mem", "connections", "subscriptions"]


def test_a_certificate_that_expired_is_critical_and_so_is_none():
    """Whoever asks for certificates has them."""
    found = result()
    check_server(
        found, {**VARZ, "cluster": {"tls_cert_not_after": "2026-05-01T11:00:00Z"}}, ServerLevels(tls_cert_warn=1.0)
    )
    check_server(found, {**VARZ, "cluster": {}}, ServerLevels(tls_cert_warn=1.0))
    assert found.criticals == ["cluster certificate expired 2026-05-01 11:00", "the server has no TLS certificate"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ServerLevels(cpu_warn=90, cpu_critical=80),
        lambda: ServerLevels(uptime_warn=1.0, uptime_critical=2.0),
        lambda: AccountLevels(mem_warn=90, mem_critical=90),
    ],
)
def test_levels_that_contradict_each_other_are_bad_input(make: Any):
    """What can never warn is refused before anything is asked."""
    with pytest.raises(InputError):
        make()


def test_the_group_that_leads_jetstream_is_checked_by_name():
    """Who is away, behind or not up to date is named; one server alone has no group."""
    found = result()
    check_meta(found, {}, MetaLevels(3, 10, 5.0))
    assert found.criticals == ["JetStream is not clustered"]
    away = {"name": "n3", "current": False, "offline": True, "active": 6_000_000_000, "lag": 11}
    found = result()
    check_meta(found, {"meta_cluster": {"leader": "n1", "replicas": [PEER, away]}}, MetaLevels(4, 10, 5.0))
    assert [text.rpartition(": ")[2] for text in found.criticals] == ["3 peers, and not 4", "n3", "n3", "n3", "n3"]
    assert [item.name for item in found.gauges] == [
        "peers",
        "peer_offline",
        "peer_not_current",
        "peer_inactive",
        "peer_lagged",
    ]


def test_an_account_without_limits_uses_no_share_of_them():
    """Percentages are of limits; what has none is never too much, what is above its limit always."""
    used = {"memory": 80, "storage": 95, "streams": 3, "consumers": 11}
    limits = {"max_memory": 100, "max_storage": 100, "max_streams": -1, "max_consumers": 10}
    found = result()
    check_account(found, {**used, "limits": limits}, AccountLevels(streams_warn=1))
    assert found.warnings == ["80% of memory"]
    assert found.criticals == ["95% of storage", "consumers is above its limit"]


def test_a_credential_is_checked_by_its_end():
    """One that expired is critical, also without levels; one that never ends is, unless that is allowed."""
    for expires, levels, status in (
        (0, CredentialLevels(), "CRITICAL"),
        (0, CredentialLevels(require_expiry=False), "OK"),
        (99, CredentialLevels(), "CRITICAL"),
        (160, CredentialLevels(validity_warn=59, validity_critical=30), "OK"),
        (160, CredentialLevels(validity_warn=60, validity_critical=30), "WARNING"),
        (130, CredentialLevels(validity_critical=30), "CRITICAL"),
    ):
        found = result()
        check_credential(found, expires, levels, 100.0)
        assert found.status == status, (expires, levels)


def test_claims_are_those_that_the_issuer_signed():
    """The JWT of a credentials file is read; one with a changed letter is damaged, and the file is never shown."""
    text = Operator().credentials(expired=True)
    assert claims(text)["exp"] > 0
    jwt = text.split("\n")[1]
    for damaged in (
        text.replace(jwt, jwt[:-2] + ("A" if jwt[-2] != "A" else "B") + jwt[-1]),
        text.replace(jwt, "a.b.c"),
    ):
        with pytest.raises(LoginError, match="damaged") as told:
            claims(damaged)
        assert jwt[:20] not in str(told.value)
    with pytest.raises(LoginError, match="hold no JWT"):
        claims("-----BEGIN USER NKEY SEED-----\nSU\n------END USER NKEY SEED------")


# -- who is there ----------------------------------------------------------------------------------------------------


def answer(name: str, **stats: Any) -> ServerSeen:
    server = {"name": name, "id": f"N{name}", "cluster": "east", "host": "h", "tags": ["ssd"], "ver": "2.12.0"}
    return ServerSeen({"server": server, "statsz": stats}, 0.001 * len(name))


def test_known_servers_are_those_that_anybody_knows_of():
    """As many as one says there are, or as routes lead to, whichever is more."""
    assert known_servers([answer("a")]) == 1
    assert known_servers([answer("a", active_servers=3), answer("b", active_servers=2)]) == 3
    assert known_servers([answer("a", routes=[{"name": "b"}, {"name": "b"}, {"name": "c"}, {}])]) == 3


def test_servers_are_sorted_with_the_largest_first():
    """Names and round trips go up, figures down; reverse turns both."""
    seen = [answer("b", mem=1), answer("a", mem=2), answer("cc", mem=2)]
    assert [item.name for item in sort_servers(seen, "name")] == ["a", "b", "cc"]
    assert [item.name for item in sort_servers(seen, "mem")] == ["cc", "a", "b"]
    assert [item.name for item in sort_servers(seen, "mem", reverse=True)] == ["b", "a", "cc"]
    assert clusters_of(seen)[0].servers == 3


def test_a_filter_takes_whom_the_server_would_take():
    """Names to the letter, tags in any case and all of them."""
    raw = answer("n1").raw
    assert ServerFilter(name="n1", cluster="east", tags=("SSD",)).takes(raw)
    assert not ServerFilter(name="n").takes(raw)
    assert not ServerFilter(tags=("ssd", "az")).takes(raw)
    assert ServerFilter().to_json() == {}
    assert ServerFilter(name="x", tags=("a",)).to_json() == {"exact_match": True, "server_name": "x", "tags": ["a"]}
    assert str(ServerFilter(cluster="east", tags=("a", "b"))) == "cluster east and tags a, b"


def test_a_name_never_becomes_part_of_a_subject():
    """Only an id does, and it has 56 letters and digits."""
    server = "N" + "A" * 55
    assert is_server_id(server)
    assert subject_of("VARZ", server) == f"$SYS.REQ.SERVER.{server}.VARZ"
    for wrong in ("n1", "*", ">", "N" * 57, "NA.B"):
        assert not is_server_id(wrong)
        with pytest.raises(InputError):
            subject_of("VARZ", wrong)
    with pytest.raises(InputError):
        subject_of("VARZ.>")


def test_fields_of_another_kind_are_the_peers_fault():
    """What is missing is zero, as Go leaves it out; what is of another kind is named."""
    assert (figure({}, "a", "b"), word({}, "a"), rows({}, "a"), fields({}, "a", "b"), moment({}, "a")) == (
        0,
        "",
        [],
        {},
        None,
    )
    for read, content in (
        (figure, {"a": "1"}),
        (figure, {"a": True}),
        (figure, {"a": float("inf")}),
        (figure, {"a": float("nan")}),
        (figure, {"a": 2**64}),
        (texts, {"a": ["b", 1]}),
        (moment, {"a": "9999-12-31T23:59:59Z"}),
        (word, {"a": 1}),
        (rows, {"a": [1]}),
        (fields, {"a": []}),
        (moment, {"a": "yesterday"}),
    ):
        with pytest.raises(RemoteProtocolError, match="'a'"):
            read(content, "a")
    for payload in (b"", b"[]", b"\xff", b"[" * 100_000):
        with pytest.raises(RemoteProtocolError):
            read_object(payload)


# -- reports and events ----------------------------------------------------------------------------------------------


def connz(name: str, *connections: dict[str, Any]) -> dict[str, Any]:
    return {"server": {"name": name, "id": name}, "data": {"connections": list(connections)}}


def test_connections_are_put_together_without_their_jwts():
    """Every connection names its server; a JWT, which may be a login by itself, is left out everywhere."""
    answers = [connz("n1", {"cid": 1, "jwt": "secret", "reason": "Slow Consumer"}), connz("n2", {"cid": 2})]
    assert [(item["cid"], item["server"]["name"]) for item in connections_in(answers)] == [(1, "n1"), (2, "n2")]
    assert "secret" not in json.dumps([connections_in(answers), without_jwts(answers[0])])
    assert without_jwts({"data": {"connections": 3}}) == {"data": {"connections": 3}}


def test_accounts_add_up_their_connections():
    """Messages, bytes, subscriptions and servers of each account."""
    one = {"account": "A", "in_msgs": 2, "out_bytes": 5, "subscriptions_list": ["a", "b"]}
    found = accounts_of(connections_in([connz("n1", one, one), connz("n2", one, {"account": "B", "subscriptions": 7})]))
    assert [(item["account"], item["connections"], item["in_msgs"], item["subscriptions"]) for item in found] == [
        ("A", 3, 6, 6),
        ("B", 1, 0, 7),
    ]
    assert [server["id"] for server in found[0]["server"]] == ["n1", "n2"]


def test_the_top_of_a_report_has_most_of_what_is_sorted_by():
    """The largest stands last, or first in reverse; of uptimes that is the earliest start."""
    items = [{"n": 2, "start": "2026-02"}, {"n": 1, "start": "2026-01"}, {"n": 3, "start": "2026-03"}]
    assert [item["n"] for item in sort_rows(items, "n", top=2)] == [2, 3]
    assert [item["n"] for item in sort_rows(items, "n", top=2, reverse=True)] == [3, 2]
    assert [item["n"] for item in sort_rows(items, "start", top=1)] == [1]


def test_leaders_are_counted_with_an_account_and_without():
    """A server tells how many it leads; with an account, each stream and consumer tells its leader."""
    details = [{"stream_detail": [{"cluster": {"leader": "n1"}, "consumer_detail": [{"cluster": {"leader": "n2"}}]}]}]
    answers = [
        {"server": {"name": "n1"}, "data": {"account_details": details}},
        {"server": {"name": "n2"}, "data": {"streams_leader": 4, "consumers_leader": 5}},
        {"server": {"name": "n3"}, "data": {}},
    ]
    assert leaders_of(answers) == [("n1", "", 1, 0), ("n2", "", 4, 5)]


def test_streams_that_need_a_newer_server_are_found_once():
    """Replicas tell of the same stream; its consumers are named with it where that is asked."""

    def asset(name: str, level: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "config": {"metadata": {"_nats.req.level": level}}, **more}

    held = [
        asset("A", "2", consumer_detail=[asset("c", "0")]),
        asset("B", "0", consumer_detail=[asset("d", "1")]),
        asset("C", "x"),
    ]
    replica = {"data": {"account_details": [{"name": "APP", "stream_detail": held}]}}
    found = needing_more([replica, replica], 0)
    assert found["streams"] == [{"account": "APP", "name": "A", "api_level": 2}]
    assert found["consumers"] == [{"account": "APP", "name": "d", "stream": "B", "api_level": 1}]
    assert [item["stream"] for item in needing_more([replica], 1, with_consumers=True)["consumers"]] == ["A*"]
    assert needing_more([replica], 2) == {}


def test_an_event_is_shown_whether_we_know_it_or_not():
    """Known kinds have a title, others their own name; fields inside of fields, and no JWT."""
    event = read_event(
        json.dumps(
            {
                "type": "io.nats.server.advisory.v1.client_disconnect",
                "id": "X",
                "timestamp": "2026-05-01T12:00:00.123456789Z",
                "server": {"name": "n1", "feature_flags": {"a": True}},
                "client": {"id": 7, "acc": "A", "jwt": "secret", "rtt": 1_500_000, "tags": ["a", "b"]},
                "reason": "Client Closed",
            }
        ).encode()
    )
    assert event.title == "Client disconnected"
    assert event.short == "[Client disconnected] cid 7, account A, reason Client Closed"
    assert dict(event.facts) == {
        "server.name": "n1",
        "client.id": "7",
        "client.acc": "A",
        "client.rtt": "1.5ms",
        "client.tags": "a, b",
        "reason": "Client Closed",
    }
    assert "secret" not in json.dumps(event.raw)
    cloud = event.to_cloudevent()
    assert (cloud["source"], cloud["subject"], cloud["specversion"]) == ("urn:nats:server", "advisory", "1.0")
    new = read_event(b'{"type": "io.nats.jetstream.advisory.v1.brand_new", "thing": "' + b"x" * 999 + b'"}')
    assert new.title == "Brand new"
    assert len(dict(new.facts)["thing"]) == 201


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"type": 1}', b'{"type": "a", "timestamp": 1}', b"\xff\xfe"])
def test_what_is_no_event_is_refused(data: bytes):
    """Anybody may publish on such subjects."""
    with pytest.raises(RemoteProtocolError):
        read_event(data)
