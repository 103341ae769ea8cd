"""`BucketStatus`: how a key-value bucket stands, read from its stream."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.info import StreamInfo

__all__ = ["BucketStatus"]


@dataclass(frozen=True)
class BucketStatus:
    """A bucket as the server holds it; `stream` has all that is known of its stream."""

    bucket: str
    stream: StreamInfo

    @property
    def created(self) -> datetime | None:
        """When it was made: another bucket of the same name has another time."""
        return self.stream.created

    @property
    def values(self) -> int:
        """How many entries it holds: history and markers of deleted keys are counted, too."""
        return self.stream.messages

    @property
    def bytes(self) -> int:
        """How many bytes they take."""
        return self.stream.bytes

    @property
    def revision(self) -> int:
        """The last revision that it gave."""
        return self.stream.last_sequence

    @property
    def history(self) -> int:
        """How many values of a key it keeps."""
        return self.stream.config.max_msgs_per_subject

    @property
    def ttl(self) -> float:
        """For how many seconds it keeps a value; 0 for ever."""
        return self.stream.config.max_age

    @property
    def marker_ttl(self) -> float | None:
        """For how many seconds a marker says that a key ended; None if keys have no time to live of their own."""
        return self.stream.config.subject_delete_marker_ttl or None

    @property
    def is_compressed(self) -> bool:
        """Whether its files are compressed."""
        return self.stream.config.compression != "none"

    @property
    def description(self) -> str:
        """A sentence for people, or nothing."""
        return self.stream.description

    @property
    def mirror(self) -> str | None:
        """The bucket that it copies, if it is a mirror."""
        mirror = self.stream.config.mirror
        return None if mirror is None else mirror.name.removeprefix("KV_")

    @property
    def lag(self) -> int | None:
        """How many entries a mirror is behind its origin; None if it is not a mirror."""
        return None if self.stream.config.mirror is None else sum(copy.lag for copy in self.stream.copies)
