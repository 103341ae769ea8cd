"""Key-value buckets as Spark reads them in a stream, without a JVM: every change, and what is told if some are gone."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from penstock.errors import DataLossError, DeniedError
from penstock.server import Server
from tests.live.bucketing import Buckets, Changes, brief, read_rows


@pytest.fixture
def changes(server):
    """Queries that are stopped after the test."""
    made = []

    def start(**options):
        made.append(Changes(server.url, **options))
        return made[-1]

    yield start
    for item in made:
        item.stop()


def test_every_change_is_a_row(buckets, unique, changes):
    """Values, deletions and purges come in order, each once."""
    name = buckets.make(unique("C"), max_msgs_per_subject=5)
    buckets.put(name, a=b"1", b=b"2")
    running = changes(bucket=name)
    assert brief(running.batch()) == [("a", b"1", 1), ("b", b"2", 2)]
    assert running.batch() is None
    buckets.put(name, a=b"3")
    buckets.delete(name, "b")
    buckets.purge(name, "a")  # takes 3 away before it was read
    assert brief(running.batch()) == [("b", "DEL", 4), ("a", "PURGE", 5)]


def test_a_key_whose_time_is_over_is_a_row(buckets, unique, changes, eventually):
    """What the server writes when a value expires says that its key is gone."""
    name = buckets.make(unique("T"), allow_msg_ttl=True, subject_delete_marker_ttl=3600 * 10**9, duplicate_window=10**9)
    buckets.write(name, ("a", b"1", {"Nats-TTL": "1s"}), ("b", b"2"))
    running = changes(bucket=name)
    assert brief(running.batch()) == [("a", b"1", 1), ("b", b"2", 2)]
    assert brief(eventually(running.batch)) == [("a", "PURGE", 3)]


def test_a_query_begins_with_the_state(server, buckets, unique, changes):
    """`last` has the last value of each key in one micro-batch, whatever the limit; `new` only what comes."""
    name = buckets.make(unique("S"), max_msgs_per_subject=5)
    buckets.put(name, a=b"1", b=b"2")
    buckets.put(name, a=b"3", c=b"4")
    buckets.delete(name, "c")
    first = changes(bucket=name, start="last", maxMessagesPerTrigger="1", minPartitions="2")
    later, every = changes(bucket=name, start="new"), changes(bucket=name, start="all", maxMessagesPerTrigger="4")
    assert brief(first.batch()) == [("b", b"2", 2), ("a", b"3", 3), ("c", "DEL", 5)]
    assert later.batch() == []
    assert brief(every.batch()) == [("a", b"1", 1), ("b", b"2", 2), ("a", b"3", 3), ("c", b"4", 4)]
    assert brief(every.batch()) == [("c", "DEL", 5)]
    buckets.put(name, a=b"6", b=b"7")
    assert brief(first.batch()) == [("a", b"6", 6)]
    assert brief(first.batch()) == [("b", b"7", 7)]
    assert brief(later.batch()) == [("a", b"6", 6), ("b", b"7", 7)]
    # The state comes from the offsets alone, so a replay of the first micro-batch is the same one.
    again = Changes(server.url, bucket=name, start="last")
    again.last, again.offset = again.offset, json.loads(json.dumps(first.offset))
    again.offset["streams"][f"KV_{name}"]["next"] = 6
    assert brief(again.again()) == [("b", b"2", 2), ("a", b"3", 3), ("c", "DEL", 5)]
    again.stop()


def test_what_was_overwritten_is_no_loss(buckets, unique, changes):
    """Without history the last value of each key comes; a replay lacks what is gone since, and that comes newer."""
    name = buckets.make(unique("O"))
    buckets.put(name, a=b"1")
    running = changes(bucket=name)
    assert brief(running.batch()) == [("a", b"1", 1)]
    buckets.write(name, *(("a", b"%d" % number) for number in range(2, 8)), ("b", b"8"), ("b", b"9"))
    assert brief(running.batch()) == [("a", b"7", 7), ("b", b"9", 9)]
    buckets.put(name, a=b"10")
    assert brief(running.again()) == [("b", b"9", 9)]
    assert brief(running.batch()) == [("a", b"10", 10)]


def test_filters_of_keys(buckets, unique, changes):
    """Other keys neither come nor move the query."""
    name = buckets.make(unique("K"))
    buckets.put(name, a__x=b"1", b__x=b"2")
    running = changes(bucket=name, keys="a.*")
    assert brief(running.batch()) == [("a.x", b"1", 1)]
    buckets.put(name, b__x=b"3")
    assert running.batch() is None
    buckets.put(name, a__x=b"4")
    assert brief(running.batch()) == [("a.x", b"4", 4)]


def test_a_bucket_that_is_emptied_or_replaced_is_told(buckets, unique, changes):
    """Changes that a purge took unread, and another bucket of the name, stop the query; or are allowed."""
    name = buckets.make(unique("E"))
    buckets.put(name, a=b"1")
    running, careless = changes(bucket=name), changes(bucket=name, failOnDataLoss="false")
    for query in (running, careless):
        assert brief(query.batch()) == [("a", b"1", 1)]
    buckets.put(name, a=b"2", b=b"3")
    buckets.api(f"STREAM.PURGE.KV_{name}")
    with pytest.raises(DataLossError, match=r"is empty, and its changes \[2, 4\) are gone"):
        running.batch()
    assert careless.batch() == []
    buckets.put(name, c=b"4")
    assert brief(careless.batch()) == [("c", b"4", 4)]
    buckets.api(f"STREAM.DELETE.KV_{name}")
    buckets.make(name)
    buckets.put(name, a=b"1")
    with pytest.raises(DataLossError, match="deleted and made again"):
        running.batch()
    assert brief(careless.batch()) == [("a", b"1", 1)]


def test_a_bucket_that_is_emptied_under_its_task_is_told(buckets, unique, changes):
    """A purge between the plan and the reading of a micro-batch is no empty micro-batch."""
    name = buckets.make(unique("X"))
    running, first = changes(bucket=name), changes(bucket=name, start="last")
    running.batch()
    buckets.put(name, a=b"1")
    running.batch()
    first.batch()
    buckets.api(f"STREAM.PURGE.KV_{name}")
    with pytest.raises(DataLossError):
        running.again()
    with pytest.raises(DataLossError, match=r"its changes \[1, 2\) are gone"):
        first.again()


CONFIG = """
authorization { users: [
    { user: all, password: p }
    { user: few, password: p, permissions: {
        publish: { deny: ["$JS.API.CONSUMER.CREATE.>", "$JS.API.STREAM.INFO.KV_Y"] }
    } }
] }
"""


def test_denied_permissions_of_buckets_are_told_at_once():
    """Who may not look at a bucket, or read it, hears so; not by a longer wait."""
    with Server(config=CONFIG, auth=False, sync="2m") as server:
        host = server.url.rpartition("@")[2].removeprefix("nats://")
        made, few = Buckets(f"nats://all:p@{host}"), f"nats://few:p@{host}"
        for name in ("X", "Y"):
            made.make(name)
            made.put(name, a=b"1")
        begun = time.monotonic()
        with pytest.raises(DeniedError, match=r"CONSUMER\.CREATE"):
            read_rows(few, bucket="X")
        with pytest.raises(DeniedError, match=r"STREAM\.INFO\.KV_Y"):
            Changes(few, bucket="Y")
        assert time.monotonic() - begun < 3.0


def test_many_keys_are_read_while_some_change(server, buckets, unique):
    """The lasts of many keys are asked for at once, and in order."""
    from penstock.options import ConnectionOptions
    from penstock.spark.connections import TaskConnection

    name = buckets.make(unique("M"))

    async def fill(nc):
        stream = nc.jetstream(timeout=30)
        await asyncio.gather(*(stream.publish(f"$KV.{name}.k{number}", b"%d" % number) for number in range(600)))

    buckets.call(fill)
    with TaskConnection(ConnectionOptions(server.url), 5.0) as bulk:
        wanted = [f"$KV.{name}.k{number}" for number in (*range(599, -1, -1), 7000)]
        found = bulk.lasts(f"KV_{name}", wanted)
    assert [item.payload if item else None for item in found] == [*(b"%d" % n for n in range(599, -1, -1)), None]


@pytest.mark.parametrize("start", ["all", "last"])
def test_changes_of_json_are_columns(buckets, unique, changes, start):
    """Changes come parsed, from the beginning and from the state; a deletion has no fields and no error."""
    name = buckets.make(unique("J"), max_msgs_per_subject=5)
    buckets.put(name, a=b'{"id": 1}', b=b"no JSON")
    query = changes(bucket=name, start=start, format="json", columns="key STRING, id BIGINT, _error STRING")
    first = [(row["key"], row["id"], row["_error"]) for row in query.batch() or []]
    assert first == [("a", 1, None), ("b", None, "the payload is not JSON")]
    buckets.put(name, a=b'{"id": 2}')
    buckets.delete(name, "b")
    later = [(row["key"], row["id"], row["_error"]) for row in query.batch() or []]
    assert later == [("a", 2, None), ("b", None, None)]
