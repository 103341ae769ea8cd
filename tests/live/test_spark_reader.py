"""The source's readers, called as Spark calls them but without a JVM: offsets, limits, losses and markers."""

from __future__ import annotations

import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from penstock.channels.names import stream_name
from penstock.errors import DataLossError, InputError, LinkError, LoginError
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.spark.batch_reader import NatsReader
from penstock.spark.provider import NatsDataSource
from penstock.spark.schema import source_schema
from penstock.spark.source_options import SourceOptions
from penstock.wire.bulk import BulkConnection
from tests.live.querying import Query, read
from tests.live.relay import relayed
from tests.spark.conftest import Streams


def test_a_task_asks_for_its_stream_twice(server, streams, unique, monkeypatch):
    """A task looks whether the stream is still the same before it reads, which is enough to read it, and after."""
    name = streams.make(unique("once"))
    streams.fill(name, 10)
    given = SourceOptions.parse({"stream": name})
    reader = NatsReader(ConnectionOptions(server.url), given, source_schema(given))
    tasks = reader.partitions()
    asked, send = [], BulkConnection.send_request

    def noted(self, subject, *rest, **named):
        asked.append(subject)
        return send(self, subject, *rest, **named)

    monkeypatch.setattr(BulkConnection, "send_request", noted)
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 10
    assert [subject for subject in asked if ".INFO." in subject] == 2 * [f"$JS.API.STREAM.INFO.{name}"]


def test_limits(query, streams, unique):
    """A limit is kept in every batch, Trigger.Once ignores it, and everything comes once."""
    name = streams.make(unique("limits"))
    streams.fill(name, 250)
    running = query(stream=name, maxMessagesPerTrigger="100")
    assert running.reader.getDefaultReadLimit() == ReadMaxRows(100)
    assert [len(running.batch()), len(running.batch()), len(running.batch()), running.batch()] == [100, 100, 50, None]
    streams.fill(name, 250)
    assert running.batch(ReadAllAvailable()) == list(range(251, 501))


def test_a_minimum_and_its_delay(query, streams, unique, eventually):
    """Too few messages wait, but no longer than the delay."""
    name = streams.make(unique("least"))
    running = query(stream=name, minMessagesPerTrigger="10", maxTriggerDelay="2s")
    assert running.reader.getDefaultReadLimit() == ReadMinRows(10)
    assert running.batch() == []  # the first batch fixes the place
    streams.fill(name, 5)
    assert running.batch() is None
    streams.fill(name, 6)
    assert running.batch() == list(range(1, 12))
    streams.fill(name, 3)
    assert running.batch() is None
    assert eventually(running.batch) == [12, 13, 14]


def test_headers_that_a_publisher_took_from_the_server(query, streams, unique):
    """A message that carries the server's own headers, with other values, does not mislead the planning."""
    name = streams.make(unique("forged"))
    forged = {"Nats-Sequence": "1", "Nats-Num-Pending": "0", "Nats-Subject": "elsewhere", "Nats-Stream": "other"}
    streams.fill(name, [("want" if number % 3 else "skip", b"%d" % number, forged) for number in range(90)])
    running = query(stream=name, subjects=f"{name}.want", maxMessagesPerTrigger="20")
    wanted = [number + 1 for number in range(90) if number % 3]
    assert [running.batch() for _ in range(4)] == [wanted[:20], wanted[20:40], wanted[40:60], None]


def test_what_is_not_for_us_is_no_batch_and_no_lag(query, streams, unique):
    """Messages on other subjects neither move the query nor show as lag."""
    name = streams.make(unique("idle"))
    streams.fill(name, 5, subject="want")
    running = query(stream=name, subjects=f"{name}.want")
    assert running.batch() == [1, 2, 3, 4, 5]
    streams.fill(name, 50, subject="skip")
    assert running.batch() is None
    assert running.reader.reportLatestOffset()["streams"][name]["next"] == 6
    streams.fill(name, 1, subject="want")
    assert running.batch() == [56]


def test_markers_do_not_show(server, query, streams, unique):
    """Batches, limits and lag see the data alone; who names the markers sees them."""
    name = unique("marked")
    streams.make(name, subjects=[f"{name}.>", f"$PENSTOCK.{name}.>"])

    def fill(count: int) -> None:
        for number in range(count):
            streams.fill(name, [("x", str(number).encode())])
            streams.fill(f"$PENSTOCK.{name}", [("q.head", b"{}")])

    fill(6)
    data = [1, 3, 5, 7, 9, 11]
    assert read(server.url, stream=name) == data
    assert read(server.url, stream=name, start="last") == [11]
    assert read(server.url, stream=name, minPartitions="3") == data
    assert len(read(server.url, stream=name, subjects=f"$PENSTOCK.{name}.>")) == 6
    assert len(read(server.url, stream=name, subjects=">")) == 6
    running = query(stream=name, maxMessagesPerTrigger="2")
    assert [running.batch() for _ in range(4)] == [[1, 3], [5, 7], [9, 11], None]
    streams.fill(f"$PENSTOCK.{name}", [("q.head", b"{}")])
    assert running.batch() is None
    at = running.offset["streams"][name]["next"]
    assert running.reader.reportLatestOffset()["streams"][name]["next"] == at  # no lag


def test_a_mirror_hides_them_row_by_row(server, streams, unique, eventually):
    """Where no subject of the stream tells markers from data, rows are picked out one by one."""
    origin, copy = unique("origin"), unique("copy")
    streams.make(origin, subjects=[f"{origin}.>", f"$PENSTOCK.{origin}.>"])
    for _ in range(3):
        streams.fill(origin, 1)
        streams.fill(f"$PENSTOCK.{origin}", [("q.head", b"{}")])
    streams.api(f"STREAM.CREATE.{copy}", {"name": copy, "mirror": {"name": origin}, "allow_direct": True})
    streams.made.insert(0, copy)
    eventually(lambda: streams.info(copy)["state"]["messages"] == 6)
    assert read(server.url, stream=copy) == [1, 3, 5]


@pytest.mark.parametrize("allow_direct", [True, False])
def test_a_marker_at_the_head_hides_no_loss(query, streams, unique, allow_direct, eventually):
    """Where a marker stands at the head and the data behind it expired, the loss is noticed all the same."""
    name, hour, second = unique("head"), 3600 * 10**9, 10**9
    config = {"allow_msg_ttl": True, "allow_direct": allow_direct, "duplicate_window": second, "max_age": hour}
    streams.make(name, subjects=[f"{name}.>", f"$PENSTOCK.{name}.>"], **config)
    streams.fill(f"$PENSTOCK.{name}", [("origin", b"{}", {"Nats-TTL": "never"})])
    streams.fill(name, 5)
    running = query(stream=name)
    assert running.batch() == [2, 3, 4, 5, 6]
    assert running.batch() is None  # nothing waits: what comes and goes from here on is known

    def expire() -> None:
        config = streams.info(name)["config"]
        streams.api(f"STREAM.UPDATE.{name}", {**config, "max_age": second})
        eventually(lambda: streams.info(name)["state"]["messages"] == 1, 30)
        streams.api(f"STREAM.UPDATE.{name}", {**config, "max_age": hour})

    expire()
    streams.fill(f"$PENSTOCK.{name}", [("q.head", b"{}")])  # 7
    streams.fill(name, 1)  # 8
    assert streams.info(name)["state"]["first_seq"] == 1
    assert running.batch() == [8]  # all older data is gone, and had been read
    streams.fill(name, 4)
    expire()
    streams.fill(name, 1)
    running.restart(stream=name)
    with pytest.raises(DataLossError, match=r"\[9, 13\) of the stream"):
        running.batch()
    running.restart(stream=name, failOnDataLoss="false")
    assert running.batch() == [13]
    assert running.offset["streams"][name]["skipped"] == 4


def test_work_queues_and_interest(query, streams, unique):
    """What is not committed stays, what is committed goes, markers and other subjects stay."""
    for retention in ("workqueue", "interest"):
        name = unique(retention)
        streams.make(name, retention=retention, subjects=[f"{name}.>", f"$PENSTOCK.{name}.>"])
        running = query(stream=name, ack="commit", consumer="me", maxMessagesPerTrigger="4")
        assert running.batch() == []
        streams.fill(f"$PENSTOCK.{name}", [("origin", b"{}")])
        streams.fill(name, 10)
        kept = 1 if retention == "workqueue" else 0  # nobody is interested in a marker
        counts = []
        while (found := running.batch()) is not None:
            counts.append((len(found), streams.info(name)["state"]["messages"] - kept))
        # A batch is released while the next one is planned, so what a replay needs is there.
        assert counts == [(4, 10), (4, 6), (2, 2)]


def test_other_readers_of_an_interest_stream_are_no_loss(query, streams, unique):
    """What others acknowledge on their own subjects moves the head of the stream, and is no loss of ours."""
    name = streams.make(unique("mixed"), retention="interest")
    running = query(stream=name, ack="commit", consumer="me", subjects=f"{name}.mine")
    assert running.batch() == []
    streams.fill(name, 20, subject="other")  # nobody wants these: they are gone at once
    streams.fill(name, 5, subject="mine")
    assert streams.info(name)["state"]["first_seq"] == 21
    assert running.batch() == [21, 22, 23, 24, 25]


def test_an_idle_trigger_costs_one_request(query, streams, unique, server):
    """Where nothing comes, a trigger asks for the stream's state and no more."""
    import json
    import urllib.request

    def asked() -> int:
        with urllib.request.urlopen(f"{server.monitor_urls[0]}/jsz", timeout=10) as answer:
            return int(json.loads(answer.read())["api"]["total"])

    name = streams.make(unique("quiet"))
    streams.fill(name, 3)
    running = query(stream=name)
    running.batch()
    before = asked()
    for _ in range(10):
        assert running.batch() is None
        running.reader.reportLatestOffset()
    assert asked() - before == 10


def test_a_stream_that_does_not_exist(server):
    """It is said at once, with the streams that do exist."""
    with pytest.raises(InputError, match="The stream nowhere does not exist"):
        Query(server.url, stream="nowhere")


def test_a_channel_is_a_stream(server, streams, unique):
    """A channel of the NATS Streaming gateway is read by its name and its cluster."""
    channel = unique("orders") + ".new"
    name = streams.make(stream_name("legacy", channel), subjects=[channel])
    streams.fill(channel.rpartition(".")[0], [("new", b"one"), ("new", b"two")])
    assert read(server.url, channel=channel, clusterId="legacy") == [1, 2]
    with pytest.raises(InputError, match=r"The stream test-cluster:.* does not exist"):
        read(server.url, channel=channel)
    assert streams.info(name)["state"]["messages"] == 2


def test_a_login_may_stand_in_options_of_its_own(server, streams, unique):
    """Whatever a connection can be given, the options can say; a wrong login is told without showing it."""
    name = streams.make(unique("login"))
    streams.fill(name, 2)
    address = f"nats://{server.nodes[0].address}"

    def given(**options: str) -> NatsReader:
        source = NatsDataSource({"url": address, "stream": name, **options})
        return source.reader(source.schema())

    assert sum(1 for _ in given(token=server.token).partitions()) == 1
    with pytest.raises(LoginError) as caught:
        given(user="me", password="sekrit").partitions()
    assert "sekrit" not in str(caught.value)
    with pytest.raises(LoginError, match="refuses the login"):
        given().partitions()


def test_small_batches_and_windows(server, streams, unique):
    """The size of Arrow batches and of the window changes nothing but themselves."""
    name = streams.make(unique("small"))
    streams.fill(name, 3000)
    given = SourceOptions.parse({"stream": name, "batchRows": "700", "windowBytes": "16k"})
    reader = NatsReader(ConnectionOptions(server.url), given, source_schema(given))
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert max(batch.num_rows for batch in batches) <= 700
    assert [place for batch in batches for place in batch["sequence"].to_pylist()] == list(range(1, 3001))


def test_patience_has_an_end(streams, unique, tmp_path):
    """A query sits out an outage, and ends with a sentence where it lasts longer than it may."""
    with Server(store=tmp_path, sync="2m") as node:
        made = Streams(node.url)
        name = made.make(unique("outage"))
        made.fill(name, 5)
        running = Query(node.url, stream=name, patience="1s", connectTimeout="500ms")
        try:
            assert running.batch() == [1, 2, 3, 4, 5]
            node.nodes[0].kill()
            began = time.monotonic()
            with pytest.raises(LinkError):
                running.batch()
            assert time.monotonic() - began > 0.5
            node.nodes[0].start()
            made.fill(name, 2)
            assert running.batch() == [6, 7]
        finally:
            running.stop()


def test_a_connection_lost_while_a_batch_is_planned(server, streams, unique, monkeypatch):
    """Planning looks at many places of a stream, and goes on where the connection breaks between two of them."""
    name = streams.make(unique("planned"))
    streams.fill(name, 500)
    places, ask = [], BulkConnection.request
    with relayed(server) as relay:

        def cut(self, subject, *rest, **named):
            places.append(subject)
            if len(places) == 3:
                relay.cut()
            return ask(self, subject, *rest, **named)

        monkeypatch.setattr(BulkConnection, "request", cut)
        running = Query(relay.url(server), stream=name, minPartitions="4")
        try:
            assert running.batch() == list(range(1, 501))
        finally:
            running.stop()
    assert len(places) > 3
    assert relay.connections > 1


def test_messages_that_wait_for_enough_are_lag(query, streams, unique):
    """What a minimum holds back is behind, and shows so."""
    name = streams.make(unique("held"))
    running = query(stream=name, minMessagesPerTrigger="10")
    assert running.batch() == []
    streams.fill(name, 4)
    assert running.batch() is None
    assert running.reader.reportLatestOffset()["streams"][name]["next"] == 5


def test_a_purge_of_everything_is_skipped_and_counted(query, streams, unique):
    """Where nothing is left after a loss that is allowed, the place moves on all the same."""
    name = streams.make(unique("bare"))
    streams.fill(name, 5)
    running = query(stream=name, failOnDataLoss="false")
    assert running.batch() == [1, 2, 3, 4, 5]
    streams.fill(name, 5)
    streams.api(f"STREAM.PURGE.{name}")
    assert running.batch() == []
    assert running.offset["streams"][name]["skipped"] == 5
    assert running.batch() is None
    streams.fill(name, 1)
    assert running.batch() == [11]


def test_a_bookmark_that_is_removed_under_the_query(query, streams, unique):
    """A query notices at its next commit that nobody held its messages."""
    name = streams.make(unique("robbed"), retention="interest")
    running = query(stream=name, ack="commit", consumer="me")
    assert running.batch() == []
    for _ in range(2):
        streams.fill(name, 5)
        assert len(running.batch()) == 5
    for consumer in streams.api(f"CONSUMER.NAMES.{name}")["consumers"]:
        streams.api(f"CONSUMER.DELETE.{name}.{consumer}")
    streams.fill(name, 5)
    with pytest.raises(DataLossError, match="gone"):
        running.batch()


@pytest.mark.parametrize("allow_direct", [True, False])
def test_limits_count_messages_not_sequences(query, streams, unique, allow_direct):
    """With gaps and filters a limit counts what is read, with direct get and without."""
    name = streams.make(unique("sparse"), allow_direct=allow_direct)
    streams.fill(name, [("want" if number % 4 == 0 else "skip", b"") for number in range(2000)])
    running = query(stream=name, subjects=f"{name}.want", maxMessagesPerTrigger="200")
    batches = []
    while (batch := running.batch()) is not None:
        batches.append(batch)
    assert [place for batch in batches for place in batch] == list(range(1, 2001, 4))
    assert max(len(batch) for batch in batches) <= 200
    assert len(batches) <= 4


def test_a_limit_in_bytes(query, streams, unique):
    """A limit in bytes makes batches of about that size."""
    name = streams.make(unique("bytes"))
    streams.fill(name, [("x", b"y" * 1000) for _ in range(300)])
    running = query(stream=name, maxBytesPerTrigger="100k")
    assert running.reader.getDefaultReadLimit() == ReadMaxBytes(100 * 1024)
    sizes = []
    while (batch := running.batch()) is not None:
        sizes.append(len(batch))
    assert sum(sizes) == 300
    assert 3 <= len(sizes) <= 5
    assert max(sizes) <= 110
