"""What is known of an object: the JSON that describes it in its bucket, as a frozen value. Pure.

The fields, and their order, are those that nats.go writes::

    name  description  headers  metadata  options {link {bucket name}, max_chunk_size}
    bucket  nuid  size  mtime  chunks  digest  deleted

The time of an object is that of the message that describes it, so what is stored says a time that nobody means. What
another version wrote in fields that this one does not know is kept, and written again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self

from penstock.buckets.key_wire import check_bucket
from penstock.buckets.object_wire import read_digest
from penstock.errors import InputError, LocalProtocolError, RemoteProtocolError
from penstock.times import format_time
from penstock.wire.jetstream.answers import number, part, read_json, text
from penstock.wire.protocol import encode_headers

__all__ = ["ObjectInfo", "ObjectLink", "check_headers", "check_link", "check_metadata"]

_NO_TIME: Final = "0001-01-01T00:00:00Z"  # what Go writes for a time that is not set
_FIELDS = {"name", "description", "headers", "metadata", "options", "bucket", "nuid", "size", "mtime"}
_FIELDS |= {"chunks", "digest", "deleted"}
# Go writes these so, to be safe in HTML.
_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


@dataclass(frozen=True, slots=True)
class ObjectLink:
    """What an object that is a link leads to: an object, or a whole bucket."""

    bucket: str
    """The bucket that the target is in, or is."""
    name: str | None = None
    """The object; None for the whole bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What a bucket says of one object."""

    name: str
    """The name, any text."""
    bucket: str
    """The bucket that it is in."""
    nuid: str
    """Which of the bucket's chunks are its own; every write makes up another one."""
    size: int = 0
    """How many bytes it has."""
    chunks: int = 0
    """How many messages hold them."""
    digest: str | None = None
    """The SHA-256 of the bytes, as `SHA-256=<base64>`; None for links and deleted objects."""
    time: datetime | None = None
    """When it was described as it is now; None if that is not known yet."""
    sequence: int | None = None
    """The sequence of the message that describes it: another one after each change; None if that is not known."""
    description: str = ""
    """What somebody wrote about it."""
    headers: Mapping[str, list[str]] = field(default_factory=dict)
    """Headers of the object, several values each; they are part of its description, not of its chunks."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Further facts by name."""
    chunk_size: int | None = None
    """The most bytes of a chunk; None if nothing was said."""
    link: ObjectLink | None = None
    """Where it leads, if it is a link."""
    deleted: bool = False
    """Whether it was deleted; then there is nothing but this description."""
    unknown: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Fields that this version does not know."""
    unknown_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The same, of the options of the object."""

    @property
    def is_link(self) -> bool:
        """Whether it leads elsewhere and has no bytes of its own."""
        return self.link is not None

    @property
    def sha256(self) -> bytes | None:
        """The digest as bytes; None if there is none, or of another kind."""
        return None if self.digest is None else read_digest(self.digest)

    def changed(self, **fields: Any) -> Self:
        """Give the value with other fields; what is not named stays as it is."""
        return dataclasses.replace(self, **fields)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read a description; RemoteProtocolError for one that cannot be read. `mtime` in it means nothing."""
        options = part(content, "options") if content.get("options") is not None else {}
        link = None
        if options.get("link") is not None:
            found = part(options, "link")
            link = ObjectLink(text(found, "bucket"), text(found, "name", "") or None)
        return cls(
            name=text(content, "name"),
            bucket=text(content, "bucket"),
            nuid=text(content, "nuid", ""),
            size=number(content, "size", 0),
            chunks=number(content, "chunks", 0),
            digest=text(content, "digest", "") or None,
            description=text(content, "description", ""),
            headers=_read_headers(content),
            metadata=_read_texts(content, "metadata"),
            chunk_size=number(options, "max_chunk_size", 0) or None,
            link=link,
            deleted=content.get("deleted") is True,
            unknown={name: value for name, value in content.items() if name not in _FIELDS},
            unknown_options={k: value for k, value in options.items() if k not in ("link", "max_chunk_size")},
        )

    @classmethod
    def from_message(
        cls, bucket: str, name: str, payload: bytes, *, time: datetime | None = None, sequence: int | None = None
    ) -> Self:
        """Read the message that describes an object, `name` being what its subject says.

        RemoteProtocolError if it describes another one: nobody could say then whose bytes are whose. The bucket is the
        one that was asked, whatever the description says: a copy of a bucket has the descriptions of its origin.
        """
        try:
            found = cls.from_json(read_json(payload))
        except RemoteProtocolError as error:
            what = f"Object {name!r} of bucket {bucket} has a description that cannot be read: {error.what}"
            raise RemoteProtocolError(what, remedy="Put the object again, or delete it.") from None
        if found.name != name:
            what = f"Object {name!r} of bucket {bucket} is described as {found.name!r}."
            raise RemoteProtocolError(what, remedy="Put the object again, or delete it.")
        return found.changed(bucket=bucket, time=time, sequence=sequence)

    def to_json(self) -> dict[str, Any]:
        """Give the fields as nats.go writes them, with the time if it is known."""
        options: dict[str, Any] = {}
        if self.link is not None:
            options["link"] = {"bucket": self.link.bucket} | ({"name": self.link.name} if self.link.name else {})
        if self.chunk_size:
            options["max_chunk_size"] = self.chunk_size
        options |= self.unknown_options
        content: dict[str, Any] = {"name": self.name}
        if self.description:
            content["description"] = self.description
        if self.headers:
            content["headers"] = {name: list(self.headers[name]) for name in sorted(self.headers)}
        if self.metadata:
            content["metadata"] = {name: self.metadata[name] for name in sorted(self.metadata)}
        if options:
            content["options"] = options
        content |= {"bucket": self.bucket, "nuid": self.nuid, "size": self.size}
        content |= {"mtime": _NO_TIME if self.time is None else format_time(self.time), "chunks": self.chunks}
        if self.digest:
            content["digest"] = self.digest
        if self.deleted:
            content["deleted"] = True
        return {**content, **self.unknown}

    def encode(self) -> bytes:
        """Write the description as it is stored, byte by byte as nats.go does."""
        content = {**self.to_json(), "mtime": _NO_TIME}
        return (
            json.dumps(content, ensure_ascii=False, separators=(",", ":"))
            .translate(_ESCAPES)
            .encode("utf-8", "backslashreplace")
        )


def _read_headers(content: Mapping[str, Any]) -> dict[str, list[str]]:
    found = part(content, "headers") if content.get("headers") is not None else {}
    headers = {name: [values] if isinstance(values, str) else values for name, values in found.items()}
    if not all(isinstance(values, list) and all(isinstance(v, str) for v in values) for values in headers.values()):
        raise RemoteProtocolError("The headers of an object are not lists of texts.")
    return headers


def _read_texts(content: Mapping[str, Any], name: str) -> dict[str, str]:
    found = part(content, name) if content.get(name) is not None else {}
    if not all(isinstance(value, str) for value in found.values()):
        raise RemoteProtocolError(f"The {name} of an object are not texts.")
    return found


def check_headers(headers: Mapping[str, str | Iterable[str]] | None) -> dict[str, list[str]]:
    """Give headers of an object as they are stored; refuse what another client could not send as headers."""
    made = {name: [given] if isinstance(given, str) else list(given) for name, given in (headers or {}).items()}
    try:
        encode_headers(made)
    except (LocalProtocolError, TypeError) as error:
        what = error.what if isinstance(error, LocalProtocolError) else "the values are not texts."
        raise InputError(f"A header of the object cannot be used: {what}", remedy="Give texts by name.") from None
    return made


def check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Give the metadata of an object or a bucket; refuse what is not text."""
    made = dict(metadata or {})
    if not all(isinstance(item, str) for pair in made.items() for item in pair):
        raise InputError("The metadata are not texts by name.", remedy="Give texts, such as str(value).")
    return made


def check_link(bucket: str, name: str | None) -> ObjectLink:
    """Give the link to an object, or without a name to a whole bucket; refuse what cannot be one."""
    check_bucket(bucket)
    if name == "":
        raise InputError("The object to link to has no name.", remedy="Give one, or none for the whole bucket.")
    return ObjectLink(bucket, name)
