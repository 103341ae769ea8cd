"""`penstock sub`: messages as they come, from subjects or from a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.arrivals import Arrival, Display, Dumped, Printed, Raw, Stored, SubjectReport, Translation
from penstock.cli.flags import Raw as RawFlag
from penstock.cli.flags import StopAfter, Wait, argument, flag, flag_table, table_flag
from penstock.cli.message_parts import check_queue, check_subjects
from penstock.cli.running import Staying, staying
from penstock.cli.values import refuse_both, shifted, words
from penstock.durations import parse_duration
from penstock.errors import DeniedError, InputError, PenstockError, RemoteProtocolError

if TYPE_CHECKING:
    from penstock.cli.sub_stream import Start
    from penstock.connection import Msg

__all__ = ["sub"]

MOST_UNANSWERED = 10_000  # requests that wait for the reply that --match-replies shows with them


@flag_table
class Looks:
    """How messages are shown."""

    timestamp: bool = table_flag("Show when each came, or was stored.", "-t", "--timestamp", default=False)
    delta_time: bool = table_flag(
        "Show how long after the start each came, or how old it is.", "-d", "--delta-time", default=False
    )
    headers_only: bool = table_flag("Show no payloads.", default=False)
    subjects_only: bool = table_flag("Show subjects alone.", default=False)
    translate: str | None = table_flag("Give each payload to a program, and show what it prints.", "COMMAND")
    dump: str | None = table_flag("Write each as JSON into a file of a folder; - for a pipe to xargs -0.", "DIR")
    report_subjects: bool = table_flag("Show how many messages each subject has.", default=False)
    report_subscriptions: bool = table_flag("Show how many messages each subscription has.", default=False)
    report_top: int = table_flag("How many subjects a report shows.", "NUMBER", default=10, min=1)

    @property
    def reports(self) -> bool:
        """Whether messages are counted, not shown."""
        return self.report_subjects or self.report_subscriptions

    @property
    def bare(self) -> bool:
        """Whether payloads are not even wanted."""
        return (self.headers_only or self.subjects_only) and self.dump is None and not self.reports

    def shown(self, raw: bool, seconds: float, acknowledged: bool) -> Display:
        """Give the way to show messages, which may be acknowledged then, once what is asked for is checked."""
        refuse_both("--timestamp", self.timestamp, "--delta-time", self.delta_time)
        refuse_both("--headers-only", self.headers_only, "--translate", self.translate is not None)
        refuse_both("--headers-only", self.headers_only, "--raw", raw)
        for other, wanted in (("--raw", raw), ("--dump", self.dump is not None), ("--translate", bool(self.translate))):
            refuse_both("A report", self.reports, other, wanted)
        refuse_both("--raw", raw, "--dump", self.dump is not None)
        if self.reports:
            return SubjectReport(self.report_top, by_subscription=self.report_subscriptions)
        program = None
        if self.translate is not None:
            from penstock.cli.programs import Program

            program = Program(self.translate, "--translate", seconds=seconds)
        translation = Translation(program)
        if self.dump is not None:
            return Dumped(self.dump, translation, lasting=acknowledged)
        if raw:
            return Raw(translation, self.subjects_only)
        times = "when" if self.timestamp else "since" if self.delta_time else ""
        return Printed(translation, times, self.headers_only, self.subjects_only)


@flag_table
class FromStream:
    """What is read from a stream."""

    stream: str | None = table_flag("Read this stream; the one of the subject without.", "STREAM")
    durable: str | None = table_flag("Read through this consumer; make it if it is not there.", "CONSUMER")
    all: bool = table_flag("Begin with the first message of the stream.", default=False)
    new: bool = table_flag("Begin with the next message that is stored.", default=False)
    last: bool = table_flag("Begin with the last message of the stream.", default=False)
    last_per_subject: bool = table_flag("Begin with the last message of each subject.", default=False)
    since: str | None = table_flag("Begin with what was stored this long ago.", "DURATION")
    start_sequence: int | None = table_flag("Begin with this sequence.", "SEQUENCE", min=1)
    terminate_at_end: bool = table_flag("Stop when the stream has no more.", "-T", "--terminate-at-end", default=False)
    direct: bool = table_flag("Read by direct gets, without a consumer.", default=False)

    def start(self) -> Start | None:
        """Say where to begin; None if no stream is asked for."""
        given = {
            "all": self.all,
            "new": self.new,
            "last": self.last,
            "last_per_subject": self.last_per_subject,
            "by_start_time": self.since is not None,
            "by_start_sequence": self.start_sequence is not None,
        }
        policies = [policy for policy, wanted in given.items() if wanted]
        if len(policies) > 1:
            raise InputError(
                "Several places to begin with are given.",
                remedy="Give one of --all, --new, --last, --last-per-subject, --since and --start-sequence.",
            )
        wanted = bool(policies or self.stream or self.durable or self.direct)
        if self.terminate_at_end and not wanted:
            raise InputError("--terminate-at-end is for streams.", remedy="Give --stream, or where to begin.")
        refuse_both("--durable", self.durable is not None, "--direct", self.direct)
        if not wanted:
            return None
        if self.durable is not None and not self.stream:
            raise InputError("--durable is given without its stream.", remedy="Give --stream.")
        from penstock.asset_names import NAME
        from penstock.cli.sub_stream import Start

        for name, what in ((self.stream, "stream"), (self.durable, "consumer")):
            if name is not None and not NAME.fullmatch(name):
                raise InputError(f"{name!r} cannot be the name of a {what}.", remedy="Names have no dots and blanks.")
        since = None if self.since is None else shifted(self.since, "--since", -1)
        return Start(policies[0] if policies else None, self.start_sequence, since)


async def sub(
    ctx: typer.Context,
    subjects: Annotated[list[str] | None, argument("Subjects to listen on.", "SUBJECT")] = None,
    queue: Annotated[str | None, flag("Share the messages with this queue group.")] = None,
    inbox: Annotated[bool, flag("Listen on an inbox that is made up.", "-i", "--inbox")] = False,
    ack: Annotated[bool, flag("Acknowledge messages that a consumer pushes here.")] = False,
    match_replies: Annotated[bool, flag("Show each request with its reply.")] = False,
    ignore_subject: Annotated[
        list[str] | None, flag("Leave these subjects out; may be repeated.", "SUBJECT", "-I", "--ignore-subject")
    ] = None,
    count: StopAfter = 0,
    wait: Wait = None,
    raw: RawFlag = False,
    *,
    looks: Looks,
    of_stream: FromStream,
) -> None:
    """Show messages as they come, until Ctrl-C; from a stream, if one is named or where in one to begin."""
    ignored, start = words(ignore_subject or []), of_stream.start()
    check_subjects(*(subjects or []), *ignored)
    check_queue(queue)
    silence = parse_duration(wait, option="--wait") if wait else None
    _check(subjects or [], start is not None, inbox=inbox, queue=queue, match=match_replies, stream=of_stream)
    refuse_both("An inbox", inbox, "--dump -", looks.dump == "-")
    shown = looks.shown(raw, ctx.obj.seconds, ack or of_stream.durable is not None)
    taking, denials = Taking(shown, count, ignored), list[DeniedError]()

    async def denied(error: Exception) -> None:
        if isinstance(error, DeniedError):  # an ack: what is subscribed to is confirmed
            denials.append(error)

    async with staying(ctx, on_error=denied) as here:
        waits: list[Awaitable[object]] = [taking.end]
        quiet = raw or looks.dump is not None
        if start is not None:
            from penstock.cli.sub_stream import StreamReading

            reading = StreamReading(here.client, of_stream, start, subjects or [], headers_only=looks.bare)
            waits.append(reading.run(taking, quiet=quiet))
        else:
            listening = _Listening(here, taking, ack, match_replies)
            named = subjects or [here.client.new_inbox()]
            await listening.begin(named, queue or "")
            if not quiet or inbox:
                typer.echo(f"Subscribing on {', '.join(named)}", err=True)
        if silence is not None:
            waits.append(taking.quiet(silence))
        with shown.live() if isinstance(shown, SubjectReport) else nullcontext():
            await here.until(*waits)
        if start is None:
            await listening.end()
    shown.end()
    if denials:
        raise denials[0]


def _check(
    subjects: list[str], from_stream: bool, *, inbox: bool, queue: str | None, match: bool, stream: FromStream
) -> None:
    refuse_both("A subject", bool(subjects), "--inbox", inbox)
    refuse_both("A subject", bool(subjects), "--durable", stream.durable is not None)
    if not subjects and not inbox and not stream.stream:
        raise InputError("Missing argument: there is no subject to listen on.", remedy="Give one, --inbox or --stream.")
    for name, wanted in (("--inbox", inbox), ("--queue", queue is not None), ("--match-replies", match)):
        refuse_both(name, wanted, "a stream", from_stream)


@dataclass
class Taking:
    """Shows messages one after the other, and knows when it has enough."""

    shown: Display
    count: int
    """How many are wanted; 0 for any number."""
    ignored: list[str]
    seen: int = 0
    done: int = 0
    """How many of those that were seen are shown."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    end: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done when there are enough, or with what went wrong."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def number(self, arrival: Arrival) -> int | None:
        """Count a message; None if it is not wanted."""
        if self.end.done() or (self.count and self.seen >= self.count):
            return None
        if self.ignored:
            from penstock.wire.subjects import covers

            if any(covers(pattern, arrival.subject) for pattern in self.ignored):
                return None
        self.seen += 1
        self.arrived.set()
        return self.seen

    async def quiet(self, silence: float) -> None:
        """Return once nothing has arrived, and nothing was being shown, for so many seconds."""
        while True:
            try:
                async with asyncio.timeout(silence):
                    await self.arrived.wait()
                self.arrived.clear()
            except TimeoutError:
                if not self._turn.locked():
                    return

    async def take(self, arrival: Arrival) -> bool:
        """Show a message, if it is wanted; tell whether it was shown."""
        number = self.number(arrival)
        return number is not None and await self.show(number, arrival)

    async def show(self, number: int, arrival: Arrival, answer: Arrival | None = None) -> bool:
        """Show a message; what goes wrong ends the command."""
        async with self._turn:
            try:
                await self.shown.show(number, arrival, answer)
            except PenstockError as error:
                if not self.end.done():
                    self.end.set_exception(error)
                return False
            self.done += 1
            if self.count and self.done >= self.count and not self.end.done():
                self.end.set_result(None)
            return True


class _Listening:
    """Subscriptions, and requests that wait for their replies."""

    def __init__(self, here: Staying, taking: Taking, ack: bool, match: bool) -> None:
        self._here, self._taking, self._ack, self._match = here, taking, ack, match
        self._waiting: dict[str, tuple[int, Arrival]] = {}

    async def begin(self, subjects: list[str], queue: str) -> None:
        """Subscribe, and see that the server permits it."""
        client, made = self._here.client, []
        if self._match:  # before the requests: a reply may be quick
            made.append(await client.subscribe(f"{client.options.inbox_prefix}.>", cb=self._answered))
        for subject in subjects:
            made.append(await client.subscribe(subject, queue=queue, cb=self._received(subject)))
        await self._here.confirm(*made)

    def _received(self, subject: str) -> Callable[[Msg], Coroutine[Any, Any, None]]:
        async def received(message: Msg) -> None:
            arrival = _arrival(message, subject)
            if self._match and arrival.reply:
                await self._hold(arrival)
            elif await self._taking.take(arrival) and self._ack and arrival.stored is not None:
                await self._here.client.publish(arrival.reply, b"+ACK")

        return received

    async def _hold(self, request: Arrival) -> None:
        if (number := self._taking.number(request)) is None:
            return
        if len(self._waiting) >= MOST_UNANSWERED:
            oldest = next(iter(self._waiting))
            await self._taking.show(*self._waiting.pop(oldest))
        self._waiting[request.reply] = number, request

    async def _answered(self, message: Msg) -> None:
        if (held := self._waiting.pop(message.subject, None)) is not None:
            self._taking.arrived.set()
            await self._taking.show(*held, Arrival.of(message))

    async def end(self) -> None:
        """Show requests that nobody answered."""
        while self._waiting:
            await self._taking.show(*self._waiting.pop(next(iter(self._waiting))))
        if not self._here.client.is_closed and self._ack:
            await self._here.client.flush()


def _arrival(message: Msg, subscription: str) -> Arrival:
    """Take a message; one that a consumer pushes says where its stream holds it."""
    arrival = Arrival.of(message, subscription)
    if not arrival.reply.startswith("$JS.ACK."):
        return arrival
    from penstock.jetstream.delivery import parse_place

    try:
        place = parse_place(arrival.reply)
    except RemoteProtocolError:  # anybody may name such a reply
        return arrival
    stored = Stored(place.stream, place.sequence, place.time, place.pending)
    return Arrival(arrival.subject, arrival.data, arrival.header_block, arrival.reply, subscription, stored)
