"""Acts on messages: publish one, and put dead letters back."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.console.act_streams import stream_page
from penstock.console.acts import ActRequest, ActSight, Done, Intent, act, see_nothing, see_stream
from penstock.console.backend import iso
from penstock.console.forms import Field
from penstock.console.shell import command
from penstock.errors import InputError, NotFoundError, PenstockError
from penstock.jetstream import assets
from penstock.jetstream.deadletter import DeadLetters
from penstock.jetstream.letter import DeadLetter
from penstock.wire.jetstream import names
from penstock.wire.subjects import covers, subject_fault

__all__ = ["MESSAGE_ACTS"]

_MANY = 100  # letters that are put back at once


# -- publishing --------------------------------------------------------------------------------------------------------


async def _see_stream(asked: ActRequest) -> ActSight:
    return await see_stream(asked) if "stream" in asked.targets else await see_nothing(asked)


def _headers(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.split("\n"):
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        fine = name.isascii() and name.isprintable() and " " not in name and value.isprintable()
        if not (name and colon and fine):
            raise InputError(f"The header {line[:80]!r} cannot be sent.", remedy="Write one a line, as Key: Value.")
        found.setdefault(name, []).append(value.strip())
    return found


@act(
    "publish",
    "Publish a message",
    of="stream streams",
    targets=("stream",),
    optional=("stream",),
    fields=(
        Field("subject", "Subject", needed=True),
        Field("headers", "Headers", "text", hint="one a line, as Key: Value", private=True),
        Field("payload", "Payload", "text", private=True),
    ),
    look=_see_stream,
)
async def publish(asked: ActRequest, seen: ActSight) -> Intent:
    """Publish a message, and see a stream store it."""
    subject, payload = asked.values["subject"], asked.values["payload"].encode()
    if fault := subject_fault(subject, literal=True):
        raise InputError(f"The subject {subject[:80]!r} {fault}.", remedy="Write words joined by dots.")
    if subject.startswith(("$", "_INBOX.")):
        what = f"The subject {subject[:80]!r} belongs to the server, or to a room of its own."
        raise InputError(what, remedy="What is there is changed by the other acts.")
    headers = _headers(asked.values["headers"])
    most = asked.client.max_payload
    if len(payload) > most:
        raise InputError(
            f"The payload has {len(payload):,} bytes, and the server takes {most:,}.", remedy="Use chunks."
        )
    stream = asked.targets.get("stream")
    if stream is None:
        try:
            stream = await asked.client.jetstream().find_stream_name_by_subject(subject)
        except NotFoundError:
            what = f"No stream captures {subject}: nobody would know whether the message came."
            raise InputError(what, remedy="Add the subject to a stream, or use `penstock pub`.") from None
    elif not any(covers(captured, subject) for captured in seen.info.config.subjects):
        what = f"Stream {stream} does not capture {subject}."
        raise InputError(what, remedy=f"Its subjects are {', '.join(seen.info.config.subjects) or 'none'}.")
    meant = stream

    async def do() -> Done:
        ack = await asked.client.jetstream().publish(subject, payload, headers=headers or None)
        if ack.stream != meant:
            raise PenstockError(
                f"Stream {ack.stream} stored the message as {ack.sequence}, and {meant} was meant.",
                remedy="The subjects of streams were changed a moment ago: look at both.",
            )
        page = f"{stream_page(ack.stream)}/messages/{ack.sequence}"
        answer = {"stream": ack.stream, "sequence": ack.sequence, "duplicate": ack.duplicate}
        if ack.duplicate:
            says = f"Nothing was stored: stream {ack.stream} has this {names.MSG_ID} already, as {ack.sequence}."
            return Done(says, answer, page, whole=False)
        return Done(f"Stream {ack.stream} stored the message as {ack.sequence}.", answer, page)

    flags = [
        "-J",
        "--no-templates",
        *(f"--header={name}:{value}" for name, values in headers.items() for value in values),
    ]
    says = f"Publishes {len(payload):,} bytes on {subject}, for stream {meant}."
    return Intent(says, [command("pub", subject, asked.values["payload"], flags=flags)], do)


# -- dead letters ------------------------------------------------------------------------------------------------------


def _letters(asked: ActRequest) -> DeadLetters:
    return DeadLetters(asked.client, asked.targets["stream"], asked.targets.get("dead"))


async def _see_letters(asked: ActRequest) -> ActSight:
    """See the letters that were ticked: they are the same as long as their stream is."""
    letters = _letters(asked)
    stream = await assets.stream_info(asked.client, letters.stream)
    dead = await assets.stream_info(asked.client, letters.dead)
    return ActSight(f"{iso(stream.created)} {iso(dead.created)}")


def _numbers(many: Sequence[str]) -> list[int]:
    wrong = [item for item in many if not (item.isascii() and item.isdigit() and 0 < len(item) < 20)]
    if wrong:
        raise InputError(f"{wrong[0][:40]!r} is not a number of a dead letter.", remedy="Tick those that are listed.")
    return sorted({int(item) for item in many})


@act(
    "letters-back",
    "Put back",
    of="letters",
    targets=("stream", "dead"),
    optional=("dead",),
    look=_see_letters,
    many="number",
)
async def back(asked: ActRequest, seen: ActSight) -> Intent:
    """Put dead letters back into their stream, on their old subject, each once."""
    return await _back(asked, again=False)


@act(
    "letters-again",
    "Put back again",
    of="letters",
    targets=("stream", "dead"),
    optional=("dead",),
    typed="stream",
    look=_see_letters,
    many="number",
)
async def back_again(asked: ActRequest, seen: ActSight) -> Intent:
    """Put dead letters back of which nobody can tell whether they are back: readers may get them twice."""
    return await _back(asked, again=True)


async def _back(asked: ActRequest, *, again: bool) -> Intent:
    numbers = _numbers(asked.many)
    if not 0 < len(numbers) <= _MANY:
        what = "No dead letter was chosen." if not numbers else f"{len(numbers):,} dead letters were chosen."
        raise InputError(what, remedy=f"Tick 1 to {_MANY}; `penstock consumer redeliver` puts back any number.")
    letters = _letters(asked)
    found, gone = list[DeadLetter](), list[int]()
    for number in numbers:
        try:
            found.append(await letters.letter(number))
        except NotFoundError:
            gone.append(number)
    if not found:
        what = "None of these dead letters is there any more."
        raise NotFoundError(what, remedy="They were put back or removed before.", code=404)

    async def do() -> Done:
        told, wrong = list[dict[str, object]](), 0
        for letter in found:
            about: dict[str, object] = {"letter": letter.number, "sequence": letter.sequence, "subject": letter.subject}
            try:
                about["new_sequence"] = await letters.redeliver(letter, again=again)
            except NotFoundError as error:  # somebody else was faster
                about["not"], wrong = error.what, wrong + 1
            except PenstockError as error:
                about["failed"], wrong = asked.backend.mask.text(str(error)), wrong + 1
            told.append(about)
        says = f"{len(found) - wrong:,} of {len(found):,} dead letters are back in stream {letters.stream}."
        page = f"{stream_page(letters.stream)}/messages"
        return Done(says, told, page, whole=not wrong)

    commands = []
    for consumer in sorted({letter.consumer for letter in found}):
        flags = [f"--seq={letter.sequence}" for letter in found if letter.consumer == consumer]
        flags += [f"--dead={letters.dead}"] if "dead" in asked.targets else []
        flags += ["--again"] if again else []
        commands.append(command("consumer redeliver", letters.stream, consumer, flags=[*flags, "-f"]))
    listed = [f"{letter.subject}, sequence {letter.sequence}: {letter.reason}" for letter in found]
    listed += [f"Dead letter {number} is not there any more." for number in gone]
    return Intent(f"Puts {len(found):,} dead letters back into stream {letters.stream}.", commands, do, listed)


MESSAGE_ACTS = (publish, back, back_again)
