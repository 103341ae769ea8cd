"""The names of channels and clients, and how a channel becomes a stream and a subject.

A channel's stream carries the cluster id and the channel, `test-cluster:orders:new` for the channel `orders.new`:
letters, digits, `-` and `_` stay, a dot becomes a colon, and any other byte becomes `=` and two hexadecimal digits. So
no two channels share a stream, and the name can be read back. The subject is the channel's own name behind the prefix
that the operator chose, none by default; bytes that a subject cannot carry are written in the same way.
"""

from __future__ import annotations

import re

__all__ = ["channel_of", "is_channel", "is_client", "state_stream", "state_subject", "stream_name", "subject_name"]

_CLIENT = re.compile(r"[A-Za-z0-9_-]+")
_CHANNEL = re.compile(r"[^./*>]+(?:\.[^./*>]+)*")
_ESCAPE = re.compile(r"=([0-9A-F]{2})")
_NOT_IN_STREAM = re.compile(r"[^A-Za-z0-9_.-]")
_NOT_IN_SUBJECT = re.compile(r"""[^A-Za-z0-9_.!#$%&'()+,:;<?@[\]^`{|}~"-]""")


def is_client(name: str) -> bool:
    """Whether a client may call itself that: letters, digits, `-` and `_`."""
    return _CLIENT.fullmatch(name) is not None


def is_channel(name: str) -> bool:
    """Whether a channel may be called that: no wildcard, no slash, no empty token."""
    return _CHANNEL.fullmatch(name) is not None


def _escape(found: re.Match[str]) -> str:
    return "".join(f"={byte:02X}" for byte in found[0].encode())


def stream_name(cluster: str, channel: str) -> str:
    """Give the name of a channel's stream."""
    return f"{cluster}:{_NOT_IN_STREAM.sub(_escape, channel).replace('.', ':')}"


def channel_of(cluster: str, stream: str) -> str | None:
    """Give the channel of a stream; None if it is none of this cluster's."""
    head, colon, rest = stream.partition(":")
    if head != cluster or not colon:
        return None
    try:
        raw = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), rest.replace(":", "."))
        channel = raw.encode("latin-1").decode()
    except (UnicodeDecodeError, UnicodeEncodeError):
        return None
    return channel if is_channel(channel) and stream_name(cluster, channel) == stream else None


def subject_name(prefix: str, channel: str) -> str:
    """Give the subject of a channel's stream."""
    return prefix + _NOT_IN_SUBJECT.sub(_escape, channel)


def state_stream(cluster: str) -> str:
    """Give the name of the stream that holds a cluster's clients, durables, positions and lease."""
    return f"{cluster}=state"


def state_subject(cluster: str, *tokens: str) -> str:
    """Give a subject of the state stream."""
    return ".".join(("_PENSTOCK.channels", cluster, *tokens))
