"""What the servers of a system account can be asked, and which of them are meant. Pure.

::

    $SYS.REQ.SERVER.PING            every server: who it is, and its figures in short
    $SYS.REQ.SERVER.PING.<kind>     every server that the question's filter takes: VARZ, CONNZ, JSZ …
    $SYS.REQ.SERVER.<id>.<kind>     one server
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import InputError
from penstock.system.fields import fields, texts, word

__all__ = ["PING", "ServerFilter", "is_server_id", "subject_of"]

PING = "$SYS.REQ.SERVER.PING"
_ID = re.compile(r"N[A-Z2-7]{55}")
_KIND = re.compile(r"[A-Z]+")


def is_server_id(text: str) -> bool:
    """Tell whether this is the id of a server, and no name."""
    return _ID.fullmatch(text) is not None


def subject_of(kind: str, server: str | None = None) -> str:
    """Give the subject of a question for all servers, or for one."""
    if not _KIND.fullmatch(kind):
        raise InputError(f"{kind!r} is nothing that servers are asked.", remedy="Ask for VARZ, CONNZ, JSZ and so on.")
    if server is None:
        return f"{PING}.{kind}"
    if not is_server_id(server):
        raise InputError(f"{server!r} is not a server's id.", remedy="It has 56 letters and digits, the first an N.")
    return f"$SYS.REQ.SERVER.{server}.{kind}"


@dataclass(frozen=True)
class ServerFilter:
    """Which servers are meant: those to which all of it applies, each to the letter; nothing means all of them."""

    name: str = ""
    """The name of the server."""
    host: str = ""
    """The host that it listens on, as it says itself."""
    cluster: str = ""
    """The name of its cluster."""
    tags: tuple[str, ...] = ()
    """Tags of its configuration; it has all of them."""
    domain: str = ""
    """Its JetStream domain."""

    def __bool__(self) -> bool:
        return bool(self.name or self.host or self.cluster or self.tags or self.domain)

    def to_json(self) -> dict[str, Any]:
        """Give what a question says of it."""
        if not self:
            return {}
        about = {
            "server_name": self.name,
            "host": self.host,
            "cluster": self.cluster,
            "tags": list(self.tags),
            "domain": self.domain,
        }
        return {"exact_match": True, **{key: value for key, value in about.items() if value}}

    def takes(self, answer: Mapping[str, Any]) -> bool:
        """Tell whether the server that gave an answer is meant."""
        server = fields(answer, "server")
        has = {tag.lower() for tag in texts(server, "tags")}
        return (
            all(
                not wanted or wanted == word(server, key)
                for key, wanted in (
                    ("name", self.name),
                    ("host", self.host),
                    ("cluster", self.cluster),
                    ("domain", self.domain),
                )
            )
            and {tag.lower() for tag in self.tags} <= has
        )

    def __str__(self) -> str:
        tags = f"tags {', '.join(self.tags)}" if self.tags else ""
        named = [f"{name} {getattr(self, name)}" for name in ("name", "host", "cluster", "domain")]
        return " and ".join(text for text in (*named, tags) if text and not text.endswith(" "))
