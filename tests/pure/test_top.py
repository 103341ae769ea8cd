"""What `penstock top` draws of a snapshot, and what keys do to it; no terminal is needed for that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from penstock.cli.keyboard import read_keys
from penstock.cli.top_view import BLOCKS, PLAIN_BLOCKS, TREND, VIEWS, Row, View, fitted, short, sparkline
from penstock.errors import OptionError
from penstock.survey import Snapshot, Trouble


def pressed(view: View, *keys: str) -> View:
    for key in keys:
        after = view.pressed(key, 10)
        assert after is not None
        view = after
    return view


def test_keys_are_read_as_terminals_send_them():
    """Letters are themselves, arrows and pages have names in both modes, and unknown sequences are nothing."""
    assert read_keys(b"q/a") == ["q", "/", "a"]
    assert read_keys(b"\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b\t\r\x7f") == [
        *("up", "down", "pageup", "pagedown", "esc", "tab", "enter", "backspace")
    ]
    assert read_keys(b"\x1b[200~x\x1b[1;5C\xff\xc3\xbc") == ["x", "ü"]
    assert read_keys(b"") == []


def test_keys_change_the_view_the_order_and_the_filter():
    """Each key gives another view; unknown ones give the same, and q ends it."""
    view = View()
    assert (view.name, view.by) == ("streams", "rate")
    assert pressed(view, "c").name == "consumers"
    assert pressed(view, "tab", "tab", "tab", "tab").name == "streams"
    assert pressed(view, ">").by == "consumers", "a sparkline is no column to sort by"
    assert pressed(view, "1").by == "name"
    assert pressed(view, "1").rising
    assert pressed(view, "<", "<").by == "messages"
    assert pressed(view, "r").rising
    assert pressed(view, "9", "x", "\x00", "0", "²") == view
    typed = pressed(view, "/", "q", "S", "backspace", "1", "enter")
    assert (typed.filter, typed.typing) == ("q1", False)
    assert pressed(typed, "esc").filter == ""
    assert pressed(view, "/", "x", "esc").filter == ""
    assert pressed(view, "n", "j", "k").top == 10
    assert pressed(view, "k", "pageup").top == 0
    assert pressed(view, "n", "g").top == 0
    assert pressed(view, "n").within(3).top == 2
    assert pressed(view, "n").within(0).top == 0
    assert pressed(view, " ").frozen
    assert view.pressed("q", 10) is None
    with pytest.raises(OptionError, match="Streams are sorted by"):
        view.sorted_by("lag")


def test_troubles_are_marked_sorted_and_filtered():
    """A severe trouble has its sign, and rows without a value come last."""
    told = tuple(
        Trouble("stuck", ("consumer", "S", name), f"says {name}", float(since), None, severe)
        for name, since, severe in (("a", 5, True), ("b", 9, False), ("c", 1, True))
    )
    snapshot = Snapshot(taken=10.0, number=1, trouble=told)
    rows = View("trouble").rows(snapshot)
    assert [(row.name, row.trouble, row.values["since"]) for row in rows] == [
        ("S › c", "!", 9.0),
        ("S › a", "!", 5.0),
        ("S › b", "~", 1.0),
    ]
    assert [row.name for row in View("trouble", filter="› B").rows(snapshot)] == ["S › b"]
    assert View("streams").rows(snapshot) == []


def test_a_long_trouble_is_told_whole():
    """A sentence goes on in the next lines, and nothing of it is cut."""
    says = "many words " * 20
    view = View("trouble")
    row = Row(("consumer", "S", "c"), "S › c", {"since": 3.0, "says": says}, "!")
    lines = view.cells(row, view.fitting(80), lambda subject, field: [], 1.0, BLOCKS)
    assert " ".join(" ".join(line[-1] for line in lines).split()) == says.strip()
    assert all(sum(map(cell_len, line)) + len(line) - 1 <= 78 for line in lines)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("name", list(VIEWS))
def test_every_view_fits_every_terminal(name: str, width: int):
    """The columns that are left are as wide as the terminal at most, and the name has room; narrow ones show less."""
    view = View(name)
    columns = view.fitting(width)
    taken = 2 + sum(size for _, size in columns) + len(columns) - 1
    assert taken <= max(width, 46)
    if width >= 40:
        assert taken <= width or name == "trouble"
    shown = [item.name for item, _ in columns]
    assert "name" in shown
    if width >= 80:
        assert len(shown) >= len(VIEWS[name]) - 1
        row = Row(("stream", "s"), "名" * 100, {item.name: 10**15 for item in VIEWS[name]})
        lines = view.cells(row, columns, lambda subject, field: [(0.0, 1.0)], 1.0, BLOCKS)
        assert len(lines) == 1
        assert [cell_len(cell) for cell in lines[0]] == [size for _, size in columns]


def test_sparklines_tell_the_last_minutes():
    """What grew grows, what stayed stays, what nobody saw is blank; without UTF-8 other signs are used."""
    now = 1000.0
    rising = [(now - TREND + 10.0 * place, float(place)) for place in range(31)]
    line = sparkline(rising, 10, now)
    assert len(line) == 10
    assert line[-1] == BLOCKS[-1]
    assert sorted(line) == list(line)
    assert sparkline([(now - 12, 5.0)], 10, now) == " " * 7 + BLOCKS[-1] * 3, "a minute at least"
    assert sparkline([(now - 1000, 5.0), (now - 900, 5.0)], 4, now) == BLOCKS[-1] * 4, "it stayed so"
    assert sparkline([(now - 200, 0.0)], 4, now)[-1] == BLOCKS[0]
    assert sparkline([], 5, now) == " " * 5
    assert sparkline(rising, 0, now) == ""
    assert sparkline(rising, 10, now, PLAIN_BLOCKS).isascii()


def test_numbers_are_short():
    """Seven letters tell any number."""
    assert [short(number) for number in (None, 0, 7, 0.25, 99_999, 100_000, 1_234_567, 2.5e9, 10**15)] == [
        *("–", "0", "7", "0.2", "99,999", "100k", "1.23M", "2.5G", "1000T")
    ]
    for power in range(25):
        assert len(short(9.99 * 10**power)) <= 16


@given(st.text(max_size=40), st.integers(1, 60), st.booleans())
def test_a_cell_is_as_wide_as_its_column(text: str, width: int, right: bool):
    """Whatever a name holds, a cell takes its columns, no more and no less."""
    clean = "".join(letter for letter in text if letter.isprintable())
    assert cell_len(fitted(clean, width, right=right)) == width
