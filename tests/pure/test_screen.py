"""What people see of a run: on terminals of 80, 120 and 40 columns, in colour and without, and elsewhere as lines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.demo import _with_log
from penstock.cli.screen import clock
from penstock.cli.time_left import TimeLeft
from penstock.errors import PipelineError
from tests.screen import Screen, Shown, shown

KILL = "Killed Spark with SIGKILL in the middle of a batch (pid 4711)."
LONG = "200 scanned documents are in, as chunks, and each of them was put together again and verified."
DRAW = f"""
import logging, signal, sys, time
from penstock.cli.pipeline_show import board, print_summary
from penstock.pipelines.outcome import Outcome

logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
outcome = Outcome()
for name in ("revenue_to_the_stream", "readings", "alerts"):
    outcome.hear({{"kind": "event", "message": f"Flow spark_catalog.default.{{name}} is RUNNING."}})
    flow = outcome.flows[name]
    flow.rows_in, flow.rows_out, flow.lag, flow.rate, flow.batches, flow.batch_seconds = 700, 650, 300, 123.0, 2, 1.5
outcome.flows["revenue_to_the_stream"].lag = None
with board("Orders", total=6000, err=False, timed=True) as show:
    for read in range(0, 3600, 600):
        show(outcome, 300, read)
        time.sleep(0.02)
    show.say({LONG!r})
    logging.getLogger("x").warning("a warning of the log")
    print("a line that somebody else printed")
    show.say("\\x1b[2Jnothing that came from outside is obeyed")
    show.shout({KILL!r})
    show(outcome, 300, 3000)
    time.sleep(0.6)  # so that it is drawn at least once more
print_summary(outcome)
"""


def drawn(columns: int, **env: str) -> Shown:
    with shown([sys.executable, "-c", DRAW], {**os.environ, "NO_COLOR": "", **env}, columns) as command:
        assert command.end() == 0, command.screen.text
        return command


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_shows_lines_and_a_picture_and_mixes_nothing(columns: int):
    """Every line is whole, nothing is written over, and the kill stands in a frame of its own and stays."""
    command = drawn(columns)
    lines = command.screen.text.splitlines()
    assert "41" in command.screen.colours, "the kill is on red"
    frame = next(number for number, line in enumerate(lines) if KILL in line)
    assert lines[frame - 1].strip("╭─╮") == lines[frame + 1].strip("╰─╯") == ""
    assert len(lines[frame - 1]) == columns
    assert "a warning of the log" in lines
    assert "a line that somebody else printed" in lines
    assert any("\\x1b[2Jnothing" in line for line in lines)
    text = " ".join(command.screen.text.split())
    assert LONG in text
    assert command.screen.wraps == [], "the terminal had to break no line, in no picture either"
    picture = next(text for text in reversed(command.seen) if "3,000 of 6,000" in text).splitlines()
    assert "Orders: starting Spark" in picture
    (bar,) = (line for line in picture if "3,000 of 6,000" in line)
    assert "/s" in bar
    assert "left" in bar
    flows = [line for line in picture if " running " in line]
    assert [line.split()[0] for line in flows] == ["alerts", "readings", "revenue_to_the_stream"]
    assert not any("of 6,000" in line for line in lines), "nothing of the picture is left"
    assert command.screen.text.count("alerts") == 1, "only the summary"


def test_a_line_that_is_too_long_is_noticed():
    """The screen of these tests breaks a line as a terminal does, and says so, also if the line is drawn over later."""
    screen = Screen(10)
    screen.feed("0123456789\r\n01234567890\r\x1b[2K\x1b[1A\x1b[2Knothing")
    assert (screen.text, screen.wraps) == ("0123456789\nnothing\n", [(1, "0123456789")])


def test_a_terminal_without_colours_is_as_readable():
    """NO_COLOR takes the colours away, and the kill is still framed."""
    command = drawn(80, NO_COLOR="1")
    assert not command.screen.colours
    lines = command.screen.text.splitlines()
    frame = next(number for number, line in enumerate(lines) if KILL in line)
    assert (lines[frame - 1][:3], lines[frame][0], lines[frame + 1][:3]) == ("╭──", "│", "╰──")


def test_a_narrow_terminal_keeps_names_whole():
    """At 40 columns columns are left out, names are not cut, and the summary is in blocks with every figure."""
    command = drawn(40)
    assert any("revenue_to_the_stream  running" in text for text in command.seen)
    assert "Last batch: 1.5 s" in command.screen.text


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_move_gets_lines(term: str):
    """TERM=dumb has no picture, no code, and the kill between stars."""
    command = drawn(80, TERM=term)
    assert not command.screen.colours - {"1"}
    said = command.screen.text.replace("\n", "")
    assert f"*** {KILL} ***" in said
    assert "starting Spark: 0 rows in, 300 waiting" in said


def test_a_pipe_gets_whole_lines_and_no_code():
    """A log of CI: one line for each thing that happened, however long, on standard output."""
    done = subprocess.run([sys.executable, "-c", DRAW], capture_output=True, text=True, timeout=60, check=True)
    assert "\x1b[" not in done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert next(line[8:] for line in lines if line.startswith("  0:0")) == LONG
    assert any(line.endswith(f"*** {KILL} ***") for line in lines)
    assert "a warning of the log" in done.stderr
    assert "starting Spark: 0 rows in, 300 waiting, 0 updates" in done.stderr


def test_half_a_terminal_is_none():
    """With standard output in a pipe, such as `| tee`, no picture is drawn over what the other end writes."""
    command = f"{sys.executable} -c '{DRAW.replace(chr(39), chr(34))}' | cat"
    with shown(["bash", "-c", command], dict(os.environ), 200) as seen:
        assert seen.end() == 0
    assert f"*** {KILL} ***" in seen.screen.text
    assert "of 6,000" not in "".join(seen.seen)


def test_an_estimate_is_what_the_last_seconds_say():
    """The rate forgets what is long ago; without any there is no estimate; less than before is a new beginning."""
    estimate = TimeLeft()
    assert (estimate.rate, estimate.left(10), estimate.left(0)) == (0.0, None, 0.0)
    for second in range(100):
        estimate.mark(second, min(second, 50) * 10)
    assert estimate.rate == 0.0
    assert estimate.left(600) is None
    estimate.mark(100.0, 600)
    assert 4.0 < estimate.rate < 6.0
    assert estimate.left(600) == 0.0
    estimate.mark(101.0, 5)
    assert estimate.rate == 0.0


def test_the_log_of_a_failed_demo_is_kept(tmp_path: Path):
    """The error names a log that is still there when everything else of the demo is gone."""
    log = tmp_path / "scratch" / "spark.log"
    log.parent.mkdir()
    log.write_text("what Spark said")
    (tmp_path / "report").mkdir()
    error = _with_log(PipelineError("It failed.", remedy=f"See {log}.", log=str(log)), tmp_path / "report")
    shutil.rmtree(log.parent)
    assert str(error) == f"It failed. Spark's log is {tmp_path}/report/spark.log."
    assert Path(error.log).read_text() == "what Spark said"
    assert "could not be kept" in str(_with_log(error, tmp_path / "nowhere"))


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3661, "1:01:01")])
def test_a_clock(seconds: float, text: str):
    """Times are minutes and seconds, with hours if there are any."""
    assert clock(seconds) == text
