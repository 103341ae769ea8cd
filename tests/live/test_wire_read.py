"""Reading a range of a stream: exactly its messages, in order, once each, whatever happens on the way."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.connection import connect
from penstock.errors import DataLossError, DeadlineError, InputError, LocalProtocolError, NotFoundError
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.wire.arrow import SCHEMA
from penstock.wire.bulk import BulkConnection, reading
from tests.live.connecting import free_port
from tests.live.relay import fill, make_stream, numbers, relayed


@pytest.fixture
def bulk(server: Server) -> Iterator[BulkConnection]:
    with BulkConnection(server.url) as made:
        yield made


@pytest.fixture(scope="module")
def long_stream(server: Server) -> str:
    """A stream of 5,000 messages on seven subjects, which tests only read."""
    with BulkConnection(server.url) as made:
        make_stream(made, "LONG")
        fill(made, "LONG", 5000, kinds=7)
    return "LONG"


def consumers(bulk: BulkConnection, name: str) -> int:
    return int(bulk.api(f"STREAM.INFO.{name}")["state"]["consumer_count"])


# -- ranges --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["direct get", "consumer"])
@pytest.mark.parametrize(
    ("start", "end"), [(1, 2), (1, 301), (300, 301), (4990, 5001), (4999, None), (7, 7), (5001, None), (1, None)]
)
def test_a_range_is_exactly_its_messages(
    bulk: BulkConnection, long_stream: str, start: int, end: int | None, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """start ≤ sequence < end, in order, once each, by both ways; no end means where the stream ends now."""
    if by == "consumer":
        monkeypatch.setattr(reading, "DIRECT_ROWS", 0)
    found = list(bulk.read(long_stream, start, end))
    assert numbers(found) == list(range(start, 5001 if end is None else end))
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(SCHEMA)
        assert set(batch.column("stream").to_pylist()) == {long_stream}


@pytest.mark.parametrize("by", ["direct get", "consumer"])
@pytest.mark.parametrize(
    "subjects", [["LONG.3"], ["LONG.*"], [">"], ["LONG.1", "LONG.5"], ["LONG.nothing"], ["LONG.0", "LONG.nothing"]]
)
@pytest.mark.parametrize(("start", "end"), [(1, 5001), (100, 107), (4995, 5001), (2, 900)])
def test_filters(
    bulk: BulkConnection,
    long_stream: str,
    subjects: list[str],
    start: int,
    end: int,
    by: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only messages of the subjects come, and a range that ends without any of them ends all the same."""
    if by == "consumer":
        monkeypatch.setattr(reading, "DIRECT_ROWS", 0)
    kinds = {kind for kind in range(7) for item in subjects if item in (f"LONG.{kind}", "LONG.*", ">")}
    wanted = [number for number in range(start, end) if number % 7 in kinds]
    assert numbers(bulk.read(long_stream, start, end, subjects if len(subjects) > 1 else subjects[0])) == wanted


def test_batches_have_the_size_asked_for(bulk: BulkConnection, long_stream: str) -> None:
    """Batches are full but for the last one, by rows or by bytes, however small the window is."""
    sizes = [batch.num_rows for batch in bulk.read(long_stream, 1, 5001, batch_rows=1024)]
    assert sizes == [1024, 1024, 1024, 1024, 904]
    sizes = [batch.num_rows for batch in bulk.read(long_stream, 1, 5001, batch_rows=2000, window_bytes=1024)]
    assert sizes == [2000, 2000, 1000]
    for batch in bulk.read(long_stream, 1, 5001, batch_bytes=1000):
        assert 1 <= batch.num_rows <= 1000


def test_nothing_is_left_at_the_server(bulk: BulkConnection, long_stream: str, eventually: Callable[..., Any]) -> None:
    """The consumer goes when the read ends, is given up half way, or fails in the caller's hands."""
    assert len(numbers(bulk.read(long_stream))) == 5000
    eventually(lambda: consumers(bulk, long_stream) == 0)
    half = bulk.read(long_stream, batch_rows=100)
    next(half)
    assert consumers(bulk, long_stream) == 1
    half.close()  # type: ignore[attr-defined]  # a generator
    eventually(lambda: consumers(bulk, long_stream) == 0)


def test_reads_and_requests_may_be_mixed(bulk: BulkConnection, long_stream: str) -> None:
    """Between two batches the connection is free: for requests, and for another read."""
    one = bulk.read(long_stream, 1, 3001, batch_rows=1000)
    other = bulk.read(long_stream, 2001, 5001, batch_rows=1000)
    found: tuple[list[int], list[int]] = ([], [])
    for _ in range(3):
        found[0].extend(numbers([next(one)]))
        assert bulk.api("INFO")
        found[1].extend(numbers([next(other)]))
    assert found == (list(range(1, 3001)), list(range(2001, 5001)))
    assert [list(one), list(other)] == [[], []]


def test_headers_times_and_payloads(bulk: BulkConnection, unique: Callable[..., str]) -> None:
    """Both ways show the same subject, headers, sequence, time and payload, and none of the server's own headers."""
    name = unique()
    make_stream(bulk, name)
    bulk.request(f"{name}.a", b"\x00\xff", headers={"A": "1", "Nats-Msg-Id": "x"})
    bulk.request(f"{name}.b.c", b"")
    for number in range(2000):
        bulk.wire.send(b"PUB %s.z 1\r\nx\r\n" % name.encode(), reading.Deadline(5))
        if number % 500 == 0:
            bulk.api("INFO")
    (direct,) = bulk.read(name, 1, 3)
    pulled = next(iter(bulk.read(name, 1, 1500)))
    assert pulled.slice(0, 2).equals(direct)
    first, second = direct.to_pylist()
    assert (first["subject"], first["data"]) == (f"{name}.a", b"\x00\xff")
    assert sorted(first["headers"]) == [("A", ["1"]), ("Nats-Msg-Id", ["x"])]
    assert (second["subject"], second["data"], second["headers"]) == (f"{name}.b.c", b"", [])
    assert abs(first["time"].timestamp() - time.time()) < 60
    (bare,) = bulk.read(name, 1, 3, headers=False)
    assert bare.column("headers").to_pylist() == [[], []]


def test_messages_larger_than_the_window(bulk: BulkConnection, unique: Callable[..., str]) -> None:
    """A message that does not fit the window comes alone; its neighbours come as ever."""
    name = unique()
    make_stream(bulk, name, allow_direct=False)
    sizes = [10, 900_000, 10, 10, 500_000, 1_000_000, 0]
    for size in sizes:
        bulk.request(f"{name}.a", b"x" * size)
    for window in (1024, 20_000, 600_000, 16 << 20):
        found = [
            len(data) for batch in bulk.read(name, window_bytes=window) for data in batch.column("data").to_pylist()
        ]
        assert found == sizes


# -- what is gone --------------------------------------------------------------------------------------------


def test_deleted_messages_are_skipped(bulk: BulkConnection, unique: Callable[..., str]) -> None:
    """Messages deleted from the middle and from the end of the range leave gaps, and nothing else."""
    name = unique()
    make_stream(bulk, name)
    fill(bulk, name, 3000)
    gone = {2, 3, 700, 1500, 1998, 1999, 2000}
    for sequence in gone:
        bulk.api(f"STREAM.MSG.DELETE.{name}", {"seq": sequence})
    wanted = [number for number in range(1, 2001) if number not in gone]
    assert numbers(bulk.read(name, 1, 2001)) == wanted
    assert numbers(bulk.read(name, 1998, 2001)) == []
    assert numbers(bulk.read(name, 1990, 2001)) == list(range(1990, 1998))


@pytest.mark.parametrize("rows", [100, 3000], ids=["direct get", "consumer"])
def test_a_range_that_is_gone(bulk: BulkConnection, unique: Callable[..., str], rows: int) -> None:
    """Messages purged from the start, or not there at the end, raise DataLossError, or are told to `on_loss`."""
    name = unique()
    make_stream(bulk, name)
    fill(bulk, name, rows)
    bulk.api(f"STREAM.PURGE.{name}", {"seq": 51})
    with pytest.raises(DataLossError, match=rf"holds \[51, {rows + 1}\)") as caught:
        list(bulk.read(name, 20, rows + 1))
    error = caught.value
    assert (error.stream, error.start, error.end, error.first, error.last) == (name, 20, rows + 1, 51, rows)
    with pytest.raises(DataLossError) as caught:
        list(bulk.read(name, 60, rows + 10))
    assert (caught.value.end, caught.value.last) == (rows + 10, rows)
    lost: list[DataLossError] = []
    assert numbers(bulk.read(name, 20, rows + 10, on_loss=lost.append)) == list(range(51, rows + 1))
    assert [(item.start, item.end, item.first, item.last) for item in lost] == [(20, rows + 10, 51, rows)]
    bulk.api(f"STREAM.PURGE.{name}")
    with pytest.raises(DataLossError):
        list(bulk.read(name, 51, 60))
    assert list(bulk.read(name, 51, 60, on_loss=lost.append)) == []
    assert list(bulk.read(name, rows + 1)) == []


@pytest.mark.parametrize("kinds", [(), ("0", "1")])
def test_retention_that_overtakes_the_read(
    bulk: BulkConnection, unique: Callable[..., str], kinds: tuple[str, ...]
) -> None:
    """Messages that are purged while the range is being read are missed, and the read says so, filters or not.

    It does so before it gives a batch that reaches over the gap.
    """
    name = unique()
    make_stream(bulk, name)
    fill(bulk, name, 20_000, kinds=3, size=1000)
    filters = [f"{name}.{kind}" for kind in kinds]
    read = bulk.read(name, 1, 20_001, filters, batch_rows=500, window_bytes=100_000)
    found = numbers([next(read)])
    bulk.api(f"STREAM.PURGE.{name}", {"seq": 15_000})
    with pytest.raises(DataLossError) as caught:
        found.extend(number for batch in read for number in numbers([batch]))
    assert caught.value.first == 15_000
    assert found[-1] < 15_000


def test_a_loss_that_is_allowed_is_told_before_the_batch_behind_it(
    bulk: BulkConnection, unique: Callable[..., str]
) -> None:
    """With `on_loss` the read goes on, and whoever is told has not yet been given what is behind the gap."""
    name, found, lost = unique(), list[int](), list[tuple[int, int | None]]()
    make_stream(bulk, name)
    fill(bulk, name, 20_000, size=1000)

    def note(error: DataLossError) -> None:
        lost.append((found[-1], error.first))

    for batch in bulk.read(name, 1, 20_001, batch_rows=500, window_bytes=100_000, on_loss=note):
        found += numbers([batch])
        if len(found) == batch.num_rows:
            bulk.api(f"STREAM.PURGE.{name}", {"seq": 15_000})
    assert found[-1] == 20_000
    ((last, first),) = lost
    assert last < 15_000
    assert first == 15_000


@pytest.mark.parametrize(("kinds", "deleted"), [((), 100), (("0", "1", "2"), 0)], ids=["with holes", "by subject"])
def test_an_older_copy_that_takes_the_place_of_the_stream(tmp_path: Path, kinds: tuple[str, ...], deleted: int) -> None:
    """A stream that was set back while it is being read is told, also if it counts as many deleted as are missing."""
    store, copy, name = tmp_path / "store", tmp_path / "copy", "S"
    with Server(store=store, sync="2m", port=free_port()) as server, BulkConnection(server.url) as bulk:
        make_stream(bulk, name, storage="file")
        fill(bulk, name, 1000, kinds=3, size=1000)
        for sequence in range(2, 2 + deleted):
            bulk.api(f"STREAM.MSG.DELETE.{name}", {"seq": sequence})
        shutil.copytree(store, copy)
        fill(bulk, name, 100, kinds=3, size=1000)
        filters = [f"{name}.{kind}" for kind in kinds]
        read = bulk.read(name, 1, 1101, filters, batch_rows=100, window_bytes=20_000)
        found = numbers([next(read)])
        server.nodes[0].kill()
        shutil.rmtree(store)
        shutil.copytree(copy, store)
        server.nodes[0].start()
        with pytest.raises(DataLossError, match=r"ends with sequence 1000 now, and reached 1100") as caught:
            found.extend(number for batch in read for number in numbers([batch]))
    assert (caught.value.end, caught.value.last) == (1101, 1000)
    assert found == [number for number in range(1, found[-1] + 1) if not 2 <= number < 2 + deleted]
    assert found[-1] <= 1000


def test_a_stream_that_is_not_there_or_goes(bulk: BulkConnection, unique: Callable[..., str]) -> None:
    """A stream that does not exist, and one that is deleted under the read, is a NotFoundError."""
    name = unique()
    with pytest.raises(NotFoundError):
        next(bulk.read(name, 1, 10))
    make_stream(bulk, name)
    fill(bulk, name, 5000, size=100)
    read = bulk.read(name, batch_rows=100, window_bytes=20_000)
    next(read)
    bulk.api(f"STREAM.DELETE.{name}")
    with pytest.raises(NotFoundError):
        list(read)
    make_stream(bulk, name)
    assert list(bulk.read(name)) == []
    with pytest.raises(DataLossError):
        list(bulk.read(name, 1, 2))


def test_streams_that_allow_no_consumer(bulk: BulkConnection, unique: Callable[..., str]) -> None:
    """A work queue allows no consumer that takes no acks; direct get reads it all the same, long ranges too."""
    name = unique()
    make_stream(bulk, name, retention="workqueue")
    fill(bulk, name, 25_000)
    assert numbers(bulk.read(name)) == list(range(1, 25_001))
    assert numbers(bulk.read(name, 5, 5000, f"{name}.0")) == list(range(5, 5000))


# -- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"start": 0}, "Sequences begin with 1"),
        ({"start": 5, "end": 4}, "ends before it starts"),
        ({"batch_rows": 0}, "batch_rows is 0"),
        ({"batch_bytes": 0}, "batch_bytes is 0"),
        ({"window_bytes": 10}, "window_bytes is 10"),
        ({"timeout": 0}, "timeout is 0"),
    ],
)
def test_input_that_cannot_be(bulk: BulkConnection, given: dict[str, Any], says: str) -> None:
    """What cannot be is refused by the call itself, before anything is asked of the server."""
    with pytest.raises(InputError, match=says):
        bulk.read("ANY", **given)


def test_subjects_that_cannot_be(bulk: BulkConnection) -> None:
    """A filter that is no subject is refused by the call itself."""
    with pytest.raises(LocalProtocolError):
        bulk.read("ANY", subjects=["a b"])


# -- a slow caller -------------------------------------------------------------------------------------------


def test_a_slow_caller_is_not_a_slow_consumer(unique: Callable[..., str]) -> None:
    """However long the caller takes for a batch, the server never has to drop the connection."""
    with Server(sync="2m", config='write_deadline: "300ms"\nmax_pending: 4MB') as server:
        with relayed(server) as relay, BulkConnection(relay.url(server)) as bulk:
            name = unique()
            make_stream(bulk, name)
            fill(bulk, name, 20_000, size=1000)
            found = []
            for place, batch in enumerate(bulk.read(name, batch_rows=2000, window_bytes=1 << 20)):
                found += numbers([batch])
                if place % 4 == 0:
                    time.sleep(0.7)  # more than the server would wait with bytes that it cannot write
            assert found == list(range(1, 20_001))
            assert relay.connections == 1
        with urllib.request.urlopen(f"{server.nodes[0].monitor_url}/varz", timeout=10) as page:
            assert json.load(page)["slow_consumers"] == 0


def test_the_window_bounds_what_is_under_way(bulk: BulkConnection, unique: Callable[..., str]) -> None:
    """No request asks for more than the window, and the receive buffer does not grow with the range."""
    name = unique()
    make_stream(bulk, name)
    fill(bulk, name, 20_000, size=500)
    asked = []
    sent = reading.Reading._send

    def watch(self: reading.Reading, method: str, body: dict[str, Any]) -> str:
        asked.append(body.get("max_bytes"))
        return sent(self, method, body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading.Reading, "_send", watch)
        assert numbers(bulk.read(name, window_bytes=300_000)) == list(range(1, 20_001))
    assert len(asked) > 20_000 * 500 / 300_000
    assert max(asked) <= 300_000
    assert len(bulk.wire.parser.buffer) <= 1 << 20


# -- what breaks on the way ----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [10_000, 300_000, 1_000_000, 2_345_678])
def test_a_lost_connection(server: Server, bulk: BulkConnection, unique: Callable[..., str], place: int) -> None:
    """Cut off anywhere, twice, the read goes on behind the last message that it took."""
    name = unique()
    make_stream(bulk, name)
    fill(bulk, name, 20_000, size=100)
    with relayed(server) as relay:
        relay.cut_after = [place, 400_000]
        with BulkConnection(relay.url(server)) as shaky:
            assert numbers(shaky.read(name, batch_rows=3000, window_bytes=200_000)) == list(range(1, 20_001))
        assert relay.connections == 3


@pytest.mark.parametrize("place", [1500, 20_000])
def test_a_connection_lost_during_direct_get(
    server: Server, bulk: BulkConnection, unique: Callable[..., str], place: int
) -> None:
    """A short range survives the same."""
    name = unique()
    make_stream(bulk, name)
    fill(bulk, name, 1000, size=100)
    with relayed(server) as relay:
        relay.cut_after = [place]
        with BulkConnection(relay.url(server)) as shaky:
            assert numbers(shaky.read(name, 1, 480)) == list(range(1, 480))
        assert relay.connections == 2


def test_a_connection_lost_between_batches(server: Server, bulk: BulkConnection, unique: Callable[..., str]) -> None:
    """A connection that goes while the caller works is made again, with a new consumer."""
    name = unique()
    make_stream(bulk, name)
    fill(bulk, name, 10_000, size=100)
    with relayed(server) as relay, BulkConnection(relay.url(server)) as shaky:
        found = []
        for batch in shaky.read(name, batch_rows=1000, window_bytes=100_000):
            found += numbers([batch])
            relay.cut()
        assert found == list(range(1, 10_001))
        assert relay.connections > 3


def test_a_consumer_deleted_under_the_read(bulk: BulkConnection, server: Server, unique: Callable[..., str]) -> None:
    """An ephemeral consumer that somebody deletes is replaced by one that starts behind the last message taken."""
    name = unique()
    make_stream(bulk, name)
    fill(bulk, name, 10_000, size=100)
    with BulkConnection(server.url) as other:
        found, deleted = [], 0
        for batch in bulk.read(name, batch_rows=1000, window_bytes=100_000):
            found += numbers([batch])
            for consumer in other.api(f"CONSUMER.NAMES.{name}").get("consumers") or ():
                other.api(f"CONSUMER.DELETE.{name}.{consumer}")
                deleted += 1
        assert found == list(range(1, 10_001))
        assert deleted > 3


def test_no_progress_ends_in_time(server: Server, bulk: BulkConnection, unique: Callable[..., str]) -> None:
    """Where the server stays away, the read ends with DeadlineError, which says where it was."""
    name = unique()
    make_stream(bulk, name)
    fill(bulk, name, 5000, size=100)
    with relayed(server) as relay, BulkConnection(ConnectionOptions(relay.url(server), connect_timeout=5)) as shaky:
        read = shaky.read(name, batch_rows=1000, window_bytes=100_000, timeout=1.0)
        next(read)
        relay.refusing = True
        relay.cut()
        with pytest.raises(DeadlineError, match=r"made no progress for 1 s, at sequence \d+"):
            list(read)


def test_a_server_that_restarts(unique: Callable[..., str], tmp_path: Any) -> None:
    """A server that is killed and started again on its store is read to the end."""
    with Server(store=tmp_path / "store", port=0, sync="2m") as server, BulkConnection(server.url) as bulk:
        name = unique()
        make_stream(bulk, name, storage="file")
        fill(bulk, name, 10_000, size=100)
        found = []
        for place, batch in enumerate(bulk.read(name, batch_rows=2000, window_bytes=100_000)):
            found += numbers([batch])
            if place == 1:
                server.nodes[0].kill()
                server.nodes[0].start()
        assert found == list(range(1, 10_001))


async def test_a_replica_that_has_just_become_the_leader(server: Server, unique: Callable[..., str]) -> None:
    """Of a stream with replicas, an end that comes too early is asked for again before anything counts as lost."""
    name, prefix, ends = unique(), unique("api"), [40, 70]

    async def pass_on(message: Any) -> None:
        method = message.subject.removeprefix(f"{prefix}.")
        if not method.startswith("STREAM.INFO."):
            await between.publish(f"$JS.API.{method}", message.data, reply=message.reply)
            return
        answer = json.loads((await between.request(f"$JS.API.{method}", timeout=10)).data)
        answer["config"]["num_replicas"] = replicas
        answer["state"]["last_seq"] = ends.pop(0) if ends else 100
        await message.respond(json.dumps(answer).encode())

    def read() -> list[int]:
        with BulkConnection(ConnectionOptions(server.url, api_prefix=prefix)) as behind:
            return numbers(behind.read(name, 1, 101))

    with BulkConnection(server.url) as bulk:
        make_stream(bulk, name)
        fill(bulk, name, 100)
    async with await connect(server.url) as between:
        await between.subscribe(f"{prefix}.>", cb=pass_on)
        await between.flush()
        replicas = 3
        assert await asyncio.to_thread(read) == list(range(1, 101))
        assert not ends
        replicas, ends[:] = 1, [40]
        with pytest.raises(DataLossError, match=r"holds \[1, 41\)"):
            await asyncio.to_thread(read)
        replicas, ends[:] = 3, [40] * 1000
        with pytest.raises(DataLossError, match=r"holds \[1, 41\)"):
            await asyncio.to_thread(read)
