"""Troubles that only time tells: a lag that grows, dead letters that become more. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.survey.last_hour import LastHour
from penstock.survey.state import ConsumerState, StreamState
from penstock.survey.trouble import Symptom, span

__all__ = ["growing", "letters_grow"]

LOOKED_BACK = 300.0  # seconds over which a lag is followed
LEAST = 60.0  # seconds of history without which nobody can speak of a trend
GROWTH = 100  # messages: what comes and goes between two looks is not a trend
SHARE = 0.25  # of the lag that must have come since
LETTERS = 600.0  # seconds for which new dead letters are told


def growing(state: ConsumerState, history: LastHour) -> Iterator[Symptom]:
    """Tell a lag that became larger in each third of the last minutes."""
    if state.lag < GROWTH or state.paused or state.bookmark or state.sourcing:
        return
    known = [item for item in history.series(state.subject, "lag") if item[0] >= state.looked - LOOKED_BACK]
    if len(known) < 4 or known[-1][0] - known[0][0] < LEAST:
        return
    begun, end = known[0][0], known[-1][0]
    marks = [_at(known, begun + part * (end - begun) / 3) for part in range(4)]
    grown = marks[-1] - marks[0]
    if grown < max(GROWTH, SHARE * marks[-1]) or not marks[0] < marks[1] < marks[2] < marks[3]:
        return
    yield Symptom("growing", f"its lag grew by {grown:,.0f} to {state.lag:,} messages in {span(end - begun)}", False)


def _at(known: list[tuple[float, float]], when: float) -> float:
    """Give the value at a moment, the last one that was known by then."""
    return next((value for moment, value in reversed(known) if moment <= when + 1e-6), known[0][1])


def letters_grow(state: StreamState, history: LastHour) -> Iterator[Symptom]:
    """Tell dead letters that came while the survey looked."""
    if not state.dead_letters or not state.messages:
        return
    known = [item for item in history.series(state.subject, "messages") if item[0] >= state.looked - LETTERS]
    if known and state.messages > known[0][1]:
        came = state.messages - known[0][1]
        yield Symptom("dead letters", f"{came:,.0f} came in the last {span(max(1.0, state.looked - known[0][0]))}")
