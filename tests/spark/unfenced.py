"""A sink with its fence taken out, to see whether audits notice. Spark's workers import it as any other source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.spark.connections import TaskConnection
from penstock.spark.provider import NatsDataSource
from penstock.spark.sink_options import SinkOptions
from penstock.spark.writers import NatsStreamWriter


def _loose(message: Any) -> Any:
    subject, headers, body = message
    if not subject.rpartition(".")[2].isdigit():
        return message
    return subject, {key: value for key, value in headers.items() if not key.startswith("Nats-Expected-")}, body


@contextmanager
def unfenced() -> Iterator[None]:
    """Let tasks write batches of rows that nothing can refuse any more."""
    post, store = TaskConnection.post, TaskConnection.store

    def posted(
        bulk: TaskConnection, content: Any, name: str, number: int, subject: str, headers: Any, body: Any
    ) -> str:
        loose = {key: value for key, value in headers.items() if not key.startswith("Nats-Expected-")}
        return post(bulk, content, name, number, subject, loose, body)

    def stored(bulk: TaskConnection, stream: str, messages: Any, *given: Any) -> int:
        # Heads and claims keep their fences, or the protocol would not run at all; taking a lane loses its own.
        TaskConnection.post = post
        try:
            return store(bulk, stream, [_loose(message) for message in messages], *given)
        finally:
            TaskConnection.post = posted

    TaskConnection.post, TaskConnection.store = posted, stored
    try:
        yield
    finally:
        TaskConnection.post, TaskConnection.store = post, store


class UnfencedWriter(NatsStreamWriter):
    """Writes batches of rows without their fence."""

    def write(self, iterator: Any) -> Any:
        with unfenced():
            return super().write(iterator)


class UnfencedSource(NatsDataSource):
    """The format "unfenced"."""

    @classmethod
    def name(cls) -> str:
        return "unfenced"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return UnfencedWriter(self._write_connection(), SinkOptions.parse(self._own()), schema, overwrite)
