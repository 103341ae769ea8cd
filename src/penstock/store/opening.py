"""A file of this machine, or of any place that Arrow opens by its URI; Spark's `s3a://` is `s3://` to Arrow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO

from penstock.errors import InputError

__all__ = ["arrow_path", "open_file"]


def open_file(uri: str) -> BinaryIO:
    """Open a file to read any part of it."""
    if "://" not in uri:
        return Path(uri).open("rb")
    system, path = arrow_path(uri)
    # Small reads, one behind the other, must not each become a request.
    return io.BufferedReader(system.open_input_file(path), 1 << 20)


def arrow_path(uri: str) -> tuple[Any, str]:
    """Give the file system of a URI, and the path there."""
    from pyarrow import ArrowInvalid, fs

    scheme, _, rest = uri.partition("://")
    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(f"{'s3' if scheme == 's3a' else scheme}://{rest}")
    except ArrowInvalid as error:
        raise InputError(
            f"{uri} cannot be opened: {error}.", remedy="Use a path, or file, s3a, hdfs, gs, abfs."
        ) from None
    return found
