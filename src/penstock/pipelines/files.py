"""Files of a pipeline that are written whole or not at all, also through a power cut."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock import part_file
from penstock.errors import InputError

__all__ = ["write_whole"]


def write_whole(path: Path, content: Mapping[str, Any]) -> None:
    """Write fields as JSON, whole or not at all; InputError if the disk does not take them."""
    try:
        part_file.make_folder(path.parent)
        part_file.write_whole(path, json.dumps(content, sort_keys=True).encode() + b"\n")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.", remedy="Make room, or mend it.") from None
