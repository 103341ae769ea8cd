"""The workloads of what travels beside streams: large payloads, requests over the bus, channels with old clients."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.checker import (
    ALIEN,
    LOST,
    PAYLOAD,
    REPEATED,
    Evidence,
    Finding,
    check_reads,
    check_stored,
    shown,
)
from tests.faults.clients.chunks import digest, payload
from tests.faults.history import History, read_history
from tests.faults.nemesis import Aims
from tests.faults.part import DRAIN, Part
from tests.faults.plain import Plain, Stored


class Chunks(Part):
    """Large payloads: over core NATS, whole or not at all; into a stream, and out of it, each of them."""

    name = "chunks"
    kinds = ("chunks", "stored")
    aims = Aims(
        clients=("chunks-sender", "chunks-receiver", "stored-sender", "stored-reader"),
        streams=("CHUNKS",),
        kinds=Aims().kinds - {"restore store"},
    )
    working = ("chunks-sender", "stored-sender")

    def set_up(self) -> None:
        self.world.make_stream("CHUNKS", subjects=["stored.data.*"])
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

    def check(self, history: History, faults: Sequence[str]) -> list[Finding]:
        findings = []
        for kind in ("chunks", "stored"):
            mine = history.of(f"{kind}-")
            sent = {one.op: one for one in mine.operations}
            got = [(note["op"], note["digest"]) for note in mine.said("got")]
            if alien := sorted({op for op, _ in got} - set(sent)):
                findings.append(Finding(ALIEN, kind, f"received {shown(alien)}"))
            if wrong := [op for op, found in got if op in sent and found != digest(payload(op))]:
                findings.append(Finding(PAYLOAD, kind, f"received {shown(wrong)}"))
            if kind == "chunks":
                twice = sorted({op for op, _ in got if sum(1 for other, _ in got if other == op) > 1})
                if twice:
                    findings.append(Finding(REPEATED, kind, f"received {shown(twice)}"))
            else:
                done = [one.op for one in mine.operations if one.outcome == "ok"]
                if lost := sorted(set(done) - {op for op, _ in got}):
                    findings.append(Finding(LOST, kind, f"never given to a reader: {shown(lost)}"))
                findings += self._check_stream(done)
        return findings

    def _check_stream(self, done: Sequence[str]) -> list[Finding]:
        """Put the chunks of the stream together by hand, and compare: what was acknowledged is there whole."""
        whole: dict[str, dict[int, bytes]] = {}
        for message in self.world.asked(lambda plain: plain.read("CHUNKS")):
            place = int(message.headers.get("x-offset", "0"))
            whole.setdefault(message.headers.get("x-msg-id", ""), {})[place] = message.data
        wrong = []
        for op in done:
            chunks = whole.get(op, {})
            if b"".join(chunks[place] for place in sorted(chunks)) != payload(op):
                wrong.append(f"{op} ({len(chunks)} chunks)")
        return [Finding(LOST, "stored", f"not whole in the stream: {shown(wrong)}")] if wrong else []


class Conversations(Part):
    """Requests over the bus with long replies, both sides killed and cut: a reply that ends well is whole."""

    name = "bus"
    kinds = ("bus",)
    aims = Aims(clients=("bus-handler", "bus-requester"), kinds=Aims().kinds - {"node freeze"})
    working = ("bus-requester",)

    def set_up(self) -> None:
        self.add("bus-handler", "bus", role="serve")
        self.add("bus-requester", "bus", role="ask")

    def finish(self) -> None:
        self.late += self.world.crew.leave("bus-requester", DRAIN) + self.world.crew.leave("bus-", DRAIN)

    def check(self, history: History, faults: Sequence[str]) -> list[Finding]:
        return check_reads("bus", history.of("bus-"))


class Channels(Part):
    """A gateway, and old clients that publish to a channel and read all of it as a durable, with bytes of their own."""

    name = "channels"
    kinds = ("channels",)
    aims = Aims(clients=("channels-gateway", "old-publisher", "old-subscriber"), kinds=Aims().kinds - {"restore store"})
    working = ("old-publisher",)

    def set_up(self) -> None:
        self.add("channels-gateway", "channels", role="serve")
        self.add("old-publisher", "channels", role="publish")
        self.add("old-subscriber", "channels", role="subscribe")

    def _stream(self) -> str:
        return next(name for name in self.world.streams() if name.startswith("faults:") and name.endswith("orders"))

    def finish(self) -> None:
        self.late += self.world.crew.leave("old-publisher", DRAIN)
        self.stored = self.world.asked(lambda plain: plain.read(self._stream()))
        last = max((message.sequence for message in self.stored), default=0)

        def all_come(plain: Plain) -> bool:
            got = read_history([self.world.folder / "old-subscriber.jsonl"]).said("got")
            return max((note["seq"] for note in got), default=0) >= last

        self._drained(all_come, "the subscriber of the channel")
        self.late += self.world.crew.leave("old-", DRAIN) + self.world.crew.leave("channels-", DRAIN)

    def check(self, history: History, faults: Sequence[str]) -> list[Finding]:
        sent, heard = history.of("old-publisher"), history.of("old-subscriber").said("got")
        evidence = Evidence("channels", "orders", sent, self.stored, repeats="unsure")
        findings = check_stored(evidence)
        stored: list[Stored] = list(self.stored)
        if lost := sorted({message.sequence for message in stored} - {note["seq"] for note in heard}):
            findings.append(Finding(LOST, "channels", f"never delivered: sequences {shown(lost)}"))
        wrong, highest, seen = [], 0, set()
        for note in heard:
            if not note["again"]:
                if note["seq"] in seen:
                    wrong.append(f"sequence {note['seq']} again without a mark")
                elif note["seq"] < highest:
                    wrong.append(f"sequence {note['seq']} after {highest}")
                highest = max(highest, note["seq"])
            seen.add(note["seq"])
        if wrong:
            findings.append(Finding(REPEATED, "channels", shown(wrong)))
        if damaged := [note["seq"] for note in heard if note["op"] == "?"]:
            findings.append(Finding(PAYLOAD, "channels", f"sequences {shown(damaged)}"))
        return findings
