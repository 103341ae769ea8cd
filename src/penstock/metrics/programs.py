"""Figures that only a program of the user knows: of assemblers of chunks, services of the bus, gateways, workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields

from penstock.bus import Service
from penstock.channels import Gateway
from penstock.chunks import Assembler
from penstock.errors import InputError
from penstock.jetstream import Worker
from penstock.metrics.text import Family, labels

__all__ = ["Program", "program_families"]

Program = Assembler | Service | Gateway | Worker


def program_families(programs: Mapping[str, Program]) -> list[Family]:
    """Give the families of things that run in this process, each under the name that it is given."""
    found: dict[str, Family] = {}
    for name, program in programs.items():
        if not isinstance(program, Program):
            raise InputError(
                f"{name} is a {type(program).__name__}, of which there are no figures.",
                remedy="Give an Assembler, a Service of the bus, a Gateway or a Worker.",
            )
        for kind, what, said, more, value in _figures(program):
            family = found.setdefault(what, Family(what, kind, said))
            family.add(labels({"name": name, **more}), value)
    return list(found.values())


Figure = tuple[str, str, str, Mapping[str, str], float]


def _figures(program: Program) -> Iterator[Figure]:
    """Give kind, name, meaning, further labels and value of everything that is known of a program."""
    if isinstance(program, Assembler):
        yield from _counts("penstock_chunks", "of an assembler of chunks", program.counts)
        for reason, count in dict(program.counts.failures).items():
            yield "counter", "penstock_chunks_failures", "Payloads that an assembler gave up", {"reason": reason}, count
    elif isinstance(program, Worker):
        yield from _counts("penstock_worker", "of a worker", program.counts)
    elif isinstance(program, Service):
        queue = {"queue": program.queue}
        yield "gauge", "penstock_bus_active", "Requests of the bus that are being handled", queue, program.active
        yield "gauge", "penstock_bus_waiting", "Requests of the bus that wait for a handler", queue, program.waiting
        yield "counter", "penstock_bus_handled", "Requests of the bus whose handler has ended", queue, program.handled
        for status, count in dict(program.refused).items():
            by_status = {**queue, "status": str(status)}
            yield (
                "counter",
                "penstock_bus_refused",
                "Requests of the bus that were answered in the place of a handler, by status",
                by_status,
                count,
            )
    else:
        yield from _gateway(program)


def _counts(prefix: str, of: str, counts: object) -> Iterator[Figure]:
    for item in fields(counts):  # type: ignore[arg-type]  # both are dataclasses
        value = getattr(counts, item.name)
        if isinstance(value, int):
            yield "counter", f"{prefix}_{item.name}", f"The count {item.name} {of}", {}, value


def _gateway(gateway: Gateway) -> Iterator[Figure]:
    yield "gauge", "penstock_gateway_leading", "1 if the gateway serves", {}, float(gateway.leading)
    service = gateway.service
    if service is None:
        return
    subscriptions = sum(len(channel.subscribers) for channel in service.channels.values())
    known: Iterable[tuple[str, str, str, float]] = (
        ("gauge", "clients", "Clients that are connected", len(service.clients.by_id)),
        ("gauge", "channels", "Channels that are served", len(service.channels)),
        ("gauge", "subscriptions", "Subscriptions", subscriptions),
        ("counter", "in_messages", "Messages that clients published", service.in_messages),
        ("counter", "in_bytes", "Bytes that clients published", service.in_bytes),
        ("counter", "out_messages", "Messages that clients were sent", service.writer.messages),
        ("counter", "out_bytes", "Bytes that clients were sent", service.writer.bytes),
    )
    for kind, word, said, value in known:
        yield kind, f"penstock_gateway_{word}", f"{said}, of a gateway of channels", {}, value
