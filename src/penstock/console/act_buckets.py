"""Acts on the keys of a bucket: put a value, delete a key. Both only if the key is still as it was seen."""

from __future__ import annotations

from penstock.buckets import KeyValue
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
    from penstock.buckets.key_wire import check_key

    check_key(key)
    text = asked.values["value"]

    async def do() -> Done:
        now = await (kv.update(key, text.encode(), revision) if revision else kv.create(key, text.encode()))
        return Done(
            f"Key {key} of bucket {kv.bucket} has revision {now:,}.", {"revision": now}, f"/buckets/keys/{kv.bucket}"
        )

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
        return Done(
            f"Key {key} of bucket {kv.bucket} was deleted, at revision {now:,}.",
            {"revision": now},
            f"/buckets/keys/{kv.bucket}",
        )

    says = f"Deletes key {key} of bucket {kv.bucket}, if it is still at revision {entry.revision:,}."
    return Intent(says, [command("kv del", kv.bucket, key, flags=["-f"])], do)


BUCKET_ACTS = (add, put, delete)
