"""Acts on streams: add, edit, purge, delete, and delete a message."""

from __future__ import annotations

import functools
from urllib.parse import quote

from penstock.console.act_config import Config, begins, changed, flags_of, seconds, size, subjects, whole
from penstock.console.acts import ActRequest, ActSight, Done, Intent, act, digest, see_stream
from penstock.console.forms import Field
from penstock.console.shell import command
from penstock.errors import InputError, JetStreamError, NotFoundError
from penstock.info import StreamInfo
from penstock.jetstream import assets
from penstock.jetstream.changes import Plan, own_metadata, stream_step
from penstock.jetstream.rules import check_stream
from penstock.model import Stream
from penstock.wire.subjects import subject_fault

__all__ = ["STREAM_ACTS", "stream_page"]

_TAKEN = 10058


def _replicas(text: str, label: str) -> int:
    if text not in ("1", "2", "3", "4", "5"):
        raise InputError(f"{label} is {text[:40]!r}.", remedy="Give 1 to 5; odd numbers make sense.")
    return int(text)


_LIMITS = (
    whole("max_msgs", "Most messages"),
    size("max_bytes", "Most bytes"),
    seconds("max_age", "Oldest message"),
    whole("max_msgs_per_subject", "Most messages of a subject"),
    size("max_msg_size", "Largest message"),
    Config("discard", "At a limit", "choice", "old", ("old", "new"), "drop the oldest, or refuse the new"),
    Config("replicas", "Replicas", default="1", to="num_replicas", read=_replicas),
)
_SUBJECTS = subjects("subjects", "Subjects", "such as orders.>; apart by commas", needed=True)
_ABOUT = Config("description", "Description", hint="a sentence for people", read=lambda text, label: text or None)
_NEW = (
    _SUBJECTS,
    _ABOUT,
    Config("storage", "Storage", "choice", "file", ("file", "memory")),
    Config(
        "retention",
        "Kept",
        "choice",
        "limits",
        ("limits", "interest", "workqueue"),
        "up to the limits, until all consumers have acked, or until one has",
    ),
    *_LIMITS,
)
_EDIT = (_SUBJECTS, _ABOUT, *_LIMITS)


def stream_page(name: str) -> str:
    """Give the page of a stream."""
    return f"/streams/{quote(name, safe='')}"


def _state(info: StreamInfo) -> dict[str, object]:
    return {"name": info.name, "messages": info.messages, "bytes": info.bytes, "last_sequence": info.last_sequence}


@act("stream-add", "Add a stream", of="streams", fields=(Field("name", "Name", needed=True), *_NEW))
async def add(asked: ActRequest, seen: ActSight) -> Intent:
    """Make a new stream."""
    name = assets.checked(asked.values["name"], "stream")
    begin = {item.name: item.default for item in _NEW}
    given = changed(_NEW, asked.values, begin)
    wanted = Stream(name=name, **{item.field: item.read(asked.values[item.name], item.label) for item in given})
    check_stream(wanted)

    async def do() -> Done:
        try:
            info = await assets.add_stream(asked.client, wanted)
        except JetStreamError as error:
            if error.err_code != _TAKEN:
                raise
            what = f"There is a stream {name} already, with another configuration."
            raise InputError(what, remedy="Take another name, or edit that one.") from None
        if (differs := stream_step(wanted, info)).action != "none":
            fields = ", ".join(change.field for change in differs.changes)
            raise JetStreamError(f"Stream {name} was made, and is not as it was asked for: {fields}.")
        return Done(f"Stream {name} is there.", info.raw, stream_page(name))

    flags = [*flags_of(given, asked.values), "--defaults"]
    return Intent(f"Makes a stream {name}.", [command("stream add", name, flags=flags)], do, _listed(wanted))


def _listed(wanted: Stream) -> list[str]:
    return [f"{key}: {value}" for key, value in wanted.to_json().items() if key != "name"]


async def _see_config(asked: ActRequest) -> ActSight:
    seen = await see_stream(asked)
    info: StreamInfo = seen.info
    # What was shown must be what is changed: a field that somebody else changed meanwhile would be set back.
    return ActSight(f"{seen.made} {digest(info.raw['config'])}", info, begins(_EDIT, info.config))


@act("stream-edit", "Edit", of="stream", targets=("stream",), fields=_EDIT, typed="stream", look=_see_config)
async def edit(asked: ActRequest, seen: ActSight) -> Intent:
    """Change the configuration of a stream."""
    info: StreamInfo = seen.info
    given = changed(_EDIT, asked.values, seen.values)
    if not given:
        raise InputError(f"Nothing of stream {info.name} was changed.", remedy="Change a field of the form.")
    wanted = info.config.changed(**{item.field: item.read(asked.values[item.name], item.label) for item in given})
    wanted = wanted.model_copy(update={"metadata": own_metadata(wanted.metadata)})
    check_stream(wanted)
    step = stream_step(wanted, info)
    Plan((step,)).check(may_lose_data=True)
    if not isinstance(step.target, Stream) or step.action == "none":
        raise InputError(f"Stream {info.name} is like that already.", remedy="Change a field of the form.")
    target = step.target

    async def do() -> Done:
        changed_to = await assets.edit_stream(asked.client, target)
        if left := stream_step(wanted, changed_to).changes:
            fields = ", ".join(change.field for change in left)
            raise JetStreamError(f"The server took the change of stream {info.name}, but for {fields}.")
        return Done(f"Stream {info.name} was changed.", changed_to.raw["config"], stream_page(info.name))

    words = command("stream edit", info.name, flags=[*flags_of(given, asked.values), "-f"])
    return Intent(f"Changes stream {info.name}.", [words], do, [str(change) for change in step.changes])


@act(
    "stream-purge",
    "Purge",
    of="stream",
    targets=("stream",),
    fields=(
        Field("subject", "Only this subject", hint="all if empty; wildcards may be used"),
        Field("sequence", "Only below this sequence"),
        Field("keep", "Keep so many of the last"),
    ),
    typed="stream",
    look=see_stream,
)
async def purge(asked: ActRequest, seen: ActSight) -> Intent:
    """Remove messages of a stream for good; the stream stays."""
    info: StreamInfo = seen.info
    subject = asked.values["subject"] or None
    sequence, keep = asked.number("sequence", "The sequence", least=1), asked.number("keep", "The number to keep")
    if subject is not None and (fault := subject_fault(subject)):
        raise InputError(f"The subject {subject[:80]!r} {fault}.", remedy="Write one such as orders.eu.>.")
    if sequence is not None and keep is not None:
        raise InputError("A sequence and a number to keep are given.", remedy="Leave one of them out.")

    async def do() -> Done:
        purged = await assets.purge_stream(asked.client, info.name, subject=subject, sequence=sequence, keep=keep)
        left = await assets.stream_info(asked.client, info.name)
        says = f"{purged:,} messages of stream {info.name} were removed; it holds {left.messages:,} now."
        return Done(says, {"purged": purged, **_state(left)}, stream_page(info.name))

    flags = [
        f"--{name}={value}"
        for name, value in (("subject", subject), ("seq", sequence), ("keep", keep))
        if value is not None
    ]
    part = f" on {subject}" if subject else ""
    part += f" below sequence {sequence:,}" if sequence is not None else ""
    part += f" but the last {keep:,}" if keep is not None else ""
    says = f"Removes messages{part} of stream {info.name} for good. It holds {info.messages:,} now."
    return Intent(says, [command("stream purge", info.name, flags=[*flags, "-f"])], do)


@act("stream-delete", "Delete", of="stream", targets=("stream",), typed="stream", look=see_stream)
async def delete(asked: ActRequest, seen: ActSight) -> Intent:
    """Delete a stream with all its messages and consumers."""
    info: StreamInfo = seen.info

    async def do() -> Done:
        await assets.delete_stream(asked.client, info.name)
        try:
            there = await assets.stream_info(asked.client, info.name)
        except NotFoundError:
            return Done(f"Stream {info.name} was deleted.", {"success": True}, "/streams")
        if there.created != info.created:
            return Done(
                f"Stream {info.name} was deleted. Somebody made a new one of that name since.", None, "/streams"
            )
        raise JetStreamError(f"The server said that stream {info.name} was deleted, and it is still there.")

    says = f"Deletes stream {info.name} with {info.messages:,} messages and {info.consumers:,} consumers."
    return Intent(says, [command("stream rm", info.name, flags=["-f"])], do)


async def _see_message(asked: ActRequest) -> ActSight:
    seen = await see_stream(asked)
    number = ActRequest(asked.backend, asked.client, asked.targets, {"sequence": asked.targets["sequence"]})
    sequence = number.number("sequence", "The sequence", least=1)
    try:
        found = await assets.get_message(asked.client, seen.info.name, sequence)
    except NotFoundError:
        what = f"Stream {seen.info.name} holds no message {sequence}."
        raise NotFoundError(what, remedy="It was removed already.", code=404) from None
    return ActSight(f"{seen.made} {found.time}", found)


@act("message-delete", "Delete", of="message", targets=("stream", "sequence"), typed="sequence", look=_see_message)
async def delete_message(asked: ActRequest, seen: ActSight) -> Intent:
    """Remove one message of a stream, and overwrite its bytes."""
    stream, sequence = asked.targets["stream"], int(asked.targets["sequence"])
    remove = functools.partial(assets.delete_message, asked.client, stream, sequence)

    async def do() -> Done:
        await remove()
        page = f"{stream_page(stream)}/messages"
        return Done(f"Message {sequence} of stream {stream} was removed.", {"success": True}, page)

    size_of = f"{len(seen.info.data):,} bytes on {seen.info.subject}"
    says = f"Removes message {sequence} ({size_of}) from stream {stream} for good."
    return Intent(says, [command("stream rmm", stream, str(sequence), flags=["-f"])], do)


STREAM_ACTS = (add, edit, purge, delete, delete_message)
