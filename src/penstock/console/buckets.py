"""Buckets: those for keys and those for objects, what each holds, and one entry of either with its history.

Names of keys come from the counts that the leader keeps of its subjects: in order, and without a message being read.
Only what a page shows is fetched. A key may hold slashes and dots, an object's name anything: both stand behind the
question mark of an address, never in its path.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.buckets import Entry, KeyValue, ObjectInfo, ObjectStore
from penstock.buckets.entry import entry_of_found
from penstock.buckets.key_stream import Addresses, addresses_of, bucket_of
from penstock.buckets.key_wire import check_key, check_key_filter
from penstock.buckets.object_wire import description_subjects, name_of
from penstock.connection import Connection, api_request
from penstock.connection.stored import find_last
from penstock.console.backend import Backend, Data, Download, PageRequest, all_of, iso, page, part_of
from penstock.console.masked_pieces import masked_pieces
from penstock.console.messages import form_facts
from penstock.console.payload import FORMS, encoded, preview, render
from penstock.console.seen import all_streams, coverage
from penstock.console.tables import Listing, fields
from penstock.errors import InputError, NotFoundError, PenstockError
from penstock.info import StreamInfo
from penstock.survey import StreamState
from penstock.wire.jetstream.answers import held_subjects, number

__all__ = ["bucket", "buckets", "entry", "object_bucket", "object_content", "object_entry"]


@page("/buckets", refresh=3, menu=True)
async def buckets(backend: Backend, request: PageRequest) -> Data:
    """Buckets of keys and of objects: how much each holds, and when it was written to last."""
    found, now = await all_streams(backend, await backend.upstream.client())
    rows = [_bucket_row(backend, item) for item in found if _kind(item.name)]
    table = Listing.of(
        request,
        rows,
        fields("bucket", "kind", "held", "bytes", "time"),
        sort="bucket",
        words=lambda row: (row["bucket"], row["description"]),
        most=backend.settings.rows,
    )
    return {"buckets": list(table.items), "coverage": coverage(backend, now), **table.about()}


def _kind(stream: str) -> str | None:
    if bucket_of(stream) is not None:
        return "keys"
    return "objects" if stream.startswith("OBJ_") and len(stream) > 4 else None


def _bucket_row(backend: Backend, state: StreamState) -> Data:
    kind = _kind(state.name)
    return {
        "bucket": state.name.partition("_")[2],
        "kind": kind,
        "stream": state.name,
        "description": backend.mask.plain(state.description or ""),
        # Each key is a subject; each object has one for its description and one for its bytes.
        "held": state.subjects_held if kind == "keys" else None,
        "messages": state.messages,
        "bytes": state.bytes,
        "time": state.last_time and iso(state.last_time),
        "storage": state.storage,
        "replicas": state.replicas,
        "max_age": state.max_age,
        "mirror": state.mirror and state.mirror.partition("_")[2],
    }


# -- keys --------------------------------------------------------------------------------------------------------------


async def _subjects(client: Connection, stream: str, pattern: str) -> tuple[dict[str, int], int]:
    """Give the first subjects of a stream that match, with the messages of each, and how many subjects there are."""
    answer = await api_request(client, f"STREAM.INFO.{stream}", {"subjects_filter": pattern})
    held = held_subjects(answer)
    return held, max(len(held), number(answer, "total", 0))


async def _opened(client: Connection, name: str) -> tuple[StreamInfo, Addresses]:
    store = await KeyValue.open(client, name)
    info = (await store.status()).stream
    return info, addresses_of(name, info.config, client.options.js_prefix)


@page("/buckets/keys/{bucket}", refresh=3)
async def bucket(backend: Backend, request: PageRequest) -> Data:
    """The keys of a bucket with their values, in order; `?pattern=orders.>` looks at some of them."""
    pattern = request.query.get("pattern", "").strip() or ">"
    check_key_filter(pattern[:500])
    client = await backend.upstream.client()
    name = request.path["bucket"]
    info, place = await _opened(client, name)
    held, total = await _subjects(client, info.name, f"{place.kept}{pattern}")
    keys: list[Data] = [
        {"key": subject.removeprefix(place.kept), "entries": count}
        for subject, count in held.items()
        if subject.startswith(place.kept)
    ]
    table = Listing.of(
        request,
        keys,
        fields("key", "entries"),
        sort="key",
        words=lambda row: (row["key"],),
        most=backend.settings.rows,
    )

    async def last(row: Data) -> Data:
        found, trouble = await part_of(backend, _last(client, info, place, name, row["key"]))
        return {**row, **_entry_row(backend, found), "trouble": trouble}

    return {
        "bucket": name,
        "stream": info.name,
        "description": backend.mask.plain(info.description),
        "pattern": pattern,
        "history": info.config.max_msgs_per_subject,
        "max_age": info.config.max_age or None,
        "bytes": info.bytes,
        "values": info.messages,
        "revision": info.last_sequence,
        "keys_left_out": max(0, total - len(held)),
        "keys": await all_of(table.items, last),
        **table.about(),
    }


async def _last(client: Connection, info: StreamInfo, place: Addresses, name: str, key: str) -> Entry | None:
    """Give the last entry of a key, also one that says that it is deleted."""
    direct = bool(info.config.allow_direct)
    found = await find_last(client, info.name, f"{place.kept}{key}", direct=direct)
    return None if found is None else entry_of_found(name, key, found)


def _entry_row(backend: Backend, found: Entry | None) -> Data:
    if found is None:
        return {"revision": None, "time": None, "size": None, "operation": None, "reason": None, "preview": ""}
    return {
        "revision": found.revision,
        "time": iso(found.time),
        "size": len(found.value),
        "operation": found.operation,
        "reason": found.reason,
        "preview": preview(backend.mask.data(found.value)),
    }


@page("/buckets/keys/{bucket}/entry", refresh=3)
async def entry(backend: Backend, request: PageRequest) -> Data:
    """One key of a bucket, `?key=`: its value now, or at a `?revision=`, and what it was before."""
    key = _given(request, "key")
    check_key(key)
    wanted = request.query.get("as", "")
    revision = request.number("revision", 0) or None
    client = await backend.upstream.client()
    name = request.path["bucket"]
    info, place = await _opened(client, name)
    if revision is None:
        shown = await _last(client, info, place, name, key)
    else:
        shown = await (await KeyValue.open(client, name)).get(key, revision)
    if shown is None:
        raise NotFoundError(f"Bucket {name} has no key {key}.", remedy="It may have been purged.", code=404)
    past, trouble = await part_of(backend, _history(client, name, key))
    rows = [_entry_row(backend, item) for item in reversed(past or [])]
    return {
        "bucket": name,
        "stream": info.name,
        "key": key,
        "at_revision": revision,
        **_entry_row(backend, shown),
        **_value(backend, shown.value, wanted),
        "history": rows[: backend.settings.rows],
        "history_left_out": max(0, len(rows) - backend.settings.rows),
        "history_trouble": trouble,
    }


async def _history(client: Connection, name: str, key: str) -> list[Entry]:
    return await (await KeyValue.open(client, name)).history(key)


def _given(request: PageRequest, name: str) -> str:
    value = request.query.get(name, "")
    if not value:
        raise InputError(f"The address does not say which {name} is meant.", remedy=f"Add ?{name}=... to it.")
    return value


def _value(backend: Backend, data: bytes, wanted: str) -> Data:
    if wanted and wanted not in FORMS:
        raise InputError(f"A value cannot be shown as {wanted[:20]!r}.", remedy=f"Known: {', '.join(FORMS)}.")
    masked = backend.mask.data(data)
    shown = render(masked, backend.settings.payload_bytes, next((form for form in FORMS if form == wanted), None))
    return {**form_facts(shown), "cut": shown.cut, "data": encoded(masked, backend.settings.payload_bytes)}


# -- objects -----------------------------------------------------------------------------------------------------------


@page("/buckets/objects/{bucket}", refresh=5)
async def object_bucket(backend: Backend, request: PageRequest) -> Data:
    """The objects of a bucket: size, chunks, digest, when each was put; deleted ones and links are marked."""
    client = await backend.upstream.client()
    name = request.path["bucket"]
    store = await ObjectStore.open(client, name)
    status = await store.status()
    home = status.mirror or name
    held, total = await _subjects(client, status.stream.name, description_subjects(home))
    known = {subject: name_of(home, subject) for subject in held}
    objects = [{"name": found} for found in known.values() if found is not None]
    table = Listing.of(
        request, objects, fields("name"), sort="name", words=lambda row: (row["name"],), most=backend.settings.rows
    )

    async def described(row: Data) -> Data:
        try:
            found = await store.info(row["name"], deleted=True)
        except NotFoundError:
            return {**row, **_NO_OBJECT}
        except PenstockError as error:
            return {**row, **_NO_OBJECT, "trouble": backend.mask.text(error.what)}
        return _object_row(backend, found)

    return {
        "bucket": name,
        "stream": status.stream.name,
        "description": backend.mask.plain(status.description),
        "bytes": status.bytes,
        "sealed": status.is_sealed,
        "nameless": sum(found is None for found in known.values()),
        "objects_left_out": max(0, total - len(held)),
        "objects": await all_of(table.items, described),
        **table.about(),
    }


_NO_OBJECT: Data = {
    **dict.fromkeys(("size", "chunks", "digest", "time", "link", "deleted", "trouble", "description")),
    "gone": True,
}


def _object_row(backend: Backend, info: ObjectInfo) -> Data:
    link = info.link
    return {
        "name": backend.mask.plain(info.name),
        "description": backend.mask.plain(info.description),
        "size": info.size,
        "chunks": info.chunks,
        "digest": info.digest,
        "time": iso(info.time),
        "deleted": info.deleted,
        "link": None if link is None else {"bucket": link.bucket, "name": backend.mask.plain(link.name)},
        "gone": False,
        "trouble": None,
    }


@page("/buckets/objects/{bucket}/object")
async def object_entry(backend: Backend, request: PageRequest) -> Data:
    """One object of a bucket, `?name=`: what its description says, and how its bytes begin."""
    name, wanted = _given(request, "name"), request.query.get("as", "")
    client = await backend.upstream.client()
    store = await ObjectStore.open(client, request.path["bucket"])
    info = await store.info(name, deleted=True)
    start: Data = {}
    trouble = None
    if not info.deleted and not (info.link is not None and info.link.name is None):
        found, trouble = await part_of(backend, _beginning(backend, store, name))
        if found is not None:
            data, size = found
            start = _value(backend, data, wanted)
            start |= {"cut": start["shown"] < size, "bytes": size}
    headers = backend.mask.headers(info.headers)
    return {
        "bucket": store.bucket,
        "stream": store.stream,
        **_object_row(backend, info),
        "headers": [{"name": key, "value": value} for key, values in headers.items() for value in values],
        "metadata": backend.mask.plain(info.metadata),
        "chunk_size": info.chunk_size,
        "content": start or None,
        "content_trouble": trouble,
    }


async def _beginning(backend: Backend, store: ObjectStore, name: str) -> tuple[bytes, int]:
    """Give how an object begins, and its size; the digest of one that is small is checked."""
    most = backend.settings.whole_bytes
    async with store.get(name, verify=True) as stored:
        size = stored.info.size
        if size <= most:
            return await stored.read(), size
        start = bytearray()
        while len(start) < backend.settings.payload_bytes and (piece := await stored.read(2**16)):
            start += piece
        return bytes(start), size


async def object_content(backend: Backend, request: PageRequest) -> Download:
    """Give the bytes of an object; the last of them only if its digest is right."""
    name = _given(request, "name")
    client = await backend.upstream.client()
    store = await ObjectStore.open(client, request.path["bucket"])
    info = await store.info(name)

    async def read() -> AsyncIterator[bytes]:
        async with store.get(name) as stored:
            async for piece in stored:
                yield piece

    return Download(f"object-{info.nuid[:40] or 'link'}.bin", masked_pieces(backend.mask, read()))
