"""Streams and consumers declared as data: `Topology`, from Python or from a file; `plan` and `apply`.

::

    [streams.ORDERS]
    subjects = ["ORDERS.*"]
    max_age = "7d"
    max_bytes = "10GB"

    [streams.ORDERS.consumers.DISPATCH]
    filter_subjects = ["ORDERS.processed"]
    ack_wait = "30s"

So in TOML; in YAML and JSON the same tables. The keys are the fields of `penstock.model.Stream` and `Consumer`. A
consumer's name is its key, and it is durable unless it says `ephemeral = true`. Everything is checked before anything
is sent.
"""

from __future__ import annotations

import difflib
import itertools
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.durations import parse_duration
from penstock.errors import DeniedError, InputError, JetStreamError, NotFoundError, PenstockError
from penstock.info import StreamInfo
from penstock.jetstream import assets
from penstock.jetstream.changes import Plan, Step, consumer_step, own_metadata, stream_step
from penstock.jetstream.rules import (
    check_consumer,
    check_consumers_together,
    check_stream,
    check_streams_together,
    idle_filters,
)
from penstock.jetstream.topology_forms import Form, form_of, read_form
from penstock.model import Consumer, Stream
from penstock.sizes import parse_size

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["Topology", "apply", "plan"]

log = logging.getLogger("penstock.jetstream")

_SIZES = {"max_bytes", "max_msg_size"}
Made = TypeVar("Made", Stream, Consumer)


@dataclass(init=False, repr=False)
class Topology:
    """Streams and their consumers as they are meant to be; checked whole when it is made."""

    streams: dict[str, Stream]
    """By name."""
    consumers: dict[str, dict[str, Consumer]]
    """By stream, and by name."""

    def __init__(
        self, streams: Iterable[Stream] = (), consumers: Mapping[str, Iterable[Consumer]] | None = None
    ) -> None:
        """`consumers` holds, by stream, the consumers of it; each has a durable name, or a name."""
        listed = list(streams)
        for stream in listed:
            check_stream(stream)
        check_streams_together(listed)
        self.streams = {stream.name: stream for stream in listed}
        self.consumers = {name: {} for name in self.streams}
        for stream_name, items in (consumers or {}).items():
            self._add_consumers(stream_name, items)

    def _add_consumers(self, stream_name: str, items: Iterable[Consumer]) -> None:
        if stream_name not in self.streams:
            near = difflib.get_close_matches(stream_name, self.streams, n=1)
            what = f"There are consumers for stream {stream_name}, which is not declared."
            raise InputError(what, remedy=f"Did you mean {near[0]}?" if near else "Declare the stream, too.")
        stream, known = self.streams[stream_name], self.consumers[stream_name]
        for consumer in items:
            name = consumer.durable or consumer.name
            if name is None:
                what = f"A consumer of stream {stream_name} has no name."
                raise InputError(what, remedy="What is declared can be found again: give it a durable name, or a name.")
            if name in known:
                raise InputError(f"Consumer {name} of {stream_name} is declared twice.", remedy="Leave one out.")
            check_consumer(consumer, stream)
            for item in idle_filters(consumer, stream):
                log.warning(
                    "Consumer %s: its filter %r matches none of the subjects of stream %s.", name, item, stream.name
                )
            known[name] = consumer
        check_consumers_together(stream, known)

    def __repr__(self) -> str:
        return f"<Topology of {', '.join(self.streams) or 'nothing'}>"

    @classmethod
    def load(cls, path: str | Path) -> Topology:
        """Read a file: YAML or JSON if its name ends so (.yaml, .yml, .json), TOML otherwise."""
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise InputError(f"{path} cannot be read: {reason}.", remedy="Check the path.") from None
        try:
            return cls.parse(text, form_of(Path(path)))
        except InputError as error:
            raise InputError(f"{path}: {error.what}", remedy=error.remedy) from None

    @classmethod
    def parse(cls, text: str, form: Form = "toml") -> Topology:
        """Read text in a form: `toml`, `yaml` or `json`."""
        return cls.from_dict(read_form(text, form))

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Topology:
        """Read what a file holds, as tables."""
        if other := [key for key in content if key != "streams"]:
            near = difflib.get_close_matches(other[0], ["streams"])
            remedy = f"Did you mean {near[0]!r}?" if near else "Known: streams."
            raise InputError(f"The topology has no {other[0]!r}.", remedy=remedy)
        streams, consumers = [], {}
        for name, table in _tables("streams", content.get("streams", {})).items():
            fields = {key: value for key, value in table.items() if key != "consumers"}
            streams.append(_made(Stream, f"Stream {name}", {"name": name, **_readable(f"stream {name}", fields)}))
            if streams[-1].name != name:
                raise InputError(f"Stream {name} says that its name is {streams[-1].name}.", remedy="Leave name out.")
            consumers[name] = [
                _consumer(name, key, inner)
                for key, inner in _tables(f"streams.{name}.consumers", table.get("consumers", {})).items()
            ]
        return cls(streams, consumers)


def _made(kind: type[Made], title: str, fields: Mapping[str, Any]) -> Made:
    """Make a value of what a file says; an error says whose fields these are."""
    try:
        return kind(**fields)
    except InputError as error:
        what = error.what.removeprefix(f"{kind.__name__}: ")
        raise InputError(f"{title}: {what}", remedy=error.remedy) from None


def _tables(where: str, value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(item, dict) for item in value.values()):
        what = f"{where} is not a table of tables."
        raise InputError(what, remedy=f"Write [{where}.NAME] above its fields, or in YAML and JSON a table by name.")
    return value


def _readable(where: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Turn sizes, percentages and inner durations that people write into what the model takes."""
    made = dict(fields)
    for key in _SIZES & made.keys():
        if isinstance(made[key], str):
            made[key] = parse_size(made[key], option=f"{key} of {where}")
    if isinstance(made.get("sample_freq"), int) and not isinstance(made["sample_freq"], bool):
        made["sample_freq"] = str(made["sample_freq"])
    limits = made.get("consumer_limits")
    if isinstance(limits, dict) and isinstance(limits.get("inactive_threshold"), str):
        seconds = parse_duration(limits["inactive_threshold"], option=f"inactive_threshold of {where}")
        made["consumer_limits"] = {**limits, "inactive_threshold": round(seconds * 1_000_000_000)}
    if "unknown" in made:
        raise InputError(f"The {where} has no field 'unknown'.", remedy="Leave it out.")
    return made


def _consumer(stream: str, name: str, table: Mapping[str, Any]) -> Consumer:
    fields = _readable(f"consumer {name} of {stream}", table)
    ephemeral = fields.pop("ephemeral", False)
    if not isinstance(ephemeral, bool):
        raise InputError(f"Consumer {name} of {stream}: ephemeral is {ephemeral!r}.", remedy="Write true or false.")
    for key in ("name", "durable"):
        if key in fields:
            what = f"Consumer {name} of {stream} says {key}."
            raise InputError(what, remedy="Its key is its name; write ephemeral = true for one that is not durable.")
    fields["name" if ephemeral else "durable"] = name
    return _made(Consumer, f"Consumer {name} of {stream}", fields)


# -- plan and apply --------------------------------------------------------------------------------------------------


async def plan(client: Connection, topology: Topology, *, prune: bool = False) -> Plan:
    """Compare a topology with the server, field by field; nothing is changed.

    `prune` also plans to delete consumers of declared streams that the topology does not name; never a stream.
    """
    away: set[str] = set()
    everywhere = {info.name: info for info in await assets.streams(client, missing=away)}
    if unseen := sorted(away & topology.streams.keys()):
        what = f"Nobody answers for {', '.join(unseen)} now, so that nothing can be compared."
        raise JetStreamError(what, remedy="Plan again when the servers that hold them are back.")
    _check_others(topology, everywhere)
    first, removed, later, undeclared = [], [], [], []
    for name in _in_order(topology.streams):
        stream, there = topology.streams[name], everywhere.get(name)
        if there is None or not there.config.duplicate_window:
            stream = stream.completed()  # also one that another tool made, or that got its sources later
        first.append(stream_step(stream, there))
        known = {} if there is None else {info.name: info for info in await assets.consumers(client, name)}
        declared = topology.consumers[name]
        # What feeds another stream comes and goes with that one, and shares a work queue with anybody.
        others = {key: info for key, info in known.items() if key not in declared and not info.is_sourcing}
        if prune:
            removed += [Step("consumer", name, key, "delete") for key in others]
        else:
            undeclared += [f"{name} > {key}" for key in others]
            check_consumers_together(stream, {**{key: info.config for key, info in others.items()}, **declared})
        later += [consumer_step(name, key, item, known.get(key)) for key, item in declared.items()]
    return Plan((*first, *removed, *later), tuple(undeclared))


def _in_order(streams: Mapping[str, Stream]) -> list[str]:
    """Put streams behind those that they copy."""
    order: TopologicalSorter[str] = TopologicalSorter()
    for name, stream in streams.items():
        copied = [*stream.sources, *([stream.mirror] if stream.mirror else [])]
        order.add(name, *(source.name for source in copied if source.external is None and source.name in streams))
    try:
        return list(order.static_order())
    except CycleError as error:
        circle = " > ".join(reversed(error.args[1]))
        raise InputError(f"Streams copy each other in a circle: {circle}.", remedy="Break the circle.") from None


def _check_others(topology: Topology, everywhere: Mapping[str, StreamInfo]) -> None:
    """Refuse subjects that a stream outside of the topology captures already."""
    others = [info for name, info in everywhere.items() if name not in topology.streams]
    for info, stream in itertools.product(others, topology.streams.values()):
        try:
            check_streams_together([stream, info.config])
        except InputError as error:
            raise InputError(f"{error.what} {info.name} is on the server already.", remedy=error.remedy) from None


async def apply(client: Connection, topology: Topology, *, prune: bool = False, may_lose_data: bool = False) -> Plan:
    """Make the server's streams and consumers those of the topology; give what was done.

    A plan with a conflict, or one that would drop messages without `may_lose_data`, is refused before anything is
    changed. If the server refuses a step in the middle, the error says which steps are done.
    """
    made = await plan(client, topology, prune=prune)
    made.check(may_lose_data=may_lose_data)
    done: list[str] = []
    for step in made.steps:
        try:
            await _take(client, step)
        except PenstockError as error:
            already = f"Done before it: {', '.join(done)}." if done else "Nothing was changed."
            kept = isinstance(error, JetStreamError | DeniedError)
            kind = type(error) if kept else JetStreamError
            facts = error.facts if kept else {}
            remedy = f"{error.remedy} {already}" if isinstance(error, DeniedError) else already
            raise kind(f"{step.action} {step.title}: {error.what}", remedy=remedy, **facts) from error
        if step.action != "none":
            done.append(step.title)
    left = await plan(client, topology, prune=prune)
    if not left.empty:
        differs = "; ".join(f"{step.title}: {change}" for step in left.steps for change in step.changes)
        what = f"The server took the topology and kept something else: {differs}."
        raise JetStreamError(what, remedy="Declare what it keeps.")
    return made


async def _check_unchanged(client: Connection, step: Step) -> None:
    """Refuse to write over what somebody else changed since the plan was made: an update replaces everything."""
    there: Stream | Consumer
    if step.kind == "stream":
        there = (await assets.stream_info(client, step.name)).config
    else:
        there = (await assets.consumer_info(client, step.stream, step.name)).config
    if step.seen is None or _said(there) != _said(step.seen):
        raise JetStreamError("Somebody else changed it since this was planned.", remedy="Plan and apply again.")


def _said(config: Stream | Consumer) -> dict[str, Any]:
    """Give a configuration without what the server adds, which differs between a list and a single answer."""
    return config.model_copy(update={"metadata": own_metadata(config.metadata)}).to_json()


async def _take(client: Connection, step: Step) -> None:
    target = step.target
    if step.action == "update":
        await _check_unchanged(client, step)
    if step.action == "delete":
        with suppress(NotFoundError):  # gone already, as was wanted
            await assets.delete_consumer(client, step.stream, step.name)
    elif isinstance(target, Consumer) and step.action != "none":
        await assets.add_consumer(client, step.stream, target, action=step.action)
    elif isinstance(target, Stream) and step.action != "none":
        if step.action == "create":
            await assets.add_stream(client, target.model_copy(update={"sealed": False}))
        if step.action == "update" or target.sealed:  # no stream is born sealed
            await assets.edit_stream(client, target)
