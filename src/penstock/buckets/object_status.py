"""An object bucket as a stream: how one is declared, and what the server says of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from penstock.buckets.object_wire import chunk_subjects, description_subjects, stream_of_objects
from penstock.info import StreamInfo
from penstock.wire.jetstream.names import HEADER_PREFIX

if TYPE_CHECKING:
    from penstock.model import Placement, Stream

__all__ = ["ObjectStoreStatus", "changes_of", "is_object_stream", "object_stream"]

_PREFIX = "OBJ_"
_SERVER_METADATA = f"_{HEADER_PREFIX.lower().rstrip('-')}."  # what servers write into the metadata of a stream


def changes_of(
    *,
    description: str | None = None,
    ttl: str | float | None = None,
    max_bytes: int | None = None,
    replicas: int | None = None,
    placement: Placement | None = None,
    metadata: Mapping[str, str] | None = None,
    compression: bool | None = None,
) -> dict[str, Any]:
    """Give the fields of a stream that the settings of a bucket are; what is None is left out."""
    given: dict[str, Any] = {
        "description": description,
        "max_age": ttl,
        "max_bytes": -1 if max_bytes == 0 else max_bytes,
        "num_replicas": replicas,
        "placement": placement,
        "metadata": None if metadata is None else dict(metadata),
        "compression": None if compression is None else "s2" if compression else "none",
    }
    return {name: value for name, value in given.items() if value is not None}


def object_stream(bucket: str, storage: Literal["file", "memory"] = "file", **settings: Any) -> Stream:
    """Declare the stream of a bucket, as other clients do."""
    from penstock.model import Stream  # a list of buckets does not wait for it

    return Stream(
        name=stream_of_objects(bucket),
        subjects=[chunk_subjects(bucket), description_subjects(bucket)],
        storage=storage,
        discard="new",
        allow_rollup_hdrs=True,
        allow_direct=True,
        **changes_of(**settings),
    )


@dataclass(frozen=True)
class ObjectStoreStatus:
    """How a bucket is set up, and how much it holds."""

    stream: StreamInfo
    """What the server says of its stream."""

    @property
    def bucket(self) -> str:
        """Its name."""
        return self.stream.name.removeprefix(_PREFIX)

    @property
    def description(self) -> str:
        """What somebody wrote about it."""
        return self.stream.description

    @property
    def ttl(self) -> float:
        """For how many seconds objects are kept; 0 for ever."""
        return self._number("max_age") / 1e9

    @property
    def max_bytes(self) -> int:
        """The most bytes that it holds; -1 for no limit."""
        return self._number("max_bytes") or -1

    @property
    def storage(self) -> str:
        """Where it is kept: file or memory."""
        return str(self._config.get("storage") or "file")

    @property
    def replicas(self) -> int:
        """How many servers keep a copy."""
        return self._number("num_replicas") or 1

    @property
    def is_sealed(self) -> bool:
        """Whether nothing can be changed in it any more."""
        return self._config.get("sealed") is True

    @property
    def is_compressed(self) -> bool:
        """Whether it is compressed on disk."""
        return self._config.get("compression") not in (None, "none")

    @property
    def metadata(self) -> dict[str, str]:
        """Text by key, without what servers add."""
        found = self._config.get("metadata") or {}
        return {name: value for name, value in found.items() if not name.startswith(_SERVER_METADATA)}

    @property
    def is_bucket(self) -> bool:
        """Whether the stream holds objects, and does not only have the name of one that does."""
        copies = self._config.get("mirror") or self._config.get("sources")
        return bool(copies) or description_subjects(self.bucket) in (self._config.get("subjects") or [])

    @property
    def mirror(self) -> str | None:
        """The bucket that it copies, if it is a mirror."""
        origin = (self._config.get("mirror") or {}).get("name")
        return str(origin).removeprefix(_PREFIX) if origin else None

    @property
    def created(self) -> datetime | None:
        """When it was made: another bucket of the same name has another time."""
        return self.stream.created

    @property
    def bytes(self) -> int:
        """How many bytes it takes, descriptions included."""
        return self.stream.bytes

    @property
    def _config(self) -> dict[str, Any]:
        found: dict[str, Any] = self.stream.raw["config"]
        return found

    def _number(self, name: str) -> int:
        value = self._config.get(name)
        return value if isinstance(value, int) else 0


def is_object_stream(info: StreamInfo) -> bool:
    """Tell whether a stream is an object bucket: by its name, as other clients do."""
    return info.name.startswith(_PREFIX) and len(info.name) > len(_PREFIX)
