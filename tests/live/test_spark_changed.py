"""The world changes under a query: streams replaced, restored, mirrored, trimmed, away. It is survived, or told."""

from __future__ import annotations

import shutil
import threading
import time

import pytest

from penstock.errors import DataLossError, DeniedError, LinkError, MessageError
from penstock.server import Server
from penstock.spark.connections import TaskConnection
from penstock.wire.bulk import BulkConnection
from penstock.wire.jetstream.direct import answers_for
from penstock.wire.patience import Deadline
from tests.live.bucketing import Buckets, Changes, brief, bucket_reader, rows_of
from tests.live.querying import Query, read, reader_of
from tests.live.relay import relayed
from tests.spark.conftest import Streams


def mirror(made: Streams, name: str, eventually, **config) -> str:
    """Make a mirror that holds little, and wait until it answers for its origin."""
    copy = f"{name}_copy"
    last = made.info(name)["state"]["last_seq"]
    made.api(f"STREAM.CREATE.{copy}", {"name": copy, "mirror": {"name": name}, "max_msgs": 2, **config})
    made.made.insert(0, copy)
    eventually(lambda: made.info(copy)["state"]["last_seq"] == last)
    with BulkConnection(made.url) as bulk:
        eventually(
            lambda: answers_for(bulk.request(f"$JS.API.DIRECT.GET.{name}", b'{"seq":1,"batch":1}').header) == copy
        )
    return copy


# -- replaced --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [10, 600], ids=["direct get", "consumer"])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_stream_replaced_between_the_look_and_the_read(server, streams, unique, monkeypatch, rows, fail):
    """Rows of another stream of the same name are never taken for those that were planned, nor skipped in silence."""
    name = streams.make(unique("swap"))
    streams.fill(name, rows)
    reader = reader_of(server.url, stream=name, failOnDataLoss=fail)
    (task,) = reader.partitions()
    look = TaskConnection.stream_info

    def swap(self, *given):
        found = look(self, *given)
        streams.api(f"STREAM.DELETE.{name}")
        streams.make(name)
        streams.fill(name, [("y", b"other")] * rows)
        return found

    monkeypatch.setattr(TaskConnection, "stream_info", swap)
    with pytest.raises(DataLossError, match=r"was made anew at .* while it was being read"):
        list(reader.read(task))
    monkeypatch.undo()
    streams.made.remove(name)


# -- restored --------------------------------------------------------------------------------------------------------


class Restored:
    """A server whose store can be set back to an earlier copy."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.server = Server(store=folder / "store", sync="2m").start()
        self.streams = Streams(self.server.url)

    def keep(self) -> None:
        self.server.nodes[0].stop()
        shutil.copytree(self.folder / "store", self.folder / "kept")
        self.server.nodes[0].start()

    def set_back(self) -> None:
        self.server.nodes[0].stop()
        shutil.rmtree(self.folder / "store")
        shutil.copytree(self.folder / "kept", self.folder / "store")
        self.server.nodes[0].start()


@pytest.fixture
def restored(tmp_path):
    made = Restored(tmp_path)
    yield made
    made.server.stop()


def test_a_stream_that_was_restored(restored, unique):
    """A stream set back to an older copy is noticed while it is shorter, and also after it has grown past the query."""
    made, name = restored.streams, unique("back")
    made.make(name)
    made.fill(name, 20)
    restored.keep()
    made.fill(name, 10)
    running = Query(restored.server.url, stream=name)
    other = Query(restored.server.url, stream=name, maxMessagesPerTrigger="15")
    try:
        assert running.batch() == list(range(1, 31))
        assert other.batch() == list(range(1, 16))
        restored.set_back()
        with pytest.raises(DataLossError, match="ends with 20, before 31"):
            running.batch()
        with pytest.raises(DataLossError, match=r"was set back: .* up to 30, .* from 21 on are gone") as caught:
            other.batch()  # it had not read them, but it had seen them
        assert (caught.value.start, caught.value.end, caught.value.last) == (21, 31, 20)
        made.fill(name, 15, subject="new")
        for restart in (False, True):  # while the query runs, and after it
            if restart:
                running.restart(stream=name)
            with pytest.raises(DataLossError, match=r"was set back: .* up to 30, .* from 21 on are gone"):
                running.batch()
        running.restart(stream=name, failOnDataLoss="false")
        assert running.batch() == []
        assert running.batch() == list(range(21, 36))
        assert running.batch() is None
    finally:
        running.stop()
        other.stop()


def test_a_bucket_that_was_restored(restored, unique):
    """A bucket set back to an older copy is told to its query, also after others were written in place of its keys."""
    made, name = Buckets(restored.server.url), unique("back")
    made.make(name)
    made.put(name, a=b"1", b=b"2")
    restored.keep()
    made.put(name, a=b"3")
    running = Changes(restored.server.url, bucket=name)
    reader = bucket_reader(restored.server.url, bucket=name)
    try:
        assert brief(running.batch()) == [("b", b"2", 2), ("a", b"3", 3)]
        tasks = reader.partitions()
        restored.set_back()
        with pytest.raises(DataLossError, match="ends with 2, before 4"):
            running.batch()
        with pytest.raises(DataLossError, match="was set back and ends with 2"):
            rows_of(reader, tasks)
        made.put(name, b=b"4", c=b"5")
        with pytest.raises(DataLossError, match="was set back"):
            running.batch()
    finally:
        running.stop()


def test_a_replay_on_a_restored_stream(restored, unique):
    """A batch that was planned before a stream was set back is not read from what came instead."""
    made, name = restored.streams, unique("replay")
    made.make(name)
    made.fill(name, 20)
    restored.keep()
    made.fill(name, 10)
    running = Query(restored.server.url, stream=name)
    try:
        end = running.reader.latestOffset(running.offset, running.reader.getDefaultReadLimit())
        restored.set_back()
        made.fill(name, 20, subject="new")
        running.restart(stream=name)
        with pytest.raises(DataLossError, match="was set back"):
            running.reader.partitions(running.offset, end)
        running.restart(stream=name, failOnDataLoss="false")
        tasks = running.reader.partitions(running.offset, end)
        assert [(task.start, task.end) for task in tasks] == [(1, 21)]
    finally:
        running.stop()


def test_a_stream_whose_last_message_is_gone_is_not_set_back(query, streams, unique):
    """Messages that are deleted, purged or compacted after they were seen do not look like a restored stream."""
    name = streams.make(unique("kept"), max_msgs_per_subject=1)
    streams.fill(name, 1, subject="first")
    streams.fill(name, 4)
    running = query(stream=name)
    assert running.batch() == [1, 5]
    streams.fill(name, 2)  # takes 5 away
    assert running.batch() == [7]
    streams.api(f"STREAM.MSG.DELETE.{name}", {"seq": 7})
    assert running.batch() is None
    streams.fill(name, 1, subject="y")
    assert running.batch() == [8]
    streams.api(f"STREAM.PURGE.{name}")
    running.restart(stream=name)
    assert running.batch() is None
    streams.fill(name, 1)
    assert running.batch() == [9]


# -- mirrored --------------------------------------------------------------------------------------------------------


def test_a_mirror_does_not_plan(server, query, streams, unique, eventually):
    """Where a read begins, whether something waits and how much there is, a mirror that holds less does not decide."""
    name = streams.make(unique("planned"))
    streams.fill(name, 20, subject="want")
    streams.fill(name, 4, subject="skip")
    mirror(streams, name, eventually)
    for _ in range(6):
        assert read(server.url, stream=name, start="1h") == list(range(1, 25))
        assert read(server.url, stream=name, minPartitions="3", subjects=f"{name}.want") == list(range(1, 21))
        running = query(stream=name, subjects=f"{name}.want", maxMessagesPerTrigger="7")
        running.reader.prepareForTriggerAvailableNow()
        assert [running.batch() for _ in range(5)] == [
            list(range(1, 8)),
            list(range(8, 15)),
            list(range(15, 21)),
            None,
            None,
        ]


# -- trimmed ---------------------------------------------------------------------------------------------------------


def test_limits_that_take_what_is_not_for_us(query, streams, unique):
    """Messages on other subjects that fall to limits are no loss of a query that watches, also not after a restart."""
    name = streams.make(unique("busy"), max_msgs=20)
    streams.fill(name, 5, subject="want")
    running = query(stream=name, subjects=f"{name}.want")
    assert running.batch() == [1, 2, 3, 4, 5]
    for _ in range(3):
        streams.fill(name, 15, subject="skip")
        assert not running.batch()
    assert streams.info(name)["state"]["first_seq"] == 31
    streams.fill(name, 2, subject="want")
    assert running.batch() == [51, 52]
    streams.fill(name, 15, subject="skip")
    assert running.batch() is None
    streams.fill(name, 15, subject="skip")
    assert running.batch() == []  # limits overtook us, and we know better: the checkpoint moves on and remembers it
    running.restart(stream=name, subjects=f"{name}.want")
    streams.fill(name, 5, subject="skip")
    streams.fill(name, 1, subject="want")
    assert running.batch() == [88]


def test_limits_that_take_what_is_for_us(query, streams, unique):
    """What is for us and falls to limits is told; so is what may have been, when nobody watched."""
    name = streams.make(unique("slow"), max_msgs=20)
    streams.fill(name, 5, subject="want")
    running = query(stream=name, subjects=f"{name}.want", maxMessagesPerTrigger="5")
    assert running.batch() == [1, 2, 3, 4, 5]
    streams.fill(name, 5, subject="skip")
    streams.fill(name, 3, subject="want")  # 11, 12, 13
    end = running.reader.latestOffset(running.offset, running.reader.getDefaultReadLimit())
    tasks = running.reader.partitions(running.offset, end)
    assert [(task.start, task.end) for task in tasks] == [(11, 14)]
    streams.fill(name, 18, subject="skip")
    with pytest.raises(DataLossError, match=r"\[12, 32\), and messages of \[11, 14\) are wanted"):
        list(running.reader.read(tasks[0]))
    with pytest.raises(DataLossError, match=rf"\[6, 12\) .* Nobody knows whether any of them was on {name}.want"):
        running.batch()
    running.restart(stream=name, subjects=f"{name}.want")
    with pytest.raises(DataLossError, match="Nobody knows"):
        running.batch()


# -- away ------------------------------------------------------------------------------------------------------------


def test_a_query_that_starts_while_nats_is_away(server, streams, unique):
    """Patience begins with the query: it waits for a NATS that is not there yet, and not for longer than it may."""
    name = streams.make(unique("early"))
    streams.fill(name, 5)
    with relayed(server) as relay:
        relay.refusing = True
        began = time.monotonic()
        with pytest.raises(LinkError):
            Query(relay.url(server), stream=name, patience="500ms")
        assert 0.4 < time.monotonic() - began < 5
        threading.Timer(0.3, setattr, (relay, "refusing", False)).start()
        running = Query(relay.url(server), stream=name, patience="20s")
        assert running.batch() == [1, 2, 3, 4, 5]
        running.stop()
        relay.refusing = True
        threading.Timer(0.3, setattr, (relay, "refusing", False)).start()
        assert read(relay.url(server), stream=name, patience="20s") == [1, 2, 3, 4, 5]


# -- not text --------------------------------------------------------------------------------------------------------


def test_text_that_is_none(server, streams, unique):
    """A header or a subject that is not UTF-8 stops the read with its place, is escaped on request, or is left out."""
    name = streams.make(unique("bytes"))
    streams.fill(name, 2)
    with BulkConnection(server.url) as bulk:
        block = b"NATS/1.0\r\nName: Jos\xe9\r\n\r\n"
        subject = name.encode() + b".caf\xe9"
        bulk.wire.send(b"HPUB %b %d %d\r\n%bx\r\n" % (subject, len(block), len(block) + 1, block), Deadline(5))
        bulk.api("INFO")
        with pytest.raises(MessageError, match=f"Message 3 of stream {name}"):
            list(bulk.read(name))
        (batch,) = bulk.read(name, 3, escape=True)
        assert batch.column("subject").to_pylist() == [f"{name}.caf\\xe9"]
        assert batch.column("headers").to_pylist() == [[("Name", ["Jos\\xe9"])]]
        assert len(list(bulk.read(name, 1, 3))) == 1
    with pytest.raises(MessageError, match=r"its subject is .*option invalidText=escape") as caught:
        read(server.url, stream=name)
    assert (caught.value.sequence, caught.value.column) == (3, "subject")
    assert read(server.url, stream=name, invalidText="escape") == [1, 2, 3]


# -- moved -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["transform", "sources"])
def test_subjects_that_are_not_the_streams_own(server, query, streams, unique, eventually, kind):
    """Where stored subjects are not those that a stream takes, a stream with the sink's markers is read whole."""
    name, other = unique("mapped"), unique("other")
    config = {"subjects": [f"{name}.>", f"$PENSTOCK.{name}.>"]}
    if kind == "transform":
        config["subject_transform"] = {"src": f"{name}.>", "dest": "stored.>"}
        streams.make(name, **config)
        streams.fill(name, 3)
    else:
        streams.make(other)
        streams.fill(other, 3)
        streams.make(name, **config, sources=[{"name": other}])
        eventually(lambda: streams.info(name)["state"]["messages"] == 3)
    streams.fill(f"$PENSTOCK.{name}", [("q.head", b"{}")])
    assert read(server.url, stream=name) == [1, 2, 3]
    running = query(stream=name, maxMessagesPerTrigger="2")
    assert [running.batch() for _ in range(2)] == [[1, 2], [3]]


@pytest.mark.parametrize("kind", ["never", "mirror"])
def test_an_age_limit_behind_messages_that_never_expire(query, streams, unique, eventually, kind):
    """A message that never expires keeps its place at the head of a stream; what expired behind it is told."""
    name, second = unique("aged"), 10**9
    config = {"allow_msg_ttl": True, "duplicate_window": second, "max_age": 2 * second}
    if kind == "never":
        read_from = streams.make(name, **config)
        streams.fill(name, [("kept", b"", {"Nats-TTL": "never"})])
    else:
        streams.make(name, subjects=[f"{name}.>", f"$PENSTOCK.{name}.>"], allow_msg_ttl=True)
        read_from = f"{name}_copy"
        streams.api(f"STREAM.CREATE.{read_from}", {"name": read_from, "mirror": {"name": name}, **config})
        streams.made.insert(0, read_from)
        streams.fill(f"$PENSTOCK.{name}", [("origin", b"{}", {"Nats-TTL": "never"})])
    running = query(stream=read_from)
    streams.fill(name, 3)
    eventually(lambda: streams.info(read_from)["state"]["last_seq"] == 4)
    assert running.batch() == ([1, 2, 3, 4] if kind == "never" else [2, 3, 4])
    streams.fill(name, 5)
    eventually(lambda: streams.info(read_from)["state"]["messages"] == 1)
    streams.fill(name, 1)
    eventually(lambda: streams.info(read_from)["state"]["last_seq"] == 10)
    assert streams.info(read_from)["state"]["first_seq"] == 1
    with pytest.raises(DataLossError, match=r"\[5, 10\) of the stream"):
        running.batch()
    running.restart(stream=read_from, failOnDataLoss="false")
    assert running.batch() == [10]


# -- refused ---------------------------------------------------------------------------------------------------------

DENIED = ["STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET", "CONSUMER.CREATE", "CONSUMER.MSG.NEXT"]


@pytest.fixture(scope="module")
def strict():
    """A server with a login for each call of the API that is denied to it."""
    users = ["{user: all, password: p}"]
    users += [
        f"{{user: u{n}, password: p, permissions: {{publish: {{deny: '$JS.API.{call}.>'}}}}}}"
        for n, call in enumerate(DENIED)
    ]
    with Server(config=f"authorization {{ users: [{', '.join(users)}] }}", auth=False, sync="2m") as running:
        yield running.nodes[0].address


@pytest.mark.parametrize("call", DENIED)
def test_what_a_login_may_not_do(strict, unique, call):
    """A read that needs what its login may not do fails and names it; it never comes short."""
    made, name = Streams(f"nats://all:p@{strict}"), unique("denied")
    made.make(name)
    made.fill(name, 700)
    url, outcomes = f"nats://u{DENIED.index(call)}:p@{strict}", []
    for options in ({}, {"end": "101"}, {"subjects": f"{name}.x", "end": "101"}, {"start": "1h"}):
        try:
            found = read(url, stream=name, patience="1s", **options)
            assert found == list(range(1, 101 if "end" in options else 701))
            outcomes.append("read")
        except DeniedError as error:
            outcomes.append(error.subject)
    assert {item.split(name)[0] for item in outcomes} <= {"read", f"$JS.API.{call}."}
    assert outcomes != ["read"] * 4


# -- copied, used for something else, upgraded -----------------------------------------------------------------------


def test_a_copy_of_a_checkpoint(query, streams, unique):
    """Two queries with the same checkpoint, or one that is set back to it, read the same rows again."""
    name = streams.make(unique("copied"))
    streams.fill(name, 10)
    one, other = query(stream=name, maxMessagesPerTrigger="4"), query(stream=name, maxMessagesPerTrigger="4")
    assert one.batch() == [1, 2, 3, 4]
    other.offset = kept = one.offset
    assert one.batch() == other.batch() == [5, 6, 7, 8]
    one.offset = kept
    one.restart(stream=name)
    assert one.batch() == [5, 6, 7, 8, 9, 10]


def test_a_checkpoint_of_another_stream(query, streams, unique):
    """A checkpoint that belongs to a query of another stream is refused, not begun anew."""
    one, other = streams.make(unique("one")), streams.make(unique("other"))
    streams.fill(one, 5)
    streams.fill(other, 5)
    running = query(stream=one)
    assert running.batch() == [1, 2, 3, 4, 5]
    running.restart(stream=other)
    with pytest.raises(DataLossError, match=f"The stream {one} is gone, or this query does not read it"):
        running.batch()


def test_a_checkpoint_of_an_earlier_version(query, streams, unique):
    """A checkpoint that does not say what its stream was seen to hold is read on, and says it from then on."""
    name = streams.make(unique("earlier"))
    streams.fill(name, 5)
    running = query(stream=name)
    assert running.batch() == [1, 2, 3, 4, 5]
    for key in ("last", "time"):
        del running.offset["streams"][name][key]
    streams.fill(name, 2)
    running.restart(stream=name)
    assert running.batch() == [6, 7]
    assert running.offset["streams"][name]["last"] == 7
