"""Publishing rows: stored in order, once each, with acks that say where; and what is stored when it fails."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InputError, LocalProtocolError, NotFoundError, PublishError
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.wire.arrow import HEADERS
from penstock.wire.bulk import Ack, BulkConnection, Published
from tests.live.relay import make_stream, relayed, rows

MODES = ["acks", "fast", "atomic"]


@pytest.fixture
def bulk(server: Server) -> Iterator[BulkConnection]:
    with BulkConnection(server.url) as made:
        yield made


def stored(bulk: BulkConnection, name: str) -> list[int]:
    """Give the numbers that the stream's payloads hold, in the order of the stream."""
    return [int(data) for batch in bulk.read(name) for data in batch.column("data").to_pylist()]


def covered(done: Published) -> list[tuple[int, int]]:
    return [(ack.row, ack.row + ack.count) for ack in done.acks]


# -- the modes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, 2, 1000, 1001, 7500])
def test_rows_are_stored_in_order(bulk: BulkConnection, unique: Callable[..., str], mode: str, count: int) -> None:
    """All rows are in the stream, in order, and one ack stands for neighbours that follow each other."""
    name = unique()
    make_stream(bulk, name)
    done = bulk.publish(name, rows(name, range(count), kinds=5), mode)
    assert (done.stream, done.rows, done.last, done.duplicates) == (name, count, count, 0)
    assert done.acks == (Ack(0, count, count, contiguous=mode != "fast"),)
    assert stored(bulk, name) == list(range(count))


@pytest.mark.parametrize("mode", MODES)
def test_many_batches_of_any_size(bulk: BulkConnection, unique: Callable[..., str], mode: str) -> None:
    """Batches come from an iterator, some empty, as one batch, as a table, or not at all."""
    name = unique()
    make_stream(bulk, name)
    ends = [0, 1, 1, 700, 3000, 3000, 4500]
    pieces = (rows(name, range(*pair)) for pair in itertools.pairwise(ends))
    assert bulk.publish(name, pieces, mode).rows == 4500
    assert stored(bulk, name) == list(range(4500))
    assert bulk.publish(name, [], mode) == Published(name, 0, ())
    assert bulk.publish(name, pa.Table.from_batches([rows(name, range(4500, 4600))]), mode).last == 4600
    assert stored(bulk, name) == list(range(4600))


@pytest.mark.parametrize("mode", MODES)
def test_headers_go_with_the_rows(bulk: BulkConnection, unique: Callable[..., str], mode: str) -> None:
    """A row's headers are stored with it, several values of a name too, beside those that the mode needs."""
    name = unique()
    make_stream(bulk, name)
    headers: list[Any] = [[("A", ["1", "ü"]), ("B", [""])], [], None]
    batch = pa.record_batch({"data": pa.array([b"x", b"", None]), "headers": pa.array(headers, HEADERS)})
    bulk.publish(name, batch, mode, subject=f"{name}.here")
    (found,) = bulk.read(name)
    own = [
        [(key, values) for key, values in row if not key.startswith("Nats-")]
        for row in found.column("headers").to_pylist()
    ]
    assert own == [[("A", ["1", "ü"]), ("B", [""])], [], []]
    assert found.column("subject").to_pylist() == [f"{name}.here"] * 3
    assert found.column("data").to_pylist() == [b"x", b"", b""]
    names = {key for row in found.column("headers").to_pylist() for key, _ in row if key.startswith("Nats-")}
    assert names == {"acks": {"Nats-Msg-Id"}, "fast": set()}.get(
        mode, {"Nats-Msg-Id", "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"}
    )


@pytest.mark.parametrize("mode", MODES)
def test_what_is_read_can_be_published(bulk: BulkConnection, unique: Callable[..., str], mode: str) -> None:
    """Batches of a read go into another stream as they are; subjects come from the argument where they must change."""
    one, other = unique(), unique()
    make_stream(bulk, one)
    make_stream(bulk, other)
    bulk.publish(one, rows(one, range(3000)), "fast")
    copied = (batch.drop_columns(["subject"]) for batch in bulk.read(one, batch_rows=500))
    assert bulk.publish(other, copied, mode, subject=f"{other}.copy").rows == 3000
    assert stored(bulk, other) == list(range(3000))


def test_several_publishers_at_once(server: Server, unique: Callable[..., str]) -> None:
    """Publishers that share a stream each get acks for their own rows, and keep their own order."""
    name = unique()
    results: dict[str, Published] = {}

    def work(mode: str, first: int) -> None:
        with BulkConnection(server.url) as own:
            results[mode] = own.publish(name, rows(name, range(first, first + 4000)), mode)

    with BulkConnection(server.url) as bulk:
        make_stream(bulk, name)
        threads = [threading.Thread(target=work, args=(mode, 10_000 * n)) for n, mode in enumerate(MODES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        found = stored(bulk, name)
        assert sorted(found) == sorted([*range(4000), *range(10_000, 14_000), *range(20_000, 24_000)])
        for n, mode in enumerate(MODES):
            mine = [(place + 1, number) for place, number in enumerate(found) if number // 10_000 == n]
            assert [number for _, number in mine] == list(range(10_000 * n, 10_000 * n + 4000))
            assert sum(ack.count for ack in results[mode].acks) == 4000
            for ack in results[mode].acks if mode != "fast" else ():
                places = [place for place, _ in mine[ack.row : ack.row + ack.count]]
                assert places == list(range(ack.sequence - ack.count + 1, ack.sequence + 1))  # type: ignore[operator]


def test_ids_of_the_caller_are_stored_once(bulk: BulkConnection, unique: Callable[..., str]) -> None:
    """Rows with ids of their own that are there already are acknowledged as duplicates, or refuse an atomic batch."""
    name = unique()
    make_stream(bulk, name)
    ids = [[("Nats-Msg-Id", [f"id-{number}"])] for number in range(100)]
    batch = rows(name, range(100)).append_column("headers", pa.array(ids, HEADERS))
    assert bulk.publish(name, batch.slice(0, 60), "acks").duplicates == 0
    again = bulk.publish(name, batch, "acks")
    assert again.duplicates == 60
    assert again.acks == (Ack(0, 60, 60, duplicate=True), Ack(60, 40, 100))
    assert stored(bulk, name) == list(range(100))
    with pytest.raises(PublishError, match="duplicate") as caught:
        bulk.publish(name, batch.slice(90), "atomic")
    assert (caught.value.err_code, caught.value.stored, caught.value.unknown) == (10201, (), ())
    assert stored(bulk, name) == list(range(100))


# -- refusals ------------------------------------------------------------------------------------------------


def test_modes_that_cannot_be(bulk: BulkConnection, unique: Callable[..., str]) -> None:
    """A mode that is none, or that the stream does not allow, is refused before the first row is asked for."""
    name = unique()
    make_stream(bulk, name, allow_atomic=False, allow_batched=False)
    never: Iterator[Any] = iter(lambda: pytest.fail("rows were asked for"), None)
    for mode, says in (
        ("quick", "no mode 'quick'"),
        ("fast", "Turn allow_batched on"),
        ("atomic", "Turn allow_atomic on"),
    ):
        with pytest.raises(InputError, match=says):
            bulk.publish(name, never, mode)
    with pytest.raises(InputError, match="always sends ids"):
        bulk.publish(name, never, "acks", ids=False)
    with pytest.raises(InputError, match="timeout is 0"):
        bulk.publish(name, never, timeout=0)
    with pytest.raises(NotFoundError):
        bulk.publish(unique(), never)
    mirror = unique()
    bulk.api(f"STREAM.CREATE.{mirror}", {"name": mirror, "storage": "memory", "mirror": {"name": name}})
    with pytest.raises(InputError, match="is a mirror"):
        bulk.publish(mirror, never)


@pytest.mark.parametrize("mode", MODES)
def test_a_row_that_the_server_refuses(bulk: BulkConnection, unique: Callable[..., str], mode: str) -> None:
    """The error says why, and exactly which rows are stored; an atomic batch with such a row is not stored at all."""
    name = unique()
    make_stream(bulk, name, max_msgs=1500, discard="new")
    with pytest.raises(PublishError, match="maximum messages exceeded") as caught:
        bulk.publish(name, rows(name, range(6000)), mode)
    error = caught.value
    assert (error.err_code, error.unknown) == (10077, ())
    full = 1000 if mode == "atomic" else 1500
    assert stored(bulk, name) == list(range(full))
    assert error.stored == ((0, full),)
    assert bulk.api("INFO"), "the connection goes on"


@pytest.mark.parametrize("mode", MODES)
def test_bad_rows_after_good_ones(bulk: BulkConnection, unique: Callable[..., str], mode: str) -> None:
    """Rows that turn out wrong, or an iterator that fails, end in an error that says what was stored before."""
    name = unique()
    make_stream(bulk, name)
    wrong = pa.record_batch({"subject": pa.array(["elsewhere"]), "data": pa.array([b"x"])})
    with pytest.raises(PublishError, match="Row 20: Subject 'elsewhere' is not of this stream") as caught:
        bulk.publish(name, [rows(name, range(20)), wrong], mode)
    assert caught.value.stored == ((0, 20),)

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(name, range(20, 30))
        raise ZeroDivisionError("the caller's own")

    with pytest.raises(PublishError, match="the caller's own") as caught:
        bulk.publish(name, failing(), mode)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.stored == ((0, 10),)
    with pytest.raises(InputError, match="not of this stream"):
        bulk.publish(name, [wrong], mode)
    with pytest.raises(LocalProtocolError, match="the server takes"):
        bulk.publish(name, rows(name, [1], size=bulk.max_payload), mode)
    small = unique()
    make_stream(bulk, small, max_msg_size=2000)
    with pytest.raises(InputError, match="has 2001 bytes with its headers; the stream takes 2000"):
        bulk.publish(small, rows(small, [1], size=2001), mode)
    assert stored(bulk, name) == list(range(30))


def test_a_fenced_writer(bulk: BulkConnection, unique: Callable[..., str]) -> None:
    """Rows and a marker that expects its last sequence commit together; a second writer is refused whole."""
    name = unique()
    make_stream(bulk, name, allow_rollup_hdrs=True)

    def fenced(first: int, expected: int) -> pa.RecordBatch:
        marker = [("Nats-Expected-Last-Subject-Sequence", [str(expected)]), ("Nats-Rollup", ["sub"])]
        batch = rows(name, range(first, first + 10))
        subjects = [*batch.column("subject").to_pylist()[:9], f"{name}.marker"]
        headers: list[Any] = [[]] * 9 + [marker]
        return pa.record_batch(
            {"subject": subjects, "data": batch.column("data"), "headers": pa.array(headers, HEADERS)}
        )

    assert bulk.publish(name, fenced(0, 0), "atomic").last == 10
    with pytest.raises(PublishError) as caught:
        bulk.publish(name, fenced(100, 0), "atomic")
    assert (caught.value.err_code, caught.value.stored) == (10071, ())
    assert bulk.publish(name, fenced(10, 10), "atomic").last == 20
    assert stored(bulk, name) == [*range(9), *range(10, 20)], "the first marker was rolled up, nothing else"


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_that_is_replaced_between_rows(
    server: Server, bulk: BulkConnection, unique: Callable[..., str], mode: str
) -> None:
    """Acks that contradict each other tell of a stream that was made anew: rows that were acknowledged are gone."""
    name = unique()
    make_stream(bulk, name)

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(name, range(3000))
        yield rows(name, range(3000, 3010))  # the rows before are stored when this is asked for
        with BulkConnection(server.url) as other:
            while other.api(f"STREAM.INFO.{name}")["state"]["messages"] < 3000:
                pass
            other.api(f"STREAM.DELETE.{name}")
            make_stream(other, name)
        yield rows(name, range(3010, 4000))

    with pytest.raises(PublishError, match="replaced or restored"):
        bulk.publish(name, batches(), mode, ids=True, timeout=10)


# -- lost connections ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", [3000, 77_777, 200_000, 600_000])
def test_what_was_lost_on_the_way_is_sent_again(
    server: Server, bulk: BulkConnection, unique: Callable[..., str], mode: str, place: int
) -> None:
    """Cut off while sending, twice, every row is stored once and in order, because every row has an id."""
    name = unique()
    make_stream(bulk, name)
    batches = [rows(name, range(start, start + 2500), size=100) for start in range(0, 10_000, 2500)]
    with relayed(server) as relay:
        relay.cut_after_sent = [place, 300_000]
        with BulkConnection(relay.url(server)) as shaky:
            done = shaky.publish(name, batches, mode, ids=True)
        assert relay.connections == 3
    assert done.rows == 10_000
    found = stored(bulk, name)
    assert sorted(found) == list(range(10_000))
    if mode != "acks":
        assert found == list(range(10_000))
    assert sum(ack.count for ack in done.acks) == 10_000
    for ack in done.acks:
        if ack.contiguous and ack.sequence is not None:
            assert found[ack.sequence - ack.count : ack.sequence] == list(range(ack.row, ack.row + ack.count))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", [1500, 2000, 2500, 4000])
def test_acks_that_were_lost(
    server: Server, bulk: BulkConnection, unique: Callable[..., str], mode: str, place: int
) -> None:
    """Cut off while acks come back, nothing is stored twice."""
    name = unique()
    make_stream(bulk, name)
    with relayed(server) as relay:
        relay.cut_after = [place]
        with BulkConnection(relay.url(server)) as shaky:
            done = shaky.publish(name, rows(name, range(5000)), mode, ids=True)
    assert done.rows == 5000
    assert sorted(stored(bulk, name)) == list(range(5000))


@pytest.mark.parametrize("mode", ["fast", "atomic"])
@pytest.mark.parametrize("place", [5000, 100_000, 300_000])
def test_without_ids_nothing_is_sent_twice(
    server: Server, bulk: BulkConnection, unique: Callable[..., str], mode: str, place: int
) -> None:
    """Without ids a lost connection is an error: stored rows are stored, the rest is not, but for those in doubt."""
    name = unique()
    make_stream(bulk, name)
    with relayed(server) as relay:
        relay.cut_after_sent = [place]
        with (
            BulkConnection(relay.url(server)) as shaky,
            pytest.raises(PublishError, match="ids") as caught,
        ):
            shaky.publish(name, rows(name, range(10_000)), mode, ids=False)
    found = stored(bulk, name)
    assert found == list(range(len(found))), "a prefix, in order"
    told = {number for start, end in caught.value.stored for number in range(start, end)}
    doubtful = {number for start, end in caught.value.unknown for number in range(start, end)}
    assert told <= set(found) <= told | doubtful
    assert len(doubtful) <= 4000


def test_rows_that_may_be_stored_twice_are_sent_again(
    server: Server, bulk: BulkConnection, unique: Callable[..., str]
) -> None:
    """Fast ingest without ids outlives lost connections if rows may be stored twice: none is missing."""
    name = unique()
    make_stream(bulk, name)
    with relayed(server) as relay:
        relay.cut_after_sent = [300_000, 200_000]
        with BulkConnection(relay.url(server)) as shaky:
            assert shaky.publish(name, rows(name, range(10_000)), "fast", twice=True).rows == 10_000
        assert relay.cut_after_sent == [], "both cuts came while rows were sent"
    assert set(stored(bulk, name)) == set(range(10_000))


@pytest.mark.parametrize(("mode", "ids"), [("acks", None), ("atomic", None), ("fast", True)])
def test_only_rows_without_ids_may_be_stored_twice(
    bulk: BulkConnection, unique: Callable[..., str], mode: str, ids: bool | None
) -> None:
    """What stores each row once is not told to store it twice."""
    name = unique()
    make_stream(bulk, name)
    with pytest.raises(InputError, match="twice is for mode fast"):
        bulk.publish(name, rows(name, range(10)), mode, ids=ids, twice=True)
    assert stored(bulk, name) == []


@pytest.mark.parametrize("mode", MODES)
def test_the_time_of_the_caller_is_not_ours(bulk: BulkConnection, unique: Callable[..., str], mode: str) -> None:
    """Rows that are longer in the making than the timeout are no failure of the server, and are stored."""
    name = unique()
    make_stream(bulk, name)

    def slow() -> Iterator[pa.RecordBatch]:
        for start in (0, 10):
            threading.Event().wait(0.6)  # work that takes its time
            yield rows(name, range(start, start + 10))

    assert bulk.publish(name, slow(), mode, timeout=0.5).rows == 20
    assert stored(bulk, name) == list(range(20))


@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_stays_away(server: Server, bulk: BulkConnection, unique: Callable[..., str], mode: str) -> None:
    """Where the server does not come back in time, the error says what is stored and what is in doubt."""
    name = unique()
    make_stream(bulk, name)
    with relayed(server) as relay, BulkConnection(ConnectionOptions(relay.url(server), connect_timeout=5)) as shaky:

        def batches() -> Iterator[pa.RecordBatch]:
            yield rows(name, range(6000))
            relay.refusing = True
            relay.cut()
            yield rows(name, range(6000, 12_000))

        with pytest.raises(PublishError) as caught:
            shaky.publish(name, batches(), mode, ids=True, timeout=1.0)
    found = stored(bulk, name)
    told = {number for start, end in caught.value.stored for number in range(start, end)}
    doubtful = {number for start, end in caught.value.unknown for number in range(start, end)}
    assert told <= set(found) <= told | doubtful
    assert len(told) >= 1000


@pytest.mark.parametrize("mode", MODES)
def test_a_duplicate_window_that_is_too_short(
    server: Server, bulk: BulkConnection, unique: Callable[..., str], mode: str
) -> None:
    """Where the server has forgotten the ids, sending again is not safe, and is not done."""
    name = unique()
    make_stream(bulk, name, duplicate_window=100_000_000)
    with relayed(server) as relay, BulkConnection(ConnectionOptions(relay.url(server), connect_timeout=5)) as shaky:

        def batches() -> Iterator[pa.RecordBatch]:
            yield rows(name, range(3000))
            relay.refusing = True
            relay.cut()
            yield rows(name, range(3000, 12_000))

        with pytest.raises(PublishError, match="duplicate window is too short"):
            shaky.publish(name, batches(), mode, ids=True, timeout=5.0)
    found = stored(bulk, name)
    assert len(found) == len(set(found))
