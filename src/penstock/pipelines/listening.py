"""What a Connect server tells of the queries of one update: every progress, as Spark's event log has it here.

The flows of a pipeline run in the session that starts them, so the server tells that session each progress, on a stream
of its own, and needs no setting for it. Two things it does not tell. Who has ended is told without a name, and when a
flow begins only by the pipeline's own events: so those are counted, and the last progress of each query is waited for.
And a table of files does not say how many rows it took, so `registry` lets Spark count them on their way.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

from penstock.json_text import load_json

__all__ = ["Listening"]

_STATE = re.compile(r"Flow (.+) is (PLANNING|RUNNING)\.")


class Listening:
    """Follows the queries of a session while an update runs; a context manager, for one update after the other."""

    def __init__(self, spark: Any, say: Callable[..., None], *, patience: float = 60.0) -> None:
        self._spark = spark
        self._say = say  # a kind, and fields: that it listens, each progress, and what it could not hear
        self._patience = patience  # seconds for what the server was asked for, or has on its way
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._refused = False
        self._begin()

    def _begin(self) -> None:
        self._batch: set[str] = set()  # flows that are not queries
        self._begun = 0
        self._over = 0
        self._added = False
        self._closing = False
        self.problem: str | None = None
        """Why not everything was heard; None if it was."""

    def __enter__(self) -> Self:
        if self._refused:
            return self
        self._begin()
        self._thread = threading.Thread(target=self._follow, name="penstock-listening", daemon=True)
        self._thread.start()
        with self._change:
            # What begins once the server has answered is heard. It has one listener for a session, and lets a second
            # one wait for ever: the files of a pipeline may have one of their own.
            self._change.wait_for(lambda: self._added or self.problem is not None, self._patience)
            if not self._added:
                self.problem = self.problem or "it has taken no listener; do the pipeline's files add one?"
                self._refused, self._closing = True, True
                self._thread = None
        if self.problem is None:
            self._say("listening")
        return self

    def hear(self, message: str) -> None:
        """Take in an event of the pipeline: each flow that runs, and was not planned as a batch, is a query."""
        if found := _STATE.match(message):
            name, state = found.groups()
            with self._change:
                if state == "PLANNING":
                    self._batch.add(name)
                elif name not in self._batch:
                    self._begun += 1

    def __exit__(self, kind: object, *about: object) -> None:
        # An update that failed may have lost its server, and ends the session, which ends the listener there.
        if kind is not None:
            return
        if self._thread is not None:
            # The server hands events on from a queue of its own; the end of a query is behind its last progress.
            with self._change:
                if not self._change.wait_for(self._heard_all, self._patience):
                    self.problem = "it did not tell the end of every query in time"
                self._closing = True
            self._stop(self._thread)
        if self.problem is not None:
            self._say("deaf", reason=self.problem)

    def _heard_all(self) -> bool:
        return self.problem is not None or self._over >= self._begun

    def _stop(self, thread: threading.Thread) -> None:
        from pyspark.errors import PySparkException

        try:
            for _ in self._command(add=False):
                pass
            thread.join(self._patience)
        except PySparkException as error:
            self.problem = self.problem or _first_line(error)

    def _follow(self) -> None:
        problem = "it stopped telling"
        try:
            for item in self._command(add=True):
                found = item["streaming_query_listener_events_result"]
                if found.listener_bus_listener_added:
                    with self._change:
                        self._added = True
                        self._change.notify_all()
                for event in found.events:
                    self._take(event)
        except Exception as error:  # whatever it is, the pipeline goes on, and its figures are not known
            problem = _first_line(error)
        with self._change:
            if not self._closing:
                self.problem = problem
            self._change.notify_all()

    def _take(self, event: Any) -> None:
        from pyspark.sql.connect.proto import StreamingQueryEventType as Kind

        if event.event_type == Kind.QUERY_PROGRESS_EVENT:
            self._say("progress", progress=load_json(event.event_json)["progress"])
        elif event.event_type == Kind.QUERY_TERMINATED_EVENT:
            with self._change:
                self._over += 1
                self._change.notify_all()

    def _command(self, *, add: bool) -> Iterator[dict[str, Any]]:
        import pyspark.sql.connect.proto as messages

        command = messages.Command()
        if add:
            command.streaming_query_listener_bus_command.add_listener_bus_listener = True
        else:
            command.streaming_query_listener_bus_command.remove_listener_bus_listener = True
        found: Iterator[dict[str, Any]] = self._spark.client.execute_command_as_iterator(command)
        return found


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__).rstrip(".")
