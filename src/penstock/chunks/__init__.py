"""Payloads of any size over NATS, in chunks that any receiver of the format can put together.

The names that it exports are public; its modules are not for users.
"""

from penstock.chunks.archive import Archive, StoredMessage
from penstock.chunks.assembler import Assembler
from penstock.chunks.consumer import StoredConsumer
from penstock.chunks.incoming import Counts, Inbox, Incoming
from penstock.chunks.publisher import MessageId, PersistentPublisher, Publisher
from penstock.chunks.stored import StoredInfo
from penstock.chunks.wire import Reason

__all__ = [
    "Archive",
    "Assembler",
    "Counts",
    "Inbox",
    "Incoming",
    "MessageId",
    "PersistentPublisher",
    "Publisher",
    "Reason",
    "StoredConsumer",
    "StoredInfo",
    "StoredMessage",
]
