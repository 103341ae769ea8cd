"""Judges histories: pure functions over what clients say they did and what a plain client found.

Each gives findings. What a change of the world took by right is known to the checker as an excuse; silence has none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.faults.history import History, Operation, op_of
from tests.faults.plain import Stored

SHOWN = 5  # examples in the text of a finding

LOST = "acknowledged and not found"
ALIEN = "found and never sent"
REPEATED = "repeated"
ORDER = "out of order"
PAYLOAD = "not a payload that was sent"
SILENT = "changed in silence"
GAP = "read with a gap"
STALL = "stalled"
ENDED = "ended without a word"
STOPPED = "stopped for no reason that is allowed"
LEAK = "left behind"
BROKE = "broke the round"


@dataclass(frozen=True)
class Finding:
    """Something that must not be: its kind, the part that did it, and examples."""

    kind: str
    part: str
    text: str

    def __str__(self) -> str:
        return f"{self.part}: {self.kind}: {self.text}"


@dataclass(frozen=True)
class Taken:
    """What a change of the world took from a stream by right.

    Of what was begun before `until`, everything with a sequence above `above` and not above `most` may be gone.
    """

    stream: str
    until: float
    above: int = 0
    most: int | None = None
    begun: float | None = None
    """When the change began, if it took its time: who notices it may tell of it from then on."""
    blind: bool = False
    """Whether messages may have come and gone that nobody saw, between the look before the change and its end."""

    @property
    def since(self) -> float:
        """When it began."""
        return self.until if self.begun is None else self.begun

    def takes(self, one: Operation) -> bool:
        """Tell whether an operation may be gone for this reason."""
        sequence = one.facts.get("seq")
        return one.invoked <= self.until and (
            sequence is None or (sequence > self.above and (self.most is None or sequence <= self.most))
        )

    def may_take_unseen(self, one: Operation) -> bool:
        """Tell whether an operation may be gone that was not there yet when somebody looked."""
        return self.blind and one.invoked <= self.until and (one.ended is None or one.ended >= self.since)


@dataclass(frozen=True)
class Window:
    """A time in which something was done to the world."""

    begin: float
    end: float
    kind: str = ""
    target: str = ""


@dataclass
class Evidence:
    """What a part left for the checker: its operations, and what a plain client found of them in one stream."""

    part: str
    stream: str
    history: History
    found: Sequence[Stored]
    taken: Sequence[Taken] = ()
    bare: bool = False
    ordered: frozenset[str] = frozenset()
    """Clients that were promised order."""
    repeats: str = "never"
    """"never", or "unsure": what had no ack may be there again, because its sender sent it again."""
    again: Mapping[str, int] = field(default_factory=dict)
    """How many times more than once something may be there, because its id was used again when it was forgotten."""
    name: Callable[[Stored], str | None] = field(default=lambda message: op_of(message.data))


def shown(items: Iterable[Any]) -> str:
    """Give a few examples, and say how many there are."""
    listed = list(items)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(str(item) for item in listed[:SHOWN]) + more


def check_stored(evidence: Evidence) -> list[Finding]:
    """Hold what is in a stream against what was sent: lost, never sent, repeated, damaged, out of order."""
    part, findings = evidence.part, []
    sent = {one.op: one for one in evidence.history.operations}
    names = [(evidence.name(message), message) for message in evidence.found]
    if damaged := [message for name, message in names if name is None]:
        text = shown(f"sequence {message.sequence} has {message.data[:40]!r}" for message in damaged)
        findings.append(Finding(PAYLOAD, part, text))
    counts = Counter(name for name, _ in names if name is not None)
    if alien := [name for name in counts if name not in sent]:
        findings.append(Finding(ALIEN, part, shown(alien)))
    if refused := [name for name in counts if name in sent and sent[name].outcome == "fail"]:
        findings.append(Finding(ALIEN, part, f"refused, and there all the same: {shown(refused)}"))
    lost = [
        one
        for one in evidence.history.operations
        if one.outcome == "ok" and not counts[one.op] and not any(taken.takes(one) for taken in evidence.taken)
    ]
    if lost:
        text = shown(f"{one.op} (sequence {one.facts.get('seq')})" for one in lost)
        findings.append(Finding(LOST, part, text))
    often = {name: count for name, count in counts.items() if count > 1 + evidence.again.get(name, 0)}
    repeated = [name for name in often if _once(evidence, sent.get(name))]
    if repeated:
        findings.append(Finding(REPEATED, part, shown(f"{name} {counts[name]} times" for name in repeated)))
    return findings + _check_order(evidence, names, sent)


def _once(evidence: Evidence, one: Operation | None) -> bool:
    return evidence.repeats == "never" or one is None or one.facts.get("tries", 1) == 1


def _check_order(
    evidence: Evidence, names: Sequence[tuple[str | None, Stored]], sent: dict[str, Operation]
) -> list[Finding]:
    """See that what each life of a client sent stands in the order in which it was sent."""
    places: dict[tuple[str, int], list[tuple[float, str]]] = defaultdict(list)
    numbers = {one.op: number for number, one in enumerate(evidence.history.operations)}
    seen: set[str] = set()
    for name, _ in names:
        one = sent.get(name or "")
        if one is not None and one.client in evidence.ordered and one.op not in seen:
            seen.add(one.op)
            places[one.client, one.life].append((numbers[one.op], one.op))
    wrong = [
        f"{later[1]} before {earlier[1]}"
        for listed in places.values()
        for later, earlier in pairwise(listed)
        if later[0] > earlier[0]
    ]
    return [Finding(ORDER, evidence.part, shown(wrong))] if wrong else []


def check_silence(part: str, history: History) -> list[Finding]:
    """See that a client whose acknowledged sequences went back was told so: its stream is not the one that it was.

    A message that was sent after another one was acknowledged stands behind that one. If it does not, the client must
    have told of it, or stopped, since that ack: what was told of an earlier change is no word on this one.
    """
    lives: dict[tuple[str, int], list[Operation]] = defaultdict(list)
    for one in history.operations:
        if one.outcome == "ok" and one.ended is not None and "seq" in one.facts and not one.facts.get("duplicate"):
            lives[one.client, one.life].append(one)
    told: dict[tuple[str, int], float] = defaultdict(lambda: float("-inf"))
    for note in history.said("told") + history.said("stopped"):
        life = note["client"], note["life"]
        told[life] = max(told[life], note["t"])
    wrong = []
    for life, done in lives.items():
        if one := _first_back(done, told[life]):
            wrong.append(f"{one[0].op} has sequence {one[0].facts['seq']} after {one[1]}")
    return [Finding(SILENT, part, shown(wrong))] if wrong else []


def _first_back(done: Sequence[Operation], told: float) -> tuple[Operation, int] | None:
    """Give what stands before a message that was acknowledged when it was sent, if nothing was told since that ack."""
    acks = sorted(done, key=lambda one: one.ended or 0.0)
    place, highest, since = 0, 0, 0.0
    for one in sorted(done, key=lambda one: one.invoked):
        while place < len(acks) and (acks[place].ended or 0.0) < one.invoked:
            if acks[place].facts["seq"] > highest:
                highest, since = acks[place].facts["seq"], acks[place].ended or 0.0
            place += 1
        if one.facts["seq"] < highest:
            if told < since:
                return one, highest
            highest = one.facts["seq"]  # it was told: what comes is behind this one
    return None


def check_reads(part: str, history: History, taken: Sequence[Taken] = ()) -> list[Finding]:
    """See that a read of a range that ended well gave every sequence of it, once and in order.

    What was removed one by one may be there or not.
    """
    single = {one.most for one in taken if one.most is not None and one.most == one.above + 1}
    wrong = []
    for one in history.operations:
        if one.outcome == "ok":
            start, end, got = one.facts["start"], one.facts["end"], one.facts["got"]
            came = [sequence for first, behind in got for sequence in range(first, behind)]
            missing = set(range(start, end)) - set(came) - single
            if missing or came != sorted(set(came)) or (came and not start <= came[0] <= came[-1] < end):
                wrong.append(f"[{start}, {end}) gave {got[:6]}")
    return [Finding(GAP, part, shown(wrong))] if wrong else []


def check_made(part: str, inputs: Iterable[str], made: Sequence[str], *, excused: bool = False) -> list[Finding]:
    """See that each input became exactly one result, and nothing else did."""
    wanted, counts, findings = set(inputs), Counter(made), []
    if repeated := [name for name, count in counts.items() if count > 1]:
        findings.append(Finding(REPEATED, part, shown(f"{name} {counts[name]} times" for name in repeated)))
    if lost := sorted(wanted - set(counts)):
        findings.append(Finding(LOST, part, f"no result of {shown(lost)}"))
    if not excused and (alien := sorted(set(counts) - wanted)):
        findings.append(Finding(ALIEN, part, f"results of {shown(alien)}"))
    return findings


def check_progress(
    part: str, history: History, windows: Sequence[Window], begin: float, end: float, bound: float
) -> list[Finding]:
    """See that no more than `bound` seconds in which nothing was done to the world pass without an acknowledgement."""
    done = sorted(one.ended for one in history.operations if one.outcome == "ok" and one.ended is not None)
    places = [begin, *(moment for moment in done if begin < moment < end), end]
    wrong = []
    for first, last in pairwise(places):
        quiet = _quiet(first, last, windows)
        if quiet > bound:
            wrong.append(f"nothing was acknowledged for {quiet:.1f} s, from {first - begin:.1f} s on")
    return [Finding(STALL, part, shown(wrong))] if wrong else []


def _quiet(first: float, last: float, windows: Sequence[Window]) -> float:
    """Give how much time between two moments no window covers."""
    quiet, place = 0.0, first
    for window in sorted(windows, key=lambda window: window.begin):
        if window.end > place and window.begin < last:
            quiet += max(0.0, window.begin - place)
            place = window.end
    return quiet + max(0.0, last - place)


def check_recovered(
    part: str, history: History, healed: float, bound: float, *, client: str = "", sort: str = "ok"
) -> list[Finding]:
    """See that something came of a client within `bound` seconds of the moment at which the world was whole again.

    `sort` says what: "ok" is an acknowledgement, "got" something that it received.
    """
    ended = [one.ended for one in history.operations if one.outcome == sort and one.ended is not None]
    moments = [*ended, *(note["t"] for note in history.said(sort))]
    if any(healed < moment <= healed + bound for moment in moments):
        return []
    last = max((moment for moment in moments if moment <= healed), default=None)
    before = "nothing before" if last is None else f"the last before came {healed - last:.1f} s earlier"
    return [Finding(STALL, part, f"{client}: no {sort} in {bound:g} s once the world was whole again; {before}")]


def check_endings(
    part: str, history: History, died: Iterable[tuple[str, int]], allowed: Callable[[str, str, float], bool]
) -> list[Finding]:
    """See that a client that ended by itself said why, and for a reason that the guarantees allow after what was done.

    `died` are the lives that ended neither by a kill nor because they were asked to.
    """
    findings = []
    spoken = {(note["client"], note["life"]): note for note in history.said("stopped")}
    if dumb := [f"{client}, life {life}" for client, life in died if (client, life) not in spoken]:
        findings.append(Finding(ENDED, part, shown(dumb)))
    wrong = [
        f"{note['client']}: {note['error']}: {note['text'][:200]}"
        for note in [*spoken.values(), *history.said("told")]
        if not allowed(note["error"], note.get("text", ""), note["t"])
    ]
    return findings + ([Finding(STOPPED, part, shown(wrong))] if wrong else [])
