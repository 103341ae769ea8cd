"""A Prometheus that keeps our figures for longer than an hour: asked by its HTTP API, one question a line of a chart.

What comes from there was written by somebody else: it is read with care, bounded, and shown as text.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from penstock.console.http_asking import ask_http, check_http, place_of
from penstock.errors import MonitorError, PenstockError
from penstock.system.fields import read_object

__all__ = ["SPANS", "Prometheus", "PrometheusLine", "PrometheusSpan", "selector"]

_MOST = 8 * 2**20  # bytes of an answer
_LINES = 200  # lines of an answer, and
_POINTS = 2000  # points of one of them
_AT_ONCE = 4  # questions under way together
_KEPT = 200  # answers that are remembered
_OLD = 45.0  # seconds for which one is good: pages that stay fresh ask every few seconds
_REST = 10.0  # seconds after a failure in which nobody asks again
_WIDE = 300.0  # seconds that one point stands for, at least: figures may be taken once in a minute or two
_DRAWN = 240  # points of a line


@dataclass(frozen=True)
class PrometheusSpan:
    """A stretch of time that is asked for."""

    name: str
    """As it stands in an address: `24h`."""
    says: str
    """As people read it."""
    seconds: float

    @property
    def step(self) -> int:
        """Seconds from one point to the next."""
        return round(self.seconds / _DRAWN)

    @property
    def window(self) -> str:
        """What one point stands for, as PromQL writes it."""
        return f"{max(self.step, round(_WIDE))}s"


SPANS = {
    span.name: span
    for span in (
        PrometheusSpan("6h", "6 hours", 6 * 3600.0),
        PrometheusSpan("24h", "24 hours", 24 * 3600.0),
        PrometheusSpan("7d", "7 days", 7 * 86400.0),
    )
}
"""What is asked of Prometheus; the last hour is in memory."""


@dataclass(frozen=True)
class PrometheusLine:
    """One series of an answer: times in seconds since 1970 and values, None for a stretch that has none."""

    labels: Mapping[str, str]
    points: list[tuple[float, float | None]]


def selector(labels: Mapping[str, str]) -> str:
    """Write what labels must be, in PromQL; an empty value stands for none. No name can become part of the question."""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    # Half a character is served as a question mark. Everything but plain letters is written by its number.
    whole = text.encode("utf-8", "replace").decode()
    return "".join(letter if letter.isascii() and letter.isalnum() else f"\\U{ord(letter):08x}" for letter in whole)


class Prometheus:
    """Asks a Prometheus. Its address may hold a login, which is shown to nobody."""

    def __init__(self, url: str) -> None:
        self._url = check_http(url, "a Prometheus", "http://127.0.0.1:9090")
        self.where = place_of(self._url)
        """Its host and port."""
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._known: OrderedDict[tuple[str, str], tuple[float, list[PrometheusLine]]] = OrderedDict()
        self._failed: tuple[float, PenstockError] | None = None

    def __repr__(self) -> str:
        return f"Prometheus({self.where!r})"

    async def ask(self, question: str, span: PrometheusSpan, *, timeout: float) -> list[PrometheusLine]:
        """Ask for a stretch of time up to now; MonitorError if it does not answer, or refuses."""
        async with self._turn:
            now = time.monotonic()
            key = question, span.name
            if key in self._known and self._known[key][0] > now:
                return self._known[key][1]
            if self._failed is not None and self._failed[0] > now:
                raise self._failed[1]
            try:
                found = await self._asked(question, span, timeout)
            except PenstockError as error:
                self._failed = time.monotonic() + _REST, error
                raise
            self._known[key] = time.monotonic() + _OLD, found
            self._known.move_to_end(key)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
            return found

    async def _asked(self, question: str, span: PrometheusSpan, timeout: float) -> list[PrometheusLine]:
        end = math.floor(time.time())
        asked = {
            "query": question,
            "start": str(end - round(span.seconds)),
            "end": str(end),
            "step": str(span.step),
            "timeout": f"{timeout:g}s",
        }
        url = f"{self._url}/api/v1/query_range?{urlencode(asked)}"
        status, body = await ask_http("Prometheus", url, timeout=timeout, most=_MOST)
        return self._read(status, body, span.step)

    def _read(self, status: int, body: bytes, step: int) -> list[PrometheusLine]:
        try:
            return _read(body, step)
        except MonitorError as error:
            what = f"Prometheus at {self.where} refuses the question: {error.description}."
            raise MonitorError(what, server=self.where, code=status, description=error.description) from None
        except (PenstockError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            what = f"What answers at {self.where}, with status {status}, is not a Prometheus."
            raise MonitorError(what, remedy="Is the address right?", server=self.where, code=status) from None


def _read(body: bytes, step: int) -> list[PrometheusLine]:
    """Read an answer: ValueError and its like if it is not one, MonitorError if it says what went wrong."""
    answer = read_object(body)
    if answer["status"] != "success":
        said = f"{answer['errorType']}: {answer['error']}"[:300]
        whole = said.encode("utf-8", "replace").decode()  # half a character would break whoever prints it
        raise MonitorError("refused", description=whole.rstrip("."))
    data = answer["data"]
    if data["resultType"] != "matrix" or len(data["result"]) > _LINES:
        raise ValueError("not what was asked for")
    return [_line(item, step) for item in data["result"]]


def _line(item: dict[str, Any], step: int) -> PrometheusLine:
    labels = {str(name): str(value) for name, value in item["metric"].items()}
    if len(item["values"]) > _POINTS:
        raise ValueError("too many points")
    found = [(float(when), float(value)) for when, value in item["values"]]
    points: list[tuple[float, float | None]] = []
    for (when, value), (later, _) in itertools.pairwise([*found, (math.inf, 0.0)]):
        points.append((when, value if math.isfinite(value) else None))
        if math.isfinite(later) and later - when > 1.5 * step:
            points.append((when + step, None))
    return PrometheusLine(labels, points)
