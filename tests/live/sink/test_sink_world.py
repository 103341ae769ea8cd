"""The sink while the world around it changes: stores restored, copied, replaced, trimmed, full, of another version."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from penstock.errors import (
    DeadlineError,
    DeniedError,
    FencedError,
    JetStreamError,
    MarkerError,
    NoRespondersError,
    PenstockError,
)
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.spark import query_markers
from penstock.spark.connections import TaskConnection
from penstock.spark.exactly_once import Task
from penstock.spark.markers import MARKER_ROOT, Head, marker_filter
from penstock.spark.prepare import prepare
from penstock.spark.sink_options import SinkOptions
from tests.live.connecting import free_port
from tests.live.inprocess import invoke
from tests.live.sinking import Crash, Writer, make_stream, numbered, stored


@pytest.fixture(autouse=True)
def sure(monkeypatch) -> None:
    """One server has no old leader whose old news must be waited out."""
    monkeypatch.setattr(query_markers, "STALE", 0.2)


def before_sending(action: Callable[[], object]) -> Callable[[Task], None]:
    """Do something once a task has its lanes, before it sends its first rows."""

    def wrap(task: Task) -> None:
        send = task._send

        def later(*given):
            task._send = send
            action()
            return send(*given)

        task._send = later

    return wrap


# -- trimmed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["purge", "limit"])
def test_markers_that_are_taken_within_a_batch_are_told_as_that(server, bulk, unique, how):
    """Who loses the markers under its hands is told so, and not that somebody else has taken over."""
    name = unique("SINK")
    make_stream(bulk, name, **({"max_msgs": 60} if how == "limit" else {}))
    writer = Writer(server.url, name)

    def trim() -> None:
        if how == "purge":
            bulk.api(f"STREAM.PURGE.{name}", {"filter": writer.subjects.all})
        else:
            for number in range(60):
                bulk.request(f"{name}.rows", b"%d" % number)

    with pytest.raises(MarkerError, match="has dropped markers of batch 0"):
        writer.attempt(numbered(40), around=before_sending(trim))
    whole = writer.attempt(numbered(4), run="r2")
    trim()
    with pytest.raises(MarkerError, match="has dropped markers of batch 0"):
        writer.commit([whole], run="r2")


def test_a_batch_that_was_begun_twice_is_not_done(writer, bulk):
    """A head that is taken between two tasks of the first batch makes the second one begin anew: that is noticed."""
    one = writer.attempt(numbered(20), partition=0)
    bulk.api(f"STREAM.PURGE.{writer.stream}", {"filter": writer.subjects.all})
    two = writer.attempt(numbered(20, "other"), partition=1, task=2)
    with pytest.raises(MarkerError, match="has dropped markers of batch 0"):
        writer.commit([one, two])


def test_a_driver_that_was_replaced_is_told_so(writer, bulk, stream):
    """Who is replaced while it reads the markers finds them gone, and is told who took them: the other driver."""
    rows = numbered(40)
    with pytest.raises(Crash):
        writer.attempt(rows, crash_after=20)

    def replaced(task: Task) -> None:
        following = task.bulk.following

        def later(*given):
            task.bulk.following = following
            writer.whole_batch([rows], run="r2")
            writer.whole_batch([numbered(4, "next")], batch=1, run="r3")
            return following(*given)

        task.bulk.following = later

    with pytest.raises(FencedError):
        writer.attempt(rows, task=2, around=replaced)
    assert stored(bulk, stream) == Counter(rows + numbered(4, "next"))


@pytest.mark.parametrize("what", ["a journal", "the anchor", "the oldest"])
def test_a_finished_batch_whose_markers_were_trimmed_is_compared_by_its_tally(writer, bulk, stream, what):
    """Where journals of a batch that is done are missing, the same rows add nothing and other rows are refused."""
    rows = numbered(40)
    writer.whole_batch([rows[:20], rows[20:]])
    state = bulk.api(f"STREAM.INFO.{stream}", {"subjects_filter": writer.subjects.all})["state"]["subjects"]
    journal = next(subject for subject in state if len(subject.rpartition(".")[2]) > 10)
    if what == "the oldest":
        bulk.api(f"STREAM.PURGE.{stream}", {"filter": writer.subjects.all, "keep": 4})
    else:
        subject = journal if what == "a journal" else writer.subjects.anchor
        bulk.api(f"STREAM.MSG.DELETE.{stream}", {"seq": bulk.last(stream, subject).sequence})
    assert writer.whole_batch([rows[::-1]], run="r2") == 0
    with pytest.raises(MarkerError, match=r"was done at .*Z with 40 rows, and now comes with other rows \(41 rows\)"):
        writer.whole_batch([[*rows, b"more"]], run="r3")
    assert stored(bulk, stream) == Counter(rows)
    writer.asked(on_changed_rows="keep")
    assert writer.whole_batch([[*rows, b"more"]], run="r4") == 0
    assert writer.whole_batch([numbered(3, "next")], batch=1, run="r5") == 3


def test_the_origin_outlives_the_age_of_messages(bulk, unique, eventually):
    """Where messages expire, the first message stays, as the other markers do."""
    name = unique("SINK")
    make_stream(bulk, name, max_age=1_000_000_000, duplicate_window=1_000_000_000, allow_msg_ttl=True)
    bulk.request(f"{name}.rows", b"expires")
    eventually(lambda: bulk.api(f"STREAM.INFO.{name}")["state"]["messages"] == 1)
    assert bulk.api(f"STREAM.INFO.{name}")["state"]["first_seq"] == 1


def test_a_stream_that_denies_deletes_is_written_to(server, bulk, unique):
    """`deny_delete` keeps single markers from being deleted, and nothing of the sink needs that."""
    name = unique("SINK")
    make_stream(bulk, name, deny_delete=True)
    writer = Writer(server.url, name)
    for batch in range(3):
        writer.whole_batch([numbered(10, f"{batch}")], batch=batch, run=f"r{batch}")
    assert sum(stored(bulk, name).values()) == 30


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "most"), [("max_msgs", 30), ("max_bytes", 4000), ("max_msgs", 4)])
def test_a_full_stream_is_named_with_its_limit(server, bulk, unique, limit, most):
    """A stream that takes no more is named, with the limit and what to do; with more room the batch is finished."""
    name = unique("SINK")
    config = {"discard": "new", limit: most}
    make_stream(bulk, name, **config)
    writer = Writer(server.url, name)
    rows = numbered(60)
    with pytest.raises(
        JetStreamError, match=rf"in stream {name} could not be stored.*\(10077\).* its {limit} "
    ) as told:
        writer.attempt(rows)
    assert told.value.err_code == 10077
    before = bulk.api(f"STREAM.INFO.{name}")["config"]
    bulk.api(f"STREAM.UPDATE.{name}", {**before, limit: 100_000})
    writer.whole_batch([rows], run="r2")
    assert stored(bulk, name) == Counter(rows)


def test_a_server_without_room_is_told():
    """Where storage is used up and nobody makes room in time, that is the reason given, not many writers."""
    with (
        Server(sync="2m", config="jetstream { max_file_store: 64KB }") as server,
        TaskConnection(ConnectionOptions(server.url)) as bulk,
    ):
        make_stream(bulk, "FULL")
        writer = Writer(server.url, "FULL")
        writer.options = replace(writer.options, request_timeout=0.3)
        writer.asked(patience=1.5)
        with pytest.raises(DeadlineError, match=r"in stream FULL within 1.5 s: .*\(10023\).* raise its limits"):
            writer.attempt([b"x" * 1000 + row for row in numbered(200)])


def test_a_server_that_is_too_busy_is_told_and_the_batch_finished_later():
    """A server that drops parts of batches is asked again, then named as the reason; with less at once it goes on."""
    with (
        Server(sync="2m", config="jetstream { max_buffered_msgs: 4 }") as server,
        TaskConnection(ConnectionOptions(server.url)) as bulk,
    ):
        make_stream(bulk, "BUSY")
        writer, rows = Writer(server.url, "BUSY", rows=500, lanes=2), numbered(2000)
        writer.asked(patience=0.5)
        with pytest.raises(DeadlineError, match=r"in stream BUSY within 0.5 s: .*(10176|10167|429)"):
            writer.attempt(rows, step=1000)
        writer.asked(patience=20.0, atomic_rows=1)
        writer.whole_batch([rows[:40]], run="r2")
        assert stored(bulk, "BUSY") == Counter(rows[:40])


def test_a_permission_that_is_taken_within_a_batch_is_told(tmp_path):
    """Whoever may not publish markers any more learns which subject it was; given back, the batch is finished."""
    rows = numbered(40)

    def served(denied: str) -> Server:
        user = f'{{ user: u, password: p, permissions: {{ publish: {{ deny: "{denied}" }} }} }}'
        return Server(sync="2m", auth=False, store=tmp_path, config=f"authorization {{ users: [ {user} ] }}")

    def writer(server: Server) -> Writer:
        return Writer(f"nats://u:p@{server.nodes[0].address}", "S")

    with served("nothing") as server:
        with TaskConnection(writer(server).options) as bulk:
            make_stream(bulk, "S")
        with pytest.raises(Crash):
            writer(server).attempt(rows, crash_after=20)
    with served("$PENSTOCK.>") as server, pytest.raises(DeniedError, match=r"\$PENSTOCK\.S\."):
        writer(server).attempt(rows, run="r2")
    with served("nothing") as server, TaskConnection(writer(server).options) as bulk:
        writer(server).whole_batch([rows], run="r3")
        assert stored(bulk, "S") == Counter(rows)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"subject_transform": {"src": ">", "dest": "moved.>"}}, "renames the subjects of the sink's markers"),
        ({"subjects": ["{}.>"]}, "it lacks subjects"),
        ({"sealed": True}, r"in stream {} could not be stored: .*sealed stream \(10109\)"),
        ({"retention": "interest"}, "has dropped markers of batch 1"),
    ],
)
def test_a_stream_that_is_changed_within_a_batch_says_what_is_wrong(server, writer, bulk, stream, change, told):
    """A configuration that no batch would have begun with stops the one that has, and is the reason given."""
    writer.whole_batch([numbered(5)])
    writer.asked(patience=0.5)
    config = bulk.api(f"STREAM.INFO.{stream}")["config"] | change
    config["subjects"] = [subject.format(stream) for subject in config["subjects"]]
    changing = before_sending(lambda: bulk.api(f"STREAM.UPDATE.{stream}", config))
    with pytest.raises(PenstockError, match=told.format(stream)):
        writer.whole_batch([numbered(40)], batch=1, run="r2", around=changing)


# -- restored, replaced, copied ---------------------------------------------------------------------------------------


def restore(server: Server, bulk: TaskConnection, stream: str, folder: object) -> None:
    """Put a stream back to what it was when it was saved."""
    bulk.api(f"STREAM.DELETE.{stream}")
    done = invoke(server.url, "stream", "restore", str(folder))
    assert done.status == 0, done.stderr


def test_a_stream_that_is_restored_under_a_query_is_noticed(server, writer, bulk, stream, tmp_path):
    """A stream that went back behind the query stops it, between batches and within one; what is there goes on."""
    writer.whole_batch([numbered(10)])
    assert invoke(server.url, "stream", "backup", stream, str(tmp_path / "kept")).status == 0
    with pytest.raises(MarkerError, match=r"was restored from an older copy, or made anew, while batch 1"):
        writer.attempt(
            numbered(40, "b1"),
            batch=1,
            run="r2",
            around=before_sending(lambda: restore(server, bulk, stream, tmp_path / "kept")),
        )
    assert writer.whole_batch([numbered(40, "b1")], batch=1, run="r3") == 40
    writer.whole_batch([numbered(5, "b2")], batch=2, run="r4")
    restore(server, bulk, stream, tmp_path / "kept")
    with pytest.raises(MarkerError, match="up to batch 0, and now comes 3"):
        writer.whole_batch([numbered(5, "b3")], batch=3, run="r5")
    assert writer.whole_batch([numbered(10), [b"one more"]], run="r6") == 1  # also the checkpoint went back


def test_a_stream_that_is_made_anew_within_a_batch_is_noticed(writer, bulk, stream):
    """Rows that went with the old stream are not taken for stored, although the new one looks the same."""

    def make_anew() -> None:
        bulk.api(f"STREAM.DELETE.{stream}")
        make_stream(bulk, stream)

    with pytest.raises(MarkerError, match="or it was made anew"):
        writer.attempt(numbered(40), around=before_sending(make_anew))
    one = writer.attempt(numbered(20), run="r2", partition=0)
    make_anew()
    two = writer.attempt(numbered(20, "other"), run="r2", partition=1, task=2)
    assert one.epoch.sequence == two.epoch.sequence
    with pytest.raises(MarkerError, match="made anew"):
        writer.commit([one, two], run="r2")
    assert writer.whole_batch([numbered(20), numbered(20, "other")], run="r3") == 20
    make_anew()
    with pytest.raises(MarkerError, match="knows nothing of this query"):
        writer.whole_batch([numbered(3)], batch=1, run="r4")


def test_of_two_queries_with_one_checkpoint_the_later_start_goes_on(server, bulk, stream):
    """Copies of a checkpoint make two drivers of one query: the one that was there before is stopped for good."""
    rows = numbered(30)
    old, new = Writer(server.url, stream), Writer(server.url, stream)
    old.start, new.start = "first", "second"
    old.whole_batch([rows[:10]])
    assert new.whole_batch([rows[10:20]], batch=1, run="n1") == 10
    for batch in (1, 2):  # with more rows than the other one planned, or behind what that one stored
        with pytest.raises(FencedError, match="nor copies of one"):
            old.whole_batch([rows[10:25]], batch=batch, run=f"o{batch}")
    assert new.whole_batch([rows[20:]], batch=2, run="n2") == 10
    assert stored(bulk, stream) == Counter(rows)


@pytest.mark.parametrize("kind", ["open", "done"])
def test_two_starts_within_a_batch_leave_one(server, bulk, stream, kind):
    """A start that comes while another one writes takes the batch over, and finishes it with its own rows."""
    rows = numbered(40)
    old, new = Writer(server.url, stream), Writer(server.url, stream)
    old.start, new.start = "first", "second"
    begun = old.attempt(rows[:20], run="o")
    if kind == "done":
        old.commit([begun], run="o")
    assert new.whole_batch(cut_in_two(rows), run="n") == 20
    with pytest.raises(FencedError):
        old.whole_batch([rows[20:]], batch=1, run="o1") if kind == "done" else old.commit([begun], run="o")
    assert stored(bulk, stream) == Counter(rows)


def cut_in_two(rows: list[bytes]) -> list[list[bytes]]:
    return [rows[::2], rows[1::2]]


# -- moved ------------------------------------------------------------------------------------------------------------


def test_a_stream_of_the_same_name_in_another_domain_is_not_taken_for_ours(eventually):
    """Where a leaf node has a stream that takes the same subjects, its acks are not those of the stream we mean."""
    port = free_port()
    ours = f"jetstream {{ domain: hub }}\nleafnodes {{ listen: 127.0.0.1:{port} }}"
    remote = f'{{ url: "nats-leaf://127.0.0.1:{port}", deny_exports: "{MARKER_ROOT}.>" }}'
    theirs = f"jetstream {{ domain: leaf }}\nleafnodes {{ remotes: [ {remote} ] }}"
    with Server(sync="2m", auth=False, config=ours) as hub, Server(sync="2m", auth=False, config=theirs) as leaf:
        writer = Writer(f"nats://{leaf.nodes[0].address}", "S")
        with TaskConnection(writer.options) as near, TaskConnection(ConnectionOptions(hub.url)) as far:
            make_stream(near, "S")
            far.api("STREAM.CREATE.S", {"name": "S", "subjects": ["other.>"], "allow_atomic": True})
            writer.options, writer.domain = replace(writer.options, domain="hub"), "hub"

            def is_joined() -> bool:
                with suppress(NoRespondersError), TaskConnection(writer.options) as joined:
                    return joined.api("INFO")["domain"] == "hub"
                return False

            eventually(is_joined)
            with pytest.raises(JetStreamError, match=r"of domain leaf stored .* for one of domain hub"):
                writer.attempt(numbered(3))
            for there in (near, far):
                config = {"name": "T", "subjects": ["t.>", marker_filter("T")], "allow_atomic": True}
                there.api("STREAM.CREATE.T", config)
            with (
                TaskConnection(writer.options) as joined,
                pytest.raises(JetStreamError, match=r"of domain leaf stored .* for one of domain hub"),
            ):
                prepare(joined, SinkOptions(stream="T"))


# -- of another version -----------------------------------------------------------------------------------------------


def put(bulk: TaskConnection, subject: str, body: bytes) -> int:
    """Store a message by hand."""
    return json.loads(bulk.request(subject, body).payload)["seq"]


def old_head(batch: int, run: str, state: str, since: int = 0) -> bytes:
    """Give a head as the first version wrote it."""
    fields = {"v": 1, "batch": batch, "run": run, "state": state, "since": since, "past": []}
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def test_a_query_goes_on_behind_a_batch_of_an_older_version(writer, bulk, stream):
    """The head that an older Penstock left, with no tally and no journals, is followed, and its batch adds nothing."""
    put(bulk, writer.subjects.head, old_head(4, "old", "done", 2))
    assert writer.whole_batch([numbered(5)], batch=4, run="r1") == 0
    assert writer.whole_batch([numbered(6)], batch=5, run="r2") == 6
    assert writer.whole_batch([numbered(7)], batch=5, run="r3") == 1


def test_a_batch_that_an_older_version_began_is_finished(writer, bulk, stream):
    """What an older Penstock left in the middle of a batch is read as ever: each row is there once."""
    rows = numbered(20)
    with pytest.raises(Crash):
        writer.attempt(rows, crash_after=12)
    first = bulk.last(stream, writer.subjects.head)
    # The same markers, with a head of the first version in the place of ours: its sequence is the epoch of the lanes.
    assert Head.read(old_head(0, "r1", "open"), first.sequence).anchor == first.sequence - 1
    replaced = put(bulk, writer.subjects.head, old_head(0, "r1", "sealing", first.sequence - 1))
    assert replaced > first.sequence
    assert writer.whole_batch([rows[::-1]], run="r2") == 20 - 12
    assert stored(bulk, stream) == Counter(rows)


def test_an_older_version_refuses_a_head_of_this_one(writer, bulk, stream):
    """A downgrade is not silent: what knows the first version alone names the version that it finds."""
    writer.whole_batch([numbered(5)])
    assert json.loads(bulk.last(stream, writer.subjects.head).payload)["v"] == 2
