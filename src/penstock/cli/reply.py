"""`penstock reply`: answers to requests, from a text, an echo or a program."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.flags import Headers, StopAfter, argument, flag
from penstock.cli.message_parts import HeaderTemplates, Template, check_queue, check_subjects
from penstock.cli.running import staying
from penstock.cli.tables import plain
from penstock.cli.values import refuse_both
from penstock.durations import parse_duration
from penstock.errors import PenstockError, ProgramError
from penstock.wire.jetstream import names

if TYPE_CHECKING:
    from penstock.cli.programs import Program
    from penstock.connection import Msg

__all__ = ["reply"]

COUNTER = "NATS-Reply-Counter"


async def reply(
    ctx: typer.Context,
    subject: Annotated[str, argument("Subject to answer on.")],
    body: Annotated[str | None, argument("Answer, with templates; {{Request}} is the request's body.")] = None,
    header: Headers = None,
    echo: Annotated[bool, flag("Answer with the request's body; the default without a body and --command.")] = False,
    command: Annotated[
        str | None,
        flag("Answer with what a program prints; its words may hold {{0}}, {{1}} of the subject, {{Request}}."),
    ] = None,
    queue: Annotated[str, flag("Queue group to share requests with.", "-q", "--queue")] = "NATS-RPLY-22",
    count: StopAfter = 0,
    sleep: Annotated[str, flag("Wait before each answer, up to this long.", "DURATION")] = "0s",
) -> None:
    """Answer requests, until Ctrl-C."""
    check_subjects(subject)
    check_queue(queue)
    refuse_both("A body", body is not None, "--echo", echo)
    refuse_both("A body", body is not None, "--command", command is not None)
    refuse_both("--echo", echo, "--command", command is not None)
    pause, headers = parse_duration(sleep, option="--sleep"), HeaderTemplates(header)
    program = None
    if command is not None:
        from penstock.cli.programs import Program

        program = Program(command, "--command", seconds=ctx.obj.seconds)
    answers = _Answers(headers, None if body is None else Template(os.fsencode(body)), program)
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    answered = 0
    async with staying(ctx) as here:

        async def received(message: Msg) -> None:
            nonlocal answered
            if not message.reply or ended.done():
                return
            answered += 1
            typer.echo(plain(f"[#{answered}] Received on {message.subject}: {len(message.data)} bytes"))
            if pause:
                await asyncio.sleep(random.uniform(0, pause))  # noqa: S311  # spreads answers only
            number = answered
            try:
                data, further = await answers.to(message, number)
                await here.client.publish(message.reply, data, headers=further)
            except PenstockError as error:  # of this request, or its answer; the next one may be better
                typer.echo(plain(f"penstock: Request {number} failed: {error}"), err=True)
                with suppress(PenstockError):
                    output = error.output if isinstance(error, ProgramError) else b""
                    await here.client.publish(message.reply, output, headers=_failure(error))
            if number == count:
                with suppress(PenstockError):  # a connection that is lost for good ends the command by itself
                    await here.client.flush()
                ended.set_result(None)

        await here.confirm(await here.client.subscribe(subject, queue=queue, cb=received))
        typer.echo(f"Listening on {subject} in group {queue}", err=True)
        await here.until(ended)


@dataclass(frozen=True)
class _Answers:
    headers: HeaderTemplates
    text: Template | None
    program: Program | None

    async def to(self, message: Msg, number: int) -> tuple[bytes, dict[str, list[str]]]:
        """Give body and headers that answer a request."""
        headers = self.headers.fill(number)
        if self.program is not None:
            return await self._run(self.program, message, number), headers
        if self.text is not None:
            return self.text.fill(number, Request=message.data), headers
        if message.header_block is not None:
            from penstock.wire.protocol import decode_headers

            for name, values in decode_headers(message.header_block)[2].items():
                headers.setdefault(name, []).extend(values)
        return message.data, {**headers, COUNTER: [str(number)]}

    async def _run(self, program: Program, message: Msg, number: int) -> bytes:
        subject = os.fsencode(message.subject)
        tokens = {str(place): token for place, token in enumerate(subject.split(b"."))}
        variables = {"NATS_REQUEST_SUBJECT": subject, "NATS_REQUEST_BODY": message.data}
        about = {"Request": message.data, "Subject": subject, **tokens}
        return await program.run(message.data, number, variables=variables, **about)


def _failure(error: PenstockError) -> dict[str, str]:
    """Tell whoever asked that there is no answer, in the headers that services of NATS have for it."""
    return {names.SERVICE_ERROR: ascii(error.what)[1:-1], names.SERVICE_ERROR_CODE: "500"}
