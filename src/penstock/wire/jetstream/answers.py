"""What JetStream answers, read with care: API answers, acks and statuses. Pure.

A peer may send anything. What is not what it should be becomes a RemoteProtocolError that names the field; never does
a KeyError, TypeError or ValueError get out of here.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConditionError, JetStreamError, NoRespondersError, NotFoundError, RemoteProtocolError
from penstock.json_text import load_json
from penstock.wire.jetstream import conditions
from penstock.wire.jetstream.verdicts import Verdict

__all__ = [
    "REMEDIES",
    "PubAck",
    "Status",
    "StatusKind",
    "absent",
    "api_error",
    "check_done",
    "check_stream_answer",
    "held_subjects",
    "number",
    "part",
    "parts",
    "read_ack",
    "read_answer",
    "read_json",
    "read_status",
    "text",
    "texts",
]

# What to do about refusals whose words do not say it, by err_code.
REMEDIES = {
    10002: "The account has no room left: raise its limits, or remove what it does not need.",
    10023: "The server has no room left for streams: raise its limits, or remove what it does not need.",
    10028: "The server has no memory left for streams: raise max_mem, or remove what it does not need.",
    10047: "The server has no room left for streams: raise max_file, or remove what it does not need.",
    10074: "Ask for one replica, or connect to a cluster.",
}
_FULL, _FULL_REMEDY = 10077, "The stream is full and discards what is new: raise its limit, or remove messages."

_LARGEST = 2**64 - 1  # JetStream counts in 64 bits
_SHOWN = 500  # characters of a description that an error shows; real ones have a line
_MUST: Any = object()  # the default of a field that has none


def read_json(payload: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        # Only UTF-8: the library would guess UTF-16 and UTF-32 too.
        answer = load_json(str(payload, "utf-8"))
    except ValueError:  # ValueError also for numbers of more than 4,300 digits
        raise RemoteProtocolError("The JetStream API answered something that is not JSON.", place=0) from None
    if not isinstance(answer, dict):
        raise RemoteProtocolError("The JetStream API answered something that is not an object.", place=0)
    return answer


def read_answer(payload: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Read an answer of the JetStream API; JetStreamError if it holds an error."""
    answer = read_json(payload)
    if answer.get("error") is not None:
        raise api_error(answer["error"])
    return answer


def api_error(error: object) -> JetStreamError:
    """Turn the `error` object of a JetStream answer into ours, whatever it holds."""
    fields = error if isinstance(error, Mapping) else {"description": error}
    code, err_code = _code(fields.get("code")), _code(fields.get("err_code"))
    said = fields.get("description")
    description = _printable(said) if isinstance(said, str) else "no description"
    what = f"The server refused: {description} ({err_code or code})."
    facts: dict[str, Any] = {"code": code, "err_code": err_code, "description": description}
    if err_code in conditions.FAILED:
        return ConditionError(what, actual=conditions.read_actual(err_code, description), **facts)
    # 10077 has the words of the store, which may also be that it failed.
    remedy = _FULL_REMEDY if err_code == _FULL and "exceeded" in description else REMEDIES.get(err_code or 0, "")
    return (NotFoundError if code == 404 else JetStreamError)(what, remedy=remedy, **facts)


def _code(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 100_000 else None


def _printable(said: str) -> str:
    whole = said.encode("utf-8", "replace").decode()  # lone surrogates would break whoever prints the error
    return whole if len(whole) <= _SHOWN else f"{whole[:_SHOWN]}…"


def number(answer: Mapping[str, Any], name: str, default: int = _MUST, *, least: int = 0) -> int:
    """Give a field that is a whole number of 64 bits, at least `least`; an absent one is `default`, if there is one."""
    found = answer.get(name)
    if found is None and default is not _MUST:
        return default
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= _LARGEST:
        raise _wrong(name, "a whole number")
    return found


def text(answer: Mapping[str, Any], name: str, default: str = _MUST) -> str:
    """Give a field that is text; an absent one is `default`, if there is one."""
    found = answer.get(name)
    if found is None and default is not _MUST:
        return default
    if not isinstance(found, str) or any("\ud800" <= char <= "\udfff" for char in found):
        raise _wrong(name, "text")
    return found


def texts(answer: Mapping[str, Any], name: str) -> list[str]:
    """Give a field that is a list of texts; an absent one is empty."""
    found = answer.get(name) or []
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise _wrong(name, "a list of texts")
    return found


def part(answer: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Give a field that is an object."""
    found = answer.get(name)
    if not isinstance(found, dict):
        raise _wrong(name, "an object")
    return found


def parts(answer: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Give a field that is a list of objects; an absent one is empty."""
    found = answer.get(name) or []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise _wrong(name, "a list of objects")
    return found


def absent(answer: Mapping[str, Any]) -> list[str]:
    """Give the names that a list lacks, because nobody answers for them: those that are missing, and offline."""
    offline = part(answer, "offline") if answer.get("offline") is not None else {}  # by name why, in the server's words
    return sorted({*texts(answer, "missing"), *offline})


def held_subjects(answer: Mapping[str, Any]) -> dict[str, int]:
    """Give the messages of each subject that the description of a stream lists, on this page of it."""
    state = part(answer, "state")
    found = part(state, "subjects") if state.get("subjects") is not None else {}
    return {name: number(found, name) for name in found}


def check_done(answer: Mapping[str, Any]) -> None:
    """Refuse an answer that is not an error, and does not say either that what was asked for is done."""
    if answer.get("success") is not True:
        raise JetStreamError("The server did not do it, and says no more.", remedy="See its log.")


def check_stream_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """Give back what describes a stream, or RemoteProtocolError if a field is not what every description has."""
    config, state = part(answer, "config"), part(answer, "state")
    text(answer, "created"), text(config, "name"), texts(config, "subjects"), number(config, "num_replicas", 1)
    metadata = part(config, "metadata") if config.get("metadata") is not None else {}
    for name in metadata:
        text(metadata, name)
    for name in ("messages", "bytes", "first_seq", "last_seq"):
        number(state, name)
    text(state, "last_ts", "")
    return answer


def _wrong(name: str, kind: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"The field {name!r} of JetStream's answer is not {kind}.", place=0)


# -- acks ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, unsafe_hash=True)  # not frozen: making one, a message each, would take three times as long
class PubAck:
    """What the server answers once a message, or a batch, is stored."""

    stream: str
    """The stream that took it."""
    sequence: int
    """The sequence of the message, or of the last one of the batch; that of the first copy, if it was a duplicate."""
    duplicate: bool = False
    """Whether a message with the same id was there already, so that nothing was stored."""
    domain: str | None = None
    """The JetStream domain of the stream."""
    batch: str | None = None
    """The batch that this ack ends."""
    count: int | None = None
    """How many messages the batch stored."""
    value: str | None = None
    """What a counter stands at now."""

    @property
    def seq(self) -> int:
        """The sequence, under the server's name for it."""
        return self.sequence

    @classmethod
    def from_json(cls, answer: Mapping[str, Any]) -> PubAck:
        """Read an ack that was decoded."""
        return cls(
            stream=text(answer, "stream"),
            sequence=number(answer, "seq"),
            duplicate=answer.get("duplicate") is True,
            domain=text(answer, "domain") if "domain" in answer else None,
            batch=text(answer, "batch") if "batch" in answer else None,
            count=number(answer, "count") if "count" in answer else None,
            value=text(answer, "val") if "val" in answer else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Give it as the server writes it; what it does not say is left out."""
        names = {"sequence": "seq", "value": "val"}
        fields = {names.get(name, name): value for name, value in dataclasses.asdict(self).items()}
        return {name: value for name, value in fields.items() if value is not None and value is not False}


# What nearly every ack looks like, so that thousands of them need no JSON.
_PLAIN_ACK = re.compile(rb'\{"stream":"([\x20\x21\x23-\x5b\x5d-\x7e]+)","seq":([1-9][0-9]{0,18})\}')


def read_ack(payload: bytes | bytearray | memoryview, status: int | None = None) -> PubAck:
    """Read what answered a publish: the ack, or JetStreamError, NoRespondersError, RemoteProtocolError."""
    if status and not payload:
        if status == 503:
            raise NoRespondersError(
                "No stream takes this message, or its leader is away.",
                remedy="Does a stream capture the subject, is JetStream on, and is the domain right?",
            )
        raise api_error({"code": status, "description": f"status {status}"})
    if plain := _PLAIN_ACK.fullmatch(payload):
        return PubAck(plain[1].decode(), int(plain[2]))
    return PubAck.from_json(read_answer(payload))


# -- statuses --------------------------------------------------------------------------------------------------------


class StatusKind(enum.Enum):
    """What a message without a payload says by its status, as far as it matters to whoever asked."""

    HEARTBEAT = "heartbeat"
    """The request goes on, and there is nothing to deliver."""
    END = "end"
    """The last message of what was asked for."""
    NONE = "none"
    """There is no such message, or none now."""
    EXPIRED = "expired"
    """The pull request is over; another one may be made at once."""
    COMPLETED = "completed"
    """The pull request got what it asked for, in messages or in bytes."""
    TOO_LARGE = "too large"
    """The next message is larger than the bytes that the pull request has left."""
    DELETED = "deleted"
    """The consumer is gone."""
    PINNED = "pinned"
    """Another client holds the pin of the priority group."""
    NOBODY = "nobody"
    """Nobody listens: no such consumer or stream, or no leader now."""
    LATER = "later"
    """Another node leads now, or will, or there is too much to do; ask again."""
    REFUSED = "refused"
    """The server never does this, or could not, as the description says; also a status that we do not know."""


_DONE = (StatusKind.HEARTBEAT, StatusKind.END, StatusKind.COMPLETED)
_PASSING = (StatusKind.NONE, StatusKind.EXPIRED, StatusKind.PINNED, StatusKind.NOBODY, StatusKind.LATER)

# How the description begins, if nats-server 2.15 sends several with one number, and for any other with that number.
# What is not here is refused: 400 "Bad Request - ...", 412 "Required Api Level", 413 "Too Many Results", 500.
_STATUSES: dict[int, tuple[tuple[str, StatusKind], ...]] = {
    100: (("", StatusKind.HEARTBEAT),),  # "Idle Heartbeat", "FlowControl Request"
    204: (("", StatusKind.END),),  # "EOB" for a direct get, nothing for a snapshot
    404: (("", StatusKind.NONE),),  # "No Messages", "No Results", "Message Not Found"
    408: (
        ("empty request", StatusKind.REFUSED),
        ("malformed request", StatusKind.REFUSED),
        ("bad request", StatusKind.REFUSED),
        ("no interest", StatusKind.REFUSED),  # a snapshot whose reader is gone
        ("no flow response", StatusKind.REFUSED),  # a snapshot whose reader is too slow
        ("", StatusKind.EXPIRED),  # "Request Timeout", "Requests Pending", "Interest Expired"
    ),
    409: (
        ("batch completed", StatusKind.COMPLETED),
        ("message size exceeds maxbytes", StatusKind.TOO_LARGE),
        ("consumer deleted", StatusKind.DELETED),
        ("leadership change", StatusKind.LATER),
        ("server shutdown", StatusKind.LATER),
        ("exceeded maxwaiting", StatusKind.LATER),
        ("", StatusKind.REFUSED),  # "Consumer is push based", "Exceeded MaxRequestBatch of ..." and the like
    ),
    423: (("", StatusKind.PINNED),),  # "Nats-Wrong-Pin-Id", "Nats-Pin-Id mismatch"
    429: (("", StatusKind.LATER),),  # "Too Many Requests"
    503: (("", StatusKind.NOBODY),),
}


@dataclass(frozen=True, slots=True)
class Status:
    """A status, and what it means."""

    kind: StatusKind
    code: int
    description: str = ""

    @property
    def ends(self) -> bool:
        """Whether nothing more comes for the request that it answers."""
        return self.kind is not StatusKind.HEARTBEAT

    @property
    def verdict(self) -> Verdict:
        """PASSING: the same request may bring more in a moment. STORED: it brought what it was to bring."""
        if self.kind in _DONE:
            return Verdict.STORED
        return Verdict.PASSING if self.kind in _PASSING else Verdict.REFUSED


def read_status(status: int, description: str = "") -> Status:
    """Tell what a status means; case does not matter."""
    said = description.strip().lower()
    found = next((kind for start, kind in _STATUSES.get(status, ()) if said.startswith(start)), StatusKind.REFUSED)
    return Status(found, status, description)
