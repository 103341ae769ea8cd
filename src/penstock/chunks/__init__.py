"""Payloads of any size over NATS, in chunks that any receiver of the format can put together."""

from penstock.chunks.assembler import Assembler
from penstock.chunks.assembly import Counts
from penstock.chunks.incoming import Inbox, Incoming
from penstock.chunks.publisher import Publisher
from penstock.chunks.wire import Reason

__all__ = ["Assembler", "Counts", "Inbox", "Incoming", "Publisher", "Reason"]
