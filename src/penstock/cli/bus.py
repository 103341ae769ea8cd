"""`bus`: ask a queue of the bus and show the reply as it comes, or serve a queue with a Python function."""

from __future__ import annotations

import base64
import importlib
import inspect
import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.flags import Json, argument, flag
from penstock.cli.output import print_bytes, print_json
from penstock.cli.running import connected, staying
from penstock.cli.standard_input import whole_body
from penstock.durations import parse_duration
from penstock.errors import InputError
from penstock.json_text import load_json

if TYPE_CHECKING:
    from penstock.bus import Element, Reply, Request, Response, Section, Sender
    from penstock.bus.service import Handler

__all__ = ["call", "serve"]


async def call(
    ctx: typer.Context,
    queue: Annotated[str, argument("Queue to ask, and its partition.", "QUEUE[:PARTITION]")],
    resource: Annotated[str, argument("What to ask for.")] = "",
    body: Annotated[str | None, flag("Body; - for standard input.")] = None,
    method: Annotated[str, flag("GET, POST, PUT, PATCH or DELETE.", "-X", "--method")] = "GET",
    wsid: Annotated[int, flag("Number of the workspace.")] = 0,
    header: Annotated[list[str] | None, flag("Header; may be repeated.", "KEY:VALUE", "-H", "--header")] = None,
    query: Annotated[list[str] | None, flag("Query value; may be repeated.", "KEY=VALUE")] = None,
    window: Annotated[int, flag("Elements in flight; 0 for the plain protocol.", min=0)] = 64,
    json: Annotated[bool, flag("Print a line of JSON for each element.", "-j", "--json")] = False,
) -> None:
    """Ask a queue and show the response, or the sections as they come; --timeout is for each packet."""
    from penstock.bus import Bus, Request
    from penstock.bus.limits import BusOptions

    name, colon, number = queue.rpartition(":")
    if not colon:
        name, number = queue, "0"
    if not re.fullmatch(r"[0-9]{1,5}", number):
        raise InputError(f"{number!r} is not a partition.", remedy="Write QUEUE:NUMBER, such as orders:3.")
    request = Request(
        name,
        int(number),
        method.upper(),
        resource,
        wsid,
        _values(header, ":", "header"),
        _values(query, "=", "query value"),
        await whole_body(None if body == "-" else body or ""),
    )
    queues, printer = {request.queue: request.partition + 1}, _Printer(json)
    BusOptions(queues, window)  # what is wrong is said before we connect
    async with connected(ctx) as client, Bus(client, queues, window=window) as bus:
        reply: Reply = await bus.request(request, timeout=ctx.obj.seconds)
        if reply.response is not None:
            printer.response(reply.response)
            if reply.response.status >= 400:
                raise typer.Exit(1)
            return
        async with reply:
            async for section in reply.sections():
                printer.section(section)
                async for element in section:
                    printer.element(section, element)


def _values(given: list[str] | None, mark: str, what: str) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for item in given or []:
        name, found, value = item.partition(mark)
        if not found or not name:
            raise InputError(f"The {what} {item!r} has no name.", remedy=f"Write it as KEY{mark}VALUE.")
        values.setdefault(name, []).append(value.strip())
    return values


@dataclass(frozen=True)
class _Printer:
    """Prints a reply for people, or each element as a line of JSON."""

    json: bool

    def response(self, response: Response) -> None:
        if self.json:
            facts = {"status": response.status, "content_type": response.content_type}
            print_json({**facts, "data": _value(response.data)}, line=True)
            return
        typer.echo(f"{response.status} {response.content_type}".rstrip(), err=True)
        print_bytes(response.data)

    def section(self, section: Section) -> None:
        if not self.json:
            path = f" at {'/'.join(section.path)}" if section.path else ""
            typer.echo(f"{section.kind} {section.type}{path}")

    def element(self, section: Section, element: Element) -> None:
        if self.json:
            named = {} if element.name is None else {"name": element.name}
            about = {"kind": section.kind, "type": section.type, "path": list(section.path)}
            print_json({**about, **named, "element": _value(element.data)}, line=True)
            return
        typer.echo("  " if element.name is None else f"  {element.name}: ", nl=False)
        print_bytes(element.data)


def _value(data: bytes) -> Any:
    """Give data as the JSON that it is, as text, or as base64 if it is neither."""
    try:
        return load_json(data)
    except ValueError:
        pass  # no JSON: text, perhaps
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


async def serve(
    ctx: typer.Context,
    function: Annotated[str, argument("async def function(request, sender).", "MODULE:FUNCTION")],
    queue: Annotated[str, flag("Queue to serve.", "NAME")],
    partitions: Annotated[int, flag("Partitions that the queue has.", min=1)] = 1,
    parts: Annotated[int, flag("Processes that share the partitions; 0: only us.", min=0)] = 1,
    part: Annotated[int, flag("Which of them we are, from 1.", min=0)] = 1,
    concurrency: Annotated[int, flag("Requests at once in each partition; 1 for one by one.", min=1)] = 64,
    stop_timeout: Annotated[str, flag("Time for handlers to end after Ctrl-C.", "DURATION")] = "10s",
    json: Json = False,
) -> None:
    """Serve a queue with a Python function, until Ctrl-C."""
    from penstock.bus import Bus
    from penstock.bus import partitions as share
    from penstock.bus.limits import BusOptions

    limit = parse_duration(stop_timeout, option="--stop-timeout")
    handler = _find(function)
    share(BusOptions({queue: partitions}).queues[queue], parts, part)  # what is wrong is said before we connect

    async def told(request: Request, sender: Sender) -> None:
        facts = {"queue": request.queue, "partition": request.partition, "method": request.method}
        if json:
            print_json({**facts, "resource": request.resource, "bytes": len(request.body)}, line=True)
        else:
            typer.echo(f"{request.method} {request.queue}:{request.partition} {request.resource}")
            sys.stdout.flush()
        await handler(request, sender)

    async with staying(ctx) as here:
        bus = Bus(here.client, {queue: partitions})
        service = bus.serve(queue, told, parts=parts, part=part, concurrency=concurrency)
        async with bus:
            await service
            numbers = service.partitions
            shown = f"partitions {numbers[0]} to {numbers[-1]}" if numbers else "no partition"
            typer.echo(f"Serving {queue}, {shown} of {partitions}; Ctrl-C ends it", err=True)
            await here.until()
            if service.active:
                typer.echo(f"Waiting for {service.active} requests, {limit:g} s at most", err=True)
            await service.stop(limit)


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
