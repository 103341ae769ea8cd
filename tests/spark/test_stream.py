"""Streaming reads: each sequence in exactly one micro-batch, limits, triggers, lag."""

from __future__ import annotations

import json

import pytest

from penstock.spark.progress import ProgressListener
from tests.live.relay import relayed
from tests.spark.conftest import Query, offset_of


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


@pytest.mark.parametrize(("start", "expected"), [("new", []), ("15", range(15, 21))])
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


def test_a_query_that_starts_while_nats_is_away(spark, server, streams, unique, tmp_path, eventually):
    """Spark waits with us: a query that is started before NATS is there reads all of it once it comes."""
    name = streams.make(unique("early"))
    streams.fill(name, 20)
    with relayed(server) as relay:
        relay.refusing = True
        query = Query(spark, relay.url(server), tmp_path)
        running = query.start(stream=name, patience="1m")
        try:
            eventually(lambda: relay.refused > 1 or running.exception())
            relay.refusing = False
            assert running.awaitTermination(60)
        finally:
            running.stop()
    assert query.sequences() == list(range(1, 21))
