"""The checker's functions by themselves: each finds what it is for, and nothing in a history without fault."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.faults import checker, clock
from tests.faults.allowed import allowed
from tests.faults.checker import (
    Evidence,
    Taken,
    Window,
    check_endings,
    check_made,
    check_progress,
    check_recovered,
    check_stored,
)
from tests.faults.clients import sink, spark
from tests.faults.faults import KINDS
from tests.faults.history import History, Operation, content
from tests.faults.leaks import Sample, check_growth
from tests.faults.part import Moments
from tests.faults.parts import PARTS, check_rows, results_taken
from tests.faults.plain import Stored
from tests.faults.rounds import Outcome, Setting, shrink, waited_for_cores
from tests.faults.run import SECONDS, read_setting, settings, shrink_first
from tests.faults.spark_part import check_pipeline, check_writes
from tests.faults.transport_parts import check_marks
from tests.faults.world import World


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


def test_an_id_that_was_used_again_when_it_was_forgotten_may_be_there_so_often():
    """Once more for each time that it was used again, and no more."""
    evidence = Evidence("p", "S", History(done(1, 2)), stored(1, 1, 2), again={"p-1-1": 1})
    assert check_stored(evidence) == []
    again = check_stored(replace(evidence, found=stored(1, 1, 1, 2)))
    assert [one.kind for one in again] == [checker.REPEATED]
    assert [one.kind for one in check_stored(replace(evidence, found=stored(1, 2, 2)))] == [checker.REPEATED]


def test_an_excuse_reaches_no_further_than_the_change():
    """A purge excuses what it took; what was sent later, or stood behind it, must be there."""
    purge = Taken("S", until=10.0, most=2)
    assert kinds(done(1, 2, 3), stored(3), purge) == []
    assert kinds(done(1, 2, 3), stored(), purge) == [checker.LOST]
    assert kinds(done(1, 2, 11), stored(), Taken("S", until=10.0)) == [checker.LOST]


def test_sequences_that_go_back_are_silent_unless_told():
    """A life whose acknowledged sequences go back without a word is found; a word of that, and not of before, helps."""
    back = done(4, 5, 6, 7)
    back[2].facts["seq"], back[3].facts["seq"] = 2, 3

    def found(*told: float) -> list[str]:
        notes = [{"t": moment, "is": "told", "client": "p", "life": 1, "error": "DataLossError"} for moment in told]
        return [finding.kind for finding in checker.check_silence("p", History(back, notes))]

    assert found() == [checker.SILENT]
    assert found(5.0) == [checker.SILENT]  # before what was lost was acknowledged
    assert found(6.5) == []


def test_what_is_sent_side_by_side_may_be_stored_in_another_order():
    """Only what was sent when another one was acknowledged stands behind that."""
    one, two = done(1, 2)
    one.facts["seq"], one.ended = 3, 2.2
    assert checker.check_silence("p", History([one, two])) == []
    one.ended = 1.9
    assert [finding.kind for finding in checker.check_silence("p", History([one, two]))] == [checker.SILENT]


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


def test_subscriptions_that_grow_are_found():
    """A life that subscribes and never unsubscribes is named; others that lose theirs for a while are not."""
    flat = [0 if number % 20 == 0 else 5 for number in range(200)]
    led_again = [12] * 40 + [3] * 80 + [12] * 80
    (found,) = check_growth("p", {}, {"a#1": flat, "b#1": [*range(200)], "c#1": led_again})
    assert (found.kind, "b#1: subscriptions" in found.text, "a#1" in found.text) == (checker.LEAK, True, False)
    assert "c#1" not in found.text


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


def test_a_client_that_gets_nothing_done_once_the_world_is_whole_again_stalls():
    """What came before, or later than the bound, does not count; what came since does, acknowledged or received."""
    history = History(done(1, 40), [{"t": 45.0, "is": "got", "client": "p", "life": 1}])
    assert check_recovered("p", history, 40.0, 3.0) == []
    assert check_recovered("p", history, 41.0, 5.0, sort="got") == []
    for healed, sort in ((41.0, "ok"), (30.0, "ok"), (41.0, "got"), (46.0, "got")):
        assert [one.kind for one in check_recovered("p", history, healed, 3.0, sort=sort)] == [checker.STALL]


def test_a_client_that_works_once_and_never_again_is_found_in_every_planned_round(tmp_path: Path):
    """However many faults a plan has: what they excuse is over when the world is whole again."""
    for seed in (1, 2, 3):
        for setting in islice(settings(seed, tuple(PARTS), SECONDS), 14):
            windows = [
                Window(step.at, step.at + min(step.seconds, KINDS[step.kind].hinders)) for step in setting.planned()
            ]
            healed = max([setting.seconds, *(window.end for window in windows)])
            for name in setting.parts:
                world = SimpleNamespace(taken=[], kept={}, folder=tmp_path)
                part = PARTS[name](cast("Any", world))
                clients = part.must_get_on(History())
                assert set(part.working) <= set(clients)
                operations, notes = [], []
                for client, sort in clients.items():
                    operations += done(1, client=client) if sort == "ok" else []
                    notes += [{"t": 1.5, "is": "got", "client": client, "life": 1}] if sort == "got" else []
                moments = Moments(0.0, healed)
                found = part.stalls(History(operations, notes), windows, moments)
                texts = " ".join(finding.text for finding in found if finding.kind == checker.STALL)
                assert not [client for client in clients if f"{client}: no" not in texts], setting


def test_faults_that_nobody_has_to_wait_out_excuse_only_a_few_seconds():
    """A clock that jumps, and a wire that is slow, let clients go on."""
    short = {name for name, kind in KINDS.items() if kind.hinders < 5.0}
    assert short == {"slow", "slow routes", "delay", "mirror", "clock jump"}


def test_a_client_that_ends_says_why():
    """Without a word, or for a reason that nobody gave it, an end is a finding."""
    stopped = {"t": 1.0, "is": "stopped", "client": "p", "life": 1, "error": "DeniedError", "text": "may not"}
    history = History([], [stopped])
    assert check_endings("p", history, [("p", 1)], lambda name, text, moment: True) == []
    found = check_endings("p", history, [("p", 1), ("p", 2)], lambda name, text, moment: False)
    assert [finding.kind for finding in found] == [checker.ENDED, checker.STOPPED]


def test_a_plan_follows_from_its_seed():
    """The same seed gives the same faults; what needs three nodes, a disk or an end of the round is not among them."""
    one = Setting(5, 600.0, ("jetstream",))
    assert one.planned() == Setting(5, 600.0, ("jetstream",)).planned()
    assert one.planned() != Setting(6, 600.0, ("jetstream",)).planned()
    kinds = {step.kind for step in one.planned()}
    assert {"kill", "sleep", "node kill", "cut", "purge", "recreate", "restore store", "mirror", "revoke"} <= kinds
    assert not kinds & {"isolate", "step down", "disk full", "old folder", "second driver"}


def test_every_part_meets_changes_of_its_world():
    """Its streams lose messages, or are set back, and permissions go; Spark's processes are put to sleep."""
    wanted = {
        "jetstream": {"purge", "delete", "limits", "mirror", "revoke", "recreate", "restore store", "restore stream"},
        "chunks": {"purge", "delete", "limits", "mirror", "revoke", "restore store", "restore stream"},
        "channels": {"purge", "delete", "limits", "mirror", "revoke", "restore store", "restore stream"},
        "sink": {"mirror", "revoke"},
        "bus": {"revoke"},
        "spark": {"mirror", "revoke", "sleep worker", "sleep executor", "kill worker", "kill executor"},
    }
    for part, kinds in wanted.items():
        planned = {step.kind for seed in (1, 3, 5, 7) for step in Setting(seed, 600.0, (part,), small=True).planned()}
        assert kinds | {"disk full"} <= planned, part


def test_a_node_that_follows_is_hit_too():
    """More often it is the one that leads; without a stream it is any."""
    nodes = [object(), object(), object()]
    world = cast("Any", SimpleNamespace(leader=lambda stream: nodes[1], server=SimpleNamespace(nodes=nodes)))
    chosen = [World.node(world, "S", number / 100) for number in range(100)]
    counts = [chosen.count(node) for node in nodes]
    assert counts[1] > 50
    assert min(counts) > 10
    assert {World.node(world, "", number / 10) for number in range(10)} == set(nodes)


def test_only_what_stood_where_a_change_took_it_is_excused():
    """It must have been seen there, and sent before; another stream or place excuses nothing."""
    first, second, later = done(1, 2, 30)
    seen = {("S", "p-1-1"): {7}, ("S", "p-1-2"): {8}, ("S", "p-1-30"): {7}}
    world = cast("Any", SimpleNamespace(seen=seen, taken=[Taken("S", 10.0, above=6, most=7)]))
    assert [World.takes(world, "S", one) for one in (first, second, later)] == [True, False, False]
    assert not World.takes(world, "T", first)


def test_what_was_acknowledged_before_anybody_looked_is_not_excused_by_what_came_later():
    """A stream that is made anew takes what was seen there, and what was under way; not what was lost before that."""
    seen, lost, under_way, later = done(1, 2, 8, 30)
    taken = [Taken("S", 10.0, begun=8.2, blind=True)]
    world = cast("Any", SimpleNamespace(seen={("S", "p-1-1"): {4}}, taken=taken))
    assert [World.takes(world, "S", one) for one in (seen, lost, under_way, later)] == [True, False, True, False]


def test_a_row_that_was_acknowledged_before_the_end_and_is_lost_is_found():
    """A sink that stopped for good owes the rows of its batches all the same, but for those that a change took."""
    batches = [Operation(f"batch-{at}@1", "sink-1", 1, at, {"batch": at}, at + 0.5, "ok") for at in (0, 1)]
    rows = [row.decode() for batch in (0, 1) for row in sink.rows_of(batch)]
    found = [Stored(place + 1, "ROWS.rows", {}, row.encode()) for place, row in enumerate(rows)]
    assert check_rows(History(batches), found) == []
    assert [one.kind for one in check_rows(History(batches), found[1:])] == [checker.LOST]
    assert check_rows(History(batches), found[1:], lambda one: one.op == rows[0]) == []
    assert [one.kind for one in check_rows(History(batches), found[2:], lambda one: one.op == rows[0])] == [
        checker.LOST
    ]
    assert [one.kind for one in check_rows(History(batches[:1]), found)] == [checker.ALIEN]


def test_a_query_that_has_stopped_owes_what_it_had_written():
    """Rows that were there before the last fault, and that it did not take, must still be there."""
    fed = History([Operation(str(n), "feed-spark", 1, n, {"seq": n}, n + 0.5, "ok") for n in (1, 2)])
    source = [Stored(n, "SIN.x", {}, str(n).encode()) for n in (1, 2)]
    assert [one.kind for one in check_pipeline(fed, source, [])] == [checker.LOST]
    assert check_pipeline(fed, source, [], over=True) == []
    assert [one.kind for one in check_pipeline(fed, source, source[1:], over=True, kept={"1", "2"})] == [checker.LOST]


def test_writes_that_a_change_took_are_excused_and_no_others():
    """Of a write that was set back rows may be missing; one that was done before and stays must be there."""
    facts = [{"kind": "write", "number": number} for number in (1, 2)]
    writes = [Operation(f"write-{at}", "spark", 1, at, fact, at + 0.5, "ok") for at, fact in enumerate(facts)]
    rows = [Stored(1, "SBATCH.x", {}, row.encode()) for row in spark.rows_of(1)]
    assert check_writes(History(writes), rows, lambda one: one.op.startswith("write-2-")) == []
    assert [one.kind for one in check_writes(History(writes), rows, lambda one: False)] == [checker.LOST]


def test_what_comes_again_has_a_mark_unless_the_stream_was_set_back():
    """A sequence that was taken is given anew; the message that has it now is new, and what it was before is gone."""

    def heard(at: float, seq: int, op: str, again: bool = False) -> dict[str, Any]:
        return {"t": at, "seq": seq, "op": op, "again": again}

    sent = History(done(1, 2, 3, 20))
    before = [heard(1.6, 1, "p-1-1"), heard(2.6, 2, "p-1-2"), heard(3.6, 3, "p-1-3")]
    assert check_marks([*before, heard(4.0, 2, "p-1-2", True)], sent) == []
    assert check_marks([*before, heard(4.0, 2, "p-1-2")], sent) == ["sequence 2 again without a mark"]
    assert check_marks([*before, heard(21.0, 2, "p-1-20")], sent) == ["sequence 2 after 3"]
    back = [Taken("S", 10.0, above=1)]
    assert check_marks([*before, heard(21.0, 2, "p-1-20")], sent, back) == []
    assert check_marks([*before, heard(21.0, 1, "p-1-20")], sent, [Taken("S", 10.0, above=2)]) != []


def test_a_round_is_made_as_small_as_it_still_fails():
    """Of many faults the two are left that fail together."""
    setting = Setting(7, 60.0, ("jetstream",))
    wanted = set(setting.planned()[3:12:8])
    assert len(wanted) == 2
    smaller = shrink(setting, lambda tried: wanted <= set(tried.planned()))
    assert set(smaller.planned()) == wanted


def test_the_first_round_that_failed_is_made_smaller_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The plan that is left is short, can be done again from its file, and is printed with what was found."""
    setting = Setting(7, 60.0, ("jetstream",))
    wanted = setting.planned()[3]
    found = [checker.Finding(checker.LOST, "publish", "p-1-1")]
    tried: list[Setting] = []

    def run(one: Setting) -> Outcome:
        tried.append(one)
        return Outcome(one, found if wanted in one.planned() else [])

    failed = Outcome(setting, found, kept=tmp_path)
    smaller = shrink_first([Outcome(setting), failed, Outcome(replace(setting, seed=8), found)], 5.0, run)
    assert smaller is not None
    assert smaller.planned() == (wanted,)
    assert smaller.seconds <= wanted.at + wanted.seconds + 5.0
    assert read_setting(tmp_path / "smaller.jsonl") == smaller
    said = capsys.readouterr().out
    assert "FOUND publish: acknowledged and not found: p-1-1" in said
    assert "faults that are left: 1, in" in said
    assert f"{wanted.kind} {wanted.target}" in said


def test_a_round_is_made_smaller_only_for_as_long_as_was_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """With no time for it nothing is run; a round that does not fail again keeps all of its faults."""
    setting, tried = Setting(7, 20.0, ("jetstream",)), list[Setting]()

    def run(one: Setting) -> Outcome:
        tried.append(one)
        return Outcome(one)

    failed = Outcome(setting, [checker.Finding(checker.LOST, "publish", "p-1-1")], kept=tmp_path)
    assert shrink_first([failed], 0.0, run) is None
    assert shrink_first([failed], 1e-9, run) == replace(setting, steps=setting.planned())
    assert tried == []
    assert shrink_first([failed], 5.0, run) == replace(setting, steps=setting.planned())
    assert "all of them are left" in capsys.readouterr().out


def test_what_may_stop_is_read_from_the_table():
    """An error is allowed after a change only if the guarantees say for it that it is told, and it has a text."""
    judge = allowed("read", [Window(5.0, 6.0, "purge")])
    assert judge("DataLossError", "gone", 5.5)
    assert not judge("DataLossError", "", 5.5)
    assert not judge("DeadlineError", "late", 5.5)
    assert not allowed("read", [Window(5.0, 6.0, "mirror")])("DataLossError", "gone", 5.5)
    assert allowed("work", [Window(5.0, 5.0, "recreate")])("NotFoundError", "gone", 60.0)


def test_an_error_below_one_that_is_allowed_is_another_one():
    """A lost connection is no refused login, and a stream that is full is not one that is gone."""
    judge = allowed("publish", [Window(5.0, 6.0, "kill")])
    found = [judge(name, "text", 5.5) for name in ("LinkError", "LoginError", "DeniedError", "TlsError")]
    assert found == [True, False, False, False]
    judge = allowed("publish", [Window(5.0, 6.0, "disk full")])
    assert [judge(name, "text", 5.5) for name in ("JetStreamError", "NotFoundError")] == [True, False]


def test_an_excuse_ends_some_time_after_its_fault():
    """What passes is over then; what a change took stays gone."""
    faults = [Window(5.0, 6.0, "kill"), Window(5.0, 6.0, "recreate", "IN")]
    judge = allowed("publish", faults, ("IN",), 45.0)
    assert [judge("DeadlineError", "late", moment) for moment in (50.0, 52.0)] == [True, True]  # for the recreation
    judge = allowed("publish", faults[:1], ("IN",), 45.0)
    assert [judge("DeadlineError", "late", moment) for moment in (50.0, 52.0)] == [True, False]
    assert allowed("publish", faults, ("IN",), 45.0)("DataLossError", "The stream IN was set back.", 500.0)


def test_a_loss_is_told_with_the_stream_that_was_changed():
    """One that names no stream, or another one, is not clear; a store that is set back is one of all streams."""
    judge = allowed("publish", [Window(5.0, 6.0, "recreate", "SHORT")], ("IN", "SHORT"))
    texts = ("The stream SHORT is gone.", "The stream IN is gone.", "Messages are gone.", "SHORTER is gone.")
    assert [judge("DataLossError", text, 7.0) for text in texts] == [True, False, False, False]
    judge = allowed("publish", [Window(5.0, 6.0, "restore store")], ("IN", "SHORT"))
    assert [judge("DataLossError", text, 7.0) for text in texts] == [True, True, False, False]


def test_what_is_done_later_excuses_nothing_earlier():
    """An error is allowed by what had begun when it came; it may outlast that, and the clock rounds a little."""
    judge = allowed("read", [Window(20.0, 21.0, "purge"), Window(5.0, 6.0, "purge"), Window(9.0, 9.5, "kill")])
    assert [judge("DataLossError", "gone", moment) for moment in (4.9, 4.9999, 6.5)] == [False, True, True]
    assert [judge("DeadlineError", "late", moment) for moment in (8.5, 9.0)] == [False, True]


def test_a_round_says_how_busy_the_machine_was():
    """Whoever judges a finding sees whether the machine had a core for everybody, if the kernel counts that."""
    outcome = Outcome(Setting(1, 10.0))
    assert "waited for a core" not in str(outcome)
    outcome.seconds, outcome.waited = 20.0, 0.834
    assert "20 s (somebody waited for a core in 83% of it): no faults" in str(outcome)
    assert waited_for_cores() is None or 0 < waited_for_cores() < time.clock_gettime(time.CLOCK_BOOTTIME) * 2
