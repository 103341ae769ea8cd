"""What this process does to names and files, in order, as the functions of `os` are called."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

__all__ = ["record"]


def record(patch: pytest.MonkeyPatch, below: Path) -> list[tuple[str, str]]:
    """Give a list that grows by each sync, link and rename below a folder; a file in the making is called `part`."""
    found: list[tuple[str, str]] = []

    def name(path: str) -> str:
        if not path.startswith(str(below.parent)):
            return ""
        shown = Path(os.path.relpath(path, below))
        return str(shown.with_name("part") if shown.suffix == ".part" else shown)

    def wrapped(call: Callable[..., Any], place: int) -> Callable[..., Any]:
        def called(*given: Any, **more: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{given[0]}") if isinstance(given[0], int) else os.fspath(given[place])
            done = call(*given, **more)
            if shown := name(path):
                found.append((call.__name__, shown))
            return done

        return called

    for call, place in ((os.fsync, 0), (os.link, 1), (os.replace, 1)):
        patch.setattr(os, call.__name__, wrapped(call, place))
    return found
