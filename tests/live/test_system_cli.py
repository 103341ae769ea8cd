"""`penstock server list|ping|info|report|request|check` and `events`, against a real server with a system account."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DeniedError
from penstock.server import Server
from penstock.system import ask_servers, servers
from tests.live.inprocess import Done, Peer, Talk, invoke
from tests.support import Operator

CONFIG = """
accounts {
  SYS { users [ { user: sys, password: pass } ] }
  APP { jetstream: enabled, users [
    { user: app, password: pass }
    { user: quiet, password: pass, permissions { publish { deny: ["$SYS.>"] } } }
  ] }
}
system_account: SYS
server_tags: ["az:1", "ssd"]
"""
OUTSIDE = "Servers tell this to users of the system account alone"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """One server with a system account, for all tests here."""
    with Server(sync="2m", auth=False, config=CONFIG) as running:
        yield running.url.removeprefix("nats://")


@pytest.fixture(scope="module")
def asking(address: str) -> Callable[..., Done]:
    """Run a command as the user of the system account."""

    def ask(*arguments: str, **options: Any) -> Done:
        return invoke(f"nats://sys:pass@{address}", *arguments, **options)

    return ask


@pytest.fixture(scope="module")
def app(address: str) -> Iterator[Peer]:
    """Somebody of an ordinary account, with a stream, a consumer and a bucket."""
    peer = Peer(f"nats://app:pass@{address}")
    js = peer.client.jetstream()
    peer.do(js.add_stream(name="ORDERS", subjects=["orders.>"]))
    peer.do(js.add_consumer("ORDERS", durable="C"))
    peer.do(js.add_stream(name="KV_B", subjects=["$KV.B.>"], allow_rollup_hdrs=True, max_msgs_per_subject=1))
    peer.publish("orders.new", b"hello", b"again")
    peer.publish("$KV.B.k", b"v")
    peer.publish("$KV.B.gone", b"", headers={"KV-Operation": "DEL"})
    yield peer
    peer.close()


def one_sentence(done: Done, status: int, *words: str) -> None:
    """Assert the manner of every failure: a status, one line on stderr, nothing else."""
    assert done.status == status, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("penstock: ")
    assert len(done.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in done.stderr


# -- who is there ----------------------------------------------------------------------------------------------------


def test_list_shows_every_server(asking: Callable[..., Done]):
    """A row for each; --json is what each server sent, as with `nats`."""
    done = asking("server", "list")
    assert done.status == 0, done.stderr
    assert "1 server" in done.stdout
    assert " n1 " in done.stdout
    (server,) = json.loads(asking("server", "ls", "--json", "--sort", "mem", "-R").stdout)
    assert server.keys() == {"server", "statsz"}
    assert server["server"]["tags"] == ["az:1", "ssd"]


def test_ping_fails_if_a_server_is_missing(asking: Callable[..., Done]):
    """It ends when all known servers have answered; more that are expected are waited for, and then told."""
    began = time.monotonic()
    done = asking("server", "ping", "--id", "--timeout", "20s")
    assert done.status == 0
    assert "n1 rtt=" in done.stdout
    assert time.monotonic() - began < 10
    done = asking("server", "ping", "2", "--timeout", "200ms")
    assert done.status == 1
    assert "1 server of 2 did not answer" in done.stderr


def test_info_shows_a_server_by_name_or_id(asking: Callable[..., Done], app: Peer):
    """Without a name, it is the one that answers; a name that nobody has is told with those that there are."""
    about = json.loads(asking("server", "info", "n1", "--json").stdout)
    assert about["server_name"] == "n1"
    shown = asking("server", "info", about["server_id"])
    assert "JetStream:" in shown.stdout
    assert "System account: SYS" in shown.stdout
    assert asking("server", "info").stdout.startswith("Server n1")
    one_sentence(asking("server", "info", "n*"), 1, "no server with name n*", "n1")


QUESTIONS = [
    *(["server", verb] for verb in ("list", "ping")),
    ["server", "info", "n1"],
    *(["server", "report", verb] for verb in ("mem", "health", "jetstream", "routes")),
    ["server", "account", "info", "APP"],
    *(["server", "request", verb] for verb in ("variables", "jetstream-health")),
    ["events"],
]


@pytest.mark.parametrize("user", ["app", "quiet"])
@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_a_login_outside_of_the_system_account_is_told_at_once(address: str, user: str, question: list[str]):
    """Whether nobody answers or the server denies it: one sentence, and no wait for the timeout."""
    began = time.monotonic()
    done = invoke(f"nats://{user}:pass@{address}", *question, "--timeout", "20s")
    one_sentence(done, 1, "users of the system account alone", "Log in as one")
    assert time.monotonic() - began < 10


def test_programs_ask_the_same(address: str):
    """`penstock.system` gives what the commands show."""
    peer, stranger = Peer(f"nats://sys:pass@{address}"), Peer(f"nats://app:pass@{address}")
    try:
        (seen,), absent = peer.do(servers(peer.client))
        assert (seen.name, absent) == ("n1", 0)
        got = peer.do(ask_servers(peer.client, "VARZ"))
        assert got.answers[0]["data"]["server_id"] == seen.id
        assert (got.missing, got.absent) == ((), 0)
        with pytest.raises(DeniedError, match=OUTSIDE):
            stranger.do(ask_servers(stranger.client, "VARZ"))
    finally:
        peer.close()
        stranger.close()


# -- reports and requests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb", ["accounts", "connections", "cpu", "mem", "health", "jetstream", "routes", "gateways", "leafnodes"]
)
def test_every_report_has_a_table_and_json(asking: Callable[..., Done], app: Peer, verb: str):
    """For people a title and rows, for programs one value; a server that is meant by host, cluster or tag alone."""
    done = asking("server", "report", verb, "--tags", "ssd")
    assert done.status == 0, done.stderr
    assert "server" in done.stdout.lower() or "account" in done.stdout
    assert asking("server", "report", verb, "--json", "--host", "n1").status == 0
    json.loads(asking("server", "report", "-R", verb, "--json").stdout)
    one_sentence(asking("server", "report", verb, "--host", "n9"), 1, "no server with name n9")


def test_reports_have_the_shapes_of_natscli(asking: Callable[..., Done], app: Peer):
    """Accounts with their connections, connections with their server, a number for each server."""
    accounts = json.loads(asking("server", "report", "accounts", "--json", "--sort", "conns", "--top", "1").stdout)
    assert len(accounts) == 1
    account = json.loads(asking("server", "report", "accounts", "APP", "--json").stdout)
    assert account.keys() >= {"account", "connections", "connection_info", "in_msgs", "subscriptions", "server"}
    (connection,) = json.loads(asking("server", "report", "connections", "--account", "APP", "--json").stdout)
    assert connection["server"]["name"] == "n1"
    assert connection["authorized_user"] == "app"
    assert list(json.loads(asking("server", "report", "mem", "--json").stdout)) == ["n1"]
    closed = asking(
        "server", "report", "connections", "--state", "closed", "--closed-reason", "client closed", "--json"
    )
    assert {item["reason"] for item in json.loads(closed.stdout)} <= {"Client Closed"}
    one_sentence(asking("server", "report", "accounts", "NOPE"), 1, "NOPE", "no connections")
    assert "2 streams" not in asking("server", "report", "jetstream", "--account", "APP", "--leaders").stderr


def test_a_login_outside_of_the_system_account_is_shown_the_way_to_its_own_connections(address: str, app: Peer):
    """Servers tell everybody of the own account; that has a report of its own."""
    for verb in ("connections", "accounts"):
        done = invoke(f"nats://app:pass@{address}", "server", "report", verb)
        one_sentence(done, 1, OUTSIDE, "`penstock account report connections`")


def test_what_needs_a_newer_server_is_shown(asking: Callable[..., Done], app: Peer):
    """A server of a lower API level would not take them."""
    app.do(app.client.jetstream().add_stream(name="NEWER", subjects=["newer"], allow_msg_ttl=True))
    found = json.loads(asking("server", "report", "downgrade", "0", "--json").stdout)
    assert [(item["account"], item["name"]) for item in found["streams"]] == [("APP", "NEWER")]
    assert "NEWER" in asking("server", "report", "downgrade", "0", "--all").stdout
    assert asking("server", "report", "downgrade", "99").stdout == "All streams and consumers work with API level 99.\n"


def test_an_account_is_shown_as_the_server_knows_it(asking: Callable[..., Done]):
    """Its imports and figures; --json is what the server said, and an account that it does not know is told."""
    done = asking("server", "account", "info", "APP", "--host", "n1")
    assert "JetStream: true" in done.stdout
    assert "Imports:" in done.stdout
    assert json.loads(asking("server", "account", "info", "APP", "--json").stdout)["account_name"] == "APP"
    one_sentence(asking("server", "account", "info", "NOPE"), 1, "NOPE")


def test_a_report_is_shown_again_until_ctrl_c(asking: Callable[..., Done]):
    """--watch makes it anew every so many seconds."""

    def press(talk: Talk) -> None:
        talk.wait_for('"n1"')
        talk.interrupt()

    done = asking("server", "report", "mem", "--watch", "60", "--json", beside=press)
    assert done.status == 0, done.stderr
    assert list(json.loads(done.stdout)) == ["n1"]


@pytest.mark.parametrize(
    "verb",
    [
        ["variables"],
        ["connections", "--subscriptions", "--sort", "start"],
        ["subscriptions", "--detail"],
        ["routes"],
        ["gateways"],
        ["leafnodes"],
        ["accounts"],
        ["accounts", "--account", "APP"],
        ["jetstream", "--all"],
        ["jetstream-health"],
        ["raft"],
        ["ipqueue"],
    ],
    ids=" ".join,
)
def test_a_request_prints_a_line_for_each_server(asking: Callable[..., Done], verb: list[str]):
    """What the server said, as it said it."""
    done = asking("server", "request", *verb, "--name", "n1")
    assert done.status == 0, done.stderr
    (answer,) = map(json.loads, done.stdout.splitlines())
    assert answer["server"]["name"] == "n1"
    assert "data" in answer


def test_flags_of_all_verbs_may_stand_before_the_verb(asking: Callable[..., Done]):
    """`nats server request --name n1 variables` works here, too."""
    assert json.loads(asking("server", "request", "--name", "n1", "--limit=5", "variables").stdout)["data"]
    done = asking("server", "check", "--format", "json", "connection")
    assert json.loads(done.stdout)["status"] == "OK"
    done = asking("server", "report", "--top", "5", "mem")
    assert done.status == 2
    assert "No such option" in done.stderr


# -- checks ----------------------------------------------------------------------------------------------------------


CHECKS = [
    (["connection"], 0),
    (["connection", "--connect-critical", "1ns"], 2),
    (["connection", "--rtt-warn", "1ns"], 1),
    (["stream", "--stream", "ORDERS"], 0),
    (["stream", "--stream", "NOPE"], 2),
    (["stream", "--stream", "ORDERS", "--msgs-warn", "5", "--msgs-critical", "1"], 1),
    (["stream", "--stream", "ORDERS", "--peer-expect", "3"], 2),
    (["consumer", "--stream", "ORDERS", "--consumer", "C"], 0),
    (["consumer", "--stream", "ORDERS", "--consumer", "C", "--unprocessed-critical", "2"], 2),
    (["consumer", "--stream", "ORDERS", "--consumer", "NOPE"], 2),
    (["message", "--stream", "ORDERS", "--subject", "orders.new", "--content", "^again$"], 0),
    (["message", "--stream", "ORDERS", "--age-warn", "1ms"], 1),
    (["message", "--stream", "ORDERS", "--subject", "orders.old"], 2),
    (["jetstream"], 0),
    (["jetstream", "--no-replicas", "--mem-warn", "-1", "--mem-critical", "-1"], 0),
    (["kv", "--bucket", "B", "--key", "k"], 0),
    (["kv", "--bucket", "B", "--key", "gone"], 2),
    (["kv", "--bucket", "B", "--key", "never"], 2),
    (["kv", "--bucket", "B", "--values-warn", "1", "--values-critical", "9"], 1),
    (["kv", "--bucket", "NOPE"], 2),
    (["request", "--subject", "nobody.there"], 2),
    (["server", "--name", "n1"], 2),  # for the system account
]


@pytest.mark.parametrize(
    ("check", "status"), CHECKS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_check_ends_as_a_plugin_does(address: str, app: Peer, check: list[str], status: int):
    """One line, and 0, 1 or 2; what fails is critical, with the sentence that tells what to do."""
    done = invoke(f"nats://app:pass@{address}", "server", "check", *check)
    assert done.status == status, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith(("OK ", "WARNING ", "CRITICAL ")[status])
    assert len(done.stdout.splitlines()) == 1


def test_servers_are_checked_by_the_system_account(asking: Callable[..., Done]):
    """CPU, memory and the like of one server; the group that leads JetStream is missing where there is no cluster."""
    done = asking("server", "check", "server", "--name", "n1", "--mem-warn", "1", "--js-required", "--auth-required")
    assert done.status == 1
    assert "OK:JetStream on OK:login required" in done.stdout
    done = asking("server", "check", "server", "--name", "n9")
    assert done.status == 2
    assert "no server with name n9" in done.stdout
    done = asking("server", "check", "meta", "--expect", "3", "--lag-critical", "1", "--seen-critical", "1s")
    assert done.stdout == "CRITICAL JetStream Meta Cluster Crit:JetStream is not clustered\n"


def test_a_service_is_checked_by_what_it_answers(address: str, app: Peer, unique: Callable[..., str]):
    """The body is matched, headers are sent and asked for."""
    subject = unique("svc")
    with app.listening(subject, b"pong") as heard:

        def check(*flags: str) -> int:
            url = f"nats://app:pass@{address}"
            return invoke(url, "server", "check", "request", "--subject", subject, "--payload", "ping", *flags).status

        assert check("--match-payload", "^pong$", "--headers", "A=1") == 0
        assert (heard[0].data, heard[0].headers) == (b"ping", {"A": "1"})
        assert check("--match-payload", "pang") == 2
        assert check("--match-headers", "A=1") == 2
        assert check("--response-warn", "1ns") == 1


def test_a_result_is_written_in_every_form(address: str, app: Peer, tmp_path: Path):
    """Prometheus reads the status itself, so that the command ends with 0; a file is put into place whole."""
    url, check = f"nats://app:pass@{address}", ["server", "check", "kv", "--bucket", "NOPE"]
    done = invoke(url, *check, "--format", "prometheus", "--namespace", "shop")
    assert done.status == 0
    assert 'shop_kv_status_code{item="NOPE",status="CRITICAL"} 2' in done.stdout
    done = invoke(url, *check, "--format", "text")
    assert (done.status, done.stdout.splitlines()[0]) == (2, "NOPE: CRITICAL")
    done = invoke(url, *check, "--format", "json", "--outfile", str(tmp_path / "out"))
    assert (done.status, done.stdout) == (2, "")
    assert json.loads((tmp_path / "out").read_text())["check_suite"] == "kv"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_credential_is_checked_without_a_server(tmp_path: Path):
    """What never ends, has ended, or is no credentials file is critical; nothing of the file is shown."""
    operator, file = Operator(), tmp_path / "user.creds"
    for text, flags, status, said in (
        (operator.credentials(), [], 2, "never expires"),
        (operator.credentials(), ["--no-require-expiry"], 0, "never expires"),
        (operator.credentials(expired=True), [], 2, "expired"),
        ("nothing", [], 2, "hold no JWT"),
    ):
        file.write_text(text)
        done = invoke(None, "server", "check", "credential", "--credential", str(file), *flags)
        assert done.status == status
        assert said in done.stdout
        assert "eyJ" not in done.stdout
    assert invoke(None, "server", "check", "credential", "--credential", str(tmp_path / "none")).status == 2


def test_a_server_that_nobody_reaches_is_critical(unused_port: int):
    """A plugin says so in its line."""
    done = invoke(f"nats://127.0.0.1:{unused_port}", "server", "check", "connection")
    assert done.status == 2
    assert done.stdout.startswith("CRITICAL Connection Crit:No NATS server answers")


@pytest.fixture
def unused_port() -> int:
    """A port on which nobody listens."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


BAD = [
    ["server", "list", "--sort", "size"],
    ["server", "report", "connections", "--sort", "name"],
    ["server", "report", "connections", "--state", "half"],
    ["server", "report", "connections", "--closed-reason", "["],
    ["server", "report", "routes", "--sort", "x"],
    ["server", "report", "health", "--stream", "S"],
    ["server", "request", "connections", "--sort", "x"],
    ["server", "check", "connection", "--rtt-warn", "soon"],
    ["server", "check", "connection", "--format", "xml"],
    ["server", "check", "connection", "--namespace", "a-b"],
    ["server", "check", "connection", "--outfile", "/nonexistent/x"],
    ["server", "check", "stream", "--stream", "a.b"],
    ["server", "check", "consumer", "--stream", "S", "--consumer", "a b"],
    ["server", "check", "message", "--stream", "S", "--content", "("],
    ["server", "check", "message", "--stream", "S", "--subject", "a..b"],
    ["server", "check", "request", "--subject", "a.*"],
    ["server", "check", "request", "--subject", "a", "--headers", "A"],
    ["server", "check", "kv", "--bucket", "a.b"],
    ["server", "check", "kv", "--bucket", "B", "--key", "a b"],
    ["server", "check", "server", "--name", "n1", "--cpu-warn", "9", "--cpu-critical", "8"],
    ["server", "check", "jetstream", "--mem-warn", "95"],
    ["server", "check", "meta", "--expect", "3", "--lag-critical", "1", "--seen-critical", "x"],
    ["events", "--filter", "("],
    ["events", "--since", "1h"],
    ["events", "--no-srv-advisory"],
    ["events", "--stream", "S", "--all"],
    ["events", "--subjects", "a b"],
]


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_is_refused_before_anybody_is_asked(arguments: list[str]):
    """One sentence and status 2, with no server to talk to."""
    one_sentence(invoke("nats://127.0.0.1:1", *arguments), 2)


# -- answers that no server gives ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (b"", 1, "not JSON"),
        (b"[]", 1, "not an object"),
        (b'{"server": 1}', 1, "'server'"),
        (b'{"server": {"name": "x"}, "statsz": {"mem": 1e999, "active_servers": NaN}}', 1, "'active_servers'"),
        (b'{"server": {"name": "x"}, "statsz": {"active_servers": 2}}', 1, "1 server of 2"),
        (b'{"server": {"name": "[red]\\u001b[31mx\\u202e"}, "statsz": {}}', 0, ""),
    ],
)
def test_whatever_answers_is_text_or_refused(address: str, app: Peer, answer: bytes, status: int, said: str):
    """In an account of one's own anybody may answer as a server; what comes is checked, and never obeyed."""
    with app.listening("$SYS.REQ.SERVER.PING", answer):
        done = invoke(f"nats://app:pass@{address}", "server", "ping", "--timeout", "300ms")
    assert done.status == status
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout
    if not status:
        assert "[red]\\x1b[31mx" in done.stdout


# -- events ----------------------------------------------------------------------------------------------------------


def test_events_show_connections_as_they_come_and_go(asking: Callable[..., Done], address: str):
    """For the system account; --json is a line for each, --filter takes those that match."""

    def visit(talk: Talk) -> None:
        talk.wait_for("Listening on")
        Peer(f"nats://app:pass@{address}").close()
        talk.wait_for("client_disconnect")
        talk.interrupt()

    done = asking("events", "--json", "--filter", "client_dis", beside=visit)
    assert done.status == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert {item["type"].rpartition(".")[2] for item in events} == {"client_disconnect"}
    assert events[0]["client"]["acc"] == "APP"


def test_events_of_jetstream_are_for_everybody(address: str, app: Peer, unique: Callable[..., str]):
    """--all shows what there is, and says what this login does not hear; what is no event is told, too."""
    stream = unique("EV")

    def act(talk: Talk) -> None:
        talk.wait_for("Listening on")
        app.publish("$JS.EVENT.ADVISORY.X", b"[1]")
        app.do(app.client.jetstream().add_stream(name=stream, subjects=[f"{stream}.>"]))
        talk.wait_for(f"stream {stream}, action create")
        talk.interrupt()

    done = invoke(f"nats://app:pass@{address}", "events", "--all", "--short", beside=act)
    assert done.status == 0
    assert "The others are shown." in done.stderr
    assert "not an object" in done.stderr
    assert f"[Stream action] stream {stream}, action create" in done.stdout


def test_events_are_read_from_a_stream(address: str, app: Peer, unique: Callable[..., str]):
    """--stream shows what it holds and goes on; the consumer that reads it is gone afterwards."""
    stream, jetstream = unique("KEPT"), app.client.jetstream()
    app.do(jetstream.add_stream(name=stream, subjects=[f"ev.{stream}.>"]))
    app.publish(f"ev.{stream}.a", b'{"type": "io.nats.server.advisory.v1.first_thing", "id": "1", "size": 7}')

    def wait(talk: Talk) -> None:
        talk.wait_for("First thing")
        app.publish(f"ev.{stream}.b", b'{"type": "io.nats.server.advisory.v1.second_thing"}')
        talk.wait_for("Second thing")
        talk.interrupt()

    url = f"nats://app:pass@{address}"
    done = invoke(url, "events", "--stream", stream, "--since", "1h", beside=wait)
    assert done.status == 0, done.stderr
    assert "  size: 7" in done.stdout
    assert app.do(jetstream.stream_info(stream)).consumers == 0
    one_sentence(invoke(url, "events", "--stream", "NOPE"), 1, "NOPE")
