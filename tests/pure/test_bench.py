"""The figures of `penstock bench`: who has which messages, and what is made of the times."""

from __future__ import annotations

import csv
import pickle
import signal

import pytest

from penstock.bench.client_job import ClientJob, Subjects, shares
from penstock.bench.pace import Pace
from penstock.bench.results import Results, Sample, latency_figures
from penstock.bench.worker import Gate
from penstock.errors import InputError
from penstock.options import ConnectionOptions


def test_the_clients_share_all_messages():
    """Each has as many as the others, or one more, and none has nothing to do."""
    assert shares(10, 3) == [4, 3, 3]
    assert sum(shares(100_000, 7)) == 100_000
    with pytest.raises(InputError, match="3 clients for 2 messages"):
        shares(2, 3)


def test_subjects():
    """One subject is for all messages; with a number behind it, there are as many as is said, all of one length."""
    assert Subjects("a").of(7) == Subjects("a").pattern == "a"
    many = Subjects("a", many=True, most=100)
    assert [many.of(number) for number in (0, 7, 107)] == ["a.000", "a.007", "a.007"]
    assert many.pattern == "a.*"
    assert Subjects("a", many=True, most=0).of(1234567) == "a.1234567"
    chosen = {Subjects("a", many=True, most=4, randomize=True).of(9) for _ in range(200)}
    assert chosen == {"a.0", "a.1", "a.2", "a.3"}


def test_a_job_shows_no_login():
    """What goes to a process survives the way there, and its repr has no secret and no payload."""
    job = ClientJob("core.publish", ConnectionOptions("nats://host", token="s3cret"), 5, payload=b"body")
    assert pickle.loads(pickle.dumps(job)) == job
    assert "s3cret" not in repr(job)
    assert "body" not in repr(job)


def test_percentiles():
    """A percentile is a latency that was measured: the least one that so many are not above."""
    found = latency_figures([number / 1e6 for number in range(1, 1001)])
    assert (found["min"], found["p50"], found["p90"], found["p99"], found["p99.9"]) == (1, 500, 900, 990, 999)
    assert (found["max"], found["avg"]) == (1000, 500.5)
    assert latency_figures([0.002])["p50"] == 2000
    assert latency_figures([]) == {}


def two() -> Results:
    samples = [Sample(100, 1000, 10.0, 11.0, 0.2, [0.001, 0.002]), Sample(100, 1000, 10.5, 12.0, 0.3, [0.003])]
    return Results("Publish", {"msgs": 200}, samples, helpers_cpu=0.5)


def test_rates_of_all_and_of_each():
    """All together are counted from the first beginning to the last end, each by its own time."""
    found = two().to_json()
    assert (found["seconds"], found["messages_per_second"], found["bytes_per_second"]) == (2.0, 100.0, 1000.0)
    assert found["client_rates"] == {"min": 66.7, "avg": 83.3, "max": 100.0, "stddev": 16.7}
    assert found["cpu_seconds"] == 1.0
    assert found["latency_microseconds"]["max"] == 3000
    assert [one["messages_per_second"] for one in found["clients"]] == [100.0, 66.7]


def test_a_line_for_each_client():
    """The file has the columns of the `nats` command, those of latencies only if there are some."""
    rows = list(csv.DictReader(two().to_csv("run").splitlines()))
    assert [row["ClientID"] for row in rows] == ["C0", "C1"]
    assert float(rows[0]["MaxLatencyMicroSecs"]) == 2000
    untimed = Results("Publish", {}, [Sample(1, 1, 0.0, 1.0, 0.1)])
    assert untimed.to_csv("run").splitlines()[0].endswith("DurationSecs")


def test_a_pace(monkeypatch: pytest.MonkeyPatch):
    """Messages a second are counted from the first on, so that a slow one is made good; pauses are for each."""
    now = [100.0]
    monkeypatch.setattr("penstock.bench.pace.time.monotonic", lambda: now[0])
    pace = Pace(ClientJob("x", ConnectionOptions(), 5, throughput=10))
    assert pace.due() == pytest.approx(0.1)
    now[0] += 0.5
    assert pace.due() == 0
    assert pace.due(5) == pytest.approx(0.2)
    assert Pace(ClientJob("x", ConnectionOptions(), 5, sleep=0.25)).due(2) == 0.5
    assert Pace(ClientJob("x", ConnectionOptions(), 5)).is_free


@pytest.mark.timeout(60)
def test_a_client_that_waits_can_be_told_to_end():
    """A signal may come at any step of the wait for the word to begin, also while the main thread has its lock."""
    gate = Gate(lambda what: None)
    with gate._go._cond, pytest.raises(SystemExit):  # what `wait` holds for a moment
        gate.end(signal.SIGTERM, None)
    assert gate._go.wait(30)
    assert gate.stopped.wait(30)
