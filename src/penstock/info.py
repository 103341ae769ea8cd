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
from penstock.wire.jetstream.answers import number, part, parts, text

if TYPE_CHECKING:
    from penstock.model import Consumer, Stream

__all__ = ["Alternate", "ConsumerInfo", "Copy", "GroupInfo", "Placed", "Replica", "SequenceInfo", "StreamInfo"]

__getattr__ = exports(__name__, {}, deprecated={"Position": "penstock.info.SequenceInfo"})[0]

_NANO = 1_000_000_000


def _time(content: dict[str, Any], name: str) -> datetime | None:
    written = text(content, name, "")
    # The server writes Go's zero time if nothing happened yet.
    if not written or written.startswith("0001-01-01"):
        return None
    try:
        return parse_time(written)
    except InputError:
        raise RemoteProtocolError(f"The field {name!r} of JetStream's answer is not a time.") from None


def _numbers(content: dict[str, Any], name: str) -> tuple[int, ...]:
    found = content.get(name) or []
    if not isinstance(found, list) or not all(isinstance(item, int) and not isinstance(item, bool) for item in found):
        raise RemoteProtocolError(f"The field {name!r} of JetStream's answer is not a list of numbers.")
    return tuple(found)


def _part(content: dict[str, Any], name: str) -> dict[str, Any]:
    return part(content, name) if content.get(name) is not None else {}


def _seconds(content: dict[str, Any], name: str) -> float | None:
    """Read nanoseconds; None for those that are negative or not there."""
    found = content.get(name)
    if found is not None and (isinstance(found, bool) or not isinstance(found, int)):
        raise RemoteProtocolError(f"The field {name!r} of JetStream's answer is not a whole number.")
    return None if found is None or found < 0 else found / _NANO


@dataclass(frozen=True)
class Replica:
    """A server that carries a stream or a consumer beside the one that leads."""

    name: str
    """The server's name."""
    current: bool
    """Whether it was seen lately, and is up to date."""
    offline: bool
    """Whether it was not seen lately."""
    active: float | None
    """Seconds since it was last seen; None if it was not yet."""
    lag: int
    """How many operations it is behind."""
    id: str
    """The server's id in its group."""
    pending: bool
    """Whether it is to join the group, and has not yet."""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read one of `replicas` of an answer."""
        return cls(
            name=text(content, "name"),
            current=bool(content.get("current")),
            offline=bool(content.get("offline")),
            active=_seconds(content, "active"),
            lag=number(content, "lag", 0),
            id=text(content, "peer", ""),
            pending=bool(content.get("pending")),
        )


@dataclass(frozen=True)
class Placed:
    """Which servers carry a stream or a consumer."""

    leader: str | None
    """The server that leads, None while there is none."""
    replicas: tuple[tuple[str, bool], ...]
    """The other servers, and whether each is up to date."""
    cluster: str | None
    """The cluster's name; None for a lone server."""
    others: tuple[Replica, ...] = ()
    """The other servers, with all that is known of each."""
    leader_since: datetime | None = None
    """When it became the leader."""
    group: str | None = None
    """The name of the group that keeps it."""
    system_account: bool = False
    """Whether the group talks over the system account."""
    traffic_account: str | None = None
    """The account that the group talks over."""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read the `cluster` object of an answer; a lone server has none."""
        others = tuple(Replica.from_json(item) for item in parts(content, "replicas"))
        return cls(
            leader=text(content, "leader", "") or None,
            replicas=tuple((item.name, item.current) for item in others),
            cluster=text(content, "name", "") or None,
            others=others,
            leader_since=_time(content, "leader_since"),
            group=text(content, "raft_group", "") or None,
            system_account=bool(content.get("system_account")),
            traffic_account=text(content, "traffic_account", "") or None,
        )


@dataclass(frozen=True)
class Copy:
    """How far a mirror or source is behind what it copies."""

    name: str
    """The stream that is copied."""
    lag: int
    """How many messages are still to be copied."""
    active: float | None
    """Seconds since the last contact; None if there was none yet."""
    error: str = ""
    """What keeps it from copying, in the server's words."""
    filter_subject: str | None = None
    """The subjects that are copied; all if nothing is given."""
    transforms: tuple[tuple[str, str], ...] = ()
    """How subjects are renamed on the way, from and to."""
    external: str | None = None
    """The prefix of the other side's JetStream API, if the stream is in another account or domain."""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read an object of `sources`, or `mirror`, of an answer."""
        renamed = [(text(item, "src", ""), text(item, "dest", "")) for item in parts(content, "subject_transforms")]
        return cls(
            name=text(content, "name"),
            lag=number(content, "lag", 0),
            active=_seconds(content, "active"),
            error=text(_part(content, "error"), "description", ""),
            filter_subject=text(content, "filter_subject", "") or None,
            transforms=tuple(renamed),
            external=text(_part(content, "external"), "api", "") or None,
        )


@dataclass(frozen=True)
class Alternate:
    """A stream that can be read in place of another one: that one itself, or a mirror of it."""

    name: str
    """Its name."""
    cluster: str
    """The cluster that has it."""
    domain: str | None
    """The JetStream domain that has it."""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read one of `alternates` of an answer."""
        return cls(text(content, "name"), text(content, "cluster", ""), text(content, "domain", "") or None)


@dataclass(frozen=True)
class StreamInfo:
    """A stream as the server holds it; what it says beyond this is in `raw`."""

    name: str
    """Its name."""
    created: datetime | None
    """When it was made: another stream of the same name has another time."""
    messages: int
    """How many messages it holds."""
    bytes: int
    """How many bytes they take."""
    first_sequence: int
    """The sequence of its first message; that of the next one if it is empty and was not always."""
    first_time: datetime | None
    """When its first message was stored."""
    last_sequence: int
    """The sequence of the last message that it stored, also of one that is gone."""
    last_time: datetime | None
    """When that was stored."""
    consumers: int
    """How many consumers it has."""
    subjects: int
    """How many different subjects it holds."""
    deleted: int
    """How many messages are missing between the first and the last."""
    placed: Placed
    """Which servers carry it."""
    copies: tuple[Copy, ...] = ()
    """What it copies, sources and mirror, and how far it is."""
    lost: int = 0
    """How many messages the server found damaged, and could not read any more."""
    lost_bytes: int = 0
    """How many bytes they took."""
    raw: dict[str, Any] = field(default_factory=dict, repr=False)
    """The server's whole answer."""
    time: datetime | None = None
    """When the server said all this, by its own clock."""
    domain: str | None = None
    """The JetStream domain that it is in."""
    alternates: tuple[Alternate, ...] = ()
    """Itself and its mirrors, the nearest to the server that was asked first; empty if it has no mirror."""
    held: dict[str, int] = field(default_factory=dict, repr=False)
    """How many messages it holds of each subject, if that was asked for."""
    gaps: tuple[int, ...] = field(default=(), repr=False)
    """The sequences that are missing between the first and the last, if that was asked for."""

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
        copies = [*parts(content, "sources"), *([part(content, "mirror")] if content.get("mirror") else [])]
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
            lost=len(_numbers(lost, "msgs")),
            lost_bytes=number(lost, "bytes", 0),
            raw=content,
            time=_time(content, "ts"),
            domain=text(content, "domain", "") or None,
            alternates=tuple(Alternate.from_json(item) for item in parts(content, "alternates")),
            held={subject: number(held, subject) for held in (_part(state, "subjects"),) for subject in held},
            gaps=_numbers(state, "deleted"),
        )


@dataclass(frozen=True)
class SequenceInfo:
    """A place in a consumer's deliveries: its own count, and the stream's sequence."""

    consumer: int
    """How many deliveries there were so far, repeats included."""
    stream: int
    """The sequence in the stream."""
    last: datetime | None
    """When that happened; None if it did not yet."""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read `delivered` or `ack_floor` of an answer."""
        return cls(number(content, "consumer_seq", 0), number(content, "stream_seq", 0), _time(content, "last_active"))


@dataclass(frozen=True)
class GroupInfo:
    """A priority group of a consumer, and which client it is pinned to."""

    name: str
    """Its name."""
    pin: str | None
    """The id that the server gave the client that it delivers to; None while there is none, and for other policies."""
    since: datetime | None
    """Since when it is pinned to that client."""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read one of `priority_groups` of an answer."""
        return cls(text(content, "group"), text(content, "pinned_client_id", "") or None, _time(content, "pinned_ts"))


@dataclass(frozen=True)
class ConsumerInfo:
    """A consumer as the server holds it; what it says beyond this is in `raw`."""

    stream: str
    """The stream that it reads."""
    name: str
    """Its name."""
    created: datetime | None
    """When it was made: another consumer of the same name has another time."""
    delivered: SequenceInfo
    """Where the last delivery was."""
    ack_floor: SequenceInfo
    """Up to where everything is acknowledged."""
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
    """Whether it delivers nothing for the time being."""
    pause_remaining: float | None
    """For how many seconds more."""
    placed: Placed
    """Which servers carry it."""
    groups: tuple[GroupInfo, ...] = ()
    """The priority groups; the server tells of the first one."""
    raw: dict[str, Any] = field(default_factory=dict, repr=False)
    """The server's whole answer."""
    time: datetime | None = None
    """When the server said all this, by its own clock."""

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
            groups=tuple(GroupInfo.from_json(item) for item in parts(content, "priority_groups")),
            raw=content,
            time=_time(content, "ts"),
        )
