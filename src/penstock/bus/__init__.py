"""Requests with sectioned, flow-controlled replies over NATS, compatible with ibus peers byte for byte.

The names that it exports are public; its modules are not for users.
"""

from penstock.bus.bus import Bus
from penstock.bus.handler import SectionWriter, Sender
from penstock.bus.limits import BusOptions, allowance, partitions
from penstock.bus.request import Request
from penstock.bus.requester import Reply, Section
from penstock.bus.service import Service
from penstock.bus.wire import Element, Response

__all__ = [
    "Bus",
    "BusOptions",
    "Element",
    "Reply",
    "Request",
    "Response",
    "Section",
    "SectionWriter",
    "Sender",
    "Service",
    "allowance",
    "partitions",
]
