"""Acts on consumers: add, edit, pause, resume, reset, delete, and take the next message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from penstock.console.act_config import Config, begins, changed, flags_of, seconds, subjects, whole
from penstock.console.act_streams import stream_page
from penstock.console.acts import ActRequest, ActSight, Done, Intent, act, digest, see_consumer, see_stream
from penstock.console.backend import iso
from penstock.console.forms import Field
from penstock.console.payload import render
from penstock.console.shell import command
from penstock.durations import parse_duration
from penstock.errors import InputError, JetStreamError, NotFoundError
from penstock.info import ConsumerInfo, StreamInfo
from penstock.jetstream import assets
from penstock.jetstream.changes import Plan, consumer_step, own_metadata
from penstock.jetstream.rules import check_consumer, check_consumers_together, filters
from penstock.model import Consumer

__all__ = ["CONSUMER_ACTS", "consumer_page"]

_TAKEN = 10148
_NEXT = 2.0  # seconds that are waited for a message
_SHOWN = 64 * 1024  # bytes of a message that are shown


def _share(text: str, label: str) -> str | None:
    if text and not (text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= 100):
        raise InputError(f"{label} is {text[:40]!r}.", remedy="Give a percentage, 0 to 100.")
    return text if text not in ("", "0") else None


_ABOUT = Config("description", "Description", hint="a sentence for people", read=lambda text, label: text or None)
_FILTER = subjects("filter", "Only these subjects", "all if empty; apart by commas")
_EDIT = (
    _ABOUT,
    _FILTER,
    seconds("wait", "Ack wait", "how long a delivery waits for its ack; 30s if empty", to="ack_wait"),
    whole("max_deliver", "Most deliveries of a message", "for ever"),
    whole("max_pending", "Most deliveries without ack", "1,000", to="max_ack_pending"),
    Config("sample", "Share of acks to sample", hint="percent; none if empty", to="sample_freq", read=_share),
)
_NEW = (
    *_EDIT,
    Config("deliver", "Begin with", "choice", "all", ("all", "new", "last"), to="deliver_policy"),
    Config("ack", "Acks", "choice", "explicit", ("explicit", "all", "none"), to="ack_policy"),
)


def _fields(given: Sequence[Config], values: Mapping[str, str]) -> dict[str, Any]:
    """Give fields of the model; one filter and several are different ones."""
    found = {item.field: item.read(values[item.name], item.label) for item in given}
    if "filter" in found:
        listed = found.pop("filter")
        found["filter_subject"] = listed[0] if len(listed) == 1 else None
        found["filter_subjects"] = listed if len(listed) > 1 else []
    if found.get("ack_wait") == 0.0:
        found["ack_wait"] = None
    if found.get("max_ack_pending") == -1 and not values["max_pending"]:
        found["max_ack_pending"] = None
    return found


def consumer_page(stream: str, name: str) -> str:
    """Give the page of a consumer."""
    return f"{stream_page(stream)}/consumers/{quote(name, safe='')}"


@act(
    "consumer-add",
    "Add a consumer",
    of="stream",
    targets=("stream",),
    fields=(Field("name", "Name", needed=True), *_NEW),
    look=see_stream,
)
async def add(asked: ActRequest, seen: ActSight) -> Intent:
    """Make a new pull consumer of a stream."""
    stream: StreamInfo = seen.info
    name = assets.checked(asked.values["name"], "consumer")
    given = changed(_NEW, asked.values, {item.name: item.default for item in _NEW})
    wanted = Consumer(durable=name, **_fields(given, asked.values))
    check_consumer(wanted, stream.config)
    others = {one.name: one.config for one in await assets.consumers(asked.client, stream.name) if not one.is_sourcing}
    check_consumers_together(stream.config, {**others, name: wanted})

    async def do() -> Done:
        try:
            info = await assets.add_consumer(asked.client, stream.name, wanted)
        except JetStreamError as error:
            if error.err_code != _TAKEN:
                raise
            what = f"Stream {stream.name} has another consumer {name} already."
            raise InputError(what, remedy="Take another name, or edit that one.") from None
        _check_same(stream.name, name, wanted, info, "was made")
        return Done(f"Consumer {name} of stream {stream.name} is there.", info.raw, consumer_page(stream.name, name))

    flags = [*flags_of(given, asked.values), "--pull", "--defaults"]
    says = f"Makes a consumer {name} of stream {stream.name}."
    return Intent(says, [command("consumer add", stream.name, name, flags=flags)], do)


def _check_same(stream: str, name: str, wanted: Consumer, info: ConsumerInfo, said: str) -> None:
    left = consumer_step(stream, name, wanted, info).changes
    if left:
        fields = ", ".join(change.field for change in left)
        raise JetStreamError(f"Consumer {name} of stream {stream} {said}, but not as it was asked for: {fields}.")


async def _see_config(asked: ActRequest) -> ActSight:
    seen = await see_consumer(asked)
    info: ConsumerInfo = seen.info
    fields = [item for item in _EDIT if item is not _FILTER]
    begin = {**begins(fields, info.config), _FILTER.name: _FILTER.write(filters(info.config))}
    return ActSight(f"{seen.made} {digest(info.raw['config'])}", info, begin)


@act(
    "consumer-edit",
    "Edit",
    of="consumer",
    targets=("stream", "consumer"),
    fields=_EDIT,
    typed="consumer",
    look=_see_config,
)
async def edit(asked: ActRequest, seen: ActSight) -> Intent:
    """Change the configuration of a consumer."""
    info: ConsumerInfo = seen.info
    given = changed(_EDIT, asked.values, seen.values)
    if not given:
        raise InputError(f"Nothing of consumer {info.name} was changed.", remedy="Change a field of the form.")
    wanted = info.config.changed(**_fields(given, asked.values))
    wanted = wanted.model_copy(update={"metadata": own_metadata(wanted.metadata)})
    check_consumer(wanted, (await assets.stream_info(asked.client, info.stream)).config)
    step = consumer_step(info.stream, info.name, wanted, info)
    Plan((step,)).check(may_lose_data=True)
    if not isinstance(step.target, Consumer) or step.action == "none":
        raise InputError(f"Consumer {info.name} is like that already.", remedy="Change a field of the form.")
    target = step.target

    async def do() -> Done:
        edited = await assets.edit_consumer(asked.client, info.stream, target)
        _check_same(info.stream, info.name, wanted, edited, "was changed")
        return Done(f"Consumer {info.name} was changed.", edited.raw["config"], consumer_page(info.stream, info.name))

    words = command("consumer edit", info.stream, info.name, flags=[*flags_of(given, asked.values), "-f"])
    says = f"Changes consumer {info.name} of stream {info.stream}."
    return Intent(says, [words], do, [str(change) for change in step.changes])


@act(
    "consumer-pause",
    "Pause",
    of="consumer",
    targets=("stream", "consumer"),
    fields=(Field("time", "For how long", default="1h", hint="such as 10m or 2h", needed=True),),
    look=see_consumer,
)
async def pause(asked: ActRequest, seen: ActSight) -> Intent:
    """Let a consumer deliver nothing for a while."""
    info: ConsumerInfo = seen.info
    span = parse_duration(asked.values["time"], option="The time")
    if not 0 < span < 10 * 365 * 86_400:
        raise InputError(f"The time is {asked.values['time']}.", remedy="Give some time, such as 1h.")

    async def do() -> Done:
        until = datetime.now(UTC) + timedelta(seconds=span)
        answer = await assets.pause_consumer(asked.client, info.stream, info.name, until)
        if answer.get("paused") is not True:
            raise JetStreamError(f"The server did not pause consumer {info.name}.", remedy="Try again.")
        return Done(
            f"Consumer {info.name} is paused until {iso(until)}.", answer, consumer_page(info.stream, info.name)
        )

    words = command("consumer pause", info.stream, info.name, asked.values["time"], flags=["-f"])
    says = f"Lets consumer {info.name} of stream {info.stream} deliver nothing for {asked.values['time']}."
    return Intent(says, [words], do)


@act("consumer-resume", "Resume", of="consumer-paused", targets=("stream", "consumer"), look=see_consumer)
async def resume(asked: ActRequest, seen: ActSight) -> Intent:
    """Let a paused consumer go on."""
    info: ConsumerInfo = seen.info
    if not info.paused:
        raise InputError(
            f"Consumer {info.name} of stream {info.stream} is not paused.", remedy="Nothing is to be done."
        )

    async def do() -> Done:
        answer = await assets.pause_consumer(asked.client, info.stream, info.name, None)
        if answer.get("paused") is not False and answer.get("paused") is not None:
            raise JetStreamError(f"Consumer {info.name} is still paused.", remedy="Try again.")
        return Done(f"Consumer {info.name} goes on.", answer, consumer_page(info.stream, info.name))

    says = f"Lets consumer {info.name} of stream {info.stream} go on."
    return Intent(says, [command("consumer resume", info.stream, info.name, flags=["-f"])], do)


@act(
    "consumer-reset",
    "Reset",
    of="consumer",
    targets=("stream", "consumer"),
    fields=(Field("sequence", "Begin again at this sequence", hint="behind the last ack if empty"),),
    typed="consumer",
    look=see_consumer,
)
async def reset(asked: ActRequest, seen: ActSight) -> Intent:
    """Set a consumer back: what follows is delivered as if for the first time. Needs nats-server 2.14 or newer."""
    info: ConsumerInfo = seen.info
    sequence = asked.number("sequence", "The sequence", least=1)
    start = sequence or info.ack_floor.stream + 1

    async def do() -> Done:
        after = await assets.reset_consumer(asked.client, info.stream, info.name, sequence)
        at = after.raw.get("reset_seq")
        if sequence is not None and at != sequence:
            raise JetStreamError(f"Consumer {info.name} was set back to {at}, and {sequence} was asked for.")
        says = f"Consumer {info.name} begins again at sequence {at or start:,}; {after.pending:,} messages wait for it."
        return Done(says, after.raw, consumer_page(info.stream, info.name))

    flags = [*([] if sequence is None else [f"--sequence={sequence}"]), "-f"]
    says = (
        f"Sets consumer {info.name} of stream {info.stream} back to sequence {start:,}: it delivers again what follows."
    )
    return Intent(says, [command("consumer reset", info.stream, info.name, flags=flags)], do)


@act("consumer-delete", "Delete", of="consumer", targets=("stream", "consumer"), typed="consumer", look=see_consumer)
async def delete(asked: ActRequest, seen: ActSight) -> Intent:
    """Delete a consumer, and what it knows of deliveries and acks."""
    info: ConsumerInfo = seen.info

    async def do() -> Done:
        await assets.delete_consumer(asked.client, info.stream, info.name)
        try:
            there = await assets.consumer_info(asked.client, info.stream, info.name)
        except NotFoundError:
            return Done(f"Consumer {info.name} was deleted.", {"success": True}, stream_page(info.stream))
        if there.created != info.created:
            says = f"Consumer {info.name} was deleted. Somebody made a new one of that name since."
            return Done(says, None, stream_page(info.stream))
        raise JetStreamError(f"The server said that consumer {info.name} was deleted, and it is still there.")

    says = f"Deletes consumer {info.name} of stream {info.stream}. {info.pending:,} messages were never delivered by it"
    says += f", and {info.ack_pending:,} wait for their ack."
    return Intent(says, [command("consumer rm", info.stream, info.name, flags=["-f"])], do)


_ANSWERS = {
    "leave it": "--no-ack",
    "acknowledge it": "--ack",
    "give it back": "--nak",
    "refuse it for good": "--term",
}


@act(
    "consumer-next",
    "Next message",
    of="consumer",
    targets=("stream", "consumer"),
    fields=(
        Field(
            "answer",
            "And then",
            "choice",
            "leave it",
            tuple(_ANSWERS),
            "left alone, it is delivered again after the ack wait",
        ),
    ),
    look=see_consumer,
)
async def take(asked: ActRequest, seen: ActSight) -> Intent:
    """Take the next message of a pull consumer: it counts as delivered."""
    info: ConsumerInfo = seen.info
    answer = asked.values["answer"]
    if info.config.deliver_subject:
        what = f"Consumer {info.name} is a push consumer."
        raise InputError(what, remedy=f"Its messages go to {info.config.deliver_subject}.")
    if info.is_sourcing or info.config.ack_policy == "flow_control":
        what = f"Consumer {info.name} feeds another stream, which would miss what is taken here."
        raise InputError(what, remedy="Make a consumer of your own.")
    if info.config.priority_groups:
        what = f"Consumer {info.name} has priority groups."
        raise InputError(what, remedy=f"Use `penstock consumer next {info.stream} {info.name} --group GROUP`.")

    async def do() -> Done:
        from penstock.jetstream.consume import Deliveries

        how: dict[str, Any] = {"expires": _NEXT, "heartbeat": _NEXT / 2, "patience": _NEXT, "wait": _NEXT}
        async with Deliveries(
            asked.client, info.stream, info.name, batch=1, limit=1, keep_alive=False, **how
        ) as coming:
            async for delivery in coming:
                if answer == "acknowledge it" and info.config.ack_policy != "none":
                    await delivery.ack_sync(timeout=asked.backend.settings.timeout)
                elif answer == "give it back":
                    await delivery.nak(sync=True, timeout=asked.backend.settings.timeout)
                elif answer == "refuse it for good":
                    await delivery.term("refused in the console", sync=True, timeout=asked.backend.settings.timeout)
                mask, place = asked.backend.mask, delivery.place
                shown = render(mask.data(delivery.data), _SHOWN, None)
                told = {
                    "subject": mask.plain(delivery.subject),
                    "sequence": place.sequence,
                    "delivered": place.delivered,
                    "pending": place.pending,
                    "headers": mask.headers({name: [value] for name, value in delivery.headers.items()}),
                    "size": len(delivery.data),
                    shown.form: shown.text,
                }
                said = {"leave it": "was left", "acknowledge it": "was acknowledged", "give it back": "was given back"}
                says = f"Message {place.sequence} came, and {said.get(answer, 'was refused for good')}."
                return Done(says, told, consumer_page(info.stream, info.name))
        says = f"No message came in {_NEXT:g} s. The page of the consumer tells what waits, and whether it is paused."
        return Done(says, None, consumer_page(info.stream, info.name), whole=False)

    words = command("consumer next", info.stream, info.name, flags=[_ANSWERS[answer]])
    says = f"Takes the next message of consumer {info.name} of stream {info.stream}, and will {answer}."
    return Intent(says, [words], do)


CONSUMER_ACTS = (add, edit, pause, resume, reset, take, delete)
