"""Connections of a Spark worker: kept from task to task, and patient with a NATS that is away for a moment.

A worker process serves many tasks, one at a time. Whatever a task asks may be asked again, so a question that failed
is repeated while the failure is one that passes, until the patience is over. What a task stores is stored once: `store`
and `settle` try nothing again, since who asks knows what a second attempt means.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from penstock.errors import JetStreamError, NotFoundError, PenstockError
from penstock.options import ConnectionOptions
from penstock.wire import protocol
from penstock.wire.bulk import BulkConnection
from penstock.wire.jetstream import atomic, names
from penstock.wire.jetstream.answers import check_stream_answer, held_subjects, number, read_answer, texts
from penstock.wire.jetstream.direct import Found, question, read_message
from penstock.wire.jetstream.questions import Question
from penstock.wire.patience import Deadline, Patience

__all__ = ["NO_TICKET", "TaskConnection", "Ticket", "borrow", "close_idle"]

log = logging.getLogger("penstock.spark")

KEPT = 4  # connections of a process that wait for the next task
AT_A_TIME = 256  # questions of one connection that wait for their answers
STEP_BACK = 1_000  # subjects by which a page of them is taken again if others before it went away
LEARN = 10.0  # seconds that a leader which was just chosen gets to apply all that is stored

_idle: dict[tuple[int, ConnectionOptions], TaskConnection] = {}
_lock = threading.Lock()


class Ticket(NamedTuple):
    """A batch that was sent: where its commit is answered, its id, and how many messages it has."""

    reply: str
    batch_id: str
    size: int


NO_TICKET = Ticket("", "", 0)


class TaskConnection(BulkConnection):
    """One bulk connection of a worker, used by one task at a time.

    `patience`: for how many seconds it is tried to make the connection, and `ask` waits out a failure that passes.
    """

    def __init__(self, options: ConnectionOptions, patience: float = 0.0) -> None:
        self.patience = patience
        limit = Patience(patience, nobody=True)
        while True:
            try:
                super().__init__(options)
                return
            except PenstockError as error:
                time.sleep(limit.pause(error))
                log.warning("%s Trying on.", error)

    @property
    def version(self) -> str:
        """The version of the server at the other end."""
        return str(self.wire.info.get("version", "0"))

    def drop_after(self, error: PenstockError) -> None:
        """Close a socket that an error leaves in doubt; whoever asks next makes a new one."""
        if not isinstance(error, JetStreamError):
            self.wire.close()

    def ask(self, method: str, body: object = None) -> dict[str, Any]:
        """Call the JetStream API, through an outage and while a leader is being chosen, if there is patience."""
        return self.api(method, body, patience=self.patience)

    def stream_info(self, stream: str, created: str = "", end: int = 0) -> dict[str, Any]:
        """Ask how a stream stands. The one that was made at `created` once had everything before `end`.

        Of several replicas, a leader that was just chosen may not know yet all that the one before it knew: it gets a
        little time.
        """
        deadline = Deadline(LEARN)
        while True:
            info = check_stream_answer(self.ask(names.stream_info(stream)))
            behind = info["created"] == created and info["state"]["last_seq"] + 1 < end
            if not behind or number(info["config"], "num_replicas", 1) == 1 or deadline.left == 0:
                return info
            time.sleep(0.2)

    def list_names(self, method: str, key: str) -> list[str]:
        """Give the names of all streams, or of all consumers of a stream, page after page."""
        listed: list[str] = []
        while True:
            answer = self.ask(method, {"offset": len(listed)})
            found = texts(answer, key)
            listed += found
            if not found or len(listed) >= number(answer, "total", 0):
                return listed

    def totals(self, stream: str, subject: str) -> dict[str, int]:
        """Give the subjects of a stream that match one, and how many messages each has, as the leader knows it.

        It gives them in order and in pages, which move if subjects go away meanwhile: each must begin within the last.
        """
        found: dict[str, int] = {}
        offset, edge = 0, ""
        while True:
            answer = self.ask(names.stream_info(stream), {"subjects_filter": subject, "offset": offset})
            page = held_subjects(answer)
            if offset and (not page or min(page) > edge):
                offset = max(0, offset - STEP_BACK)
                continue
            found |= page
            if not page or offset + len(page) >= number(answer, "total", 0):
                return found
            edge = max(page)
            offset += len(page) - 1

    # -- messages -----------------------------------------------------------------------------------------------------

    def at(self, stream: str, sequence: int) -> Found | None:
        """Give the message at a sequence, as the leader has it; None if there is none."""
        return self._get(stream, question(sequence))

    def since(self, stream: str, moment: str) -> Found | None:
        """Give the first message that was stored at a moment or later, as the leader has it."""
        return self._get(stream, question(since=moment, subject=">"))

    def last(self, stream: str, subject: str) -> Found | None:
        """Give the last message of a subject, as the leader has it; None if there is none."""
        return self._get(stream, question(last=subject))

    def lasts(self, stream: str, subjects: Sequence[str]) -> list[Found | None]:
        """Give the last message of each of many subjects, as the leader has it; many are asked for at a time."""
        found: list[Found | None] = []
        for place in range(0, len(subjects), AT_A_TIME):
            wanted = subjects[place : place + AT_A_TIME]
            found += self.patiently(lambda: self._lasts(stream, wanted), self.patience)  # noqa: B023  # called at once
        return found

    def _lasts(self, stream: str, subjects: Sequence[str]) -> list[Found | None]:
        deadline = Deadline(self.options.request_timeout)
        self.connect(deadline)
        method = names.message_get(stream)
        address, found = f"{self.options.js_prefix}.{method}", list[Found | None]()
        asked = [Question(method, question(last=subject)).payload for subject in subjects]
        replies = [self.send_request(address, payload, deadline) for payload in asked]
        try:
            for reply in replies:
                try:
                    found.append(read_message(read_answer(self.answer([reply], deadline, address).payload)))
                except NotFoundError as error:
                    if error.err_code != names.NO_MESSAGE:
                        raise
                    found.append(None)
        except PenstockError:
            self.forget_requests()  # the answers to the others
            raise
        return found

    def following(self, stream: str, subject: str, sequence: int) -> Found | None:
        """Give the first message from `sequence` on that matches `subject`, as the leader has it."""
        return self._get(stream, question(sequence, subject=subject))

    def _get(self, stream: str, body: dict[str, Any]) -> Found | None:
        try:
            return read_message(self.ask(names.message_get(stream), body))
        except NotFoundError as error:
            if error.err_code == names.NO_MESSAGE:
                return None
            raise

    # -- batches ------------------------------------------------------------------------------------------------------

    def store(
        self, stream: str, messages: Sequence[tuple[str, Mapping[str, str], bytes]], domain: str | None = None
    ) -> int:
        """Store messages together or not at all, and give the sequence of the last; the others stand before it.

        `domain`: that of the stream, empty if it has none.
        """
        self.connect(Deadline(self.options.request_timeout))
        batch_id = atomic.new_id()
        before = [(subject.encode(), atomic.lines(headers), body) for subject, headers, body in messages[:-1]]
        ticket = self.post(atomic.encode(before, batch_id), batch_id, len(messages), *messages[-1])
        return self.settle(stream, ticket, Deadline(self.options.request_timeout), domain)

    def post(
        self,
        frames: bytes | bytearray,
        batch_id: str,
        number: int,
        subject: str,
        headers: Mapping[str, str],
        payload: bytes,
    ) -> Ticket:
        """Send a batch whose first frames are ready and whose last message, `number`, commits it; give its ticket."""
        deadline = Deadline(self.options.request_timeout)
        self.wire.send(frames, deadline)
        header = protocol.encode_headers({**atomic.marks(batch_id, number, commit=True), **headers})
        return Ticket(self.send_request(subject, payload, deadline, header), batch_id, number)

    def settle(self, stream: str, ticket: Ticket, deadline: Deadline, domain: str | None = None) -> int:
        """Wait for the ack of a batch and give the sequence of its last message; JetStreamError for a refusal."""
        event = self.answer([ticket.reply], deadline)
        return atomic.confirm_batch(event.payload, event.status, stream, domain, ticket.batch_id, ticket.size).sequence


# -- kept from task to task ------------------------------------------------------------------------------------------


@contextmanager
def borrow(options: ConnectionOptions, patience: float = 0.0) -> Iterator[TaskConnection]:
    """Give a connection for one task; it is kept for the next one, unless the task failed.

    `patience`: for how many seconds to try while nobody answers. A connection that was kept may have died meanwhile,
    which shows only when it is used.
    """
    limit = Patience(patience, nobody=True)
    key = (os.getpid(), options)  # a forked process must not speak on its parent's socket
    with _lock:
        connection = _idle.pop(key, None)
    while True:
        try:
            connection = connection or TaskConnection(options)
            connection.forget_requests()
            connection.connect(Deadline(options.connect_timeout))
            break
        except PenstockError as error:
            time.sleep(limit.pause(error))
            log.warning("%s Trying on.", error)
    connection.patience = 0.0
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    with _lock:
        gone = [_idle.pop(key)] if key in _idle else []
        while len(_idle) >= KEPT:  # the one that waited longest makes room
            gone.append(_idle.pop(next(iter(_idle))))
        _idle[key] = connection
    for other in gone:
        other.close()


@atexit.register
def close_idle() -> None:
    """Close the connections of this process that wait for a task."""
    with _lock:
        mine = [_idle.pop(key) for key in list(_idle) if key[0] == os.getpid()]
    for connection in mine:
        connection.close()
