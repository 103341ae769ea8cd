"""Makes docs/why/performance.md and its charts of a report and nothing else, and writes its figures into other pages.

    python benchmarks/page.py [REPORT]      artifacts/bench.json unless told

Other pages: the table of docs/why/comparison.md (compared.toml), and figures in sentences (quoted.toml).

The figures that the page is made of are kept in docs/why/performance/figures.json, so that a test can make the page
anew and compare. Charts are for light and dark pages.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import charts

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "why" / "performance.md"
COMPARISON = ROOT / "docs" / "why" / "comparison.md"
FOLDER = ROOT / "docs" / "why" / "performance"
PROFILES = ROOT / "docs" / "why" / "profiles"
NAMES = {
    "raw_pull": "raw socket",
    "raw_fast": "raw socket",
    "raw_acks": "raw socket",
    "raw_atomic": "raw socket",
    "raw_atomic_ids": "raw socket, with ids",
    "read": "Penstock",
    "publish_fast": "Penstock",
    "publish_acks": "Penstock",
    "publish_atomic": "Penstock",
    "publish_atomic_bare": "Penstock, without ids",
    "natsrpy_pull": "natsrpy (Rust)",
    "nats_pull": "nats-py",
    "nats_async": "nats-py",
    "go_ordered": "nats bench (Go)",
    "go_fast": "nats bench (Go)",
    "go_async": "nats bench (Go)",
    "go_atomic": "nats bench (Go)",
}
KINDS = {"raw socket": "limit", "raw socket, with ids": "limit", "Penstock": "ours", "Penstock, without ids": "ours"}
CASES = {
    "read": "Read a stream",
    "publish fast": "Publish by fast ingest",
    "publish acks": "Publish with an ack each",
    "publish atomic": "Publish atomic batches",
}
CURVES = {
    "messages": ("messages in the stream", "Messages"),
    "payloads": ("bytes of a payload", "Payloads"),
    "subjects": ("distinct subjects", "Subjects"),
    "partitions": ("partitions of Spark", "Partitions"),
    "streams": ("streams", "Streams"),
    "consumers": ("consumers of one stream", "Consumers"),
}
HEAD = """\
# Performance

This page is made by `make bench`: every figure of it, and the charts, come from there, and nothing is typed by hand
(`benchmarks/page.py`; the figures are in [figures.json](performance/figures.json)). All sides of a comparison ran on
the same machine in the same run, in turn, in another order every round. **Read ratios, not rates**: a ratio is the
median of the ratios of neighbouring runs, with the least and the most beside it. CPU time is user and system time of
our process, and of the server, over the measured time only; it says more than the clock if the machine had other work.

{machine}

Your own server is measured by [`penstock bench`](../howto/bench.md).
"""
EMPTY = "not measured in this run"


def find(report: Any, keys: list[str | int]) -> Any:
    """Follow keys into a report; None if they lead nowhere."""
    for key in keys:
        try:
            report = report[key]
        except (LookupError, TypeError):
            return None
    return report


def bar_value(report: dict[str, Any], bar: dict[str, Any]) -> float | None:
    """Give the figure of a bar."""
    value = find(report, bar["figure"])
    if value is None or "over" not in bar:
        return value
    over = find(report, bar["over"])
    if not over:
        return None
    return float(value - over if bar.get("minus") else value / over)


def is_reached(bar: dict[str, Any], value: float) -> bool:
    """Tell whether a figure is as it is to be."""
    return bool(value <= bar["wanted"] if bar.get("most") else value >= bar["wanted"])


def _machine(report: dict[str, Any]) -> str:
    about = report["about"]
    server = find(report, ["parts", "paths", "server"]) or find(report, ["parts", "curves", "server"]) or "unknown"
    kind = "A quick run" if about.get("quick") else "A whole run"
    went = [item for name, item in report.get("went", {}).items() if name in report["parts"]]
    runs = len({item.get("run", "") for item in went})
    if runs > 1:
        kind = f"Parts of {runs} runs, {sum(item.get('quick', True) for item in went)} of {len(went)} of them quick"
    built = "compiled" if about.get("compiled") else "plain Python"
    return (
        f"{kind}: {about['cores']} cores, {about['system']}, Python {about['python']}, nats-server {server}, "
        f"Penstock {about['penstock']} ({built}); the load of the machine when it began was {about['load']:g}."
        + "".join(
            f" All parts of a {kind} run took {took['seconds']:,.0f} s{', and some failed' if took['failed'] else ''}."
            for kind, took in report.get("took", {}).items()
        )
    )


def _bars(report: dict[str, Any], bars: list[dict[str, Any]]) -> Iterator[str]:
    yield "## What is to be reached\n"
    yield "| path | to be reached | measured | | alone |\n|---|---|---|---|---|"
    bounds = []
    for bar in bars:
        value = bar_value(report, bar)
        sign = "at most " if bar.get("most") else ""
        shown = EMPTY if value is None else f"{value:.3g}"
        state = "" if value is None else "reached" if is_reached(bar, value) else "**not reached**"
        yield f"| {bar['path']} | {sign}{bar['wanted']:g} | {shown} | {state} | `{bar['command']}` |"
        if value is not None and not is_reached(bar, value):
            seen = [
                (label, bar_value(report, dict(zip(("figure", "over"), keys, strict=False))))
                for label, *keys in bar.get("seen", ())
            ]
            proof = "; ".join(f"{label} {value:.3g}" for label, value in seen if isinstance(value, int | float))
            why = bar.get("bound") or "what bounds it is not known yet."
            bounds.append(f"- {bar['path']}: {why}{f' In this run: {proof}.' if proof else ''}")
    if bounds:
        yield "\nWhat bounds those that are not reached:\n"
        yield from bounds
    yield ""


def _sided(found: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    return {
        NAMES.get(side, side): (figures["rate"]["median"], figures["rate"]["min"], figures["rate"]["max"])
        for side, figures in found["sides"].items()
    }


def _paths(report: dict[str, Any], drawn: dict[str, str]) -> Iterator[str]:
    cases = find(report, ["parts", "paths", "cases"]) or {}
    for case, sizes in cases.items():
        title, name = CASES.get(case, case), case.replace(" ", "-")
        yield f"## {title}\n"
        groups = {f"{int(size):,} bytes": _sided(found) for size, found in sizes.items()}
        drawn[f"{name}.svg"] = charts.bars(f"{title}, messages a second", groups, KINDS)
        yield f"![{title}, messages a second](performance/{name}.svg)\n"
        yield "| bytes | side | messages/s | of the raw socket (least to most) | our CPU, µs | the server's CPU, µs |"
        yield "|---|---|---|---|---|---|"
        for size, found in sizes.items():
            for side, figures in found["sides"].items():
                to, ratio = next(
                    ((key.split(" / ")[1], of) for key, of in found["ratios"].items() if key.startswith(f"{side} / ")),
                    ("", None),
                )
                share = f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})" if ratio else ""
                if to and to != next(iter(found["sides"])):
                    share += f" of the {NAMES.get(to, to)}"
                cells = [f"{int(size):,}", NAMES.get(side, side), f"{figures['rate']['median']:,.0f}", share]
                cells += [f"{figures[key]['median']:.2f}" for key in ("cpu_us", "server_cpu_us")]
                yield f"| {' | '.join(cells)} |"
        yield ""


def _growth(report: dict[str, Any], drawn: dict[str, str]) -> Iterator[str]:
    found = find(report, ["parts", "curves", "points"]) or {}
    if not found:
        return
    yield "## How time and memory grow\n"
    yield "`python benchmarks/curves.py`: each point on an empty stream. Memory is what a process holds at its end.\n"
    for curve, points in found.items():
        across, title = CURVES[curve]
        if not points:
            continue
        sides = [key for key, figures in points[0].items() if isinstance(figures, dict)]
        verbs = [key for key in sides if "mib" in points[0][key]]
        raw = "raw" in sides  # the limit beside it, of which only the rate is known
        rates = {side: [(point["x"], point[side]["rate"]) for point in points] for side in sides}
        drawn[f"growth-{curve}.svg"] = charts.curves(f"{title}: rate", across, "a second", rates, log=True)
        last = verbs[-1]
        memory = {
            "ours": [(point["x"], point[last]["mib"]) for point in points],
            "the server": [(point["x"], point[last]["server_mib"]) for point in points],
        }
        drawn[f"memory-{curve}.svg"] = charts.curves(f"{title}: memory", across, "MiB", memory)
        yield f"### {title}\n"
        yield f"![{title}: rate](performance/growth-{curve}.svg)\n"
        yield f"![{title}: memory](performance/memory-{curve}.svg)\n"
        if curve == "partitions":
            whole = points[0].get("whole")
            whose = "the driver, the JVM and the Python workers together" if whole else "the driver's Python alone"
            yield f"Our CPU time and memory are those of {whose}.\n"
        if most := max(len(point[sides[0]].get("rates", ())) for point in points):
            yield f"The first and the last point were measured {most} times, in turn: the table has their medians.\n"
        heads = [f"{verb}, /s | {verb}, s | our CPU, µs | the server's CPU, µs" for verb in verbs]
        heads += ["a raw sender, /s"] * raw
        yield f"| {across} | {' | '.join(heads)} | MiB, ours | MiB, the server |"
        yield f"|{'---|' * (3 + 4 * len(verbs) + raw)}"
        for point in points:
            cells = [f"{point['x']:,}"]
            for verb in verbs:
                figures = point[verb]
                cells += [f"{figures['rate']:,.0f}", f"{figures['seconds']:,.2f}"]
                cells += [f"{figures[key]:,.2f}" for key in ("cpu_us", "server_cpu_us")]
            cells += [f"{point['raw']['rate']:,.0f}"] if raw else []
            cells += [f"{point[last][key]:,.0f}" for key in ("mib", "server_mib")]
            yield f"| {' | '.join(cells)} |"
        yield ""


LABELS = ("side", "against", "size", "sync", "rows")


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Give the numbers of a part's result, each with the way to it; lists of numbers are repetitions, and left out."""
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, str(key)))
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                label = " ".join(str(item[key]) for key in LABELS if key in item)
                rest = {key: inner for key, inner in item.items() if key not in LABELS}
                yield from leaves(rest, (*path, label) if label else path)


MACHINE = {"cores", "cpus", "python", "penstock", "compiled", "load"}


def _others(report: dict[str, Any]) -> Iterator[str]:
    for name, found in report["parts"].items():
        if name in ("paths", "curves"):
            continue
        went = report.get("went", {}).get(name, {})
        yield f"## Part {name}\n"
        if went:
            yield f"`{went['command']}`\n"
        yield "| figure | value |\n|---|---|"
        for path, value in leaves(found):
            if path[0] not in MACHINE:
                shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
                yield f"| {' · '.join(path)} | {shown} |".replace("||", "| |")
        yield ""


def _rest(report: dict[str, Any]) -> Iterator[str]:
    if skipped := report.get("skipped"):
        yield "## Skipped\n"
        yield from (f"- {name}: {why}." for name, why in skipped.items())
        yield ""
    failed = {name: went["failed"] for name, went in report.get("went", {}).items() if "failed" in went}
    if failed:
        yield "## Failed\n"
        yield from (f"- {name}: {why}." for name, why in failed.items())
        yield ""
    kept = sorted(path.name for path in PROFILES.glob("*.txt"))
    if kept:
        yield "## Profiles\n"
        yield "Where the time of a path goes, as text, made by `python benchmarks/profiling.py PATH`:\n"
        yield ", ".join(f"[{name.removesuffix('.txt')}](profiles/{name})" for name in kept) + ".\n"


def make(report: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Give the text of the page, and the charts by their names."""
    bars = tomllib.loads((ROOT / "benchmarks" / "bars.toml").read_text())["bar"]
    drawn: dict[str, str] = {}
    text = [HEAD.format(machine=_machine(report))]
    for part in (_bars(report, bars), _paths(report, drawn), _growth(report, drawn), _others(report), _rest(report)):
        text += part
    return "\n".join(text).rstrip() + "\n", drawn


_COMPARED = re.compile(r"(?<=\n)\| path \| Penstock \| other \| command \|\n.*?(?=\n\n)", re.DOTALL)


def compared(report: dict[str, Any], text: str) -> str:
    """Give the page of the comparison with the figures of a report in its table; a row without others is left out."""
    lines = ["| path | Penstock | other | command |", "|---|---|---|---|"]
    for row in tomllib.loads((ROOT / "benchmarks" / "compared.toml").read_text())["row"]:
        ours = find(report, row["ours"])
        others = [(name, figure) for name, keys in row["others"] if (figure := find(report, keys)) is not None]
        if ours is not None and others:
            beside = "; ".join(f"{name} {figure:,.0f}" for name, figure in others)
            lines.append(f"| {row['path']} | {ours:,.0f} | {beside} | `{row['command']}` |")
    made, places = _COMPARED.subn(lambda _: "\n".join(lines), text)
    if places != 1:
        raise ValueError("the page of the comparison has no place for its table")
    return made


def quoted(report: dict[str, Any], name: str, text: str) -> str:
    """Give a page with the figures of a report in its sentences; one that was not measured stays as it was."""
    for quote in tomllib.loads((ROOT / "benchmarks" / "quoted.toml").read_text())["quote"]:
        figure = find(report, quote["figure"])
        if quote["page"] != name or figure is None:
            continue
        before, after = quote["text"].split("{}")
        shown = f"{figure:{quote['shown']}}" if "shown" in quote else f"{float(f'{figure:.3g}'):,.0f}"
        around = rf"(?<={re.escape(before)})[\d.,]*\d(?={re.escape(after)})"
        text, places = re.subn(around, shown, text)
        if places != 1:
            raise ValueError(f"{name} has {places} places for {quote['text']!r}")
    return text


def pages() -> set[str]:
    """Give the pages that have figures in their sentences."""
    return {quote["page"] for quote in tomllib.loads((ROOT / "benchmarks" / "quoted.toml").read_text())["quote"]}


def write(report: dict[str, Any]) -> None:
    """Write the pages, the charts and the figures that they are made of; charts of before that are none now go."""
    text, drawn = make(report)
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.svg"):
        if path.name not in drawn:
            path.unlink()
    for name, chart in drawn.items():
        (FOLDER / name).write_text(chart)
    (FOLDER / "figures.json").write_text(json.dumps(report, indent=1) + "\n")
    PAGE.write_text(text)
    COMPARISON.write_text(compared(report, COMPARISON.read_text()))
    for page in pages():
        (ROOT / page).write_text(quoted(report, page, (ROOT / page).read_text()))


if __name__ == "__main__":
    write(json.loads(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "artifacts" / "bench.json").read_text()))
