"""What a server can be asked for, and the configuration that is made of it: text in, text out, no process."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import OptionError, StartError
from penstock.server.binary import Binary, version_numbers
from penstock.server.node import Deployment, Node, _cause, is_port_clash
from penstock.server.options import Routes, ServerOptions, statements

# -- the statements of a configuration ---------------------------------------------------------------------------------


def keys(text: str) -> list[str]:
    return [statement.key for statement in statements(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("port: 4222", ["port"]),
        ("port = 4222", ["port"]),
        ("port 4222", ["port"]),
        ("PORT: 1", ["port"]),
        ("'port': 1\n\"host\": x", ["port", "host"]),
        ("a: 1; b: 2, c: 3", ["a", "b", "c"]),
        ("# port: 1\n// host: x\na: 1 # port: 2", ["a"]),
        ("a: nats://host:1\nb: 2", ["a", "b"]),
        ('a: "port: 1\\" host"\nb: 2', ["a", "b"]),
        ("a { port: 1\n host: x }\nb: 2", ["a", "b"]),
        ("a [ {port: 1}, {host: x} ] b: 2", ["a", "b"]),
        ("a {\n b {\n c: 1\n }\n}\n}\nd: 1", ["a", "d"]),
        ("a: 1\r\nb: 2\r\n", ["a", "b"]),
        ("a { b: 1", ["a"]),
        ("a: (1,\n2)\nb: 1", ["a", "b"]),
        ('a: "it # is"\nb: 1', ["a", "b"]),
        ("include ./more.conf\na: 1", ["include", "a"]),
    ],
)
def test_statements_are_found_as_the_server_reads_them(text: str, found: list[str]):
    """Keys are found with any of the separators, in quotes, behind comments and around blocks, and nowhere else."""
    assert keys(text) == found


def test_a_statement_knows_its_place_and_the_inside_of_its_block():
    """Cutting a statement out by its place leaves the others as they were."""
    text = "a: 1\njetstream { domain: hub, limits { x: 1 } }\nb: 2"
    one, two, three = statements(text)
    assert (one.body, two.body, three.body) == (None, " domain: hub, limits { x: 1 } ", None)
    assert text[two.start : two.end].startswith("jetstream {")
    assert text[: two.start] + text[two.end :] == "a: 1\nb: 2"


@given(st.text(alphabet="ab:={}[]()\"'#/,;\n \\", max_size=60))
def test_any_text_has_statements_that_follow_each_other(text: str):
    """However broken a configuration is, its statements are places in it, in order, without overlap."""
    end = 0
    for statement in statements(text):
        assert end <= statement.start < statement.end <= len(text)
        assert statement.key == statement.key.lower()
        end = statement.end


# -- what is left to us ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "port: 1",
        "debug: true; LISTEN = 0.0.0.0:4222",
        "'http_port': 8222",
        "monitor_port: 1",
        "logfile: x",
        "ports_file_dir: /x",
        "server_name: x",
        "cluster { name: x }",
        "jetstream: enabled",
        "jetstream: true",
        "jetstream { storedir: /x }",
        "jetstream { domain: d, sync_interval: always }",
        "jetstream { enabled: false }",
        "authorization { token: x }",
    ],
)
def test_what_penstock_sets_cannot_be_set_beside_it(text: str):
    """A configuration that would move ports, logs, the store or the login is refused with the option to use."""
    with pytest.raises(OptionError) as caught:
        ServerOptions(config=text)
    assert caught.value.option == "config"
    assert caught.value.remedy


def test_the_same_words_deeper_in_a_configuration_are_no_matter_of_ours():
    """Blocks of other listeners and accounts may name ports, users and stores of their own."""
    for text in (
        "mqtt { port: 1883 }",
        "leafnodes { listen: 127.0.0.1:7422 }",
        "accounts { A { jetstream: enabled, users: [{user: a, password: b}] } }",
        "jetstream { max_file_store: 1GB, domain: hub }",
        "# port: 4222\nmax_connections: 7",
    ):
        assert ServerOptions(config=text).config == text


def test_an_option_and_the_configuration_do_not_say_the_same_thing_twice(tmp_path: Path):
    """Logins, TLS and the largest payload stand in one place: here or there."""
    pem = tmp_path / "a.pem"
    pem.write_text("x")
    assert ServerOptions(auth=False, config="authorization { user: u, password: p }")
    assert ServerOptions(config="max_payload: 1MB")
    for given_options in (
        {"max_payload": 100, "config": "max_payload: 1MB"},
        {"tls_cert": pem, "tls_key": pem, "config": "tls { cert_file: x }"},
    ):
        with pytest.raises(OptionError, match="which Penstock sets"):
            ServerOptions(**given_options)


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "bind", "reach"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "0.0.0.0", "127.0.0.1"),
        ("::", "::", "[::1]"),
        ("::1", "::1", "[::1]"),
        ("192.0.2.7", "192.0.2.7", "192.0.2.7"),
    ],
)
def test_an_address_to_listen_on_becomes_one_to_reach(host: str, bind: str, reach: str):
    """A server that listens everywhere is reached on loopback, and IPv6 stands in brackets."""
    options = ServerOptions(host=host)
    assert (options.bind, options.reach) == (bind, reach)


def test_a_server_without_a_login_stays_on_this_machine():
    """Without a token only loopback is listened on, unless the configuration or certificates guard the door."""
    for host in ("127.0.0.1", "::1", "localhost"):
        assert not ServerOptions(host=host, auth=False).auth
    for host in ("0.0.0.0", "::", "192.0.2.7"):
        with pytest.raises(OptionError, match="anybody on the network"):
            ServerOptions(host=host, auth=False)
        assert ServerOptions(host=host, auth=False, config="authorization { user: u, password: p }")


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"port": -1}, "port"),
        ({"port": True}, "port"),
        ({"port": "4222"}, "port"),
        ({"port": 65536}, "port"),
        ({"sync": "1us"}, "sync"),
        ({"sync": None}, "sync"),
        ({"max_payload": True}, "max_payload"),
        ({"max_payload": 1.5}, "max_payload"),
        ({"token": 7}, "token"),
        ({"token": "x" * 513}, "token"),
        ({"token": "a@b"}, "token"),
        ({"start_timeout": float("inf")}, "start_timeout"),
        ({"start_timeout": True}, "start_timeout"),
        ({"start_timeout": "5s"}, "start_timeout"),
        ({"tls_key": "/nowhere"}, "tls_cert"),
        ({"config": {"authorization": {"password": "secret"}}}, "config"),
        ({"nodes": 1.0}, None),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], culprit: str | None):
    """An option of the wrong kind or range is refused by its name; a secret is not repeated."""
    if culprit is None:
        assert ServerOptions(**options).nodes == 1
        return
    with pytest.raises(OptionError) as caught:
        ServerOptions(**options)
    assert caught.value.option == culprit
    if culprit in ("token", "config"):
        assert caught.value.value is None
        assert str(options[culprit]) not in str(caught.value)


# -- the configuration that is written ---------------------------------------------------------------------------------


def written(index: int = 0, *, token: str | None = "t", routes: Routes | None = None, **options: Any) -> str:
    guard: Any = SimpleNamespace(run=Path("/run/penstock-x"))  # a folder is all that is asked of it
    binary = Binary(Path("/x"), "2.15.1", "option")
    deployment = Deployment(ServerOptions(**options), binary, guard, guard.run / "store", token, "/p", routes)
    return Node(deployment, index)._configuration()


def test_the_configuration_of_one_node(monkeypatch: pytest.MonkeyPatch):
    """One node has its name, its address, ports that the server chooses, its store with its room, and the token."""
    monkeypatch.setattr("penstock.server.node.room_for", lambda folder: 5_000_000)
    assert written() == (
        "server_name: n1\n"
        'host: "127.0.0.1"\n'
        "port: -1\n"
        'http: "127.0.0.1:-1"\n'
        'http_base_path: "/p"\n'
        'ports_file_dir: "/run/penstock-x/n1.ports"\n'
        'log_file: "/run/penstock-x/n1.log"\n'
        "logfile_size_limit: 64MB\n"
        "logfile_max_num: 2\n"
        'jetstream {\n  store_dir: "/run/penstock-x/store"\n  sync_interval: always\n'
        "  max_file_store: 5000000\n}\n"
        'authorization { token: "t" }\n'
        "\n"
    )


@pytest.mark.parametrize(
    ("sync", "text"), [("always", "always"), ("2m", '"120000ms"'), ("1d", '"86400000ms"'), ("1500us", '"2ms"')]
)
def test_a_duration_is_written_in_a_unit_that_the_server_knows(sync: str, text: str):
    """Days and weeks are ours; the server gets milliseconds."""
    assert f"sync_interval: {text}\n" in written(sync=sync)


def test_blocks_of_jetstream_join_ours():
    """However many jetstream blocks a configuration has, one is written, with all that they say."""
    text = written(config="a: 1\njetstream { domain: hub }\nb: 2\nJetStream { max_mem: 1GB }\nc: 3")
    assert len(re.findall("jetstream", text, re.IGNORECASE)) == 1
    block = text[text.index("jetstream {") : text.index("authorization")]
    assert "domain: hub" in block
    assert "max_mem: 1GB" in block
    assert "store_dir" in block
    for line in ("a: 1", "b: 2", "c: 3"):
        assert line in text.partition("authorization")[2]


def test_a_cluster_knows_all_its_routes_and_advertises_none():
    """Each node listens on its own route port, names all three with the password, and advertises no address."""
    routes = Routes((7001, 7002, 7003), "route-password")
    for index in range(3):
        text = written(index, nodes=3, routes=routes)
        assert f"server_name: n{index + 1}\n" in text
        assert f'listen: "127.0.0.1:{7001 + index}"' in text
        assert "no_advertise: true" in text
        assert [f"route:route-password@127.0.0.1:{port}" in text for port in routes.ports] == [True] * 3


def test_certificates_of_clients_are_asked_for_with_an_authority(tmp_path: Path):
    """With an authority the server verifies clients; paths are absolute, whatever they hold."""
    files = {}
    for name in ("cert", "key", "ca"):
        files[name] = tmp_path / f'my "{name}".pem'
        files[name].write_text("x")
    pair = {"tls_cert": files["cert"], "tls_key": files["key"]}
    assert "verify" not in written(**pair)
    text = written(**pair, tls_ca=files["ca"])
    assert "verify: true" in text
    assert f'cert_file: "{tmp_path}/my \\"cert\\".pem"' in text
    assert ServerOptions(**pair).secure


def test_no_token_no_login():
    """A server whose login is in its configuration gets no second one from us."""
    assert "authorization" not in written(token=None, auth=False)


# -- what a log says ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([], ""),
        (["[1] 2026/01/01 10:00:00.000000 [INF] Starting"], ""),
        (["[1] 2026/01/01 10:00:00.000000 [ERR] one", "[1] 2026/01/01 10:00:00.000000 [FTL] two."], "two"),
        (["[7] 2026/01/01 10:00:00.000000 [FTL] first", "[7] 2026/01/01 10:00:00.000000 [INF] later"], "first"),
        (["nats-server: Parse error on line 3: 'x'"], "Parse error on line 3: 'x'"),
        (["noise", "cannot run /x/nats-server: [Errno 8] Exec format error"], None),
    ],
)
def test_the_line_that_tells_most_is_the_cause(lines: list[str], cause: str | None):
    """The last fatal line counts, then the last error, then what is no log; time and process are cut off."""
    assert _cause(lines) == (lines[-1] if cause is None else cause)


def test_a_port_clash_is_one_of_our_own_ports():
    """Only a clash over a port of ours is worth another try; the same words about another listener are not."""
    line = "[1] 2026/01/01 10:00:00 [FTL] listen tcp 127.0.0.1:{}: bind: address already in use"

    def clash(port: int, *ours: int) -> bool:
        return is_port_clash(StartError("x", log=f"first\n{line.format(port)}\nlast", status=1), ours)

    assert clash(4222, 4222, 8222)
    assert not clash(1883, 4222, 8222)
    assert not clash(42220, 4222)
    assert not is_port_clash(StartError("x", log="listen tcp 127.0.0.1:4222: permission denied", status=1), [4222])


# -- versions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers", "fast"),
    [
        ("2.15.1", (2, 15, 1), True),
        ("v2.14.0-RC.1", (2, 14, 0), True),
        ("2.13.99", (2, 13, 99), False),
        ("10.0.0", (10, 0, 0), True),
        ("2.9", (), False),
        ("", (), False),
        ("dev", (), False),
    ],
)
def test_versions_are_compared_as_numbers(text: str, numbers: tuple[int, ...], fast: bool):
    """2.9 is older than 2.14, a release candidate counts as its release, and what is no version has no features."""
    assert version_numbers(text) == numbers
    assert Binary(Path("/x"), text, "option").supports_fast_ingest is fast
