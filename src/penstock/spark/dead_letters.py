"""Rows that cannot be written, sent to another stream: at least once, under ids that make repeats rare."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.options import ConnectionOptions
from penstock.spark.markers import DIGEST_SIZE
from penstock.spark.messages import Messages
from penstock.wire.arrow import HEADERS
from penstock.wire.bulk import BulkConnection
from penstock.wire.jetstream.names import MSG_ID

__all__ = ["DeadLetterWriter"]


class DeadLetterWriter:
    """Stores dead letters in `stream`, on a connection of its own that is made when the first one comes."""

    def __init__(self, connection: ConnectionOptions, stream: str | None, prefix: str) -> None:
        self._connection = connection
        self._stream = stream
        self._prefix = prefix
        self._seen: dict[bytes, int] = {}
        self._bulk: BulkConnection | None = None

    def send(self, letters: Messages) -> bool:
        """Store letters; False where they belong to the stream that takes the rows, and go with those."""
        if self._stream is None:
            return False
        self._bulk = self._bulk or BulkConnection(self._connection)
        digests = letters.digests()
        headers: list[list[tuple[str, Any]]] = []
        for place, own in enumerate(letters.headers.to_pylist()):
            digest = digests[place * DIGEST_SIZE : (place + 1) * DIGEST_SIZE]
            number = self._seen[digest] = self._seen.get(digest, 0) + 1
            # The same letter of the same batch has the same id: within the duplicate window a replay adds nothing.
            headers.append([*own, (MSG_ID, [f"{self._prefix}-{digest.hex()}-{number}"])])
        named = replace(letters, headers=pa.array(headers, HEADERS))
        self._bulk.publish(self._stream, named.to_batch(), mode="acks")
        return True

    def close(self) -> None:
        """Close the connection, where one was made."""
        if self._bulk is not None:
            self._bulk.close()
