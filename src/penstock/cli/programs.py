"""Programs of the user's own that a message is given to: `--translate` and `--command`.

A program is words, never a line for a shell: the line is split first, and templates are filled into the words then, so
that nothing of a message becomes a word, a program or a shell's command. The payload goes to standard input. What the
program prints is what counts; its complaints go to our standard error. It has a time to end in, and takes everything
that it started with it.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress

from penstock.cli.message_parts import CALL, Template
from penstock.errors import InputError, ProgramError

__all__ = ["Program"]

MAX_OUTPUT = 64 * 1024 * 1024
MAX_VALUE = 100_000  # bytes of a variable of the environment; Linux takes 128 KiB
_PIECE = 64 * 1024


class Program:
    """A program with its words, found and checked before anything is done."""

    def __init__(self, line: str, option: str, *, seconds: float) -> None:
        held: list[bytes] = []

        def hold(name: bytes) -> str:
            held.append(name)
            return f"\0{len(held) - 1}\0"  # no word has such a character, and a template may have blanks

        text = CALL.sub(lambda found: hold(found.group()).encode(), os.fsencode(line))
        try:
            words = shlex.split(os.fsdecode(text))
        except ValueError:
            raise InputError(f"{option} has a quote that is not closed.", remedy="Quote it as for a shell.") from None
        if not words:
            raise InputError(f"{option} is empty.", remedy="Name a program and its arguments.")
        if "\0" in words[0]:
            raise InputError(
                f"{option} takes its program from the message.", remedy="Write its name; templates are for arguments."
            )
        if shutil.which(words[0]) is None:
            raise InputError(f"{option}: there is no program {words[0]}.", remedy="Check its name and PATH.")
        self.name, self._seconds = words[0], seconds
        self._words = [self._restored(os.fsencode(word), held) for word in words]
        self._templates = [Template(word) for word in self._words]

    @staticmethod
    def _restored(word: bytes, held: list[bytes]) -> bytes:
        parts = word.split(b"\0")
        parts[1::2] = [held[int(number)] for number in parts[1::2]]
        return b"".join(parts)

    async def run(
        self, payload: bytes, count: int = 1, *, variables: dict[str, bytes] | None = None, **names: bytes
    ) -> bytes:
        """Give the payload to the program, and give what it prints; ProgramError if it fails.

        `names` are what its words may hold as templates, `variables` what its environment has more than ours. A value
        that no variable can have is left out.
        """
        words = [template.fill(count, **names) for template in self._templates]
        for place, (template, word) in enumerate(zip(self._words, words, strict=True)):
            if b"\0" in word:
                raise self._error("is not run: an argument would have a zero byte in it")
            if word.startswith(b"-") and not template.startswith(b"-") and b"--" not in self._words[:place]:
                remedy = "If the program takes it, write -- before the template."
                raise self._error(
                    "is not run: a value from the message begins with - and would be taken for an option", remedy
                )
        environment = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
        for name, value in (variables or {}).items():
            if len(value) <= MAX_VALUE and b"\0" not in value:
                environment[name.encode()] = value
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=PIPE if payload else DEVNULL, stdout=PIPE, env=environment, start_new_session=True
            )
        except OSError as error:
            raise self._error(f"cannot be run: {error.strerror}") from None
        try:
            async with asyncio.timeout(self._seconds):
                _, output = await asyncio.gather(self._feed(process, payload), self._read(process))
                status = await process.wait()
        except TimeoutError:
            raise self._error(f"did not end in {self._seconds:g} s", "A longer --timeout may help.") from None
        finally:
            await _end(process)
        if status:
            ended = f"ended with status {status}" if status > 0 else f"was ended by signal {-status}"
            raise self._error(ended, output=output, status=status)
        return output

    async def _feed(self, process: Process, payload: bytes) -> None:
        if process.stdin is None:
            return
        with suppress(BrokenPipeError, ConnectionResetError):  # it need not read all of it
            process.stdin.write(payload)
            await process.stdin.drain()
        process.stdin.close()
        with suppress(BrokenPipeError, ConnectionResetError):  # nobody else asks, and asyncio would log it
            await process.stdin.wait_closed()

    async def _read(self, process: Process) -> bytes:
        assert process.stdout is not None
        output = bytearray()
        while piece := await process.stdout.read(_PIECE):
            output += piece
            if len(output) > MAX_OUTPUT:
                raise self._error(f"prints more than {MAX_OUTPUT:,} bytes")
        return bytes(output)

    def _error(
        self, what: str, remedy: str = "", *, output: bytes | None = None, status: int | None = None
    ) -> ProgramError:
        return ProgramError(
            f"{self.name} {what}.", remedy=remedy, program=self.name, status=status, output=output or b""
        )


async def _end(process: Process) -> None:
    """End the program and all that it started: it leads a group of its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
