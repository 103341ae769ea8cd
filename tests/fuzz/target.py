"""What a fuzz target is: a way into the code for any bytes, and what may come out of it.

A target takes bytes and reads them in every way that they are read. It may return, or raise an error that the part
promises; anything else is a finding, and so is an error that cannot be printed. Code that has a compiled and a plain
form is run in both, and the two must agree.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock import channels, store, wire
from penstock.errors import PenstockError

__all__ = ["CORPUS", "TARGETS", "Target", "agree", "as_message", "check", "seeds", "target"]

CORPUS = Path(__file__).resolve().parent / "corpus"
_LONGEST = 4000  # characters of an error: what came from outside is shown cut

Run = Callable[[bytes], object]
World = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Target:
    """A way in."""

    name: str
    run: Run
    allowed: tuple[type[Exception], ...]
    """What it may raise, besides errors of Penstock."""
    world: World | None = None
    """What a long run puts around it, such as a server; without it, it runs as well."""


TARGETS: dict[str, Target] = {}
"""All targets by name; the modules of this folder whose names begin with `targets_` add theirs."""


def target(name: str, *allowed: type[Exception], world: World | None = None) -> Callable[[Run], Run]:
    """Make a target of the function below; besides what it names, any error of Penstock's own may come out."""

    def add(run: Run) -> Run:
        assert name not in TARGETS, name
        TARGETS[name] = Target(name, run, allowed, world)
        return run

    return add


def check(target: Target, content: bytes) -> str:
    """Run a target; give "read" or the name of an allowed error. Whatever else happens is a finding."""
    try:
        target.run(content)
    except PenstockError as error:
        text = str(error)
        text.encode()  # half a character would break whoever prints it
        assert len(text) <= _LONGEST, f"an error of {len(text)} characters"
        return type(error).__name__
    except target.allowed as error:
        return type(error).__name__
    return "read"


def seeds(name: str) -> list[tuple[str, bytes]]:
    """Give the corpus of a target: the name and the content of each file."""
    return [(path.name, path.read_bytes()) for path in sorted((CORPUS / name).glob("*"))]


# -- both forms --------------------------------------------------------------------------------------------------------


def _forms() -> tuple[SimpleNamespace, SimpleNamespace]:
    import importlib

    plain: dict[str, Any] = {}
    compiled: dict[str, Any] = {}
    for room in (wire, store, channels):
        plain |= room.load_plain()
        compiled |= {name: importlib.import_module(f"{room.__name__}.{name}") for name in room.MODULES}
    return SimpleNamespace(**plain), SimpleNamespace(**compiled)


PLAIN, COMPILED = _forms()


def agree(read: Callable[[Any], Any], *allowed: str) -> Any:
    """Run what takes a form with both; the same must come out, an error of the same name counting as the same.

    `allowed` names errors that each form has a class of its own for.
    """
    outcomes = [_outcome(read, form, allowed) for form in (PLAIN, COMPILED)]
    assert outcomes[0] == outcomes[1], f"plain: {outcomes[0]!r:.1500} compiled: {outcomes[1]!r:.1500}"
    return outcomes[0]


def _outcome(read: Callable[[Any], Any], form: Any, allowed: tuple[str, ...]) -> Any:
    try:
        return read(form)
    except PenstockError as error:
        return type(error).__name__, str(error)
    except Exception as error:
        if type(error).__name__ not in allowed:
            raise
        return type(error).__name__, str(error)


def as_message(content: bytes) -> tuple[bytes | None, bytes]:
    """Take bytes for a message: a header block, if they begin with one, and a payload."""
    if not content.startswith(b"NATS/1.0"):
        return None, content
    end = content.find(b"\r\n\r\n")
    return (content, b"") if end < 0 else (content[: end + 4], content[end + 4 :])
