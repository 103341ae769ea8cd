"""What the driver finds out about a bucket before tasks read it: where its keys are, and which message is each's last.

A bucket keeps the last values of a key, one or a few, and drops older ones: what is missing in its stream was mostly
overwritten, and is not a loss. What the state of a bucket at a sequence was, below which messages were dropped since,
is known key by key: a key that still has a message below the sequence had that value, since the oldest go first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.buckets.key_wire import stream_of_bucket
from penstock.errors import DataLossError, InputError
from penstock.spark.bucket_entries import ages, bucket_prefix, check_same, overwritten
from penstock.spark.connections import TaskConnection
from penstock.spark.offsets import Mark
from penstock.spark.source_options import SourceOptions
from penstock.spark.survey import Survey
from penstock.times import parse_time
from penstock.wire.jetstream import names

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BucketSurvey", "OverwrittenSurvey"]

SCAN_ROWS = 65_536


class OverwrittenSurvey(Survey):
    """A stream in which newer messages take the place of older ones, so that what is missing is mostly no loss."""

    bucket: str

    @property
    def ages(self) -> bool:
        """Whether what it keeps goes away by itself."""
        return ages(self.config)

    # -- losses -------------------------------------------------------------------------------------------------

    def lacks(self, place: int) -> bool:
        """Tell whether changes from a place on are gone and were not overwritten.

        The last message of a stream is overwritten by none: if nothing is left at all, it was purged.
        """
        return self.messages == 0 and self.last >= place and not self.ages

    def expired(self, place: int) -> int:
        """Give the place: a value whose time is over is gone from the bucket, as it should be."""
        return place

    def loss(self, start: int, end: int) -> DataLossError:
        return DataLossError(
            f"The bucket {self.bucket} is empty, and its changes [{start}, {end}) are gone before they were read.",
            remedy="Nothing overwrote them: its stream was purged. Start anew with another checkpoint, or set "
            "failOnDataLoss to false to go on with what comes.",
            stream=self.name,
            start=start,
            end=end,
            first=self.first,
            last=self.last,
        )

    # -- places -------------------------------------------------------------------------------------------------

    def _last(self) -> int:
        """Give where the last messages of all keys begin."""
        return self.first


class BucketSurvey(OverwrittenSurvey):
    """The stream of a bucket as the server described it, and what its keys are."""

    def __init__(self, bulk: TaskConnection, options: SourceOptions, mark: Mark | None = None) -> None:
        bucket = options.bucket or ""
        super().__init__(bulk, stream_of_bucket(bucket), None, mark)
        self.bucket = bucket
        self.patience = options.patience
        self.prefix = bucket_prefix(bucket, self.config)
        """What stands before a key."""
        self.history: int = self.config["max_msgs_per_subject"]
        """How many values of a key are kept."""
        self.subjects = tuple(f"{self.prefix}{pattern}" for pattern in options.keys or (">",))
        self.data_subjects, self.hides, self.first = None, False, self.head

    def _absent(self, bulk: TaskConnection, name: str, noun: str = "bucket", prefix: str = "KV_") -> InputError:
        return super()._absent(bulk, name, noun, prefix)

    # -- keys ---------------------------------------------------------------------------------------------------

    def scan(
        self, start: int, end: int, subjects: tuple[str, ...] | None = None, *, headers: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Read the messages of a range without their values; those of the keys that are read, unless told."""
        return self.bulk.read(
            self.name,
            start,
            end,
            subjects or self.subjects,
            batch_rows=SCAN_ROWS,
            headers=headers,
            payloads=False,
            timeout=self.patience,
            on_loss=overwritten(end),
        )

    def lasts(self, end: int) -> pa.Table:
        """Give subject and sequence of each key's last message below a sequence, in the order of the sequences."""
        import pyarrow as pa

        kind = pa.schema([("subject", pa.string()), ("sequence", pa.int64())])
        found = pa.Table.from_batches(
            [batch.select(kind.names).cast(kind) for batch in self.scan(self.head, end)] if end > self.head else [],
            kind,
        )
        # Also of a bucket without history there may be two: a replica that lags has still what the leader overwrote.
        lasts = found.group_by("subject").aggregate([("sequence", "max")])
        return pa.table([lasts["subject"], lasts["sequence_max"]], schema=kind).sort_by("sequence")

    def names_now(self) -> dict[str, int]:
        """Give the subjects of all keys that are read, and how many messages each has."""
        found: dict[str, int] = {}
        for subject in self.subjects or ():
            found |= self.bulk.totals(self.name, subject)
        return found

    # -- the past -----------------------------------------------------------------------------------------------

    def check_past(self, end: int, seen: set[str]) -> None:
        """Refuse to say what the bucket was at a sequence, if it cannot be known; `seen` have a message below it."""
        if end <= 1 or (self.head == 1 and self.deleted == 0 and self.messages):
            return  # all that it ever held is there
        if self.ages and not self._is_young():
            why = "its values have a time to live, and those that are over since left no trace"
            raise self._unknown(end, why)
        everything = self.bulk.totals(self.name, ">")
        unseen = {subject: count for subject, count in self.names_now().items() if subject not in seen}
        full = sorted(subject for subject, count in unseen.items() if count >= self.history)
        if full:
            more = f" and {len(full) - 1} more" if len(full) > 1 else ""
            why = f"of the key {full[0].removeprefix(self.prefix)}{more} only later values are left"
            raise self._unknown(end, f"{why}, of which it keeps {self.history}")
        is_trimmed = any(count >= self.history for count in everything.values())
        if unseen or (not is_trimmed and self.messages < self.last):
            rolled = self._rolled_up()
            if hidden := sorted(rolled & unseen.keys()):
                raise self._unknown(end, f"the key {hidden[0].removeprefix(self.prefix)} was purged since, or ended")
            if not is_trimmed and not rolled and self.messages < self.last:
                raise self._unknown(end, "messages were removed from its stream")

    def _is_young(self) -> bool:
        """Tell whether no value can have gone by its age, since the bucket is younger than that."""
        age = timedelta(seconds=self.config.get("max_age", 0) / 1e9)
        return not self.config.get("allow_msg_ttl") and parse_time(self.created) > self.asked - age

    def _rolled_up(self) -> set[str]:
        """Give the keys whose first message removed those before it, or was written by the server in their place."""
        found: dict[str, bool] = {}
        for batch in self.scan(self.head, self.next, (">",), headers=True):
            for subject, headers in zip(
                batch.column("subject").to_pylist(), batch.column("headers").to_pylist(), strict=True
            ):
                if subject not in found:
                    found[subject] = bool({names.ROLLUP, names.MARKER_REASON} & dict(headers).keys())
        return {subject for subject, rolled in found.items() if rolled}

    def _unknown(self, end: int, why: str) -> DataLossError:
        return DataLossError(
            f"What the bucket {self.bucket} held before {end} is not known: {why}.",
            remedy="Name a later end, or none for what it holds now; with more history it can be read further back.",
            stream=self.name,
            start=self.first,
            end=end,
            first=self.first,
            last=self.last,
        )

    def described(self) -> Mapping[str, Any]:
        """Ask how the stream stands now; DataLossError if it is another one, or ends earlier."""
        info = self.bulk.stream_info(self.name, self.created, self.next)
        check_same(info, self.name, self.created, self.next)
        return info
