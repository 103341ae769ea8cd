"""`penstock demo`: a real server, a stream, and every message accounted for."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import print_table, progress, run
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.connection import Client

__all__ = ["demo"]

BATCH = 500


def demo(
    messages: Annotated[
        int, typer.Option("--messages", min=1, max=1_000_000, help="How many orders to publish.")
    ] = 2000,
) -> None:
    """Start a real NATS server, publish orders (each of them twice), consume them, and count."""
    run(_demo(messages))


async def _demo(messages: int) -> None:
    from penstock.connection import connect
    from penstock.server import Server

    server = Server()
    await asyncio.to_thread(server.start)
    try:
        typer.echo(f"nats-server {server.version} with JetStream is running (pid {server.nodes[0].pid}).")
        client = await connect(server.url)
        try:
            stored, repeats = await _publish(client, messages)
            seen, doubled = await _consume(client, messages)
        finally:
            await client.close()
    finally:
        await asyncio.to_thread(server.stop)
    print_table(
        "Audit",
        ("Stage", "#Expected", "#Found", "#Lost", "#Repeated"),
        [
            (
                "published twice, stored once",
                messages,
                stored,
                max(messages - stored, 0),
                max(stored - messages, 0),
            ),
            ("consumed and acknowledged", messages, seen, messages - seen, doubled),
        ],
    )
    typer.echo(f"The server recognised {repeats} repeats by their id. It is stopped and its files are gone.")
    if (stored, repeats, seen, doubled) != (messages, messages, messages, 0):
        raise PenstockError("The audit does not add up.", remedy="Please report this with the table above.")


async def _publish(client: Client, messages: int) -> tuple[int, int]:
    """Publish every order twice under the same id; give how many the stream stored, and how many repeats it saw."""
    from penstock.connection import api_request, foreign_errors, jetstream
    from penstock.model import Stream

    stream = Stream(name="ORDERS", subjects=["orders.>"], description="What the demo publishes.")
    await api_request(client, f"STREAM.CREATE.{stream.name}", stream.to_json())
    context, repeats = jetstream(client), 0

    async def send(number: int) -> bool:
        headers = {"Nats-Msg-Id": f"order-{number}"}
        ack = await context.publish(f"orders.{number % 7}", f"order {number}".encode(), headers=headers)
        return bool(ack.duplicate)

    with foreign_errors("orders.>"), progress("Publishing, each order twice", 2 * messages) as advance:
        for start in range(0, messages, BATCH):
            numbers = range(start, min(start + BATCH, messages))
            for _ in range(2):
                repeats += sum(await asyncio.gather(*(send(number) for number in numbers)))
                advance(len(numbers))
    state = (await api_request(client, f"STREAM.INFO.{stream.name}"))["state"]
    return int(state["messages"]), repeats


async def _consume(client: Client, messages: int) -> tuple[int, int]:
    """Consume with double acks until nothing is left; give how many orders came, and how many more than once."""
    from penstock.connection import foreign_errors, jetstream

    seen: Counter[bytes] = Counter()
    with foreign_errors("orders.>"), progress("Consuming, each ack confirmed", messages) as advance:
        subscription = await jetstream(client).pull_subscribe("orders.>", durable="DEMO", stream="ORDERS")
        while (await subscription.consumer_info()).num_pending:
            batch = await subscription.fetch(BATCH, timeout=5)
            await asyncio.gather(*(message.ack_sync(timeout=5) for message in batch))
            seen.update(message.data for message in batch)
            advance(len(batch))
        left = (await subscription.consumer_info()).num_ack_pending
    if left:
        raise PenstockError(f"{left} acknowledgements did not reach the server.")
    return len(seen), sum(count - 1 for count in seen.values())
