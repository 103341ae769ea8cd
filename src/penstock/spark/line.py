"""What the sink says to NATS on one bulk connection: questions, and atomic batches of which several are under way.

Answers are told apart by their reply subjects, so that a question may be asked while batches wait for their acks.
Nothing here tries again, and only `restore` makes a lost connection anew: who asks knows what a second attempt means.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.errors import (
    DisconnectedError,
    NoRespondersError,
    NotFoundError,
)
from penstock.options import ConnectionOptions
from penstock.wire import protocol
from penstock.wire.bulk import BulkConnection
from penstock.wire.bulk.link import Deadline
from penstock.wire.jetstream.answers import read_answer

__all__ = ["TTL", "Line", "Stored", "new_batch_id"]

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
TTL = "Nats-TTL"


def new_batch_id() -> str:
    """Make up the id of an atomic batch; two writers must never have the same."""
    return secrets.token_hex(12)


class Stored(NamedTuple):
    """A message as the stream's leader has it."""

    subject: str
    sequence: int
    body: bytes


class Line:
    """One bulk connection of a worker, used by one task at a time."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.bulk = BulkConnection(options)
        self._waiting: set[str] = set()
        self._answers: dict[str, protocol.Message] = {}

    @property
    def timeout(self) -> float:
        """How long an answer may take, in seconds."""
        return self.bulk.options.request_timeout

    @property
    def max_payload(self) -> int:
        """The largest message, headers included, that the server takes."""
        return self.bulk.max_payload

    @property
    def version(self) -> str:
        """The version of the server at the other end."""
        return str(self.bulk.link.info.get("version", "0"))

    def restore(self) -> None:
        """Forget everything under way, and make the connection again where it is gone."""
        self._waiting.clear()
        self._answers.clear()
        self.bulk.connect(Deadline(self.bulk.options.connect_timeout))

    def drop(self) -> None:
        """Close the socket; the next `restore` makes a new one. For a connection that went silent."""
        self.bulk.link.close()

    def close(self) -> None:
        """Close the connection for good."""
        self.bulk.close()

    # -- questions ----------------------------------------------------------------------------------------------------

    def ask(self, subject: str, payload: bytes, header: bytes | None = None) -> protocol.Message:
        """Ask and give the answer."""
        deadline = Deadline(self.timeout)
        return self.answer(self._send(subject, payload, header, deadline), deadline)

    def api(self, method: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call the JetStream API; JetStreamError for an error."""
        payload = json.dumps(body).encode() if body is not None else b""
        return read_answer(self.ask(f"{self.bulk.options.js_prefix}.{method}", payload).payload)

    def last(self, stream: str, subject: str) -> Stored | None:
        """Give the last message of a subject, as the leader has it; None where there is none."""
        return self._get(stream, {"last_by_subj": subject})

    def following(self, stream: str, subject: str, sequence: int) -> Stored | None:
        """Give the first message from `sequence` on that matches `subject`, as the leader has it."""
        return self._get(stream, {"next_by_subj": subject, "seq": sequence})

    def _get(self, stream: str, question: dict[str, Any]) -> Stored | None:
        try:
            found = self.api(f"STREAM.MSG.GET.{stream}", question)["message"]
        except NotFoundError as error:
            if error.err_code == 10037:
                return None
            raise
        return Stored(found["subject"], found["seq"], base64.b64decode(found.get("data", "")))

    # -- batches ------------------------------------------------------------------------------------------------------

    def store(self, messages: Sequence[tuple[str, Mapping[str, str], bytes]]) -> int:
        """Store messages together or not at all, and give the sequence of the last; the others stand before it."""
        batch_id = new_batch_id()
        frames = bytearray()
        for number, (subject, headers, payload) in enumerate(messages[:-1], start=1):
            frames += protocol.publish(subject, payload, None, batch_header(batch_id, number, headers))
        subject, headers, payload = messages[-1]
        ticket = self.post(frames, batch_id, len(messages), subject, headers, payload)
        return self.settle(ticket, Deadline(self.timeout))

    def post(
        self,
        frames: bytes | bytearray,
        batch_id: str,
        number: int,
        subject: str,
        headers: Mapping[str, str],
        payload: bytes,
    ) -> str:
        """Send a batch whose first frames are ready and whose last message, `number`, commits it; give its ticket."""
        deadline = Deadline(self.timeout)
        self.bulk.link.send(frames, deadline)
        header = batch_header(batch_id, number, {**headers, "Nats-Batch-Commit": "1"})
        return self._send(subject, payload, header, deadline)

    def settle(self, ticket: str, deadline: Deadline) -> int:
        """Wait for the ack of a batch and give the sequence of its last message; JetStreamError for a refusal."""
        event = self.answer(ticket, deadline)
        return int(read_answer(event.payload)["seq"])

    # -- both ---------------------------------------------------------------------------------------------------------

    def _send(self, subject: str, payload: bytes, header: bytes | None, deadline: Deadline) -> str:
        ticket = self.bulk.send_request(subject, payload, deadline, header)
        self._waiting.add(ticket)
        return ticket

    def answer(self, ticket: str, deadline: Deadline) -> protocol.Message:
        """Wait for the answer to one request, keeping those to others."""
        if ticket not in self._waiting and ticket not in self._answers:
            raise DisconnectedError(
                "The connection on which this was sent is gone.", remedy="Nobody knows what became of it."
            )
        while (event := self._answers.pop(ticket, None)) is None:
            found = self.bulk.link.next_event(deadline)
            if isinstance(found, protocol.Message) and found.sid == 1 and found.subject in self._waiting:
                self._waiting.discard(found.subject)
                self._answers[found.subject] = found
        if event.status == 503 and not event.payload:
            raise NoRespondersError(
                "No stream takes this message, or its leader is away.",
                remedy="Is JetStream on, and is the domain right?",
                seconds=deadline.seconds,
            )
        return event


def batch_header(batch_id: str, number: int, headers: Mapping[str, str]) -> bytes:
    """Write the headers of one message of an atomic batch."""
    return protocol.encode_headers({"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number), **headers})
