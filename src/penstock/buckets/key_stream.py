"""The stream of a key-value bucket: how it is declared, and where the keys of one that is there are read and written.

The declaration is that of other clients, field by field, so that each of them finds the same bucket and may make it a
second time. It keeps the last `history` values of a key, refuses new values when it is full, drops no message at the
wish of a client but by a purge of its key, and lets any replica answer.

A mirror keeps the subjects of its origin: its keys are read there, and written where the origin is. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.buckets.key_wire import check_bucket, key_subjects, stream_of_bucket
from penstock.durations import parse_duration
from penstock.errors import InputError
from penstock.model import ExternalStream, Placement, Republish, Stream, StreamSource, SubjectTransform

__all__ = [
    "MOST_HISTORY",
    "Addresses",
    "addresses_of",
    "bucket_of",
    "bucket_source",
    "bucket_stream",
    "check_is_bucket",
]

MOST_HISTORY: Final = 64  # values of a key, in every client
_PREFIX: Final = "KV_"
_WINDOW: Final = 120.0
_API: Final = "$JS.API"


def bucket_stream(
    bucket: str,
    *,
    history: int = 1,
    ttl: str | float = 0.0,
    max_bytes: int | None = None,
    max_value_size: int | None = None,
    storage: Literal["file", "memory"] = "file",
    replicas: int = 1,
    description: str | None = None,
    compression: bool = False,
    placement: Placement | None = None,
    republish: Republish | None = None,
    mirror: str | StreamSource | None = None,
    sources: Iterable[str | StreamSource] = (),
    metadata: Mapping[str, str] | None = None,
    marker_ttl: str | float | None = None,
) -> Stream:
    """Declare the stream of a bucket.

    `history` values of each key are kept, 1 to 64, each for `ttl` (0: for ever). `max_bytes` bounds the bucket, and
    `max_value_size` a value; None stands for no bound. `marker_ttl` lets keys have a time to live of their own, and has
    the server say for so long that one is over. `mirror` and `sources` name other buckets, or streams with all that is
    to be said of them.
    """
    if isinstance(history, bool) or not isinstance(history, int) or not 1 <= history <= MOST_HISTORY:
        raise InputError(f"history is {history!r}.", remedy=f"A bucket keeps 1 to {MOST_HISTORY} values of a key.")
    copied = [*sources]
    if mirror is not None and copied:
        raise InputError(
            f"Bucket {check_bucket(bucket)} has a mirror and sources.", remedy="Use sources for all of them."
        )
    age = parse_duration(ttl, option="ttl")
    markers = None if marker_ttl is None else parse_duration(marker_ttl, option="marker_ttl")
    fields: dict[str, Any] = {}
    if mirror is not None:
        fields = {"mirror": _mirror(mirror), "mirror_direct": True}
    else:
        fields = {"subjects": [key_subjects(bucket)], "sources": [_source(bucket, item) for item in copied]}
    return Stream(
        name=stream_of_bucket(bucket),
        description=description or None,
        max_msgs_per_subject=history,
        max_bytes=_bound(max_bytes, "max_bytes"),
        max_msg_size=_bound(max_value_size, "max_value_size"),
        max_age=age,
        duplicate_window=min(age or _WINDOW, _WINDOW),
        storage=storage,
        num_replicas=replicas,
        placement=placement,
        republish=republish,
        compression="s2" if compression else "none",
        discard="new",
        allow_rollup_hdrs=True,
        deny_delete=True,
        allow_direct=True,
        allow_msg_ttl=bool(markers),
        subject_delete_marker_ttl=markers or None,
        metadata=dict(metadata or {}),
        **fields,
    )


def bucket_source(bucket: str, domain: str | None = None) -> StreamSource:
    """Name another bucket as a mirror or a source, also one of another JetStream domain."""
    if domain is not None and (not domain or any(character in domain for character in ".*> \t\r\n")):
        raise InputError(f"{domain!r} cannot be a domain.", remedy="Name the JetStream domain of the bucket.")
    external = None if domain is None else ExternalStream(api=f"$JS.{domain}.API")
    return StreamSource(name=stream_of_bucket(bucket.removeprefix(_PREFIX)), external=external)


def _mirror(mirror: str | StreamSource) -> StreamSource:
    if isinstance(mirror, str):
        return bucket_source(mirror)
    if mirror.name.startswith(_PREFIX):
        return mirror
    return mirror.changed(name=stream_of_bucket(mirror.name))


def _source(bucket: str, source: str | StreamSource) -> StreamSource:
    """Have what another bucket holds arrive under the subjects of this one; a source that says how stays as it is."""
    found = bucket_source(source) if isinstance(source, str) else source
    if found.subject_transforms:
        return found
    origin = check_bucket(found.name.removeprefix(_PREFIX))
    renamed: list[SubjectTransform] = []
    if found.external is None or origin != bucket:
        renamed = [SubjectTransform(src=key_subjects(origin), dest=key_subjects(bucket))]
    return found.changed(name=stream_of_bucket(origin), subject_transforms=renamed)


def _bound(value: int | None, name: str) -> int:
    if value is None or value in (0, -1):
        return -1
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is {value!r}.", remedy="Give a number of bytes, or leave it out for no bound.")
    return value


# -- a bucket that is there ----------------------------------------------------------------------------------------


def bucket_of(stream: str) -> str | None:
    """Give the bucket whose stream this is, by its name; None if it is not the stream of one."""
    return stream.removeprefix(_PREFIX) if stream.startswith(_PREFIX) and len(stream) > len(_PREFIX) else None


def check_is_bucket(bucket: str, config: Stream) -> None:
    """Refuse a stream that has the name of a bucket and is not one."""
    if config.max_msgs_per_subject < 1:
        raise InputError(
            f"Stream {config.name} is not a bucket: it keeps every message of a subject.",
            remedy=f"Delete it, or give it max_msgs_per_subject from 1 to {MOST_HISTORY}, to use {bucket} as a bucket.",
        )


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the keys of a bucket are: what stands before a key in each case."""

    stream: str
    """The stream that is read."""
    kept: str
    """Before a key in a stored message, which for a mirror is its origin's."""
    written: str
    """Before a key that is published: also the way into another domain."""
    origin: str
    """The stream that stores what is published; another one than is read, if the bucket is a mirror."""
    abroad: bool
    """Whether that stream is reached with another API prefix than the stream that is read."""


def addresses_of(bucket: str, config: Stream, js_prefix: str = _API) -> Addresses:
    """Tell where the keys of a bucket are read and written; `js_prefix` is that of the connection."""
    holder, way, abroad = bucket, "" if js_prefix == _API else f"{js_prefix}.", False
    if config.mirror is not None:
        holder = check_bucket(config.mirror.name.removeprefix(_PREFIX))
        if config.mirror.external is not None and config.mirror.external.api:
            way, abroad = f"{config.mirror.external.api}.", True
    kept = f"$KV.{holder}."
    return Addresses(config.name, kept, f"{way}{kept}", stream_of_bucket(holder), abroad)
