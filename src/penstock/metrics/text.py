"""The text format of Prometheus, version 0.0.4: families of samples as bytes. Pure.

::

    # HELP name what it is
    # TYPE name gauge
    name{label="value",other="value"} 42
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["CONTENT_TYPE", "Family", "labels", "write"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""How HTTP names this format."""


@dataclass
class Family:
    """Samples of one name."""

    name: str
    kind: str
    """`gauge`, `counter` or `histogram`."""
    help: str
    samples: list[tuple[str, str, float]] = field(default_factory=list)
    """What stands behind the name, the labels as they are written, and the value."""

    def add(self, written: str, value: float | None) -> None:
        """Take a sample; a value that nobody knows is none."""
        if value is not None:
            self.samples.append(("", written, value))


def labels(values: Mapping[str, str | None]) -> str:
    """Write labels; those without a value are left out."""
    inner = ",".join(f'{name}="{_escape(value)}"' for name, value in values.items() if value)
    return f"{{{inner}}}" if inner else ""


def _escape(value: str) -> str:
    # Half a character cannot be written; a line ends at a line feed, and nowhere else.
    whole = value.encode("utf-8", "replace").decode()
    return whole.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write(families: Iterable[Family]) -> bytes:
    """Write families that have samples."""
    return "".join(line for family in families if family.samples for line in _lines(family)).encode()


def _lines(family: Family) -> Iterator[str]:
    told = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {family.name} {told}\n# TYPE {family.name} {family.kind}\n"
    for behind, written, value in family.samples:
        yield f"{family.name}{behind}{written} {_number(value)}\n"


def _number(value: float) -> str:
    if isinstance(value, float):
        if math.isinf(value):
            return "+Inf" if value > 0 else "-Inf"
        if value.is_integer() and abs(value) < 2**53:
            return str(int(value))
    return repr(value) if isinstance(value, float) else str(value)
