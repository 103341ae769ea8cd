"""`Connection.jetstream()`: JetStream's API with nats-py's names, for streams, consumers and single messages.

It honours the domain or prefix of the connection. `penstock.jetstream` has what is more than one request: publishing in
flight and in order, consuming with acks, declarations that are planned and applied.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.connection import stored
from penstock.connection.asking import api_request
from penstock.connection.messages import HeaderValues
from penstock.errors import ConditionError, JetStreamError, NotFoundError, PenstockError, RemoteProtocolError
from penstock.info import ConsumerInfo, StreamInfo
from penstock.model import Consumer, Message, PubAck, Stream
from penstock.wire.jetstream import names
from penstock.wire.jetstream.acked import in_domain
from penstock.wire.jetstream.answers import check_done, held_subjects, number, part, read_ack, texts
from penstock.wire.jetstream.conditions import explained
from penstock.wire.protocol import decode_status

if TYPE_CHECKING:
    from penstock.connection.connection import Connection

__all__ = ["JetStream"]

_MAKING = 2.0  # seconds for which a stream that cannot be made yet is tried: the last one may still be going


class JetStream:
    """Requests to JetStream on one connection."""

    def __init__(self, connection: Connection, *, timeout: float | None = None) -> None:
        self._connection = connection
        self._timeout = timeout

    async def _ask(self, method: str, body: object = None, *, again: bool = False, patience: float = 0.0) -> Any:
        how: dict[str, Any] = {"timeout": self._timeout, "again": again, "patience": patience}
        return await api_request(self._connection, method, body, **how)

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float | None = None,
        stream: str | None = None,
        headers: HeaderValues | None = None,
    ) -> PubAck:
        """Publish a message and wait until a stream has stored it; `stream` refuses any other than that.

        What says so is stored with the message, and refuses it in other streams if it is published again as it is.
        The ack says which stream, and whether it had the id already (`duplicate`), so that nothing was stored. On a
        connection with a domain, an ack of another one is a JetStreamError. A condition that does not hold, given by
        one of the headers `Nats-Expected-…`, is a ConditionError.
        """
        if stream is not None:
            headers = {**(headers or {}), names.EXPECTED_STREAM: stream}
        wait = timeout if timeout is not None else self._timeout
        _, _, answer, block = await self._connection.ask(subject, payload, wait, headers)
        try:
            ack = read_ack(answer, None if block is None else decode_status(block)[0])
        except ConditionError as error:
            raise explained(error, subject, headers or {}) from None
        return in_domain(ack, self._connection.options.domain)

    async def account_info(self) -> dict[str, Any]:
        """Give what the account uses of JetStream, and its limits."""
        answer: dict[str, Any] = await self._ask("INFO")
        return answer

    # -- streams --------------------------------------------------------------------------------------------------

    async def add_stream(self, config: Stream | None = None, **fields: Any) -> StreamInfo:
        """Create a stream from a declaration, from its fields, or from both; the same one again is not an error."""
        made = _declared(Stream, config, fields)
        return await self._keep(names.stream_create(made.name), made.completed())

    async def update_stream(self, config: Stream | None = None, **fields: Any) -> StreamInfo:
        """Give a stream another configuration; what the server cannot change, it refuses."""
        made = _declared(Stream, config, fields)
        return await self._keep(names.stream_update(made.name), made)

    async def _keep(self, method: str, stream: Stream) -> StreamInfo:
        try:
            return StreamInfo.from_json(await self._ask(method, stream.to_json(), again=True, patience=_MAKING))
        except JetStreamError as error:
            if error.err_code != names.SUBJECTS_OVERLAP:
                raise
            raise await self._overlap(stream, error) from error

    async def _overlap(self, stream: Stream, error: JetStreamError) -> JetStreamError:
        """Say which streams have the subjects of another one: the server says only that there are such."""
        found: dict[str, list[str]] = {}
        for subject in stream.subjects or [stream.name]:
            with suppress(PenstockError):  # whoever may not list streams gets the server's own words
                for name in texts(await self._ask("STREAM.NAMES", {"subject": subject}), "streams"):
                    if name != stream.name:
                        found.setdefault(name, []).append(subject)
        if not found:
            return error
        others = "; ".join(f"{name} captures {', '.join(subjects)}" for name, subjects in sorted(found.items()))
        return JetStreamError(
            f"Stream {stream.name} overlaps with what is there: {others}, or part of it.",
            remedy="A subject goes to one stream only; use sources to copy it to another.",
            **error.facts,
        )

    async def stream_info(
        self, name: str, subjects_filter: str | None = None, *, deleted_details: bool = False
    ) -> StreamInfo:
        """Ask how a stream stands.

        With `subjects_filter`, `held` says how many messages it holds of each subject that matches; with
        `deleted_details`, `gaps` says which sequences are missing.
        """
        asked: dict[str, Any] = {"deleted_details": True} if deleted_details else {}
        if subjects_filter is not None:
            asked |= {"subjects_filter": subjects_filter}
        answer = await self._ask(names.stream_info(name), asked or None)
        held: dict[str, int] = {}
        while subjects_filter is not None and (page := held_subjects(answer)):
            before = len(held)
            held |= page  # of up to 100,000
            if not before < len(held) < number(answer, "total", 0):
                break
            answer = await self._ask(names.stream_info(name), {**asked, "offset": len(held)})
        if held:
            part(answer, "state")["subjects"] = held
        return StreamInfo.from_json(answer)

    async def find_stream_name_by_subject(self, subject: str) -> str:
        """Give the name of the stream that captures a subject."""
        found = texts(await self._ask("STREAM.NAMES", {"subject": subject}), "streams")
        if not found:
            raise NotFoundError(f"No stream captures {subject}.", remedy="Add the subject to one.", code=404)
        return found[0]

    async def purge_stream(self, name: str, *, subject: str | None = None, keep: int | None = None) -> int:
        """Remove messages of a stream, all or of one subject, but the last few; give how many."""
        body = {key: value for key, value in (("filter", subject), ("keep", keep)) if value is not None}
        answer = await self._ask(names.stream_purge(name), body or None)
        check_done(answer)
        return number(answer, "purged")

    async def delete_stream(self, name: str) -> bool:
        """Delete a stream with everything in it."""
        return _succeeded(await self._ask(names.stream_delete(name)))

    # -- messages -------------------------------------------------------------------------------------------------

    async def get_msg(
        self, stream: str, seq: int | None = None, subject: str | None = None, direct: bool = False, next: bool = False
    ) -> Message:
        """Read one stored message: by its sequence, the last of a subject, or the `next` of one from a sequence on.

        The stream's leader gives it. With `direct` any replica may, if the stream allows it, which is faster; on a
        replicated stream that may be a moment old. Neither what a mirror says of its origin is taken, nor is anything
        believed to be gone: then the leader is asked. A subject may be a pattern. NotFoundError if there is none.
        """
        return await stored.get(self._connection, stream, stored.wanted(seq, subject, next), direct, self._timeout)

    async def get_last_msg(self, stream: str, subject: str, direct: bool = False) -> Message:
        """Read the last message of a subject; `direct` as in `get_msg`."""
        return await self.get_msg(stream, subject=subject, direct=direct)

    def get_last_msgs(
        self, stream: str, subjects: str | Iterable[str], *, direct: bool = True
    ) -> AsyncIterator[Message]:
        """Give the last message of each subject that matches, in no particular order; what has none is left out.

        They come many at a time by direct get, if the stream allows it. On a replicated stream that may be a moment
        old; `direct=False` has the leader give each of them.
        """
        names.check_name(stream)
        listed = [subjects] if isinstance(subjects, str) else list(subjects)
        return stored.last_of_each(self._connection, stream, listed, direct, self._timeout)

    async def delete_msg(self, stream: str, seq: int) -> bool:
        """Delete one message."""
        return _succeeded(await self._ask(names.message_delete(stream), {"seq": seq}))

    # -- consumers ------------------------------------------------------------------------------------------------

    async def add_consumer(self, stream: str, config: Consumer | None = None, **fields: Any) -> ConsumerInfo:
        """Create a consumer; the same one again is not an error, another one of that name is."""
        made = _declared(Consumer, config, fields)
        name = made.durable or made.name
        body = {"stream_name": stream, "config": made.to_json(), "action": ""}
        method = names.consumer_create(stream, name or "", made.filter_subject or "")
        # With a name, the same one made twice is one; the server would name another one each time.
        return ConsumerInfo.from_json(await self._ask(method, body, again=name is not None))

    async def consumer_info(self, stream: str, consumer: str) -> ConsumerInfo:
        """Ask how a consumer stands."""
        return ConsumerInfo.from_json(await self._ask(names.consumer_info(stream, consumer)))

    async def delete_consumer(self, stream: str, consumer: str) -> bool:
        """Delete a consumer and what it knows of deliveries and acks."""
        return _succeeded(await self._ask(names.consumer_delete(stream, consumer)))


def _succeeded(answer: dict[str, Any]) -> bool:
    found = answer.get("success")
    if not isinstance(found, bool):
        raise RemoteProtocolError("JetStream's answer does not say whether it succeeded.", place=0)
    return found


def _declared(kind: type[Any], config: Any, fields: dict[str, Any]) -> Any:
    if config is None:
        return kind(**fields)
    return config.model_copy(update=fields) if fields else config
