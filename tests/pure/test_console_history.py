"""Figures over time: what is asked of Prometheus, what is made of its answers, and where a line breaks."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.console.charts import plot
from penstock.console.history import _of_consumer, _of_stream
from penstock.console.prometheus import SPANS, _read, selector
from penstock.errors import PenstockError
from penstock.metrics.text import labels
from tests.pure.test_metrics import asked_for, full_survey, told

_QUOTED = re.compile(r'"((?:[A-Za-z0-9]|\\U[0-9a-f]{8})*)"')


@given(st.text())
def test_no_name_becomes_part_of_a_question(name: str):
    """A name is plain letters and numbers of letters between two quotes, and reads as what is served as its label."""
    written = selector({"stream_name": name})
    assert written.startswith("{stream_name=")
    found = _QUOTED.fullmatch(written.removeprefix("{stream_name=").removesuffix("}"))
    assert found is not None
    read = re.sub(r"\\U([0-9a-f]{8})", lambda digits: chr(int(digits[1], 16)), found[1])
    assert read == name.encode("utf-8", "replace").decode()
    if name:
        escaped = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
        assert labels({"a": name}) == '{a="' + "".join(escaped.get(letter, letter) for letter in read) + '"}'


async def test_every_question_asks_for_figures_that_there_are():
    """Each line of a chart is asked for under names that are served, of the very thing that was made then."""
    survey = full_survey()
    (consumer,) = survey.snapshot.consumers.values()
    stream = survey.snapshot.streams["ORDERS"]
    for span in SPANS.values():
        for questions in (_of_stream(stream, span), _of_consumer(consumer, span)):
            every = [*questions.lines.values(), questions.made]
            assert asked_for(iter(every)) <= told(survey)
            assert all(repr(questions.created) in text for text in questions.lines.values())
            assert questions.created > 0
            assert all(text.count("(") == text.count(")") for text in every)


def answer(*values: tuple[float, str]) -> bytes:
    result = [{"metric": {"job": "x"}, "values": [list(item) for item in values]}]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


def test_what_prometheus_does_not_know_breaks_the_line():
    """Between points that are further apart than a step there is none; what is no number is none, either."""
    (line,) = _read(answer((0, "1"), (10, "2"), (40, "2"), (50, "NaN"), (60, "+Inf"), (70, "3")), 10)
    assert line.points == [(0, 1), (10, 2), (20, None), (40, 2), (50, None), (60, None), (70, 3)]
    drawn = plot(line.points, "messages", 0.0, 100.0)
    assert drawn is not None
    assert drawn.lines[0].path.count("M") == 3
    assert drawn.begin == 100.0


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"null", b"[]", b'{"status":"success"}', b'{"status":"success","data":{"resultType":"matrix"}}'),
        answer((0, "x")),
        answer((0, [])),  # type: ignore[arg-type]  # what nobody should answer
        answer(*((number, "1") for number in range(3000))),
    ],
    ids=range(8),
)
def test_what_is_no_answer_is_refused(body: bytes):
    """Nothing else than an answer of Prometheus, of a bounded length, becomes a line."""
    with pytest.raises((PenstockError, ValueError, TypeError, KeyError, AttributeError)):
        _read(body, 10)


def test_a_chart_that_does_not_end_now_says_so():
    """The right edge of a chart is now, or says how long ago it is; a stretch that was chosen is shown whole."""
    now = time.time()
    fresh = plot([(now - 60, 1.0), (now - 1, 2.0)])
    old = plot([(now - 7200, 1.0), (now - 3600, 2.0)])
    chosen = plot([(now - 7200, 1.0), (now - 3600, 2.0)], "", now - 86400, now)
    assert fresh is not None
    assert old is not None
    assert chosen is not None
    assert (fresh.late, round(old.late), chosen.late) == (0.0, 3600, 0.0)
    assert (round(old.begin), round(chosen.begin)) == (3600, 86400)
    assert chosen.lines[0].path.startswith("M550.0,")
