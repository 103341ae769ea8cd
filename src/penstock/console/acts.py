"""What can be done from the console, as data: each act has a form, a look at what it is about, and a plan.

A plan is made without changing anything: a sentence that says what would happen, the command that would do the same,
and a function that does it. It is made when the form is looked at, and again when it is sent, so that what is done is
done to what is there then; `ActSight.made` must still be the same, or the act is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.console.backend import Backend, Data, iso
from penstock.console.forms import Field
from penstock.errors import InputError
from penstock.jetstream import assets

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.info import ConsumerInfo, StreamInfo

__all__ = [
    "Act",
    "ActRequest",
    "ActSight",
    "Done",
    "Intent",
    "act",
    "digest",
    "see_consumer",
    "see_nothing",
    "see_stream",
]

_LONGEST = 255  # bytes of a name that is acted on: the server takes no longer ones
_FREE = ("project", "key", "object")  # what may be named as it likes: keys and objects are checked by their buckets
_LONGEST_FREE = 4096


@dataclass(frozen=True)
class ActRequest:
    """What is asked for: on what, and with what in the fields of the form."""

    backend: Backend
    client: Connection
    targets: Mapping[str, str]
    values: Mapping[str, str] = field(default_factory=dict)
    many: Sequence[str] = ()
    """What was ticked in a list, for an act on many."""

    def number(self, name: str, label: str, *, least: int = 0) -> int | None:
        """Give a number that was typed, None if nothing was."""
        text = self.values.get(name, "")
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) < 2**63):
            raise InputError(f"{label} is {text[:40]!r}.", remedy=f"Give a number from {least} on.")
        return int(text)


@dataclass(frozen=True)
class ActSight:
    """What an act is about, as it is now."""

    made: str = ""
    """What must be the same when it is done."""
    info: Any = None
    values: Mapping[str, str] = field(default_factory=dict)
    """What the fields of the form begin with."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """What the form says of fields, in the place of their own hints."""


@dataclass(frozen=True)
class Done:
    """What became of an act that the server confirmed."""

    says: str
    answer: Any = None
    """What the server answered, for people to see."""
    link: str = ""
    """A page of the console that shows more."""
    whole: bool = True
    """Whether all of it was done; `says` tells what was not."""


@dataclass(frozen=True)
class Intent:
    """What an act would do."""

    says: str
    commands: Sequence[Sequence[str]]
    """The words of the commands that do the same."""
    do: Callable[[], Awaitable[Done]]
    changes: Sequence[str] = ()


Look = Callable[[ActRequest], Awaitable[ActSight]]
Plan = Callable[[ActRequest, ActSight], Awaitable[Intent]]


@dataclass(frozen=True)
class Act:
    """One thing that can be done."""

    name: str
    label: str
    of: str
    """The kind of thing that it is done to; pages show a link to each act of their kind."""
    plan: Plan
    look: Look
    targets: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    typed: str | None = None
    """The target whose name must be typed before something is lost."""
    many: str | None = None
    """The name of the boxes that are ticked in a list, for an act on many."""
    optional: tuple[str, ...] = ()
    """Targets that need not be named."""

    @property
    def sentence(self) -> str:
        """What it does."""
        return " ".join((self.plan.__doc__ or "").split())

    def named(self, given: Mapping[str, str]) -> dict[str, str]:
        """Give the targets that are named, or say which one is missing."""
        found = {}
        for target in self.targets:
            name = given.get(target, "")
            if not name and target in self.optional:
                continue
            if not name:
                raise InputError(f"Which {target}?", remedy="Begin on the page of what you want to act on.")
            most = _LONGEST_FREE if target in _FREE else _LONGEST
            if len(name.encode("utf-8", "replace")) > most:
                raise InputError(f"The name of the {target} is too long.", remedy=f"Names have up to {most:,} bytes.")
            found[target] = name if target in _FREE else assets.checked(name, target)
        return found

    def word(self, targets: Mapping[str, str]) -> str | None:
        """Give what must be typed before something is lost: the name, or that before it if nobody could type it."""
        if self.typed is None:
            return None
        name = targets[self.typed]
        typeable = name.isprintable() and name == name.strip() and len(name) <= _LONGEST
        return name if typeable else targets[self.targets[0]]

    def typed_fields(
        self, given: Mapping[str, Sequence[str]], begin: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Give what was typed into each field; before anything was, what it begins with."""
        values = {}
        for item in self.fields:
            if begin is not None and item.name not in given:
                values[item.name] = begin.get(item.name, item.default)
            else:
                values[item.name] = item.checked((given.get(item.name) or [""])[-1])
        return values

    def told(self, values: Mapping[str, str]) -> Data:
        """Give what was typed for the log: of private fields the length."""
        return {
            item.name: f"{len(values[item.name].encode())} bytes" if item.private else values[item.name]
            for item in self.fields
            if values.get(item.name)
        }


async def see_nothing(asked: ActRequest) -> ActSight:
    """See nothing: the act makes something new, or is about no one thing."""
    return ActSight()


async def see_stream(asked: ActRequest) -> ActSight:
    """See a stream: it is the same as long as it was made at the same moment."""
    info = await assets.stream_info(asked.client, asked.targets["stream"])
    return ActSight(_made(info), info)


async def see_consumer(asked: ActRequest) -> ActSight:
    """See a consumer: it is the same as long as it was made at the same moment, in the same stream."""
    info = await assets.consumer_info(asked.client, asked.targets["stream"], asked.targets["consumer"])
    stream = await assets.stream_info(asked.client, info.stream)
    return ActSight(f"{_made(stream)} {_made(info)}", info)


def _made(info: StreamInfo | ConsumerInfo) -> str:
    return iso(info.created) or ""


def digest(content: object) -> str:
    """Give a short sign of a configuration, to see whether it is still the same."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def act(
    name: str,
    label: str,
    *,
    of: str,
    targets: tuple[str, ...] = (),
    fields: tuple[Field, ...] = (),
    typed: str | None = None,
    look: Look = see_nothing,
    many: str | None = None,
    optional: tuple[str, ...] = (),
) -> Callable[[Plan], Act]:
    """Make an act of the plan below; its docstring says what the act does."""

    def make(plan: Plan) -> Act:
        return Act(name, label, of, plan, look, targets, fields, typed, many, optional)

    return make
