"""Durations: what people write, what the `nats` command shows, and that one reads the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.durations import format_duration, parse_duration
from penstock.errors import OptionError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0.0),
        ("250ms", 0.25),
        ("9ms", 0.009),
        ("7us", 7e-6),
        ("7µs", 7e-6),  # the micro sign
        ("7μs", 7e-6),  # the Greek letter
        ("1ns", 1e-9),
        ("5s", 5.0),
        ("1.5s", 1.5),
        (" 2m ", 120.0),
        ("1h30m", 5400.0),
        ("7d", 604800.0),
        ("1w", 604800.0),
        ("1M", 2592000.0),
        ("1y", 31536000.0),
        ("1d2h3m4s5ms", 93784.005),
        (3, 3.0),
        (0.5, 0.5),
    ],
)
def test_reads_what_people_write(text: str | float, seconds: float) -> None:
    """A duration is the exact float that its decimal digits mean."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "5",
        "s",
        "5 s",
        "5x",
        "-5s",
        "1h30",
        "1e3s",
        ".5s",
        "5S",
        "٥s",
        "1m, 2s",
        "9" * 400 + "y",
        None,
        True,
        b"5s",
    ],
)
def test_refuses_what_is_no_duration(text: object) -> None:
    """What is no duration names its option, the value and a way to write it."""
    with pytest.raises(OptionError, match=r"max_age is .* not a duration\. Write a number and a unit") as caught:
        parse_duration(text, option="max_age")  # type: ignore[arg-type]
    assert caught.value.facts == {"option": "max_age", "value": text}


@pytest.mark.parametrize("number", [-1, -0.5])
def test_refuses_negative_numbers(number: float) -> None:
    """Time does not run backwards."""
    with pytest.raises(OptionError, match="cannot be negative"):
        parse_duration(number)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**400])
def test_refuses_numbers_without_end(number: float) -> None:
    """Not a number, or an endless one, is no duration."""
    with pytest.raises(OptionError, match="not a duration"):
        parse_duration(number)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (1e-10, "0s"),
        (1e-9, "1ns"),
        (1.5e-6, "1.5µs"),
        (0.25, "250ms"),
        (0.9999996, "999.9996ms"),
        (0.9999999999, "1s"),
        (1, "1s"),
        (59.9999999999, "1m0s"),
        (90.25, "1m30.25s"),
        (5400, "1h30m0s"),
        (86400, "1d0h0m0s"),
        (604800.5, "7d0h0m0.5s"),
        (-5, "-5s"),
    ],
)
def test_shows_durations_as_the_nats_command_does(seconds: float, text: str) -> None:
    """Hours, minutes and seconds are shown from the largest one that is not zero."""
    assert format_duration(seconds) == text


@given(st.integers(min_value=0, max_value=10**15))
def test_what_is_shown_is_read_back(nanoseconds: int) -> None:
    """Showing and reading a duration loses no nanosecond, up to the eleven days that a float holds so finely."""
    assert round(parse_duration(format_duration(nanoseconds / 1e9)) * 1e9) == nanoseconds


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text does anything but give a duration or an OptionError."""
    try:
        seconds = parse_duration(text)
    except OptionError:
        return
    assert seconds >= 0
