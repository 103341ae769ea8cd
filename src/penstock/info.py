"""What the server says of a stream or a consumer: its configuration, and how it stands. Frozen values.

The configuration is read when it is asked for: a list of names and figures does not wait for the model to load.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from penstock.exports import exports
from penstock.times import parse_time

if TYPE_CHECKING:
    from penstock.model import Consumer, Stream

__all__ = ["ConsumerInfo", "Copy", "Placed", "SequenceInfo", "StreamInfo"]

__getattr__ = exports(__name__, {}, deprecated={"Position": "penstock.info.SequenceInfo"})[0]

_NANO = 1_000_000_000


def _time(text: str | None) -> datetime | None:
    # The server writes Go's zero time where nothing happened yet.
    return None if not text or text.startswith("0001-01-01") else parse_time(text)


@dataclass(frozen=True)
class Placed:
    """Which servers carry a stream or a consumer."""

    leader: str | None
    """The server that leads, None while there is none."""
    replicas: tuple[tuple[str, bool], ...]
    """The other servers, and whether each is up to date."""
    cluster: str | None

    @classmethod
    def from_json(cls, content: dict[str, Any] | None) -> Self:
        """Read the `cluster` object of an answer; a lone server has none."""
        content = content or {}
        others = tuple((item["name"], bool(item.get("current"))) for item in content.get("replicas") or [])
        return cls(content.get("leader"), others, content.get("name"))


@dataclass(frozen=True)
class Copy:
    """How far a mirror or source is behind what it copies."""

    name: str
    lag: int
    active: float | None
    """Seconds since the last contact; None where there was none yet."""


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
        state = content["state"]
        copies = [*(content.get("sources") or []), *([content["mirror"]] if content.get("mirror") else [])]
        return cls(
            name=content["config"]["name"],
            created=_time(content.get("created")),
            messages=state.get("messages", 0),
            bytes=state.get("bytes", 0),
            first_sequence=state.get("first_seq", 0),
            first_time=_time(state.get("first_ts")),
            last_sequence=state.get("last_seq", 0),
            last_time=_time(state.get("last_ts")),
            consumers=state.get("consumer_count", 0),
            subjects=state.get("num_subjects", 0),
            deleted=state.get("num_deleted", 0),
            placed=Placed.from_json(content.get("cluster")),
            copies=tuple(
                Copy(
                    item["name"],
                    item.get("lag", 0),
                    None if item.get("active", -1) < 0 else item["active"] / _NANO,
                )
                for item in copies
            ),
            raw=content,
        )


@dataclass(frozen=True)
class SequenceInfo:
    """A place in a consumer's deliveries: its own count, and the stream's sequence."""

    consumer: int
    stream: int
    last: datetime | None

    @classmethod
    def from_json(cls, content: dict[str, Any] | None) -> Self:
        """Read `delivered` or `ack_floor` of an answer."""
        content = content or {}
        return cls(content.get("consumer_seq", 0), content.get("stream_seq", 0), _time(content.get("last_active")))


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

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read the server's answer."""
        remaining = content.get("pause_remaining")
        return cls(
            stream=content["stream_name"],
            name=content["name"],
            created=_time(content.get("created")),
            delivered=SequenceInfo.from_json(content.get("delivered")),
            ack_floor=SequenceInfo.from_json(content.get("ack_floor")),
            ack_pending=content.get("num_ack_pending", 0),
            redelivered=content.get("num_redelivered", 0),
            waiting=content.get("num_waiting", 0),
            pending=content.get("num_pending", 0),
            push_bound=bool(content.get("push_bound")),
            paused=bool(content.get("paused")),
            pause_remaining=None if remaining is None else remaining / _NANO,
            placed=Placed.from_json(content.get("cluster")),
            raw=content,
        )
