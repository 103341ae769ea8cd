"""What is installed only if asked for: which extra brings which package, and the sentence if one is missing. Pure."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from penstock.errors import InputError

__all__ = ["EXTRAS", "check_installed", "install_line", "missing_packages", "without_extra"]

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "spark": ("pyspark", "pyarrow", "pandas"),
    "console": ("starlette", "uvicorn", "jinja2", "prometheus_client"),
    "yaml": ("yaml",),
    "websocket": ("websockets",),
    "uvloop": ("uvloop",),
    "nats-py": ("nats",),
}
"""The extras of the package, and for each the modules that it brings, by the names under which they are imported."""


def install_line(extra: str) -> str:
    """Give what to say to pip for an extra."""
    return f"pip install 'penstock[{extra}]'"


def missing_packages(extra: str) -> list[str]:
    """Give the packages of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if not _is_there(name)]


def check_installed(extra: str, who: str) -> None:
    """Say in one sentence what somebody needs and is not installed, before anything is begun."""
    missing = missing_packages(extra)
    if missing:
        raise InputError(
            f"{who} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed.",
            remedy=f"Run: {install_line(extra)}.",
        )


def without_extra(error: ModuleNotFoundError, who: str) -> InputError | None:
    """Give the sentence for a module that could not be imported; None if no extra of ours brings it."""
    name = (error.name or "").partition(".")[0]
    for extra, brought in EXTRAS.items():
        if name in brought:
            return InputError(f"{who} needs {name}, which is not installed.", remedy=f"Run: {install_line(extra)}.")
    return None


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # somebody has put something else in its place
        return False
