"""JetStream: streams and consumers declared as data, publishing and consuming exactly once, ack samples.

The names load when they are first used, so that a command that needs one of them does not wait for all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.info import ConsumerInfo as ConsumerInfo
    from penstock.info import StreamInfo as StreamInfo
    from penstock.jetstream.batch import BatchAck as BatchAck
    from penstock.jetstream.changes import Plan as Plan
    from penstock.jetstream.consume import Deliveries as Deliveries
    from penstock.jetstream.deadletter import DeadLetter as DeadLetter
    from penstock.jetstream.deadletter import DeadLetters as DeadLetters
    from penstock.jetstream.delivery import Delivery as Delivery
    from penstock.jetstream.outgoing import Outgoing as Outgoing
    from penstock.jetstream.publish import Publisher as Publisher
    from penstock.jetstream.samples import AckSample as AckSample
    from penstock.jetstream.samples import Advisory as Advisory
    from penstock.jetstream.samples import Figures as Figures
    from penstock.jetstream.samples import Samples as Samples
    from penstock.jetstream.size import record_size as record_size
    from penstock.jetstream.topology import Topology as Topology
    from penstock.jetstream.topology import apply as apply
    from penstock.jetstream.topology import plan as plan
    from penstock.jetstream.worker import Reject as Reject
    from penstock.jetstream.worker import Worker as Worker

_HOMES = {
    "AckSample": "samples",
    "Advisory": "samples",
    "BatchAck": "batch",
    "ConsumerInfo": "penstock.info",
    "DeadLetter": "deadletter",
    "DeadLetters": "deadletter",
    "Deliveries": "consume",
    "Delivery": "delivery",
    "Figures": "samples",
    "Outgoing": "outgoing",
    "Plan": "changes",
    "Publisher": "publish",
    "Reject": "worker",
    "Samples": "samples",
    "StreamInfo": "penstock.info",
    "Topology": "topology",
    "Worker": "worker",
    "apply": "topology",
    "plan": "topology",
    "record_size": "size",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605  # the names are the keys above, all text


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.jetstream' has no attribute {name!r}")
    home = _HOMES[name]
    return getattr(importlib.import_module(home if "." in home else f"penstock.jetstream.{home}"), name)


def __dir__() -> list[str]:
    return list(__all__)
