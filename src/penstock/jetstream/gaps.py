"""Sequences that are missing between the first and the last message of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from penstock.connection import api_request
from penstock.errors import RemoteProtocolError
from penstock.jetstream import assets
from penstock.wire.jetstream import names
from penstock.wire.jetstream.answers import part

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["find_gaps"]

MOST_LISTED = 50_000  # sequences in one answer, which must not grow beyond what a server sends


async def find_gaps(
    client: Connection, stream: str, *, progress: Callable[[int], None] | None = None
) -> list[tuple[int, int]]:
    """Give what is missing, as the first and the last sequence of each gap.

    A server lists a few by itself. Of many, the whole stream is gone through, headers only; `progress` gets steps.
    """
    info = await assets.stream_info(client, stream)
    if not info.deleted:
        return []
    # A work queue has no place for another consumer, which going through it would take.
    if info.deleted > MOST_LISTED and info.config.retention != "workqueue":
        return await _walk(client, stream, info.first_sequence, progress)
    answer = await api_request(client, names.stream_info(stream), {"deleted_details": True})
    deleted = part(answer, "state").get("deleted") or []
    if not isinstance(deleted, list) or not all(isinstance(item, int) for item in deleted):
        raise RemoteProtocolError("The deleted messages of JetStream's answer are not a list of numbers.")
    if progress is not None:
        progress(info.messages)
    return _joined((sequence, sequence) for sequence in sorted(deleted))


async def _walk(
    client: Connection, stream: str, first: int, progress: Callable[[int], None] | None
) -> list[tuple[int, int]]:
    from penstock.jetstream.scan import scan_headers  # brings the model with it

    gaps, expected = [], first
    async for delivery in scan_headers(client, stream, start=first):
        sequence = delivery.place.sequence
        if sequence > expected:
            gaps.append((expected, sequence - 1))
        expected = sequence + 1
        if progress is not None:
            progress(1)
    return gaps


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges, in order, that follow each other."""
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if joined and joined[-1][1] + 1 == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined
