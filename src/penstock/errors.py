"""Every error that Penstock raises, and whose fault each one is.

::

    PenstockError
    ├── InputError                  the caller's: found before any work was done (also a ValueError)
    │   ├── OptionError             an option that is unknown, malformed or contradicts another one
    │   ├── ContextError            a NATS context file that is missing or broken
    │   └── RowError                a row of a DataFrame that no message can be made of
    ├── ServerError                 the nats-server that we run as a child
    │   ├── BinaryError             no nats-server to run, or one too old
    │   ├── StoreInUseError         the store folder belongs to a running server
    │   ├── StoreDamagedError       the store came up with less than it held
    │   └── StartError              the server did not become ready; carries the end of its log
    ├── LinkError                   the way to a NATS server (also a ConnectionError)
    │   ├── UnreachableError        nobody answers at the address, or not as a NATS server
    │   ├── LoginError              the server refuses our credentials, or we cannot read them
    │   │   └── DeniedError         the login is good, but may not do this
    │   ├── TlsError                certificates that do not match, or TLS on one side only
    │   └── DisconnectedError       the connection was there and is gone
    ├── SlowSubscriptionError       messages came faster than they were handled, and some were dropped
    ├── DeadlineError               no answer in the time allowed (also a TimeoutError)
    │   └── NoRespondersError       known at once: nobody listens on the subject
    ├── ProtocolError               bytes that are not the protocol
    │   ├── LocalProtocolError      ours to send: the caller asked for something illegal
    │   └── RemoteProtocolError     theirs: the peer sent something illegal
    ├── JetStreamError              the server answered a JetStream request with an error
    │   ├── NotFoundError           the stream, consumer or message is not there
    │   └── ConditionError          what a message expects of its stream is not so; it is not stored
    ├── MonitorError                a server answered a question about itself with an error
    ├── PublishError                rows that a bulk publish could not store; says which ones are stored
    ├── ChunksError                 a payload that travels in chunks
    │   ├── AssemblyError           it could not be put together; `reason` says why
    │   ├── ConflictError           its id belongs to another payload, which stays
    │   └── UnfinishedError         it was sent in part; says how far the sending got
    ├── FencedError                 another attempt or another driver writes now; this one stores nothing more
    ├── MarkerError                 what the stream knows of a query's progress does not fit the query
    ├── BusError                    a request over the bus that was answered in part only
    │   ├── HandlerError            the handler ended its reply with an error
    │   ├── NoConsumerError         nobody reads the reply any more
    │   └── SlowConsumerError       the reply is read more slowly than is allowed
    ├── ChannelError                a NATS Streaming server, or our gateway, refused a request
    ├── PipelineError               the run of a pipeline failed; says where Spark's log is
    ├── ProgramError                a program of the user's own failed that was given a message
    ├── MessageError                a message of a stream that no row can be made of
    └── DataLossError               messages that were asked for are gone from the stream

The text of an error says what happened and what to do. Its facts are attributes, named in the class. Errors
survive pickling, because Spark carries them from an executor to the driver. No error holds a secret:
addresses are masked before they get here.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

_LONGEST = 2000  # characters of a sentence: what somebody else wrote may be part of it


def _printable(text: str) -> str:
    """Give a sentence that can be shown: not without end, and without half characters, which no output takes."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[3 - _LONGEST // 2 :]}"


class PenstockError(Exception):
    """The root of every error of Penstock: `what` happened, the `remedy`, and facts as attributes.

    The facts of a class are what it and its bases annotate, each `None` if the raiser does not know it.
    """

    fault: ClassVar[str] = "unknown"
    fact_names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, fault: str = "") -> None:
        cls.fault = fault or cls.fault
        cls.fact_names = (*cls.fact_names, *cls.__annotations__)

    def __init__(self, what: str, *, remedy: str = "", **facts: Any) -> None:
        unknown = set(facts) - set(self.fact_names)
        if unknown:
            raise TypeError(f"{type(self).__name__} has no fact {', '.join(sorted(unknown))}")
        self.what = _printable(what)
        self.remedy = _printable(remedy)
        super().__init__(self.what)
        for name in self.fact_names:
            setattr(self, name, facts.get(name))

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}" if self.remedy else self.what

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of this error by name."""
        return {name: getattr(self, name) for name in self.fact_names}

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), remedy=self.remedy, **self.facts), (self.what,)


class InputError(PenstockError, ValueError, fault="caller"):
    """What the caller gave cannot be used; nothing was done with it."""


class OptionError(InputError):
    """An option is unknown, malformed or contradicts another one."""

    option: str
    value: Any


class ContextError(InputError):
    """A NATS context is missing, unreadable or names something that we do not support."""

    context: str
    path: str | None


class RowError(InputError):
    """A row of a DataFrame cannot be written: `row` counts from 0 in its task, `column` is what is wrong with it."""

    row: int
    column: str


class ServerError(PenstockError, fault="machine"):
    """The nats-server that we run as a child, or want to run, is in trouble."""


class BinaryError(ServerError):
    """There is no nats-server to run, or the one that was found is too old."""

    path: str | None
    version: str | None


class StoreInUseError(ServerError, fault="caller"):
    """The store folder belongs to a server that is running."""

    store: str
    pid: int | None


class StoreDamagedError(ServerError):
    """The store came up with less than it held; `losses` says what is missing, a sentence each."""

    store: str
    losses: tuple[str, ...]


class StartError(ServerError):
    """The server did not become ready; `log` holds the last lines that it wrote."""

    log: str
    status: int | None


class LinkError(PenstockError, ConnectionError, fault="network"):
    """The way to a NATS server is blocked; `urls` are masked addresses."""

    urls: tuple[str, ...] | None


class UnreachableError(LinkError):
    """Nobody answers at the address, or what answers is not a NATS server."""


class LoginError(LinkError, fault="caller"):
    """The server refuses our credentials, or the credentials cannot be read."""


class DeniedError(LoginError):
    """The login may not do this (`operation`, "publish" or "subscribe") on `subject`; the connection stays."""

    subject: str | None
    operation: str | None


class TlsError(LinkError, fault="caller"):
    """Certificates do not match, or only one side wants TLS."""


class SlowSubscriptionError(PenstockError, fault="caller"):
    """Messages on `subject` came faster than they were handled; `dropped` of them are gone so far."""

    subject: str | None
    dropped: int | None


class DisconnectedError(LinkError):
    """The connection was there and is gone, and could not be made again in time."""


class DeadlineError(PenstockError, TimeoutError, fault="network"):
    """No answer came in the time allowed."""

    seconds: float | None
    subject: str | None


class NoRespondersError(DeadlineError):
    """The server says at once that nobody listens on the subject."""


class ProtocolError(PenstockError):
    """Bytes that are not the protocol; `place` is the offset of the first bad byte in what was fed."""

    place: int | None


class LocalProtocolError(ProtocolError, fault="caller"):
    """We were asked to send something illegal; nothing was sent."""


class RemoteProtocolError(ProtocolError, fault="peer"):
    """The peer sent something illegal; the connection cannot go on."""


class JetStreamError(PenstockError, fault="server"):
    """The server answered a JetStream request with an error: `code` as in HTTP, `err_code` exact."""

    code: int | None
    err_code: int | None
    description: str | None


class NotFoundError(JetStreamError, fault="caller"):
    """The stream, the consumer or the message is not there."""


class ConditionError(JetStreamError, fault="nobody"):
    """A message, or its whole atomic batch, is not stored: its stream does not end with what it expects.

    `expected` and `actual` are the last sequence of `subject`, or of the whole stream if that is None, or the id of the
    stream's last message; a sequence of 0 stands for no message. `actual` is None if the server cannot tell, because
    another write is under way, and `expected` if the server does not say which of several conditions failed.
    """

    subject: str | None
    expected: int | str | None
    actual: int | str | None


class MonitorError(PenstockError, fault="server"):
    """A server answered a question of its system account with an error: `code` as in HTTP."""

    server: str | None
    code: int | None
    description: str | None


class PublishError(PenstockError, fault="server"):
    """A bulk publish to `stream` ended early. `stored` and `unknown` are ranges `[start, end)` of row numbers.

    Rows in neither are not stored. `err_code` is the server's if it refused a row.
    """

    stream: str
    stored: tuple[tuple[int, int], ...]
    unknown: tuple[tuple[int, int], ...]
    err_code: int | None


class BusError(PenstockError):
    """A request over the bus was answered in part only; `subject` is where it was sent."""

    subject: str | None


class HandlerError(BusError, fault="peer"):
    """The handler ended its reply with an error; `message` is what it said."""

    message: str | None


class NoConsumerError(BusError, fault="peer"):
    """The requester does not read the reply any more: it left, or was cancelled."""


class SlowConsumerError(BusError, fault="caller"):
    """The requester took longer over a packet of `size` bytes than the `seconds` that are allowed."""

    seconds: float | None
    size: int | None


class ChannelError(PenstockError, fault="caller"):
    """A NATS Streaming server, or our gateway, refused a request; `text` is what it said, to the letter."""

    text: str | None


class PipelineError(PenstockError, fault="pipeline"):
    """The run of a pipeline failed; `log` is the path of Spark's log."""

    log: str | None


class ProgramError(PenstockError, fault="program"):
    """A program that a command gave a message to failed: `status` is its exit status, if it ended by itself."""

    program: str
    status: int | None
    output: bytes


class MessageError(PenstockError, fault="peer"):
    """A message of a stream that no row can be made of: bytes that are not text, in a column of text."""

    stream: str | None
    sequence: int | None
    column: str | None


class DataLossError(PenstockError, fault="retention"):
    """Messages of `stream` that were asked for, `[start, end)`, are gone: it now holds `[first, last]`."""

    stream: str
    start: int
    end: int | None
    first: int
    last: int


class FencedError(PenstockError, fault="nobody"):
    """A later attempt or another driver has taken over a write of the Spark sink; nothing was stored after that."""

    stream: str
    query: str
    batch: int
    partition: int | None


class MarkerError(PenstockError, fault="caller"):
    """The markers that the Spark sink keeps in `stream` do not fit the batch that `query` wants to write."""

    stream: str
    query: str
    batch: int


class ChunksError(PenstockError):
    """A payload that travels in chunks did not arrive whole, or did not leave whole."""

    subject: str | None
    message_id: str | None


class AssemblyError(ChunksError, fault="peer"):
    """A message could not be put together: `reason` names the cause, `received` of `total` bytes had come."""

    reason: str
    received: int | None
    total: int | None


class ConflictError(ChunksError, fault="caller"):
    """A payload was not stored: another one is stored, or being stored, under its id, and stays as it is."""


class UnfinishedError(ChunksError, fault="network"):
    """A message was sent in part: `sent` bytes left us, and the server confirmed the first `confirmed` of them."""

    sent: int
    confirmed: int


__all__ = [name for name, item in list(globals().items()) if isinstance(item, type) and issubclass(item, PenstockError)]

# nats-py's name of an error, and ours, for programs that were written for nats-py: `errors.TimeoutError` is found here.
# NoRespondersError and ProtocolError have one name in both; nats-py's SlowConsumerError is our SlowSubscriptionError.
NATS_PY: dict[str, type[PenstockError]] = {
    "AuthorizationError": LoginError,
    "BadHeaderError": LocalProtocolError,
    "BadSubjectError": LocalProtocolError,
    "BadSubscriptionError": DisconnectedError,
    "BadTimeoutError": DeadlineError,
    "ConnectionClosedError": DisconnectedError,
    "ConnectionDrainingError": DisconnectedError,
    "ConnectionReconnectingError": DisconnectedError,
    "DrainTimeoutError": DeadlineError,
    "Error": PenstockError,
    "FlushTimeoutError": DeadlineError,
    "InvalidCallbackTypeError": InputError,
    "InvalidUserCredentialsError": LoginError,
    "JsonParseError": RemoteProtocolError,
    "MaxPayloadError": LocalProtocolError,
    "MsgAlreadyAckdError": InputError,
    "NoServersError": UnreachableError,
    "NotJSMessageError": InputError,
    "OutboundBufferLimitError": DisconnectedError,
    "SecureConnFailedError": TlsError,
    "SecureConnRequiredError": TlsError,
    "SecureConnWantedError": TlsError,
    "ServerNotInPoolError": InputError,
    "StaleConnectionError": DisconnectedError,
    "TimeoutError": DeadlineError,
    "UnexpectedEOF": DisconnectedError,
}


def __getattr__(name: str) -> type[PenstockError]:
    try:
        return NATS_PY[name]
    except KeyError:
        raise AttributeError(f"module 'penstock.errors' has no attribute {name!r}") from None
