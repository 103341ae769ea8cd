"""What a good server would answer: a JetStream with one stream `S` of three messages, for `tests.scripted.serve`."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.scripted import Asked, headed, message, status

__all__ = ["ACK", "CONFIG", "STATE", "STREAM", "Good", "direct_block"]

COUNT = 3
TIME = 1_763_190_000_123_456_789
ACK = "$JS.ACK.S.{consumer}.1.{sequence}.{count}.{time}.{pending}"
CONFIG: dict[str, Any] = {
    "name": "S",
    "subjects": ["s.>"],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "memory",
    "num_replicas": 1,
    "duplicate_window": 120_000_000_000,
    "compression": "none",
    "allow_direct": True,
    "mirror_direct": False,
    "allow_atomic": True,
    "allow_batched": True,
}
STATE: dict[str, Any] = {
    "messages": COUNT,
    "bytes": 100,
    "first_seq": 1,
    "first_ts": "2025-11-15T07:00:00.123456789Z",
    "last_seq": COUNT,
    "last_ts": "2025-11-15T07:00:00.123456789Z",
    "num_subjects": 1,
    "consumer_count": 0,
}
STREAM: dict[str, Any] = {
    "type": "io.nats.jetstream.api.v1.stream_info_response",
    "config": CONFIG,
    "created": "2025-11-15T07:00:00.123456789Z",
    "state": STATE,
    "ts": "2025-11-15T08:00:00.123456789Z",
}
# Which answer a subject of the API gets: the first that fits.
ANSWERS = {
    r"STREAM\.INFO\..+": "stream_info",
    r"STREAM\.MSG\.GET\..+": "stored",
    r"CONSUMER\.CREATE\..+": "consumer_info",
    r"CONSUMER\.INFO\..+": "consumer_info",
    r"CONSUMER\.DELETE\..+": "deleted",
    r"CONSUMER\.MSG\.NEXT\..+": "pull",
    r"DIRECT\.GET\..+": "direct",
    r".+": "api",
}


def direct_block(sequence: int, **changed: str) -> bytes:
    """Write the headers that direct get adds; `changed` replaces values, and leaves a header out where it is empty."""
    lines = {
        "Nats-Stream": "S",
        "Nats-Subject": "s.x",
        "Nats-Sequence": str(sequence),
        "Nats-Time-Stamp": "2025-11-15T07:00:00.123456789Z",
        "Nats-Num-Pending": str(COUNT - sequence),
        "Nats-Last-Sequence": str(max(0, sequence - 1)),
    } | {f"Nats-{name.replace('_', '-')}": value for name, value in changed.items()}
    return "\r\n".join(["NATS/1.0", *(f"{name}: {value}" for name, value in lines.items() if value), "", ""]).encode()


class Good:
    """The answers of a good server, one method each."""

    def name_of(self, asked: Asked) -> str:
        """Say which answer belongs to what was asked."""
        if asked.subject.startswith("$JS.API."):
            method = asked.subject.removeprefix("$JS.API.")
            return next(name for pattern, name in ANSWERS.items() if re.fullmatch(pattern, method))
        if asked.subject.startswith("$JS.ACK."):
            return "delivery_ack"
        if asked.reply.endswith(".$FI"):
            return "fast"
        if b"Nats-Batch-Id" in asked.header:
            return "atomic"
        return "ack" if asked.subject.startswith("s.") else "request"

    def ping(self, asked: Asked) -> bytes:
        return b"PONG\r\n"

    def subscribe(self, asked: Asked) -> bytes:
        """Send three messages to whoever wants to hear `feed`."""
        return message(asked, b"hello") * COUNT if asked.subject == "feed" else b""

    def request(self, asked: Asked) -> bytes:
        return message(asked, asked.payload) if asked.reply else b""

    def stream_info(self, asked: Asked) -> bytes:
        return message(asked, json.dumps(STREAM).encode())

    def consumer_info(self, asked: Asked) -> bytes:
        name = asked.subject.split(".")[-1]
        config = {"ack_policy": "explicit", **asked.json.get("config", {}), "name": name}
        zero = {"consumer_seq": 0, "stream_seq": 0}
        found = {"stream_name": "S", "name": name, "created": STREAM["created"], "config": config}
        found |= {"delivered": zero, "ack_floor": zero, "num_ack_pending": 0, "num_redelivered": 0}
        return message(asked, json.dumps({**found, "num_waiting": 0, "num_pending": COUNT}).encode())

    def deleted(self, asked: Asked) -> bytes:
        return message(asked, b'{"success":true}')

    def stored(self, asked: Asked) -> bytes:
        return message(asked, b'{"error":{"code":404,"err_code":10037,"description":"no message found"}}')

    def api(self, asked: Asked) -> bytes:
        return message(asked, b"{}")

    def pull(self, asked: Asked) -> bytes:
        """Give all messages to the first request, and say to others that there are none."""
        if asked.number > 1:
            return status("404 No Messages")(asked)
        consumer = asked.subject.split(".")[-1]
        found = b""
        for sequence in range(1, COUNT + 1):
            pending = COUNT - sequence
            reply = ACK.format(consumer=consumer, sequence=sequence, count=sequence, time=TIME, pending=pending)
            found += message(asked, b"hello", subject="s.x", reply=reply)
        return found

    def direct(self, asked: Asked) -> bytes:
        found = b"".join(headed(asked, direct_block(number), b"hello") for number in range(1, COUNT + 1))
        return found + status("204 EOB", Nats_Num_Pending="0", Nats_Last_Sequence=str(COUNT))(asked)

    def delivery_ack(self, asked: Asked) -> bytes:
        return message(asked, b"") if asked.reply else b""

    def ack(self, asked: Asked) -> bytes:
        return message(asked, b'{"stream":"S","seq":%d}' % (COUNT + asked.number)) if asked.reply else b""

    def atomic(self, asked: Asked) -> bytes:
        """Say nothing until the batch is committed."""
        place = re.search(rb"Nats-Batch-Sequence: (\d+)", asked.header)
        if b"Nats-Batch-Commit" not in asked.header or place is None:
            return message(asked, b"") if asked.reply else b""
        name = re.search(rb"Nats-Batch-Id: (\w+)", asked.header)
        assert name is not None
        said = b'{"stream":"S","seq":%d,"batch":"%b","count":%b}'
        return message(asked, said % (COUNT + int(place[1]), name[1], place[1]))

    def fast(self, asked: Asked) -> bytes:
        """Let everything come, and confirm each message; the end gets the sum."""
        number, operation = int(asked.reply.split(".")[-3]), asked.reply.split(".")[-2]
        if operation in ("2", "3"):
            count = number if operation == "2" else number - 1
            final = {"stream": "S", "seq": COUNT + count, "batch": "b", "count": count}
            return message(asked, json.dumps(final).encode())
        return message(asked, b'{"type":"ack","seq":%d,"msgs":100}' % number)
