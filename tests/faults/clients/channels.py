"""NATS Streaming: the gateway, and old clients that publish and subscribe with bytes of their own, as `role` says."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from penstock.channels import Gateway
from penstock.options import ConnectionOptions
from tests.faults.history import Ledger, content, op_of
from tests.faults.plain import PlainError
from tests.faults.stan_bytes import OldClient, parse, record

CLUSTER, CHANNEL = "faults", "orders"
PATIENCE = 3  # seconds in which nothing came, until a subscriber asks whether the gateway still knows it


def run(given: dict[str, Any], ledger: Ledger, over: threading.Event) -> None:
    """Do what the role says until it is over."""
    ROLES[given["role"]](given, ledger, over)


def _serve(given: dict[str, Any], ledger: Ledger, over: threading.Event) -> None:
    async def main() -> None:
        gateway = Gateway(
            ConnectionOptions(given["url"], name=given["client"]),
            cluster_id=CLUSTER,
            subject_prefix="chan.",
            replicas=given["replicas"],
        )
        await gateway.start()
        led = False
        try:
            while not over.is_set():
                if gateway.leading and not led:
                    ledger.note("got", "lead")
                led = gateway.leading
                await asyncio.sleep(0.1)
        finally:
            await gateway.stop()

    asyncio.run(main())


def _publish(given: dict[str, Any], ledger: Ledger, over: threading.Event) -> None:
    """Publish a few at a time, each again until it is acknowledged."""
    old = OldClient(given["url"], CLUSTER, given["client"])
    old.connect()
    number = 0
    while not over.is_set():
        waiting: dict[str, int] = {}
        for _ in range(8):
            number += 1
            waiting[f"{given['client']}-{given['life']}-{number}"] = 0
        for op in waiting:
            ledger.note("invoke", op)
        deadline = time.monotonic() + 60
        while waiting and time.monotonic() < deadline:
            for op in waiting:
                waiting[op] += 1
                body = record(f1=old.client, f2=op, f3=CHANNEL, f5=content(op), f6=old.conn_id)
                try:
                    old.plain.post(f"{old.prefix['pub']}.{CHANNEL}", body, f"{old.inbox}.acks")
                except (PlainError, OSError):
                    old.again()
            for message in old.heard(2.0):
                if message.subject.endswith(".acks") and not message.status:
                    ack = parse(message.data)
                    op = ack.get(1, b"").decode()
                    if not ack.get(2) and op in waiting:
                        ledger.note("ok", op, tries=waiting.pop(op))
                if not waiting:
                    break
            if waiting:
                old.ping()
        for op, tries in waiting.items():
            ledger.note("unknown", op, why="no ack", tries=tries)
    old.close()


def _subscribe(given: dict[str, Any], ledger: Ledger, over: threading.Event) -> None:
    """Subscribe as a durable, from the first message on, and acknowledge each."""
    old = OldClient(given["url"], CLUSTER, given["client"])
    old.connect()
    body = record(f1=old.client, f2=CHANNEL, f4=f"{old.inbox}.in", f5=64, f6=2, f7="all", f10=4)
    answer = old.ask(old.prefix["sub"], body)
    if answer.get(3):
        raise PlainError(answer[3].decode())
    acks = answer[2].decode()
    quiet = 0
    while not over.is_set():
        quiet += 1
        if quiet % PATIENCE == 0:
            old.ping()
        for message in old.heard(1.0):
            quiet = 0
            if message.subject.endswith(".in"):
                found = parse(message.data)
                op = op_of(found.get(4, b""))
                ledger.note("got", op or "?", seq=found[1], again=bool(found.get(6)))
                old.plain.post(acks, record(f1=CHANNEL, f2=found[1]))
            if over.is_set():
                break
    old.ask(old.prefix["subclose"], record(f1=old.client, f2=CHANNEL, f3=acks), patience=20.0)
    old.close()


ROLES = {"serve": _serve, "publish": _publish, "subscribe": _subscribe}
