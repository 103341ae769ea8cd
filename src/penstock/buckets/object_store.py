"""`ObjectStore`: objects of any size under names, in a bucket that other NATS clients read and write as well.

An object is its chunks, and a description that is published last: until then nobody sees anything of it, and whoever
reads meanwhile reads what was there before. A description is stored on the condition that the one before it is the one
that was looked at. So of two that put one name at the same time both succeed, one after the other; the later one stays,
and it is the one that removes the chunks of the earlier.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from penstock.buckets.object_describing import Descriptions, Seen, chunks_of, no_bucket
from penstock.buckets.object_info import ObjectInfo, ObjectLink, check_headers, check_link, check_metadata
from penstock.buckets.object_orphans import Orphan, find_orphans, purge_orphan
from penstock.buckets.object_putting import check_put, put_chunks
from penstock.buckets.object_reading import StoredObject
from penstock.buckets.object_status import ObjectStoreStatus, changes_of, is_object_stream, object_stream
from penstock.buckets.object_watch import ObjectWatch
from penstock.buckets.object_wire import CHUNK_SIZE, check_object, description_subjects, new_nuid, stream_of_objects
from penstock.connection.connecting import check_connection
from penstock.durations import parse_duration
from penstock.errors import AssemblyError, ConditionError, InputError, JetStreamError, NotFoundError
from penstock.jetstream import assets
from penstock.part_file import PartFile, Replacement, writing

if TYPE_CHECKING:
    from penstock.chunks.source import Progress, Source
    from penstock.connection import Connection

__all__ = ["ObjectStore"]

_NAME_TAKEN = 10058
_TOGETHER = 1024 * 1024  # bytes that are written to a file at a time: each way to a thread costs
_WINDOW = 120.0  # seconds that a server remembers message ids for
_TIMES = 20  # that an object which others change all the time is tried
_HOPS = 16  # links that are followed
_ORPHANS = 86400.0  # seconds after which chunks that nobody describes are nobody's


class ObjectStore:
    """The objects of one bucket. `create_bucket` makes one, `open` looks whether there is one.

    `timeout` is how many seconds the server may take to store a megabyte, or a description.
    """

    def __init__(self, nc: Connection, bucket: str, *, timeout: float = 10.0) -> None:
        self.stream = stream_of_objects(bucket)
        """The stream that holds the bucket."""
        self.bucket = bucket
        """The name of the bucket."""
        if not timeout > 0:
            raise InputError(f"timeout is {timeout}.", remedy="Give a number of seconds above zero.")
        self._nc, self._timeout = check_connection(nc), timeout
        self._descriptions = Descriptions(nc, bucket, held=bucket, timeout=timeout)

    def __repr__(self) -> str:
        return f"ObjectStore({self.bucket!r})"

    # -- buckets ------------------------------------------------------------------------------------------------------

    @classmethod
    async def create_bucket(
        cls, nc: Connection, bucket: str, *, storage: Literal["file", "memory"] = "file", **settings: Any
    ) -> ObjectStore:
        """Make a bucket; the same one again is not an error, another one of that name is.

        `settings`: `description`, `ttl`, `max_bytes`, `replicas`, `placement`, `metadata` and `compression`.
        """
        store = cls(nc, bucket)
        stream = object_stream(bucket, storage, **settings)
        try:
            await assets.add_stream(nc, stream)
        except JetStreamError as error:
            if error.err_code != _NAME_TAKEN:
                raise
            what = f"There is a bucket {bucket} already, and it is set up in another way."
            raise JetStreamError(what, remedy="Open it, change it, or choose another name.", **error.facts) from None
        return store

    @classmethod
    async def open(cls, nc: Connection, bucket: str) -> ObjectStore:
        """Open a bucket; NotFoundError if there is none."""
        store = cls(nc, bucket)
        status = await store.status()
        if status.mirror is not None:
            store._descriptions.held = status.mirror
        elif not status.is_bucket:
            what = f"Stream {store.stream} is not an object bucket: it does not take {description_subjects(bucket)}."
            raise InputError(what, remedy="Use it as a stream, or choose another bucket.")
        return store

    @classmethod
    async def buckets(cls, nc: Connection, *, missing: set[str] | None = None) -> list[ObjectStoreStatus]:
        """List all buckets by name; `missing` gets the streams that nobody answers for."""
        found = await assets.streams(nc, missing=missing)
        return [ObjectStoreStatus(info) for info in found if is_object_stream(info)]

    @classmethod
    async def delete_bucket(cls, nc: Connection, bucket: str) -> None:
        """Delete a bucket with everything in it."""
        store = cls(nc, bucket)
        try:
            await assets.delete_stream(nc, store.stream)
        except NotFoundError as error:
            raise no_bucket(bucket, error) from None

    async def status(self) -> ObjectStoreStatus:
        """Ask how the bucket is set up, and how much it holds."""
        try:
            return ObjectStoreStatus(await assets.stream_info(self._nc, self.stream))
        except NotFoundError as error:
            raise no_bucket(self.bucket, error) from None

    @classmethod
    async def edit_bucket(cls, nc: Connection, bucket: str, **settings: Any) -> ObjectStore:
        """Change settings of a bucket, those of `create_bucket` without `storage`; what is not named stays."""
        store, fields = cls(nc, bucket), changes_of(**settings)
        status = await store.status()
        there = status.stream.config
        if "max_age" in fields:  # ids are not remembered for longer than messages live
            fields["duplicate_window"] = min(parse_duration(fields["max_age"], option="ttl") or _WINDOW, _WINDOW)
        if "metadata" in fields:  # what servers keep there stays
            own = status.metadata
            kept = {name: value for name, value in there.metadata.items() if name not in own}
            fields["metadata"] = {**kept, **fields["metadata"]}
        await assets.edit_stream(nc, there.changed(**fields))
        return store

    async def seal(self) -> ObjectStoreStatus:
        """Let nothing be changed in the bucket any more, for ever."""
        status = await self.status()
        return ObjectStoreStatus(await assets.edit_stream(self._nc, status.stream.config.changed(sealed=True)))

    # -- looking ------------------------------------------------------------------------------------------------------

    async def info(self, name: str, *, deleted: bool = False) -> ObjectInfo:
        """Say what is known of an object; NotFoundError if there is none, or only a deleted one unless `deleted`."""
        found = await self._descriptions.get(name)
        if found is None or (found.deleted and not deleted):
            raise self._no_object(name, "It was deleted." if found is not None else "")
        return found

    async def list(self, *, deleted: bool = False) -> list[ObjectInfo]:
        """List what there is by name, with `deleted` also what was deleted."""
        found = []
        pattern = description_subjects(self._descriptions.held)
        try:
            async for message in self._nc.jetstream().get_last_msgs(self.stream, pattern):
                info = self._descriptions.read(message.subject, message.data, message.time, message.sequence)
                found.append(info)
        except NotFoundError as error:
            raise no_bucket(self.bucket, error) from None
        return sorted((info for info in found if deleted or not info.deleted), key=lambda info: info.name)

    def _no_object(self, name: str, why: str = "") -> NotFoundError:
        what = f"Bucket {self.bucket} has no object {name!r}."
        remedy = why or f"`penstock object ls {self.bucket}` shows those that are there."
        return NotFoundError(what, remedy=remedy, code=404)

    def watch(
        self,
        *,
        updates_only: bool = False,
        ignore_deletes: bool = False,
        resume_from: int | None = None,
        patience: str | float = 60.0,
    ) -> ObjectWatch:
        """Watch the objects: `async with store.watch() as watch`, then `async for info in watch`.

        First come all that are there, with `updates_only` none, with `resume_from` those described from that sequence
        on. `ignore_deletes` leaves deleted ones out.
        """
        return ObjectWatch(
            self._nc,
            self.bucket,
            held=self._descriptions.held,
            updates_only=updates_only,
            ignore_deletes=ignore_deletes,
            resume_from=resume_from,
            patience=parse_duration(patience, option="patience"),
        )

    # -- reading ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def get(self, name: str, *, verify: bool = True) -> AsyncIterator[StoredObject]:
        """Read an object, or what a link leads to: iterate over what this gives, or `read` from it.

        Memory stays small whatever the size. `verify=False` reads an object without a digest, or with a wrong one.
        """
        store, info = await self._resolved(name)
        descriptions = store._descriptions
        subject = chunks_of(info, descriptions.held)
        reader = StoredObject(
            self._nc, store.stream, subject, info, look=lambda: descriptions.get(info.name), verify=verify
        )
        try:
            yield reader
        finally:
            await reader.close()

    async def fetch(self, name: str) -> bytes:
        """Give the bytes of an object, whole."""
        for attempt in range(1, _TIMES + 1):
            try:
                async with self.get(name) as stored:
                    return await stored.read()
            except AssemblyError as error:
                # One that was replaced meanwhile is read anew: nobody has seen anything of it yet.
                now = (await self._resolved(name))[1]
                if now.nuid == error.message_id or attempt == _TIMES:
                    raise
        raise AssertionError("unreachable")

    async def save(
        self, name: str, target: Path | IO[bytes], *, overwrite: bool = False, progress: Progress = None
    ) -> ObjectInfo:
        """Write an object into a file, or to a path where a file appears once all of it is there and was checked.

        A file that is there is an InputError, unless it may be overwritten; a path that cannot be written is one
        always. What was written to an open file, a pipe or a device is not taken back if the rest fails.
        """
        if not isinstance(target, os.PathLike):
            async with self.get(name) as stored:
                await _copy(stored, target, progress)
                return stored.info
        path = Path(target)
        _check_free(path, overwrite)
        async with self.get(name) as stored:
            with writing(path):
                await (_replace_file if overwrite else _make_file)(stored, path, progress)
            return stored.info

    async def _resolved(self, name: str) -> tuple[ObjectStore, ObjectInfo]:
        """Follow links to an object."""
        store, info = self, await self.info(name)
        seen: set[ObjectLink] = set()
        while info.link is not None:
            link, where = info.link, f"{info.name!r} of bucket {store.bucket}"
            if link.name is None:
                what = f"{where} is a link to the whole bucket {link.bucket}."
                raise InputError(what, remedy="Open that bucket.")
            if link in seen or len(seen) >= _HOPS:
                raise InputError(f"The links of {name!r} lead in a circle, or too far.", remedy="Delete one of them.")
            seen.add(link)
            try:
                store = await ObjectStore.open(self._nc, link.bucket)
                info = await store.info(link.name)
            except NotFoundError as error:
                what = f"{where} is a link to {link.name!r} of bucket {link.bucket}, which is not there."
                raise NotFoundError(what, remedy="Delete the link, or put the object.", **error.facts) from None
        return store, info

    async def orphans(self, older_than: str | float = _ORPHANS) -> Sequence[Orphan]:
        """Give the chunks that no object has, if the last one is older than that: what killed programs left.

        A put that is under way has such chunks, too: give a time that none of them takes from one chunk to the next.
        """
        self._check_writable()
        return await find_orphans(self._nc, self.bucket, older_than)

    # -- writing ------------------------------------------------------------------------------------------------------

    async def put(
        self,
        name: str,
        source: Source,
        *,
        description: str = "",
        headers: Mapping[str, str | Iterable[str]] | None = None,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int = CHUNK_SIZE,
        chunk_headers: bool = False,
        expected: int | None = None,
        progress: Progress = None,
    ) -> ObjectInfo:
        """Store an object under a name, in the place of what is there; nobody sees it before it is whole.

        `source` is bytes, a binary file, a `pathlib.Path`, or an iterable or async iterable of bytes. `expected` is the
        `sequence` of the description that this one is to replace, 0 if there must be none: ConditionError if somebody
        was faster. With `chunk_headers` each chunk says where it belongs, so that readers of chunks can read it, too.

        If it fails or is cancelled, what was stored of it is purged, and the object that was there stays. A put from
        bytes or a file begins anew if the connection breaks; with other sources that is an error.
        """
        self._check_writable()
        info = ObjectInfo(
            name=check_object(name),
            bucket=self.bucket,
            nuid="",
            description=description,
            headers=check_headers(headers),
            metadata=check_metadata(metadata),
            chunk_size=chunk_size,
        )
        check_put(self._nc, source, chunk_size, chunk_headers=chunk_headers)
        seen = await self._descriptions.look(name)
        if expected is not None and expected != seen.sequence:
            raise self._descriptions.other(name, expected, seen.sequence)
        stored = await put_chunks(
            self._nc,
            self.stream,
            info,
            source,
            chunk_headers=chunk_headers,
            timeout=self._timeout,
            progress=progress,
        )
        describing = asyncio.ensure_future(self._descriptions.replace(stored, seen, expected=expected, chunks=True))
        try:
            return await asyncio.shield(describing)
        except asyncio.CancelledError:
            # It is on its way: it is stored, with its chunks, or they are purged, and nothing in between.
            await asyncio.wait([describing], timeout=self._timeout)
            raise

    async def purge_orphans(self, older_than: str | float = _ORPHANS) -> Sequence[Orphan]:
        """Remove the chunks that no object has, as `orphans` finds them, and give what was removed.

        Of a put that goes on later, against all appearances, nothing is lost without a word: it fails.
        """
        found = await self.orphans(older_than)
        for orphan in found:
            await purge_orphan(self._nc, self.bucket, orphan)
        return found

    async def delete(self, name: str, *, expected: int | None = None) -> None:
        """Delete an object, or a link; what a link leads to stays. NotFoundError if there is none.

        `expected` is the `sequence` of the description that is to go: ConditionError if another one is there.
        """
        self._check_writable()
        for attempt in range(1, _TIMES + 1):
            seen = await self._descriptions.look(name)
            if not seen.is_object:
                raise self._no_object(name, "It was deleted." if seen.sequence else "")
            if expected is not None and expected != seen.sequence:
                raise self._descriptions.other(name, expected, seen.sequence)
            found = seen.info or ObjectInfo(name=name, bucket=self.bucket, nuid=new_nuid())
            gone = found.changed(deleted=True, size=0, chunks=0, digest=None)
            try:
                await self._descriptions.replace(gone, seen, expected=seen.sequence)
            except ConditionError:
                if attempt == _TIMES or expected is not None:
                    raise
                continue  # somebody put it anew: that is what is to be deleted, then
            await self._descriptions.purge(found)
            return

    async def update(
        self,
        name: str,
        *,
        rename: str | None = None,
        description: str | None = None,
        headers: Mapping[str, str | Iterable[str]] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        """Change what is said of an object, or its name; what is None stays. A name that is taken is an InputError.

        The bytes stay where they are. A rename is two writes: after a kill in between, both names have the object.
        """
        self._check_writable()
        fields: dict[str, Any] = {}
        if description is not None:
            fields["description"] = description
        if headers is not None:
            fields["headers"] = check_headers(headers)
        if metadata is not None:
            fields["metadata"] = check_metadata(metadata)
        if rename is not None and check_object(rename) != name:
            return await self._rename(name, rename, fields)
        found = await self.info(name)
        return await self._replace(found.changed(**fields), found)

    async def rename(self, name: str, new: str) -> ObjectInfo:
        """Give an object another name."""
        return await self.update(name, rename=new)

    async def _rename(self, name: str, new: str, fields: dict[str, Any]) -> ObjectInfo:
        found = await self.info(name)
        seen = await self._descriptions.look(new)
        if seen.is_object:
            raise InputError(f"Bucket {self.bucket} has an object {new!r} already.", remedy="Delete it first.")
        made = await self._descriptions.replace(found.changed(name=new, **fields), seen, expected=seen.sequence)
        # The old name ends with a description of its own, not with a purge: who watches hears of it, and who put
        # another object there meanwhile is not robbed of it. Its id is another one, so that nobody who deletes the old
        # name once more takes the chunks of the new one for those of the old one.
        gone = ObjectInfo(name=name, bucket=self.bucket, nuid=new_nuid(), deleted=True)
        try:
            await self._replace(gone, found)
        except ConditionError:
            # Whoever replaced the object has removed its chunks.
            await self._replace(gone.changed(name=new, nuid=new_nuid()), made)
            raise
        return made

    async def _replace(self, info: ObjectInfo, before: ObjectInfo) -> ObjectInfo:
        """Publish a description in the place of another one, and of that alone."""
        at = before.sequence or 0
        return await self._descriptions.replace(info, Seen(before, at), expected=at)

    async def add_link(self, name: str, target: ObjectInfo | str, *, bucket: str | None = None) -> ObjectInfo:
        """Add a link to an object, of this bucket or of another one; a link that has the name is replaced.

        The target must be there and be no link itself, so that links lead somewhere.
        """
        self._check_writable()
        if isinstance(target, ObjectInfo) and bucket is not None:
            raise InputError("The target is an object, and bucket is given, too.", remedy="Leave bucket out.")
        wanted, where = (target, bucket) if isinstance(target, str) else (target.name, target.bucket)
        link = check_link(where or self.bucket, check_object(wanted))
        found = await (await ObjectStore.open(self._nc, link.bucket)).info(wanted)
        if found.is_link:
            what = f"{wanted!r} of bucket {link.bucket} is a link itself."
            raise InputError(what, remedy="Link to what that leads to.")
        return await self._link(name, link)

    async def add_bucket_link(self, name: str, bucket: str) -> ObjectInfo:
        """Add a link to a whole bucket, which must be there; a link that has the name is replaced."""
        self._check_writable()
        link = check_link(bucket, None)
        await ObjectStore.open(self._nc, bucket)
        return await self._link(name, link)

    async def _link(self, name: str, link: ObjectLink) -> ObjectInfo:
        if link == ObjectLink(self.bucket, name):
            raise InputError(f"{name!r} would be a link to itself.", remedy="Give it another name.")
        seen = await self._descriptions.look(name)
        if seen.is_object and not (seen.info is not None and seen.info.is_link):
            raise InputError(f"Bucket {self.bucket} has an object {name!r} already.", remedy="Delete it first.")
        made = ObjectInfo(name=check_object(name), bucket=self.bucket, nuid=new_nuid(), link=link)
        return await self._descriptions.replace(made, seen, expected=seen.sequence)

    def _check_writable(self) -> None:
        origin = self._descriptions.held
        if origin != self.bucket:
            raise InputError(f"Bucket {self.bucket} mirrors {origin}, and takes nothing.", remedy=f"Write to {origin}.")


def _check_free(path: Path, overwrite: bool) -> None:
    if not path.parent.is_dir():
        raise InputError(f"There is no folder {path.parent}.", remedy="Make it first.")
    if path.is_dir():
        raise InputError(f"{path} is a folder.", remedy="Name a file in it.")
    if path.exists() and not overwrite:
        raise _taken(path)


def _taken(path: Path) -> InputError:
    return InputError(f"There is {path} already.", remedy="Choose another name, or overwrite it.")


async def _make_file(stored: StoredObject, path: Path, progress: Progress) -> None:
    with PartFile(path.parent) as part:
        await _copy(stored, part.file, progress)
        try:
            await asyncio.to_thread(part.keep, path)
        except FileExistsError:
            raise _taken(path) from None


async def _replace_file(stored: StoredObject, path: Path, progress: Progress) -> None:
    with Replacement(path) as new:
        await _copy(stored, new.file, progress)
        await asyncio.to_thread(new.keep)


async def _copy(stored: StoredObject, file: IO[bytes], progress: Progress) -> None:
    held: list[bytes] = []
    size = 0
    async for piece in stored:
        held.append(piece)
        size += len(piece)
        if size >= _TOGETHER or stored.position == stored.size:
            await asyncio.to_thread(file.writelines, held)
            held, size = [], 0
            if progress is not None:
                progress(stored.position)
