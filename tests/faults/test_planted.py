"""The checker is proven: whatever is broken on purpose is found, with real servers and real processes."""

from __future__ import annotations

import pytest

from tests.faults import checker, leaks, parts
from tests.faults.faults import Step
from tests.faults.parts import Streams
from tests.faults.rounds import Outcome, Setting, run_round


def kinds(outcome: Outcome) -> set[tuple[str, str]]:
    """Give what was found, by part and kind."""
    return {(finding.part, finding.kind) for finding in outcome.findings}


class LosingStreams(Streams):
    """Workers whose results somebody takes away: rows that are lost."""

    def finish(self) -> None:
        super().finish()
        state = self.world.asked(lambda plain: plain.state("OUT"))
        self.world.api("STREAM.MSG.DELETE.OUT", {"seq": int(state["last_seq"])})


@pytest.mark.timeout(280)
def test_each_planted_fault_of_streams_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acks of what was never sent, swapped and altered messages, results twice, lost rows, a mirror that answers."""
    monkeypatch.setitem(parts.PARTS, "jetstream", LosingStreams)
    plant = "publish-strict=swaps,publish-sent=claims,work-1=twice,read-1=believes"
    steps = (Step(0, 1.0, "mirror", "IN", 5.0),)
    found = kinds(run_round(Setting(1, 6.0, plant=plant, steps=steps), print))
    assert {
        ("publish", checker.ORDER),
        ("publish", checker.LOST),
        ("work", checker.REPEATED),
        ("work", checker.LOST),
        ("read", checker.GAP),
    } <= found


@pytest.mark.timeout(280)
def test_leaks_stalls_and_other_bytes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open files, a process and temporary files that stay, a client that does nothing any more, an altered payload."""
    monkeypatch.setattr(leaks, "FEWEST", 12)
    monkeypatch.setattr(leaks, "STARTING", 0)
    monkeypatch.setattr(leaks, "GOING", 3.0)
    plant = "publish-strict=leaks,publish-sent=alters,read-1=stalls"
    found = run_round(Setting(2, 7.0, plant=plant, steps=(), bound=4.0), print)
    assert {("publish", checker.PAYLOAD), ("read", checker.STALL), ("jetstream", checker.LEAK)} <= kinds(found)
    texts = [finding.text for finding in found.findings if finding.kind == checker.LEAK]
    assert any("process" in text and "file left-" in text for text in texts)
    assert any("files" in text for text in texts)
    assert any("publish-strict#1: subscriptions" in text for text in texts)


@pytest.mark.timeout(280)
def test_clients_that_do_nothing_any_more_are_found_beside_faults() -> None:
    """Faults leave hardly a quiet moment; whoever has stopped working does not go on when they are over."""
    steps = (
        Step(0, 0.5, "clock jump", "read-1", 9.0, 0.9),
        Step(1, 1.0, "slow", "", 4.0, 0.5),
        Step(2, 2.0, "kill", "work-1"),
        Step(3, 3.0, "sleep", "bus-handler", 1.0),
        Step(4, 5.0, "delay", "", 3.0, 0.5),
        Step(5, 6.0, "node kill", "IN", 1.0),
        Step(6, 7.0, "hold", "", 2.0),
    )
    stalled = ["publish-sent", "read-1", "bus-requester", "chunks-sender", "stored-sender"]
    plant = ",".join(f"{name}=stalls" for name in stalled)
    setting = Setting(7, 9.0, ("jetstream", "chunks", "bus"), plant=plant, steps=steps, bound=25.0)
    found = run_round(setting, print).findings
    assert {finding.kind for finding in found} == {checker.STALL}
    texts = " ".join(finding.text for finding in found)
    heard = ["chunks-receiver", "stored-reader"]  # nobody sends to them
    assert {word for word in [*stalled, *heard, "publish-strict", "work-1", "work-2"] if f"{word}: no" in texts} == {
        *stalled,
        *heard,
    }


@pytest.mark.timeout(280)
def test_a_fence_that_does_not_hold_is_found_and_what_is_not_whole() -> None:
    """Of two drivers the first one wakes up and goes on storing; payloads that are not there, replies that are cut."""
    steps = tuple(Step(number, 1.0 + number, "second", "sink-1", 0.5) for number in range(7))
    plant = "sink-1=unfenced,stored-sender=halves,bus-requester=skips"
    found = kinds(run_round(Setting(3, 8.0, ("sink", "chunks", "bus"), plant=plant, steps=steps), print))
    assert {("stored", checker.LOST), ("bus", checker.GAP)} <= found
    # Only a driver that is put to sleep within a batch does harm, and a busy machine lets few of them come.
    for seed in (4, 5, 6):
        if ("sink", checker.REPEATED) in found:
            break
        found |= kinds(run_round(Setting(seed, 8.0, ("sink",), plant=plant, steps=steps), print))
    assert ("sink", checker.REPEATED) in found
