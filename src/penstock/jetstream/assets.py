"""The JetStream API, one function a request: streams, consumers and stored messages.

Names are checked before they become part of a subject. Declarations are checked by `rules` before they are sent; these
and the model are imported where they are needed, because a list needs neither.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.asset_names import checked
from penstock.connection import api_request
from penstock.errors import InputError, NoRespondersError, NotFoundError
from penstock.info import ConsumerInfo, StreamInfo
from penstock.times import format_time
from penstock.wire.jetstream import names
from penstock.wire.jetstream.answers import absent, check_done, held_subjects, number, part, parts
from penstock.wire.jetstream.direct import question

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.model import Consumer, Message, Stream

__all__ = [
    "account_info",
    "add_consumer",
    "add_stream",
    "checked",
    "consumer_info",
    "consumers",
    "delete_consumer",
    "delete_message",
    "delete_stream",
    "edit_consumer",
    "edit_stream",
    "get_message",
    "get_stored",
    "pause_consumer",
    "purge_stream",
    "reset_consumer",
    "stream_info",
    "stream_subjects_held",
    "streams",
    "unpin_consumer",
]


log = logging.getLogger("penstock.jetstream")


async def _pages(
    client: Connection,
    method: str,
    body: dict[str, Any],
    read: Callable[[dict[str, Any]], list[Any]],
    *,
    missing: set[str] | None = None,
) -> AsyncIterator[Any]:
    """Walk through what `read` gives of answers, page by page.

    A list may lack what nobody answers for now: `missing` gets the names, without it a warning has them.
    """
    offset = 0
    while True:
        answer = await api_request(client, method, {**body, "offset": offset})
        page, away = read(answer), absent(answer)
        if away:
            if missing is None:
                log.warning("The list lacks %s: the servers that hold them do not answer.", ", ".join(away))
            else:
                missing.update(away)
        for item in page:
            yield item
        offset += len(page) + len(away)
        if not page or offset >= number(answer, "total", 0):
            return


def _held(answer: dict[str, Any]) -> list[tuple[str, int]]:
    return list(held_subjects(answer).items())


async def account_info(client: Connection) -> dict[str, Any]:
    """Give what the account uses of JetStream, and its limits."""
    return dict(await api_request(client, "INFO"))


# -- streams ---------------------------------------------------------------------------------------------------------


async def add_stream(client: Connection, stream: Stream) -> StreamInfo:
    """Create a stream; the same one again is not an error, another one of that name is."""
    from penstock.jetstream.rules import check_stream

    check_stream(stream)
    return await client.jetstream().add_stream(stream)


async def edit_stream(client: Connection, stream: Stream) -> StreamInfo:
    """Give a stream another configuration; what the server cannot change, it refuses."""
    from penstock.jetstream.rules import check_stream

    if not stream.sealed:  # sealing is an update that makes the server change other fields, too
        check_stream(stream)
    return await client.jetstream().update_stream(stream)


async def stream_info(client: Connection, name: str, *, patience: float = 0.0) -> StreamInfo:
    """Ask how a stream stands; what passes by itself is waited out for `patience` seconds."""
    method = f"STREAM.INFO.{checked(name, 'stream')}"
    try:
        return StreamInfo.from_json(await api_request(client, method, patience=patience))
    except NotFoundError as error:
        remedy = "`penstock stream ls` shows those that are there."
        raise NotFoundError(f"There is no stream {name}.", remedy=remedy, **error.facts) from None


async def streams(
    client: Connection, *, subject: str | None = None, missing: set[str] | None = None
) -> list[StreamInfo]:
    """List all streams by name, or those that capture a subject; `missing` gets those that nobody answers for."""
    body = {"subject": subject} if subject else {}
    pages = _pages(client, "STREAM.LIST", body, lambda answer: parts(answer, "streams"), missing=missing)
    found = [StreamInfo.from_json(item) async for item in pages]
    return sorted(found, key=lambda item: item.name)


async def stream_subjects_held(client: Connection, name: str, pattern: str = ">") -> dict[str, int]:
    """Count the messages of each subject that a stream holds."""
    method = f"STREAM.INFO.{checked(name, 'stream')}"
    pages = _pages(client, method, {"subjects_filter": pattern}, _held)
    return dict(sorted([held async for held in pages]))


async def delete_stream(client: Connection, name: str) -> None:
    """Delete a stream with everything in it."""
    check_done(await api_request(client, names.stream_delete(checked(name, "stream"))))


async def purge_stream(
    client: Connection, name: str, *, subject: str | None = None, sequence: int | None = None, keep: int | None = None
) -> int:
    """Remove messages, all or of a subject, below a sequence or but the last few; give how many."""
    if sequence is not None and keep is not None:
        raise InputError("A purge is given a sequence and a number to keep.", remedy="Leave one of them out.")
    body = {"filter": subject, "seq": sequence, "keep": keep}
    body = {key: value for key, value in body.items() if value is not None}
    answer = await api_request(client, names.stream_purge(checked(name, "stream")), body or None)
    check_done(answer)
    return number(answer, "purged")


# -- messages --------------------------------------------------------------------------------------------------------


async def get_message(
    client: Connection,
    stream: str,
    sequence: int | None = None,
    *,
    last_for: str | None = None,
    next_for: str | None = None,
    since: datetime | None = None,
) -> Message:
    """Read one stored message: by sequence, the last of a subject, or the next from a sequence or time on."""
    from penstock.connection.stored import stored_message  # brings the model with it

    found = await get_stored(client, stream, sequence, last_for=last_for, next_for=next_for, since=since)
    return stored_message(stream, {"message": found})


async def get_stored(
    client: Connection,
    stream: str,
    sequence: int | None = None,
    *,
    last_for: str | None = None,
    next_for: str | None = None,
    since: datetime | None = None,
) -> dict[str, Any]:
    """Read one stored message as the server writes it: `subject`, `seq`, `time`, and in base64 `hdrs` and `data`."""
    body: dict[str, Any]
    if last_for is not None:
        body = question(last=last_for)
    elif since is not None:
        body = {"start_time": format_time(since), "next_by_subj": next_for or ">"}
    elif next_for is not None:
        body = question(sequence or 1, subject=next_for)
    elif sequence is not None and sequence >= 1:
        body = question(sequence)
    else:
        raise InputError("No message is named.", remedy="Give a sequence from 1 on, or a subject.")
    return dict(part(await api_request(client, names.message_get(checked(stream, "stream")), body), "message"))


async def delete_message(client: Connection, stream: str, sequence: int, *, erase: bool = True) -> None:
    """Delete one message; `erase` also overwrites its bytes in the file, which takes longer."""
    body = {"seq": sequence, "no_erase": not erase}
    check_done(await api_request(client, names.message_delete(checked(stream, "stream")), body))


# -- consumers -------------------------------------------------------------------------------------------------------


async def add_consumer(client: Connection, stream: str, consumer: Consumer, *, action: str = "create") -> ConsumerInfo:
    """Create a consumer; the same one again is not an error, another one of that name is."""
    from penstock.jetstream.rules import check_consumer

    check_consumer(consumer)
    name = consumer.durable or consumer.name
    method = names.consumer_create(checked(stream, "stream"), name or "", consumer.filter_subject or "")
    body = {"stream_name": stream, "config": consumer.to_json(), "action": action}
    # With a name, the same one made twice is one; the server would name another one each time.
    return ConsumerInfo.from_json(await api_request(client, method, body, again=name is not None))


async def edit_consumer(client: Connection, stream: str, consumer: Consumer) -> ConsumerInfo:
    """Give a consumer another configuration; what the server cannot change, it refuses."""
    return await add_consumer(client, stream, consumer, action="update")


async def consumer_info(client: Connection, stream: str, name: str, *, patience: float = 0.0) -> ConsumerInfo:
    """Ask how a consumer stands; what passes by itself is waited out for `patience` seconds."""
    method = f"CONSUMER.INFO.{checked(stream, 'stream')}.{checked(name, 'consumer')}"
    try:
        return ConsumerInfo.from_json(await api_request(client, method, patience=patience))
    except NotFoundError as error:
        there = "consumer" in (error.description or "")  # the stream is
        what = f"consumer {name} of stream {stream}" if there else f"stream {stream}"
        remedy = f"`penstock {f'consumer ls {stream}' if there else 'stream ls'}` shows those that are there."
        raise NotFoundError(f"There is no {what}.", remedy=remedy, **error.facts) from None


async def consumers(client: Connection, stream: str) -> list[ConsumerInfo]:
    """List the consumers of a stream by name."""
    method = f"CONSUMER.LIST.{checked(stream, 'stream')}"
    pages = _pages(client, method, {}, lambda answer: parts(answer, "consumers"))
    return sorted([ConsumerInfo.from_json(item) async for item in pages], key=lambda item: item.name)


async def delete_consumer(client: Connection, stream: str, name: str) -> None:
    """Delete a consumer and what it knows of deliveries and acks."""
    check_done(await api_request(client, _consumer(names.consumer_delete, stream, name)))


async def pause_consumer(client: Connection, stream: str, name: str, until: datetime | None) -> dict[str, Any]:
    """Let a consumer deliver nothing until then; None lets it go on."""
    body = {"pause_until": format_time(until)} if until else {}
    return dict(await api_request(client, _consumer(names.consumer_pause, stream, name), body))


async def reset_consumer(client: Connection, stream: str, name: str, sequence: int | None = None) -> ConsumerInfo:
    """Set a consumer back to its ack floor, or to a sequence: what follows is delivered as if for the first time.

    Only a consumer that begins with all messages goes to any sequence; one that begins with a sequence or a time goes
    to none before that.
    """
    if sequence is not None and sequence < 1:
        raise InputError(f"The sequence is {sequence}.", remedy="Sequences begin with 1.")
    try:
        body = None if sequence is None else {"seq": sequence}
        return ConsumerInfo.from_json(await api_request(client, _consumer(names.consumer_reset, stream, name), body))
    except NoRespondersError as error:
        await consumer_info(client, stream, name)  # says what is not there, if that is why
        what = f"No server answered to reset consumer {name} of stream {stream}."
        raise NoRespondersError(
            what, remedy="Is the server older than 2.14, or a leader missing?", **error.facts
        ) from None


async def unpin_consumer(client: Connection, stream: str, name: str, group: str) -> None:
    """Take the pin of a priority group from the client that holds it; the next one that pulls gets it."""
    await api_request(client, _consumer(names.consumer_unpin, stream, name), {"group": group})


def _consumer(method: Callable[..., str], stream: str, name: str) -> str:
    return method(checked(stream, "stream"), checked(name, "consumer"))
