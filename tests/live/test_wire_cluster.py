"""Reading and publishing while leaders change and servers die, on a real cluster of three."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import JetStreamError, PenstockError
from penstock.options import ConnectionOptions
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.live.relay import fill, make_stream, numbers, rows

COUNT = 12_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    with Server(nodes=3, sync="2m", start_timeout=60) as running:
        yield running


def connected(cluster: Server, *nodes: int) -> BulkConnection:
    """Connect to some of the nodes; the others are learned from the cluster."""
    urls = ",".join(f"nats://{cluster.nodes[node].address}" for node in nodes)
    return BulkConnection(ConnectionOptions(urls, token=cluster.token, connect_timeout=10))


def replicated(bulk: BulkConnection, name: str, eventually: Callable[..., Any]) -> None:
    """Make a stream of three replicas, with a leader and all others current; the test before may have killed nodes."""

    def whole() -> bool:
        try:
            make_stream(bulk, name, num_replicas=3, storage="file")
            placed = bulk.api(f"STREAM.INFO.{name}")["cluster"]
        except PenstockError:
            return False
        peers = placed.get("replicas") or []
        return bool(placed.get("leader")) and len(peers) == 2 and all(peer.get("current") for peer in peers)

    eventually(whole, timeout=90)


def step_down(bulk: BulkConnection, name: str, eventually: Callable[..., Any]) -> None:
    """Have the stream's leader changed, and wait for the new one."""

    def leader() -> str:
        try:
            found: str = bulk.api(f"STREAM.INFO.{name}", timeout=2)["cluster"].get("leader")
        except PenstockError:
            return ""
        return found

    before = eventually(leader)
    bulk.api(f"STREAM.LEADER.STEPDOWN.{name}", timeout=10)
    eventually(lambda: leader() not in ("", None, before))


def test_a_read_over_leader_changes(
    cluster: Server, unique: Callable[..., str], eventually: Callable[..., Any]
) -> None:
    """The stream's leader changes again and again, and the read gives every message once."""
    name = unique()
    with connected(cluster, 0) as bulk, connected(cluster, 1) as other:
        replicated(bulk, name, eventually)
        fill(bulk, name, COUNT, size=100)
        found = []
        for place, batch in enumerate(bulk.read(name, batch_rows=2000, window_bytes=200_000, timeout=60)):
            found += numbers([batch])
            if place % 2 == 0:
                step_down(other, name, eventually)
        assert found == list(range(1, COUNT + 1))


def test_a_read_while_servers_die(cluster: Server, unique: Callable[..., str], eventually: Callable[..., Any]) -> None:
    """Each server is killed and started again, the one that serves us too; its consumer dies with it."""
    name = unique()
    with connected(cluster, 0) as bulk:
        replicated(bulk, name, eventually)
        fill(bulk, name, COUNT, size=100)
        found = []
        for place, batch in enumerate(bulk.read(name, batch_rows=2000, window_bytes=200_000, timeout=90)):
            found += numbers([batch])
            if place in (0, 2, 4):
                node = cluster.nodes[place // 2]
                node.kill()
                node.start()
        assert found == list(range(1, COUNT + 1))
        assert numbers(bulk.read(name, 100, 200)) == list(range(100, 200)), "short ranges too"


@pytest.mark.parametrize("mode", ["acks", "fast", "atomic", "twice"])
def test_publishing_over_a_leader_change_and_a_death(
    cluster: Server, unique: Callable[..., str], eventually: Callable[..., Any], mode: str
) -> None:
    """Rows that are published while the leader changes and our server dies are stored, and with ids once each."""
    name = unique()
    with connected(cluster, 0, 1, 2) as bulk, connected(cluster, 1, 2) as other:
        replicated(other, name, eventually)

        def batches() -> Iterator[pa.RecordBatch]:
            yield rows(name, range(3000), size=100)
            step_down(other, name, eventually)
            yield rows(name, range(3000, 6000), size=100)
            mine = next(node for node in cluster.nodes if node.address.endswith(f":{bulk.wire.info['port']}"))
            mine.kill()
            mine.start()
            yield rows(name, range(6000, 9000), size=100)

        once = mode != "twice"
        how = mode if once else "fast"
        done = bulk.publish(name, batches(), how, ids=once, twice=not once, timeout=60)
        assert done.rows == 9000

        def read_back() -> list[int] | None:
            try:
                found = [
                    int(data) for batch in bulk.read(name, timeout=60) for data in batch.column("data").to_pylist()
                ]
            except JetStreamError:
                return None
            return found if len(found) >= 9000 else None  # a leader that is new names an early end for a moment

        found = eventually(read_back)
        assert sorted(found if once else set(found)) == list(range(9000))
