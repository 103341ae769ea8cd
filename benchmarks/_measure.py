"""What the benchmarks measure with: CPU time and memory of a process, sides in turn, medians and their spread."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["about", "cpu_of", "medians", "memory_of", "ratios", "rotated", "summary"]

Side = TypeVar("Side")
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_of(pid: int) -> float:
    """Give the CPU seconds of a process, user and system, in steps of a hundredth."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def memory_of(pid: int | str = "self") -> float:
    """Give the resident memory of a process in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 2**20


def rotated(names: Sequence[Side], turn: int) -> list[Side]:
    """Give the sides in another order every round: none always comes first, or always behind the same other one."""
    place = turn % len(names)
    order = [*names[place:], *names[:place]]
    return order[::-1] if turn % 2 else order


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Give the median of repetitions, the least and the most, and all of them."""
    ordered = sorted(values)
    return {
        "median": _short(statistics.median(ordered)),
        "min": _short(ordered[0]),
        "max": _short(ordered[-1]),
        "all": [_short(value) for value in values],
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def medians(found: list[dict[str, float]]) -> dict[str, float]:
    """Give the median of each kind of process over the rounds."""
    kinds = sorted({kind for one in found for kind in one})
    return {kind: round(statistics.median(one.get(kind, 0.0) for one in found), 2) for kind in kinds}


def ratios(rates: Mapping[str, Sequence[float]], to: str) -> dict[str, dict[str, Any]]:
    """Give the ratio of each side to one of them, round by round: neighbours share the load of the moment."""
    return {
        f"{side} / {to}": summary([mine / other for mine, other in zip(values, rates[to], strict=True) if other])
        for side, values in rates.items()
        if side != to and any(rates[to])
    }


def about() -> dict[str, Any]:
    """Say what machine and versions a figure is of."""
    import platform
    import sys

    import penstock
    from penstock.wire import compiled

    load: Callable[[], tuple[float, ...]] = os.getloadavg
    return {
        "penstock": penstock.__version__,
        "compiled": compiled,
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "system": platform.system(),
        "load": round(load()[0], 2),
    }
