"""Acts on what a bucket holds: put, delete and purge keys, delete objects; each only if it is still as it was seen."""

from __future__ import annotations

from penstock.buckets import Entry, KeyValue, ObjectInfo, ObjectStore
from penstock.buckets.entry import entry_of_found
from penstock.buckets.key_stream import addresses_of
from penstock.buckets.key_wire import check_key
from penstock.connection.stored import find_last
from penstock.console.act_bucket_config import WHOLE_BUCKET_ACTS, bucket_page
from penstock.console.acts import ActRequest, ActSight, Done, Intent, act
from penstock.console.backend import iso
from penstock.console.forms import Field
from penstock.console.shell import command
from penstock.errors import InputError, NotFoundError

__all__ = ["BUCKET_ACTS"]


async def _bucket(asked: ActRequest) -> tuple[KeyValue, str]:
    kv = await KeyValue.open(asked.client, asked.targets["bucket"])
    return kv, iso((await kv.status()).created) or ""


async def _see_key(asked: ActRequest) -> ActSight:
    """See a key: it is the same as long as it has the same revision, in the same bucket."""
    kv, made = await _bucket(asked)
    try:
        entry = await kv.get(asked.targets["key"])
    except NotFoundError:
        return ActSight(f"{made} none", (kv, None))
    value = ""
    if len(entry.value) <= asked.backend.settings.payload_bytes:
        shown = asked.backend.mask.data(entry.value)
        if shown == entry.value:  # a value that hides something would be written back without it
            value = _as_text(entry.value)
    return ActSight(f"{made} {entry.revision}", (kv, entry), {"value": value})


async def _see_last(asked: ActRequest) -> ActSight:
    """See a key as its leader has it, also one that was deleted: what it had before may still be kept."""
    kv, key = await KeyValue.open(asked.client, asked.targets["bucket"]), check_key(asked.targets["key"])
    info = (await kv.status()).stream
    place = addresses_of(kv.bucket, info.config, asked.client.options.js_prefix)
    found = await find_last(asked.client, info.name, f"{place.kept}{key}", direct=False)
    if found is None:
        raise NotFoundError(f"Bucket {kv.bucket} has no key {key[:80]}.", remedy="Nothing is to be done.", code=404)
    entry = entry_of_found(kv.bucket, key, found)
    return ActSight(f"{iso(info.created) or ''} {entry.revision}", (kv, entry))


def _as_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return ""


async def _see_bucket(asked: ActRequest) -> ActSight:
    kv, made = await _bucket(asked)
    return ActSight(made, kv)


@act(
    "key-add",
    "Add a key",
    of="bucket",
    targets=("bucket",),
    fields=(Field("name", "Key", needed=True), Field("value", "Value", "text", private=True)),
    look=_see_bucket,
)
async def add(asked: ActRequest, seen: ActSight) -> Intent:
    """Give a new key a value."""
    kv: KeyValue = seen.info
    return _put(asked, kv, asked.values["name"], 0)


@act(
    "key-put",
    "Put a value",
    of="key",
    targets=("bucket", "key"),
    fields=(Field("value", "Value", "text", private=True),),
    look=_see_key,
)
async def put(asked: ActRequest, seen: ActSight) -> Intent:
    """Give a key another value, if nobody else has done so since."""
    kv, entry = seen.info
    return _put(asked, kv, asked.targets["key"], 0 if entry is None else entry.revision)


def _put(asked: ActRequest, kv: KeyValue, key: str, revision: int) -> Intent:
    check_key(key)
    text = asked.values["value"]

    async def do() -> Done:
        now = await (kv.update(key, text.encode(), revision) if revision else kv.create(key, text.encode()))
        page = bucket_page("keys", kv.bucket)
        return Done(f"Key {key} of bucket {kv.bucket} has revision {now:,}.", {"revision": now}, page)

    verb, more = ("kv update", (str(revision),)) if revision else ("kv create", ())
    says = f"Gives key {key} of bucket {kv.bucket} a value of {len(text.encode()):,} bytes"
    says += f", if it is still at revision {revision:,}." if revision else ", if it has none."
    return Intent(says, [command(verb, kv.bucket, key, text, *more)], do)


@act("key-delete", "Delete", of="key", targets=("bucket", "key"), typed="key", look=_see_key)
async def delete(asked: ActRequest, seen: ActSight) -> Intent:
    """Delete a key; the values that it had before are kept as far as the bucket keeps history."""
    kv, entry = seen.info
    key = asked.targets["key"]
    if entry is None:
        raise InputError(f"Bucket {kv.bucket} has no key {key[:80]}.", remedy="Nothing is to be done.")

    async def do() -> Done:
        now = await kv.delete(key, revision=entry.revision)
        page = bucket_page("keys", kv.bucket)
        return Done(f"Key {key} of bucket {kv.bucket} was deleted, at revision {now:,}.", {"revision": now}, page)

    says = f"Deletes key {key} of bucket {kv.bucket}, if it is still at revision {entry.revision:,}."
    return Intent(says, [command("kv del", kv.bucket, key, flags=["-f"])], do)


@act("key-purge", "Purge", of="key", targets=("bucket", "key"), typed="key", look=_see_last)
async def purge(asked: ActRequest, seen: ActSight) -> Intent:
    """Delete a key with all values that it had before."""
    kv: KeyValue
    entry: Entry
    kv, entry = seen.info
    key = entry.key

    async def do() -> Done:
        now = await kv.purge(key, revision=entry.revision)
        page = bucket_page("keys", kv.bucket)
        return Done(f"Key {key} of bucket {kv.bucket} was purged, at revision {now:,}.", {"revision": now}, page)

    says = f"Removes key {key} of bucket {kv.bucket} with its history for good"
    says += f", if it is still at revision {entry.revision:,}."
    return Intent(says, [command("kv purge", kv.bucket, key, flags=["-f"])], do)


async def _see_object(asked: ActRequest) -> ActSight:
    """See an object: it is the same as long as its description is, in the same bucket."""
    store = await ObjectStore.open(asked.client, asked.targets["bucket"])
    status = await store.status()
    made = iso(status.created) or ""
    if status.is_sealed:
        raise InputError(f"Bucket {store.bucket} is sealed.", remedy="Nothing in it can be changed any more.")
    info = await store.info(asked.targets["object"])
    return ActSight(f"{made} {info.sequence}", (store, info))


@act("object-delete", "Delete", of="object", targets=("bucket", "object"), typed="object", look=_see_object)
async def delete_object(asked: ActRequest, seen: ActSight) -> Intent:
    """Delete an object with its bytes, or a link; what a link leads to stays."""
    store: ObjectStore
    info: ObjectInfo
    store, info = seen.info

    async def do() -> Done:
        await store.delete(info.name, expected=info.sequence)
        page = bucket_page("objects", store.bucket)
        return Done(f"Object {info.name} of bucket {store.bucket} was deleted.", {"success": True}, page)

    what = "the link" if info.is_link else f"{info.size:,} bytes of"
    says = f"Deletes {what} {info.name} from bucket {store.bucket}, if nobody has replaced it since."
    return Intent(says, [command("object del", store.bucket, info.name, flags=["-f"])], do)


BUCKET_ACTS = (add, put, delete, purge, delete_object, *WHOLE_BUCKET_ACTS)
