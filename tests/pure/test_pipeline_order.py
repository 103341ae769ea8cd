"""What the child of a pipeline is given: every field travels, secrets stay hidden, and bad content is told."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.contexts import load_context, load_options, to_context
from penstock.errors import ContextError, InputError, LoginError, OptionError, PipelineError
from penstock.options import ConnectionOptions
from penstock.pipelines.order import Assignment, RunOrder
from penstock.pipelines.process import _environment
from penstock.spark.pipeline_replay import VARIABLE
from tests.support import Authority, Key, Operator

SEED = Key.make().seed
PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nBBBB\n-----END PRIVATE KEY-----\n"
# Together these give every option another value than its default: some exclude each other.
CONNECTIONS = [
    ConnectionOptions(
        "tls://a:1,tls://b:2",
        name="mine",
        user="ann",
        password="p,@/",
        tls_ca=PEM,
        tls_cert=PEM,
        tls_key=KEY,
        tls_first=True,
        tls_hostname="nats.example",
        domain="hub",
        inbox_prefix="_MINE.x",
        connect_timeout=7,
        request_timeout=0.25,
        reconnect=False,
        reconnect_wait=0.5,
        reconnect_attempts=-1,
        keep_order=True,
        no_echo=True,
        ping_interval=3.5,
    ),
    ConnectionOptions("nats://tökén@[::1]:9", api_prefix="from.acct", event_prefix="from.events"),
    ConnectionOptions("nats://jwt:1", jwt="eyJh.eyJi.c", nkey=SEED, socks_proxy="socks5://ann:p%40@proxy:1080"),
    ConnectionOptions("wss://h/path", nkey=SEED),
    ConnectionOptions(credentials=Operator().credentials()),
    ConnectionOptions(),
]
ORDER = RunOrder(
    continuous=True,
    pause=2.5,
    master="spark://x:7077",
    remote="sc://x/;token=s3cr3t",
    full_refresh=("a", "b"),
    full_refresh_all=True,
    dry=True,
    conf={"spark.x": "1"},
    replay='{"start": "1"}',
    database="shop",
)
GIVEN = Assignment(
    folder=Path("/run/x"),
    spec=Path("/shop/spark-pipeline.yaml"),
    storage="file:///shop/storage",
    streams=("ORDERS", "REVENUE"),
    spark={"spark.ui.enabled": "false"},
    order=ORDER,
)


def changed(value: Any) -> set[str]:
    """Give the fields of a value that differ from what they are when nobody names them."""
    plain = type(value)()
    return {item.name for item in dataclasses.fields(value) if getattr(value, item.name) != getattr(plain, item.name)}


# -- the connection ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", CONNECTIONS, ids=lambda options: options.url)
def test_every_option_of_a_connection_travels(tmp_path: Path, options: ConnectionOptions):
    """What a context is made of comes back the same, through a file that the environment names."""
    path = tmp_path / "nats.json"
    path.write_text(json.dumps(to_context(options)))
    assert load_options(environ={"NATS_CONTEXT": str(path)}) == options


def test_no_option_is_forgotten_above():
    """Whoever adds an option to a connection, or to an order, gives it another value in this file."""
    assert set[str]().union(*map(changed, CONNECTIONS)) == {item.name for item in dataclasses.fields(ConnectionOptions)}
    assert changed(ORDER) == {item.name for item in dataclasses.fields(RunOrder)}


@given(
    timeouts=st.lists(st.floats(1e-3, 1e6), min_size=4, max_size=4),
    attempts=st.integers(-1, 10**9),
    reconnect=st.booleans(),
    login=st.tuples(st.text(min_size=1), st.text(min_size=1)),
    name=st.text(st.characters(min_codepoint=32, max_codepoint=0x24F), min_size=1).filter(str.isprintable),
)
def test_any_value_travels(timeouts: list[float], attempts: int, reconnect: bool, login: tuple[str, str], name: str):
    """Numbers, truths and texts of any kind come back as they were."""
    options = ConnectionOptions(
        name=name,
        user=login[0],
        password=login[1],
        connect_timeout=timeouts[0],
        request_timeout=timeouts[1],
        reconnect_wait=timeouts[2],
        ping_interval=timeouts[3],
        reconnect=reconnect,
        reconnect_attempts=attempts,
    )
    from penstock.contexts import _translate

    back = _translate(json.loads(json.dumps(to_context(options))), "x", Path("x"), {})
    assert ConnectionOptions(**back) == options


def test_a_context_that_the_nats_command_reads_says_the_same():
    """What the `nats` command has a field for stands in that field, and nothing of it twice."""
    found = to_context(CONNECTIONS[0])
    own = found.pop("penstock")
    assert found == {
        "url": "tls://a:1,tls://b:2",
        "user": "ann",
        "password": "p,@/",
        "cert": PEM,
        "key": KEY,
        "ca": PEM,
        "tls_first": True,
        "jetstream_domain": "hub",
        "inbox_prefix": "_MINE.x",
    }
    assert own.keys() == {
        "name",
        "tls_hostname",
        "connect_timeout",
        "request_timeout",
        "reconnect",
        "reconnect_wait",
        "reconnect_attempts",
        "keep_order",
        "no_echo",
        "ping_interval",
    }
    assert to_context(CONNECTIONS[3])["nkey"] == SEED, "and not as user_seed"


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ([], "nats://h:1"),
        ({}, "nats://h:1"),
        ({"request_timeout": "5"}, "request_timeout is '5'"),
        ({"reconnect": 1}, "reconnect is 1"),
        ({"name": 5}, "name is of type int"),
        ({"reconnect_attempts": 1.5}, "reconnect_attempts is 1.5"),
        ({"url": "nats://other"}, "has a field penstock that is not understood"),
        ({"request_timeouts": 5}, "has a field penstock that is not understood"),
        (["request_timeout"], "has a field penstock that is not understood"),
        ("x", "has a field penstock that is not understood"),
    ],
)
def test_what_is_ours_in_a_context_is_checked(tmp_path: Path, own: Any, says: str):
    """An option that is unknown, or of another kind, is told with the context that holds it; none at all is fine."""
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"url": "nats://h:1", "penstock": own}))
    if says.startswith("nats://"):
        assert load_options(context=str(path)) == ConnectionOptions(says)
        return
    with pytest.raises(ContextError, match=says) as caught:
        load_options(context=str(path))
    assert caught.value.path == str(path)


def test_what_the_caller_says_wins_over_what_is_ours(tmp_path: Path):
    """A time-out that a pipeline's file names takes the place of the one that travelled."""
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(to_context(ConnectionOptions(request_timeout=9.0, tls_hostname="x"))))
    found = load_options(context=str(path), request_timeout=1.0)
    assert (found.request_timeout, found.tls_hostname) == (1.0, "x")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"url": ' + "9" * 5000 + "}"])
def test_a_context_that_no_parser_takes_is_an_error_of_ours(tmp_path: Path, text: str):
    """Brackets without end and numbers without end are told as any other broken file."""
    path = tmp_path / "deep.json"
    path.write_text(text)
    with pytest.raises(ContextError, match="cannot be read"):
        load_context(str(path))


# -- the order ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [ORDER, RunOrder(), RunOrder(pause=0)])
def test_an_assignment_comes_back_as_it_was(order: RunOrder):
    """Every field of an order, and of what goes with it, is the same on the other side."""
    given = dataclasses.replace(GIVEN, order=order)
    assert Assignment.from_json(given.to_json()) == given
    content = json.loads(given.to_json())
    assert content.keys() == {item.name for item in dataclasses.fields(Assignment)}
    assert content["order"].keys() == {item.name for item in dataclasses.fields(RunOrder)}


def fields() -> list[tuple[str, ...]]:
    """Give the place of every field of an assignment."""
    content = json.loads(GIVEN.to_json())
    return [(name,) for name in content] + [("order", name) for name in content["order"]]


def holder(content: dict[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
    return content if len(place) == 1 else content[place[0]]


@pytest.mark.parametrize("place", fields(), ids=".".join)
def test_a_field_of_another_kind_is_refused(place: tuple[str, ...]):
    """A value that is not of its field's kind is told with the name of the field, and never shown."""
    content = json.loads(GIVEN.to_json())
    holder(content, place)[place[-1]] = 1794.5 if place[-1] != "pause" else "1794.5"
    with pytest.raises(PipelineError, match=rf"cannot read its order: {'.'.join(place)}\S* .*one version") as caught:
        Assignment.from_json(json.dumps(content))
    assert "1794" not in str(caught.value)


@pytest.mark.parametrize("place", [place for place in fields() if len(place) == 1], ids=".".join)
def test_a_field_that_is_missing_is_refused(place: tuple[str, ...]):
    """No field of an assignment has a value that nobody gave."""
    content = json.loads(GIVEN.to_json())
    del content[place[0]]
    with pytest.raises(PipelineError, match=f"order: {place[0]}: Field required"):
        Assignment.from_json(json.dumps(content))


@pytest.mark.parametrize("where", [(), ("order",)])
def test_a_field_that_nobody_knows_is_refused(where: tuple[str, ...]):
    """What another version added is told, and not passed over."""
    content = json.loads(GIVEN.to_json())
    holder(content, (*where, "new"))["new"] = "s3cr3t"
    with pytest.raises(PipelineError, match=r"new: Unexpected") as caught:
        Assignment.from_json(json.dumps(content))
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"{", b"null", b"[]", b"5", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_assignment_at_all_is_refused(text: bytes):
    """Whatever the file holds, one error says that the order cannot be read."""
    with pytest.raises(PipelineError, match="cannot read its order"):
        Assignment.from_json(text)


@pytest.mark.parametrize("pause", [-1.0, float("nan"), float("inf"), 1e300, True, "1s", None])
def test_a_pause_is_a_number_of_seconds(pause: Any):
    """A pause that no clock can wait for is refused when the order is made, long before Spark is up."""
    with pytest.raises(OptionError, match="pause is") as caught:
        RunOrder(pause=pause)
    assert isinstance(caught.value, InputError)


# -- how it is handed over ---------------------------------------------------------------------------------------------


def test_what_is_handed_over_is_for_this_user_alone(tmp_path: Path):
    """Both files are readable by nobody else, whatever the umask; the login is in one of them, and in no other."""
    before = os.umask(0)
    try:
        order, context = dataclasses.replace(GIVEN, folder=tmp_path).hand_over(CONNECTIONS[0])
    finally:
        os.umask(before)
    assert sorted(tmp_path.iterdir()) == sorted([order, context])
    assert [stat.S_IMODE(path.stat().st_mode) for path in (order, context)] == [0o600, 0o600]
    assert Assignment.from_json(order.read_bytes()) == dataclasses.replace(GIVEN, folder=tmp_path)
    assert load_options(environ={"NATS_CONTEXT": str(context)}) == CONNECTIONS[0]
    assert "p,@/" not in order.read_text()


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path):
    """A link that somebody laid where the order goes leads nowhere."""
    other = tmp_path / "other"
    (tmp_path / "order.json").symlink_to(other)
    with pytest.raises(FileExistsError):
        dataclasses.replace(GIVEN, folder=tmp_path).hand_over(ConnectionOptions())
    assert not other.exists()


def test_files_are_read_before_the_child_starts(tmp_path: Path):
    """Credentials and certificates travel as text: whoever moves the files later stops no run."""
    authority, run = Authority(tmp_path / "ca"), tmp_path / "run"
    pair, creds = authority.issue("client"), tmp_path / "user.creds"
    creds.write_text(Operator().credentials())
    run.mkdir()
    options = ConnectionOptions(
        credentials=str(creds),
        tls_ca=str(authority.ca),
        tls_cert=str(pair.cert),
        tls_key=str(pair.key),
        tls_hostname="nats.example",
    )
    _, context = dataclasses.replace(GIVEN, folder=run).hand_over(options)
    found = load_options(environ={"NATS_CONTEXT": str(context)})
    assert found == options.replace(
        credentials=creds.read_text(),
        tls_ca=authority.ca.read_text(),
        tls_cert=pair.cert.read_text(),
        tls_key=pair.key.read_text(),
    )


def test_what_cannot_be_read_leaves_nothing(tmp_path: Path):
    """Credentials that are gone are told here, with their path, and no file is left half written."""
    with pytest.raises(LoginError, match=r"gone\.creds cannot be read"):
        dataclasses.replace(GIVEN, folder=tmp_path).hand_over(
            ConnectionOptions(credentials=str(tmp_path / "gone.creds"))
        )
    assert list(tmp_path.iterdir()) == []


def test_the_environment_of_a_child_names_no_other_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Whatever names a NATS, a Spark or a replay around us is gone; the child has what it is given."""
    around = ("NATS_URL", "NATS_CONTEXT", "SPARK_REMOTE", "SPARK_MASTER", "MASTER", "SPARK_CONNECT_MODE_ENABLED")
    for name in (*around, VARIABLE, "SPARK_LOCAL_IP", "SPARK_CONNECT_AUTHENTICATE_TOKEN"):
        monkeypatch.setenv(name, "around")
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3.11")
    made = _environment(RunOrder(), tmp_path / "nats.json")
    assert [made.get(name) for name in around] == [None, str(tmp_path / "nats.json"), None, None, None, None]
    assert (made.get(VARIABLE), made["PYSPARK_PYTHON"]) == (None, "/usr/bin/python3.11")
    assert made["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert (
        made["SPARK_CONNECT_AUTHENTICATE_TOKEN"]
        != _environment(RunOrder(), tmp_path)["SPARK_CONNECT_AUTHENTICATE_TOKEN"]
    )
    away = _environment(RunOrder(master="spark://x:7077", replay="{}"), tmp_path)
    assert (away["SPARK_LOCAL_IP"], away[VARIABLE]) == ("around", "{}")
    assert _environment(RunOrder(remote="sc://x"), tmp_path)["SPARK_CONNECT_AUTHENTICATE_TOKEN"] == "around"


@pytest.mark.parametrize("text", ['{"folder": "/x"}', None])
def test_a_child_that_cannot_read_its_order_says_so(tmp_path: Path, text: str | None):
    """The child tells what is wrong on its pipe and ends with status 1, also where the disk of its log is full."""
    path = tmp_path / "order.json"
    if text is not None:
        path.write_text(text)
    receive, send = os.pipe()
    with (
        Path("/dev/full").open("w") as full,
        subprocess.Popen(
            [sys.executable, "-m", "penstock.pipelines.child", str(path), str(send)],
            stdin=subprocess.PIPE,
            stderr=full,
            pass_fds=[send],
        ) as child,
    ):
        os.close(send)
        with os.fdopen(receive) as pipe:
            (said,) = [json.loads(line) for line in pipe]
        assert child.wait(30) == 1
    assert said["kind"] == "failed"
    assert ("cannot read its order" if text else "No such file") in said["reason"]
