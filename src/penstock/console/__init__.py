"""The web console: streams, consumers, messages, pipelines and transfers in a browser, and as JSON.

It only reads, unless it is told that somebody may act (`write`).

`Console` serves it on this machine, `Settings` says how. What it stands on is an extra, `penstock[console]`, and is
loaded when a name is used. The names that it exports are public; its modules are not for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.exports import exports

if TYPE_CHECKING:
    from penstock.console.console import Console as Console
    from penstock.console.settings import Settings as Settings

__all__ = ["Console", "Settings", "check_installed"]

__getattr__, __dir__ = exports(
    __name__, {"Console": "penstock.console.console", "Settings": "penstock.console.settings"}
)


def check_installed() -> None:
    """Say in one sentence what is missing, before anything is begun."""
    from penstock import extras

    extras.check_installed("console", "The console")
