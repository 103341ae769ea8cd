"""`penstock req`: a request, and what is answered."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.arrivals import Arrival, Raw, Translation
from penstock.cli.flags import Headers, argument, flag
from penstock.cli.flags import Raw as RawFlag
from penstock.cli.message_parts import HeaderTemplates, Template, Templates, check_subjects
from penstock.cli.output import print_headers
from penstock.cli.running import connected
from penstock.cli.standard_input import Body, ForceStdin, SendOn, bodies
from penstock.cli.values import refuse_both
from penstock.durations import parse_duration
from penstock.errors import DeadlineError, NoRespondersError

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["req"]


async def req(
    ctx: typer.Context,
    subject: Annotated[str, argument("Subject to send the request to.")],
    body: Body = None,
    header: Headers = None,
    replies: Annotated[int, flag("How many replies; 0 for all until --timeout.", min=0)] = 1,
    reply_timeout: Annotated[str, flag("Time that the next of several replies may take.", "DURATION")] = "300ms",
    wait_for_empty: Annotated[bool, flag("Take replies until one has no body.")] = False,
    count: Annotated[int, flag("How many requests to send, one after another.", min=1)] = 1,
    translate: Annotated[str | None, flag("Give each body to a program, and show what it prints.", "COMMAND")] = None,
    force_stdin: ForceStdin = False,
    send_on: SendOn = "eof",
    templates: Templates = True,
    raw: RawFlag = False,
    wait: Annotated[bool, flag("Without effect: a reply is always waited for.", "-w", "--wait", hidden=True)] = False,
) -> None:
    """Send a request and show what is answered."""
    check_subjects(subject, literal=True, templates=templates)
    refuse_both("--replies", replies != 1, "--wait-for-empty", wait_for_empty)
    headers = HeaderTemplates(header, on=templates)
    program = None
    if translate is not None:
        from penstock.cli.programs import Program

        program = Program(translate, "--translate", seconds=ctx.obj.seconds)
    translation = Translation(program)
    pause = parse_duration(reply_timeout, option="--reply-timeout")
    wanted = None if wait_for_empty else replies
    asking = _Asking(wanted, ctx.obj.seconds, pause, raw, translation)
    given = bodies(body, stdin=force_stdin, send_on=send_on)
    names, texts = Template(subject.encode(), on=templates), (Template(data, on=templates) async for data in given)
    first = await anext(texts) if send_on != "newline" else None  # all of it is there before we connect
    async with connected(ctx) as client:
        text = first or await anext(texts, None)
        while text is not None:
            for number in range(1, count + 1):
                target = names.fill(number).decode()
                check_subjects(target, literal=True)
                await asking.ask(client, target, text.fill(number), headers.fill(number))
            text = await anext(texts, None)
    translation.check()


@dataclass
class _Asking:
    replies: int | None
    """How many are wanted: 0 for all in time, None for all until an empty one."""
    seconds: float
    pause: float
    raw: bool
    translation: Translation
    shown: int = 0

    async def ask(self, client: Connection, subject: str, data: bytes, headers: dict[str, list[str]]) -> None:
        """Send a request and show its replies."""
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        began, seen, total = time.perf_counter(), 0, 0.0
        try:
            with client.expecting(subject, subscription.end):
                await client.publish(subject, data, reply=inbox, headers=headers)
                while not self.replies or seen < self.replies:
                    left = began + self.seconds - time.perf_counter()
                    if seen and self.replies != 0:  # as long as they took so far, and a pause
                        left = total / seen + self.pause
                    try:
                        message = await subscription.next_msg(timeout=max(left, 0.001))
                    except DeadlineError:
                        if self.replies == 0 and seen:
                            break
                        raise self._late(subject, seen) from None
                    took = time.perf_counter() - began
                    if not message.data and message.status == 503:
                        what = f"Nobody listens on {subject}."
                        raise NoRespondersError(what, remedy="Is the service running?", subject=subject)
                    if self.replies is None and not message.data:
                        break
                    seen, total = seen + 1, total + took
                    if not self.raw:
                        typer.echo(f"Received with rtt {took * 1000:.3f}ms", err=True)
                        print_headers(message.header_block, err=True)
                    self.shown += 1
                    await Raw(self.translation).show(self.shown, Arrival.of(message))
        finally:
            if not client.is_closed:
                await subscription.unsubscribe()

    def _late(self, subject: str, seen: int) -> DeadlineError:
        remedy = "A longer --timeout may help."
        if not seen:
            return DeadlineError(f"No answer on {subject} in {self.seconds:g} s.", remedy=remedy, subject=subject)
        remedy = "A longer --reply-timeout may help."
        what = f"Only {seen} of {self.replies} replies came on {subject}."
        if self.replies is None:
            what = f"{seen} replies came on {subject}, and none without a body, which is to end them."
        return DeadlineError(what, remedy=remedy, subject=subject)
