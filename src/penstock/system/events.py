"""What servers tell by themselves: connections that come and go, and JetStream's advisories and metrics. Pure.

Every event is a JSON object with `type` (such as `io.nats.server.advisory.v1.client_connect`), `id` and `timestamp`.
Those that are not known are shown like all others: by their fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.durations import format_duration
from penstock.errors import RemoteProtocolError
from penstock.system.fields import fields, figure, moment, read_object, seconds, word
from penstock.system.reports import without_jwt
from penstock.wire.jetstream.names import ADVISORY

__all__ = ["JS_ADVISORIES", "JS_METRICS", "SERVER_ADVISORIES", "ServerEvent", "read_event"]

JS_ADVISORIES = (f"{ADVISORY}.>",)
JS_METRICS = ("$JS.EVENT.METRIC.>",)
SERVER_ADVISORIES = ("$SYS.ACCOUNT.*.CONNECT", "$SYS.ACCOUNT.*.DISCONNECT", "$SYS.SERVER.*.CLIENT.AUTH.ERR")

_ABOUT = ("type", "id", "timestamp")
_LONGEST = 200  # characters of a fact
_NANOSECONDS = ("ack_time", "rtt")
_TITLES = {
    "api_audit": "JetStream API request",
    "client_connect": "Client connected",
    "client_disconnect": "Client disconnected",
    "consumer_ack": "Ack sample",
    "max_deliver": "Out of deliveries",
    "nak": "Given back",
    "terminated": "Refused for good",
}
_SHORT = (
    "stream",
    "consumer",
    "stream_seq",
    "deliveries",
    "ack_time",
    "action",
    "leader",
    "reason",
    "subject",
    "error",
)


@dataclass(frozen=True)
class ServerEvent:
    """One event, as a server told it."""

    kind: str
    """Its whole type."""
    id: str
    time: datetime | None
    raw: dict[str, Any] = field(repr=False)
    """All that was told, but for JWTs."""

    @property
    def title(self) -> str:
        """What happened, in a few words."""
        last = self.kind.rpartition(".")[2]
        return _TITLES.get(last, last.replace("_", " ").capitalize() or "Event")

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What was told, by name: of the server no more than who it is, of long texts the beginning."""
        told = {key: value for key, value in self.raw.items() if key not in _ABOUT}
        if isinstance(server := told.get("server"), dict):
            told["server"] = {key: server[key] for key in ("name", "cluster") if key in server}
        return list(_flat(told))

    @property
    def short(self) -> str:
        """What matters of it, in a line."""
        client = fields(self.raw, "client")
        said = [f"{name} {_shown(name, value)}" for name in _SHORT if (value := self.raw.get(name)) not in (None, "")]
        if client:
            about = [("user", word(client, "user")), ("name", word(client, "name")), ("account", word(client, "acc"))]
            said = [f"cid {figure(client, 'id')}", *(f"{name} {value}" for name, value in about if value), *said]
        return f"[{self.title}] {', '.join(said)}".rstrip()

    def to_cloudevent(self) -> dict[str, Any]:
        """Give it as a CloudEvent 1.0, as the `nats` command does."""
        parts = [*self.kind.split("."), "", "", "", ""]
        return {
            "type": self.kind,
            "time": self.raw.get("timestamp"),
            "id": self.id,
            "source": f"urn:nats:{parts[2]}",
            "subject": parts[3],
            "specversion": "1.0",
            "data": self.raw,
        }


def read_event(data: bytes) -> ServerEvent:
    """Read one event; RemoteProtocolError if it is something else."""
    content = read_object(data)
    if not isinstance(content.get("type"), str):
        raise RemoteProtocolError(f"This is not an event of a NATS server: {data[:60]!r}.", place=0)
    if isinstance(content.get("client"), dict):
        content["client"] = without_jwt(content["client"])
    return ServerEvent(word(content, "type"), word(content, "id"), moment(content, "timestamp"), content)


def _flat(content: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Give all fields that say something, those inside of others behind their name."""
    for name, value in content.items():
        path = f"{before}{name}"
        if isinstance(value, dict):
            yield from _flat(value, f"{path}.")
        elif value not in (None, "", [], 0):
            yield path, _shown(name, value)


def _shown(name: str, value: Any) -> str:
    if name in _NANOSECONDS and isinstance(value, int):
        return format_duration(seconds({name: value}, name))
    text = ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
