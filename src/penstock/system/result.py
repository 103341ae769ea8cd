"""The result of a check, as monitoring systems want it: Nagios, Prometheus and JSON. Pure.

A check is critical if anything is, else a warning if anything is one, else fine. The forms are those of
`nats server check`: names of gauges, keys of JSON and exit statuses are the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CheckResult", "Gauge", "judge"]

_CODES = {"OK": 0, "WARNING": 1, "CRITICAL": 2}
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]+")
_NO_METRIC = re.compile("[^a-zA-Z0-9_:]")


def _line(text: str) -> str:
    """Give text that can stand in the line of a plugin: Nagios takes | for the beginning of the gauges."""
    return _CONTROLS.sub(" ", text).replace("|", "/")


@dataclass(frozen=True)
class Gauge:
    """One figure of a check, and the levels from which on it is a warning or critical; 0 stands for no level."""

    name: str
    value: float
    warning: float = 0.0
    critical: float = 0.0
    unit: str = ""
    help: str = ""

    def nagios(self) -> str:
        """Write it as a plugin does: name=value;warning;critical."""
        digits = 4 if self.unit == "s" else 0
        name = f"'{self.name}'" if " " in self.name else self.name
        text = f"{name}={self.value:.{digits}f}{self.unit}"
        if self.warning or self.critical:
            text += f";{self.warning:.{digits}f}" if self.warning else ";"
        return f"{text};{self.critical:.{digits}f}" if self.critical else text

    def shown(self) -> str:
        """Write its value for people, with the levels that it has."""
        levels = [
            f"{name} {value:,g}" for name, value in (("warning", self.warning), ("critical", self.critical)) if value
        ]
        return f"{self.value:,.6g}{self.unit}" + (f" ({', '.join(levels)})" if levels else "")

    def to_json(self) -> dict[str, Any]:
        """Give it for programs."""
        figures = {"value": self.value, "warning": self.warning, "critical": self.critical}
        about = {"name": self.name, **{key: _whole(value) for key, value in figures.items()}}
        return {**about, "unit": self.unit} if self.unit else about


@dataclass
class CheckResult:
    """What a check found: sentences of three kinds, and figures."""

    suite: str
    """The kind of check."""
    name: str
    """What was checked."""
    oks: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    criticals: list[str] = field(default_factory=list)
    gauges: list[Gauge] = field(default_factory=list)

    def ok(self, text: str) -> None:
        """Say what is fine."""
        self.oks.append(text)

    def warn(self, text: str) -> None:
        """Say what is worth a warning."""
        self.warnings.append(text)

    def critical(self, text: str) -> None:
        """Say what is critical."""
        self.criticals.append(text)

    def say(self, level: str, text: str) -> None:
        """Say something of a level that `judge` gave."""
        {"OK": self.oks, "WARNING": self.warnings, "CRITICAL": self.criticals}[level].append(text)

    def measure(self, name: str, value: float, help: str = "", **levels: Any) -> None:
        """Add a figure; levels that are below zero are none."""
        levels = {key: max(level, 0) if key != "unit" else level for key, level in levels.items()}
        self.gauges.append(Gauge(name, float(value), help=help, **levels))

    @property
    def status(self) -> str:
        """OK, WARNING or CRITICAL."""
        return "CRITICAL" if self.criticals else "WARNING" if self.warnings else "OK"

    @property
    def code(self) -> int:
        """The exit status of a plugin: 0, 1 or 2."""
        return _CODES[self.status]

    def nagios(self) -> str:
        """Write it as one line, figures behind a bar."""
        said = [self.name]
        said += [f"Crit:{text}" for text in self.criticals]
        said += [f"Warn:{text}" for text in self.warnings]
        said += [f"OK:{text}" for text in self.oks]
        gauges = " ".join(item.nagios() for item in self.gauges)
        return f"{self.status} {_line(' '.join(said))}{f' | {_line(gauges)}' if gauges else ''}"

    def text(self) -> str:
        """Write it for people: what was found, and the figures."""
        said = [("critical", self.criticals), ("warning", self.warnings), ("ok", self.oks)]
        lines = [f"{self.name}: {self.status}"]
        lines += [f"  {level:>8}: {text}" for level, texts in said for text in texts]
        width = max((len(item.name) for item in self.gauges), default=0)
        lines += ["", *(f"  {item.name:>{width}}: {item.shown()}" for item in self.gauges)] if self.gauges else []
        return "\n".join(_CONTROLS.sub(" ", line) for line in lines)

    def to_json(self) -> dict[str, Any]:
        """Give it for programs; kinds of sentences that there are none of are left out."""
        said = {"warning": self.warnings, "critical": self.criticals, "ok": self.oks}
        return {
            "status": self.status,
            "check_suite": self.suite,
            "check_name": self.name,
            **{key: texts for key, texts in said.items() if texts},
            "perf_data": [item.to_json() for item in self.gauges],
        }

    def prometheus(self, namespace: str) -> str:
        """Write it in the text format of Prometheus, by name; `status_code` is the exit status of a plugin."""
        item = _label(self.name)
        found = {
            _NO_METRIC.sub("_", f"{namespace}_{self.suite}_{gauge.name}"): (
                gauge.help or f"A figure of the check {self.suite}",
                f'{{item="{item}"}} {_whole(gauge.value)!r}',
            )
            for gauge in self.gauges
        }
        found[_NO_METRIC.sub("_", f"{namespace}_{self.suite}_status_code")] = (
            f"Status of the check {self.suite}, as Nagios counts: 0 is fine, 1 a warning, 2 critical",
            f'{{item="{item}",status="{self.status}"}} {self.code}',
        )
        lines = []
        for name, (help, value) in sorted(found.items()):
            lines += [f"# HELP {name} {help}", f"# TYPE {name} gauge", f"{name}{value}"]
        return "\n".join(lines)


def _label(text: str) -> str:
    return _CONTROLS.sub(" ", text).replace("\\", "\\\\").replace('"', ".")


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() else value


def judge(value: float, warning: float | None, critical: float | None) -> str:
    """Say what a value is: at a level or above it; at it or below if the critical level is smaller, or is none.

    So `nats server check` has it: a warning level alone is a lower bound, a critical level alone an upper one.
    """
    if warning is not None and (critical is None or critical < warning):
        return "CRITICAL" if critical is not None and value <= critical else "WARNING" if value <= warning else "OK"
    if critical is not None and value >= critical:
        return "CRITICAL"
    return "WARNING" if warning is not None and value >= warning else "OK"
