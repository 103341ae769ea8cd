"""What the exactly-once sink says when it stops: whose rows, in which stream, what happened, and what to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import DeadlineError, FencedError, JetStreamError, MarkerError, PenstockError
from penstock.spark.markers import Head, MarkerSubjects, Tally
from penstock.wire.jetstream.answers import REMEDIES

__all__ = ["WRITE", "Refusals"]

WRITE = "write-"  # how the query of a write that is not a query begins; its name follows
START = '.option("onMissingMarkers", "start") for one start'
ANY = '.option("onRepeatedKeys", "any") for one start'
ONE_ROW = (
    "Let a batch have one row a key, such as groupBy(key).agg(max_by(value, sequence)); or bring the rows of a key "
    "into one partition, in their order, such as coalesce(1)."
)
KEEP = '.option("onChangedRows", "keep") for one start'
# What the server says to a message that it cannot store, by err_code, and what to do. 10077 carries the words of the
# store, of which the first that fits counts.
ROOM = {
    **REMEDIES,
    10054: "The stream's max_msg_size is smaller: raise it, or write smaller rows.",
    10077: "The server could not store it: its log says why.",
}
LIMITS = {
    "maximum messages per subject": "max_msgs_per_subject",
    "maximum messages": "max_msgs",
    "maximum bytes": "max_bytes",
}


@dataclass(frozen=True)
class Refusals:
    """The errors of one batch of one query in one stream."""

    stream: str
    query: str
    batch: int
    series: bool = True
    """Whether batches follow each other."""

    @property
    def _facts(self) -> dict[str, object]:
        return {"stream": self.stream, "query": self.query, "batch": self.batch}

    def _name(self, batch: int) -> str:
        """Name a batch as people know it."""
        write = f"he write {self.query.removeprefix(WRITE)}" if self.query.startswith(WRITE) else ""
        if not self.series:
            return f"T{write} into stream {self.stream}"
        return f"Batch {batch} of {f't{write}' if write else 'this query'} in stream {self.stream}"

    def broken(self, what: str, remedy: str) -> MarkerError:
        """Say that the stream and the query disagree."""
        return MarkerError(what, remedy=remedy, **self._facts)

    # -- the order of batches -------------------------------------------------------------------------------------

    def no_order(self, head: Head | None) -> MarkerError:
        """Say that a batch does not follow on what the stream knows."""
        if head is None:
            what = f"Stream {self.stream} knows nothing of this query, and batch {self.batch} is not its first."
            why = "Its markers were purged, fell to a limit of the stream, or went with an older copy of it"
        elif head.state == "done":
            what = f"Stream {self.stream} knows this query up to batch {head.batch}, and now comes {self.batch}."
            why = "The stream was restored from a backup, or batches were written with another guarantee"
        elif head.state == "changed":
            return self.changed(head)
        else:
            what = (
                f"Batch {head.batch} of this query is unfinished in stream {self.stream}, and now comes {self.batch}."
            )
            why = (
                "The stream was restored from a backup, an older copy of the checkpoint began to write the batch "
                "again, or the batch was written with another guarantee"
            )
        return self.broken(
            what, f"{why}: rows may be missing or come twice. To go on from here all the same, set {START}."
        )

    def newer(self, head: Head) -> MarkerError:
        """Say that the stream is further than the query."""
        everything = MarkerSubjects(self.stream, self.query).all
        return self.broken(
            f"Stream {self.stream} holds batch {head.batch} of this query, and this run wants to write batch "
            f"{self.batch}.",
            "The checkpoint is older than the stream (restored from a backup?), or two drivers share it. "
            "Batches planned anew would not be the same, so nothing was written. Use the newest checkpoint, or a new "
            f"one whose source starts behind what is written; `penstock stream purge {self.stream} --subject "
            f"'{everything}'` and onMissingMarkers=start accept repeated rows instead.",
        )

    # -- somebody else, or nobody ---------------------------------------------------------------------------------

    def fenced(self, partition: int | None) -> FencedError:
        """Say that somebody else writes now."""
        part = "" if partition is None else f", partition {partition}"
        return FencedError(
            f"Another attempt or another driver has taken over batch {self.batch}{part} of this query in stream "
            f"{self.stream}; nothing more of this attempt is stored.",
            remedy="Nothing to do if Spark goes on with the other one. Two drivers must not share a checkpoint, nor "
            "copies of one.",
            partition=partition,
            **self._facts,
        )

    def dropped(self) -> MarkerError:
        """Say that markers are gone which nobody replaced."""
        return self.broken(
            f"Stream {self.stream} has dropped markers of batch {self.batch} while it was being written.",
            "A purge or a limit of the stream took them, or it was made anew: a batch must fit into the stream's "
            f"limits several times over. Rows may come twice if the query goes on; to accept that, set {START}.",
        )

    def went_back(self) -> MarkerError:
        """Say that the stream is not the one, or not as new, as when the batch was begun."""
        return self.broken(
            f"Stream {self.stream} was restored from an older copy, or made anew, while batch {self.batch} was being "
            "written: it does not hold what this run stored in it.",
            "Start the query again: it writes the batch again if the stream has all batches before it, and says so "
            "if it has not.",
        )

    def late(self, what: str, seconds: float, trouble: PenstockError | None) -> DeadlineError:
        """Say that the time is over, and what was the trouble all the time."""
        remedy = "Many writers at once, or a cluster without a leader: try again, or raise the option patience."
        if isinstance(trouble, JetStreamError):
            remedy = self.not_stored(trouble).remedy or remedy
        return DeadlineError(
            f"Could not {what} in stream {self.stream} within {seconds:g} s{f': {trouble.what}' if trouble else '.'}",
            remedy=remedy,
            seconds=seconds,
        )

    # -- other rows -----------------------------------------------------------------------------------------------

    def lacking(self, lacks: int, stored: int) -> MarkerError:
        """Say that a batch, computed again, has not all rows that are stored."""
        return self.broken(
            f"{self._name(self.batch)} was computed again, and {lacks} of the {stored} rows that were stored before "
            "are not in it any more. All its rows are stored now, and those, too; later starts write nothing.",
            "The query is not deterministic (rand, uuid, a lookup that changed), or its code was changed in the "
            "middle of a batch; or its checkpoint lost the batch and planned it anew with fewer rows, and then the "
            f"others come again with the next batch. To keep what is stored and go on, set {KEEP}.",
        )

    def changed(self, head: Head) -> MarkerError:
        """Say that a batch was found changed by an earlier start."""
        rows = 0 if head.tally is None else head.tally.rows
        return self.broken(
            f"{self._name(head.batch)} was computed again with other rows{_at(head)}: beside the {rows} rows of the "
            f"last time the stream holds {head.lacks} of an earlier time. Nothing was written by this start.",
            "Make the query deterministic (no rand, uuid, lookups that change). To keep all those rows, add nothing, "
            f"and go on with the next batch, set {KEEP}.",
        )

    def unequal(self, head: Head, tally: Tally) -> MarkerError:
        """Say that a batch which is done comes again with other rows, and that nobody can tell which are missing."""
        assert head.tally is not None
        what = (
            f"{self._name(self.batch)} was done{_at(head)} with {head.tally.rows} rows, and now comes with other rows "
            f"({tally.rows} rows). Nothing was written."
        )
        if self.query.startswith(WRITE) and not self.batch:
            return self.broken(
                what, "Give another write another writeId; the same rows under the same one add nothing."
            )
        everything = MarkerSubjects(self.stream, self.query).all
        return self.broken(
            what,
            "The checkpoint lost its last batch, or the query is not deterministic; and what would tell which rows "
            f"are missing fell to a limit of the stream or to a purge. To go on without them, set {KEEP}; `penstock "
            f"stream purge {self.stream} --subject '{everything}'` and onMissingMarkers=start write the whole batch "
            "again instead.",
        )

    def retried(self, partition: int, lacks: int) -> MarkerError:
        """Say that a task that is tried again has not all rows that its first attempt stored."""
        return self.broken(
            f"Partition {partition} of batch {self.batch} lacks {lacks} rows that an earlier attempt at it stored. "
            "Nothing was written by this attempt.",
            "The query is not deterministic, or Spark computed the stage anew in another order; started "
            "again, the query compares the rows of all partitions.",
        )

    # -- rows with keys -------------------------------------------------------------------------------------------

    def repeated(self, count: int) -> MarkerError:
        """Say that partitions of a batch wrote the same keys."""
        return self.broken(
            f"{self._name(self.batch)} has rows of {_keys(count)} in more than one partition: which of them was stored "
            "last, nobody knows. All rows are stored.",
            f"{ONE_ROW} To accept what is stored, set {ANY}.",
        )

    def disordered(self, partition: int, count: int) -> MarkerError:
        """Say that the rows of keys were stored in another order than they come in now."""
        return self.broken(
            f"Rows of {_keys(count)} in partition {partition} of batch {self.batch} were stored by an earlier attempt "
            "in another order than they come in now. Nothing was written by this attempt.",
            f"The query does not keep the order of its rows. {ONE_ROW} To accept any of them as the last, set {ANY}.",
        )

    # -- what the server refuses ----------------------------------------------------------------------------------

    def not_stored(self, error: JetStreamError) -> JetStreamError:
        """Name the batch and the stream in what the server said, and what to do if that is known.

        What is stored stays: the next start stores the rest.
        """
        if error.err_code is None:
            return error
        said = str(error.description)
        limit = next((limit for words, limit in LIMITS.items() if words in said), None)
        remedy = ROOM.get(error.err_code, error.remedy)
        if limit is not None:
            remedy = (
                f"The stream has reached its {limit} and discards what is new: raise it (penstock stream edit), or "
                "make room."
            )
        return type(error)(
            f"{self._name(self.batch)} could not be stored: {said} ({error.err_code}).",
            remedy=f"{remedy} Then start again: what is stored is not stored a second time." if remedy else "",
            code=error.code,
            err_code=error.err_code,
            description=error.description,
        )


def _keys(count: int) -> str:
    return "one key" if count == 1 else f"{count} keys"


def _at(head: Head) -> str:
    return f" at {head.time.partition('.')[0].removesuffix('Z')}Z" if head.time else ""
