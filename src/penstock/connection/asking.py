"""One way to ask JetStream, and one policy of patience, for asyncio.

What only asks is asked again if no answer comes: in a cluster nobody answers while a leader is being chosen, and an
answer can be lost on its way between nodes. With `patience`, what passes by itself is waited out, too: a leader that is
being chosen, a node that is away, a connection that is being made again. The verdict on each failure is that of
`wire.jetstream.verdicts`, nobody else's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.connection.messages import HeaderValues, Msg, Payload
from penstock.connection.requests import late
from penstock.errors import (
    DeadlineError,
    NoRespondersError,
    NotFoundError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.wire import protocol
from penstock.wire.jetstream import names
from penstock.wire.jetstream.answers import PubAck, read_ack, read_answer
from penstock.wire.jetstream.direct import DirectGet, is_answer_of, leader_question, read_message
from penstock.wire.jetstream.questions import AGAIN, Question
from penstock.wire.patience import Patience

if TYPE_CHECKING:
    from penstock.connection.connection import Connection
    from penstock.connection.waiter import Lookout

__all__ = ["api_request", "direct_get", "insist", "patiently", "store_frames"]

Answer = TypeVar("Answer")

_FROM_LEADER = 100  # messages that are fetched one by one if a direct get is of no use


async def api_request(
    connection: Connection,
    method: str,
    body: object = None,
    *,
    timeout: float | None = None,
    again: bool = False,
    patience: float = 0.0,
) -> Any:
    """Call the JetStream API, `method` being what follows the prefix, and give the decoded answer.

    An answer that holds an error raises JetStreamError with the server's codes. What only asks, and whatever else may
    be done twice if the caller says so with `again`, is asked again when no answer comes within `timeout`. `patience`:
    for how many seconds a failure that passes is waited out.
    """
    question = Question(method, body, repeatable=again)
    subject = f"{connection.options.js_prefix}.{question.method}"
    timeout = connection.options.request_timeout if timeout is None else timeout

    async def ask() -> Any:
        if question.repeatable:
            reply = await insist(connection, subject, question.payload, timeout, again=question.again)
        else:
            reply = await connection.request(subject, question.payload, timeout)
        try:
            return read_answer(reply.data)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(
                f"What answered on {subject} is not JetStream: {reply.data[:40]!r}.",
                remedy="Does another service listen on that subject? Check domain and api_prefix.",
            ) from error

    return await (patiently(ask, patience, connection) if patience > 0 else ask())


async def direct_get(
    connection: Connection, stream: str, body: Mapping[str, Any], timeout: float | None = None
) -> list[tuple[bytes, bytes | None]]:
    """Read messages of a stream from any replica: those that there are, in order, each a payload and a header block.

    `body` is a question of `wire.jetstream.direct`. If a mirror answers for the stream, or nothing is there, the leader
    is asked: it alone knows. DisconnectedError if the connection breaks meanwhile.
    """
    getting = DirectGet(stream, body)
    subject = f"{connection.options.js_prefix}.{names.direct_get(stream)}"

    def make(reply: bytes) -> bytes:
        return protocol.publish(subject, getting.payload, reply.decode())

    await connection.exchange(make, getting.hear, (subject,), timeout)
    found = getting.result()
    if found and all(is_answer_of(stream, block) for _, block in found):
        return found
    found, at_leader = [], leader_question(body)
    while len(found) < min(body.get("batch", 1), _FROM_LEADER):
        try:
            message = read_message(await api_request(connection, names.message_get(stream), at_leader, timeout=timeout))
        except NotFoundError as error:
            if error.err_code != names.NO_MESSAGE:
                raise
            break
        found.append(message.as_answer(stream))
        at_leader = leader_question(body, message.sequence + 1)
    return found


async def store_frames(
    connection: Connection,
    make: Callable[[bytes], bytes],
    subjects: Collection[str],
    *,
    count: int = 1,
    timeout: float | None = None,
    watch: Lookout | None = None,
) -> list[PubAck]:
    """Send ready frames to streams, `count` of which ask for an ack, and give the acks; the first refusal is raised.

    `make` gives the frames for the subject that acks go to, `subjects` are those that the frames go to.
    """
    answers: list[tuple[bytes, bytes | None]] = []

    def hear(payload: bytes, block: bytes | None) -> bool:
        answers.append((payload, block))
        return len(answers) == count

    await connection.exchange(make, hear, subjects, timeout, watch=watch)
    return [
        read_ack(payload, None if block is None else protocol.decode_status(block)[0]) for payload, block in answers
    ]


async def insist(
    connection: Connection,
    subject: str,
    payload: Payload,
    timeout: float,
    headers: HeaderValues | None = None,
    *,
    again: float = AGAIN,
) -> Msg:
    """Ask what may be asked twice: after `again` seconds without an answer, and at once on a new connection."""
    deadline = time.monotonic() + timeout
    while True:
        left = max(deadline - time.monotonic(), 0.01)
        asking = asyncio.ensure_future(connection.request(subject, payload, min(left, again), headers=headers))
        broken = connection.broken
        try:
            waiting: set[asyncio.Future[Any]] = {asking, broken}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return await asking
        except NoRespondersError:
            raise
        except DeadlineError:
            if time.monotonic() >= deadline:
                raise late(subject, timeout) from None  # not only the last attempt took so long
            continue
        finally:
            if not asking.cancel() and not asking.cancelled():
                asking.exception()  # who was cancelled meanwhile does not ask for it
        # The connection broke: whether the question or its answer was lost makes no difference.
        await connection.standing(deadline - time.monotonic(), subject)


async def patiently(
    action: Callable[[], Awaitable[Answer]],
    seconds: float,
    connection: Connection | None = None,
    *,
    nobody: bool = False,
) -> Answer:
    """Do something that may be done twice, again and again while what goes wrong passes by itself.

    NoRespondersError is raised at once, as if JetStream is off, unless `nobody` says that somebody will be there in
    a moment; so is everything on a `connection` that is closed for good. What is left after `seconds` is raised.
    """
    patience = Patience(seconds, nobody=nobody)
    while True:
        try:
            return await action()
        except PenstockError as error:
            if connection is not None and connection.is_closed:
                raise
            await asyncio.sleep(patience.pause(error))
