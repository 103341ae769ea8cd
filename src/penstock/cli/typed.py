"""Commands as a reader can type them here: by name if the shell finds this very program, and by its path if not."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["typed"]


def typed(program: str, *arguments: str | Path) -> str:
    """Give a line for a shell that runs `penstock` or `python` of this environment, with these arguments."""
    return shlex.join([*_words(program), *map(str, arguments)])


def _words(program: str) -> list[str]:
    folder = Path(sys.executable).parent
    if program == "python":
        return next(([name] for name in ("python", "python3") if _is_found(name, folder)), [sys.executable])
    if _is_found(program, folder):
        return [program]
    beside = folder / program
    return [str(beside)] if beside.exists() else [sys.executable, "-m", program]


def _is_found(name: str, folder: Path) -> bool:
    found = shutil.which(name)
    return found is not None and os.path.samefile(Path(found).parent, folder)
