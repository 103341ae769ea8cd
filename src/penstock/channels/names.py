"""The names of channels and clients, and how a channel becomes a stream and a subject.

A channel's stream carries the cluster id and the channel, `test-cluster:orders:new` for the channel `orders.new`:
letters, digits, `-` and `_` stay, a dot becomes a colon, and any other byte becomes `=` and two hexadecimal digits. So
no two channels share a stream, and the name can be read back. A name that is too long for that is cut, and ends in `=h`
and a digest; the whole one is in the stream's metadata.

The subject is the channel's own name behind the prefix that the operator chose, none by default. Bytes that a subject
cannot carry are written in the same way, and so is a `$` or `_` at the very beginning: such subjects are those of the
server, of JetStream and of everybody's inboxes.
"""

from __future__ import annotations

import hashlib
import re

__all__ = [
    "CHANNEL",
    "CLUSTER",
    "channel_of",
    "is_channel",
    "is_client",
    "is_inbox",
    "state_stream",
    "state_subject",
    "stream_name",
    "subject_name",
]

CLUSTER, CHANNEL = "penstock.cluster", "penstock.channel"  # whose stream it is, in its metadata
_CLIENT = re.compile(r"[A-Za-z0-9_-]+")
_CHANNEL = re.compile(r"[^./*>\0]+(?:\.[^./*>\0]+)*")
_LONGEST = 1024  # bytes of a channel's name or of an inbox: a server cuts the connection for a line of four kilobytes
_LONGEST_STREAM = 255  # what JetStream allows
_DIGEST = 32
_INBOX = re.compile(r"(?!\$|_PENSTOCK\.)[^\x00-\x20]+")
_WILDCARD = re.compile(r"(?:^|\.)[*>](?:\.|$)")
_ESCAPE = re.compile(r"=([0-9A-F]{2})")
_NOT_IN_STREAM = re.compile(r"[^A-Za-z0-9_.-]")
_NOT_IN_SUBJECT = re.compile(r"""[^A-Za-z0-9_.!#$%&'()+,:;<?@[\]^`{|}~"-]""")


def is_client(name: str) -> bool:
    """Whether a client may call itself that: letters, digits, `-` and `_`."""
    return _CLIENT.fullmatch(name) is not None


def is_channel(name: str) -> bool:
    """Whether a channel may be called that: no wildcard, no slash, no empty token, no more than a kilobyte."""
    return _CHANNEL.fullmatch(name) is not None and _is_brief(name)


def is_inbox(name: str) -> bool:
    """Whether a client may be sent something there.

    Nothing is refused but what would harm others: what breaks a line of the protocol, a wildcard, which streams of
    others would store, and subjects of JetStream and of our own, on which we may do more than the client.
    """
    return _INBOX.fullmatch(name) is not None and _WILDCARD.search(name) is None and _is_brief(name)


def _is_brief(name: str) -> bool:
    """Whether a name has no more than a kilobyte; half a character, which JSON can hold, can be in no name."""
    try:
        return len(name.encode()) <= _LONGEST
    except UnicodeEncodeError:
        return False


def _escape(found: re.Match[str]) -> str:
    return "".join(f"={byte:02X}" for byte in found[0].encode())


def stream_name(cluster: str, channel: str) -> str:
    """Give the name of a channel's stream."""
    name = f"{cluster}:{_NOT_IN_STREAM.sub(_escape, channel).replace('.', ':')}"
    if len(name) <= _LONGEST_STREAM:
        return name
    digest = hashlib.sha256(channel.encode()).hexdigest()[:_DIGEST]
    return f"{name[: _LONGEST_STREAM - _DIGEST - 2]}=h{digest}"


def channel_of(cluster: str, stream: str, noted: str = "") -> str | None:
    """Give the channel of a stream, whose name is `noted` there; None if it is none of this cluster's."""
    head, colon, rest = stream.partition(":")
    if head != cluster or not colon:
        return None
    if len(stream) == _LONGEST_STREAM and is_channel(noted) and stream_name(cluster, noted) == stream:
        return noted
    try:
        raw = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), rest.replace(":", "."))
        channel = raw.encode("latin-1").decode()
    except (UnicodeDecodeError, UnicodeEncodeError):
        return None
    return channel if is_channel(channel) and stream_name(cluster, channel) == stream else None


def subject_name(prefix: str, channel: str) -> str:
    """Give the subject of a channel's stream."""
    subject = prefix + _NOT_IN_SUBJECT.sub(_escape, channel)
    return f"={ord(subject[0]):02X}{subject[1:]}" if subject[0] in "$_" and not prefix else subject


def state_stream(cluster: str) -> str:
    """Give the name of the stream that holds a cluster's clients, durables, positions and lease."""
    return f"{cluster}=state"


def state_subject(cluster: str, *tokens: str) -> str:
    """Give a subject of the state stream."""
    return ".".join(("_PENSTOCK.channels", cluster, *tokens))
