"""The blocking bulk connection: a whole range of a stream as Arrow batches, and Arrow batches into a stream."""

from penstock.wire.bulk.connection import BulkConnection
from penstock.wire.bulk.publishing import Ack, Published

__all__ = ["Ack", "BulkConnection", "Published"]
