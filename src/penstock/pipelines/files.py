"""Files of a pipeline that are written whole or not at all, also through a power cut."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import InputError

__all__ = ["write_whole"]


def write_whole(path: Path, content: Mapping[str, Any]) -> None:
    """Write fields as JSON, whole or not at all; InputError if the disk does not take them."""
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8") as file:
            file.write(json.dumps(content, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written: {error.strerror}.", remedy="Make room, or mend it.") from None
