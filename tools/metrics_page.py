"""Writes docs/reference/metrics.md: every figure that is served for Prometheus, from the code that serves it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from api_pages import clean, field_sentences, table

from penstock.chunks import Counts
from penstock.jetstream import WorkerCounts
from penstock.metrics import families, programs
from penstock.metrics.text import Family
from penstock.spark import ProgressListener
from penstock.survey import Snapshot

Row = tuple[str, str, str]
_ACCOUNT = {"storage": 0, "memory": 0, "limits": {"max_storage": 0, "max_memory": 0}, "api": {"total": 0, "errors": 0}}


def page() -> str:
    """Give the page."""
    asked = Snapshot(jetstream=True, account=_ACCOUNT)
    survey: Any = SimpleNamespace(ears=SimpleNamespace(missed=0))  # all that is asked of it here
    parts = [
        ("The survey itself", "", families._survey(asked, survey, 0.0)),
        ("The account", "Label: `domain`, if there is one.", families._account(asked)),
        (
            "Streams",
            "Labels: `stream_name`, `stream_leader`, `is_stream_leader`, `cluster`; of a copy also `source_name` and "
            "`source_api`, or `mirror_name` and `mirror_api`.",
            families._streams(()),
        ),
        (
            "Consumers",
            "Labels: those of the stream, `consumer_name`, `consumer_leader`, `is_consumer_leader`.",
            families._consumers(asked, 0.0),
        ),
        ("Acks and advisories", "Labels: `stream`, `consumer`.", families._heard({})),
        ("Channels of NATS Streaming", "Labels: `cluster_id`, `channel`.", families._channels(())),
        (
            "Pipelines",
            "Labels: `pipeline`, `replay`; of a flow also `flow`, of a state `state`.",
            families._pipelines(()),
        ),
        (
            "What needs attention",
            "Labels: `kind`, `about`, `severity`, and the names of what it is about.",
            families._troubles(asked),
        ),
    ]
    text = [
        "# Metrics",
        "",
        "What `penstock metrics serve`, the page `/metrics` of the console and `penstock.metrics.exposition` give, in",
        "the text format of Prometheus. [How to watch NATS with it](../howto/metrics.md).",
    ]
    for head, labels, found in parts:
        text += ["", f"## {head}", "", *([labels, ""] if labels else []), _rows(_told(found))]
    text += [
        "",
        "## Programs of yours",
        "",
        "Given by `exposition(programs=...)` and `MetricsServer(options, programs=...)`. Label: `name`, as you gave",
        "it; of failures also `reason`, of the bus also `queue`, of refused requests also `status`.",
        "",
        _rows(sorted({*_counted("penstock_chunks", Counts), *_counted("penstock_worker", WorkerCounts)})),
        "",
        _rows(_literals()),
        "",
        "## Queries of Spark",
        "",
        "Given by `ProgressListener().collector()` in the driver of a query, through `prometheus_client`:",
        "[how to register it](../howto/spark-read.md#lag-and-rates). Labels: `query`; of lag and skipped messages also",
        "`stream`.",
        "",
        _rows(_of_queries()),
    ]
    return "\n".join(text) + "\n"


def _rows(rows: Iterable[Row]) -> str:
    return table(("name", "kind", "meaning"), list(rows))


def _told(found: Iterable[Family]) -> Iterator[Row]:
    for family in found:
        yield f"`{family.name}`", family.kind, f"{clean(family.help)}."


def _counted(prefix: str, counts: type) -> Iterator[Row]:
    """Give the counters of a class of counts; each has a sentence under its field."""
    sentences = field_sentences(counts)
    for item in dataclasses.fields(counts):
        if item.type in (int, "int"):
            yield f"`{prefix}_{item.name}`", "counter", sentences[item.name]


def _literals() -> Iterator[Row]:
    """Give the figures that are written out in the code of programs: kind, name, and what it is."""
    for function in (programs._figures, programs._gateway):
        prefix = "penstock_gateway_" if function is programs._gateway else ""
        for node in ast.walk(ast.parse(inspect.getsource(function))):
            if not isinstance(node, ast.Tuple) or not isinstance(node.elts[0], ast.Constant):
                continue
            if node.elts[0].value not in ("gauge", "counter"):
                continue
            kind, name, meaning = map(ast.literal_eval, node.elts[:3])
            if prefix and not name.startswith(prefix):
                name, meaning = (
                    f"{prefix}{name}",
                    f"{meaning}, of a gateway of channels",
                )  # as its loop puts it together
            yield f"`{name}`", kind, f"{clean(meaning)}."


def _of_queries() -> Iterator[Row]:
    """Give the figures of queries under the names that Prometheus sees: prometheus_client ends those of counters."""
    for family in ProgressListener().collector().collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield f"`{name}`", family.type, clean(family.documentation)
