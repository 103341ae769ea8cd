"""What a run plans: every part meets what it is meant to meet, whatever the seed, and a plan follows from its seed."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.faults.faults import KINDS
from tests.faults.parts import PARTS
from tests.faults.rounds import Setting, endings_of
from tests.faults.run import SECONDS, settings

ALL = tuple(PARTS)


def rounds(*seeds: int, count: int = 10) -> list[Setting]:
    """Give the first rounds of some runs."""
    return [setting for seed in seeds for setting in islice(settings(seed, ALL, SECONDS), count)]


@pytest.mark.parametrize("first", [1, 2, 30])
def test_three_seeds_bring_every_part_and_all_of_them_together_onto_three_nodes(first: int) -> None:
    """Ten rounds of each of three seeds in a row do it, and each part has rounds of one node, too."""
    planned = rounds(first, first + 1, first + 2)
    for chosen in (*((name,) for name in ALL), ALL):
        assert {setting.nodes for setting in planned if setting.parts == chosen} == {1, 3}, chosen


def test_another_seed_is_another_order() -> None:
    """Runs that are cut short do not all leave out the same; the same seed is the same run."""
    assert len({tuple(setting.parts for setting in rounds(seed)) for seed in range(1, 6)}) > 3
    assert rounds(7) == rounds(7)


@pytest.mark.parametrize("part", [name for name in ALL if PARTS[name].endings])
def test_every_ending_of_a_part_comes(part: str) -> None:
    """Among the rounds of some seeds is each fault that may stop the part for good, and some have no such fault."""
    planned = [setting for setting in rounds(*range(1, 61)) if setting.parts == (part,)]
    ends = [setting.in_time()[1] for setting in planned]
    assert all(len(last) < 2 for last in ends)
    assert {(step.kind, step.target) for last in ends for step in last} == {one[:2] for one in PARTS[part].endings}
    assert sum(not last for last in ends) > len(ends) / 20


def test_rounds_of_several_parts_end_with_what_hits_all_of_them() -> None:
    """A store that is set back comes there, too, at the end: of one node, because that is what can be copied."""
    ends = [setting.in_time()[1] for setting in rounds(*range(1, 31)) if setting.parts == ALL]
    assert {step.kind for last in ends for step in last} == {"restore store"}
    assert any(not last for last in ends)
    assert endings_of(ALL, 3) == [("", "", 0.0)]


def test_what_ends_a_part_stands_at_the_end_of_its_round() -> None:
    """All other faults are done before it, so that what was acknowledged can be looked at in between."""
    for setting in rounds(*range(1, 21)):
        within, last = setting.in_time()
        assert all(step.at < setting.seconds for step in within)
        assert all((step.kind, step.target, step.seconds) in endings_of(setting.parts, setting.nodes) for step in last)
        stops = {kind for part in setting.parts for kind, target, _ in PARTS[part].endings if not target}
        assert not stops & {step.kind for step in within}
        assert all(setting.nodes in KINDS[step.kind].nodes for step in within + last)
