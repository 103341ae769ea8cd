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
            subprocess.run([*shlex.split(named), str(file)], check=True)
            return file.read_text()
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            what = f"The editor {named!r} failed: {getattr(error, 'strerror', None) or error}."
            raise InputError(what, remedy="Check EDITOR. Nothing was changed.") from None
