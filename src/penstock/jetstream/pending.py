"""One message between its first sending and its fate, and what is said of fates that nobody wished for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock.errors import DataLossError, DeadlineError, JetStreamError, PenstockError
from penstock.jetstream.outgoing import Outgoing
from penstock.model import PubAck

__all__ = ["Pending", "copied", "replaced", "unknown"]


@dataclass(slots=True, eq=False)
class Pending:
    """One message between its first sending and its fate."""

    number: int
    out: Outgoing
    id: str
    future: asyncio.Future[PubAck]
    awaited: bool
    """Whether somebody waits for it alone, and will see its failure."""
    size: int
    chained: bool = False
    attempts: int = 0
    sent: float = 0.0
    behind: int = 0
    """The highest sequence that was acknowledged before it was sent."""
    lost: bool = False
    """Whether nobody knows of an attempt if it was stored."""
    failure: PenstockError | None = None
    """Why the last attempt failed; None while it is on its way."""


def copied(stream: str, item: Pending) -> JetStreamError:
    """Give the error of a message whose id, which we made up, is known to the stream."""
    what = f"Stream {stream} knows the id {item.id}, which was made up for this message: it is not stored."
    remedy = "Another copy of this process publishes, or it was restored to an earlier moment: make a new Publisher."
    return JetStreamError(what, remedy=remedy, description="an id that was made up is known")


def replaced(stream: str, before: int, sequence: int) -> DataLossError:
    """Give the error of a message that is stored under a sequence that was acknowledged before."""
    what = f"Stream {stream} had acknowledged messages up to {before:,}, and stored the next one as {sequence:,}"
    return DataLossError(
        f"{what}: it was replaced or restored from an older copy meanwhile.",
        remedy=f"This message is stored. Those acknowledged before, up to {before:,}, may be gone: publish them again.",
        stream=stream,
        start=sequence,
        end=before + 1,
        last=sequence,
    )


def unknown(item: Pending, patience: float, error: PenstockError | None) -> DeadlineError:
    """Give the error of a message of which nobody knows whether it is stored."""
    reason = f" The last attempt: {error}" if error else ""
    what = f"No ack for message {item.id} on {item.out.subject} in {patience:g} s; it may be stored or not.{reason}"
    remedy = "Publish it again with the same id once the server answers."
    return DeadlineError(what, remedy=remedy, seconds=patience, subject=item.out.subject)
