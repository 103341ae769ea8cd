"""The blocking connection for a Spark task or a tool."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

import pyarrow as pa

from penstock.errors import (
    DataLossError,
    DeadlineError,
    DisconnectedError,
    InputError,
    JetStreamError,
    NoRespondersError,
    PenstockError,
)
from penstock.options import ConnectionOptions
from penstock.wire import protocol
from penstock.wire.bulk import publishing, reading
from penstock.wire.bulk.read_options import ReadOptions
from penstock.wire.bulk.transport import BlockingWire
from penstock.wire.jetstream.answers import read_answer
from penstock.wire.jetstream.names import check_name
from penstock.wire.jetstream.questions import Question
from penstock.wire.patience import Deadline, Patience
from penstock.wire.session import check_size

__all__ = ["BulkConnection"]

Answer = TypeVar("Answer")

MOST_WAITING = 10_000  # requests that are remembered until their answers come


class BulkConnection:
    """A connection that blocks, for bulk work: `read` and `publish` move Arrow batches, `request` asks anything.

    It belongs to one thread. Every call has a deadline. A lost connection is made again by the call that needs it.
    """

    def __init__(self, options: ConnectionOptions | str) -> None:
        self.options = ConnectionOptions(options) if isinstance(options, str) else options
        self.wire = BlockingWire(self.options)
        self._inbox = f"{self.options.inbox_prefix}.{secrets.token_hex(8)}"
        self._last_sid = 1
        self._requests = 0
        self._waiting: dict[str, None] = {}  # reply subjects of requests that have no answer yet, the oldest first
        self._answers: dict[str, protocol.Message] = {}  # that came while another one was waited for
        self._closed = False
        self.wire.proof()  # before the clock starts
        self.connect(Deadline(self.options.connect_timeout))

    # -- the connection -------------------------------------------------------------------------------------------

    def connect(self, deadline: Deadline) -> None:
        """Make the connection, or make it again if it is gone. Subscriptions of the old one are gone with it."""
        if self._closed:
            raise InputError("This connection was closed.", remedy="Make a new BulkConnection.")
        if not self.wire.is_open:
            self.forget_requests()
            self.wire.unheeded.clear()
            self.wire.open(deadline)
            self.wire.send(protocol.subscribe(f"{self._inbox}.r.*", 1), deadline)

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        self._closed = True
        self.wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"BulkConnection({self.options.url!r}, {'open' if self.wire.is_open else 'closed'})"

    @property
    def max_payload(self) -> int:
        """The largest message, headers included, that the server takes."""
        return int(self.wire.info.get("max_payload") or 1024 * 1024)

    def new_subject(self) -> str:
        """Give a reply subject that nobody else uses."""
        self._requests += 1
        return f"{self._inbox}.{self._requests}"

    def subscribe(self, subject: str, deadline: Deadline) -> int:
        """Subscribe and give the number of the subscription, which no other one of this connection ever had."""
        self._last_sid += 1
        self.wire.send(protocol.subscribe(subject, self._last_sid), deadline)
        return self._last_sid

    # -- asking ---------------------------------------------------------------------------------------------------

    def send_request(
        self, subject: str, payload: bytes, deadline: Deadline, header: bytes | None = None, *, heed: bool = True
    ) -> str:
        """Send a request and give the subject on which subscription 1 will get its answer; `answer` waits for it.

        `heed=False`: nobody will ask for the answer, nor does anybody need to know of a denial.
        """
        self._requests += 1
        reply = f"{self._inbox}.r.{self._requests}"
        check_size(len(subject) + len(reply) + 24, len(payload) + len(header or b""), self.max_payload, subject)
        if heed:
            self._waiting[reply] = None
            if len(self._waiting) > MOST_WAITING:
                self._waiting.pop(next(iter(self._waiting)))
        elif len(self.wire.unheeded) < MOST_WAITING:
            self.wire.unheeded.add(subject)
        self.wire.send(protocol.publish(subject, payload, reply, header), deadline)
        return reply

    def forget_requests(self) -> None:
        """Forget what was asked and has no answer, and answers that nobody fetched."""
        self._waiting.clear()
        self._answers.clear()

    def answer(self, replies: Iterable[str], deadline: Deadline, subject: str = "") -> protocol.Message:
        """Wait for the first answer to one of these requests, keeping those to others.

        NoRespondersError if nobody listens there; DisconnectedError if the connection they were sent on is gone.
        """
        wanted = set(replies)
        while True:
            if (found := next((reply for reply in wanted if reply in self._answers), None)) is not None:
                event = self._answers.pop(found)
                break
            if not wanted & self._waiting.keys():
                raise DisconnectedError(
                    "The connection on which this was sent is gone.",
                    remedy="It may have arrived or not: look before you send it again.",
                )
            heard = self.wire.next_event(deadline)
            if isinstance(heard, protocol.Message) and heard.sid == 1 and heard.subject in self._waiting:
                del self._waiting[heard.subject]
                self._answers[heard.subject] = heard
            else:
                deadline.check()
        for reply in wanted:
            self._waiting.pop(reply, None)
        if event.status == 503 and not event.payload:
            raise NoRespondersError(
                f"Nobody listens on {subject}." if subject else "No stream takes this message, or its leader is away.",
                remedy="Is the service running, or, for JetStream, is it on and is the domain right?",
                seconds=deadline.seconds,
                subject=subject or None,
            )
        return event

    def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> protocol.Message:
        """Ask and give the first answer; NoRespondersError at once if nobody listens, else DeadlineError."""
        return self._ask(subject, payload, headers, timeout)

    def api(
        self,
        method: str,
        body: object = None,
        *,
        timeout: float | None = None,
        again: bool = False,
        patience: float = 0.0,
    ) -> dict[str, Any]:
        """Call the JetStream API, `method` being what follows the prefix; JetStreamError for an error answer.

        What only asks, and whatever else may be done twice if the caller says so with `again`, is asked again when no
        answer comes. `patience`: for how many seconds a failure that passes is waited out: an outage, a leader that is
        being chosen.
        """
        question = Question(method, body, repeatable=again)
        subject = f"{self.options.js_prefix}.{question.method}"
        interval = question.again if question.repeatable else None

        def ask() -> dict[str, Any]:
            return read_answer(self._ask(subject, question.payload, None, timeout, interval).payload)

        return self.patiently(ask, patience) if patience > 0 else ask()

    def patiently(self, action: Callable[[], Answer], seconds: float, *, nobody: bool = False) -> Answer:
        """Do something that may be done twice, again and again while what goes wrong passes by itself."""
        patience = Patience(seconds, nobody=nobody)
        while True:
            try:
                return action()
            except PenstockError as error:
                time.sleep(patience.pause(error))
                if not isinstance(error, JetStreamError):
                    self.wire.close()  # whatever it was, a new connection knows nothing of it

    def _ask(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str] | None,
        timeout: float | None,
        again: float | None = None,
    ) -> protocol.Message:
        """Ask, and ask again after every `again` seconds; the first answer counts."""
        deadline = Deadline(self.options.request_timeout if timeout is None else timeout)
        self.connect(deadline)
        header = protocol.encode_headers(headers) if headers else None
        replies: list[str] = []
        while True:
            try:
                replies.append(self.send_request(subject, payload, deadline, header))
                return self.answer(replies, deadline if again is None else deadline.within(again), subject)
            except DeadlineError as error:
                if isinstance(error, NoRespondersError):
                    raise
                if again is None or deadline.left == 0:
                    raise DeadlineError(
                        f"No answer on {subject} within {deadline.seconds:.3g} s.",
                        remedy="Is whoever answers there busy, or gone? A longer timeout may help.",
                        seconds=deadline.seconds,
                        subject=subject,
                    ) from None

    # -- bulk -----------------------------------------------------------------------------------------------------

    def read(
        self,
        stream: str,
        start: int = 1,
        end: int | None = None,
        subjects: str | Iterable[str] | None = None,
        *,
        batch_rows: int = 65_536,
        batch_bytes: int = 16 * 1024 * 1024,  # above 32 MiB memory would come from the system anew for each batch
        window_bytes: int = 16 * 1024 * 1024,
        headers: bool = True,
        payloads: bool = True,
        timeout: float = 30.0,
        on_loss: Callable[[DataLossError], None] | None = None,
        info: dict[str, Any] | None = None,
        escape: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Give the messages with `start <= sequence < end` that match `subjects`, in order, once each.

        `end` is where the stream ends now if nothing is given. A batch has at most `batch_rows` rows, and at most
        `batch_bytes` and one message. Never more than `window_bytes`, or one message, are asked for and not yet
        received, and nothing is while the caller works on a batch. `headers=False` leaves the headers empty and saves
        their cost. `payloads=False` leaves `data` empty and saves sending it, if the stream takes a consumer; a
        message then has a header `Nats-Msg-Size` more. `timeout` is the longest time without any progress; within it,
        lost connections are made again and the read goes on behind the last message that it gave.

        Messages of the range that are gone from the stream raise DataLossError; with `on_loss`, that is called with
        the error instead, and the read goes on. Single messages that were deleted from the middle are skipped.
        `info`: what the stream said of itself a moment ago, if the caller asked already. A stream that is replaced by
        another one of its name while it is read always raises DataLossError, before the last batch is given.

        Subjects and headers are columns of text, and NATS carries any bytes there: what is not UTF-8 raises
        MessageError. With `escape=True` each such byte is written as `\\xff`.
        """
        check_name(stream)
        options = ReadOptions(
            stream=stream,
            start=start,
            end=end,
            subjects=(subjects,) if isinstance(subjects, str) else tuple(subjects or ()),
            batch_rows=batch_rows,
            batch_bytes=batch_bytes,
            window_bytes=window_bytes,
            headers=headers,
            payloads=payloads,
            timeout=timeout,
            on_loss=on_loss,
            info=info,
            escape=escape,
        )
        return reading.Reading(self, options).batches()

    def publish(
        self,
        stream: str,
        batches: Iterable[pa.RecordBatch] | pa.RecordBatch | pa.Table,
        mode: str = "acks",
        *,
        subject: str | None = None,
        ids: bool | None = None,
        twice: bool = False,
        timeout: float = 30.0,
    ) -> publishing.Published:
        """Store the rows of `batches` in a stream and give the acks.

        Columns: `data`; `subject`, unless the argument gives one for all rows; `headers` if wanted. Others are
        ignored. The modes:

        - `acks`: an ack for every message, thousands of them outstanding. Every message carries a `Nats-Msg-Id`, its
          own or one of ours, so that after a lost connection the rest is sent again and stored once.
        - `fast`: fast ingest, for streams with `allow_batched`. In order and without gaps. Without ids nothing is sent
          twice, so a lost connection or a change of the leader ends in a PublishError; with `ids=True` it goes on, as
          above; with `twice=True` it goes on too, and rows whose fate was unknown may be in the stream twice.
        - `atomic`: for streams with `allow_atomic`. Each batch of rows, in pieces of 1,000, is stored whole or not.

        Raises PublishError, which says which rows are stored, not stored or unknown.
        """
        check_name(stream)
        return publishing.publish(
            self, stream, batches, mode=mode, subject=subject, ids=ids, twice=twice, timeout=timeout
        )
