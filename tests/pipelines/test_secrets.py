"""No secret of a login stands in what a pipeline is given, writes, logs or prints, but for what hands it on."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from penstock.options import ConnectionOptions
from penstock.pipelines import Project
from penstock.pipelines.process import _session
from penstock.pipelines.progress import read_progress
from penstock.pipelines.running import apply_topology
from penstock.server import Server
from tests.live.inprocess import Talk, invoke
from tests.pipelines.processes import connect_server
from tests.pipelines.projects import count, quick_project, send
from tests.secret_forms import files_in, leaks, leaks_in_files
from tests.support import Authority

PASSWORD = f"pass-w0rd-{secrets.token_urlsafe(16)}"
TOKEN = f"t0ken-{secrets.token_urlsafe(16)}"
ROWS = 20


@pytest.mark.timeout(600)  # Spark starts here, on a machine that may be busy
def test_a_pipeline_keeps_no_password_and_no_key(tmp_path: Path, eventually: Any, monkeypatch: pytest.MonkeyPatch):
    """While it runs: arguments, environment, order, event log and Spark's files. After it: storage, output and status.

    The context that tells Spark's workers where NATS is holds both, for its owner alone, and goes with the run.
    """
    authority = Authority(tmp_path / "authority")
    pair, ours = authority.issue("server", "127.0.0.1"), authority.issue("client")
    tls = f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}", ca_file: "{authority.ca}", verify: true }}'
    config = f"{tls}\nauthorization {{ users: [{{user: ann, password: '{PASSWORD}'}}] }}"
    secret = [PASSWORD, ours.key.read_text()]
    project, home, kept = quick_project(tmp_path / "work"), tmp_path / "home", tmp_path / "kept"
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))  # where the run puts its own folder
    certificates = {"tls_ca": str(authority.ca), "tls_cert": str(ours.cert), "tls_key": str(ours.key)}
    login = ["--user", "ann", "--password", PASSWORD]
    for name, value in certificates.items():
        login += [f"--{name.replace('_', '')}", value]

    with Server(sync="2m", auth=False, config=config) as server:
        url = f"tls://{server.nodes[0].address}"
        options = ConnectionOptions(url, user="ann", password=PASSWORD, **certificates)
        apply_topology(Project.load(project), options)
        send(options, [{"sensor": "s1", "value": 95.0}] * ROWS)

        def look(talk: Talk) -> None:
            """See the update done, then everything that is there while the run waits for the next one."""
            eventually(lambda: (read_progress(project / "storage") or {}).get("updates") == 1, 300)
            told = read_progress(project / "storage") or {}
            assert told["state"] == "running", told
            (scratch,) = place.glob("penstock-pipeline-*")
            context = scratch / "nats.json"
            assert all(leaks(context.read_bytes(), [item]) for item in secret), "the search would find them"
            assert context.stat().st_mode & 0o077 == 0
            shutil.copytree(scratch, kept, ignore=shutil.ignore_patterns("nats.json"))
            processes = list(_session(told["pid"]))
            assert len(processes) >= 2, "Java and Python"
            for pid in processes:
                about = Path(f"/proc/{pid}")
                assert not leaks((about / "cmdline").read_bytes() + (about / "environ").read_bytes(), secret)
            talk.interrupt()

        verb = ["pipeline", "run", str(project), "--continuous", "--pause", "5m", "--trace"]
        ran = invoke(url, *verb, *login, beside=look, HOME=str(home))
        assert ran.status == 0, ran.stderr
        assert count(options, "ALERTS", "alerts.*") == ROWS
        said = ran.stdout + ran.stderr
        for words in (["status"], ["status", "--json"]):
            done = invoke(url, "pipeline", words[0], str(project), *words[1:], *login, "--trace", HOME=str(home))
            assert done.status == 0, done.stderr
            assert "readings" in done.stdout
            said += done.stdout + done.stderr
    assert list(place.iterdir()) == [], "the context is gone"
    assert not leaks(said, secret)
    names = {file.name for folder in (kept, project) for file in files_in(folder)}
    assert {"order.json", "progress.json", "spark.log", "metadata"} <= names, names
    assert any(name.startswith("events_") for name in names), "the event log"
    for folder in (kept, project):
        assert not leaks_in_files(folder, secret)


@pytest.mark.timeout(600)  # Spark starts here, on a machine that may be busy
def test_a_spark_elsewhere_keeps_no_token(tmp_path: Path):
    """A run on a Spark Connect server, which has a login of its own: its log, events and files, and ours, hold none."""
    project, home, theirs = quick_project(tmp_path / "work"), tmp_path / "home", tmp_path / "theirs"
    (theirs / "events").mkdir(parents=True)
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": (theirs / "events").as_uri()}
    with Server(sync="2m", token=TOKEN) as server:
        url = server.url
        assert TOKEN in url
        apply_topology(Project.load(project), ConnectionOptions(url))
        send(ConnectionOptions(url), [{"sensor": "s1", "value": 95.0}] * ROWS)
        with connect_server(theirs, conf, environment={"NATS_URL": url}) as connect:
            verb = ["pipeline", "run", str(project), "--remote", connect, "--trace"]
            ran = invoke(url, *verb, HOME=str(home))
        assert ran.status == 0, ran.stderr
        assert count(ConnectionOptions(url), "ALERTS", "alerts.*") == ROWS
        said = ran.stdout + ran.stderr
        for words in (["status"], ["status", "--json"]):
            done = invoke(url, "pipeline", words[0], str(project), *words[1:], "--trace", HOME=str(home))
            said += done.stdout + done.stderr
    assert not leaks(said, [TOKEN])
    assert list((theirs / "events").iterdir())
    for folder in (theirs, project):
        assert not leaks_in_files(folder, [TOKEN])
