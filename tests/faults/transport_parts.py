"""The workloads of what travels beside streams: large payloads, requests over the bus, channels with old clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from penstock.channels.names import state_stream, stream_name
from tests.faults.checker import (
    ALIEN,
    LOST,
    PAYLOAD,
    REPEATED,
    SILENT,
    Evidence,
    Finding,
    Taken,
    Window,
    check_reads,
    check_stored,
    shown,
)
from tests.faults.clients.channels import CHANNEL, CLUSTER
from tests.faults.clients.chunks import digest, other, payload
from tests.faults.history import History, Operation, op_of, read_history
from tests.faults.nemesis import Aims
from tests.faults.part import DRAIN, Part
from tests.faults.plain import Plain

STREAM = stream_name(CLUSTER, CHANNEL)  # of the channel


class Chunks(Part):
    """Large payloads: over core NATS, whole or not at all; into a stream, and out of it, each of them."""

    name = "chunks"
    kinds = ("chunks", "stored")
    aims = Aims(
        clients=("chunks-sender", "chunks-receiver", "stored-sender", "stored-reader"),
        twins=("stored-reader", "stored-sender"),
        streams=("CHUNKS",),
        loose_streams=("CHUNKS",),
        permissions=("publish stored.data.>", "publish core.data", "subscribe core.data"),
    )
    endings = (("recreate", "CHUNKS", 0.0),)
    working = ("chunks-sender", "stored-sender")
    hearing = ("chunks-receiver", "stored-reader")

    def set_up(self) -> None:
        self.world.make_stream("CHUNKS", subjects=["stored.data.*"])
        self.world.names["CHUNKS"] = lambda message: message.headers.get("x-msg-id")
        roles = {"chunks-sender": "send", "chunks-receiver": "receive"}
        for name, role in (roles | {"stored-sender": "store", "stored-reader": "consume"}).items():
            self.add(name, "chunks", role=role)

    def finish(self) -> None:
        crew = self.world.crew
        self.late += crew.leave("chunks-sender", DRAIN) + crew.leave("stored-sender", DRAIN)

        def empty(plain: Plain) -> bool:
            info = plain.api("CONSUMER.INFO.CHUNKS.faults")
            return int(info["num_pending"]) == 0 and int(info["num_ack_pending"]) == 0

        self._drained(empty, "the reader of stored payloads")
        self.late += crew.leave("chunks-", DRAIN) + crew.leave("stored-", DRAIN)

    def known_consumers(self) -> dict[str, set[str]]:
        return {"CHUNKS": {"faults"}}

    def check(self, history: History, faults: Sequence[Window]) -> list[Finding]:
        findings = []
        for kind in ("chunks", "stored"):
            mine = history.of(f"{kind}-")
            sent = {one.op: one for one in mine.operations}
            got = [(note["op"], note["digest"]) for note in mine.said("got")]
            if alien := sorted({op for op, _ in got} - set(sent)):
                findings.append(Finding(ALIEN, kind, f"received {shown(alien)}"))
            again = mine.said("again")
            free = {op for op, one in sent.items() if kind == "chunks" or self.world.takes("CHUNKS", one)}
            findings += check_payloads(kind, got, sent, again, free)
            if kind == "chunks":
                twice = sorted(op for (op, _), count in Counter(got).items() if count > 1)
                if twice:
                    findings.append(Finding(REPEATED, kind, f"received {shown(twice)}"))
            else:
                done = [
                    one.op for one in mine.operations if one.outcome == "ok" and not self.world.takes("CHUNKS", one)
                ]
                if lost := sorted(set(done) - {op for op, _ in got}):
                    findings.append(Finding(LOST, kind, f"never given to a reader: {shown(lost)}"))
                findings += self._check_stream(done, set(sent))
        return findings

    def _check_stream(self, done: Sequence[str], begun: Collection[str]) -> list[Finding]:
        """Put the chunks of the stream together by hand, and compare: what was acknowledged is there whole.

        Nobody is promised a word of a payload that was stored, and taken later: senders keep none of it.
        """
        whole: dict[str, dict[int, bytes]] = {}
        for message in self.world.asked(lambda plain: plain.read("CHUNKS")):
            place = int(message.headers.get("x-offset", "0"))
            whole.setdefault(message.headers.get("x-msg-id", ""), {})[place] = message.data
        wrong = []
        for op in done:
            chunks = whole.get(op, {})
            if b"".join(chunks[place] for place in sorted(chunks)) != payload(op):
                wrong.append(f"{op} ({len(chunks)} chunks)")
        findings = [Finding(LOST, "stored", f"not whole in the stream: {shown(wrong)}")] if wrong else []
        if alien := sorted(set(whole) - set(begun)):
            findings.append(Finding(ALIEN, "stored", f"chunks of {shown(alien)}"))
        return findings


def check_payloads(
    kind: str,
    got: Sequence[tuple[str, str]],
    sent: Collection[str],
    again: Sequence[dict[str, Any]],
    free: Collection[str],
) -> list[Finding]:
    """See that what was received is one payload that was sent under its id, whole, and never a mixture of two.

    `again` are the tries to use an id for another payload. Only if the id was `free` by then may one of them succeed:
    over core NATS, where nobody knows it for long, or if a change took the first payload.
    """
    findings = []
    tried = {note["op"] for note in again}

    def right(op: str) -> set[str]:
        return {digest(payload(op)), *([digest(other(op))] if op in tried and op in free else [])}

    if wrong := [op for op, found in got if op in sent and found not in right(op)]:
        findings.append(Finding(PAYLOAD, kind, f"received {shown(wrong)}"))
    if taken := [note["op"] for note in again if note.get("stored") and note["op"] not in free]:
        findings.append(Finding(ALIEN, kind, f"another payload was stored under {shown(taken)}"))
    return findings


class Conversations(Part):
    """Requests over the bus with long replies, both sides killed and cut: a reply that ends well is whole."""

    name = "bus"
    kinds = ("bus",)
    aims = Aims(
        clients=("bus-handler", "bus-requester"),
        permissions=("publish faults0", "publish faults1", "subscribe faults0"),
        kinds=Aims().kinds - {"node freeze"},
    )
    working = ("bus-requester",)

    def set_up(self) -> None:
        self.add("bus-handler", "bus", role="serve")
        self.add("bus-requester", "bus", role="ask")

    def finish(self) -> None:
        self.late += self.world.crew.leave("bus-requester", DRAIN) + self.world.crew.leave("bus-", DRAIN)

    def check(self, history: History, faults: Sequence[Window]) -> list[Finding]:
        return check_reads("bus", history.of("bus-"))


class Channels(Part):
    """A gateway, and old clients that publish to a channel and read all of it as a durable, with bytes of their own."""

    name = "channels"
    kinds = ("channels",)
    aims = Aims(
        clients=("channels-gateway", "old-publisher", "old-subscriber"),
        twins=("channels-gateway",),
        heirs=("old-publisher", "old-subscriber"),
        streams=(STREAM,),
        loose_streams=(STREAM,),
        permissions=("publish chan.>", f"publish $JS.API.DIRECT.GET.{STREAM}"),
    )
    endings = (("recreate", STREAM, 0.0),)
    working = ("old-publisher",)
    hearing = ("old-subscriber",)

    def set_up(self) -> None:
        self.world.names[STREAM] = lambda message: op_of(message.data)
        self.add("channels-gateway", "channels", role="serve", replicas=self.world.nodes)
        self.add("old-publisher", "channels", role="publish")
        self.add("old-subscriber", "channels", role="subscribe")

    def finish(self) -> None:
        self.late += self.world.crew.leave("old-publisher", DRAIN)
        self.stored = self.world.asked(lambda plain: plain.read(STREAM))
        last = max((message.sequence for message in self.stored), default=0)

        def all_come(plain: Plain) -> bool:
            got = read_history([self.world.folder / "old-subscriber.jsonl"]).said("got")
            return max((note["seq"] for note in got), default=0) >= last

        self._drained(all_come, "the subscriber of the channel")
        self.late += self.world.crew.leave("old-", DRAIN) + self.world.crew.leave("channels-", DRAIN)

    def _stood(self, sent: History) -> list[Operation]:
        """Give what was acknowledged, at each place where it was seen."""
        done = [one for one in sent.operations if one.outcome == "ok"]
        return [replace(one, facts={"seq": seq}) for one in done for seq in self.world.seen.get((STREAM, one.op), ())]

    def known_consumers(self) -> dict[str, set[str]]:
        return {STREAM: set(), state_stream(CLUSTER): set()}

    def check(self, history: History, faults: Sequence[Window]) -> list[Finding]:
        world, sent, mine = self.world, history.of("old-publisher"), history.of("old-subscriber")
        heard = mine.said("got")
        for note in heard:
            world.seen[STREAM, note["op"]].add(note["seq"])
        excused = {one.op for one in sent.operations if world.takes(STREAM, one)}
        kept = History([one for one in sent.operations if one.outcome != "ok" or one.op not in excused])
        evidence = Evidence("channels", "orders", sent, self.stored, repeats="unsure")
        findings = [one for one in check_stored(evidence) if one.kind != LOST]
        findings += [one for one in check_stored(replace(evidence, history=kept)) if one.kind == LOST]
        got = {(note["seq"], note["op"]) for note in heard}
        places = {(message.sequence, op_of(message.data)) for message in self.stored}
        if lost := sorted(sequence for sequence, _ in places - got):
            findings.append(Finding(LOST, "channels", f"never delivered: sequences {shown(lost)}"))
        set_back = [one for one in world.taken if one.stream == STREAM and one.most is None]
        if wrong := check_marks(in_time(heard, mine.said("begin")), sent, set_back):
            findings.append(Finding(REPEATED, "channels", shown(wrong)))
        took = [one for one in set_back if any(one.takes(sent_one) for sent_one in self._stood(sent))]
        log = (world.folder / "channels-gateway.log").read_text(errors="replace")
        findings += check_told(took, history.of("channels-gateway").said("begin"), log)
        if damaged := [note["seq"] for note in heard if note["op"] == "?"]:
            findings.append(Finding(PAYLOAD, "channels", f"sequences {shown(damaged)}"))
        return findings


TELLS = ("older copy", "another stream", "is made again")  # how a gateway names a stream that is not what it was


def check_told(took: Sequence[Taken], begun: Sequence[dict[str, Any]], log: str) -> list[Finding]:
    """See that a gateway said that a stream is not the one that it was, if it was there before and after that."""
    lives = [note["t"] for note in begun]
    known = [one for one in took if any(moment < one.since for moment in lives)]
    same = [one for one in known if not any(one.since <= moment for moment in lives)]
    if same and not any(words in log for words in TELLS):
        return [Finding(SILENT, "channels", f"the gateway does not say that {same[0].stream} was set back")]
    return []


def in_time(heard: Sequence[dict[str, Any]], begun: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what a life received after the next one had begun: it slept, and that had come to it before."""
    first = {note["life"]: note["t"] for note in begun}
    return [note for note in heard if note["t"] < first.get(note["life"] + 1, float("inf"))]


def check_marks(heard: Sequence[dict[str, Any]], sent: History, set_back: Sequence[Taken] = ()) -> list[str]:
    """Name what came to a subscriber a second time, or after something newer, without the mark of a redelivery.

    Sequences that were taken when the stream was set back are given anew; what had one of them before is not newer.
    """
    began = {one.op: one for one in sent.operations}
    wrong: list[str] = []
    seen: set[tuple[int, str]] = set()
    before: list[dict[str, Any]] = []
    highest, last = 0, float("-inf")
    for note in heard:
        back = [one for one in set_back if one.until <= note["t"]]
        since = max((one.until for one in back), default=last)
        if since > last:
            highest, last = max((one["seq"] for one in before if not _gone(one, began, back)), default=0), since
        if not note["again"]:
            if (note["seq"], note["op"]) in seen:
                wrong.append(f"sequence {note['seq']} again without a mark")
            elif note["seq"] < highest:
                wrong.append(f"sequence {note['seq']} after {highest}")
            if not _gone(note, began, back):
                highest = max(highest, note["seq"])
            before.append(note)
        seen.add((note["seq"], note["op"]))
    return wrong


def _gone(note: dict[str, Any], began: dict[str, Operation], back: Sequence[Taken]) -> bool:
    one = began.get(note["op"])
    return one is not None and any(taken.takes(replace(one, facts={"seq": note["seq"]})) for taken in back)
