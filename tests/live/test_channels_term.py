"""A gateway that is told to end, as a process by SIGTERM, does so within five seconds, whatever happens around it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time

import pytest

from penstock.server import Server
from tests.live.stan import Got, cluster_of
from tests.live.test_channels_faults import Child, gateways, publish_surely

BOUND = 5.0  # seconds: what is promised, and no measure of this machine
CASES = ("load", "standby", "frozen", "dead", "waking")
LARGE = 100 * 1024


async def terminate(child: Child) -> float:
    """Tell a gateway to end, and give how long that took."""
    began = time.monotonic()
    child.process.send_signal(signal.SIGTERM)
    drained = asyncio.ensure_future(child.process.stderr.read())  # a full pipe must not hold it up
    try:
        await asyncio.wait_for(child.process.wait(), 60)
    finally:
        said = (await drained).decode()
    assert "Traceback" not in said, said
    return time.monotonic() - began


@pytest.mark.parametrize("cases", [("frozen",), pytest.param(CASES * 6, marks=pytest.mark.heavy)], ids=len)
async def test_a_stop_within_five_seconds(unique, tmp_path, cases):
    """Stops at random moments under load: of a leader, of a standby, with a server that is frozen, dead or waking."""
    chance = random.Random(len(cases))
    took: dict[str, list[float]] = {case: [] for case in cases}
    with Server(store=tmp_path / "store", sync="2m") as server:
        node = server.nodes[0]
        async with cluster_of(server.url, unique("c")) as stan, gateways(stan, tmp_path) as start:
            gateway = await start("--standby", "--lease", "1s", ready="it is our turn")
            client = await stan.client(ack_timeout=1.0, ping_interval=600, connect_timeout=10.0)
            for number in range(4):
                await client.subscribe("foo", Got(), durable=f"d{number}", ack_wait=1)
            await client.subscribe("large", Got(), manual_acks=True, ack_wait=1)
            other = await stan.client("other", ack_timeout=60.0, ping_interval=600, connect_timeout=10.0)
            for _ in range(100):  # ten megabytes a second, again and again: more than any buffer takes
                await other.publish("large", b"x" * LARGE)
            load = asyncio.ensure_future(publish_surely(client, "foo", range(10**9), window=64))
            try:
                for place, case in enumerate(cases, start=1):
                    flags = ("--standby", "--lease", "1s")
                    child = await start(*flags, ready="Standing by") if case == "standby" else gateway
                    await asyncio.sleep(chance.random())
                    if case in ("frozen", "waking"):
                        os.kill(node.pid, signal.SIGSTOP)
                        await asyncio.sleep(3 * chance.random())
                    elif case == "dead":
                        await asyncio.to_thread(node.kill)
                    if case == "waking":
                        os.kill(node.pid, signal.SIGCONT)
                    took[case].append(await terminate(child))
                    if case == "frozen":
                        os.kill(node.pid, signal.SIGCONT)
                    elif case == "dead":
                        await asyncio.to_thread(node.start)
                    if child is gateway and place < len(cases):
                        gateway = await start(*flags, ready="it is our turn")
            finally:
                load.cancel()
                os.kill(node.pid, signal.SIGCONT)
    assert all(seconds < BOUND for times in took.values() for seconds in times), took
