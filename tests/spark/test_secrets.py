"""No secret that an option of the format "nats" carries stands in what Spark shows, logs or keeps."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import OptionError
from penstock.pipelines.process import _session
from penstock.server import Server
from penstock.spark.options import connection_fields
from penstock.wire.bulk import BulkConnection
from tests.secret_forms import files_in, leaks, leaks_in_files
from tests.spark import secret_job
from tests.spark.conftest import ROOT
from tests.support import Authority, Key, Operator

PASSWORD = f"pass-w0rd-{secrets.token_urlsafe(16)}"
TOKEN = f"t0ken-{secrets.token_urlsafe(16)}"
KEY = Key.make()


def fill(options: dict[str, Any]) -> None:
    """Make the streams that the job reads and writes."""
    from penstock.options import ConnectionOptions

    with BulkConnection(ConnectionOptions(**options)) as bulk:
        for name in (secret_job.STREAM, secret_job.OUT):
            bulk.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        for _ in range(3):
            bulk.request(f"{secret_job.STREAM}.x", b"content")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[dict[str, str], list[str]]]]:
    """Servers with each kind of login: the options that Spark is given, and what is secret in them."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    pair, ours = authority.issue("server", "127.0.0.1"), authority.issue("client")
    tls = f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}", ca_file: "{authority.ca}", verify: true }}'
    users = f"authorization {{ users: [{{user: ann, password: '{PASSWORD}'}}, {{nkey: {KEY.public}}}] }}"
    operator, user = Operator(), Key.make()
    creds = operator.credentials(user=user)
    with (
        Server(sync="2m", auth=False, config=f"{tls}\n{users}") as mutual,
        Server(sync="2m", auth=False, config=operator.config()) as jwts,
        Server(sync="2m", token=TOKEN) as tokens,
    ):
        url, key = f"tls://{mutual.nodes[0].address}", ours.key.read_text()
        base = {"tls_ca": authority.ca.read_text(), "tls_cert": ours.cert.read_text(), "tls_key": key}
        spelled = {"tlsCa": base["tls_ca"], "tlsCert": base["tls_cert"], "tlsKeySecret": key}
        fill({"url": url, "user": "ann", "password": PASSWORD, **base})
        jwt_url = f"nats://{jwts.nodes[0].address}"
        fill({"url": jwt_url, "credentials": creds})
        jwt = creds.splitlines()[1]
        token_url = f"nats://{tokens.nodes[0].address}"
        fill({"url": token_url, "token": TOKEN})
        yield {
            "token": ({"url": token_url, "token": TOKEN}, [TOKEN]),
            "nkey": ({"url": url, "nkeySecret": KEY.seed, **spelled}, [KEY.seed, key]),
            "password": ({"url": url, "user": "ann", "password": PASSWORD, **spelled}, [PASSWORD, key]),
            "url": ({"url": url.replace("//", f"//ann:{PASSWORD}@"), **spelled}, [PASSWORD, key]),
            "credentials": ({"url": jwt_url, "credentials": creds}, [creds]),
            "jwt": ({"url": jwt_url, "jwtSecret": jwt, "nkeySecret": user.seed}, [jwt, user.seed]),
        }


@pytest.fixture
def plain(spark: Any, tmp_path: Path) -> Iterator[Any]:
    """A session with what Spark hides by itself, and an event log."""
    session = spark.newSession()
    conf = session._jsparkSession.sessionState().conf()
    conf.setConfString("spark.redaction.regex", "(?i)secret|password|token|access[.]?key|credential")
    conf.unsetConf("spark.redaction.string.regex")
    context, jvm = session.sparkContext._jsc.sc(), session._jvm
    folder = tmp_path / "events"
    folder.mkdir()
    uri = jvm.java.net.URI(folder.as_uri())
    settings = context.conf().clone().set("spark.eventLog.compress", "false")
    log = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "secrets", jvm.scala.Option.apply(None), uri, settings, context.hadoopConfiguration()
    )
    log.start()
    context.addSparkListener(log)
    session.log_folder, session.flush = folder, lambda: context.listenerBus().waitUntilEmpty()
    yield session
    context.removeSparkListener(log)
    log.stop()


@pytest.mark.parametrize("login", ["nkey", "token"])
def test_a_session_that_nobody_prepared(plain: Any, cases: Any, tmp_path: Path, login: str):
    """Plans, views, a query's progress, the event log and the checkpoint hold no seed, no private key and no token."""
    options, secret = cases[login]
    place = tmp_path / "place"
    place.mkdir()
    said = secret_job.use(plain, options, place, brief=True)
    planted = Key.make().seed
    plain.sql(f"CREATE TEMPORARY VIEW planted USING nats OPTIONS (stream 'x', nkey '{planted}')")
    plain.flush()
    assert "nats" in said
    assert not leaks(said, secret)
    log = "".join(file.read_text() for file in plain.log_folder.rglob("*") if file.is_file())
    assert "SparkListenerSQLExecutionStart" in log
    assert not leaks(log, secret)
    assert leaks(log, [planted]), "under a name that Spark does not hide it would have been found"
    searched = {file.parent.name for file in files_in(place)}
    assert {"checkpoint", "offsets", "commits"} <= searched, searched
    assert not leaks_in_files(place, secret)


def test_the_names_that_spark_hides():
    """Each may stand for its option, not beside it; the old names are taken, with a word in the log."""
    assert connection_fields({"nkeySecret": KEY.seed}) == {"nkey": KEY.seed}
    with pytest.raises(OptionError, match="nkey and nkeySecret are one"):
        connection_fields({"nkeySecret": KEY.seed, "nkey": "/x"})


@pytest.mark.heavy
def test_the_pages_of_spark(cases: Any, tmp_path: Path):
    """The same with every kind of login, in a process of its own, with the UI, its REST pages and Spark's own log."""
    (tmp_path / "cases.json").write_text(json.dumps([options for options, _ in cases.values()]))
    folder = tmp_path / "found"
    folder.mkdir()
    program = [sys.executable, str(Path(secret_job.__file__)), str(tmp_path / "cases.json"), str(folder)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    secret = {item for _, found in cases.values() for item in found}
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    assert not leaks_in_files(folder, secret)


@pytest.mark.timeout(300)  # Spark starts here, on a machine that may be busy
def test_an_archive(cases: Any, tmp_path: Path, eventually: Any):
    """`penstock stream archive`: neither its output, nor Spark's files and command lines, nor the archive hold one.

    The context that tells Spark's workers where NATS is holds it, for its owner alone, and goes with the run.
    """
    options, secret = cases["token"]
    folder, kept = tmp_path / "archive", tmp_path / "kept"
    known = {name: value for name, value in os.environ.items() if not name.startswith("NATS_")}
    url = options["url"].replace("//", f"//{options['token']}@")
    program = [sys.executable, "-m", "penstock", "--trace", "stream", "archive", secret_job.STREAM, "--to", str(folder)]
    running = subprocess.Popen(
        [*program, "--continuous", "--every", "5m"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**known, "NATS_URL": url, "HOME": str(tmp_path / "home")},
        start_new_session=True,
    )
    try:
        eventually(lambda: running.poll() is not None or list(folder.rglob("commits/0")), 120)
        assert running.poll() is None, running.communicate()
        processes = list(_session(running.pid))
        assert len(processes) >= 2, "Java and Python"
        for pid in processes:
            assert not leaks(Path(f"/proc/{pid}/cmdline").read_bytes(), secret)
        (context,) = folder.rglob("nats.json")
        assert leaks(context.read_bytes(), secret), "the search would find it"
        assert context.stat().st_mode & 0o077 == 0
        shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("nats.json"))
        running.send_signal(signal.SIGINT)
        said, told = running.communicate(timeout=60)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
    assert running.returncode == 0, told
    assert not leaks(said + told, secret)
    assert {"spark.log", "metadata"} <= {file.name for file in files_in(kept)}
    assert not list(folder.rglob("nats.json"))
    for place in (folder, kept):
        assert not leaks_in_files(place, secret)
