"""What a survey sees, for tests that need no server: answers as the server writes them, and a survey that took them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from penstock.info import ConsumerInfo, StreamInfo
from penstock.survey.known import Known
from penstock.survey.last_hour import LastHour
from penstock.survey.looks import see_consumer, see_stream

MADE = "2026-01-01T00:00:00Z"
BEGUN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def moment(seconds: float) -> str:
    """Write a moment, counted from when everything was made, as the server does."""
    return datetime.fromtimestamp(BEGUN + seconds, UTC).isoformat().replace("+00:00", "Z")


def stream_answer(name: str, at: float, *, messages: int = 0, **more: Any) -> dict[str, Any]:
    """Give what the server says of a stream at a moment; `config`, `state` and other fields can be given."""
    config = {"name": name, "subjects": [f"{name}.>"], "retention": "limits", "storage": "file", "num_replicas": 1}
    state = {"messages": messages, "bytes": 10 * messages, "first_seq": 1, "last_seq": messages, "num_subjects": 1}
    return {
        "created": MADE,
        "ts": moment(at),
        **more,
        "config": config | more.get("config", {}),
        "state": state | more.get("state", {}),
    }


def consumer_answer(stream: str, name: str, at: float, *, moved: float = 0.0, **more: Any) -> dict[str, Any]:
    """Give what the server says of a consumer at a moment; `moved` is when it last delivered and was acknowledged."""
    place = {"consumer_seq": 5, "stream_seq": 5, "last_active": moment(moved)}
    config = {"durable_name": name, "ack_policy": "explicit", "ack_wait": 30_000_000_000, "max_ack_pending": 1000}
    return {
        "stream_name": stream,
        "name": name,
        "created": MADE,
        "ts": moment(at),
        "delivered": place,
        "ack_floor": place,
        **more,
        "config": config | more.get("config", {}),
    }


class Seen:
    """A survey's knowledge, fed by hand."""

    def __init__(self, room: int = 2_000_000) -> None:
        self.known = Known(LastHour(room=room))

    def stream(self, name: str, at: float, *, markers: int | None = None, **more: Any) -> None:
        """Take a look at a stream."""
        info = StreamInfo.from_json(stream_answer(name, at, **more))
        before = self.known.streams.get(name)
        self.known.take_stream(see_stream(info, before, BEGUN + at, markers), str(info.raw["created"]))

    def consumer(
        self, stream: str, name: str, at: float, *, age: float | None = None, p99: float | None = None, **more: Any
    ) -> None:
        """Take a look at a consumer; `age` is that of the oldest message that waits."""
        info = ConsumerInfo.from_json(consumer_answer(stream, name, at, **more))
        before = self.known.consumers.get((stream, name))
        state = see_consumer(info, before, BEGUN + at, lag_seconds=age, acks=(int(p99 is not None), p99, p99))
        self.known.take_consumer(state)

    def troubles(self) -> dict[tuple[str, ...], list[str]]:
        """Give what needs attention: the kinds, by what they are about."""
        found: dict[tuple[str, ...], list[str]] = {}
        for trouble in self.known.snapshot(1, BEGUN, problem=None, jetstream=True).trouble:
            found.setdefault(trouble.subject, []).append(trouble.kind)
        return found

    def says(self) -> str:
        """Give the only trouble that there is, as a sentence."""
        (trouble,) = self.known.snapshot(1, BEGUN, problem=None, jetstream=True).trouble
        return trouble.says
