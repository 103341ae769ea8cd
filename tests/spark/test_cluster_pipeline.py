"""The same pipeline, unchanged, on three NATS nodes with TLS and credentials, and on a Spark standalone cluster."""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

import penstock
from penstock.connection import api_request
from penstock.jetstream import Publisher
from penstock.pipelines import Table, run
from penstock.pipelines.project import Project
from penstock.pipelines.running import apply_topology
from penstock.pipelines.template import write_project
from penstock.server import Server
from penstock.wire.bulk import BulkConnection
from tests.spark.java import java_home
from tests.support import Authority, Operator


@contextmanager
def spark_process(folder: Path, name: str, ready: str, *arguments: str) -> Iterator[str]:
    """Start one of Spark's own processes, and give what its log says when it is ready."""
    log = folder / f"{name}.log"
    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(home), "JAVA_HOME": java_home() or "", "SPARK_LOCAL_IP": "127.0.0.1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *arguments],
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 120
        while not (found := re.search(ready, log.read_text())):
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"{name} is not ready"
            time.sleep(0.1)
        yield found.group(1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@contextmanager
def spark_cluster(folder: Path) -> Iterator[str]:
    """A master and two workers on loopback; gives the master's URL."""
    with ExitStack() as stack:
        master = stack.enter_context(
            spark_process(
                folder,
                "master",
                r"Starting Spark master at (spark://\S+)",
                "org.apache.spark.deploy.master.Master",
                *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
            )
        )
        for number in (1, 2):
            work = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work{number}"), "--webui-port", "0")
            stack.enter_context(
                spark_process(
                    folder,
                    f"worker{number}",
                    r"(Successfully registered with master)",
                    "org.apache.spark.deploy.worker.Worker",
                    *("--host", "127.0.0.1", *work, master),
                )
            )
        yield master


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_the_same_pipeline_on_clusters(tmp_path: Path):
    """Every alert is in the replicated stream once, also after a second run, with tasks on two workers."""
    operator, authority = Operator(), Authority(tmp_path / "ca")
    pair = authority.issue("server", "127.0.0.1", "localhost")
    creds = tmp_path / "user.creds"
    creds.write_text(operator.credentials())
    folder = write_project(tmp_path, "sensors")
    topology = folder / "topology.toml"
    topology.write_text(topology.read_text().replace("allow_direct = true", "allow_direct = true\nnum_replicas = 3"))
    sample = runpy.run_path(str(folder / "traffic.py"))["sample"](500)
    high = sum(reading["value"] > 90 for reading in sample)

    async def publish(options: penstock.ConnectionOptions) -> dict[str, object]:
        client = await penstock.connect(options)
        try:
            async with Publisher(client, "READINGS") as publisher:
                for number, reading in enumerate(sample):
                    await publisher.send(
                        f"readings.{reading['sensor']}", json.dumps(reading).encode(), id=f"r-{number}"
                    )
            return await api_request(client, "STREAM.INFO.ALERTS")
        finally:
            await client.close()

    with (
        Server(nodes=3, sync="2m", auth=False, config=operator.config(), tls_cert=pair.cert, tls_key=pair.key) as nats,
        spark_cluster(tmp_path) as master,
    ):
        options = penstock.ConnectionOptions(nats.url, credentials=str(creds), tls_ca=str(authority.ca))
        apply_topology(Project.load(folder), options)
        info = asyncio.run(publish(options))
        assert info["config"]["num_replicas"] == 3
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
        }
        for _ in range(2):
            outcome = run(folder, options=options, master=master, conf=conf, storage=tmp_path / "storage")
            assert outcome.ok
            with BulkConnection(options) as bulk:
                found = sum(batch.num_rows for batch in bulk.read("ALERTS", subjects="alerts.*", on_loss=print))
            assert found == high
    assert sum(row["readings"] for row in Table(tmp_path / "storage" / "warehouse" / "totals").rows()) == len(sample)
    started = [path for path in tmp_path.glob("work*/app-*/*") if path.is_dir()]
    assert {path.parent.parent.name for path in started} == {"work1", "work2"}, "both workers had executors"
