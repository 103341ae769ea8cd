"""Asking whoever is at the terminal: questions, choices, and whether something is really meant."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from penstock.cli.late import assets
from penstock.cli.tables import plain
from penstock.errors import InputError

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.info import ConsumerInfo

__all__ = [
    "accepted",
    "ask",
    "ask_missing",
    "asking",
    "check_named",
    "confirm",
    "interruptible",
    "number",
    "one_of",
    "pick",
    "picked_consumer",
    "picked_stream",
    "yes",
]

Answer = TypeVar("Answer")
LISTED = 20  # names that an error tells


def asking(defaults: bool = False) -> bool:
    """Tell whether somebody is there to be asked: a terminal, and no --defaults."""
    return not defaults and sys.stdin is not None and sys.stdin.isatty()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end a question at once: an event loop would only note it, and hear of it after the answer."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears of signals
        return
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, press)
    try:
        yield
    except (KeyboardInterrupt, typer.Abort):
        if not pressed:  # the input ended
            raise
        typer.echo("\npenstock: Ended at the question; nothing was changed.", err=True)
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, before)


def ask(question: str, default: str, read: Callable[[str], Answer]) -> Answer:
    """Ask until the answer can be read; an empty answer is the default."""
    while True:
        with interruptible():
            text = typer.prompt(question, default=default, show_default=bool(default), err=True)
        try:
            return read("" if text is None else str(text).strip())
        except InputError as error:
            typer.echo(str(error), err=True)


def confirm(question: str, force: bool) -> None:
    """Ask before something is lost; -f skips it, and silence or no is a refusal. Answers may come through a pipe."""
    if force:
        return
    with interruptible():
        typer.echo(f"{plain(question)} [y/N]: ", nl=False, err=True)
        answer = sys.stdin.readline() if sys.stdin is not None else ""
    if sys.stdin is None or not sys.stdin.isatty():
        typer.echo("", err=True)  # a terminal shows the line that was typed, with its end
    if answer.strip().lower() not in ("y", "yes"):
        raise InputError("Not confirmed; nothing was changed.", remedy="Answer y, or give -f.")


def check_named(no_select: bool, **names: str | None) -> None:
    """Refuse to ask for a name that is missing, if that is what --no-select says."""
    for what, name in names.items():
        if no_select and name is None:
            raise InputError(f"Which {what}?", remedy="Name it, or leave --no-select out.")


def pick(what: str, names: Sequence[str], *, noun: str | None = None) -> str:
    """Let somebody at a terminal choose a name; `noun` is the command's, if it is another word."""
    if not names:
        raise InputError(f"There is no {what}.", remedy=f"Create one with `penstock {noun or what.split()[-1]} add`.")
    if not asking():
        more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
        raise InputError(f"Which {what}?", remedy=f"There are: {', '.join(names[:LISTED])}{more}.")
    for number, name in enumerate(names, 1):
        typer.echo(f"{number:>3}  {plain(name)}", err=True)

    def read(text: str) -> str:
        if text in names:
            return text
        if text.isdecimal() and 1 <= int(text) <= len(names):
            return names[int(text) - 1]
        raise InputError(f"{text!r} is not in the list.", remedy="Give a name or a number of the list.")

    return ask(f"Which {what}", "1", read)


async def picked_stream(client: Connection, name: str | None, *, everything: bool = False) -> str:
    """Give the stream that was named, or let somebody choose; `everything` offers those of buckets, too."""
    if name is not None:
        return name
    from penstock.cli.asset_show import is_internal

    names = [info.name for info in await assets.streams(client)]
    return pick("stream", [name for name in names if everything or not is_internal(name)])


async def picked_consumer(client: Connection, stream: str | None, name: str | None) -> ConsumerInfo:
    """Look at the consumer that was named, or let somebody choose."""
    stream = await picked_stream(client, stream)
    if name is None:
        name = pick(f"{stream} consumer", [info.name for info in await assets.consumers(client, stream)])
    return await assets.consumer_info(client, stream, name)


def ask_missing(flags: Any, *questions: tuple[str, str, str, Callable[[str], Any]]) -> dict[str, Any]:
    """Ask for each flag that says nothing: its name, the question, the default, and what reads the answer."""
    return {
        name: ask(question, default, read)
        for name, question, default, read in questions
        if getattr(flags, name) is None
    }


def number(text: str) -> int:
    """Read an answer that is a number."""
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{text!r} is not a number.", remedy="Give a whole number, -1 for no limit.") from None


def yes(text: str) -> bool:
    """Read an answer that is yes or no."""
    if text.lower() not in ("y", "yes", "n", "no"):
        raise InputError(f"{text!r} is neither yes nor no.", remedy="Answer y or n.")
    return text.lower().startswith("y")


def one_of(*known: str) -> Callable[[str], str]:
    """Read an answer that is one of these."""

    def read(text: str) -> str:
        if text not in known:
            raise InputError(f"{text!r} is not one of the answers.", remedy=f"Use one of {', '.join(known)}.")
        return text

    return read


def accepted(read: Callable[..., object], **about: str) -> Callable[[str], str]:
    """Take an answer as it is typed, if what reads the flag can read it; `option` names it in complaints."""

    def check(text: str) -> str:
        read(text, **about)
        return text

    return check
