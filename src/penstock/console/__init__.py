"""The web console: streams, consumers, messages, pipelines and transfers in a browser, and as JSON. It only reads.

`Console` serves it on this machine, `Settings` says how. What it stands on is an extra, `penstock[console]`, and is
loaded when a name is used. The names that it exports are public; its modules are not for users.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from penstock.exports import exports

if TYPE_CHECKING:
    from penstock.console.console import Console as Console
    from penstock.console.settings import Settings as Settings

__all__ = ["Console", "Settings", "check_installed"]

__getattr__, __dir__ = exports(
    __name__, {"Console": "penstock.console.console", "Settings": "penstock.console.settings"}
)

_NEEDED = ("starlette", "uvicorn", "jinja2")


def check_installed() -> None:
    """Say in one sentence what is missing, before anything is begun."""
    from penstock.errors import InputError

    missing = [name for name in _NEEDED if not _is_there(name)]
    if missing:
        raise InputError(
            f"The console needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed.",
            remedy="Run: pip install 'penstock[console]'.",
        )


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # somebody has put something else in its place
        return False
