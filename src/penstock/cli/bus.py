"""`bus`: ask a queue of the bus and show the reply as it comes, or serve a queue with a Python function."""

from __future__ import annotations

import asyncio
import base64
import importlib
import inspect
import json as jsonlib
import os
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.global_flags import Globals
from penstock.cli.messages import read_body
from penstock.cli.output import Json, first, run, until_signal
from penstock.durations import parse_duration
from penstock.errors import DisconnectedError, InputError

if TYPE_CHECKING:
    from penstock.bus import Element, Reply, Request, Response, Section, Sender
    from penstock.bus.service import Handler

__all__ = ["call", "serve"]


def call(
    ctx: typer.Context,
    queue: Annotated[str, typer.Argument(metavar="QUEUE[:PARTITION]", help="Queue to ask, and its partition.")],
    resource: Annotated[str, typer.Argument(help="What to ask for.")] = "",
    body: Annotated[str | None, typer.Option("--body", help="Body; - for standard input.")] = None,
    method: Annotated[str, typer.Option("-X", "--method", help="GET, POST, PUT, PATCH or DELETE.")] = "GET",
    wsid: Annotated[int, typer.Option("--wsid", help="Number of the workspace.")] = 0,
    header: Annotated[
        list[str] | None, typer.Option("-H", "--header", metavar="KEY:VALUE", help="Header; may be repeated.")
    ] = None,
    query: Annotated[
        list[str] | None, typer.Option("--query", metavar="KEY=VALUE", help="Query value; may be repeated.")
    ] = None,
    window: Annotated[int, typer.Option("--window", min=0, help="Elements in flight; 0 for the plain protocol.")] = 64,
    json: Annotated[bool, typer.Option("-j", "--json", help="Print a line of JSON for each element.")] = False,
) -> None:
    """Ask a queue and show the response, or the sections as they come; --timeout is for each packet."""
    from penstock.bus import Request

    name, colon, number = queue.rpartition(":")
    if not colon:
        name, number = queue, "0"
    if not re.fullmatch(r"[0-9]{1,5}", number):
        raise InputError(f"{number!r} is no partition.", remedy="Write QUEUE:NUMBER, such as orders:3.")
    request = Request(
        name,
        int(number),
        method.upper(),
        resource,
        wsid,
        _values(header, ":", "header"),
        _values(query, "=", "query value"),
        read_body(None if body == "-" else body or ""),
    )
    if not run(_call(ctx.obj, request, window, _Printer(json))):
        raise typer.Exit(1)


def _values(given: list[str] | None, mark: str, what: str) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for item in given or []:
        name, found, value = item.partition(mark)
        if not found or not name:
            raise InputError(f"The {what} {item!r} has no name.", remedy=f"Write it as KEY{mark}VALUE.")
        values.setdefault(name, []).append(value.strip())
    return values


async def _call(given: Globals, request: Request, window: int, printer: _Printer) -> bool:
    from penstock.bus import Bus
    from penstock.bus.limits import BusOptions
    from penstock.connection import connect

    BusOptions({request.queue: request.partition + 1}, window)  # what is wrong is said before we connect
    client = await connect(given.options())
    try:
        async with Bus(client, {request.queue: request.partition + 1}, window=window) as bus:
            reply: Reply = await bus.request(request, timeout=given.seconds)
            if reply.response is not None:
                printer.response(reply.response)
                return reply.response.status < 400
            async with reply:
                async for section in reply.sections():
                    printer.section(section)
                    async for element in section:
                        printer.element(section, element)
            return True
    finally:
        await client.close()


class _Printer:
    """Prints a reply for people, or each element as a line of JSON."""

    def __init__(self, json: bool) -> None:
        self.json = json

    def response(self, response: Response) -> None:
        if self.json:
            self._line(status=response.status, content_type=response.content_type, data=_value(response.data))
            return
        typer.echo(f"{response.status} {response.content_type}".rstrip(), err=True)
        self._bytes(response.data)

    def section(self, section: Section) -> None:
        if not self.json:
            path = f" at {'/'.join(section.path)}" if section.path else ""
            typer.echo(f"{section.kind} {section.type}{path}")

    def element(self, section: Section, element: Element) -> None:
        if self.json:
            named = {} if element.name is None else {"name": element.name}
            about = {"kind": section.kind, "type": section.type, "path": list(section.path)}
            self._line(**about, **named, element=_value(element.data))
            return
        typer.echo("  " if element.name is None else f"  {element.name}: ", nl=False)
        self._bytes(element.data)

    def _line(self, **fields: Any) -> None:
        typer.echo(jsonlib.dumps(fields, ensure_ascii=False))
        sys.stdout.flush()

    def _bytes(self, data: bytes) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data + b"\n")
        sys.stdout.flush()


def _value(data: bytes) -> Any:
    """Give data as the JSON that it is, as text, or as base64 where it is neither."""
    try:
        return jsonlib.loads(data)
    except ValueError:
        pass  # no JSON: text, perhaps
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def serve(
    ctx: typer.Context,
    function: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="async def function(request, sender).")],
    queue: Annotated[str, typer.Option("--queue", metavar="NAME", help="Queue to serve.")],
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="Partitions that the queue has.")] = 1,
    parts: Annotated[int, typer.Option("--parts", min=0, help="Processes that share the partitions; 0: only us.")] = 1,
    part: Annotated[int, typer.Option("--part", min=0, help="Which of them we are, from 1.")] = 1,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Requests at once in each partition; 1 for one by one.")
    ] = 64,
    stop_timeout: Annotated[
        str, typer.Option("--stop-timeout", metavar="DURATION", help="Time for handlers to end after Ctrl-C.")
    ] = "10s",
    json: Json = False,
) -> None:
    """Serve a queue with a Python function, until Ctrl-C."""
    limit = parse_duration(stop_timeout, option="--stop-timeout")
    handler = _find(function)
    run(_serve(ctx.obj, handler, queue, partitions, parts, part, concurrency, limit, json))


def _find(function: str) -> Handler:
    """Import the function; the current folder is searched, too."""
    module_name, colon, name = function.partition(":")
    if not colon or not module_name or not name:
        raise InputError(f"{function!r} names no function.", remedy="Write MODULE:FUNCTION, such as orders:answer.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(f"{module_name} imports {error.name}, which is not installed.") from None
        raise InputError(
            f"There is no module {module_name}.", remedy="It is searched in the current folder and among the packages."
        ) from None
    except Exception as error:
        raise InputError(f"{module_name} cannot be imported: {type(error).__name__}: {error}") from error
    handler = getattr(module, name, None)
    if not inspect.iscoroutinefunction(handler):
        what = "is not there" if handler is None else "is not a coroutine function"
        raise InputError(f"{name} {what} in {module_name}.", remedy="Write async def NAME(request, sender).")
    found: Handler = handler
    return found


async def _serve(
    given: Globals,
    handler: Handler,
    queue: str,
    partitions: int,
    parts: int,
    part: int,
    concurrency: int,
    limit: float,
    json: bool,
) -> None:
    from penstock.bus import Bus
    from penstock.bus import partitions as share
    from penstock.bus.limits import BusOptions
    from penstock.connection import connect

    share(BusOptions({queue: partitions}).queues[queue], parts, part)  # what is wrong is said before we connect
    lost = asyncio.Event()

    async def closed() -> None:
        lost.set()

    async def told(request: Request, sender: Sender) -> None:
        facts = {"queue": request.queue, "partition": request.partition, "method": request.method}
        if json:
            typer.echo(jsonlib.dumps({**facts, "resource": request.resource, "bytes": len(request.body)}))
        else:
            typer.echo(f"{request.method} {request.queue}:{request.partition} {request.resource}")
        sys.stdout.flush()
        await handler(request, sender)

    with until_signal() as stop:
        client = await connect(given.options(), on_close=closed)
        try:
            bus = Bus(client, {queue: partitions})
            service = bus.serve(queue, told, parts=parts, part=part, concurrency=concurrency)
            async with bus:
                await service
                numbers = service.partitions
                shown = f"partitions {numbers[0]} to {numbers[-1]}" if numbers else "no partition"
                typer.echo(f"Serving {queue}, {shown} of {partitions}; Ctrl-C ends it", err=True)
                await first(stop.wait(), lost.wait())
                if lost.is_set() and not stop.is_set():
                    raise DisconnectedError(
                        "The connection is gone and did not come back.", remedy="Is the server running?"
                    )
                if service.active:
                    typer.echo(f"Waiting for {service.active} requests, {limit:g} s at most", err=True)
                await service.stop(limit)
        finally:
            await client.close()
