"""The same pipeline, unchanged, on three NATS nodes with TLS and credentials, and on a Spark standalone cluster."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import penstock
from penstock.pipelines import Table, run
from penstock.pipelines.new_project import write_project
from penstock.pipelines.project import Project
from penstock.pipelines.running import apply_topology
from penstock.server import Server
from tests.pipelines.processes import standalone
from tests.pipelines.projects import api, count, send
from tests.support import Authority, Operator


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

    with (
        Server(nodes=3, sync="2m", auth=False, config=operator.config(), tls_cert=pair.cert, tls_key=pair.key) as nats,
        standalone(tmp_path) as master,
    ):
        options = penstock.ConnectionOptions(nats.url, credentials=str(creds), tls_ca=str(authority.ca))
        apply_topology(Project.load(folder), options)
        send(options, sample)
        assert api(options, "STREAM.INFO.ALERTS")["config"]["num_replicas"] == 3
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
        }
        for number in range(2):
            outcome = run(folder, options=options, master=master, conf=conf, storage=tmp_path / "storage")
            assert outcome.ok
            assert (outcome.flows["alerts"].rows_out or 0) == (high if number == 0 else 0)
            assert count(options, "ALERTS", "alerts.*") == high
    assert sum(row["readings"] for row in Table(tmp_path / "storage" / "warehouse" / "totals").rows()) == len(sample)
    started = [path for path in tmp_path.glob("work*/app-*/*") if path.is_dir()]
    assert {path.parent.parent.name for path in started} == {"work1", "work2"}, "both workers had executors"
