"""`penstock server check`: streams, consumers, messages and key-value buckets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from penstock.cli.flags import flag, flag_table, given_fields, table_flag
from penstock.cli.late import assets
from penstock.cli.message_parts import check_subjects
from penstock.cli.server_checking import Rendering, pattern, run_check, span
from penstock.errors import NotFoundError

__all__ = ["consumer", "kv", "message", "stream"]

StreamNamed = Annotated[str, flag("The stream.", "NAME", "--stream")]


@flag_table
class StreamFlags:
    """What a stream must be; its metadata may say the same, as io.nats.monitor.lag-critical and so on."""

    lag_critical: int | None = table_flag("Critical if it is so far behind its mirror or a source.", "MSGS", min=0)
    seen_critical: str | None = table_flag("Critical if one was not seen for this long.", "DURATION", read=span)
    min_sources: int | None = table_flag("Critical with fewer sources.", "N", min=0)
    max_sources: int | None = table_flag("Critical with more sources.", "N", min=0)
    peer_expect: int | None = table_flag("How many servers carry it.", "N", min=0)
    peer_lag_critical: int | None = table_flag("Critical if one of them is further behind.", "OPS", min=0)
    peer_seen_critical: str | None = table_flag("Critical if one was not seen for longer.", "DURATION", read=span)
    msgs_warn: int | None = table_flag("A warning with this many messages or fewer.", "MSGS", min=0)
    msgs_critical: int | None = table_flag("Critical with this many messages or fewer.", "MSGS", min=0)
    subjects_warn: int | None = table_flag(
        "A warning at this many subjects or more; or fewer, if critical is less.", "N"
    )
    subjects_critical: int | None = table_flag("Critical at this many subjects or more; or fewer, if it is less.", "N")


async def stream(ctx: typer.Context, stream: StreamNamed, flags: StreamFlags, rendering: Rendering) -> None:
    """Check a stream: its replicas, what it holds, and how far it is behind what it copies."""
    from penstock.system import CheckResult
    from penstock.system.check_assets import StreamLevels, check_stream, with_metadata
    from penstock.system.fields import fields

    levels = StreamLevels(**given_fields(flags))
    assets.checked(stream, "stream")

    async def look(client: Any, result: CheckResult) -> None:
        info = (await assets.stream_info(client, stream)).raw
        check_stream(result, info, with_metadata(levels, fields(info, "config", "metadata")))

    await run_check(ctx, rendering, CheckResult("stream", stream), look)


@flag_table
class ConsumerFlags:
    """What a consumer must be; its metadata may say the same, as io.nats.monitor.waiting-critical and so on."""

    outstanding_ack_critical: int | None = table_flag("Critical at this many messages without ack or more.", "N")
    waiting_critical: int | None = table_flag("Critical at this many waiting pull requests or more.", "N")
    unprocessed_critical: int | None = table_flag("Critical at this many undelivered messages or more.", "N")
    last_delivery_critical: str | None = table_flag(
        "Critical if the last delivery was this long ago.", "DURATION", read=span
    )
    last_ack_critical: str | None = table_flag("Critical if the last ack was this long ago.", "DURATION", read=span)
    redelivery_critical: int | None = table_flag("Critical at this many redelivered messages or more.", "N")
    pinned: bool | None = table_flag("Critical if not every group has a pinned client.", "--pinned")


async def consumer(
    ctx: typer.Context,
    stream: StreamNamed,
    consumer: Annotated[str, flag("The consumer.", "NAME", "--consumer")],
    flags: ConsumerFlags,
    rendering: Rendering,
) -> None:
    """Check a consumer: what waits for acks and deliveries, and when it did something last."""
    from penstock.system import CheckResult
    from penstock.system.check_assets import ConsumerLevels, check_consumer, with_metadata
    from penstock.system.fields import fields

    levels = ConsumerLevels(**given_fields(flags))
    assets.checked(stream, "stream")
    assets.checked(consumer, "consumer")

    async def look(client: Any, result: CheckResult) -> None:
        info = (await assets.consumer_info(client, stream, consumer)).raw
        asked = with_metadata(levels, fields(info, "config", "metadata"))
        check_consumer(result, info, asked, datetime.now(UTC))

    await run_check(ctx, rendering, CheckResult("consumer", f"{stream}_{consumer}"), look)


@flag_table
class MessageFlags:
    """What a message must be."""

    age_warn: str | None = table_flag("A warning if it is older.", "DURATION", read=span)
    age_critical: str | None = table_flag("Critical if it is older.", "DURATION", read=span)
    content: str = table_flag("Critical if the body does not match this.", "REGEX", default=".", read=pattern)
    body_timestamp: bool = table_flag("The body is the Unix time from which it ages.", default=False)


async def message(
    ctx: typer.Context,
    stream: StreamNamed,
    flags: MessageFlags,
    rendering: Rendering,
    subject: Annotated[str, flag("The subject whose last message is checked.", "SUBJECT", "--subject")] = ">",
) -> None:
    """Check the last message of a stream, or of a subject: its age and its body."""
    from penstock.system import CheckResult
    from penstock.system.check_assets import MessageLevels, check_message

    levels = MessageLevels(**given_fields(flags))
    assets.checked(stream, "stream")
    check_subjects(subject)

    async def look(client: Any, result: CheckResult) -> None:
        try:
            found = await assets.get_message(client, stream, last_for=subject)
        except NotFoundError as error:
            from penstock.wire.jetstream.names import NO_MESSAGE

            if error.err_code != NO_MESSAGE:
                raise
            result.critical(f"the stream holds no message on {subject}")
            return
        check_message(result, found.subject, found.data, found.time or datetime.now(UTC), levels, datetime.now(UTC))

    await run_check(ctx, rendering, CheckResult("message", "Stream Message"), look)


async def kv(
    ctx: typer.Context,
    bucket: Annotated[str, flag("The bucket.", "NAME", "--bucket")],
    rendering: Rendering,
    values_critical: Annotated[int, flag("Critical at this many values or more; or fewer, if it is less.", "N")] = -1,
    values_warn: Annotated[
        int, flag("A warning at this many values or more; or fewer, if critical is less.", "N")
    ] = -1,
    key: Annotated[str, flag("Critical if this key has no value.", "KEY")] = "",
) -> None:
    """Check a key-value bucket: how many values it holds, and whether a key has one."""
    from penstock.system import CheckResult
    from penstock.system.check_assets import BucketLevels, check_bucket

    levels = BucketLevels(*(None if level < 0 else level for level in (values_warn, values_critical)))
    name = assets.checked(f"KV_{bucket}", "bucket")
    subject = f"$KV.{bucket}.{key}"
    if key:
        check_subjects(subject, literal=True)

    async def look(client: Any, result: CheckResult) -> None:
        try:
            info = (await assets.stream_info(client, name)).raw
        except NotFoundError:
            result.critical(f"there is no bucket {bucket}")
            return
        check_bucket(result, bucket, info, levels)
        if key:
            await _check_key(client, result, name, subject, key)

    await run_check(ctx, rendering, CheckResult("kv", bucket), look)


async def _check_key(client: Any, result: Any, stream: str, subject: str, key: str) -> None:
    from penstock.buckets.key_wire import PUT, marker_reason, operation_of
    from penstock.wire.jetstream.names import NO_MESSAGE

    try:
        found = await assets.get_message(client, stream, last_for=subject)
    except NotFoundError as error:
        if error.err_code != NO_MESSAGE:
            raise
        result.critical(f"the key {key} is not there")
        return
    operation = operation_of(found.headers)
    if operation != PUT:
        result.critical(f"the key {key} was deleted ({marker_reason(found.headers) or operation})")
    else:
        result.ok(f"the key {key} has a value")
