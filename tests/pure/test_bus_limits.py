"""The arithmetic of the bus: the seed's formula, partitions, options."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bus import BusOptions, allowance, partitions
from penstock.errors import OptionError


@pytest.mark.parametrize(
    ("kbits", "size", "seconds"), [(1000, 125_000, 11), (1000, 250_000, 12), (100, 125_000, 20), (100, 250_000, 30)]
)
def test_the_seeds_formula(kbits, size, seconds):
    """The formula gives the seconds of the seed's four examples."""
    assert allowance(size, kbits=kbits) == seconds
    assert BusOptions({}, kbits=kbits).allowance(size) == seconds


@pytest.mark.parametrize(
    ("parts", "part", "served"),
    [
        (2, 1, [0, 1, 2]),
        (2, 2, [3, 4, 5]),
        (12, 10, []),
        (12, 5, [4]),
        (24, 5, [4]),
        (1, 1, [0, 1, 2, 3, 4, 5]),
        (6, 1, [0]),
        (4, 4, [3, 4, 5]),
        (0, 0, [0, 1, 2, 3, 4, 5]),
        (0, 3, [0, 1, 2, 3, 4, 5]),
        (3, 0, [0, 1, 2, 3, 4, 5]),
        (12, 6, [5]),  # served by nobody in the reference
    ],
)
def test_partitions_as_in_the_reference(parts, part, served):
    """Six partitions are dealt out as in the reference; its forgotten last one is served."""
    assert list(partitions(6, parts, part)) == served


@given(st.integers(1, 300), st.integers(1, 400))
def test_every_partition_is_served_once(count, parts):
    """However many parts there are, together they serve every partition, and each partition once."""
    served = [number for part in range(1, parts + 1) for number in partitions(count, parts, part)]
    assert served == list(range(count))


@pytest.mark.parametrize(("parts", "part"), [(2, 3), (-1, 1), (1, -1), (1.5, 1), (True, 1)])
def test_bad_parts(parts, part):
    """A part that is not among the parts is refused."""
    with pytest.raises(OptionError):
        partitions(6, parts, part)


@pytest.mark.parametrize(
    "options",
    [
        {"queues": {"a b": 1}},
        {"queues": {"": 1}},
        {"queues": {"a.*": 1}},
        {"queues": {"a..b": 1}},
        {"queues": {"a": 0}},
        {"queues": {"a": "3"}},
        {"window": -1},
        {"window": 1.5},
        {"window_bytes": 10},
        {"max_element": 0},
        {"kbits": 0},
        {"kbits": float("nan")},
        {"grace": -1},
        {"grace": "10s"},
    ],
)
def test_bad_options(options):
    """Bad options are refused when they are given; K = 0, which divides by zero in the reference, is one of them."""
    with pytest.raises(OptionError):
        BusOptions(**{"queues": {"a": 1}, **options})


def test_queues_that_share_a_subject():
    """Queues whose subjects collide are refused: partition 0 of a1 would be partition 10 of a."""
    with pytest.raises(OptionError, match="a10"):
        BusOptions({"a": 11, "a1": 1})
    for fine in ({"a": 10, "a1": 1}, {"a": 11, "ab": 1}, {"a": 11, "a0": 5}):
        BusOptions(fine)


@given(st.dictionaries(st.sampled_from(["a", "a1", "a10", "a12", "a2", "b", "b3"]), st.integers(1, 150), max_size=4))
def test_collisions_are_all_found(queues):
    """Queues are refused exactly when two of their subjects are the same."""
    subjects = [f"{queue}{number}" for queue, count in queues.items() for number in range(count)]
    try:
        BusOptions(queues)
    except OptionError:
        assert len(set(subjects)) < len(subjects)
    else:
        assert len(set(subjects)) == len(subjects)
