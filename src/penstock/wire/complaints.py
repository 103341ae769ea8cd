"""Every `-ERR` sentence of nats-server 2.15, and what it means to a client. Pure.

    -ERR '<sentence>'CRLF

    sentence    one of the table below, or a denial
    denial      Permissions Violation for Publish to <quoted>
                Permissions Violation for Publish with Reply of <quoted>
                Permissions Violation for Subscription to <quoted>[ using queue <quoted>][ (sid <quoted>)]
                Permissions Violation for Subscription to <quoted>, too many tokens
    quoted      a string as Go's %q writes it; older servers wrote some of them bare

Nothing is said by a server that closes because it stops, because we read too slowly, because a line of ours has the
wrong number of fields, or because an operator ends the connection: the bytes just end.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import (
    DeniedError,
    DisconnectedError,
    LocalProtocolError,
    LoginError,
    PenstockError,
    TlsError,
    UnreachableError,
)

__all__ = ["SENTENCES", "Complaint", "ComplaintKind", "complaint_error", "read_complaint"]


class ComplaintKind(enum.Enum):
    """What a sentence is about."""

    LOGIN = "login"
    """The credentials are wrong, or are not any more."""
    BUSY = "busy"
    """The server cannot take this login just now; the credentials are not in question."""
    EXPIRED = "expired"
    """The credentials, or the account's, are over their time or were revoked."""
    DENIED = "denied"
    """The login may not publish or subscribe there; the connection stays."""
    SUBSCRIPTIONS = "subscriptions"
    """The connection has as many subscriptions as it may; the connection stays, the subscription does not begin."""
    SUBJECT = "subject"
    """Something that cannot be a subject; the connection stays."""
    PROTOCOL = "protocol"
    """What we sent is not the protocol, or more than the server takes."""
    TLS = "tls"
    """The server wants TLS, and we spoke without."""
    PORT = "port"
    """This port is for servers: routes, leaf nodes or gateways."""
    GONE = "gone"
    """The server gives this connection up; nothing is wrong with what we sent."""
    UNKNOWN = "unknown"
    """A sentence that we do not know. Nothing follows from it."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """A sentence, read."""

    text: str
    """To the letter, without the quotes around it."""
    kind: ComplaintKind
    operation: str | None = None
    """What was denied: "publish" or "subscribe"."""
    subject: str | None = None
    """Where; for a denied reply subject, that subject."""
    queue: str | None = None
    sid: int | None = None
    """The subscription that a changed permission ended; the server tells it only then."""
    of_reply: bool = False
    """Whether `subject` is the reply subject of the message that was denied, not where it went."""

    @property
    def closes(self) -> bool:
        """Whether the server closes the connection after it."""
        return self.kind not in _STAYS


_STAYS = {ComplaintKind.DENIED, ComplaintKind.SUBSCRIPTIONS, ComplaintKind.SUBJECT, ComplaintKind.UNKNOWN}

# How each sentence begins, in small letters: some servers add to it. The longest that fits decides.
SENTENCES = {
    "authorization violation": ComplaintKind.LOGIN,
    "authorization error": ComplaintKind.LOGIN,  # older servers
    # Said after "Authorization Violation" is ruled out: the account is broken. With a user and password the server
    # leaves the connection open, in the wrong account, so that we have to close it.
    "failed account registration": ComplaintKind.LOGIN,
    # A login has two seconds. A busy server, or a slow way, needs more; the credentials were not even looked at.
    "authentication timeout": ComplaintKind.BUSY,
    "maximum connections exceeded": ComplaintKind.BUSY,
    "maximum account active connections exceeded": ComplaintKind.BUSY,
    "connection throttling is active": ComplaintKind.BUSY,
    "user authentication expired": ComplaintKind.EXPIRED,
    "user authentication revoked": ComplaintKind.EXPIRED,
    "account authentication expired": ComplaintKind.EXPIRED,
    "authentication expired": ComplaintKind.EXPIRED,  # older servers
    "authentication revoked": ComplaintKind.EXPIRED,
    # Also said, and then the connection does close, when a lower limit is set while it lives.
    "maximum subscriptions exceeded": ComplaintKind.SUBSCRIPTIONS,
    "invalid subject": ComplaintKind.SUBJECT,
    "invalid publish subject": ComplaintKind.SUBJECT,
    "permissions violation": ComplaintKind.DENIED,
    "maximum payload violation": ComplaintKind.PROTOCOL,
    "maximum control line exceeded": ComplaintKind.PROTOCOL,
    "unknown protocol operation": ComplaintKind.PROTOCOL,
    "parser error": ComplaintKind.PROTOCOL,  # older servers
    "invalid client protocol": ComplaintKind.PROTOCOL,
    "no responders requires headers support": ComplaintKind.PROTOCOL,
    "message headers not supported": ComplaintKind.PROTOCOL,
    "secure connection - tls required": ComplaintKind.TLS,
    "stale connection": ComplaintKind.GONE,
    "slow consumer": ComplaintKind.GONE,  # older servers; newer ones close without a word
    "server shutdown": ComplaintKind.GONE,
    "attempted to connect to route port": ComplaintKind.PORT,
    "attempted to connect to leaf node port": ComplaintKind.PORT,
    "attempted to connect to gateway port": ComplaintKind.PORT,
    "attempted to connect to wrong port": ComplaintKind.PORT,
    # What servers say to each other; who hears it speaks to a port for servers.
    "account absent from receive-all-subscriptions": ComplaintKind.PORT,
    "attempt to connect to gateway": ComplaintKind.PORT,
    "cluster name": ComplaintKind.PORT,
    "connection from": ComplaintKind.PORT,
    "connection rejected since minimum version required": ComplaintKind.PORT,
    "connection to gateway": ComplaintKind.PORT,
    "duplicate remote leafnode connection": ComplaintKind.PORT,
    "duplicate server name": ComplaintKind.PORT,
    "invalid route pool index": ComplaintKind.PORT,
    "invalid subscription": ComplaintKind.PORT,
    "loop detected for leafnode": ComplaintKind.PORT,
    "mismatch route pool size": ComplaintKind.PORT,
    "no route for account": ComplaintKind.PORT,
    "not possible to have a dedicated route": ComplaintKind.PORT,
    "rejecting connection": ComplaintKind.PORT,
    "route pool index": ComplaintKind.PORT,
    "remote leafnode has same cluster name": ComplaintKind.PORT,
    "stale leaf node connection": ComplaintKind.PORT,
    "unable to lookup account": ComplaintKind.PORT,
}
_BY_LENGTH = sorted(SENTENCES, key=len, reverse=True)

_QUOTED = r'("(?:[^"\\]|\\.)*"|\S+?)'
_DENIAL = re.compile(
    rf"permissions violation for (?:publish (?:to|(with reply of))|(subscription) to) {_QUOTED}"
    rf"(?: using queue {_QUOTED})?(?: \(sid {_QUOTED}\))?(?:, too many tokens)?",
    re.IGNORECASE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))", re.DOTALL)
_PLAIN = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def read_complaint(text: str) -> Complaint:
    """Tell what a sentence means; case and quotes around it do not matter."""
    said = text.strip().removeprefix("'").removesuffix("'").strip()
    lowered = said.lower()
    start = next((start for start in _BY_LENGTH if lowered.startswith(start)), None)
    if start is None:
        return Complaint(said, ComplaintKind.UNKNOWN)
    kind = SENTENCES[start]
    operation = subject = queue = sid = None
    of_reply = False
    if kind is ComplaintKind.SUBJECT:
        operation = "publish" if "publish" in lowered else "subscribe"
    elif kind is ComplaintKind.SUBSCRIPTIONS:
        operation = "subscribe"
    elif kind is ComplaintKind.DENIED and (match := _DENIAL.fullmatch(said)):
        of_reply = bool(match[1])
        operation = "subscribe" if match[2] else "publish"
        subject = _unquote(match[3])
        queue = _unquote(match[4]) if match[4] else None
        number = _unquote(match[5]) if match[5] else ""
        sid = int(number) if number.isascii() and number.isdigit() and len(number) < 19 else None
    return Complaint(said, kind, operation, subject, queue, sid, of_reply)


def _unquote(quoted: str) -> str:
    """Undo Go's %q; bytes that are not UTF-8 come back as \\x escapes, and are kept as lone surrogates."""
    if not (len(quoted) > 1 and quoted.startswith('"') and quoted.endswith('"')):
        return quoted
    return _ESCAPE.sub(_unescape, quoted[1:-1])


def _unescape(match: re.Match[str]) -> str:
    byte, short, long, plain = match.groups()
    if byte:
        value = int(byte, 16)
        return bytes([value]).decode("utf-8", "surrogateescape")  # as a subject is read everywhere else
    if short or long:
        value = int(short or long, 16)
        return chr(value) if value < 0x110000 and not 0xD800 <= value < 0xE000 else "\ufffd"
    return _PLAIN.get(plain, plain)


_ERRORS: dict[ComplaintKind, tuple[type[PenstockError], str]] = {
    ComplaintKind.LOGIN: (LoginError, "The server refuses the login"),
    ComplaintKind.EXPIRED: (LoginError, "The server refuses the login"),
    ComplaintKind.PORT: (LoginError, "This port of the server is not for clients"),
    ComplaintKind.BUSY: (UnreachableError, "The server takes no login just now"),
    ComplaintKind.DENIED: (DeniedError, "The server does not permit this"),
    ComplaintKind.SUBSCRIPTIONS: (DeniedError, "The server does not permit this"),
    ComplaintKind.SUBJECT: (LocalProtocolError, "The server refuses what was sent"),
    ComplaintKind.PROTOCOL: (LocalProtocolError, "The server refuses what was sent"),
    ComplaintKind.TLS: (TlsError, "The server wants TLS"),
    ComplaintKind.GONE: (DisconnectedError, "The server ended the connection"),
    ComplaintKind.UNKNOWN: (DisconnectedError, "The server complains"),
}
_REMEDIES = {
    ComplaintKind.LOGIN: "Check the user, token or credentials; a secret in a URL must be percent-encoded.",
    ComplaintKind.BUSY: "Try again in a moment; if it stays so, the server has too many connections or too much to do.",
    ComplaintKind.EXPIRED: "Get new credentials from whoever issued these.",
    ComplaintKind.SUBSCRIPTIONS: "Use fewer subscriptions, or raise max_subscriptions of the server or the account.",
    ComplaintKind.SUBJECT: "A subject has no blanks and no empty parts between its dots.",
    ComplaintKind.PROTOCOL: "Send smaller messages and shorter subjects, or raise the server's limits.",
    ComplaintKind.TLS: "Use tls:// in the URL.",
    ComplaintKind.PORT: "Use the server's port for clients, 4222 if nothing else is configured.",
    ComplaintKind.GONE: "Is the server up, and is there time to answer its pings?",
}


# Subjects that hold what changes with every use, and how many tokens of them stay the same.
_LASTING = {
    "_INBOX": 1,
    "$JS.ACK": 4,  # the stream and the consumer
    "$JS.API.CONSUMER.CREATE": 5,  # the stream; a consumer's name is often made up
    "$JS.API.CONSUMER.DELETE": 5,
    "$JS.API.DIRECT.GET": 5,
    "$JS.FC": 3,
    "$JS.SNAPSHOT.ACK": 4,
    "$JS.SNAPSHOT.RESTORE": 4,
    "_STAN.acks": 2,
}


def permission(subject: str, inbox: str = "_INBOX") -> str:
    """Give what to allow for a subject: itself, or what holds for the next use as well; `inbox` begins replies."""
    for start, lasting in ({inbox: inbox.count(".") + 1} | _LASTING).items():
        tokens = subject.split(".")
        if subject.startswith(f"{start}.") and len(tokens) > lasting:
            return ".".join((*tokens[:lasting], ">"))
    return subject


def _permit(complaint: Complaint, inbox: str) -> str:
    """Say what to add to the server's configuration."""
    if complaint.subject is None or complaint.operation is None:
        return "The user needs the permission that the text names."
    allowed = permission(complaint.subject, inbox)
    return (
        f'Add "{allowed}" to what the user may {complaint.operation} to: '
        f'permissions {{ {complaint.operation}: {{ allow: ["{allowed}"] }} }}.'
    )


def complaint_error(
    complaint: Complaint, urls: Sequence[str] | None = None, *, text: str | None = None, inbox: str = "_INBOX"
) -> PenstockError:
    """Turn a complaint into our error; `urls` are masked, and so is `text`, the sentence as it may be shown.

    `inbox` is what our reply subjects begin with.
    """
    kind, what = _ERRORS[complaint.kind]
    said = (complaint.text if text is None else text) or "nothing"
    places = tuple(urls) if urls is not None else None
    known = {"urls": places, "subject": complaint.subject, "operation": complaint.operation}
    facts = {name: fact for name, fact in known.items() if name in kind.fact_names}
    denied = complaint.kind is ComplaintKind.DENIED
    remedy = _permit(read_complaint(said), inbox) if denied else _REMEDIES.get(complaint.kind, "")
    return kind(f"{what}: {said}.", remedy=remedy, **facts)
