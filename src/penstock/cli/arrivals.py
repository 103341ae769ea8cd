"""How messages are shown as they arrive: as text, as bare payloads, as files, or as a report of their subjects."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer

from penstock.cli.output import counts, print_bytes, print_headers, read_block
from penstock.cli.tables import make_table, plain, print_table, terminal
from penstock.durations import format_duration
from penstock.errors import InputError, ProgramError
from penstock.part_file import PartFile
from penstock.sizes import format_size

if TYPE_CHECKING:
    from penstock.cli.programs import Program
    from penstock.connection import Msg

__all__ = ["Arrival", "Display", "Dumped", "Printed", "Raw", "Stored", "SubjectReport", "Translation"]


@dataclass(frozen=True)
class Stored:
    """Where a stream holds a message."""

    stream: str
    sequence: int
    time: datetime
    pending: int | None = None
    """How many wait behind it, if that is known."""


@dataclass(frozen=True)
class Arrival:
    """A message to show."""

    subject: str
    data: bytes
    header_block: bytes | None = None
    reply: str = ""
    subscription: str = ""
    """The subject that was subscribed to."""
    stored: Stored | None = None

    @classmethod
    def of(cls, message: Msg, subscription: str = "") -> Arrival:
        """Take a message as it came."""
        return cls(message.subject, message.data, message.header_block, message.reply, subscription)


class Display(Protocol):
    """A way to show messages."""

    async def show(self, number: int, arrival: Arrival, answer: Arrival | None = None) -> None:
        """Show a message, and what answered it."""

    def end(self) -> None:
        """Show what is left to show."""


class Translation:
    """Payloads as they are, or as a program of the user's translates them; what fails is told, and counted."""

    def __init__(self, program: Program | None) -> None:
        self.program, self.failed = program, 0

    async def of(self, number: int, arrival: Arrival) -> bytes | None:
        """Give the payload to show; None if it could not be translated."""
        if self.program is None:
            return arrival.data
        stream = arrival.stored.stream if arrival.stored else ""
        try:
            return await self.program.run(
                arrival.data, number, Subject=os.fsencode(arrival.subject), Stream=stream.encode()
            )
        except ProgramError as error:
            self.failed += 1
            typer.echo(plain(f"penstock: Message {number} is not translated: {error}"), err=True)
            return None

    def check(self) -> None:
        """Raise if something was not translated."""
        if self.failed and self.program is not None:
            what = f"{self.failed:,} message{'s were' if self.failed > 1 else ' was'} not translated."
            raise ProgramError(what, program=self.program.name, output=b"")


@dataclass
class Printed:
    """Text for people: a line of facts, headers, payload."""

    translation: Translation
    times: str = ""
    """Which time each message shows: when, since, or none."""
    headers_only: bool = False
    subjects_only: bool = False

    def __post_init__(self) -> None:
        self._began = time.monotonic()

    async def show(self, number: int, arrival: Arrival, answer: Arrival | None = None) -> None:
        reply = f" with reply {arrival.reply}" if arrival.reply and arrival.stored is None else ""
        typer.echo(plain(f"{self._time(arrival)}[#{number}] Received on {arrival.subject}{reply}{_where(arrival)}"))
        await self._content(number, arrival)
        if answer is not None:
            typer.echo(plain(f"{self._time(answer)}[#{number}] Answered on {answer.subject}"))
            await self._content(number, answer)

    async def _content(self, number: int, arrival: Arrival) -> None:
        if not self.subjects_only:
            print_headers(arrival.header_block, more=not self.headers_only)
            if not self.headers_only and (data := await self.translation.of(number, arrival)) is not None:
                print_bytes(data.removesuffix(b"\n") if self.translation.program else data)
            typer.echo("")
        sys.stdout.flush()

    def _time(self, arrival: Arrival) -> str:
        if not self.times:
            return ""
        moment = arrival.stored.time if arrival.stored else None
        if self.times == "when":
            return f"{(moment or datetime.now(UTC)).astimezone():%Y/%m/%d %H:%M:%S} "
        seconds = time.monotonic() - self._began
        if moment is not None:
            seconds = max((datetime.now(UTC) - moment).total_seconds(), 0.0)
        return f"{format_duration(round(seconds, 6))} "

    def end(self) -> None:
        self.translation.check()


def _where(arrival: Arrival) -> str:
    if (stored := arrival.stored) is None:
        return ""
    pending = "" if stored.pending is None else f", {stored.pending:,} pending"
    return f" (stream {stored.stream}, sequence {stored.sequence}{pending})"


@dataclass
class Raw:
    """Payloads for programs, a line each, and nothing else; or subjects."""

    translation: Translation
    subjects_only: bool = False

    async def show(self, number: int, arrival: Arrival, answer: Arrival | None = None) -> None:
        for item in (arrival, answer):
            if item is not None:
                data = os.fsencode(item.subject) if self.subjects_only else await self.translation.of(number, item)
                if data is not None:
                    print_bytes(data.removesuffix(b"\n") if self.translation.program else data)

    def end(self) -> None:
        self.translation.check()


class Dumped:
    """Messages as JSON, as the `nats` command writes them: a file each, or to standard output with a zero byte each.

    `lasting`: a file must outlast a power cut, because its message is acknowledged then; that takes its time.
    """

    def __init__(self, target: str, translation: Translation, *, lasting: bool) -> None:
        self.translation = translation
        self._lasting = lasting
        self._folder = None if target == "-" else Path(target)
        if not target:
            raise InputError("--dump names no folder.", remedy="Name one, or - for a pipe.")
        if self._folder is not None:
            try:
                self._folder.mkdir(0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(
                    f"--dump: {target} cannot be made: {error.strerror}.", remedy="Name a folder, or - for a pipe."
                ) from None

    async def show(self, number: int, arrival: Arrival, answer: Arrival | None = None) -> None:
        name = arrival.stored.sequence if arrival.stored else number
        await self._write(f"{name}.json", number, arrival)
        if answer is not None:
            await self._write(f"{name}_reply.json", number, answer)

    async def _write(self, name: str, number: int, arrival: Arrival) -> None:
        if (data := await self.translation.of(number, arrival)) is None:
            return
        content = _as_json(arrival, data)
        if self._folder is None:
            sys.stdout.flush()
            sys.stdout.buffer.write(content + b"\0")
            sys.stdout.flush()
            return
        _write_new(self._folder / name, content, lasting=self._lasting)

    def end(self) -> None:
        self.translation.check()


def _write_new(path: Path, content: bytes, *, lasting: bool) -> None:
    """Write a file that is not there yet: its name is a number, nothing of a message, and nothing is written over."""
    try:
        if lasting:
            with PartFile(path.parent, 0o600) as part:
                part.file.write(content)
                part.keep(path)
            return
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.", remedy="Name an empty folder.") from None


def _as_json(arrival: Arrival, data: bytes) -> bytes:
    headers: dict[str, list[str]] | None = None
    if arrival.header_block is not None:
        status, description, headers = read_block(arrival.header_block)
        if status is not None:
            headers = {"Status": [str(status)], **({"Description": [description]} if description else {}), **headers}
    content: dict[str, Any] = {"Subject": arrival.subject, "Reply": arrival.reply, "Header": headers}
    content |= {"Data": base64.b64encode(data).decode(), "Sub": None}
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace")


class SubjectReport:
    """How many messages and bytes each subject, or each subscription, has; live on a terminal, else at the end."""

    MOST = 100_000  # subjects that are told apart

    def __init__(self, top: int, *, by_subscription: bool = False) -> None:
        self._top, self._by_subscription = top, by_subscription
        self._messages: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._others = [0, 0]

    async def show(self, number: int, arrival: Arrival, answer: Arrival | None = None) -> None:
        name = arrival.subscription if self._by_subscription and arrival.subscription else arrival.subject
        if name not in self._messages and len(self._messages) >= self.MOST:
            self._others[0] += 1
            self._others[1] += len(arrival.data)
            return
        self._messages[name] += 1
        self._bytes[name] += len(arrival.data)

    def _rows(self) -> list[tuple[str, ...]]:
        top = sorted(self._messages.items(), key=lambda item: (-item[1], item[0]))[: self._top]
        rows = [(name, *counts(messages), format_size(self._bytes[name])) for name, messages in top]
        rest = sum(self._messages.values()) - sum(messages for _, messages in top) + self._others[0]
        if rest:
            left = sum(self._bytes.values()) - sum(self._bytes[name] for name, _ in top) + self._others[1]
            rows.append(("All others", *counts(rest), format_size(left)))
        return rows

    @property
    def _about(self) -> tuple[str, tuple[str, ...]]:
        what = "Subscription" if self._by_subscription else "Subject"
        title = f"Top {self._top} of {len(self._messages):,} {what.lower()}s"
        return title, (what, "#Messages", "#Bytes")

    @contextmanager
    def live(self) -> Iterator[None]:
        """Draw the report anew every second, on a terminal."""
        if not sys.stdout.isatty():
            with nullcontext():
                yield
            return
        from rich import box
        from rich.live import Live
        from rich.table import Table

        console = terminal()

        def draw() -> Table:
            title, columns = self._about
            return make_table(columns, self._rows(), console.width, title=title, box=box.ROUNDED, title_justify="left")

        with Live(get_renderable=draw, console=console, refresh_per_second=1, transient=True):
            yield

    def end(self) -> None:
        title, columns = self._about
        print_table(title, columns, self._rows())
