"""Text that somebody changes in the editor of their choice."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from penstock.errors import InputError

__all__ = ["in_editor"]


def in_editor(text: str, suffix: str) -> str:
    """Let the editor that VISUAL or EDITOR names change a text, in a file of its own, and give what became of it."""
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not named:
        raise InputError("No editor is named.", remedy="Set EDITOR, such as EDITOR=vi.")
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:  # for nobody else, as all such folders are
        file = Path(folder, f"edit{suffix}")
        file.write_text(text)
        try:
            status = subprocess.run([*shlex.split(named), str(file)], check=False).returncode
            if not status:
                return file.read_text()
            what = f"it ended with status {status}"
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or str(error)
    raise InputError(f"The editor {named!r} failed: {what}.", remedy="Check EDITOR. Nothing was changed.")
