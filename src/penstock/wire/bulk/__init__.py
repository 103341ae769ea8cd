"""The blocking bulk connection: a whole range of a stream as Arrow batches, and Arrow batches into a stream.

The names that it exports are public; its modules are not for users.
"""

from penstock.wire.bulk.connection import BulkConnection
from penstock.wire.bulk.publishing import Ack, Published

__all__ = ["Ack", "BulkConnection", "Published"]
