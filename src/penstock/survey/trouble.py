"""The rules by which a survey finds trouble: one look at a thing, and what the looks before it told. Pure.

Each rule gives what is the matter and how bad it is. Nothing that is so by design is trouble: a stream that discards
old messages is full, a bookmark is never delivered to, a consumer that a server made serves another stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from penstock.survey.state import ConsumerState, PipelineSeen, StreamState
from penstock.wire.jetstream.answers import number, part

__all__ = ["STILL", "Symptom", "account_trouble", "consumer_trouble", "pipeline_trouble", "stream_trouble"]

STILL = 10.0  # seconds without movement from which on a consumer is stuck
FULL_STILL = 2.0  # the same of one that may not deliver more: a busy one is at its limit for moments
FULL = 0.9  # the share of a limit from which on somebody should look
SLOW_ACK = 0.5  # the share of ack_wait from which on acks are slow: beyond it deliveries are repeated
COPY_SILENT = 60.0  # seconds without contact from which on a copy has lost what it copies
TOLD = 60.0  # seconds for which a run that goes on may tell nothing


class Symptom(NamedTuple):
    """What a rule found."""

    kind: str
    says: str
    severe: bool = True
    ago: float = 0.0
    """Seconds for which it has been so already."""


def stream_trouble(state: StreamState) -> Iterator[Symptom]:
    """Look at a stream."""
    if state.cluster and state.leader is None:
        yield Symptom("leaderless", "no server leads it: it neither takes nor gives messages")
    for other in state.others:
        if other.offline:
            yield Symptom("replica", f"{other.name} is offline, and carries a replica of it")
        elif not other.current:
            yield Symptom("replica", f"{other.name} carries a replica that is {other.lag:,} operations behind", False)
    if state.lost:
        yield Symptom("damaged", f"{state.lost:,} messages are damaged, and cannot be read any more")
    for what, used, most in (
        ("messages", state.messages + (state.markers or 0), state.max_messages),
        ("bytes", state.bytes, state.max_bytes),
    ):
        # A stream that discards old messages is full by design.
        if most and state.discard == "new" and used >= FULL * most:
            share = 100 * used / most
            full = used >= most
            says = "it refuses new ones" if full else "then it refuses new ones"
            yield Symptom("full", f"{share:.0f} % of its limit of {what} is used, and {says}", severe=full)
    for copy in state.copies:
        if copy.error:
            yield Symptom("copy", f"cannot copy {copy.name}: {copy.error}")
        elif copy.active is not None and copy.active > COPY_SILENT:
            yield Symptom("copy", f"has not heard of {copy.name} for {span(copy.active)}")
        elif copy.lag:
            yield Symptom("copy", f"is {copy.lag:,} messages behind {copy.name}", severe=False)


def consumer_trouble(state: ConsumerState) -> Iterator[Symptom]:
    """Look at a consumer."""
    if state.cluster and state.leader is None:
        yield Symptom("leaderless", "no server leads it: it delivers nothing")
    for other in state.others:
        if other.offline:
            yield Symptom("replica", f"{other.name} is offline, and carries a replica of it", severe=False)
    if state.bookmark or state.sourcing:
        return
    if state.paused:
        yield Symptom("paused", f"is paused{_waits(state)}", severe=False)
    else:
        yield from _stuck(state)
    if state.redelivered:
        again = "message was" if state.redelivered == 1 else "messages were"
        yield Symptom("redelivered", f"{state.redelivered:,} {again} delivered again", severe=False)
    if state.ack_p99 is not None and state.ack_wait and state.ack_p99 >= SLOW_ACK * state.ack_wait:
        yield Symptom(
            "slow acks",
            f"1 % of the acks take {span(state.ack_p99)} or longer; after {span(state.ack_wait)} it delivers again",
            severe=False,
        )


def _stuck(state: ConsumerState) -> Iterator[Symptom]:
    most, still = state.max_ack_pending, state.still
    if most and state.ack_pending >= most and still >= FULL_STILL:
        says = f"{_acks(state)}, the most that are allowed: it gets no more"
        yield Symptom("stuck", says, still >= STILL, still)
    elif state.lag and still >= STILL:
        who = (
            "although somebody listens"
            if state.listened_to
            else f"and nobody asks for {'it' if state.lag == 1 else 'them'}"
        )
        # Whoever holds deliveries may still be at work on them, until the server gives them to somebody else.
        severe = not state.ack_pending or still >= state.ack_wait
        yield Symptom("stuck", f"{_count(state)} {who}; nothing moved for {span(still)}", severe, still)
    elif state.ack_pending and still >= max(3 * STILL, 2 * state.ack_wait):
        yield Symptom("stuck", f"{_acks(state)}, and nothing moved for {span(still)}", True, still)


def pipeline_trouble(state: PipelineSeen, now: float) -> Iterator[Symptom]:
    """Look at a pipeline."""
    if state.note:
        yield Symptom("unknown", state.note, severe=False)
    if state.state == "failed":
        yield Symptom("failed", f"its run failed: {state.failure or 'nobody said why'}")
    elif state.state == "cut off":
        yield Symptom("cut off", "its run ended without a message: the process is gone")
    failed = [flow.name for flow in state.flows if flow.failed]
    if failed and state.state != "failed":
        yield Symptom("failed", f"{'flow' if len(failed) == 1 else 'flows'} {', '.join(failed)} failed")
    if state.state in ("running", "troubled") and state.told is not None and now - state.told > TOLD:
        yield Symptom("silent", f"its run has told nothing for {span(now - state.told)}", severe=False)
    for flow in state.flows:
        if gone := [name for name, latest in flow.latest.items() if latest is None]:
            yield Symptom("gone", f"flow {flow.name} reads {', '.join(gone)}, which is gone, or another stream by now")


def account_trouble(account: Mapping[str, Any]) -> Iterator[tuple[str, Symptom]]:
    """Look at what an account may use, and uses; gives what it is about, too."""
    limits = part(account, "limits") if account.get("limits") else {}
    for name in ("memory", "storage", "streams", "consumers"):
        used, most = number(account, name, 0), number(limits, f"max_{name}", 0, least=-1)
        if most > 0 and used >= FULL * most:
            yield (
                name,
                Symptom("full", f"{100 * used / most:.0f} % of the account's limit is used", severe=used >= most),
            )


def _count(state: ConsumerState) -> str:
    age = f", the oldest for {span(state.lag_seconds)}," if state.lag_seconds else ""
    return f"{state.lag:,} {'message waits' if state.lag == 1 else 'messages wait'}{age}"


def _acks(state: ConsumerState) -> str:
    waits = "delivery waits for its" if state.ack_pending == 1 else "deliveries wait for their"
    return f"{state.ack_pending:,} {waits} ack"


def _waits(state: ConsumerState) -> str:
    return f", and {_count(state).rstrip(',')}" if state.lag else ""


def span(seconds: float) -> str:
    """Write a duration for a sentence."""
    for step, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * step:
            return f"{seconds / step:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
