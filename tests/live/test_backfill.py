"""Queries that begin in a backup, a store or an archive, and go on with the stream on the server; Spark left out."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import DataLossError, DeniedError, InputError, OptionError, StoreDamagedError
from penstock.jetstream import snapshot
from penstock.server import Server
from tests.live.backfilling import BackfillQuery, archive_once, back_up, read_joined
from tests.live.querying import Query, read
from tests.spark.conftest import Streams

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "backups"

NewQuery = Callable[..., BackfillQuery]


@pytest.fixture
def begin(server: Server) -> Iterator[NewQuery]:
    """Queries with a past, which are stopped after the test."""
    made = []

    def start(stream: str, past: str, **options: str) -> BackfillQuery:
        made.append(BackfillQuery(server.url, stream=stream, backfill=past, **options))
        return made[-1]

    yield start
    for item in made:
        item.stop()


@pytest.fixture
def backed_up(streams: Streams, unique: Callable[..., str], tmp_path: Path) -> tuple[str, str]:
    """A stream with a backup of its first hundred messages, and fifty more."""
    name = streams.make(unique("B"))
    streams.fill(name, 100)
    past = back_up(streams.url, name, tmp_path / "backup")
    streams.fill(name, 50)
    return name, past


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["sequence"] for row in rows]


def test_a_query_begins_in_a_backup_and_goes_on_live(begin: NewQuery, backed_up: tuple[str, str], streams: Streams):
    """Each sequence comes once, also if the stream has dropped what the backup holds; then what comes is read."""
    name, past = backed_up
    streams.api(f"STREAM.PURGE.{name}", {"seq": 101})
    query = begin(name, past)
    assert query.all() == list(range(1, 151))
    streams.fill(name, 3)
    assert query.all() == [151, 152, 153]


def test_backfill_leaves_the_offset_as_it_is(begin: NewQuery, backed_up: tuple[str, str], query: Callable[..., Query]):
    """The offset of a query with a backup is that of one without, and each goes on where the other was."""
    name, past = backed_up
    backfilled, live = begin(name, past, maxMessagesPerTrigger="30"), query(stream=name, maxMessagesPerTrigger="30")
    assert backfilled.batch() == live.batch() == list(range(1, 31))
    assert backfilled.offset == live.offset
    backfilled.offset = live.offset
    assert backfilled.batch() == live.batch() == list(range(31, 61))


def test_limits_of_a_trigger_hold_in_a_backup(begin: NewQuery, backed_up: tuple[str, str], streams: Streams):
    """No micro-batch has more messages than asked for, in the backup, at its end and behind it."""
    name, past = backed_up
    query, sizes = begin(name, past, maxMessagesPerTrigger="30"), []
    while (batch := query.batch()) is not None:
        sizes.append(len(batch))
    assert sizes == [30, 30, 30, 10, 30, 20]
    query = begin(name, past, maxBytesPerTrigger="1k")
    first = query.batch() or []
    assert 1 <= len(first) < 40
    assert first + query.all() == list(range(1, 151))


def test_start_in_a_backup(begin: NewQuery, backed_up: tuple[str, str], streams: Streams):
    """A sequence, a time and a subject are found in the backup if the stream has dropped them; `new` begins live."""
    name, past = backed_up
    streams.fill(name, 1, subject="other")
    time = read_joined(streams.url, stream=name, backfill=past, start="40", end="41")[0]["time"].isoformat()
    streams.api(f"STREAM.PURGE.{name}", {"seq": 101})
    assert begin(name, past, start="95").all() == list(range(95, 152))
    assert begin(name, past, start=time).all()[0] in range(35, 41)
    assert begin(name, past, start="new").all() == []
    assert begin(name, past, subjects=f"{name}.other").all() == [151]
    assert begin(name, past, subjects=f"{name}.x", start="last").all() == [150]
    with pytest.raises(InputError, match="ends with 151"):
        begin(name, past, start="500").all()


def test_available_now_with_a_backup(begin: NewQuery, backed_up: tuple[str, str], streams: Streams):
    """What comes after the query began is left to the next run."""
    name, past = backed_up
    query = begin(name, past)
    query.reader.prepareForTriggerAvailableNow()
    streams.fill(name, 5)
    assert query.all() == list(range(1, 151))


def test_a_batch_read_gives_one_table(backed_up: tuple[str, str], streams: Streams):
    """Backup and stream are one table: the same rows as the stream had, in tasks as many as asked for, from to."""
    name, past = backed_up
    whole = read_joined(streams.url, stream=name, backfill=past)
    streams.api(f"STREAM.PURGE.{name}", {"seq": 61})
    assert read_joined(streams.url, stream=name, backfill=past, minPartitions="4") == whole
    assert numbers(whole) == list(range(1, 151))
    assert numbers(read_joined(streams.url, stream=name, backfill=past, start="99", end="103")) == [99, 100, 101, 102]
    assert read(streams.url, stream=name) == list(range(61, 151))


def test_what_was_deleted_since_the_backup_is_there(begin: NewQuery, backed_up: tuple[str, str], streams: Streams):
    """A backfill gives what was there at the time of the backup; behind it, what is there now."""
    name, past = backed_up
    for sequence in (7, 107):
        streams.api(f"STREAM.MSG.DELETE.{name}", {"seq": sequence})
    assert begin(name, past).all() == [place for place in range(1, 151) if place != 107]


def test_markers_in_a_backup_are_left_out(
    begin: NewQuery, streams: Streams, unique: Callable[..., str], tmp_path: Path
):
    """The sink's own messages are no rows, as in a read of the stream."""
    name = unique("B")
    streams.make(name, subjects=[f"{name}.>", f"$PENSTOCK.{name}.>"])
    streams.fill(name, 3)

    async def mark() -> None:
        async with await penstock.connect(streams.url) as client:
            await client.jetstream().publish(f"$PENSTOCK.{name}.q.head", b"{}")

    asyncio.run(mark())
    past = back_up(streams.url, name, tmp_path / "backup")
    streams.fill(name, 2)
    assert begin(name, past).all() == [1, 2, 3, 5, 6]


def test_a_gap_between_backup_and_stream(begin: NewQuery, backed_up: tuple[str, str], streams: Streams):
    """What neither holds is DataLossError with its range before anything is read; skipped, it is counted."""
    name, past = backed_up
    streams.api(f"STREAM.PURGE.{name}", {"seq": 104})
    with pytest.raises(DataLossError, match=r"\[101, 104\)") as raised:
        begin(name, past)
    assert (raised.value.start, raised.value.end) == (101, 104)
    with pytest.raises(DataLossError, match=r"\[101, 104\)"):
        read_joined(streams.url, stream=name, backfill=past)
    assert numbers(read_joined(streams.url, stream=name, backfill=past, end="101")) == list(range(1, 101))
    assert begin(name, past, start="104").all() == list(range(104, 151))
    query = begin(name, past, failOnDataLoss="false")
    assert query.all() == [*range(1, 101), *range(104, 151)]
    assert query.offset["streams"][name]["skipped"] == 3


def test_a_gap_that_opens_while_the_backup_is_read(begin: NewQuery, backed_up: tuple[str, str], streams: Streams):
    """A stream that drops what follows the backup, while that is still read, is told at the next micro-batch."""
    name, past = backed_up
    query = begin(name, past, maxMessagesPerTrigger="30")
    query.batch()
    streams.api(f"STREAM.PURGE.{name}", {"seq": 110})
    with pytest.raises(DataLossError, match=r"\[101, 110\)"):
        query.batch()


def test_a_backup_of_another_stream(begin: NewQuery, backed_up: tuple[str, str], streams: Streams, unique: Any):
    """A backup of a stream of another name is refused, and so is one of a stream that was made anew since."""
    name, past = backed_up
    other = streams.make(unique("B"))
    with pytest.raises(InputError, match=f"a backup of {name} and not of {other}"):
        begin(other, past)
    streams.api(f"STREAM.DELETE.{name}")
    streams.made.remove(name)
    streams.make(name)
    for more, why in ((10, "ends with 10"), (140, "message 100 is another one")):
        streams.fill(name, more)
        with pytest.raises(InputError, match=why):
            begin(name, past)
        with pytest.raises(InputError, match=why):
            read_joined(streams.url, stream=name, backfill=past, failOnDataLoss="false")
    streams.api(f"STREAM.PURGE.{name}", {"seq": 101})
    with pytest.raises(InputError, match=r"no message is in both.* older than the stream"):
        begin(name, past)


def test_a_stream_made_anew_under_a_query_with_a_backup(begin: NewQuery, backed_up: tuple[str, str], streams: Streams):
    """A query does not put the backup of the old stream before the new one, whatever may be lost."""
    name, past = backed_up
    query = begin(name, past, failOnDataLoss="false", maxMessagesPerTrigger="30")
    query.batch()
    streams.api(f"STREAM.DELETE.{name}")
    streams.made.remove(name)
    streams.make(name)
    streams.fill(name, 160)
    with pytest.raises(InputError, match="message 100 is another one"):
        query.batch()


def test_a_stream_restored_from_the_backup_is_the_same(begin: NewQuery, backed_up: tuple[str, str], streams: Streams):
    """A stream that was restored has another time of creation and the same messages: the backup is its past."""
    name, past = backed_up
    streams.api(f"STREAM.DELETE.{name}")

    async def restore() -> None:
        async with await penstock.connect(streams.url) as client:
            await snapshot.restore(client, Path(past))

    asyncio.run(restore())
    streams.fill(name, 5)
    assert begin(name, past).all() == list(range(1, 106))


def test_a_stream_that_was_set_back_behind_its_backup(begin: NewQuery, streams: Streams, unique: Any, tmp_path: Path):
    """A stream that was restored to less than the backup holds is refused, also when it has grown again."""
    name = streams.make(unique("B"))
    streams.fill(name, 10)
    older = back_up(streams.url, name, tmp_path / "older")
    streams.fill(name, 10)
    newer = back_up(streams.url, name, tmp_path / "newer")
    streams.api(f"STREAM.DELETE.{name}")

    async def restore() -> None:
        async with await penstock.connect(streams.url) as client:
            await snapshot.restore(client, Path(older))

    asyncio.run(restore())
    with pytest.raises(InputError, match="ends with 10 and"):
        begin(name, newer)
    streams.fill(name, 30)
    with pytest.raises(InputError, match="message 20 is another one"):
        begin(name, newer)
    assert begin(name, older).all() == list(range(1, 41))


def test_a_backup_that_says_when_its_stream_was_made(begin: NewQuery, streams: Streams, tmp_path: Path):
    """Where no message is in both, the time of creation decides; backups of servers before 2.15 have it."""
    past = str(GOLDEN / "server_2_10")
    name = json.loads((GOLDEN / "server_2_10" / "backup.json").read_text())["config"]["name"]

    async def restore() -> None:
        async with await penstock.connect(streams.url) as client:
            await snapshot.restore(client, Path(past))

    asyncio.run(restore())
    streams.made.append(name)
    streams.api(f"STREAM.PURGE.{name}")
    streams.fill(name, 2)
    assert begin(name, past).all() == [1, 2, 3, 4, 5]
    streams.api(f"STREAM.DELETE.{name}")
    streams.made.remove(name)
    streams.make(name, first_seq=4)
    streams.fill(name, 2)
    with pytest.raises(InputError, match=r"was made at .*no message is in both"):
        begin(name, past)


def test_a_backup_that_changes_between_starts(begin: NewQuery, backed_up: tuple[str, str], streams: Streams):
    """A newer or an older backup changes nothing in what is read; one that is gone is an error."""
    name, past = backed_up
    query = begin(name, past, maxMessagesPerTrigger="30")
    assert query.batch() == list(range(1, 31))
    newer = back_up(streams.url, name, Path(past).parent / "newer")
    query.restart(stream=name, backfill=newer, maxMessagesPerTrigger="90")
    assert query.batch() == list(range(31, 121))
    query.restart(stream=name, backfill=past)  # it ends before the place of the query
    assert query.all() == list(range(121, 151))
    shutil.rmtree(past)
    query.restart(stream=name, backfill=past)
    with pytest.raises(InputError, match="is not there"):
        query.batch()


def test_a_backup_that_is_replaced_under_a_query(begin: NewQuery, backed_up: tuple[str, str], streams: Streams):
    """Files that are changed after a query opened them are told, and read again after its next start."""
    name, past = backed_up
    query = begin(name, past, maxMessagesPerTrigger="30")
    assert query.batch() == list(range(1, 31))
    shutil.rmtree(past)
    back_up(streams.url, name, Path(past))
    with pytest.raises(InputError, match="was changed or removed"):
        query.batch()
    query.restart(stream=name, backfill=past)
    assert query.all() == list(range(31, 151))


def test_a_replay_over_the_end_of_a_backup_is_the_same_rows(begin: NewQuery, backed_up: tuple[str, str]):
    """A micro-batch that was planned without the backup, or with another one, is read again as it was."""
    name, past = backed_up
    query = begin(name, past)
    ends = []
    while query.batch() is not None:
        ends.append(query.offset)
    fresh = begin(name, past)
    tasks = fresh.reader.partitions(fresh.offset, ends[-1])
    found = [place for task in tasks for batch in fresh.reader.read(task) for place in batch["sequence"].to_pylist()]
    assert found == list(range(1, 151))


def test_a_backup_with_damage(begin: NewQuery, backed_up: tuple[str, str]):
    """A backup that is not whole is refused, whatever may be lost: nothing says how far it reaches."""
    name, past = backed_up
    archive = next(Path(past).glob("stream.*.s2"))
    content = archive.read_bytes()
    archive.write_bytes(content[:-20])
    with pytest.raises((StoreDamagedError, DataLossError), match="damaged"):
        begin(name, past)


def test_a_store_goes_before_the_stream(tmp_path: Path):
    """The store of a server that was stopped is a past, too; so is its copy, while the server goes on."""
    store = tmp_path / "store"
    with Server(store=store, sync="2m") as server:
        streams = Streams(server.url)
        streams.make("S")
        streams.fill("S", 20)
    shutil.copytree(store, tmp_path / "copy")
    with Server(store=store, sync="2m") as server:
        streams = Streams(server.url)
        streams.fill("S", 5)
        streams.api("STREAM.PURGE.S", {"seq": 15})
        past = {"stream": "S", "backfill": str(tmp_path / "copy")}
        assert numbers(read_joined(server.url, **past)) == list(range(1, 26))
        streams.api("STREAM.PURGE.S", {"seq": 21})  # the store says when its stream was made
        assert numbers(read_joined(server.url, **past)) == list(range(1, 26))


def test_what_does_not_go_with_a_backup():
    """Several streams, acks and a second past are refused before anything is opened."""
    from penstock.spark.source_options import SourceOptions

    for options in (
        {"streams": "A,B", "backfill": "x"},
        {"stream": "A", "backfill": "x", "archive": "y"},
        {"stream": "A", "backfill": "x", "backup": "y"},
        {"stream": "A", "backfill": "x", "ack": "commit", "consumer": "c"},
    ):
        with pytest.raises(OptionError):
            SourceOptions.parse(options)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Streams]:
    """A server with a user `reader` that may read, but not get single messages of the leader."""
    users = "{user: all, password: p}, "
    users += "{user: reader, password: p, permissions: {publish: {deny: '$JS.API.STREAM.MSG.GET.>'}}}"
    with Server(config=f"authorization {{ users: [{users}] }}", auth=False, sync="2m") as running:
        yield Streams(f"nats://all:p@{running.nodes[0].address}")


def test_a_login_that_may_not_compare(guarded: Streams, tmp_path: Path):
    """Whoever may not look at the messages to compare is told so; no past is taken on trust."""
    guarded.make("G")
    guarded.fill("G", 10)
    past = back_up(guarded.url, "G", tmp_path / "backup")
    url = guarded.url.replace("all:p@", "reader:p@")
    with pytest.raises(DeniedError, match=r"STREAM\.MSG\.GET"):
        read_joined(url, stream="G", backfill=past, patience="1s")
    archive_once(guarded.url, "G", tmp_path / "archive")
    with pytest.raises(DeniedError, match=r"STREAM\.MSG\.GET"):
        archive_once(url, "G", tmp_path / "archive")
