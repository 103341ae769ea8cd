"""`penstock stream`, verb by verb: what each prints for people and for programs, what it asks, and how it fails."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.jetstream import gaps
from penstock.server import Server
from tests.live.inprocess import Done, Peer, invoke, runner

Run = Callable[..., Done]


@pytest.fixture
def run(server: Server) -> Run:
    """Run a verb of `stream`; it must succeed unless a status is given."""
    return runner(server.url, "stream")


@pytest.fixture
def stream(run: Run, unique: Callable[..., str]) -> str:
    name = unique("ST")
    run("add", name, "--subjects", f"{name}.>", "--defaults")
    return name


def squeezed(done: Done) -> str:
    return " ".join(done.stdout.split())


def read(done: Done) -> Any:
    """Read the JSON that a command printed, and nothing beside it."""
    return json.loads(done.stdout)


# -- add -------------------------------------------------------------------------------------------------------------


def test_add_shows_what_the_server_made(run: Run, unique: Callable[..., str]):
    """People get a sentence and the configuration; programs the server's answer."""
    one, other = unique("ST"), unique("ST")
    shown = run("add", one, "--subjects", one, "--defaults").stdout
    assert shown.startswith(f"Stream {one} was created\n\nInformation for Stream {one} created 2")
    answer = read(run("new", other, "--subjects", other, "--json"))
    assert (answer["config"]["name"], answer["config"]["subjects"]) == (other, [other])
    assert answer["state"]["messages"] == 0


def test_add_without_a_server():
    """--validate and --output need no server: the one named here is not there."""
    words = ["stream", "add", "NEW", "--subjects", "x", "--max-age", "1h"]
    checked = invoke("nats://127.0.0.1:1", *words, "--validate")
    assert (checked.status, checked.stdout) == (0, "Stream NEW is valid.\n")
    config = read(invoke("nats://127.0.0.1:1", *words, "--validate", "--json"))
    assert (config["name"], config["subjects"], config["max_age"]) == ("NEW", ["x"], 3600 * 10**9)


def test_a_configuration_goes_round(run: Run, unique: Callable[..., str], tmp_path: Path):
    """What `info --json` prints is a --config of `add`, also under another name, and flags win over it."""
    one, other = unique("ST"), unique("ST")
    run("add", one, "--subjects", one, "--max-msgs", "7", "--description", "from one", "--defaults")
    file = tmp_path / "one.json"
    file.write_text(run("info", one, "--json").stdout)
    made = read(run("add", other, "--config", str(file), "--subjects", other, "--max-msgs", "8", "--json"))["config"]
    assert (made["name"], made["subjects"], made["max_msgs"]) == (other, [other], 8)
    assert made["description"] == "from one"
    assert "was created" in run("add", "--config", str(file)).stdout, "the same one again is no other one"
    assert "There is a stream" in run("add", "--config", str(file), "--max-msgs", "9", status=2).stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"name": "X", "max_mgs": 5, "subjects": ["x"]}', None),
        ('{"name": "X", "subjects": "x"}', "subjects is"),
        ('{"name": "X", "subjects": ["x"], "max_msgs": "many"}', "max_msgs is"),
        ('{"name": "a.b", "subjects": ["x"]}', "a name has no dots"),
        ('{"subjects": ["x"]}', "The stream has no name|name is missing"),
        ('{"name": "X"}', "captures nothing"),
        ("[]", "holds no JSON object"),
        ("{", "cannot be read as JSON"),
    ],
)
def test_a_configuration_that_is_wrong(tmp_path: Path, content: str, words: str | None):
    """A file that says nonsense is refused with the field; fields of a newer server are kept."""
    file = tmp_path / "x.json"
    file.write_text(content)
    done = invoke("nats://127.0.0.1:1", "stream", "add", "--config", str(file), "--validate", "--json")
    if words is None:
        assert (done.status, read(done)["max_mgs"]) == (0, 5)
        return
    assert (done.status, done.stdout) == (2, "")
    assert re.search(words, done.stderr)


def test_add_refuses_what_overlaps(run: Run, stream: str, unique: Callable[..., str]):
    """A stream of that name that is another one, and subjects that another one captures, are told by name."""
    assert f"There is a stream {stream} already" in run("add", stream, "--subjects", "other", status=2).stderr
    name = unique("ST")
    error = run("add", name, "--subjects", f"{stream}.x.>", status=1).stderr
    assert f"Stream {name} overlaps with what is there: {stream} captures {stream}.x.>" in error
    assert run("ls", "--names", "--subject", f"{stream}.x.y").stdout == f"{stream}\n"


def test_what_only_the_server_knows_is_told(run: Run, unique: Callable[..., str]):
    """A refusal by the server is a failure with its own words, and leaves nothing behind."""
    name = unique("ST")
    assert "The server refused" in run("add", name, "--subjects", name, "--replicas", "3", status=1).stderr
    assert name not in run("ls", "-n").stdout.split()


# -- edit, seal ------------------------------------------------------------------------------------------------------


def test_edit_tells_programs_apart_from_people(run: Run, stream: str, server: Server):
    """With --json the changes go to standard error, and the answer or the plan to standard output."""
    plan = json.loads(invoke(server.url, "stream", "edit", stream, "--max-msgs", "5", "--dry-run", "--json").stdout)
    (step,) = plan["steps"]
    assert (step["kind"], step["name"], step["action"]) == ("stream", stream, "update")
    assert [(item["field"], item["old"], item["new"]) for item in step["changes"]] == [("max_msgs", -1, 5)]
    done = run("edit", stream, "--max-msgs", "5", "-f", "--json")
    assert (read(done)["config"]["max_msgs"], done.stderr) == (5, "  max_msgs: -1 -> 5\n")
    again = run("edit", stream, "--max-msgs", "5", "--json")
    assert read(again)["config"]["max_msgs"] == 5
    assert again.stderr == f"Stream {stream} is like that already.\n"


def test_a_dry_run_says_by_its_status_whether_something_would_change(server: Server, stream: str):
    """Status 1 is a change, as with `diff`; durations are shown as durations; nothing is changed."""
    done = invoke(server.url, "stream", "edit", stream, "--max-age", "1d", "--dupe-window", "90s", "--dry-run")
    assert (done.status, done.stderr) == (1, "")
    assert done.stdout == "  max_age: nothing -> 1d0h0m0s\n  duplicate_window: 2m0s -> 1m30s\n"
    same = invoke(server.url, "stream", "edit", stream, "--dupe-window", "2m", "--dry-run", "--json")
    assert (same.status, json.loads(same.stdout)["steps"][0]["action"]) == (0, "none")
    assert read(invoke(server.url, "stream", "info", stream, "--json"))["config"]["max_age"] == 0


def test_edit_asks_and_takes_a_yes(run: Run, stream: str):
    """A yes through a pipe changes it; anything else changes nothing."""
    done = run("edit", stream, "--description", "words", stdin="n\n", status=2)
    assert "Really edit Stream" in done.stderr
    assert read(run("info", stream, "--json"))["config"].get("description") is None
    assert "was updated" in run("edit", stream, "--description", "words", stdin="y\n").stdout
    assert read(run("info", stream, "--json"))["config"]["description"] == "words"


def test_edit_to_a_configuration(run: Run, stream: str, tmp_path: Path):
    """--config makes it what the file says, whatever name the file has in it."""
    file = tmp_path / "s.json"
    file.write_text(json.dumps({"name": "ANOTHER", "subjects": [f"{stream}.>"], "max_bytes": 4096}))
    done = run("edit", stream, "--config", str(file), "-f", "--json")
    assert (read(done)["config"]["name"], read(done)["config"]["max_bytes"]) == (stream, 4096)


def test_edit_refuses_what_another_stream_has(run: Run, stream: str, unique: Callable[..., str]):
    """Subjects that overlap with another stream are told, and nothing changes."""
    name = unique("ST")
    run("add", name, "--subjects", name, "--defaults")
    assert "overlap" in run("edit", name, "--subjects", f"{stream}.a", "-f", status=1).stderr
    assert read(run("info", name, "--json"))["config"]["subjects"] == [name]


def test_a_sealed_stream_refuses(run: Run, stream: str, peer: Peer):
    """What is sealed cannot be purged, and no message of it removed; sealing it again changes nothing."""
    peer.publish(f"{stream}.a", b"x")
    assert run("seal", stream, stdin="y\n").stdout == f"Stream {stream} is sealed.\n"
    run("purge", stream, "-f", status=1)
    run("rmm", stream, "1", "-f", status=1)
    assert run("seal", stream).stdout == f"Stream {stream} is sealed already.\n"
    assert read(run("state", stream, "--json"))["state"]["messages"] == 1


# -- looking ---------------------------------------------------------------------------------------------------------


def test_info_for_programs(run: Run, stream: str, peer: Peer):
    """`info --json` is the stream as the server tells it, also with --state; `i`, `nfo` and `state` say the same."""
    peer.publish(f"{stream}.a", b"one", b"two")
    whole = read(run("info", stream, "--json"))
    assert set(whole) == {"config", "created", "state", "cluster", "ts"} or set(whole) == {
        "config",
        "created",
        "state",
        "ts",
    }
    for words in (["i", stream, "--state"], ["nfo", stream], ["state", stream, "--no-select"]):
        state = read(run(*words, "--json"))["state"]
        assert (state["messages"], state["first_seq"], state["last_seq"]) == (2, 1, 2)
    for words in (["info", stream, "--state"], ["state", stream]):
        shown = squeezed(run(*words))
        assert shown.startswith(f"State for Stream {stream}")
        assert "Last Sequence: 2 @ 2" in shown
        assert re.search(r"Host Version: 2\.\d+\.\d+ Required API Level: 0 hosted at level \d", shown)
    assert "Which stream?" in run("info", "--no-select", status=2).stderr


def test_lists(run: Run, stream: str, unique: Callable[..., str]):
    """ls is a table, names, or JSON; a subject that nobody captures gives nothing, and is no failure."""
    run("edit", stream, "--description", "what it is for", "-f")
    table = run("list", "--subject", f"{stream}.a").stdout
    for words in ("Name", "Description", "Created", "Messages", "Size", "Last Message", "what it is for", "never"):
        assert words in table
    assert read(run("l", "--subject", f"{stream}.a", "--names", "--json")) == [stream]
    nowhere = unique("nowhere")
    assert run("ls", "--subject", nowhere).stdout == f"No streams capture {nowhere}\n"
    assert run("ls", "--subject", nowhere, "--names").stdout == ""
    assert read(run("ls", "--subject", nowhere, "--json")) == []
    names = run("ls", "-n").stdout.split()
    assert names == sorted(names)


def test_reports_are_sorted(run: Run, unique: Callable[..., str], peer: Peer, server: Server):
    """report lists the largest last; -m by messages, -o by consumers, -n by name; --raw shows bytes as numbers."""
    root = unique("rep")
    large, many, read_by = unique("ST"), unique("ST"), unique("ST")
    for name in (large, many, read_by):
        run("add", name, "--subjects", f"{root}.{name}", "--defaults")
    peer.publish(f"{root}.{large}", b"x" * 5000)
    peer.publish(f"{root}.{many}", *[b"x"] * 9)
    for number in range(2):
        done = invoke(server.url, "consumer", "add", read_by, f"c{number}", "--defaults")
        assert done.status == 0, done.stderr

    def order(*flags: str) -> list[str]:
        listed = [item["config"]["name"] for item in read(run("report", "--json", *flags))]
        return [name for name in listed if name in (large, many, read_by)]

    assert order()[-2:] == [many, large]
    assert order("-m")[-2:] == [large, many]
    assert order("--consumers")[-1] == read_by
    assert order("-n") == sorted([large, many, read_by])
    assert set(order("--storage", "--subject", f"{root}.{many}")) == {many}
    assert order("--cluster", "nowhere") == []
    size = next(item for item in read(run("report", "--json")) if item["config"]["name"] == large)["state"]["bytes"]
    assert re.search(rf"{large} +│ File +│ +0 │ +1 │ +{size} │", run("report", "--raw").stdout)
    assert re.search(rf"{large} +│ File +│ +0 │ +1 │ +\d\.\d KiB │", run("report").stdout)


def test_subjects_in_their_orders(run: Run, stream: str, peer: Peer):
    """subjects counts messages, most last or by name, or turned around; a filter may match nothing."""
    peer.publish(f"{stream}.b", b"1")
    peer.publish(f"{stream}.a", b"1")
    peer.publish(f"{stream}.c", b"1", b"2")
    every = {f"{stream}.a": 1, f"{stream}.b": 1, f"{stream}.c": 2}
    assert list(read(run("subjects", stream, "--json")).items()) == list(every.items())
    assert list(read(run("subj", stream, "--sort", "name", "-R", "--json"))) == sorted(every, reverse=True)
    assert run("subjects", stream, "--names", "--reverse").stdout.split()[0] == f"{stream}.c"
    assert read(run("subjects", stream, f"{stream}.a", "--names", "--json")) == {f"{stream}.a": 1}
    assert f"3 Subjects in stream {stream}" in squeezed(run("subjects", stream))
    assert run("subjects", stream, "nothing.>").stdout == f"Stream {stream} holds nothing on nothing.>.\n"
    assert read(run("subjects", stream, "nothing.>", "--json")) == {}


@pytest.mark.parametrize(
    ("flags", "record"),
    [
        ([], 1057),
        (["--headers", "100"], 1161),
        (["--storage", "memory"], 1043),
        (["--payload", "0"], 33),
    ],
)
def test_size_counts_bytes(flags: list[str], record: int):
    """The bytes of a message in the store are those of payload, headers, subject and the server's own."""
    words = ["stream", "size", "--messages", "2", "--payload", "1K", "--subject", "a.b", *flags]
    made = read(invoke(None, *words, "--json"))
    assert (made["record"], made["total"]) == (record, 2 * record)
    shown = squeezed(invoke(None, *words))
    assert f"One message: {record:,} bytes" in shown
    assert "of the store" in shown


# -- messages --------------------------------------------------------------------------------------------------------


def test_view_goes_through_the_stream(run: Run, stream: str, peer: Peer):
    """A page begins where it is told to, passes over what is gone, and says when it reached the end."""
    peer.publish(f"{stream}.a", *[b"a%d" % number for number in range(1, 6)])
    peer.publish(f"{stream}.b", b"\xff\x00", headers={"K": "v"})
    run("rmm", stream, "2", "-f")
    assert run("view", stream, "3", "--raw").stdout == "a1\na3\na4\n"
    done = run("view", stream, "--id", "5")
    assert "\n\udcff\x00\n" in done.stdout, "a payload is shown as the bytes that it is"
    assert "Reached the end" in done.stderr
    shown = [item["seq"] for item in read(run("view", stream, "--subject", f"{stream}.a", "--json"))]
    assert shown == [1, 3, 4, 5]
    (last,) = read(run("view", stream, "--subject", f"{stream}.b", "--json"))
    assert (last["data"], base64.b64decode(last["hdrs"])) == ("/wA=", b"NATS/1.0\r\nK: v\r\n\r\n")
    assert read(run("view", stream, "--id", "99", "--json")) == []
    assert len(read(run("view", stream, "--since", "1h", "--json"))) == 5
    assert read(run("view", stream, "--since", "0s", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["view", "S", "--id", "1", "--since", "1h"], "given together"),
        (["view", "S", "--since", "99999y"], "out of the range of dates"),
        (["view", "S", "--since", "lately"], "--since"),
        (["view", "S", "0"], "SIZE"),
        (["view", "S", "--id", "0"], "--id"),
        (["get", "S"], "Which message?"),
        (["get", "S", "1", "-S", "a"], "Which message?"),
        (["get", "S", "0"], "SEQUENCE"),
        (["rmm", "S"], "SEQUENCE"),
        (["rmm", "S", "-1"], "-1"),
        (["purge", "S", "--seq", "5", "--keep", "1", "-f"], "given together"),
        (["purge", "S", "--seq", "0", "-f"], "--seq"),
        (["purge", "S", "--keep", "-1", "-f"], "--keep"),
        (["purge", "S", "--subject", "", "-f"], "is empty"),
        (["purge", "S", "--subject", "a..b", "-f"], "empty token"),
        (["ls", "--subject", "a b"], "has a space"),
        (["report", "--subject", "a b"], "has a space"),
        (["view", "S", "--subject", "a..b"], "empty token"),
        (["get", "S", "-S", "a..b"], "empty token"),
        (["subjects", "S", "a..b"], "empty token"),
        (["subjects", "S", "--sort", "size"], "--sort"),
        (["size", "--messages", "1", "--payload", "x", "--subject", "a"], "--payload"),
        (["size", "--messages", "1", "--payload", "1", "--subject", "a", "--storage", "tape"], "--storage"),
        (["size", "--messages", "1", "--payload", "1"], "--subject"),
        (["add", "S", "--subjects", "x", "--config", "/nowhere"], "/nowhere"),
        (["edit", "S", "--config", "/nowhere"], "/nowhere"),
        (["copy", "S"], "DESTINATION"),
        (["copy", "S", "S"], "to itself"),
        (["edit", "S", "--config", "/nowhere", "-i"], "/nowhere"),
        (["find", "--server-name", "["], "not a regular expression"),
        (["find", "--idle", "lately"], "--idle"),
        (["find", "--subject", "a..b"], "empty token"),
        (["info", "--no-select"], "Which stream?"),
        (["backup", "S", "/nowhere/b", "--chunk-size", "1G"], "--chunk-size"),
        (["backup", "S", "/nowhere/b", "--chunk-size", "8K", "--window-size", "4K"], "fit into the window"),
        (["seal"], "STREAM"),
        (["restore", "/nowhere"], "holds no complete backup"),
        (["restore", "/nowhere", "--replicas", "6"], "--replicas"),
        (["backup", "S"], "DIR"),
    ],
)
def test_bad_input_is_refused_before_a_connection(arguments: list[str], words: str):
    """What makes no sense is status 2 and said at once: the server named here is not there."""
    done = invoke("nats://127.0.0.1:1", "stream", *arguments)
    assert (done.status, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr
    assert "127.0.0.1" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "info NOPE",
        "state NOPE",
        "copy NOPE OTHER",
        "gaps NOPE",
        "cluster step-down NOPE",
        "cluster evacuate NOPE a -f",
        "edit NOPE --max-msgs 1",
        "seal NOPE -f",
        "rm NOPE -f",
        "purge NOPE -f",
        "subjects NOPE",
        "view NOPE",
        "get NOPE 1",
        "rmm NOPE 1 -f",
        "backup NOPE FOLDER",
    ],
)
def test_a_stream_that_is_not_there(run: Run, tmp_path: Path, arguments: str):
    """Every verb says that the stream is not there, with status 1 and where to look."""
    done = run(*arguments.replace("FOLDER", str(tmp_path / "b")).split(), status=1)
    assert done.stderr.startswith("penstock: There is no stream NOPE.")
    assert "penstock stream ls" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.b", "a b", "a*", "", "a/b"])
def test_names_that_cannot_be(name: str, server: Server):
    """A name that would change the subject of a request is refused, and never sent."""
    for verb in (["info"], ["rm", "-f"], ["purge", "-f"], ["subjects"], ["edit", "--max-msgs", "1"]):
        done = invoke(server.url, "stream", verb[0], name, *verb[1:])
        assert done.status == 2, (verb, done.stderr)
        assert "cannot be the name of a stream" in done.stderr


def test_one_message(run: Run, stream: str, peer: Peer):
    """get shows the message of a sequence, or the last of a subject; rmm asks, names it, and removes it for good."""
    peer.publish(f"{stream}.a", b"one", b"two", headers={"K": "v"})
    shown = run("get", stream, "1").stdout
    assert shown.startswith(f"[1] Subject: {stream}.a Received: 2")
    assert "  K: v\n\none\n" in shown
    message = read(run("get", stream, "-S", f"{stream}.a", "--json"))
    assert set(message) == {"subject", "seq", "hdrs", "data", "time"}
    assert (message["seq"], message["subject"], message["data"]) == (2, f"{stream}.a", "dHdv")
    assert f"no message on {stream}.b" in run("get", stream, "--last-for", f"{stream}.b", status=1).stderr
    asked = run("rmm", stream, "1", stdin="no\n", status=2).stderr
    assert f"Really remove message 1 on {stream}.a" in asked
    assert run("rmm", stream, "1", "-f").stdout == f"Removed message 1 from Stream {stream}.\n"
    assert f"Stream {stream} holds no message 1" in run("rmm", stream, "1", "-f", status=1).stderr


def test_purging_in_parts(run: Run, stream: str, peer: Peer):
    """The question says how much is there; programs get the stream as it then stands."""
    peer.publish(f"{stream}.a", *[b"x"] * 6)
    asked = run("purge", stream, "--keep", "2", stdin="n\n", status=2).stderr
    assert f"from Stream {stream}, which holds 6" in asked
    done = run("purge", stream, "--keep", "4", "-f", "--json")
    assert (read(done)["state"]["messages"], done.stderr) == (4, "Purged 2 messages\n")
    assert run("purge", stream, "--subject", "other.x", "-f", "--json").stderr == "Purged 0 messages\n"
    assert "Messages: 0" in squeezed(run("purge", stream, stdin="yes\n"))


def test_deleting_says_what_goes(run: Run, stream: str, peer: Peer):
    """rm asks with the number of messages; afterwards the stream is not there."""
    peer.publish(f"{stream}.a", b"x", b"y")
    assert "with 2 messages" in run("rm", stream, stdin="n\n", status=2).stderr
    assert run("delete", stream, "-f").stdout == f"Stream {stream} was deleted.\n"
    run("rm", stream, "-f", status=1)


# -- backups ---------------------------------------------------------------------------------------------------------


def test_a_backup_comes_back_under_another_configuration(run: Run, stream: str, peer: Peer, tmp_path: Path):
    """backup tells programs what it wrote; restore refuses what is there, and takes another configuration."""
    peer.publish(f"{stream}.a", *[b"%d" % number for number in range(20)])
    folder = tmp_path / "b"
    made = read(run("snapshot", stream, str(folder), "--no-consumers", "--check", "--json"))
    assert (made["stream"], made["folder"], made["messages"]) == (stream, str(folder), 20)
    assert made["bytes"] > 0
    assert "not an empty folder" in run("backup", stream, str(folder), status=2).stderr
    assert run("restore", str(folder), status=1).stdout == ""
    run("rm", stream, "-f")
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"name": stream, "subjects": [f"{stream}.>"], "description": "restored"}))
    back = read(run("restore", str(folder), "--config", str(file), "--replicas", "1", "--json"))
    assert (back["config"]["description"], back["state"]["messages"]) == ("restored", 20)
    assert run("view", stream, "1", "--id", "20", "--raw").stdout == "19\n"


def test_a_backup_of_nothing_or_to_nowhere(run: Run, unique: Callable[..., str], tmp_path: Path):
    """A stream in memory cannot be backed up, and a folder that cannot be made is bad input."""
    name = unique("ST")
    run("add", name, "--subjects", name, "--storage", "memory", "--defaults")
    assert "memory" in run("backup", name, str(tmp_path / "b"), status=2).stderr
    assert not (tmp_path / "b").exists()
    file = tmp_path / "file"
    file.touch()
    run("backup", name, str(file / "b"), status=2)


# -- editors, and the other verbs ------------------------------------------------------------------------------------


def test_editing_in_an_editor(run: Run, server: Server, stream: str, tmp_path: Path):
    """The editor gets the configuration as JSON; what it makes of it is shown and asked for like any other change."""
    editor = tmp_path / "editor.py"
    editor.write_text(
        "import json, sys\n"
        "config = json.load(open(sys.argv[1]))\n"
        "assert not any(key.startswith('_nats.') for key in config.get('metadata', {}))\n"
        "json.dump({**config, 'max_msgs': 9}, open(sys.argv[1], 'w'))\n"
    )
    done = run("edit", stream, "-i", "-f", EDITOR=f"{sys.executable} {editor}")
    assert done.stdout.startswith("  max_msgs: -1 -> 9\nStream")
    editor.write_text("import sys\nopen(sys.argv[1], 'w').write('{')\n")
    assert "not JSON" in run("edit", stream, "-i", "-f", EDITOR=f"{sys.executable} {editor}", status=2).stderr
    assert "ended with status 1" in run("edit", stream, "-i", EDITOR="false", status=2).stderr
    assert "No editor is named" in run("edit", stream, "-i", EDITOR="", status=2).stderr


def test_a_copy_is_another_stream_of_the_same_kind(run: Run, stream: str, unique: Callable[..., str]):
    """copy takes the configuration, flags win over it, and no message goes along."""
    run("edit", stream, "--max-age", "1h", "--metadata", "team=a", "--republish-destination", "again.>", "-f")
    name = unique("ST")
    made = read(run("cp", stream, name, "--subjects", f"{name}.>", "--max-msgs", "5", "--json"))
    old, new = read(run("info", stream, "--json"))["config"], made["config"]
    changed = {"name", "subjects", "max_msgs", "metadata"}
    assert {key: value for key, value in new.items() if key not in changed} == {
        key: value for key, value in old.items() if key not in changed
    }
    assert (new["max_msgs"], new["metadata"]["team"], made["state"]["messages"]) == (5, "a", 0)
    shown = squeezed(run("edit", name, "--no-republish", "-f"))
    assert "republish: {'src': '>', 'dest': 'again.>'} -> nothing" in shown
    assert "There is a stream" in run("copy", stream, name, "--subjects", f"{name}.x", status=2).stderr


def test_a_mirror_becomes_a_stream(run: Run, stream: str, unique: Callable[..., str]):
    """--mirror takes JSON as the server has it; --no-mirror ends the copying."""
    name = unique("ST")
    source = json.dumps({"name": stream, "opt_start_seq": 5})
    made = read(run("add", name, "--mirror", source, "--defaults", "--json"))["config"]["mirror"]
    assert (made["name"], made["opt_start_seq"]) == (stream, 5)
    done = run("edit", name, "--no-mirror", "--subjects", name, "-f", "--json")
    assert (read(done)["config"].get("mirror"), read(done)["config"]["subjects"]) == (None, [name])


def test_gaps(run: Run, stream: str, peer: Peer, monkeypatch: pytest.MonkeyPatch):
    """gaps gives the first and last sequence of each, whether the server lists them or the stream is gone through."""
    assert read(run("gaps", stream, "--json")) == []
    peer.publish(f"{stream}.a", *[b"x"] * 9)
    for sequence in (2, 3, 4, 7):
        run("rmm", stream, str(sequence), "-f")
    assert read(run("gaps", stream, "--json")) == [[2, 4], [7, 7]]
    assert "2 gaps in Stream" in run("gaps", stream).stdout
    monkeypatch.setattr(gaps, "MOST_LISTED", 2)
    assert "Not confirmed" in run("gaps", stream, status=2).stderr
    assert read(run("gaps", stream, "-f", "--json")) == [[2, 4], [7, 7]]


def test_finding_streams(run: Run, unique: Callable[..., str], peer: Peer):
    """find gives the streams that match everything that was said, or nothing of it."""
    root, held, bare, copy = unique("find"), unique("ST"), unique("ST"), unique("ST")
    run("add", held, "--subjects", f"{root}.held.>", "--allow-batch", "--defaults")
    run("add", bare, "--subjects", f"{root}.bare", "--defaults")
    run("add", copy, "--source", held, "--subjects", f"{root}.copy", "--defaults")
    peer.publish(f"{root}.held.a", b"x")

    def found(*flags: str) -> set[str]:
        return set(read(run("find", "--subject", f"{root}.>", *flags, "--json")))

    assert found() == {held, bare, copy}
    assert found("--empty", "--created", "0s", "--replicas", "1", "--consumers", "5") >= {bare}
    assert found("--sourced") == {copy}
    assert found("--mirrored") == set()
    assert found("--api-level", "2") == {held}
    assert found("--idle", "1h", "--cluster", "nowhere") == set()
    assert run("query", "--subject", f"{root}.bare", "-n").stdout == f"{bare}\n"
    inverted = set(run("find", "--empty", "--invert", "-n").stdout.split())
    assert held in inverted
    assert bare not in inverted
    assert run("find", "--subject", unique("no")).stdout == "No streams match\n"


def test_buckets_are_named_as_such(run: Run, unique: Callable[..., str]):
    """Streams of buckets are not listed unless asked for, and whoever changes one is told what it is."""
    name = f"KV_{unique('b')}"
    run("add", name, "--subjects", f"$KV.{name}.>", "--defaults")
    plain = run("ls", "--subject", f"$KV.{name}.>")
    assert plain.stdout.startswith("No streams capture")
    assert plain.stderr == "Not shown: 1 of buckets or MQTT; see -a.\n"
    assert read(run("ls", "-a", "--subject", f"$KV.{name}.>", "--json")) == [name]
    assert read(run("ls", "--subject", f"$KV.{name}.>", "--json")) == []
    asked = run("purge", name, stdin="n\n", status=2).stderr
    assert "it is a key-value bucket, which may break" in asked


def test_what_copies_what_is_drawn(run: Run, stream: str, unique: Callable[..., str], tmp_path: Path):
    """--dot writes a graph that GraphViz reads, names in quotes."""
    name = unique("ST")
    run("add", name, "--mirror", stream, "--defaults")
    file = tmp_path / "x.dot"
    run("report", "--dot", str(file))
    assert f'  "{stream}" -> "{name}" [label=mirror, color=blue];\n' in file.read_text()
    assert "cannot be written" in run("report", "--dot", str(tmp_path), status=2).stderr


def test_a_source_through_a_consumer(run: Run, stream: str, unique: Callable[..., str]):
    """A stream may copy through a consumer that somebody made for it, with acks by flow control; both are shown."""
    name = unique("ST")
    source = {"name": stream, "consumer": {"name": "feed", "deliver_subject": f"{name}.feed"}}
    made = read(run("add", name, "--source", json.dumps(source), "--defaults", "--json"))["config"]["sources"]
    assert made == [source]
    assert f"by consumer feed ({name}.feed)" in squeezed(run("info", name))
    assert run("edit", name, "--max-msgs", "5", "-f", "--json").stderr == "  max_msgs: -1 -> 5\n"
    assert read(run("info", name, "--json"))["config"]["sources"] == [source]


def test_features_alone(run: Run, stream: str):
    """Schedules and markers need nothing beside them: the server sets what they need, and then nothing differs."""
    made = read(run("edit", stream, "--allow-schedules", "--subject-del-markers-ttl", "1m", "-f", "--json"))["config"]
    assert (made["allow_msg_schedules"], made["allow_msg_ttl"], made["allow_rollup_hdrs"]) == (True, True, True)
    again = run("edit", stream, "--allow-schedules", "--subject-del-markers-ttl", "1m")
    assert again.stderr == f"Stream {stream} is like that already.\n"


def test_payloads_are_translated(run: Run, stream: str, peer: Peer):
    """A program gets the payload, and its words may name subject and stream; one that fails is told, with status 1."""
    peer.publish(f"{stream}.a", b"one", b"two")
    assert run("view", stream, "--raw", "--translate", "tr a-z A-Z").stdout == "ONE\nTWO\n"
    shown = run("get", stream, "2", "--translate", "echo {{Stream}} {{Subject}}").stdout
    assert shown.endswith(f"\n{stream} {stream}.a\n\n")
    done = run("view", stream, "--translate", "false", status=1)
    assert "2 messages were not translated" in done.stderr
    assert "given together" in run("get", stream, "1", "--translate", "cat", "--json", status=2).stderr
    assert "there is no program" in run("get", stream, "1", "--translate", "nope-nope", status=2).stderr


def test_what_came_from_outside_is_text(run: Run, stream: str, peer: Peer):
    """A subject that turns the direction of text is written out in questions, lists and messages."""
    peer.publish(f"{stream}.\u202e", b"x")
    asked = run("rmm", stream, "1", stdin="n\n", status=2).stderr
    for words in (["subjects", stream], ["subjects", stream, "-n"], ["view", stream]):
        asked += run(*words).stdout
    assert asked.count("\\u202e") == 4
    assert "\u202e" not in asked
