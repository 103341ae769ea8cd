"""Faults: whatever is killed, and whenever, the output holds every sequence exactly once."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.spark.faults import Driver, Traffic, audit, tasks, wait_for, write

STREAM = "FAULTS"


@pytest.fixture
def node(tmp_path):
    """A server of its own that may be killed; it syncs before it acknowledges, so that an ack means kept."""
    with Server(store=tmp_path / "store", sync="always") as running:
        with BulkConnection(running.url) as bulk:
            bulk.api(f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": [f"{STREAM}.>"], "allow_direct": True})
        yield running


def test_workers_and_the_node_are_killed(spark, node, tmp_path):
    """In one session: a Python worker dies and NATS dies and comes back; the query is started again where it ended."""

    def start():
        frame = spark.readStream.format("nats").option("url", node.url).option("stream", STREAM).load()
        return write(frame, tmp_path).start()

    def batches():
        return len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))

    traffic = Traffic(node.url, STREAM)
    traffic.start()
    query = start()
    try:
        wait_for(lambda: batches() > 2, 60)
        for pid in tasks(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.5)
        if not query.isActive or query.awaitTermination(5):  # a local master does not repeat a task
            query = start()
        done = batches()
        wait_for(lambda: batches() > done + 1, 60)
        node.nodes[0].kill()
        time.sleep(1.0)
        node.nodes[0].start()
        done = batches()
        wait_for(lambda: batches() > done + 2, 60, lambda: f"the query stopped: {query.exception()}")
        assert query.isActive  # it sat the outage out
        traffic.stop()
        query.processAllAvailable()
    finally:
        traffic.stop()
        query.stop()
    assert audit(spark, node, STREAM, tmp_path) > 1000


def test_the_driver_is_killed(spark, node, tmp_path):
    """A driver that dies in the middle of a batch is followed by one that goes on, and nothing is lost or doubled."""
    driver = Driver(node.url, STREAM, tmp_path, {"maxMessagesPerTrigger": "400"})
    traffic = Traffic(node.url, STREAM)
    traffic.start()
    try:
        driver.start()
        wait_for(lambda: driver.batches() > 2, 90, driver.log_text)
        time.sleep(random.uniform(0.0, 1.0))
    finally:
        driver.kill()
        traffic.stop()
    frame = spark.readStream.format("nats").option("url", node.url).option("stream", STREAM).load()
    assert write(frame, tmp_path).trigger(availableNow=True).start().awaitTermination(90)
    assert audit(spark, node, STREAM, tmp_path) > 400


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_twenty_kills(spark, node, tmp_path):
    """Driver, Python worker and NATS node, twenty times at random moments."""
    seed = int(os.environ.get("PENSTOCK_SEED", "0")) or random.randrange(2**31)
    print(f"seed {seed}; PENSTOCK_SEED={seed} repeats it")
    chance = random.Random(seed)
    driver = Driver(node.url, STREAM, tmp_path)
    traffic = Traffic(node.url, STREAM)
    traffic.start()
    try:
        for number, kind in enumerate(["driver", "worker", "node"] * 6 + ["driver", "worker"], 1):
            if not driver.alive:
                driver.start()
            done = driver.batches()
            wait_for(lambda done=done: driver.batches() > done + 1 or not driver.alive, 120, driver.log_text)
            time.sleep(chance.uniform(0.0, 2.0))
            if kind == "driver":
                driver.kill()
            elif kind == "worker" and driver.alive:
                driver.kill_worker(chance)
            elif kind == "node":
                node.nodes[0].kill()
                time.sleep(chance.uniform(0.0, 3.0))
                node.nodes[0].start()
            print(f"kill {number}: {kind}, {driver.batches()} batches", flush=True)
    finally:
        driver.kill()
        traffic.stop()
    driver.start(finish=True)
    assert driver.process is not None
    try:
        assert driver.process.wait(300) == 0, driver.log_text()
    finally:
        driver.kill()
    print(f"audited {audit(spark, node, STREAM, tmp_path)} messages")
