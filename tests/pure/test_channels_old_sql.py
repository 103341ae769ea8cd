"""The SQL store of NATS Streaming: what the real server wrote to PostgreSQL, read by way of SQLite."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3

import pytest

from penstock.channels.old_durables import from_store
from penstock.channels.old_sql import OldDatabase
from penstock.channels.old_store import OldStore
from penstock.errors import InputError, StoreDamagedError, StoreInUseError
from tests.old_store import GOLDEN, fields


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "nss.db"
    with sqlite3.connect(path) as database:
        database.executescript(GOLDEN.with_suffix(".sql").read_text())
    database.close()
    return path


@pytest.fixture
def change(path):
    """Give a function that runs a statement as the old server would."""

    def run(statement: str, *values: object) -> None:
        with sqlite3.connect(path) as database:
            database.execute(statement, values)
        database.close()

    return run


@pytest.fixture
def opened(path):
    made: list[OldDatabase] = []

    def run() -> OldDatabase:
        made.append(OldDatabase(f"sqlite3:database={path}"))
        return made[-1]

    yield run
    for database in made:
        database.close()


def test_a_database_of_the_real_server(opened):
    """Database and files of the real server, after the same events, tell the same of channels and durables."""
    database, files = opened(), OldStore(GOLDEN)
    assert (database.cluster_id, database.channels()) == (files.cluster_id, files.channels())
    assert database.clients() == files.clients()
    ours, theirs = (from_store(kept, kept.channels()) for kept in (database, files))
    assert ours.durables == theirs.durables
    assert (ours.others, ours.notes) == (2, ())

    async def read(kept, channel: str):
        ends = await kept.ends(channel)
        return [item async for batch in kept.read(channel, *ends) for item in batch] if ends else []

    for channel in ("orders", "orders.eu", "quiet"):
        found = [dataclasses.replace(item, timestamp=0) for item in asyncio.run(read(database, channel))]
        kept = [dataclasses.replace(item, timestamp=0) for item in asyncio.run(read(files, channel))]
        assert found == [item for item in kept if channel != "orders" or item.sequence > 1]  # a limit dropped it


def test_rows_count_in_order(opened, change):
    """An ack counts for what stands before it: a message that came back to a member later is pending again."""
    change("DELETE FROM SubsPending WHERE subid = 1")
    for row, seq, last, pending, acks in (
        (12, 0, 12, b"[3]", b""),
        (10, 0, 11, b"[3,4]", None),
        (11, 0, 0, b"", b"[3]"),
    ):
        change("INSERT INTO SubsPending VALUES (1, ?, ?, ?, ?, ?)", row, seq, last, pending, acks)
    change("INSERT INTO SubsPending VALUES (1, 13, 14, 0, NULL, NULL)")
    database = opened()
    database.channels()
    found = next(item for item in database.subscriptions("orders") if item.durable == "d1")
    assert (found.pending, found.last_sent) == ({3, 4, 14}, 14)


def test_deleted_things_are_gone(opened, change):
    """Channels and subscriptions that are marked as deleted are not there."""
    change("UPDATE Channels SET deleted = 1 WHERE name = 'quiet'")
    change("UPDATE Subscriptions SET deleted = 1 WHERE subid = 1")
    database = opened()
    assert database.channels() == ["orders", "orders.eu"]
    assert [item.id for item in database.subscriptions("orders")] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE Subscriptions SET proto = X'ff' WHERE subid = 1", "subscription of orders that cannot be read"),
        ("UPDATE SubsPending SET pending = X'5b' WHERE subid = 1", "subscription of orders that cannot be read"),
        ("UPDATE Channels SET name = 'a..b' WHERE id = 1", r"channel 'a\.\.b'"),
        ("UPDATE Messages SET data = X'ff' WHERE seq = 5", "message 5 of orders that cannot be read"),
        ("UPDATE Messages SET seq = 99 WHERE seq = 5", "message 5 of orders in the place of 99"),
    ],
)
def test_damage_is_told(opened, change, statement, words):
    """What cannot be read is named, and not skipped."""
    change(statement)

    async def read(database: OldDatabase) -> None:
        from_store(database, database.channels())
        async for _ in database.read("orders", 1, 1000):
            pass

    with pytest.raises(StoreDamagedError, match=words):
        asyncio.run(read(opened()))


def test_a_server_that_writes_meanwhile(opened, change):
    """What a server writes while the database is read is told."""
    database = opened()
    database.check_unused()
    database.check_unchanged()
    change("UPDATE Subscriptions SET lastsent = 11 WHERE subid = 3")
    with pytest.raises(StoreInUseError, match="has changed"):
        database.check_unchanged()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("sqlite3", "names no module"),
        ("os.system;:a=b", "names no module"),
        ("sqlite3:secret", "does not say what to connect to"),
        ("no_such_module:a=secret", "no module no_such_module"),
        ("sqlite3:database=/nowhere/secret", "sqlite3 does not connect: OperationalError"),
        ("sqlite3:nonsense=secret", "sqlite3 does not connect: TypeError"),
        ("sqlite3:database=:memory:", "table ServerInfo .* cannot be read"),
    ],
)
def test_wrong_sources(source, words):
    """What is no database is refused in a sentence that shows nothing of the source."""
    with pytest.raises(InputError, match=words) as error:
        OldDatabase(source)
    assert "secret" not in str(error.value)


def test_a_server_of_a_cluster(opened, change):
    """A database of a server that ran with -clustered has no subscriptions: that is said."""
    change("UPDATE ServerInfo SET proto = ?", fields(f1="old", f9="node"))
    with pytest.raises(InputError, match="-clustered"):
        opened()
    change("DELETE FROM ServerInfo")
    with pytest.raises(InputError, match="has no server"):
        opened()
