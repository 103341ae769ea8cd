"""The command inside of this process: quick, for what needs no process of its own."""

from __future__ import annotations

import io
import logging
import os
import sys
from dataclasses import dataclass
from unittest import mock

from penstock.cli.app import main


@dataclass(frozen=True)
class Done:
    """What a command said, and how it ended."""

    status: int
    stdout: str
    stderr: str


def invoke(url: str | None, *arguments: str, stdin: str = "") -> Done:
    """Run `penstock` with arguments, as in a pipe, with a bare environment but for NATS_URL."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "XDG_"))}
    kept |= {"NO_COLOR": "1", "HOME": "/nonexistent", **({"NATS_URL": url} if url else {})}
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    root = logging.getLogger()
    handlers, level, status = root.handlers[:], root.level, 0
    with (
        mock.patch.dict(os.environ, kept, clear=True),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
    ):
        try:
            main(arguments)
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        finally:
            root.handlers[:] = handlers  # the command sets its own, on a stream that ends here
            root.setLevel(level)
            out.flush()
            err.flush()
    return Done(status, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())
