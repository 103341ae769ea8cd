"""Keeping and releasing what a query has not yet, and has, in its checkpoint: work-queue and interest streams.

A stream with limits keeps its messages whatever we do. The others remove a message once their consumers acknowledged
it, so the query holds a durable consumer that is never delivered to, as a bookmark:

- interest: the bookmark `<consumer>-<sequence>` stands at a sequence, and the stream keeps everything from there on.
  To release, a new one is made further on and then the old one is deleted: there is always one, and what lies between
  goes when nobody else wants it.
- work queue: the bookmark `<consumer>` claims the subjects, so that no other worker can take their messages. To
  release, what is below the sequence is purged; before that, the bookmark notes the sequence in its metadata.

Spark tells what its checkpoint has one batch late, so a replay never needs what was released. What is missing of a
query's own subjects looks like what was never there, so the bookmark is what tells: it is gone, somebody took messages
by it, or it stands further on than the query, which then has an older checkpoint or is one of two.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import DataLossError, InputError, JetStreamError, NotFoundError
from penstock.spark.offsets import Mark
from penstock.spark.source_options import BOOKMARK, SourceOptions
from penstock.spark.survey import Survey
from penstock.wire.jetstream.answers import check_done, number, part
from penstock.wire.numbers import read_count
from penstock.wire.subjects import covers

__all__ = ["Release"]

RELEASED = "penstock.released"  # in a bookmark's metadata: everything below this sequence was released


class Release:
    """What one query holds of one stream."""

    def __init__(self, survey: Survey, options: SourceOptions) -> None:
        self.bulk = survey.bulk
        self.stream = survey.name
        self.kind = survey.retention
        self.options = options
        self.subjects = survey.subjects
        self.held: int | None = None
        self._check(survey)

    @property
    def is_needed(self) -> bool:
        """Whether this stream removes what is acknowledged."""
        return self.kind != "limits"

    def hold(self, mark: Mark, *, is_new: bool, waiting: bool = True) -> None:
        """Make sure that the stream keeps everything from a mark on, and kept it so far; once, and if messages wait."""
        if not self.is_needed or (self.held is not None and not waiting):
            return
        if self.kind == "workqueue":
            self._claim(mark.next, is_new)
            self.held = mark.next if self.held is None else self.held
            return
        there = self._bookmarks()
        if not there or min(there) > mark.next:
            if there or not is_new:
                self._lose(mark.next)
            self._bookmark(mark.next)
            there = [*there, mark.next]
        self.held = min(there)
        self._look(self._name(self.held), self.held)

    def _lose(self, place: int, why: str = "is gone") -> None:
        self.options.lose(
            DataLossError(
                f"The stream {self.stream} keeps messages while a consumer wants them, and the one that held this "
                f"query's place at {place} {why}.",
                remedy="Messages may have been removed. Start anew with another checkpoint, or set failOnDataLoss to "
                "false to go on with what there is.",
                stream=self.stream,
                start=place,
            )
        )

    def commit(self, mark: Mark) -> None:
        """Release everything below a mark, which Spark's checkpoint has."""
        if not self.is_needed or (self.held is not None and mark.next <= self.held):
            return
        if self.kind == "workqueue":
            self._claim(self.held or mark.next, is_new=False)
            self._make(str(self.options.consumer), {"deliver_policy": "all", "metadata": {RELEASED: str(mark.next)}})
            for subject in self.subjects or (None,):
                body = {"seq": mark.next} | ({"filter": subject} if subject else {})
                check_done(self.bulk.ask(f"STREAM.PURGE.{self.stream}", body))
        else:
            there = self._bookmarks()
            if not there or (self.held is not None and min(there) > self.held):
                self._lose(self.held or mark.next)  # somebody removed it while the query ran
            elif self.held in there:
                self._look(self._name(self.held), self.held)
            self._bookmark(mark.next)
            for place in there:
                if place < mark.next:
                    check_done(self.bulk.ask(f"CONSUMER.DELETE.{self.stream}.{self._name(place)}"))
        self.held = mark.next

    # -- what can be kept safe ------------------------------------------------------------------------------------

    def _check(self, stream: Survey) -> None:
        asked = self.options.ack == "commit"
        if asked and not self.is_needed:
            raise InputError(
                f"The option ack is given, and the stream {stream.name} removes nothing by acks.",
                remedy="Leave ack and consumer out: limits alone decide what it keeps.",
            )
        if self.is_needed and not asked:
            raise InputError(
                f"The stream {stream.name} has {stream.retention} retention: it removes what is acknowledged, and a "
                "replay could find it gone.",
                remedy='Set .option("ack", "commit").option("consumer", "my-query"), so that the query keeps what its '
                "checkpoint has not; or read a mirror of it.",
            )
        if stream.retention == "workqueue" and stream.config.get("deny_purge"):
            raise InputError(
                f"The stream {stream.name} denies purges, so what was read cannot be released.",
                remedy="Let it allow them, or read a mirror of it without ack.",
            )
        if stream.retention == "workqueue" and not stream.allow_direct:
            raise InputError(
                f"The stream {stream.name} is a work queue without direct get, so it cannot be read twice.",
                remedy=f"Allow it: penstock stream edit {stream.name} --allow-direct.",
            )

    # -- consumers ------------------------------------------------------------------------------------------------

    def _name(self, place: int | str) -> str:
        return f"{self.options.consumer}-{place}"

    def _bookmarks(self) -> list[int]:
        """Give the places of this query's bookmarks."""
        prefix = self._name("")
        names = self.bulk.list_names(f"CONSUMER.NAMES.{self.stream}", "consumers")
        places = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        return sorted(found for place in places if (found := read_count(place)) is not None)

    def _bookmark(self, place: int) -> None:
        self._make(self._name(place), {"deliver_policy": "by_start_sequence", "opt_start_seq": place})

    def _make(self, name: str, config: dict[str, Any]) -> None:
        subjects = self.subjects
        body = {
            "stream_name": self.stream,
            "config": {
                **config,
                **({"filter_subjects": list(subjects)} if subjects else {}),
                "durable_name": name,
                "ack_policy": "explicit",
                "description": BOOKMARK,
                # Paused for good by nobody asking; one waiting pull is more than it ever has.
                "max_waiting": 1,
            },
        }
        self.bulk.ask(f"CONSUMER.DURABLE.CREATE.{self.stream}.{name}", body)

    def _look(self, name: str, place: int) -> dict[str, Any] | None:
        """Ask for a bookmark, None if there is none; nobody may have taken messages by it."""
        try:
            info = self.bulk.ask(f"CONSUMER.INFO.{self.stream}.{name}")
        except NotFoundError:
            return None
        if number(part(info, "delivered"), "consumer_seq"):
            self._lose(place, f"({name}) has given messages to somebody")
        return info

    def _claim(self, place: int, is_new: bool) -> None:
        name = str(self.options.consumer)
        if (info := self._look(name, place)) is not None:
            config = part(info, "config")
            filters = config.get("filter_subjects") or [item for item in [config.get("filter_subject")] if item]
            if filters and not all(any(covers(item, own) for item in filters) for own in self.subjects or (">",)):
                raise InputError(
                    f"The consumer {name} of the work queue {self.stream} claims {', '.join(filters)}, which is not "
                    "what this query reads.",
                    remedy="Give the query a consumer of its own name, or remove that one.",
                )
            released = int(part(config, "metadata").get(RELEASED, 0)) if config.get("metadata") else 0
            if released > place:
                self._lose(
                    place, f"({name}) stands at {released}: another query uses it, or this one's checkpoint is old"
                )
        else:
            if not is_new:
                self._lose(place)
            try:
                self._make(name, {"deliver_policy": "all"})
            except JetStreamError as error:
                raise InputError(
                    f"The stream {self.stream} is a work queue, and another consumer takes its messages "
                    f"({error.description}).",
                    remedy="Two readers would take each other's work. Remove the other one, read subjects that it "
                    "does not, or read a mirror.",
                ) from None
