"""Streams, consumers, messages and acks as frozen values, to and from the server's JSON.

In Python a duration is seconds as `float` (or text such as "2m" if one is given) and a time is an aware `datetime`;
the server's JSON has nanoseconds and RFC 3339. `from_json` and `to_json` translate. What this version does not know,
fields and words such as a new policy, survives the way there and back, so that an edit through an older Penstock loses
nothing of a newer server. What a program writes itself is checked.
"""

from __future__ import annotations

import base64
import difflib
import functools
import re
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from penstock.asset_names import LONGEST, NAME
from penstock.durations import parse_duration
from penstock.errors import InputError
from penstock.times import format_time, parse_time
from penstock.wire.jetstream.answers import PubAck

__all__ = [
    "Consumer",
    "ExternalStream",
    "Message",
    "Placement",
    "PubAck",
    "Republish",
    "ServerWord",
    "SourceConsumer",
    "Stream",
    "StreamSource",
    "SubjectTransform",
    "format_time",
    "parse_time",
]

_NANO = 1_000_000_000
_WINDOW = 120.0  # seconds that a server remembers message ids if nothing else is said


def _to_seconds(value: Any) -> Any:
    return parse_duration(value) if isinstance(value, str) else value


def _to_time(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is None:
        raise InputError(f"{value} has no zone.", remedy="Give an aware datetime, such as datetime.now(UTC).")
    return parse_time(value) if isinstance(value, str) else value


def _checked_name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError("a name has no dots, spaces, wildcards or slashes, and is not empty")
    if len(value.encode()) > LONGEST:
        raise ValueError(f"a name has at most {LONGEST} bytes")
    return value


class ServerWord(str):
    """A word of a server for which this version has no meaning, such as a policy that is newer; it stays as it is."""


def _or_server_word(value: Any, known: ValidatorFunctionWrapHandler) -> Any:
    return value if isinstance(value, ServerWord) else known(value)


Name = Annotated[str, AfterValidator(_checked_name)]
Seconds = Annotated[float, BeforeValidator(_to_seconds), Field(ge=0, allow_inf_nan=False), "nanoseconds on the wire"]
Time = Annotated[datetime, BeforeValidator(_to_time), PlainSerializer(format_time, when_used="json")]
Open = WrapValidator(_or_server_word)
"""Marks a field that holds one of a few words; of a server, also a `ServerWord`."""


class ServerValue(BaseModel):
    """A frozen value whose JSON is the server's; unknown fields of the server are kept in `unknown`."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    unknown: dict[str, Any] = Field(default_factory=dict, repr=False)
    """What the server said in fields that this version does not know."""
    wire_names: ClassVar[dict[str, str]] = {}
    # Times and durations of the server that Python holds less exactly, by field: our value, and what the server wrote.
    _exact: dict[str, tuple[Any, Any]] = PrivateAttr(default_factory=dict)

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise _input_error(type(self), error) from None

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Build the value from the server's JSON."""
        if not isinstance(content, dict):
            raise InputError(f"{cls.__name__} is read from a JSON object, not from {type(content).__name__}.")
        ours = {wire: name for name, wire in cls.wire_names.items()}
        known, unknown = {}, {}
        for wire, value in content.items():
            name = ours.get(wire, wire)
            if name in cls.model_fields and name != "unknown":
                default = cls.model_fields[name].get_default
                known[name] = default(call_default_factory=True) if value is None else cls._read(name, value)
            else:
                unknown[wire] = value
        made = cls(**known, unknown=unknown)
        for name in known:
            value, wrote = getattr(made, name), content[cls.wire_names.get(name, name)]
            if _is_inexact(name, value, wrote):
                made._exact[name] = (value, wrote)
        return made

    @classmethod
    def _read(cls, name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [cls._read(name, item) for item in value]
        if (inner := _inner(cls, name)) is not None:
            return inner.from_json(value)
        if isinstance(value, str) and (words := _words(cls, name)) and value not in words:
            return ServerWord(value)
        try:
            return value / _NANO if name in DURATIONS else value
        except (TypeError, OverflowError):  # no server's: it is of another type, or has hundreds of digits
            raise InputError(f"{cls.__name__}: {name} is {value!r:.60}, and not a number of nanoseconds.") from None

    def changed(self, **fields: Any) -> Self:
        """Give the value with other fields, which are checked; what is not named stays exactly as it is."""
        needed = {name: getattr(self, name) for name, item in type(self).model_fields.items() if item.is_required()}
        made = type(self)(**{**needed, **fields})
        return self.model_copy(update={name: getattr(made, name) for name in fields})

    def to_json(self) -> dict[str, Any]:
        """Give the server's JSON; what is not set (`None`, empty, false) is left out.

        False is the server's own default everywhere, and a server may refuse fields that are newer than itself.
        """
        content: dict[str, Any] = {}
        for name, item in type(self).model_fields.items():
            value = getattr(self, name)
            if name == "unknown" or value is None or value == [] or value == {}:
                continue
            if value is False and item.default is False:
                continue
            ours, wrote = self._exact.get(name, (None, None))
            content[self.wire_names.get(name, name)] = wrote if value == ours else _write(name, value)
        return {**self.unknown, **content}


@functools.cache
def _inner(kind: type[ServerValue], name: str) -> type[ServerValue] | None:
    """Give the class of the objects that a field holds, if it holds such."""
    held = get_args(kind.model_fields[name].annotation)
    return next((item for item in held if isinstance(item, type) and issubclass(item, ServerValue)), None)


@functools.cache
def _words(kind: type[ServerValue], name: str) -> tuple[str, ...]:
    """Give the words that a field may hold, if it holds one of a few."""
    annotation = kind.model_fields[name].annotation
    found = [item for item in (annotation, *get_args(annotation)) if get_origin(item) is Literal]
    found += [item for part in get_args(annotation) for item in get_args(part) if get_origin(item) is Literal]
    return tuple(word for item in found for word in get_args(item))


def _write(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_write(name, item) for item in value]
    if isinstance(value, ServerValue):
        return value.to_json()
    if isinstance(value, datetime):
        return format_time(value)
    return round(value * _NANO) if name in DURATIONS else value


def _is_inexact(name: str, value: Any, wrote: Any) -> bool:
    if isinstance(value, datetime):
        return re.search(r"\.\d{6}\d*[1-9]", str(wrote)) is not None
    return name in DURATIONS and wrote is not None and _write(name, value) != wrote


def _input_error(kind: type[ServerValue], error: ValidationError) -> InputError:
    """Say in one sentence what pydantic found."""
    said = []
    for item in error.errors(include_url=False, include_context=False):
        place = ".".join(str(step) for step in item["loc"])
        if item["type"] == "extra_forbidden":
            near = difflib.get_close_matches(place, kind.model_fields, n=1)
            said.append(f"there is no field {place!r}" + (f", did you mean {near[0]!r}?" if near else ""))
        elif item["type"] == "missing":
            said.append(f"{place} is missing")
        else:
            text = item["msg"].removeprefix("Value error, ")
            given, duration = f"{place} is {item['input']!r}", f"duration is {item['input']!r}"
            is_said = text.startswith(duration)  # by the reader of durations, which does not know the field
            said.append(given + (text.removeprefix(duration) if is_said else f": {text[:1].lower()}{text[1:]}"))
    whole = "; ".join(text.rstrip(".") for text in said)
    return InputError(f"{kind.__name__}: {whole}" + ("" if whole.endswith("?") else "."))


class Placement(ServerValue):
    """Where a stream's replicas may live."""

    cluster: str | None = None
    """The cluster by name."""
    tags: list[str] = []
    """Tags that a server must carry."""
    preferred: str | None = None
    """The server that is to lead; for an election, and nothing that a stream may ask for."""


class ExternalStream(ServerValue):
    """How to reach a stream of another account or domain."""

    api: str
    """The prefix of the other side's JetStream API."""
    deliver: str | None = None
    """The prefix of subjects on which messages are delivered."""


class SubjectTransform(ServerValue):
    """A rule that renames subjects."""

    src: str
    """The subjects that the rule applies to."""
    dest: str
    """The new subject, with wildcards by number."""


class SourceConsumer(ServerValue):
    """A consumer of the other stream through which a mirror or a sourcing stream gets its messages."""

    name: str
    """Its name; it is durable, pushes, and has `ack_policy = "flow_control"`."""
    deliver_subject: str
    """The subject that it delivers to."""


class StreamSource(ServerValue):
    """Another stream that a mirror or a sourcing stream copies from."""

    name: str
    """The other stream."""
    opt_start_seq: int | None = None
    """The sequence to begin with."""
    opt_start_time: Time | None = None
    """The time to begin with."""
    filter_subject: str | None = None
    """Only subjects that match are copied."""
    subject_transforms: list[SubjectTransform] = []
    """Rules that rename subjects on the way."""
    external: ExternalStream | None = None
    """Where the other stream lives, if in another account or domain."""
    consumer: SourceConsumer | None = None
    """The consumer to copy through, if you made one; else the server makes one, and begins where this says."""


class Republish(ServerValue):
    """A rule that publishes every stored message again, on a plain subject."""

    src: str
    """The subjects that are published again."""
    dest: str
    """The subject they are published on."""
    headers_only: bool = False
    """Leave the payload out."""


class Stream(ServerValue):
    """A stream as it is declared. The defaults are the safe ones: on disk, nothing limited, duplicates noticed."""

    name: Name
    """The name: no dots, spaces, wildcards or slashes."""
    subjects: list[str] = []
    """The subjects that it captures; the stream's name if none is given and it mirrors nothing."""
    description: str | None = None
    """A sentence for people."""
    retention: Annotated[Literal["limits", "interest", "workqueue"], Open] = "limits"
    """What removes messages: the limits alone, or acks of all consumers (interest), or of the one (workqueue)."""
    storage: Annotated[Literal["file", "memory"], Open] = "file"
    """Where messages are kept."""
    num_replicas: int = Field(default=1, ge=1, le=5)
    """How many servers keep a copy; odd numbers make sense."""
    max_msgs: int = Field(default=-1, ge=-1)
    """The most messages it holds; -1 for no limit."""
    max_bytes: int = Field(default=-1, ge=-1)
    """The most bytes it holds; -1 for no limit."""
    max_age: Seconds = 0.0
    """How old a message may become; 0 for no limit."""
    max_msgs_per_subject: int = Field(default=-1, ge=-1)
    """The most messages it holds of one subject; -1 for no limit."""
    max_msg_size: int = Field(default=-1, ge=-1)
    """The largest message it takes, headers included; -1 for the server's own limit."""
    max_consumers: int = Field(default=-1, ge=-1)
    """The most consumers it may have; -1 for no limit."""
    discard: Annotated[Literal["old", "new"], Open] = "old"
    """At a limit: drop the oldest message, or refuse the new one."""
    discard_new_per_subject: bool = False
    """With `discard="new"`: refuse also if only the subject's own limit is reached."""
    duplicate_window: Seconds | None = None
    """How long message ids are remembered, also those of messages that were removed; two minutes, or `max_age` if that
    is shorter, if nothing is given. A message of a source whose id is remembered is not copied; so a stream that has
    sources and no subjects remembers none unless this is given."""
    no_ack: bool = False
    """Do not acknowledge what is stored."""
    mirror: StreamSource | None = None
    """The stream that this one copies, sequences included."""
    sources: list[StreamSource] = []
    """Streams that this one collects from."""
    compression: Annotated[Literal["none", "s2"], Open] = "none"
    """How the file storage is compressed."""
    first_seq: int | None = Field(default=None, ge=1)
    """The sequence of the first message of a new stream."""
    allow_direct: bool = True
    """Let any replica answer reads of single messages and batches; the Spark source reads faster so."""
    mirror_direct: bool = False
    """Let a mirror answer such reads for the stream it copies."""
    allow_atomic: bool = False
    """Take batches that are stored whole or not at all; the Spark sink's exactly-once needs it."""
    allow_batched: bool = False
    """Take batches by fast ingest."""
    allow_rollup_hdrs: bool = False
    """Let a message replace all earlier ones of its subject or of the stream."""
    allow_msg_ttl: bool = False
    """Let a message name its own time to live."""
    allow_msg_counter: bool = False
    """Treat messages as increments of a counter."""
    allow_msg_schedules: bool = False
    """Take messages that are to be published later."""
    subject_delete_marker_ttl: Seconds | None = None
    """How long a marker tells that the last message of a subject expired."""
    sealed: bool = False
    """Never change again; can be set and never taken back."""
    deny_delete: bool = False
    """Refuse to delete single messages."""
    deny_purge: bool = False
    """Refuse to purge."""
    placement: Placement | None = None
    """Where its replicas may live."""
    republish: Republish | None = None
    """Publish what is stored again, on a plain subject."""
    subject_transform: SubjectTransform | None = None
    """A rule that renames subjects before storing."""
    consumer_limits: dict[str, Any] = {}
    """The most that a consumer may ask for: inactive_threshold (nanoseconds) and max_ack_pending."""
    persist_mode: Annotated[Literal["default", "async"], Open] | None = None
    """`async` acknowledges before it writes: never for data that matters."""
    metadata: dict[str, str] = {}
    """Text by key, for people and tools."""

    def completed(self) -> Self:
        """Give the declaration as it is sent to make the stream: with the duplicate window that it is promised.

        The server gives one to every stream that has neither a mirror nor sources. One that has sources and subjects
        takes messages of publishers, too, and these count on it.
        """
        if self.duplicate_window is not None or not (self.sources and self.subjects):
            return self
        return self.model_copy(update={"duplicate_window": min(self.max_age or _WINDOW, _WINDOW)})


class Consumer(ServerValue):
    """A consumer as it is declared. The defaults are the safe ones: pull, every ack explicit, from the beginning."""

    wire_names: ClassVar[dict[str, str]] = {"durable": "durable_name"}

    name: Name | None = None
    """The name; the server makes one up if none is given."""
    durable: Name | None = None
    """The name of a durable consumer; without it the consumer goes away when nobody uses it."""
    description: str | None = None
    """A sentence for people."""
    filter_subject: str | None = None
    """The subjects that it gets; all if nothing is given."""
    filter_subjects: list[str] = []
    """Several filters; excludes `filter_subject`."""
    deliver_policy: Annotated[
        Literal["all", "last", "last_per_subject", "new", "by_start_sequence", "by_start_time"], Open
    ] = "all"
    """Where it begins."""
    opt_start_seq: int | None = Field(default=None, ge=1)
    """The first sequence, with `by_start_sequence`."""
    opt_start_time: Time | None = None
    """The first time, with `by_start_time`."""
    ack_policy: Annotated[Literal["explicit", "all", "none", "flow_control"], Open] = "explicit"
    """Whether each message is acknowledged, or one for all before it, or none; `flow_control`, for streams that copy,
    acknowledges with the answers to flow control."""
    ack_wait: Seconds | None = None
    """How long a delivery waits for its ack before it is repeated; 30 s if nothing is given."""
    max_deliver: int = Field(default=-1, ge=-1)
    """How often a message is delivered at the most; -1 for ever."""
    backoff: list[Seconds] = []
    """How long to wait before each repeat, the last value for all further ones; overrides `ack_wait`."""
    max_ack_pending: int | None = Field(default=None, ge=-1)
    """How many deliveries may wait for acks; 1,000 if nothing is given, -1 for no limit."""
    replay_policy: Annotated[Literal["instant", "original"], Open] = "instant"
    """As fast as possible, or at the pace at which the messages were stored."""
    sample_freq: str | None = None
    """The share of acks that are published as samples, in percent."""
    rate_limit_bps: int | None = Field(default=None, ge=0)
    """The most bits a second that a push consumer sends."""
    deliver_subject: str | None = None
    """The subject that a push consumer delivers to; a consumer without one is pulled."""
    deliver_group: str | None = None
    """The queue group that a push consumer delivers to."""
    flow_control: bool = False
    """Stop until the subscriber says that it keeps up; needs `idle_heartbeat`."""
    idle_heartbeat: Seconds | None = None
    """How often a push consumer shows that it is alive while nothing comes."""
    headers_only: bool = False
    """Leave payloads out."""
    max_waiting: int | None = Field(default=None, ge=0)
    """How many pull requests may wait; 512 if nothing is given."""
    max_batch: int | None = Field(default=None, ge=0)
    """The largest batch that one pull may ask for."""
    max_expires: Seconds | None = None
    """The longest time that one pull may wait."""
    max_bytes: int | None = Field(default=None, ge=0)
    """The most bytes that one pull may ask for."""
    inactive_threshold: Seconds | None = None
    """How long an unused consumer lives; 5 s for ephemeral ones if nothing is given."""
    num_replicas: int | None = Field(default=None, ge=0, le=5)
    """How many servers keep its state; as many as the stream's if nothing is given."""
    mem_storage: bool = False
    """Keep its state in memory."""
    pause_until: Time | None = None
    """Deliver nothing until then."""
    priority_policy: Annotated[Literal["none", "overflow", "pinned_client", "prioritized"], Open] | None = None
    """How pulls of a priority group are served."""
    priority_groups: list[str] = []
    """The priority groups that pulls may name."""
    priority_timeout: Seconds | None = None
    """How long a pinned client may be silent before another takes over."""
    metadata: dict[str, str] = {}
    """Text by key, for people and tools."""


class Message(ServerValue):
    """A stored message."""

    subject: str
    """The subject it was published on."""
    data: bytes = b""
    """The payload."""
    headers: dict[str, list[str]] = {}
    """The headers, each with all its values."""
    sequence: int | None = None
    """Its place in the stream, counted from 1."""
    time: Time | None = None
    """When the server stored it."""
    stream: str | None = None
    """The stream that holds it."""

    def to_json(self) -> dict[str, Any]:
        """Give a JSON form of the message; the payload is base64."""
        return {**super().to_json(), "data": base64.b64encode(self.data).decode()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read what `to_json` gives."""
        try:
            data = base64.b64decode(content.get("data", ""), validate=True)
        except (ValueError, TypeError):
            raise InputError("Message: data is not base64.", remedy="Encode the payload in base64.") from None
        return super().from_json({**content, "data": data})


DURATIONS = {  # fields that are seconds here, and nanoseconds on the wire
    name
    for kind in (Stream, Consumer)
    for name, item in kind.model_fields.items()
    if "nanoseconds on the wire" in item.metadata or "nanoseconds on the wire" in str(item.annotation)
}
