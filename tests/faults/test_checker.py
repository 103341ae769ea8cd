"""The checker's functions by themselves: each finds what it is for, and nothing in a history without fault."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tools.reliability_page import with_run

from tests.faults import checker, clock
from tests.faults.allowed import allowed
from tests.faults.checker import Evidence, Taken, Window, check_endings, check_made, check_progress, check_stored
from tests.faults.history import History, Operation, content
from tests.faults.leaks import Sample, check_growth
from tests.faults.parts import results_taken
from tests.faults.plain import Stored
from tests.faults.rounds import Setting, shrink


def done(*numbers: int, outcome: str = "ok", client: str = "p", **facts: object) -> list[Operation]:
    """Make operations that ended, each with its number as its sequence."""
    return [
        Operation(f"{client}-1-{number}", client, 1, float(number), {"seq": number, **facts}, number + 0.5, outcome)
        for number in numbers
    ]


def stored(*numbers: int) -> list[Stored]:
    """Make what a plain client would find."""
    return [Stored(place + 1, "s", {}, content(f"p-1-{number}")) for place, number in enumerate(numbers)]


def kinds(operations: list[Operation], found: list[Stored], *taken: Taken) -> list[str]:
    """Give the kinds of what is found."""
    evidence = Evidence("p", "S", History(operations), found, taken, ordered=frozenset({"p"}))
    return [finding.kind for finding in check_stored(evidence)]


def test_a_history_without_fault():
    """Everything acknowledged is there once and in order; what is unknown may be there or not."""
    unknown = done(4, 5, outcome="unknown")
    assert kinds([*done(1, 2, 3), *unknown], stored(1, 2, 3, 5)) == []


def test_each_sort_of_finding():
    """What is lost, never sent, refused and there, repeated, out of order or damaged is found as that."""
    three = done(1, 2, 3)
    assert kinds(three, stored(1, 3)) == [checker.LOST]
    assert kinds(three, stored(1, 2, 3, 9)) == [checker.ALIEN]
    assert kinds([*three, *done(4, outcome="fail")], stored(1, 2, 3, 4)) == [checker.ALIEN]
    assert kinds(three, stored(1, 2, 2, 3)) == [checker.REPEATED]
    assert kinds(three, stored(2, 1, 3)) == [checker.ORDER]
    damaged = [*stored(1, 2), Stored(3, "s", {}, content("p-1-3") + b"x")]
    assert kinds(done(1, 2), damaged) == [checker.PAYLOAD]


def test_an_excuse_reaches_no_further_than_the_change():
    """A purge excuses what it took; what was sent later, or stood behind it, must be there."""
    purge = Taken("S", until=10.0, most=2)
    assert kinds(done(1, 2, 3), stored(3), purge) == []
    assert kinds(done(1, 2, 3), stored(), purge) == [checker.LOST]
    assert kinds(done(1, 2, 11), stored(), Taken("S", until=10.0)) == [checker.LOST]


def test_sequences_that_go_back_are_silent_unless_told():
    """A life whose acknowledged sequences go back without a word is found; with a word it is not."""
    back = [*done(5), *done(6)]
    back[1].facts["seq"] = 2
    found = checker.check_silence("p", History(back), {"p"})
    assert [finding.kind for finding in found] == [checker.SILENT]
    told = {"t": 6.0, "is": "told", "client": "p", "life": 1, "error": "DataLossError", "text": "gone"}
    assert checker.check_silence("p", History(back, [told]), {"p"}) == []


def test_a_read_with_a_gap():
    """A read that ended well gave all of its range, in order."""
    read = done(1, start=5, end=9, got=[[5, 9]])
    assert checker.check_reads("read", History(read)) == []
    for got in ([[5, 7], [8, 9]], [[5, 8]], [], [[5, 9], [8, 9]]):
        read[0].facts["got"] = got
        assert [finding.kind for finding in checker.check_reads("read", History(read))] == [checker.GAP]


def test_what_was_deleted_one_by_one_may_be_missing_from_a_read():
    """It may be there or not; nothing else may be missing, and nothing may come twice or be of another range."""
    taken = [Taken("S", 9.0, above=5, most=6), Taken("S", 9.0, most=3)]
    read = done(1, start=5, end=9, got=[[5, 6], [7, 9]])
    assert checker.check_reads("read", History(read), taken) == []
    for got in ([[5, 6], [8, 9]], [[5, 6], [7, 9], [8, 9]], [[5, 6], [7, 10]], [[7, 9]]):
        read[0].facts["got"] = got
        assert [finding.kind for finding in checker.check_reads("read", History(read), taken)] == [checker.GAP]


def test_what_grows_is_found():
    """A life whose files, threads or memory grow is named, with what grows; one that is as it was is not."""
    flat = [Sample(20, 3, 80.0 + number % 3) for number in range(200)]
    assert check_growth("p", {"a#1": flat}) == []
    for grown, word in ((Sample(1, 0, 0.0), "files"), (Sample(0, 1, 0.0), "threads"), (Sample(0, 0, 1.0), "megabytes")):
        series = [
            Sample(20 + at * grown.files, 3 + at * grown.threads, 80.0 + at * grown.megabytes) for at in range(200)
        ]
        (found,) = check_growth("p", {"a#1": flat, "b#2": series})
        assert (found.kind, f"b#2: {word}" in found.text, "a#1" in found.text) == (checker.LEAK, True, False)


def test_a_clock_that_is_moved(tmp_path: Path):
    """A process sees its wall clock jump while it runs; its steady clock goes on, and sleeping is as ever."""
    assert clock.why_not() == "", "tests of the compiled modules need a C compiler, too"
    program = (
        "import sys, time\n"
        "for line in sys.stdin:\n"
        "    begin = time.monotonic(); time.sleep(0.01)\n"
        "    print(time.time(), time.monotonic() - begin, flush=True)\n"
    )
    file = tmp_path / "clock"
    command = [sys.executable, "-c", program]
    env = {**os.environ, **clock.environment(file)}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for ahead in (0, 86_400, -3_600, 0):
            clock.set_clock(file, ahead)
            print("look", file=process.stdin, flush=True)
            seen, lasted = (float(word) for word in process.stdout.readline().split())
            assert abs(seen - time.time() - ahead) < 60
            assert 0.01 <= lasted < 60
        process.stdin.close()


def test_results_that_are_missing_or_too_many():
    """Each input has one result."""
    assert check_made("work", "abc", list("cab")) == []
    found = [finding.kind for finding in check_made("work", "abc", list("aabd"))]
    assert found == [checker.REPEATED, checker.LOST, checker.ALIEN]


def test_results_that_were_set_back_are_excused_if_that_was_told():
    """What was stored before, and told of, may be gone; stored later, or without a word, it may not."""
    stored_before = Operation("a@7", "work-1", 1, 5.0, {"seq": 9}, 5.5, "ok")
    stored_later = Operation("b@8", "work-1", 1, 11.0, {"seq": 9}, 11.5, "ok")
    back = [Taken("OUT", until=10.0, above=8)]
    told = {"t": 10.5, "is": "told", "client": "work-1", "life": 1, "error": "DataLossError", "text": "gone"}
    assert results_taken(History([stored_before, stored_later], [told]), back) == {"a"}
    assert results_taken(History([stored_before, stored_later]), back) == set()
    assert results_taken(History([stored_before], [told]), [Taken("OUT", until=10.0, above=9)]) == set()


def test_a_stall_is_one_only_while_nothing_is_done():
    """Time in which faults last does not count; the rest of it does."""
    history = History(done(1, 40))
    assert [one.kind for one in check_progress("p", history, [], 0.0, 41.0, 30.0)] == [checker.STALL]
    assert check_progress("p", history, [Window(5.0, 20.0), Window(15.0, 22.0)], 0.0, 41.0, 30.0) == []


def test_a_client_that_ends_says_why():
    """Without a word, or for a reason that nobody gave it, an end is a finding."""
    stopped = {"t": 1.0, "is": "stopped", "client": "p", "life": 1, "error": "DeniedError", "text": "may not"}
    history = History([], [stopped])
    assert check_endings("p", history, [("p", 1)], lambda name, text: True) == []
    found = check_endings("p", history, [("p", 1), ("p", 2)], lambda name, text: False)
    assert [finding.kind for finding in found] == [checker.ENDED, checker.STOPPED]


def test_a_plan_follows_from_its_seed():
    """The same seed gives the same faults; what needs three nodes, a disk or an end of the round is not among them."""
    one = Setting(5, 600.0, ("jetstream",))
    assert one.planned() == Setting(5, 600.0, ("jetstream",)).planned()
    assert one.planned() != Setting(6, 600.0, ("jetstream",)).planned()
    kinds = {step.kind for step in one.planned()}
    assert {"kill", "sleep", "node kill", "cut", "purge", "recreate", "restore store", "mirror", "revoke"} <= kinds
    assert not kinds & {"isolate", "step down", "disk full", "old folder", "second driver"}


def test_a_round_is_made_as_small_as_it_still_fails():
    """Of many faults the two are left that fail together."""
    setting = Setting(7, 60.0, ("jetstream",))
    wanted = set(setting.planned()[3:12:8])
    assert len(wanted) == 2
    smaller = shrink(setting, lambda tried: wanted <= set(tried.planned()))
    assert set(smaller.planned()) == wanted


def test_what_may_stop_is_read_from_the_table():
    """An error is allowed after a change only if the guarantees say for it that it is told, and it has a text."""
    judge = allowed("read", ["purge"])
    assert judge("DataLossError", "gone")
    assert not judge("DataLossError", "")
    assert not judge("DeadlineError", "late")
    assert not allowed("read", ["mirror"])("DataLossError", "gone")
    assert allowed("work", ["recreate"])("NotFoundError", "gone")


def test_a_run_writes_its_row_into_the_page():
    """A command has one row, that of its last run."""
    page = "## What the runs found\n\n| command |\n|---|\n\nMore.\n\n## Faults by kind\n\nnone\n\n"
    run = {"command": "make faults SEED=1", "rounds": 2, "faults": {"kill": 3}, "operations": {"ok": 1000}}
    run |= {"told": {}, "findings": [], "skipped": {"clock jump": "no"}}
    text = with_run(with_run(page, run), {**run, "rounds": 3})
    assert text.count("`make faults SEED=1`") == 2
    assert "| 3 | 3 | 1,000, 0, 0 | none | 0 |" in text
