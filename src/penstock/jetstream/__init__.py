"""JetStream: streams and consumers declared as data, publishing and consuming exactly once, ack samples.

The names load when they are first used, so that a command that needs one of them does not wait for all.
The names that it exports are public; its modules are not for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.exports import exports

if TYPE_CHECKING:
    from penstock.info import ConsumerInfo as ConsumerInfo
    from penstock.info import StreamInfo as StreamInfo
    from penstock.jetstream.batch import BatchAck as BatchAck
    from penstock.jetstream.changes import Plan as Plan
    from penstock.jetstream.consume import Deliveries as Deliveries
    from penstock.jetstream.counters import Counter as Counter
    from penstock.jetstream.counters import Counters as Counters
    from penstock.jetstream.deadletter import DeadLetters as DeadLetters
    from penstock.jetstream.delivery import Delivery as Delivery
    from penstock.jetstream.letter import DeadLetter as DeadLetter
    from penstock.jetstream.outgoing import Outgoing as Outgoing
    from penstock.jetstream.publish import Publisher as Publisher
    from penstock.jetstream.samples import AckSample as AckSample
    from penstock.jetstream.samples import Advisory as Advisory
    from penstock.jetstream.samples import Figures as Figures
    from penstock.jetstream.samples import Samples as Samples
    from penstock.jetstream.schedule import Schedule as Schedule
    from penstock.jetstream.schedules import Scheduled as Scheduled
    from penstock.jetstream.schedules import Schedules as Schedules
    from penstock.jetstream.size import record_size as record_size
    from penstock.jetstream.topology import Topology as Topology
    from penstock.jetstream.topology import apply as apply
    from penstock.jetstream.topology import plan as plan
    from penstock.jetstream.worker import Reject as Reject
    from penstock.jetstream.worker import Worker as Worker
    from penstock.jetstream.worker import WorkerCounts as WorkerCounts

_MODULES = {
    "penstock.info": ("ConsumerInfo", "StreamInfo"),
    "penstock.jetstream.batch": ("BatchAck",),
    "penstock.jetstream.changes": ("Plan",),
    "penstock.jetstream.consume": ("Deliveries",),
    "penstock.jetstream.counters": ("Counter", "Counters"),
    "penstock.jetstream.deadletter": ("DeadLetters",),
    "penstock.jetstream.letter": ("DeadLetter",),
    "penstock.jetstream.delivery": ("Delivery",),
    "penstock.jetstream.outgoing": ("Outgoing",),
    "penstock.jetstream.publish": ("Publisher",),
    "penstock.jetstream.samples": ("AckSample", "Advisory", "Figures", "Samples"),
    "penstock.jetstream.schedule": ("Schedule",),
    "penstock.jetstream.schedules": ("Scheduled", "Schedules"),
    "penstock.jetstream.size": ("record_size",),
    "penstock.jetstream.topology": ("Topology", "apply", "plan"),
    "penstock.jetstream.worker": ("Reject", "Worker", "WorkerCounts"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)  # noqa: PLE0605  # the names are those above, all text

__getattr__, __dir__ = exports(__name__, _HOMES)
