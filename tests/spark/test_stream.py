"""Streaming reads: each sequence in exactly one micro-batch, limits, triggers, lag."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from penstock.spark.progress import ProgressListener
from tests.spark.conftest import offset_of


def test_every_sequence_once_across_restarts(query, streams, unique):
    """A query that is stopped and started reads every message once, in batches as small as it is told."""
    name = streams.make(unique("once"))
    streams.fill(name, 250)
    query.run(stream=name, maxMessagesPerTrigger="100")
    assert query.sequences() == list(range(1, 251))
    assert query.offsets() == [{name: 101}, {name: 201}, {name: 251}]
    streams.fill(name, 30)
    query.run(stream=name)
    assert query.sequences() == list(range(1, 281))


def test_a_replayed_batch_is_the_same_rows(query, streams, unique):
    """A batch whose commit was lost is read again between the same offsets, whatever came after it."""
    name = streams.make(unique("replay"))
    streams.fill(name, 50)
    query.run(stream=name)
    query.forget_last()
    streams.fill(name, 50)
    query.run(stream=name, maxMessagesPerTrigger="1000")
    assert query.sequences() == list(range(1, 101))
    assert query.offsets()[0] == {name: 51}


@pytest.mark.parametrize(
    ("start", "expected"), [("new", []), ("last", [20]), ("15", range(15, 21)), ("1h", range(1, 21))]
)
def test_where_a_stream_starts(query, streams, unique, start, expected):
    """A new query starts where it is told, and that place is kept, also where no message came before it stopped."""
    name = streams.make(unique("start"))
    streams.fill(name, 20)
    query.run(stream=name, start=start)
    assert query.sequences() == list(expected)
    streams.fill(name, 5)
    query.run(stream=name, start="new")  # the checkpoint says otherwise, and wins
    assert query.sequences() == [*expected, *range(21, 26)]


def test_once_and_processing_time(query, streams, unique, eventually):
    """Trigger.Once ignores limits, as Spark wants it; a processing-time query goes on until it is stopped."""
    name = streams.make(unique("triggers"))
    streams.fill(name, 50)
    query.run(trigger={"once": True}, stream=name, maxMessagesPerTrigger="10")
    assert query.offsets() == [{name: 51}]
    running = query.start(trigger={"processingTime": "0 seconds"}, stream=name)
    try:
        streams.fill(name, 50)
        eventually(lambda: query.sequences() == list(range(1, 101)))
        streams.fill(name, 50)
        eventually(lambda: query.sequences() == list(range(1, 151)))
    finally:
        running.stop()
    assert running.exception() is None


def test_limits_of_a_trigger_with_gaps_and_filters(query, streams, unique):
    """The limit counts the messages that are read, not the sequences that are passed."""
    name = streams.make(unique("limit"))
    streams.fill(name, [("want" if number % 4 == 0 else "skip", b"") for number in range(2000)])
    query.run(stream=name, subjects=f"{name}.want", maxMessagesPerTrigger="200")
    assert query.sequences() == list(range(1, 2001, 4))
    ends = [0, *(offset[name] for offset in query.offsets())]
    sizes = [len([place for place in query.sequences() if low <= place < high]) for low, high in pairwise(ends)]
    assert max(sizes) <= 200
    assert len([size for size in sizes if size]) <= 4


def test_bytes_of_a_trigger(query, streams, unique):
    """A limit in bytes makes batches of about that size."""
    name = streams.make(unique("bytes"))
    streams.fill(name, [("x", b"y" * 1000) for _ in range(300)])
    query.run(stream=name, maxBytesPerTrigger="100k")
    assert query.sequences() == list(range(1, 301))
    ends = [1, *(offset[name] for offset in query.offsets())]
    sizes = [high - low for low, high in pairwise(ends)]
    assert 3 <= len(sizes) <= 5
    assert max(sizes) <= 110


def test_a_trigger_waits_for_enough(query, streams, unique, eventually):
    """A minimum holds messages back until there are so many, or until the delay is over."""
    name = streams.make(unique("least"))
    running = query.start(
        trigger={"processingTime": "0 seconds"},
        stream=name,
        minMessagesPerTrigger="10",
        maxTriggerDelay="4s",
    )
    try:
        streams.fill(name, 12)
        eventually(lambda: query.offsets() == [{name: 13}])
        streams.fill(name, 3)  # too few: they wait for the delay
        eventually(lambda: query.offsets() == [{name: 13}, {name: 16}])
        assert query.sequences()[-3:] == [13, 14, 15] or eventually(lambda: query.sequences()[-3:] == [13, 14, 15])
    finally:
        running.stop()


def test_several_streams_share_a_limit_and_new_ones_join(query, streams, unique):
    """Streams share a limit so that none starves; one that appears later and fits the pattern is read whole."""
    prefix = unique("join")
    one, two = streams.make(f"{prefix}_1"), streams.make(f"{prefix}_2")
    streams.fill(one, 300)
    streams.fill(two, 20)
    query.run(streams=f"{prefix}_*", maxMessagesPerTrigger="100")
    first = query.offsets()[0]
    assert first[one] > 1
    assert first[two] > 1
    assert first[one] + first[two] - 2 <= 100
    three = streams.make(f"{prefix}_3", first_seq=1000)
    streams.fill(three, 7)
    streams.fill(one, 1)
    query.run(streams=f"{prefix}_*")
    expected = [(one, n) for n in range(1, 302)] + [(two, n) for n in range(1, 21)]
    assert query.rows() == expected + [(three, n) for n in range(1000, 1007)]


def test_nothing_for_us_is_no_batch(query, streams, unique, eventually):
    """Messages that the subjects leave out do not cost a micro-batch each time."""
    name = streams.make(unique("idle"))
    streams.fill(name, 5, subject="want")
    running = query.start(trigger={"processingTime": "0 seconds"}, stream=name, subjects=f"{name}.want")
    try:
        eventually(lambda: query.sequences() == [1, 2, 3, 4, 5])
        batches = len(query.offsets())
        streams.fill(name, 100, subject="skip")
        running.processAllAvailable()
        assert len(query.offsets()) == batches
        streams.fill(name, 1, subject="want")
        eventually(lambda: query.sequences()[-1] == 106)
    finally:
        running.stop()


def test_lag_shows_in_the_progress(spark, query, streams, unique, eventually):
    """The latest offset stands in the query's progress, and our listener turns it into lag, rates and figures."""
    from prometheus_client import CollectorRegistry, generate_latest

    name = streams.make(unique("lag"))
    streams.fill(name, 50)
    listener = ProgressListener()
    spark.streams.addListener(listener)
    title = unique("query")
    try:
        done = query.run(stream=name, maxMessagesPerTrigger="20", name=title)
        progress = [json.loads(item.json) for item in done.recentProgress]
        assert offset_of(progress[0]["sources"][0]["latestOffset"]) == {name: 51}
        assert offset_of(progress[0]["sources"][0]["endOffset"]) == {name: 21}
        eventually(lambda: title in listener.latest and listener.latest[title].batch >= 2)
    finally:
        spark.streams.removeListener(listener)
    latest = listener.latest[title]
    assert latest.streams[name].next == 51
    assert latest.lag == 0
    registry = CollectorRegistry()
    registry.register(listener.collector())
    text = generate_latest(registry).decode()
    assert f'penstock_query_lag_messages{{query="{title}",stream="{name}"}} 0.0' in text
    assert f'penstock_query_rows_total{{query="{title}"}} 50.0' in text


def test_without_direct_get(query, streams, unique):
    """A stream without direct get streams as well, limits and filters included."""
    name = streams.make(unique("plain"), allow_direct=False)
    streams.fill(name, [("a" if number % 2 else "b", b"") for number in range(300)])
    query.run(stream=name, subjects=f"{name}.a", maxMessagesPerTrigger="60")
    assert query.sequences() == list(range(2, 301, 2))
