"""The Python that Spark starts for its workers, and in which it looks for formats.

Spark takes the one that `PYSPARK_PYTHON` names, and otherwise the `python3` that the shell would find. For a program
that an environment's own `python` runs, without the environment being activated, that is another Python, in which
nothing of the environment is installed: Spark does not find the format "nats" there, and no function of Python that
needs a package of the environment works.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

__all__ = ["other_python", "use_this_python"]

# Somebody has chosen already: by name, by starting this Python from Spark, or by leaving Spark elsewhere.
_CHOSEN = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")


def other_python() -> str | None:
    """Give the Python that Spark would start if it is none of this environment; None if nothing is to be done."""
    if not sys.executable or any(os.environ.get(name) for name in _CHOSEN):
        return None
    found = shutil.which("python3")
    with contextlib.suppress(OSError):  # an executor's Python may lie where nobody can look
        if found is not None and os.path.samefile(Path(found).parent, Path(sys.executable).parent):
            return None
    return found or "python3"


def use_this_python() -> None:
    """Let Spark start this Python, unless somebody has chosen one; it counts for a Spark that starts later."""
    if other_python() is not None:
        os.environ["PYSPARK_PYTHON"] = sys.executable
