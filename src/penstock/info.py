"""What the server says of a stream or a consumer: its configuration, and how it stands. Frozen values.

The configuration is read when it is asked for: a list of names and figures does not wait for the model to load.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from penstock.errors import InputError, RemoteProtocolError
from penstock.exports import exports
from penstock.times import parse_time
from penstock.wire.jetstream.answers import number, part, text

if TYPE_CHECKING:
    from penstock.model import Consumer, Stream

__all__ = ["ConsumerInfo", "Copy", "GroupInfo", "Placed", "SequenceInfo", "StreamInfo"]

__getattr__ = exports(__name__, {}, deprecated={"Position": "penstock.info.SequenceInfo"})[0]

_NANO = 1_000_000_000


def _time(content: dict[str, Any], name: str) -> datetime | None:
    written = text(content, name, "")
    # The server writes Go's zero time where nothing happened yet.
    if not written or written.startswith("0001-01-01"):
        return None
    try:
        return parse_time(written)
    except InputError:
        raise RemoteProtocolError(f"The field {name!r} of JetStream's answer is no time.") from None


def _parts(content: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = content.get(name) or []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise RemoteProtocolError(f"The field {name!r} of JetStream's answer is no list of objects.")
    return found


def _part(content: dict[str, Any], name: str) -> dict[str, Any]:
    return part(content, name) if content.get(name) is not None else {}


def _seconds(content: dict[str, Any], name: str) -> float | None:
    """Read nanoseconds; None for those that are negative or not there."""
    found = content.get(name)
    if found is not None and (isinstance(found, bool) or not isinstance(found, int)):
        raise RemoteProtocolError(f"The field {name!r} of JetStream's answer is no whole number.")
    return None if found is None or found < 0 else found / _NANO


@dataclass(frozen=True)
class Placed:
    """Which servers carry a stream or a consumer."""

    leader: str | None
    """The server that leads, None while there is none."""
    replicas: tuple[tuple[str, bool], ...]
    """The other servers, and whether each is up to date."""
    cluster: str | None

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read the `cluster` object of an answer; a lone server has none."""
        others = tuple((text(item, "name"), bool(item.get("current"))) for item in _parts(content, "replicas"))
        return cls(text(content, "leader", "") or None, others, text(content, "name", "") or None)


@dataclass(frozen=True)
class Copy:
    """How far a mirror or source is behind what it copies."""

    name: str
    lag: int
    active: float | None
    """Seconds since the last contact; None where there was none yet."""
    error: str = ""
    """What keeps it from copying, in the server's words."""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read an object of `sources`, or `mirror`, of an answer."""
        error = text(_part(content, "error"), "description", "")
        return cls(text(content, "name"), number(content, "lag", 0), _seconds(content, "active"), error)


@dataclass(frozen=True)
class StreamInfo:
    """A stream as the server holds it."""

    name: str
    created: datetime | None
    messages: int
    bytes: int
    first_sequence: int
    first_time: datetime | None
    last_sequence: int
    last_time: datetime | None
    consumers: int
    subjects: int
    """How many different subjects it holds."""
    deleted: int
    """How many messages are missing between the first and the last."""
    placed: Placed
    copies: tuple[Copy, ...] = ()
    lost: int = 0
    """How many messages the server found damaged, and could not read any more."""
    lost_bytes: int = 0
    raw: dict[str, Any] = field(default_factory=dict, repr=False)
    """The server's whole answer."""

    @cached_property
    def config(self) -> Stream:
        """What the stream is configured to be."""
        from penstock.model import Stream

        return Stream.from_json(self.raw["config"])

    @property
    def description(self) -> str:
        """A sentence for people, or nothing."""
        return self.raw["config"].get("description") or ""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read the server's answer."""
        state, config = part(content, "state"), part(content, "config")
        lost = _part(state, "lost")
        copies = [*_parts(content, "sources"), *([part(content, "mirror")] if content.get("mirror") else [])]
        return cls(
            name=text(config, "name"),
            created=_time(content, "created"),
            messages=number(state, "messages", 0),
            bytes=number(state, "bytes", 0),
            first_sequence=number(state, "first_seq", 0),
            first_time=_time(state, "first_ts"),
            last_sequence=number(state, "last_seq", 0),
            last_time=_time(state, "last_ts"),
            consumers=number(state, "consumer_count", 0),
            subjects=number(state, "num_subjects", 0),
            deleted=number(state, "num_deleted", 0),
            placed=Placed.from_json(_part(content, "cluster")),
            copies=tuple(Copy.from_json(item) for item in copies),
            lost=len(lost.get("msgs") or ()),
            lost_bytes=number(lost, "bytes", 0),
            raw=content,
        )


@dataclass(frozen=True)
class SequenceInfo:
    """A place in a consumer's deliveries: its own count, and the stream's sequence."""

    consumer: int
    stream: int
    last: datetime | None

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read `delivered` or `ack_floor` of an answer."""
        return cls(number(content, "consumer_seq", 0), number(content, "stream_seq", 0), _time(content, "last_active"))


@dataclass(frozen=True)
class GroupInfo:
    """A priority group of a consumer, and which client it is pinned to."""

    name: str
    pin: str | None
    """The id that the server gave the client that it delivers to; None while there is none, and for other policies."""
    since: datetime | None

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read one of `priority_groups` of an answer."""
        return cls(text(content, "group"), text(content, "pinned_client_id", "") or None, _time(content, "pinned_ts"))


@dataclass(frozen=True)
class ConsumerInfo:
    """A consumer as the server holds it."""

    stream: str
    name: str
    created: datetime | None
    delivered: SequenceInfo
    ack_floor: SequenceInfo
    ack_pending: int
    """Deliveries that wait for their ack."""
    redelivered: int
    """Messages among those that were delivered more than once."""
    waiting: int
    """Pull requests that wait for messages."""
    pending: int
    """Messages of the stream that were never delivered."""
    push_bound: bool
    """Whether somebody listens on the deliver subject."""
    paused: bool
    pause_remaining: float | None
    placed: Placed
    groups: tuple[GroupInfo, ...] = ()
    """The priority groups; the server tells of the first one."""
    raw: dict[str, Any] = field(default_factory=dict, repr=False)
    """The server's whole answer."""

    @cached_property
    def config(self) -> Consumer:
        """What the consumer is configured to be."""
        from penstock.model import Consumer

        return Consumer.from_json(self.raw["config"])

    @property
    def description(self) -> str:
        """A sentence for people, or nothing."""
        return self.raw["config"].get("description") or ""

    @property
    def is_sourcing(self) -> bool:
        """Whether a server made it, to feed a stream that copies this one."""
        return bool(self.raw["config"].get("sourcing"))

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read the server's answer."""
        part(content, "config")  # which is read when it is asked for
        return cls(
            stream=text(content, "stream_name"),
            name=text(content, "name"),
            created=_time(content, "created"),
            delivered=SequenceInfo.from_json(_part(content, "delivered")),
            ack_floor=SequenceInfo.from_json(_part(content, "ack_floor")),
            ack_pending=number(content, "num_ack_pending", 0),
            redelivered=number(content, "num_redelivered", 0),
            waiting=number(content, "num_waiting", 0),
            pending=number(content, "num_pending", 0),
            push_bound=bool(content.get("push_bound")),
            paused=bool(content.get("paused")),
            pause_remaining=_seconds(content, "pause_remaining"),
            placed=Placed.from_json(_part(content, "cluster")),
            groups=tuple(GroupInfo.from_json(item) for item in _parts(content, "priority_groups")),
            raw=content,
        )
