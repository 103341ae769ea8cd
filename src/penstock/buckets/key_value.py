"""`KeyValue`: one key-value bucket, as nats.go and the other clients of NATS read and write it.

A key is a subject, a value is the payload of its last message, and its revision is that message's sequence. Reads are
direct gets, one request each, which any replica of the bucket answers: on a bucket with replicas a value may be a
moment old, also one that was written here before. A read with `current=True` asks the leader, and sees every write that
was acknowledged before. What a mirror says in the place of the bucket is not taken, and a key is missing only if the
leader says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from penstock.buckets.entry import Entry, entry_of_found, entry_of_message
from penstock.buckets.key_stream import addresses_of, bucket_of, bucket_stream, check_is_bucket
from penstock.buckets.key_wire import DELETE, KV_OPERATION, PURGE, check_key, check_key_filter, stream_of_bucket
from penstock.buckets.status import BucketStatus
from penstock.buckets.watch import Watch
from penstock.connection import stored
from penstock.durations import format_duration, parse_duration
from penstock.errors import ConditionError, InputError, JetStreamError, NoRespondersError, NotFoundError
from penstock.jetstream import assets
from penstock.jetstream.changes import own_metadata, stream_step
from penstock.jetstream.schedule import written_ttl
from penstock.wire.jetstream import names

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.info import StreamInfo
    from penstock.model import Stream

__all__ = ["KeyValue"]

_MARKERS = 30 * 60.0  # seconds for which delete markers are kept for others to see, as other clients have it
_TTL_DISABLED = 10166
_IN_USE = 10058
# How other clients, or older ones, make a bucket of the same fields: it is read and written all the same.
_TAKEN_AS_THEY_ARE = frozenset({"allow_direct", "duplicate_window"})


class KeyValue:
    """A bucket that is there. `open` and `create_bucket` give one."""

    def __init__(self, client: Connection, bucket: str, info: StreamInfo) -> None:
        check_is_bucket(bucket, info.config)
        self.bucket = bucket
        """The name of the bucket."""
        self._client, self._config = client, info.config
        self._addresses = addresses_of(bucket, info.config, client.options.js_prefix)

    def __repr__(self) -> str:
        return f"<KeyValue {self.bucket}>"

    # -- buckets -----------------------------------------------------------------------------------

    @classmethod
    async def create_bucket(cls, client: Connection, bucket: str, **fields: Any) -> Self:
        """Make a bucket, with the fields of `bucket_stream`; the same one again is not an error, another one is."""
        wanted = bucket_stream(bucket, **fields)
        try:
            info = await assets.add_stream(client, wanted)
            said = f"Bucket {bucket} was made, but the server does not know all that was asked for"
        except JetStreamError as error:
            if error.err_code != _IN_USE:
                raise
            info = await _info(client, bucket)
            said = f"There is a bucket {bucket}, and it is configured otherwise"
        _check_same(said, wanted, info)
        return cls(client, bucket, info)

    @classmethod
    async def open(cls, client: Connection, bucket: str) -> Self:
        """Open a bucket that is there; NotFoundError if it is not, InputError if its stream is not a bucket."""
        return cls(client, bucket, await _info(client, bucket))

    @classmethod
    async def edit_bucket(cls, client: Connection, bucket: str, **fields: Any) -> Self:
        """Change the fields of a bucket that are given, named as in `bucket_stream`; all others stay as they are."""
        info = await _info(client, bucket)
        check_is_bucket(bucket, info.config)
        wanted = _edited(bucket, info, fields)
        info = await assets.edit_stream(client, wanted)
        _check_same(f"Bucket {bucket} was changed, but the server does not know all that was asked for", wanted, info)
        return cls(client, bucket, info)

    @classmethod
    async def delete_bucket(cls, client: Connection, bucket: str) -> None:
        """Delete a bucket with everything in it."""
        try:
            await assets.delete_stream(client, stream_of_bucket(bucket))
        except NotFoundError as error:
            raise _missing(bucket, error) from None

    @classmethod
    async def buckets(cls, client: Connection, *, missing: set[str] | None = None) -> list[BucketStatus]:
        """List the buckets by name, mirrors too; `missing` gets streams that nobody answers for, else the log does."""
        found = await assets.streams(client, missing=missing)
        return [BucketStatus(bucket, info) for info in found if (bucket := bucket_of(info.name)) is not None]

    async def status(self) -> BucketStatus:
        """Ask how the bucket stands."""
        return BucketStatus(self.bucket, await _info(self._client, self.bucket))

    # -- reading -----------------------------------------------------------------------------------

    async def get(self, key: str, revision: int | None = None, *, current: bool = False) -> Entry:
        """Give a key's value, the last one or that of a revision; NotFoundError if it has none or was deleted.

        With `current` the leader answers, so that every write is seen that was acknowledged before.
        """
        entry = await self._last(key, revision, current=current)
        if entry is None or entry.is_deleted:
            at = "" if revision is None else f" at revision {revision}"
            gone = "" if entry is None else f": it was {'deleted' if entry.operation == DELETE else 'purged'}"
            raise NotFoundError(
                f"Bucket {self.bucket} has no key {key}{at}{gone}.",
                remedy=f"`penstock kv ls {self.bucket}` shows the keys that are there.",
                code=404,
                err_code=names.NO_MESSAGE,
            )
        return entry

    async def _last(self, key: str, revision: int | None = None, *, current: bool = False) -> Entry | None:
        """Give the last entry of a key, also one that says that it is deleted; None if there is none."""
        subject, place = f"{self._addresses.kept}{check_key(key)}", self._addresses
        if revision is not None and (isinstance(revision, bool) or not isinstance(revision, int) or revision < 1):
            raise InputError(f"The revision is {revision!r}.", remedy="Revisions begin with 1.")
        if current and place.abroad:
            what = f"Bucket {self.bucket} mirrors one of another domain, whose leader cannot be asked from here."
            raise InputError(what, remedy="Connect with that domain, and open the bucket there.")
        stream = place.origin if current else place.stream
        direct = self._config.allow_direct and not current
        try:
            if revision is None:
                found = await stored.find_last(self._client, stream, subject, direct=direct)
                return None if found is None else entry_of_found(self.bucket, key, found)
            message = await stored.get(self._client, stream, stored.wanted(revision, None), direct, None)
        except NotFoundError as error:
            if error.err_code != names.NO_MESSAGE:
                raise _missing(self.bucket, error) from None
            return None
        return entry_of_message(self.bucket, key, message) if message.subject == subject else None

    async def history(self, key: str) -> list[Entry]:
        """Give what the bucket still has of a key, oldest first; NotFoundError if that is nothing."""
        async with self._watch([check_key(key)], history=True) as watch:
            found = [entry async for entry in watch.current()]
        if not found:
            raise NotFoundError(f"Bucket {self.bucket} has no key {key}.", code=404, err_code=names.NO_MESSAGE)
        return found

    async def keys(self, *filters: str) -> list[str]:
        """Give the keys that have a value, in order, or those that match one of the filters (`orders.*`, `eu.>`)."""
        async with self.watch(*filters, ignore_deletes=True, meta_only=True) as watch:
            return sorted({entry.key async for entry in watch.current()})

    async def entries(self, *filters: str) -> AsyncIterator[Entry]:
        """Give the current value of each key, or of those that match one of the filters, in the order of writing."""
        async with self.watch(*filters, ignore_deletes=True) as watch:
            async for entry in watch.current():
                yield entry

    def watch(
        self,
        *filters: str,
        history: bool = False,
        updates_only: bool = False,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        resume_from: int | None = None,
        patience: str | float = 60.0,
    ) -> Watch:
        """Watch all keys, or those that match one of the filters: `async with kv.watch("orders.>") as watch`.

        First come the last entries of all keys, with `history` all entries that are kept, with `updates_only` none,
        with `resume_from` those from that revision on. `ignore_deletes` leaves deletes and purges out, `meta_only`
        leaves values out.
        """
        return self._watch(
            [check_key_filter(item) for item in filters],
            history=history,
            updates_only=updates_only,
            ignore_deletes=ignore_deletes,
            meta_only=meta_only,
            resume_from=resume_from,
            patience=parse_duration(patience, option="patience"),
        )

    def _watch(self, filters: Iterable[str], **how: Any) -> Watch:
        subjects = [f"{self._addresses.kept}{item}" for item in filters] or [f"{self._addresses.kept}>"]
        return Watch(self._client, self.bucket, self._addresses, subjects, **how)

    # -- writing -----------------------------------------------------------------------------------

    async def put(self, key: str, value: bytes) -> int:
        """Give a key a value, whatever it had before; give the revision."""
        return await self._publish(key, value)

    async def create(self, key: str, value: bytes, *, ttl: str | float | None = None) -> int:
        """Give a key a value if it has none, or was deleted; ConditionError if it has one.

        After `ttl` the server ends the key, and says so in a marker; the bucket must have been made with `marker_ttl`.
        What is left of a deleted key goes then, because the server marks the end of a key only if nothing is left.
        """
        about = {} if ttl is None else {names.TTL: self._ttl(ttl)}
        try:
            return await self._publish(key, value, about, expected=0)
        except ConditionError as error:
            # What a delete leaves has a revision, too.
            last = await self._last(key, current=not self._addresses.abroad)
            if last is None or not last.is_deleted:
                raise self._conflict(key, error, "has a value") from None
        if ttl is not None:
            about[names.ROLLUP] = "sub"
        return await self._publish(key, value, about, expected=last.revision)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Give a key a value if its revision is still the given one, 0 for a new key; ConditionError if it is not."""
        return await self._publish(key, value, expected=_revision(revision))

    async def delete(self, key: str, *, revision: int | None = None) -> int:
        """Delete a key, if its revision is still the given one; its history stays. Give the revision of the marker."""
        return await self._publish(key, b"", {KV_OPERATION: DELETE}, expected=_revision(revision, optional=True))

    async def purge(self, key: str, *, revision: int | None = None, ttl: str | float | None = None) -> int:
        """Delete a key with its history; the marker that stays is gone after `ttl`, if that is given."""
        about = {KV_OPERATION: PURGE, names.ROLLUP: "sub"}
        if ttl is not None:
            about[names.TTL] = self._ttl(ttl)
        return await self._publish(key, b"", about, expected=_revision(revision, optional=True))

    async def purge_deletes(self, older_than: str | float = _MARKERS) -> int:
        """Remove what deleted keys still take up; markers that are younger than `older_than` stay for watchers to see.

        Nothing is removed that is written meanwhile. Give how many messages were removed.
        """
        if self._config.mirror is not None:
            what = f"Bucket {self.bucket} is a mirror, and holds what its origin holds."
            raise InputError(what, remedy=f"Compact bucket {bucket_of(self._addresses.origin)}.")
        limit = datetime.now(UTC) - timedelta(seconds=parse_duration(older_than, option="older_than"))
        async with self.watch(meta_only=True) as watch:
            found = [entry async for entry in watch.current() if entry.is_deleted]
        removed = 0
        for entry in found:
            old = entry.time is None or entry.time <= limit
            removed += await assets.purge_stream(
                self._client,
                self._addresses.stream,
                subject=f"{self._addresses.kept}{entry.key}",
                sequence=entry.revision + old,
            )
        return removed

    async def put_all(
        self, values: Mapping[str, bytes] | Iterable[tuple[str, bytes]] | AsyncIterable[tuple[str, bytes]]
    ) -> AsyncIterator[tuple[str, int]]:
        """Put many values, many at a time, and give each key with its revision, in the order in which they came.

        A value whose ack is lost is sent again and stored once. Values of one key are stored in their order. The first
        failure is raised, and ends it; those that were sent behind it may be stored.
        """
        from penstock.buckets.many import put_all

        pairs = values.items() if isinstance(values, Mapping) else values
        async for done in put_all(self._client, self._addresses, pairs, self.put):
            yield done

    def _ttl(self, ttl: str | float) -> str:
        """Write a time to live; refuse one that the server would lengthen without a word."""
        written_ttl(ttl)  # refuses what is shorter than a second
        if ttl == "never":
            return "never"
        seconds, least = parse_duration(ttl), self._config.subject_delete_marker_ttl or 0.0
        if self._config.max_msgs_per_subject > 1 and seconds < least:
            what = (
                f"ttl is {ttl!r}, and bucket {self.bucket}, which keeps history, keeps a key for {least:g} s at least."
            )
            raise InputError(what, remedy="Its marker_ttl is the shortest: give as much, or make that shorter.")
        return format_duration(seconds, days=False)

    async def _publish(
        self, key: str, value: bytes, about: Mapping[str, str] | None = None, *, expected: int | None = None
    ) -> int:
        subject = f"{self._addresses.written}{check_key(key)}"
        headers = dict(about or {})
        if expected is not None:
            headers[names.EXPECTED_LAST_SUBJECT_SEQUENCE] = str(expected)
        try:
            ack = await self._client.jetstream().publish(subject, _checked(value), headers=headers or None)
        except NoRespondersError as error:
            raise NoRespondersError(
                f"No stream takes values for bucket {self.bucket}.",
                remedy="Was it deleted, or is JetStream off?",
                **error.facts,
            ) from None
        except ConditionError as error:
            raise self._conflict(key, error) from None
        except JetStreamError as error:
            if error.err_code == _TTL_DISABLED:
                raise JetStreamError(
                    f"Bucket {self.bucket} takes no time to live for a key.",
                    remedy="Give it marker_ttl: `penstock kv edit --marker-ttl`.",
                    **error.facts,
                ) from None
            raise
        if ack.stream != self._addresses.origin:
            raise JetStreamError(
                f"Stream {ack.stream} stored key {key}, and {self._addresses.origin} was meant.",
                remedy="Another stream captures the subjects of the bucket: delete it, or give it others.",
            )
        return ack.sequence

    def _conflict(self, key: str, error: ConditionError, why: str = "") -> ConditionError:
        """Say of a key what the server says of its subject."""
        expected, actual = error.expected, error.actual
        remedy = "Somebody else was faster: look at what is there now, and decide anew."
        if actual is None:
            what = f"Key {key} of bucket {self.bucket} is just being written to by somebody else"
        else:
            there = f"is at revision {actual}" if actual else "has no revision"
            what = f"Key {key} of bucket {self.bucket} {why or there}"
            if not why:
                what += f", and {expected} was expected" if expected else ", and none was expected"
        return ConditionError(f"{what}: nothing was stored.", remedy=remedy, **error.facts)


def _edited(bucket: str, info: StreamInfo, fields: Mapping[str, Any]) -> Stream:
    """Give the stream of a bucket with some fields changed, named as `bucket_stream` has them."""
    # What a field becomes in the stream is said in one place: a bucket that has nothing else.
    changed = bucket_stream(bucket, **{name: value for name, value in fields.items() if name != "mirror"})
    touched: list[str] = [name for field in fields for name in _STREAM_FIELDS[field]]
    update = {name: getattr(changed, name) for name in touched}
    if "ttl" in fields:
        update["duplicate_window"] = changed.duplicate_window
    if "mirror" in fields:
        if fields["mirror"] is not None:
            raise InputError("A bucket that is there cannot become a mirror.", remedy="Make a new one.")
        if info.config.mirror is not None:
            update |= {"mirror": None, "mirror_direct": False, "subjects": changed.subjects}
    return info.config.changed(**update)


_STREAM_FIELDS: Mapping[str, tuple[str, ...]] = {
    "history": ("max_msgs_per_subject",),
    "ttl": ("max_age",),
    "max_bytes": ("max_bytes",),
    "max_value_size": ("max_msg_size",),
    "replicas": ("num_replicas",),
    "description": ("description",),
    "compression": ("compression",),
    "placement": ("placement",),
    "republish": ("republish",),
    "sources": ("sources",),
    "metadata": ("metadata",),
    "marker_ttl": ("allow_msg_ttl", "subject_delete_marker_ttl"),
    "storage": ("storage",),
    "mirror": (),
}


def _check_same(said: str, wanted: Stream, info: StreamInfo) -> None:
    """Raise if the server's answer is not what was asked for: an older one passes over what it does not know."""
    asked = wanted.model_copy(update={"metadata": own_metadata(wanted.metadata)})
    others = [change for change in stream_step(asked, info).changes if change.field not in _TAKEN_AS_THEY_ARE]
    if others:
        raise JetStreamError(f"{said}: {'; '.join(map(str, others))}.", remedy="Open it as it is, or edit it.")


def _revision(revision: int | None, *, optional: bool = False) -> int | None:
    if revision is None and optional:
        return None
    if isinstance(revision, bool) or not isinstance(revision, int) or revision < 0:
        raise InputError(f"The revision is {revision!r}.", remedy="Give the revision of an entry, or 0 for a new key.")
    return revision


def _checked(value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InputError(f"A value is given as {type(value).__name__}.", remedy="Give bytes.")
    return bytes(value)


async def _info(client: Connection, bucket: str) -> StreamInfo:
    try:
        return await assets.stream_info(client, stream_of_bucket(bucket))
    except NotFoundError as error:
        raise _missing(bucket, error) from None


def _missing(bucket: str, error: NotFoundError) -> NotFoundError:
    remedy = "`penstock kv ls` shows those that are there."
    return NotFoundError(f"There is no bucket {bucket}.", remedy=remedy, **error.facts)
