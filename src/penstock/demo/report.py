"""The report of a play: one HTML file that needs nothing else, with the audit and the charts."""

from __future__ import annotations

import json
import platform
from collections import Counter
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from string import Template

from penstock.demo import REPORT
from penstock.demo.charts import Line, bars, columns, lines
from penstock.demo.ledger import REGIONS
from penstock.demo.play import Result

__all__ = ["write_report"]

_COLOURS = ("var(--a)", "var(--b)", "var(--c)", "var(--d)", "var(--e)")


def write_report(result: Result, path: Path) -> Path:
    """Fill in `report.html`, and give the path of what was made."""
    texts = {name: escape(text) for name, text in _texts(result).items()}
    page = Template(REPORT.read_text(encoding="utf-8"))
    path.write_text(page.substitute(texts | _parts(result)), encoding="utf-8")
    data = [stage.__dict__ for stage in result.stages]
    path.with_suffix(".json").write_text(json.dumps({"ok": result.ok, "stages": data}, indent=2) + "\n")
    return path


def _texts(result: Result) -> dict[str, str]:
    ledger = result.ledger
    kills = sum("SIGKILL" in text for _, text in result.notes)
    versions = {**result.versions, "Penstock": version("penstock"), "Python": platform.python_version()}
    return {
        "mark": "ok" if result.ok else "bad",
        "verdict": "nothing lost, nothing repeated" if result.ok else "something is off",
        "orders": f"{len(ledger.orders):,}",
        "scans": f"{ledger.volume.documents:,}",
        "seconds": f"{result.seconds:.0f}",
        "kills": f"{kills} time{'s' if kills != 1 else ''}",
        "duplicates": f"{result.duplicates:,}",
        "legacy": f"{len(ledger.legacy):,}",
        "broken": f"{len(ledger.orders) - len(ledger.whole):,}",
        "mebibytes": f"{sum(size for size, _, _ in ledger.digests.values()) / 2**20:,.0f}",
        "documents": f"{len(ledger.digests):,}",
        "sums": f"{len(result.revenue):,}",
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "begun": datetime.fromtimestamp(result.begun, UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _parts(result: Result) -> dict[str, str]:
    """Give what is markup itself: rows of the table, charts, and the list of what happened."""
    published = [(at, published) for at, published, _ in result.moments]
    read = [(at, read) for at, _, read in result.moments]
    waiting = [(at, published - read) for at, published, read in result.moments]
    deaths = _deaths(result)
    return {
        "audit": _audit(result),
        "rows": lines(
            "Rows over time",
            [Line("published", published, "var(--b)"), Line("read by the pipeline", read, "var(--a)", fill=True)],
            deaths,
        ),
        "lag": lines("Lag", [Line("orders waiting", waiting, "var(--e)", fill=True)], deaths),
        "batches": _batches(result),
        "revenue": _revenue(result),
        "top": _top(result),
        "notes": "".join(f"<li><b>{at:.1f} s</b>{escape(text)}</li>" for at, text in result.notes),
    }


def _audit(result: Result) -> str:
    return "".join(
        f"<tr><td>{escape(stage.name)}</td><td>{stage.expected:,}</td><td>{stage.found:,}</td>"
        f'<td class="{"bad" if stage.lost else ""}">{stage.lost:,}</td>'
        f'<td class="{"bad" if stage.repeated else ""}">{stage.repeated:,}</td>'
        f'<td class="{"ok" if stage.ok else "bad"}">{"✓" if stage.ok else "✗"}</td></tr>'
        for stage in result.stages
    )


def _deaths(result: Result) -> list[tuple[float, float, str]]:
    """Find the times without Spark: from a kill until Spark is up again."""
    bands, killed = [], None
    for at, text in result.notes:
        if "SIGKILL" in text:
            killed = at
        elif killed is not None and "is up" in text:
            bands.append((killed, at, "killed, restarting"))
            killed = None
    return bands


def _batches(result: Result) -> str:
    flows: dict[str, list[float]] = {}
    for batch in result.batches:
        if batch.rows:
            flows.setdefault(batch.flow, []).append(batch.seconds)
    means = {name: sum(times) / len(times) for name, times in flows.items()}
    rows = [
        (name, mean, f"{mean:.2f} s on average, {len(flows[name])} batches") for name, mean in sorted(means.items())
    ]
    return bars(rows, "var(--d)")


def _revenue(result: Result) -> str:
    sums: Counter[tuple[str, str]] = Counter()
    for region, minute, cents, _ in result.revenue:
        sums[region, minute] += cents
    minutes = sorted({minute for _, minute in sums})
    series = {region: [sums[region, minute] / 100 for minute in minutes] for region in REGIONS}
    return columns("Revenue", [minute[11:16] for minute in minutes], series, _COLOURS)


def _top(result: Result) -> str:
    rows = [
        (f"{row['name']} ({row['customer']})", row["cents"], f"{row['cents'] / 100:,.2f} in {row['orders']} orders")
        for row in result.top
    ]
    return bars(rows, "var(--c)")
