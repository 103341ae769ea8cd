"""The report of a play: one HTML file that needs nothing else, with the audit and the charts."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path

from penstock.examples.orders import FOLDER
from penstock.examples.orders.charts import Band, Line, bars, columns, lines
from penstock.examples.orders.ledger import REGIONS
from penstock.examples.orders.play import Result

__all__ = ["write_report"]

_COLOURS = ("var(--a)", "var(--b)", "var(--c)", "var(--d)", "var(--e)")


def write_report(result: Result, path: Path) -> Path:
    """Write the report, and give its path."""
    verdict = (
        '<span class="ok">nothing lost, nothing repeated</span>'
        if result.ok
        else '<span class="bad">something is off</span>'
    )
    sections = [
        f"<h1>Orders through Spark and back: {verdict}</h1>",
        f'<p class="lead">{escape(_lead(result))}</p>',
        _tiles(result),
        _section("Audit", "Every stage against the generator's own ledger, message by message.", _audit(result)),
        _section("Rows over time", "Orders published, and orders that the pipeline has read for good.", _rows(result)),
        _section("Lag", "Orders that wait to be read.", _lag(result)),
        _section("Micro-batches", "How long each one took, by flow.", _batches(result)),
        _section("Revenue", "Per minute and region, as it is in the stream REVENUE.", _revenue(result)),
        _section("Top customers", "As the service on the bus answered.", _top(result)),
        _section("What happened", "", _notes(result)),
    ]
    style = (FOLDER / "report.css").read_text(encoding="utf-8")
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width,initial-scale=1"><title>Penstock: orders</title><style>{style}</style></head>'
    )
    path.write_text(f"{head}<body><main>{''.join(sections)}{_footer(result)}</main></body></html>\n", encoding="utf-8")
    data = [stage.__dict__ for stage in result.stages]
    path.with_suffix(".json").write_text(json.dumps({"ok": result.ok, "stages": data}, indent=2) + "\n")
    return path


def _lead(result: Result) -> str:
    documents = result.ledger.volume.documents
    kills = sum("SIGKILL" in text for _, text in result.notes)
    return (
        f"{len(result.ledger.orders):,} orders and {documents:,} scanned documents went through NATS and Spark in "
        f"{result.seconds:.0f} seconds. Spark was killed {kills} time{'s' if kills != 1 else ''} on the way."
    )


def _section(title: str, lead: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2><p>{escape(lead)}</p>{body}</section>"


def _tiles(result: Result) -> str:
    ledger = result.ledger
    size = sum(size for size, _, _ in ledger.digests.values())
    tiles = [
        (f"{len(ledger.orders):,}", "orders"),
        (f"{result.duplicates:,}", "repeats, stored once"),
        (f"{len(ledger.legacy):,}", "from old clients"),
        (f"{len(ledger.orders) - len(ledger.whole):,}", "broken, in quarantine"),
        (f"{size / 2**20:,.0f} MiB", f"in {len(ledger.digests):,} documents"),
        (f"{len(result.revenue):,}", "sums sent exactly once"),
    ]
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{b}</b><span>{s}</span></div>' for b, s in tiles)
        + "</div>"
    )


def _audit(result: Result) -> str:
    rows = "".join(
        f"<tr><td>{escape(stage.name)}</td><td>{stage.expected:,}</td><td>{stage.found:,}</td>"
        f'<td class="{"" if not stage.lost else "bad"}">{stage.lost:,}</td>'
        f'<td class="{"" if not stage.repeated else "bad"}">{stage.repeated:,}</td>'
        f'<td class="{"ok" if stage.ok else "bad"}">{"✓" if stage.ok else "✗"}</td></tr>'
        for stage in result.stages
    )
    head = "<tr><th>Stage</th><th>Expected</th><th>Found</th><th>Lost</th><th>Repeated</th><th></th></tr>"
    return f"<table>{head}{rows}</table>"


def _deaths(result: Result) -> list[Band]:
    """Find the times without Spark: from a kill until Spark is up again."""
    bands, killed = [], None
    for at, text in result.notes:
        if "SIGKILL" in text:
            killed = at
        elif killed is not None and "is up" in text:
            bands.append(Band(killed, at, "killed, restarting"))
            killed = None
    return bands


def _rows(result: Result) -> str:
    return lines(
        "Rows over time",
        [
            Line("published", [(moment.at, moment.published) for moment in result.moments], "var(--b)"),
            Line(
                "read by the pipeline", [(moment.at, moment.read) for moment in result.moments], "var(--a)", fill=True
            ),
        ],
        _deaths(result),
    )


def _lag(result: Result) -> str:
    points = [(moment.at, float(moment.published - moment.read)) for moment in result.moments]
    return lines("Lag", [Line("orders waiting", points, "var(--e)", fill=True)], _deaths(result))


def _batches(result: Result) -> str:
    flows: dict[str, list[float]] = {}
    for batch in result.batches:
        if batch.rows:
            flows.setdefault(batch.flow, []).append(batch.seconds)
    rows = [
        (name, sum(times) / len(times), f"{sum(times) / len(times):.2f} s on average, {len(times)} batches")
        for name, times in sorted(flows.items())
    ]
    return bars(rows, "var(--d)")


def _revenue(result: Result) -> str:
    sums: dict[tuple[str, str], float] = {}
    for region, minute, cents, _ in result.revenue:
        sums[region, minute] = sums.get((region, minute), 0.0) + cents / 100
    minutes = sorted({minute for _, minute in sums})
    series = {region: [sums.get((region, minute), 0.0) for minute in minutes] for region in REGIONS}
    return columns("Revenue", [minute[11:16] for minute in minutes], series, _COLOURS)


def _top(result: Result) -> str:
    rows = [
        (
            f"{row['name']} ({row['customer']})",
            float(str(row["cents"])),
            f"{float(str(row['cents'])) / 100:,.2f} in {row['orders']} orders",
        )
        for row in result.top
    ]
    return bars(rows, "var(--c)")


def _notes(result: Result) -> str:
    return "<ol>" + "".join(f"<li><b>{at:.1f} s</b>{escape(text)}</li>" for at, text in result.notes) + "</ol>"


def _footer(result: Result) -> str:
    versions = {**result.versions, "Penstock": version("penstock"), "Python": platform.python_version()}
    listed = ", ".join(f"{name} {number}" for name, number in versions.items())
    when = datetime.fromtimestamp(result.begun, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"<footer>{escape(listed)}. Begun {when}.</footer>"
