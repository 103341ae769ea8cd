"""What a person is told of a failure: the flow, and the sentence among all that Spark and Python say."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.pipelines.outcome import Outcome
from penstock.pipelines.reasons import cause, not_started, reason

_WORKER = (
    "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):\n"
    '  File "/srv/p/transformations/bad.py", line 7, in boom\n    raise ValueError("boom of mine")\n'
    "ValueError: boom of mine\n SQLSTATE: 38000"
)
_STREAM = f"[STREAM_FAILED] Query [id = 2d05, runId = 3114] terminated with exception: {_WORKER} SQLSTATE: XXKST\n=== x"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_WORKER, "ValueError: boom of mine"),
        (_STREAM, "ValueError: boom of mine"),
        ("[STREAM_FAILED] Query [id = 1] terminated with exception: No space left. SQLSTATE: XXKST", "No space left."),
        ("[TABLE_OR_VIEW_NOT_FOUND] No `x`.\nSearch path: y SQLSTATE: 42P01;", "[TABLE_OR_VIEW_NOT_FOUND] No `x`."),
        (
            "Traceback (most recent call last):\n  File x\nKeyError: 1\n\nDuring handling\n\n" + _WORKER,
            "ValueError: boom of mine",
        ),
        (f"x\npenstock.errors.RowError: Row 0: no. Do this.\n{_WORKER}", "Row 0: no. Do this."),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("", ""),
        ("x" * 5000, "x" * 2000),
    ],
)
def test_the_sentence_is_found_in_what_spark_says(text: str, said: str):
    """Ours first, then what a Python traceback ends with, then the first line without its wrapping."""
    assert cause(text) == said


def failed(*events: str, reason: str = "Run failed.") -> str | None:
    outcome = Outcome()
    for message in events:
        outcome.hear({"kind": "event", "message": message})
    outcome.hear({"kind": "failed", "reason": reason})
    return outcome.failure


def test_a_flow_that_fails_is_told_with_its_name_and_cause():
    """The events of a pipeline name the flow; what Spark says at the end does not."""
    assert (
        failed(f"Flow 'spark_catalog.default.bad' has FAILED.\nError: {_STREAM}")
        == "flow bad: ValueError: boom of mine"
    )
    resolve = "Failed to resolve flow: 'spark_catalog.default.bad'.\nError: [TABLE_OR_VIEW_NOT_FOUND] No `x`.\nmore"
    assert failed(resolve) == "flow bad: [TABLE_OR_VIEW_NOT_FOUND] No `x`"
    again = f"Flow 'bad' has FAILED more than 2 times and will not be restarted.\nError: {_STREAM}"
    assert failed("Flow bad has COMPLETED.", again) == "flow bad: ValueError: boom of mine"
    both = [f"Flow '{name}' has FAILED.\nError: {name} is off." for name in ("a", "b", "a")]
    assert failed(*both) == "flow a: a is off; flow b: b is off"


def test_a_flow_that_succeeded_in_the_end_did_not_fail():
    """Spark tries a flow again; what it failed of first is forgotten then, and the run's own reason is told."""
    tried = ("Flow a has COMPLETED.", "Flow 'a' has FAILED.\nError: off", "Flow a is RUNNING.", "Flow a has COMPLETED.")
    assert failed(*tried, reason="It is late.") == "It is late."
    assert failed(*tried, "Flow 'b' has FAILED.\nError: no.") == "flow b: no"


def test_an_error_of_a_file_is_told_with_its_place(tmp_path: Path):
    """What a file of the pipeline raises has its type, file and line; what others raise has not."""
    file = tmp_path / "transformations" / "bad.py"
    file.parent.mkdir()
    file.write_text('import json\n\n\nraise KeyError("x")\n')
    with pytest.raises(KeyError) as caught:
        exec(compile(file.read_text(), str(file), "exec"), {})
    assert reason(caught.value, tmp_path) == "KeyError: 'x' (transformations/bad.py, line 4)"
    assert reason(caught.value, tmp_path / "other") == reason(caught.value) == "'x'"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            'WARNING: x\nException in thread "main" org.apache.spark.SparkException: Master must be yarn or local\n'
            "\tat org.apache\n",
            "Master must be yarn or local",
        ),
        ("Error: Could not create the Java Virtual Machine.\n", "Could not create the Java Virtual Machine"),
        ("all is well\n", None),
    ],
)
def test_why_spark_does_not_start_is_in_its_log(log: str, said: str | None):
    """The name of a gateway that exited helps nobody; what Java or Spark said before does."""
    assert not_started(log) == said


def test_a_spark_that_is_silent_is_told():
    """A phase says for how long Spark has given no sign of life, once that is worth telling."""
    outcome = Outcome()
    outcome.hear({"kind": "registered", "at": 5.0})
    assert (outcome.heard, outcome.doing) == (5.0, "running")
    outcome.silence = 61.0
    assert outcome.doing == "running, Spark has not answered for 61 s"
    outcome.hear({"kind": "answer", "at": 9.0})
    assert (outcome.heard, outcome.phase) == (9.0, "running")
