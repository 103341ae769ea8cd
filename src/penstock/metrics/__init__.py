"""Figures for Prometheus: what a survey saw, under the names of the NATS exporters if these have a name for it.

`penstock metrics serve` and the page `/metrics` of the console give them.
The names that it exports are public; its modules are not for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.exports import exports

if TYPE_CHECKING:
    from penstock.metrics.families import exposition as exposition
    from penstock.metrics.serving import MetricsServer as MetricsServer

__all__ = ["MetricsServer", "exposition"]

__getattr__, __dir__ = exports(
    __name__,
    {
        "MetricsServer": "penstock.metrics.serving",
        "exposition": "penstock.metrics.families",
    },
)
