"""The page of performance: made of figures and of nothing else, with charts for light and dark pages."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks import charts, curves, page, run
from benchmarks._measure import rotated

from tests.pure.test_house import ROOT

FIGURES = ROOT / "docs" / "why" / "performance" / "figures.json"
BARS = tomllib.loads((ROOT / "benchmarks" / "bars.toml").read_text())["bar"]


@pytest.fixture
def report() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text())
    return found


def test_the_page_is_what_its_figures_make(report: dict[str, Any]):
    """The page, and each chart, are exactly what `make bench` writes of the figures beside them."""
    text, drawn = page.make(report)
    assert page.PAGE.read_text() == text, "run `python benchmarks/page.py docs/why/performance/figures.json`"
    assert {path.name: path.read_text() for path in page.FOLDER.glob("*.svg")} == drawn
    compared = page.COMPARISON.read_text()
    assert page.compared(report, compared) == compared
    for name in page.pages():
        text = (ROOT / name).read_text()
        assert page.quoted(report, name, text) == text, name


def test_a_figure_in_a_sentence_is_written_anew(report: dict[str, Any]):
    """Another figure comes into its one place; a page that lost the sentence is told, not passed over."""
    name = "docs/howto/from-flink.md"
    text = (ROOT / name).read_text()
    report["parts"]["spark_latency"]["warm"]["exactly-once"]["delay until stored ms"]["p50"] = 12345
    assert "micro-batches: 12345 ms at the median" in page.quoted(report, name, text)
    with pytest.raises(ValueError, match="has 0 places"):
        page.quoted(report, name, "another page")


def test_every_bar_is_of_a_part(report: dict[str, Any]):
    """A bar names a part that there is, its figure is found if that part ran, and it says how to measure it alone.

    What is marked as new was not measured yet when the figures were kept that the page is made of.
    """
    for bar in BARS:
        assert bar["figure"][0] == "parts"
        part = bar["figure"][1]
        assert bar["command"].startswith(f"python benchmarks/{part}.py"), bar["path"]
        left_out = {part, *map(str, bar["figure"])} & set(report["skipped"])
        if part in report["parts"] and not left_out and not report["about"]["quick"] and not bar.get("new"):
            assert page.bar_value(report, bar) is not None, bar["path"]
    assert len({bar["path"] for bar in BARS}) == len(BARS)


def test_bars():
    """A bar is reached from its figure on, or up to it; a ratio and a difference are made of two figures."""
    report = {"parts": {"x": {"many": [{"rate": 2.0}, {"rate": 5.0}]}}}
    last, first = (["parts", "x", "many", place, "rate"] for place in (-1, 0))
    assert page.bar_value(report, {"figure": last}) == 5.0
    assert page.bar_value(report, {"figure": last, "over": first}) == 2.5
    assert page.bar_value(report, {"figure": last, "over": first, "minus": True}) == 3.0
    assert page.bar_value(report, {"figure": ["parts", "y"]}) is None
    assert page.bar_value(report, {"figure": last, "over": ["parts", "y"]}) is None
    assert page.is_reached({"wanted": 0.8}, 0.8)
    assert not page.is_reached({"wanted": 0.8}, 0.79)
    assert page.is_reached({"wanted": 100, "most": True}, 99)


def test_charts():
    """A chart is SVG that needs nothing from elsewhere, has its title and every side, and is drawn for dark pages."""
    drawn = charts.bars("Read <&>", {"128 bytes": {"Penstock": (1e6, 9e5, 1.1e6), "raw": (2e6, 2e6, 2e6)}}, {})
    curve = charts.curves("Growth", "messages", "a second", {"write": [(1, 5.0), (1000, 7.0)], "read": [(1, 9.0)]})
    for text, words in ((drawn, ("Read <&>", "Penstock", "raw", "1 M", "2 M")), (curve, ("Growth", "write", "read"))):
        said = [element.text for element in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
        assert set(words) <= set(said)
        assert "prefers-color-scheme: dark" in text
        assert re.findall(r"https?://[^\"\s]+", text) == ["http://www.w3.org/2000/svg"]
    ElementTree.fromstring(charts.curves("Empty", "x", "y", {}))


def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, dict[str, Any]]:
    output = tmp_path / "bench.json"
    monkeypatch.setattr(sys, "argv", ["run.py", "--output", str(output), "--no-page", *arguments])
    with pytest.raises(SystemExit) as ended:
        run.main()
    return int(ended.value.code or 0), json.loads(output.read_text())


def test_a_part_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The run ends with status 1 and the name of the part; what others measured is kept, before and after it."""

    def part(name: str, quick: bool, most: float) -> tuple[Any, dict[str, Any]]:
        went = {"command": name, "seconds": 1.0, "cpu_seconds": 0.5}
        found = {"rate": 5, "quick": quick, "skipped": {"a peer": "not installed"}}
        return (None, {**went, "failed": "status 3"}) if name == "bus" else (found, went)

    monkeypatch.setattr(run, "run_part", part)
    status, report = started(tmp_path, monkeypatch, "--only", "paths", "bus", "chunks", "--quick")
    assert status == 1
    assert set(report["parts"]) == {"paths", "chunks"}
    assert "FAILED: bus: status 3" in capsys.readouterr().out
    assert report["skipped"] == {"a peer": "not installed"}
    status, report = started(tmp_path, monkeypatch, "--only", "chunks")
    assert status == 0
    assert (report["parts"]["paths"]["quick"], report["parts"]["chunks"]["quick"]) == (True, False)


def test_a_run_of_all_parts_says_how_long_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: dict[str, Any]
):
    """The seconds of a quick run and of a full one stand in the report and on the page; parts alone change none."""
    monkeypatch.setattr(run, "run_part", lambda name, quick, most: ({"rate": 5}, {"command": name, "seconds": 1.0}))
    _, found = started(tmp_path, monkeypatch, "--quick")
    assert found["took"].keys() == {"quick"}
    _, found = started(tmp_path, monkeypatch)
    assert found["took"].keys() == {"quick", "full"}
    _, again = started(tmp_path, monkeypatch, "--only", "bus")
    assert again["took"] == found["took"]
    report["took"] = {"quick": {"seconds": 583, "failed": 0}, "full": {"seconds": 9000, "failed": 2}}
    text, _ = page.make(report)
    assert "All parts of a quick run took 583 s. All parts of a full run took 9,000 s, and some failed." in text


def test_sides_take_turns_in_other_orders():
    """Each side comes first in some round, and none always directly behind the same other one."""
    orders = [rotated("abcde", turn) for turn in range(5)]
    assert all(sorted(order) == list("abcde") for order in orders)
    for side in "abcde":
        behind = [order[order.index(side) - 1] if order.index(side) else "" for order in orders]
        assert all(behind.count(other) <= 3 for other in "abcde"), side


def test_points_that_were_measured_several_times():
    """A point of a curve that was measured three times has the medians of its figures, and all of its rates."""
    runs = [{"x": 9, "write": {"rate": rate, "mib": 10 * rate}} for rate in (3.0, 1.0, 2.0)]
    assert curves.merged(runs) == {"x": 9, "write": {"rate": 2.0, "mib": 20.0, "rates": [3.0, 1.0, 2.0]}}
    assert curves.merged(runs[:1]) == {"x": 9, "write": {"rate": 3.0, "mib": 30.0}}


def test_every_benchmark_is_a_part():
    """`make bench` runs every program of the folder that measures, each with a sentence on what it is."""
    programs = {path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py")} - run.TOOLS
    assert set(run.PARTS) == programs
    assert all(what for what, _, _ in run.PARTS.values())


def test_connectors_that_others_make(monkeypatch: pytest.MonkeyPatch):
    """A connector is measured by a command; one that is not here, fails or lost rows is told."""
    from benchmarks import connectors

    said = [sys.executable, "-c", 'print(\'a log\'); print(\'{"rows": 10, "trigger_ms": 50, "whole_ms": 400}\')']
    assert connectors.run_side(said, 10) == {"trigger_ms": 50.0, "whole_ms": 400.0}
    with pytest.raises(RuntimeError, match="10 of 11 rows"):
        connectors.run_side(said, 11)
    with pytest.raises(RuntimeError, match="status 3: no Java"):
        connectors.run_side([sys.executable, "-c", "import sys; print('no Java', file=sys.stderr); sys.exit(3)"], 10)
    monkeypatch.setenv("BENCH_SCALA", "/opt/measure 'with spaces'")
    monkeypatch.delenv("BENCH_KAFKA", raising=False)
    found, skipped = connectors.commands("nats://host", 10)
    assert found["the Scala connector"] == ["/opt/measure", "with spaces", "nats://host", "10"]
    assert skipped.keys() == {"Kafka's connector"}
    sides = {"ours": said, "slow": [*said[:2], said[2].replace("50", "200")], "gone": ["/no/such/program"]}
    monkeypatch.setattr(connectors, "commands", lambda url, count, server: (sides, skipped))
    result = connectors.measure("nats://host", 10, rounds=2)
    assert result["times as fast"]["slow"]["trigger_ms"]["median"] == 4.0
    assert result["sides"].keys() == {"ours", "slow"}
    assert "gone" in result["skipped"]
