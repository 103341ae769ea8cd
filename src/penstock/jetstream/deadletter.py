"""Dead letters: messages that no handler could process, kept with the reason and where they came from, to be put back.

A letter is the message itself, with its headers, on `PENSTOCK.DEAD.<stream>.<consumer>.<sequence>` in a stream of its
own. That stream also captures the server's advisories about messages that were delivered `max_deliver` times, or copies
them from the stream that captures them already: if a client died with the last delivery, nobody is left to write the
letter, and `collect` writes it from the advisory. The sequence in the subject, and the condition that no letter is
there yet, keep a message from becoming two letters. If a letter is there of another message with that sequence,
because the stream was made anew or restored since, the time when it was stored stands behind the sequence, too.

A letter is put back once. Its message gets an id, by which the stream knows it as long as its duplicate window is; and
before it is sent, a note on `PENSTOCK.DEAD.<stream>.back.<number>.<time>` says where that stream ended. Whoever finds
the note of an attempt that died, and the window past, looks behind that place for the message first.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from penstock.errors import (
    InputError,
    JetStreamError,
    LocalProtocolError,
    NotFoundError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.jetstream import assets
from penstock.jetstream.delivery import Delivery
from penstock.jetstream.letter import HEAD, LETTERS, DeadLetter, read_exhausted, read_letter, read_note
from penstock.model import Message, Stream, StreamSource, format_time
from penstock.wire.jetstream import names
from penstock.wire.jetstream.acked import confirm
from penstock.wire.jetstream.verdicts import Verdict, judge
from penstock.wire.subjects import covers, subject_fault

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.info import StreamInfo

__all__ = ["DeadLetters", "is_too_large"]

log = logging.getLogger("penstock.jetstream")

_AGAIN = "Penstock-Redelivered"
_BACK = "back"
_FULL = 10077
_TOO_LARGE = {10054, 10097}  # as a message, or by its headers, of which a letter has more than its message
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SOON: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)  # seconds between looks once there is news
_NOW_AND_THEN = 30.0


class DeadLetters:
    """The dead letters of one stream, kept in the stream `dead`, `<stream>-DEAD` by default."""

    def __init__(self, client: Connection, stream: str, dead: str | None = None) -> None:
        self._client = client
        self.stream = assets.checked(stream, "stream")
        self.dead = assets.checked(dead or f"{stream}-DEAD", "stream")
        if self.dead == self.stream:
            raise InputError("A stream cannot keep its own dead letters.", remedy="Name another stream.")

        self._letters = f"{LETTERS}.{self.stream}.>"
        self._advisories = f"{names.MAX_DELIVERIES}.{self.stream}.*"

    async def ensure(self) -> None:
        """Create the dead-letter stream if it is not there; as many replicas as the stream itself."""
        try:
            held = (await assets.stream_info(self._client, self.dead)).config
        except NotFoundError:
            await self._make()
            return
        missing = [
            subject
            for subject in (self._letters, self._advisories)
            if not any(covers(captured, subject) for captured in held.subjects)
        ]
        if self._advisories in missing and (source := self._source(held)) is not None:
            there = await assets.stream_info(self._client, source.name)  # NotFoundError: nothing is copied any more
            if any(covers(captured, self._advisories) for captured in there.config.subjects):
                missing.remove(self._advisories)
        if missing:
            what = f"Stream {self.dead} is there and does not capture {', '.join(missing)}."
            raise InputError(what, remedy="Add the subjects to it, or name another stream for dead letters.")

    async def _make(self) -> None:
        replicas = (await assets.stream_info(self._client, self.stream)).config.num_replicas
        about = f"Messages of {self.stream} that no handler could process."
        made = Stream(name=self.dead, subjects=[self._letters], num_replicas=replicas, description=about)
        others = await assets.streams(self._client, subject=self._advisories)
        if not others:
            made = made.model_copy(update={"subjects": [self._letters, self._advisories]})
        else:
            made = made.model_copy(update={"sources": [self._copied(others)]})
        await assets.add_stream(self._client, made)

    def _copied(self, others: list[StreamInfo]) -> StreamSource:
        """Say how to copy the advisories from a stream that captures them: the server lets one stream have them."""
        for other in others:
            config = other.config
            whole = any(covers(captured, self._advisories) for captured in config.subjects)
            if whole and config.subject_transform is None and config.retention != "workqueue":
                start = other.last_sequence + 1  # as if it had captured them itself from now on
                return StreamSource(name=other.name, filter_subject=self._advisories, opt_start_seq=start)
        taken = ", ".join(f"{other.name} ({', '.join(other.config.subjects)})" for other in others)
        raise InputError(
            f"Dead letters of {self.stream} need the advisories on {self._advisories}, which go to stream {taken}.",
            remedy="Let that stream capture all of them, under their own subjects and not as a work queue; "
            "or take them out of it.",
        )

    def _source(self, held: Stream) -> StreamSource | None:
        return next((item for item in held.sources if covers(item.filter_subject or ">", self._advisories)), None)

    # -- writing -----------------------------------------------------------------------------------

    async def put(self, delivery: Delivery, reason: str) -> None:
        """Keep a delivery as a dead letter; once, however often it is called."""
        place = delivery.place
        try:  # a delivery keeps one value of each header; the stream has them all
            headers = (await assets.get_message(self._client, self.stream, place.sequence)).headers
        except NotFoundError:
            headers = {name: [value] for name, value in delivery.headers.items()}
        message = Message(
            subject=delivery.subject, data=delivery.data, headers=headers, sequence=place.sequence, time=place.time
        )
        await self._write(message, place.consumer, place.delivered, reason)

    async def _write(self, message: Message, consumer: str, deliveries: int, reason: str) -> None:
        assert message.time is not None
        facts = {
            "Stream": self.stream,
            "Consumer": consumer,
            "Sequence": str(message.sequence),
            "Subject": message.subject,
            "Deliveries": str(deliveries),
            "Reason": " ".join(reason.split()),
            "Time": format_time(message.time),
            "Headers": json.dumps(message.headers),
        }
        headers = {f"{HEAD}{name}": value for name, value in facts.items()}
        subject = f"{LETTERS}.{self.stream}.{consumer}.{message.sequence}"
        if not await self._store(subject, message, headers):
            # Of a stream that was here before, with the same sequences; or an earlier attempt wrote this letter.
            await self._store(f"{subject}-{_micros(message.time)}", message, headers)

    async def _store(self, subject: str, message: Message, headers: dict[str, str]) -> bool:
        """Store a letter unless there is one; tell whether this letter is there now, or another one."""
        only = {names.EXPECTED_LAST_SUBJECT_SEQUENCE: "0"}
        reply = await self._client.request(subject, message.data, timeout=10.0, headers={**headers, **only})
        try:
            confirm(reply.data, reply.status, self.dead, self._client.options.domain)
        except JetStreamError as error:
            if error.err_code not in names.CONDITION_FAILED:
                raise
            there = await assets.get_message(self._client, self.dead, last_for=subject)
            same = (f"{HEAD}Subject", f"{HEAD}Time")
            return all(there.headers.get(name) == [headers[name]] for name in same)
        return True

    async def collect(self) -> int:
        """Write letters for messages whose deliveries ran out unseen; give how many.

        What somebody else published in the place of an advisory is removed, and a message that is too large for a
        letter stays where it is; the log says so, and the others are collected.
        """
        count = 0
        async for number, message in self._messages(self._advisories):
            try:
                consumer, sequence, deliveries = read_exhausted(message.data)
            except (InputError, RemoteProtocolError):
                strange = "Message %d of %s is removed: it is not an advisory of the server, but %r."
                log.error(strange, number, self.dead, message.data[:60])
                await self._drop(number)
                continue
            try:
                lost = await assets.get_message(self._client, self.stream, sequence)
            except NotFoundError:
                gone = "Message %d of %s ran out of deliveries and is gone from the stream."
                log.warning(gone, sequence, self.stream)
            else:
                reason = "no answer to the last delivery: its client died, or did not answer in time"
                try:
                    await self._write(lost, consumer, deliveries, reason)
                except (JetStreamError, LocalProtocolError) as error:
                    if not is_too_large(error):
                        raise
                    stays = "Message %d of %s ran out of deliveries, and has no letter: %s"
                    log.error(stays, sequence, self.stream, error)
                    continue
                count += 1
            await self._drop(number)
        return count

    async def collect_for_ever(self, consumer: str) -> None:
        """Collect now, whenever the server says that a message ran out of deliveries, and now and then.

        What the server says may be missed, as while the connection is made again, and it may take a moment until it is
        in the dead-letter stream, too.
        """
        news, pauses = asyncio.Event(), iter(_SOON)
        news.set()

        async def heard(_: object) -> None:
            news.set()

        subscription = await self._client.subscribe(f"{names.MAX_DELIVERIES}.{self.stream}.{consumer}", cb=heard)
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(next(pauses, _NOW_AND_THEN)):
                        await news.wait()
                        pauses = iter(_SOON)
                news.clear()
                try:
                    if await self.collect():
                        pauses = iter(_SOON)
                except PenstockError as error:
                    log.warning("Dead letters of %s cannot be collected now: %s", self.stream, error)
                    pauses = iter(_SOON[2:])
        finally:
            if not self._client.is_closed:
                await subscription.unsubscribe()

    # -- reading and putting back ------------------------------------------------------------------

    async def letters(self, consumer: str | None = None) -> AsyncIterator[DeadLetter]:
        """Give the dead letters, oldest first, of one consumer or of all.

        What somebody else wrote in the place of a letter is passed over; the log names it.
        """
        async for number, message in self._messages(f"{LETTERS}.{self.stream}.{consumer or '*'}.*"):
            try:
                letter = read_letter(number, message)
            except RemoteProtocolError as error:
                log.error("%s It is passed over, and stays in %s.", error.what, self.dead)
                continue
            yield letter

    async def letter(self, number: int) -> DeadLetter:
        """Give one dead letter by its number; NotFoundError if it is not there (any more)."""
        try:
            message = await assets.get_message(self._client, self.dead, number)
        except NotFoundError as error:
            what = f"There is no dead letter {number} in {self.dead}."
            raise NotFoundError(what, remedy="It was put back or removed before.", **error.facts) from None
        if not covers(f"{LETTERS}.{self.stream}.*.*", message.subject):
            what = f"Message {number} of {self.dead} is not a dead letter of {self.stream}."
            raise InputError(what, remedy="Choose one of those that are listed.")
        return read_letter(number, message)

    async def redeliver(self, letter: DeadLetter, *, again: bool = False) -> int:
        """Publish a dead letter on its old subject again, and forget it; give its new sequence.

        Every consumer of the stream gets it, as it gets any message. The headers are the old ones, without those that
        were meant for the server, and with `Penstock-Redelivered`, which counts. A letter of a stream that copies
        others goes to the one that its message came from, and has its sequence there.

        It is put back once, whatever becomes of an attempt. If nobody can tell whether an earlier one was stored, this
        is an error; `again` puts it back all the same.
        """
        target = await self._target(letter.subject)
        note = f"{LETTERS}.{self.stream}.{_BACK}.{letter.number}.{_micros(letter.died or letter.time)}"
        # The time, too: a dead-letter stream that was made anew counts from 1 again.
        made = f"{self.dead}.{letter.number}.{_micros(letter.died or letter.time)}"
        first = await self._begin(note, target)
        await self._check_there(letter, note if first else None)
        sequence = None if first or again else await self._found(note, made, letter, target)
        if sequence is None:
            sequence = await self._publish(letter, made, target.name, note)
        await self._drop(letter.number)
        await self._forget(note)
        return sequence

    async def _check_there(self, letter: DeadLetter, note: str | None) -> None:
        """Refuse a letter that somebody put back since it was read; forget our own note of it then."""
        try:
            if (await self.letter(letter.number)).died == letter.died:
                return
        except NotFoundError:
            if note is not None:
                await self._forget(note)
            raise
        what = f"Dead letter {letter.number} of {self.dead} is another one now: the stream was made anew."
        raise NotFoundError(what, remedy="Look again at what is there.", code=404)

    async def _target(self, subject: str) -> StreamInfo:
        """Find the stream that a letter goes back to: ours, or one that it copies. No other subject is published on."""
        if fault := subject_fault(subject, literal=True):
            raise InputError(f"The subject {subject!r} of a dead letter {fault}.", remedy="Did somebody else write it?")
        name = await self._client.jetstream().find_stream_name_by_subject(subject)
        if name != self.stream:
            config = (await assets.stream_info(self._client, self.stream)).config
            if name not in {source.name for source in (config.mirror, *config.sources) if source is not None}:
                what = f"The subject {subject} of a dead letter of {self.stream} belongs to stream {name} now."
                raise InputError(what, remedy=f"Put it back after stream {self.stream} captures it again.")
        return await assets.stream_info(self._client, name)

    async def _begin(self, note: str, target: StreamInfo) -> bool:
        """Note where the stream ends before a letter is put back; False if an earlier attempt noted it."""
        body = {"stream": target.name, "created": _created(target), "after": target.last_sequence}
        only = {names.EXPECTED_LAST_SUBJECT_SEQUENCE: "0"}
        reply = await self._client.request(note, json.dumps(body).encode(), timeout=10.0, headers=only)
        try:
            confirm(reply.data, reply.status, self.dead, self._client.options.domain)
        except JetStreamError as error:
            if error.err_code == _FULL:  # letters must be able to leave a stream that is full of them
                lasting = "it is known by its id alone, for as long as the duplicate window of stream %s"
                log.warning(f"Stream %s takes no note of a letter that is put back: {lasting}.", self.dead, target.name)
                return True
            if error.err_code not in names.CONDITION_FAILED:
                raise
            return False
        return True

    async def _found(self, note: str, made: str, letter: DeadLetter, target: StreamInfo) -> int | None:
        """Look for what an earlier attempt stored; None if it stored nothing, or the stream itself will tell."""
        try:
            told = await assets.get_message(self._client, self.dead, last_for=note)
        except NotFoundError:
            return None  # that attempt has just ended; the id is still known
        window = target.config.duplicate_window or 0.0
        assert told.time is not None
        if ((target.time or datetime.now(UTC)) - told.time).total_seconds() < window / 2:
            return None  # the stream knows the id
        stream, created, after = read_note(told.data)
        place, same = after + 1, (stream, created) == (target.name, _created(target))
        kept = target.config.retention == "limits" and not target.deleted and target.first_sequence <= place
        while same:
            try:
                message = await assets.get_message(self._client, target.name, place, next_for=letter.subject)
            except NotFoundError:
                break
            if message.headers.get(names.MSG_ID) == [made]:
                return message.sequence
            place = (message.sequence or place) + 1
        if same and kept:
            return None
        raise PenstockError(
            f"Dead letter {letter.number} of {self.stream} may have been put back already: an attempt began at "
            f"{format_time(told.time)}, and stream {target.name} no longer has all messages since then.",
            remedy="Ask those who read the stream. `penstock consumer redeliver --again` puts it back all the same.",
        )

    async def _publish(self, letter: DeadLetter, made: str, target: str, note: str) -> int:
        headers: dict[str, str | list[str]] = {
            name: values for name, values in letter.headers.items() if not name.startswith(names.HEADER_PREFIX)
        }
        headers |= {_AGAIN: str(_times(letter) + 1), names.MSG_ID: made}
        try:
            reply = await self._client.request(letter.subject, letter.data, timeout=10.0, headers=headers)
            ack = confirm(reply.data, reply.status, target, self._client.options.domain)
        except PenstockError as error:
            if judge(error) is not Verdict.UNKNOWN:
                await self._forget(note)  # it was not stored, and the next attempt is the first one again
            raise
        return ack.sequence

    async def _forget(self, note: str) -> None:
        try:
            await assets.purge_stream(self._client, self.dead, subject=note)
        except JetStreamError as error:  # a note of a letter that is gone does no harm
            log.warning("The note %s cannot be removed from stream %s: %s", note, self.dead, error)

    async def _messages(self, subject: str) -> AsyncIterator[tuple[int, Message]]:
        number = 1
        while True:
            try:
                message = await assets.get_message(self._client, self.dead, number, next_for=subject)
            except NotFoundError as error:
                if error.err_code == names.STREAM_NOT_FOUND:
                    remedy = f"No message of {self.stream} became a dead letter yet; or name the stream with --dead."
                    what = f"There is no dead-letter stream {self.dead}."
                    raise NotFoundError(what, remedy=remedy, **error.facts) from None
                return
            assert message.sequence is not None
            yield message.sequence, message
            number = message.sequence + 1

    async def _drop(self, number: int) -> None:
        try:
            await assets.delete_message(self._client, self.dead, number, erase=False)
        except NotFoundError:
            return  # another one was faster
        except JetStreamError as error:
            # The same, in the words of an older server, and of one whose other clients delete it at this moment.
            if error.err_code != 10043 and "no message found" not in (error.description or ""):
                raise


def is_too_large(error: PenstockError) -> bool:
    """Tell whether a letter was refused for its size, which says nothing of the next one."""
    if isinstance(error, JetStreamError):
        return error.err_code in _TOO_LARGE
    return isinstance(error, LocalProtocolError)


def _micros(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1)


def _created(info: StreamInfo) -> str:
    return "" if info.created is None else format_time(info.created)


def _times(letter: DeadLetter) -> int:
    """Give how often it was put back before; the header may be anybody's."""
    said = letter.headers.get(_AGAIN, ["0"])[-1]
    return int(said) if said.isascii() and said.isdigit() and len(said) < 10 else 0
