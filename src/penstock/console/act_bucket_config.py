"""Acts on buckets as a whole, of keys and of objects: add, edit, delete, and seal one of objects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote

from penstock.buckets import KeyValue, ObjectStore
from penstock.buckets.key_stream import bucket_stream
from penstock.buckets.key_wire import check_bucket, stream_of_bucket
from penstock.buckets.object_status import object_stream
from penstock.buckets.object_wire import stream_of_objects
from penstock.console.act_config import Config, changed, seconds, size
from penstock.console.acts import ActRequest, ActSight, Done, Intent, act, digest
from penstock.console.backend import iso
from penstock.console.forms import Field
from penstock.console.shell import command
from penstock.errors import InputError, JetStreamError, NotFoundError
from penstock.info import StreamInfo
from penstock.jetstream import assets

__all__ = ["WHOLE_BUCKET_ACTS", "bucket_page"]


def bucket_page(kind: str, bucket: str) -> str:
    """Give the page of a bucket of `keys` or `objects`."""
    return f"/buckets/{kind}/{quote(bucket, safe='')}"


# -- settings ----------------------------------------------------------------------------------------------------------


def _number(least: int, most: int) -> Callable[[str, str], int]:
    def read(text: str, label: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 4 and least <= int(text) <= most):
            raise InputError(f"{label} is {text[:40]!r}.", remedy=f"Give {least} to {most}.")
        return int(text)

    return read


_ABOUT = Config("description", "Description", hint="a sentence for people")
_HISTORY = Config("history", "Values of a key that are kept", default="1", hint="1 to 64", read=_number(1, 64))
_TTL = seconds("ttl", "Kept for", hint="such as 24h; for ever if empty")
_MARKERS = seconds(
    "marker_ttl", "Keys may end by themselves, told for", hint="such as 1h; empty if keys have no time to live"
)
_MOST = size("max_bytes", "Most bytes", flag="--max-bucket-size")
_VALUE = size("max_value_size", "Largest value")
_REPLICAS = Config("replicas", "Replicas", default="1", read=_number(1, 5), hint="1 to 5; odd numbers make sense")
_COMPRESS = Config(
    "compression", "Compress the files", "check", read=lambda text, label: text == "yes", write=lambda value: value
)
_STORAGE = Config("storage", "Storage", "choice", "file", ("file", "memory"))
_KEYS = (_ABOUT, _HISTORY, _TTL, _MARKERS, _MOST, _VALUE, _REPLICAS, _COMPRESS)
_OBJECTS = (_ABOUT, _TTL, _MOST, _REPLICAS, _COMPRESS)
_HELD = {
    **{"description": "description", "history": "max_msgs_per_subject", "ttl": "max_age", "max_bytes": "max_bytes"},
    **{"max_value_size": "max_msg_size", "replicas": "num_replicas", "marker_ttl": "subject_delete_marker_ttl"},
}
"""Where the stream of a bucket keeps each setting."""


def _settings(given: Sequence[Config], asked: ActRequest) -> dict[str, Any]:
    return {item.name: item.read(asked.values[item.name], item.label) for item in given}


def _flags(given: Sequence[Config], asked: ActRequest) -> list[str]:
    """Give the flags of the command that say the same; `=` joins a value that may begin with a dash."""
    found = []
    for item in given:
        value = item.read(asked.values[item.name], item.label)
        if isinstance(value, bool):
            found.append("--compress" if value else "--no-compress")
        else:
            found.append(f"{item.option}={'0' if value == 0 else '-1' if value == -1 else asked.values[item.name]}")
    return found


def _begins(fields: Sequence[Config], info: StreamInfo) -> dict[str, str]:
    begin = {item.name: item.write(getattr(info.config, _HELD[item.name])) for item in fields if item is not _COMPRESS}
    return {**begin, _COMPRESS.name: "yes" if info.config.compression not in (None, "none") else ""}


def _changes(given: Sequence[Config], asked: ActRequest, seen: ActSight) -> list[str]:
    before, after = seen.values, asked.values
    return [f"{item.label}: {before[item.name] or 'none'} → {after[item.name] or 'none'}" for item in given]


# -- buckets of either kind --------------------------------------------------------------------------------------------


def _seeing(stream_of: Callable[[str], str], fields: Sequence[Config] = ()) -> Callable[..., Awaitable[ActSight]]:
    """See a bucket: it is the same as long as it was made at the same moment, and for an edit is set up the same."""

    async def see(asked: ActRequest) -> ActSight:
        bucket = check_bucket(asked.targets["bucket"])
        try:
            info = await assets.stream_info(asked.client, stream_of(bucket))
        except NotFoundError as error:
            raise NotFoundError(
                f"There is no bucket {bucket}.", remedy="Look at the page of buckets.", **error.facts
            ) from None
        made = iso(info.created) or ""
        if not fields:
            return ActSight(made, info)
        return ActSight(f"{made} {digest(info.raw['config'])}", info, _begins(fields, info))

    return see


async def _check_free(asked: ActRequest, stream: str, bucket: str) -> None:
    try:
        await assets.stream_info(asked.client, stream)
    except NotFoundError:
        return
    raise InputError(f"There is a bucket {bucket} already.", remedy="Choose another name.")


def _edited(fields: Sequence[Config], asked: ActRequest, seen: ActSight) -> list[Config]:
    given = changed(fields, asked.values, seen.values)
    if not given:
        raise InputError("Nothing of the bucket was changed.", remedy="Change a field of the form.")
    return given


async def _delete(asked: ActRequest, info: StreamInfo, bucket: str) -> Done:
    """Delete the stream of a bucket, and see that it is gone."""
    await assets.delete_stream(asked.client, info.name)
    try:
        there = await assets.stream_info(asked.client, info.name)
    except NotFoundError:
        return Done(f"Bucket {bucket} was deleted.", {"success": True}, "/buckets")
    if there.created != info.created:
        return Done(f"Bucket {bucket} was deleted. Somebody made a new one of that name since.", None, "/buckets")
    raise JetStreamError(f"The server said that bucket {bucket} was deleted, and it is still there.")


def _check_taken(bucket: str, given: Sequence[Config], asked: ActRequest, now: StreamInfo) -> None:
    """Raise if a bucket is not as it was asked for: an older server passes over what it does not know."""
    fields = [item for item in given if item is not _STORAGE]
    told = _begins([item for item in fields if item is not _COMPRESS], now)
    others = [
        item.label
        for item in fields
        if item.read(told[item.name], item.label) != item.read(asked.values[item.name], item.label)
    ]
    if others:
        raise JetStreamError(f"Bucket {bucket} is there, but not as it was asked for: {', '.join(others)}.")


# -- keys --------------------------------------------------------------------------------------------------------------


@act(
    "bucket-add",
    "Add a bucket of keys",
    of="buckets",
    fields=(Field("name", "Name", needed=True), _STORAGE, *_KEYS),
)
async def add_keys(asked: ActRequest, seen: ActSight) -> Intent:
    """Make a new bucket for keys and values."""
    bucket, fields = check_bucket(asked.values["name"]), (_STORAGE, *_KEYS)
    given = changed(fields, asked.values, {item.name: item.default for item in fields})
    settings = _settings(given, asked)
    bucket_stream(bucket, **settings)  # says what is wrong before anything is asked
    await _check_free(asked, stream_of_bucket(bucket), bucket)

    async def do() -> Done:
        info = (await (await KeyValue.create_bucket(asked.client, bucket, **settings)).status()).stream
        return Done(f"Bucket {bucket} is there.", info.raw["config"], bucket_page("keys", bucket))

    words = command("kv add", bucket, flags=_flags(given, asked))
    return Intent(f"Makes a bucket {bucket} for keys and values.", [words], do)


@act(
    "bucket-edit",
    "Edit",
    of="bucket",
    targets=("bucket",),
    fields=_KEYS,
    typed="bucket",
    look=_seeing(stream_of_bucket, _KEYS),
)
async def edit_keys(asked: ActRequest, seen: ActSight) -> Intent:
    """Change the settings of a bucket of keys; values that no longer fit are removed."""
    bucket, given = asked.targets["bucket"], _edited(_KEYS, asked, seen)
    settings = _settings(given, asked)
    bucket_stream(bucket, **settings)

    async def do() -> Done:
        now = (await (await KeyValue.edit_bucket(asked.client, bucket, **settings)).status()).stream
        return Done(f"Bucket {bucket} was changed.", now.raw["config"], bucket_page("keys", bucket))

    words = command("kv edit", bucket, flags=_flags(given, asked))
    return Intent(f"Changes bucket {bucket}.", [words], do, _changes(given, asked, seen))


@act(
    "bucket-delete",
    "Delete the bucket",
    of="bucket",
    targets=("bucket",),
    typed="bucket",
    look=_seeing(stream_of_bucket),
)
async def delete_keys(asked: ActRequest, seen: ActSight) -> Intent:
    """Delete a bucket with all its keys and values."""
    info, bucket = seen.info, asked.targets["bucket"]

    async def do() -> Done:
        return await _delete(asked, info, bucket)

    says = f"Deletes bucket {bucket} with {info.messages:,} entries of {info.subjects:,} keys."
    return Intent(says, [command("kv del", bucket, flags=["-f"])], do)


# -- objects -----------------------------------------------------------------------------------------------------------


@act(
    "objects-add",
    "Add a bucket of objects",
    of="buckets",
    fields=(Field("name", "Name", needed=True), _STORAGE, *_OBJECTS),
)
async def add_objects(asked: ActRequest, seen: ActSight) -> Intent:
    """Make a new bucket for objects."""
    bucket, fields = check_bucket(asked.values["name"]), (_STORAGE, *_OBJECTS)
    given = changed(fields, asked.values, {item.name: item.default for item in fields})
    settings = _settings(given, asked)
    object_stream(bucket, **settings)
    await _check_free(asked, stream_of_objects(bucket), bucket)

    async def do() -> Done:
        info = (await (await ObjectStore.create_bucket(asked.client, bucket, **settings)).status()).stream
        _check_taken(bucket, given, asked, info)
        return Done(f"Bucket {bucket} is there.", info.raw["config"], bucket_page("objects", bucket))

    words = command("object add", bucket, flags=_flags(given, asked))
    return Intent(f"Makes a bucket {bucket} for objects.", [words], do)


@act(
    "objects-edit",
    "Edit",
    of="objects",
    targets=("bucket",),
    fields=_OBJECTS,
    typed="bucket",
    look=_seeing(stream_of_objects, _OBJECTS),
)
async def edit_objects(asked: ActRequest, seen: ActSight) -> Intent:
    """Change the settings of a bucket of objects; objects that no longer fit are removed."""
    bucket, given = asked.targets["bucket"], _edited(_OBJECTS, asked, seen)
    settings = _settings(given, asked)

    async def do() -> Done:
        now = (await (await ObjectStore.edit_bucket(asked.client, bucket, **settings)).status()).stream
        _check_taken(bucket, given, asked, now)
        return Done(f"Bucket {bucket} was changed.", now.raw["config"], bucket_page("objects", bucket))

    words = command("object edit", bucket, flags=[*_flags(given, asked), "-f"])
    return Intent(f"Changes bucket {bucket}.", [words], do, _changes(given, asked, seen))


@act(
    "objects-seal", "Seal", of="objects", targets=("bucket",), typed="bucket", look=_seeing(stream_of_objects, _OBJECTS)
)
async def seal_objects(asked: ActRequest, seen: ActSight) -> Intent:
    """Let nothing be changed in a bucket of objects any more, for ever."""
    bucket = asked.targets["bucket"]
    if seen.info.raw["config"].get("sealed") is True:
        raise InputError(f"Bucket {bucket} is sealed already.", remedy="Nothing is to be done.")

    async def do() -> Done:
        now = await (await ObjectStore.open(asked.client, bucket)).seal()
        if not now.is_sealed:
            raise JetStreamError(f"The server did not seal bucket {bucket}.", remedy="Try again.")
        return Done(f"Bucket {bucket} is sealed.", now.stream.raw["config"], bucket_page("objects", bucket))

    says = f"Seals bucket {bucket}: nothing in it can be changed any more, and nobody can undo that."
    return Intent(says, [command("object seal", bucket, flags=["-f"])], do)


@act(
    "objects-delete",
    "Delete the bucket",
    of="objects sealed",
    targets=("bucket",),
    typed="bucket",
    look=_seeing(stream_of_objects),
)
async def delete_objects(asked: ActRequest, seen: ActSight) -> Intent:
    """Delete a bucket with all its objects."""
    info, bucket = seen.info, asked.targets["bucket"]

    async def do() -> Done:
        return await _delete(asked, info, bucket)

    says = f"Deletes bucket {bucket} with all its objects, {info.bytes:,} bytes."
    return Intent(says, [command("object del", bucket, flags=["-f"])], do)


WHOLE_BUCKET_ACTS = (
    *(add_keys, edit_keys, delete_keys),
    *(add_objects, edit_objects, seal_objects, delete_objects),
)
