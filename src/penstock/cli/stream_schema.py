"""`penstock stream schema`: the columns of JSON payloads, learnt from a sample of a stream."""

from __future__ import annotations

import asyncio
import base64
import json as json_text
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.flags import AnyStream, Json, flag
from penstock.cli.late import assets
from penstock.cli.message_parts import check_subjects
from penstock.cli.output import print_json
from penstock.cli.questions import picked_stream
from penstock.cli.running import connected
from penstock.cli.tables import plain
from penstock.errors import MessageError, NotFoundError

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.info import StreamInfo
    from penstock.spark.json_learn import LearntType

__all__ = ["schema"]

AT_ONCE = 64
"""How many messages are asked for at a time."""
OURS = ("subject", "data", "headers", "sequence", "time", "stream", "_error")


async def schema(
    ctx: typer.Context,
    name: AnyStream = None,
    samples: Annotated[
        int, flag("Look at this many messages, spread over the stream.", "COUNT", min=1, max=100_000)
    ] = 500,
    subject: Annotated[str | None, flag("Only messages that match.")] = None,
    json: Json = False,
) -> None:
    """Look at a sample of messages and print their fields as DDL, for Spark's option jsonSchema."""
    from penstock.spark.json_learn import MOST_KEYS, LearntType, ddl

    if subject is not None:
        check_subjects(subject)
    learnt, seen = LearntType(), Counter[str]()
    async with connected(ctx) as client:
        info = await assets.stream_info(client, await picked_stream(client, name))
        async for payload in _sample(client, info, samples, subject):
            seen[_learn(learnt, payload)] += 1
    if not seen:
        on = f" on {subject}" if subject else ""
        remedy = f"See `penstock stream info {info.name}`."
        raise NotFoundError(f"Stream {info.name} holds no message{on}.", remedy=remedy)
    told = ", ".join(f"{count:,} {what}" for what, count in seen.most_common() if what != "good")
    typer.echo(f"Looked at {seen.total():,} of {info.messages:,} messages{f': {told}' if told else ''}.", err=True)
    if learnt.is_map:
        what = f"The payloads of Stream {info.name} have more than {MOST_KEYS} different fields."
        raise MessageError(what, remedy="Name a --subject, or read the payloads as text and parse them in the query.")
    if not learnt.fields:
        what = f"No payload of Stream {info.name} that was looked at is a JSON object with fields."
        raise MessageError(what, remedy="Read them with the format raw or text, or name a --subject.")
    _warn(learnt)
    if json:
        print_json(learnt.struct())
    else:
        for line in ddl(learnt).split("\n"):
            typer.echo(plain(line))


async def _sample(client: Connection, info: StreamInfo, samples: int, subject: str | None) -> AsyncIterator[bytes]:
    """Give payloads from places that are spread evenly; a message that two places lead to is given once."""
    from penstock.spark.markers import is_marker

    async def get(sequence: int) -> tuple[int, str, bytes] | None:
        try:
            found = await assets.get_stored(client, info.name, sequence, next_for=subject or ">")
        except NotFoundError:
            return None
        return found["seq"], found["subject"], base64.b64decode(found.get("data") or "")

    first, width = info.first_sequence, info.last_sequence - info.first_sequence + 1
    places = sorted({first + width * number // samples for number in range(samples)}) if info.messages else []
    reached = 0
    for start in range(0, len(places), AT_ONCE):
        for found in await asyncio.gather(*(get(place) for place in places[start : start + AT_ONCE])):
            if found is not None and found[0] > reached:
                reached = found[0]
                if not is_marker(found[1]):
                    yield found[2]


def _learn(learnt: LearntType, payload: bytes) -> str:
    try:
        found = json_text.loads(payload.decode())
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(found, dict):
        return "no objects"
    learnt.see(found)
    return "good"


def _warn(learnt: LearntType) -> None:
    if learnt.nameless:
        typer.echo("A field with an empty name is left out: no column can be called that.", err=True)
    names = Counter(name.lower() for name in learnt.fields)
    if clash := [name for name in learnt.fields if name.lower() in OURS]:
        listed = plain(", ".join(clash))
        typer.echo(
            f"Columns of the format nats have the same name: {listed}. Read with the option jsonColumn.", err=True
        )
    if twice := [name for name in learnt.fields if names[name.lower()] > 1]:
        typer.echo(f"Spark takes these for one name: {plain(', '.join(twice))}. Name one of them.", err=True)
