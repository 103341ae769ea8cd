"""What `penstock pipeline new` writes: a pipeline small enough to read in a minute, and whole enough to run.

The files are those of the folder `template`, each with `.in` behind its name.
"""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import InputError

__all__ = ["write_project"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_TEMPLATE = Path(__file__).parent / "template"


def write_project(where: Path, name: str) -> Path:
    """Write a new project into a folder of its name, and give the folder."""
    if not _NAME.fullmatch(name):
        what = f"{name!r} cannot be the name of a pipeline."
        raise InputError(what, remedy="Begin with a letter; use letters, digits, - and _.")
    folder = where / name
    if folder.exists():
        raise InputError(f"{folder} is there already.", remedy="Choose another name.")
    try:
        for source in sorted(_TEMPLATE.rglob("*.in")):
            target = folder / source.relative_to(_TEMPLATE).with_suffix("")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(source.read_text(encoding="utf-8").replace("@NAME@", name), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.", remedy="Choose another place.") from None
    return folder
