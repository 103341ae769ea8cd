"""A real cluster: Spark's standalone master and two workers, reading from three NATS nodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

from penstock.errors import PenstockError, PublishError
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.live.connecting import free_port
from tests.spark.faults import Driver, audit, wait_for
from tests.spark.java import QUICK_JVM


@pytest.fixture
def standalone(tmp_path):
    """Start a master and two workers from pip's pyspark; give the master's address."""
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    port, processes = free_port(), []
    environment = {**os.environ, "SPARK_NO_DAEMONIZE": "1", "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM}

    def start(name: str, *arguments: str) -> None:
        with (tmp_path / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [spark_class, *arguments], env=environment, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True
            )
        processes.append(process)

    url = f"spark://127.0.0.1:{port}"
    ports = ("--port", str(port), "--webui-port", "0")
    start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", *ports)
    for name in ("worker1", "worker2"):
        folder = ("--work-dir", str(tmp_path / name))
        size = ("--cores", "1", "--memory", "600m", "--host", "127.0.0.1", "--webui-port", "0")
        start(name, "org.apache.spark.deploy.worker.Worker", *size, *folder, url)
    try:
        log = tmp_path / "master.log"
        wait_for(lambda: len(re.findall("Registering worker", log.read_text())) == 2, 60, log.read_text)
        yield url
    finally:
        for process in processes:
            try:
                os.killpg(process.pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(20)


@pytest.mark.timeout(300)
def test_two_workers_read_from_three_nodes(spark, standalone, tmp_path):
    """Both workers take tasks, the output is whole, and a node that dies on the way does not matter."""
    with Server(nodes=3, store=tmp_path / "store", sync="2m") as cluster:
        with BulkConnection(cluster.url) as bulk:
            config = {"name": "WIDE", "subjects": ["wide.>"], "num_replicas": 3, "allow_direct": True}
            wait_for(lambda: created(bulk, config), 60)
            rows = pa.record_batch({"data": pa.array([b"x" * 200] * 10_000, pa.binary())})
            # The other nodes hear of a new stream a moment later than the one that made it.
            wait_for(lambda: published(bulk, rows.slice(0, 1)), 20)
            bulk.publish("WIDE", rows.slice(1), subject="wide.a", timeout=60)
        driver = Driver(cluster.url, "WIDE", tmp_path, {"minPartitions": "4", "maxMessagesPerTrigger": "3000"})
        conf = {"spark__executor__memory": "500m", "spark__cores__max": "2", "spark__executor__cores": "1"}
        driver.start(master=standalone, conf={**conf, "spark__executor__extraJavaOptions": QUICK_JVM}, finish=True)
        try:
            wait_for(lambda: driver.batches() > 0 or not driver.alive, 120, driver.log_text)
            leader = leader_of(cluster)
            cluster.nodes[leader].kill()
            assert driver.process is not None
            assert driver.process.wait(150) == 0, driver.log_text()
            cluster.nodes[leader].start()
        finally:
            driver.kill()
        assert audit(spark, cluster, "WIDE", tmp_path) == 10_000
    worked = [list((tmp_path / name).glob("app-*/*/stderr")) for name in ("worker1", "worker2")]
    assert all(worked), "a worker had no executor"


def created(bulk: BulkConnection, config: dict[str, object]) -> bool:
    """Try to make the stream."""
    try:
        bulk.api("STREAM.CREATE.WIDE", config, timeout=20)
    except PenstockError:
        return False
    return True


def published(bulk: BulkConnection, rows: pa.RecordBatch) -> bool:
    """Try to publish."""
    try:
        bulk.publish("WIDE", rows, subject="wide.a", timeout=5)
    except PublishError:
        return False
    return True


def leader_of(cluster: Server) -> int:
    """Give the place of the node that leads the stream."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with BulkConnection(cluster.url) as bulk:
                leader = bulk.api("STREAM.INFO.WIDE", timeout=3.0).get("cluster", {}).get("leader")
        except PenstockError:  # nobody answers while a leader is being chosen
            continue
        names = [node.name for node in cluster.nodes]
        if leader in names:
            return names.index(leader)
    raise AssertionError("the stream has no leader")
