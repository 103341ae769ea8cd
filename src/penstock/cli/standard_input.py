"""Bodies from the command line and from standard input, read while the connection goes on: a pipe may be slow."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from penstock.cli.flags import argument, flag
from penstock.cli.values import choice
from penstock.errors import InputError

__all__ = ["Body", "ForceStdin", "SendOn", "bodies", "pieces", "whole_body"]

Body = Annotated[str | None, argument("Body; standard input if none is given.")]
ForceStdin = Annotated[bool, flag("Take the body from standard input, whatever else is given.")]
SendOn = Annotated[str, flag("A message for all of standard input, or for each line.", "eof|newline")]

MAX_BODY = 64 * 1024 * 1024
_PIECE = 64 * 1024
_read_send_on = choice({"eof": "eof", "newline": "newline"})


async def bodies(body: str | None, *, stdin: bool, send_on: str) -> AsyncIterator[bytes]:
    """Give the body, or each line of standard input as it comes."""
    if _read_send_on(send_on, "--send-on") == "newline" and (body is None or stdin):
        async for line in _lines():
            yield line
    else:
        yield await whole_body(body, stdin=stdin)


async def whole_body(body: str | None, *, stdin: bool = False) -> bytes:
    """Give the body from the argument, or all of standard input."""
    if body is not None and not stdin:
        return os.fsencode(body)
    content = bytearray()
    async for piece in pieces():
        content += piece
        _check_size(content)
    return bytes(content)


async def _lines() -> AsyncIterator[bytes]:
    rest = bytearray()
    async for piece in pieces():
        rest += piece
        if b"\n" not in piece:
            _check_size(rest)
            continue
        *lines, last = rest.split(b"\n")
        rest = bytearray(last)
        for line in lines:
            yield bytes(line.removesuffix(b"\r"))
    if rest:
        yield bytes(rest)


def _check_size(content: bytearray) -> None:
    if len(content) > MAX_BODY:
        raise InputError(
            f"Standard input holds more than {MAX_BODY:,} bytes.",
            remedy="Send large payloads with `penstock chunks send`.",
        )


async def pieces() -> AsyncIterator[bytes]:
    """Give what standard input holds, without keeping the loop from its other work."""
    if sys.stdin is None:
        return
    try:
        number = sys.stdin.fileno()
    except io.UnsupportedOperation:  # somebody put something else in its place
        yield sys.stdin.buffer.read()
        return
    if sys.stdin.isatty():
        typer.echo("Reading the body from the terminal; Ctrl-D ends it.", err=True)
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(number, ready.set)
    except PermissionError:  # a file, which never keeps anybody waiting
        ready.set()
    try:
        while True:
            await ready.wait()
            try:
                piece = os.read(number, _PIECE)
            except OSError as error:  # a terminal that is gone, or somebody else's
                raise InputError(
                    f"Standard input cannot be read: {error.strerror}.", remedy="Give a body, or another input."
                ) from None
            if not piece:
                return
            yield piece
            if loop.remove_reader(number):
                ready.clear()
                loop.add_reader(number, ready.set)
    finally:
        loop.remove_reader(number)
