"""The batch path: a buffer of deliveries or direct-get replies becomes Arrow columns, the same in both forms."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import MessageError
from penstock.wire.arrow import SCHEMA, constant, to_batch
from tests.wire_sets import FORMS, form

SID = 7
TIME = 1_763_190_000_123_456_789
MICROS = TIME // 1000
NEED, OTHER, FULL, BEYOND, DISORDER, SKIPPED = range(6)


@pytest.fixture(params=FORMS)
def wire(request: pytest.FixtureRequest) -> Any:
    return form(request.param)


def columns(
    wire: Any, start: int = 1, end: int = 1 << 40, *, rows: int = 1000, size: int = 1 << 20, **more: Any
) -> Any:
    more = {"stream": b"S", **more}
    made = wire.columns.Columns(start, end, max_rows=rows, max_bytes=size, max_payload=1_000_000, **more)
    made.sid = SID
    return made


def delivery(
    sequence: int,
    payload: bytes = b"data",
    *,
    subject: bytes = b"a.b",
    block: bytes | None = None,
    count: int | None = None,
    reply: bytes | None = None,
    sid: int = SID,
) -> bytes:
    """Write a frame as a consumer's delivery has it; deliveries count like sequences where nothing is said."""
    ack = reply or b"$JS.ACK.S.c.1.%d.%d.%d.0" % (sequence, sequence if count is None else count, TIME)
    if block is None:
        return b"MSG %s %d %s %d\r\n%s\r\n" % (subject, sid, ack, len(payload), payload)
    size = len(block) + len(payload)
    return b"HMSG %s %d %s %d %d\r\n%s%s\r\n" % (subject, sid, ack, len(block), size, block, payload)


def direct(
    sequence: int, payload: bytes = b"data", *, own: bytes = b"", subject: bytes = b"a.b", time: bytes = b""
) -> bytes:
    """Write a frame as a batched direct get answers, `own` being the message's own header lines."""
    block = (
        b"NATS/1.0\r\n%sNats-Stream: S\r\nNats-Subject: %s\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %s\r\n"
        b"Nats-Num-Pending: 5\r\nNats-Last-Sequence: 0\r\n\r\n"
        % (own, subject, sequence, time or b"2025-11-15T07:00:00.123456789Z")
    )
    return b"HMSG _INBOX.x %d %d %d\r\n%s%s\r\n" % (SID, len(block), len(block) + len(payload), block, payload)


def fill(made: Any, content: bytes) -> int:
    return int(made.fill(bytearray(content), 0, len(content)))


def rows(made: Any, *, escape: bool = False) -> list[dict[str, Any]]:
    batch = to_batch(made.close(), "S", escape=escape)
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA)
    return list(batch.to_pylist())


def test_deliveries_become_rows(wire: Any) -> None:
    """Subject, payload, headers, sequence, time and stream stand in the columns that Spark will see."""
    made = columns(wire)
    content = delivery(1, b"") + delivery(2, b"\x00\xff\r\n", subject=b"x", block=b"NATS/1.0\r\nA: 1\r\n\r\n")
    assert fill(made, content) == len(content)
    assert (made.stop, made.rows, made.next, made.gap) == (NEED, 2, 3, 0)
    moment = datetime.datetime(2025, 11, 15, 7, 0, 0, 123456, tzinfo=datetime.UTC)
    common = {"time": moment, "stream": "S"}
    assert rows(made) == [
        {"subject": "a.b", "data": b"", "headers": [], "sequence": 1, **common},
        {"subject": "x", "data": b"\x00\xff\r\n", "headers": [("A", ["1"])], "sequence": 2, **common},
    ]


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (b"$JS.ACK.S.c.1.5.1.%d.0" % TIME, True),
        (b"$JS.ACK.dom.hash.S.c.1.5.1.%d.0" % TIME, True),
        (b"$JS.ACK._.hash.S.c.1.5.1.%d.0.random" % TIME, True),
        (b"$JS.ACK._.hash.S.c.1.5.1.%d.0.more.and.more" % TIME, True),
        (b"$JS.ACK.S.c.1.5.1.%d" % TIME, False),
        (b"$JS.ACK.S.c.1.5.1.%d.0.x" % TIME, False),
        (b"$JS.ACK.S.c.1.x.1.%d.0" % TIME, False),
        (b"$JS.ACK.S.c.1..1.%d.0" % TIME, False),
        (b"$JS.ACK.S.c.1.-5.1.%d.0" % TIME, False),
        (b"$JS.ACK.S.c.1.99999999999999999999.1.%d.0" % TIME, False),
        (b"$JS.ACK.S.c.1.5.1.9999999999999999999.0", False),
        (b"$JS.ACK.", False),
        (b"$JS.NAK.S.c.1.5.1.%d.0" % TIME, False),
        (b"_INBOX.x", False),
    ],
)
def test_reply_subjects(wire: Any, reply: bytes, found: bool) -> None:
    """Ack subjects are read, those of newer servers with domain and account too; others are left alone."""
    made = columns(wire, 5)
    content = delivery(5, reply=reply)
    assert fill(made, content) == (len(content) if found else 0)
    assert made.stop == (NEED if found else OTHER)
    if found:
        (row,) = rows(made)
        assert (row["sequence"], row["stream"]) == (5, "S")
        assert int(row["time"].timestamp() * 1e6) == MICROS


def test_every_cut_is_survived(wire: Any) -> None:
    """Cut anywhere, the whole frames are taken, the rest waits, and the rows are the same in the end."""
    content = delivery(1, b"x" * 20) + delivery(2, block=b"NATS/1.0\r\nA: 1\r\n\r\n") + delivery(4, count=3)
    whole = columns(wire)
    fill(whole, content)
    wanted = rows(whole)
    for cut in range(len(content)):
        made = columns(wire)
        buffer = bytearray(content)
        position = made.fill(buffer, 0, cut)
        assert made.stop == NEED
        assert made.fill(buffer, position, len(content)) == len(content)
        assert rows(made) == wanted


def after_another(wire: Any, frame: bytes, *, known: bool, sid: int = SID) -> tuple[Any, ...]:
    """Fill a frame behind a delivery that it may be like, or by itself; give what came of it."""
    made = columns(wire, 1 if known else 2)
    made.count = made.next
    if known:
        fill(made, delivery(1, b"before"))
        made.wire_size = 0
    made.sid = sid
    content = frame + b"MSG"  # what follows must stay
    position = fill(made, content)
    return position, made.stop, made.next, made.count, made.wire_size, rows(made, escape=True)[known:]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_delivery_like_the_one_before(data: st.DataObject) -> None:
    """What is remembered of a delivery changes nothing: the next one, whole or broken, is judged as by itself."""
    block = data.draw(st.sampled_from([None, b"NATS/1.0\r\nA: 1\r\n\r\n"]))
    reply = data.draw(st.sampled_from([None, b"$JS.ACK.S.c.1.2.2.%d" % TIME, b"$JS.ACK.S.c.2.2.2.%d.5" % TIME]))
    frame = delivery(2, subject=data.draw(st.sampled_from([b"a.b", b"x"])), block=block, reply=reply)
    place = data.draw(st.integers(0, len(frame) - 1))
    size = data.draw(st.integers(0, 2))
    piece = data.draw(st.one_of(st.binary(max_size=2), st.sampled_from([b".", b" ", b"\r\n", b"0", b"9" * 19, b"H"])))
    broken = frame[:place] + piece + frame[place + size :]
    for content in (frame, broken, frame[:place]):
        for name in FORMS:
            made = form(name)
            assert after_another(made, content, known=True) == after_another(made, content, known=False), content
            other = after_another(made, content, known=True, sid=70)
            assert other == after_another(made, content, known=False, sid=70), content


@pytest.mark.parametrize(
    "frame",
    [
        b"PING\r\n",
        b"MSG a 7 5\r\nhello\r\n",
        delivery(2, sid=8),
        b"HMSG a 7 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n",
        b"-ERR 'x'\r\n",
        delivery(2)[:-2] + b"xx",
        b"MSG a 7 $JS.ACK.S.c.1.2.2.5.0 1000001\r\n",
        b"MSG a  7 $JS.ACK.S.c.1.2.2.5.0 2\r\nhi\r\n",
        b"msg a 7 $JS.ACK.S.c.1.2.2.5.0 2\r\nhi\r\n",
        b"MSGx a 7 $JS.ACK.S.c.1.2.2.5.0 2\r\nhi\r\n",
        b"HMSG a 7 $JS.ACK.S.c.1.2.2.5.0 2\r\nhi\r\n",
        b"MSG a 7 $JS.ACK.S.c.1.2.2.5.0 1 2\r\nhi\r\n",
        b"HMSG a 7 $JS.ACK.S.c.1.2.2.5.0 3 2\r\nhi\r\n",
        b"MSG  7 $JS.ACK.S.c.1.2.2.5.0 2\r\nhi\r\n",
        b"M" + b"x" * 5000,
        b"\n",
    ],
)
def test_anything_else_is_left_for_the_parser(wire: Any, frame: bytes) -> None:
    """The first frame that is no delivery of ours stops the filling in front of it; nothing is lost."""
    made = columns(wire)
    before = delivery(1)
    assert fill(made, before + frame) == len(before)
    assert (made.stop, made.rows) == (OTHER, 1)


def test_a_batch_is_full_by_rows_or_bytes(wire: Any) -> None:
    """A batch ends with its rows, or with the message that fills its bytes; the next one goes on."""
    content = b"".join(delivery(number, b"x" * 100) for number in range(1, 11))
    by_rows = columns(wire, rows=4)
    position = fill(by_rows, content)
    assert (by_rows.stop, by_rows.rows) == (FULL, 4)
    assert [row["sequence"] for row in rows(by_rows)] == [1, 2, 3, 4]
    by_rows.restart()
    by_rows.fill(bytearray(content), position, len(content))
    assert [row["sequence"] for row in rows(by_rows)] == [5, 6, 7, 8]
    by_bytes = columns(wire, size=250)
    fill(by_bytes, content)
    assert (by_bytes.stop, by_bytes.rows) == (FULL, 3)


def test_the_end_of_the_range(wire: Any) -> None:
    """A message at or behind the end is not taken."""
    made = columns(wire, 1, 3)
    assert fill(made, delivery(1) + delivery(2) + delivery(3)) == len(delivery(1) + delivery(2))
    assert (made.stop, made.rows, made.next) == (BEYOND, 2, 3)


def test_gaps_are_noted_and_disorder_stops(wire: Any) -> None:
    """A skipped sequence is noted; a delivery that is missing, or a sequence that came before, stops the filling."""
    made = columns(wire)
    fill(made, delivery(1) + delivery(5, count=2) + delivery(9, count=3))
    assert (made.stop, made.rows, made.gap, made.next) == (NEED, 3, 2, 10)
    lost = columns(wire)
    fill(lost, delivery(1) + delivery(3, count=3))
    assert (lost.stop, lost.rows) == (DISORDER, 1)
    twice = columns(wire)
    fill(twice, delivery(1) + delivery(1, count=2))
    assert (twice.stop, twice.rows) == (DISORDER, 1)


def test_the_servers_count_of_bytes(wire: Any) -> None:
    """Subject, reply subject, headers and payload count against a pull request, as the server counts them."""
    made = columns(wire)
    reply = b"$JS.ACK.S.c.1.1.1.%d.0" % TIME
    fill(made, delivery(1, b"12345", subject=b"abc", block=b"NATS/1.0\r\n\r\n", reply=reply))
    assert made.wire_size == 3 + len(reply) + 12 + 5


# -- headers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "wanted"),
    [
        (b"NATS/1.0\r\n\r\n", []),
        (b"NATS/1.0\r\nA: 1\r\nB:2\r\n\r\n", [("A", ["1"]), ("B", ["2"])]),
        (b"NATS/1.0\r\nA: 1\r\nB: 2\r\nA: 3\r\nb: 4\r\n\r\n", [("A", ["1", "3"]), ("B", ["2"]), ("b", ["4"])]),
        (b"NATS/1.0\r\nA: \t x y \t \r\nB:\r\n\r\n", [("A", ["x y"]), ("B", [""])]),
        (b"NATS/1.0\r\nA: b: c\r\n\r\n", [("A", ["b: c"])]),
        (b"NATS/1.0\r\nno colon\r\n: no name\r\n\r\n", [("no colon", [""]), (": no name", [""])]),
        (b"NATS/1.0\r\nA: 1\nB: 2\n\n", [("A", ["1"]), ("B", ["2"])]),
        (b"rubbish", [("rubbish", [""])]),
        (b"NATS/1.0 no line end", []),
        ("NATS/1.0\r\nÄ: ö\r\n\r\n".encode(), [("Ä", ["ö"])]),
    ],
)
def test_headers(wire: Any, block: bytes, wanted: list[Any]) -> None:
    """Headers are grouped by name; broken lines of other publishers stay visible."""
    made = columns(wire)
    content = delivery(1, block=block) + delivery(2)
    assert fill(made, content) == len(content)
    first, second = rows(made)
    assert first["headers"] == wanted
    assert second["headers"] == []


def test_many_headers_stay_quick(wire: Any) -> None:
    """A block of tens of thousands of lines is grouped by name without comparing each with each."""
    lines = b"".join(b"N%d: %d\r\n" % (number % 20_000, number) for number in range(40_000))
    made = columns(wire, size=1 << 30)
    made_block = b"NATS/1.0\r\n" + lines + b"\r\n"
    assert fill(made, delivery(1, block=made_block)) > len(made_block)
    (row,) = rows(made)
    assert len(row["headers"]) == 20_000
    assert row["headers"][3] == ("N3", ["3", "20003"])


def test_headers_can_be_left_out(wire: Any) -> None:
    """Without headers the column is there and empty."""
    made = columns(wire, headers=False)
    fill(made, delivery(1, block=b"NATS/1.0\r\nA: 1\r\n\r\n"))
    assert rows(made)[0]["headers"] == []


@pytest.mark.parametrize(
    ("frame", "column", "says", "escaped"),
    [
        ({"subject": b"a.\xff"}, "subject", r"its subject is b'a.\\xff'", {"subject": "a.\\xff"}),
        (
            {"block": b"NATS/1.0\r\nB: ok\r\nA: \xe9\xfe\r\n\r\n"},
            "headers",
            "its header b'A' has a value",
            {"headers": [("B", ["ok"]), ("A", ["\\xe9\\xfe"])]},
        ),
        (
            {"block": b"NATS/1.0\r\nA: \xc3\r\nA: \xa4\r\n\r\n"},  # together they would be one character
            "headers",
            "its header b'A' has a value",
            {"headers": [("A", ["\\xc3", "\\xa4"])]},
        ),
        (
            {"block": b"NATS/1.0\r\n\xff: 1\r\n\r\n"},
            "headers",
            r"a header is called b'\\xff'",
            {"headers": [("\\xff", ["1"])]},
        ),
    ],
)
def test_what_is_no_text(wire: Any, frame: Any, column: str, says: str, escaped: dict[str, Any]) -> None:
    """Bytes that are not UTF-8 are an error that names the message, or are escaped; other text is never touched."""
    good = {"block": "NATS/1.0\r\nÄ: ö\r\n\r\n".encode(), "subject": "a.ж".encode()}
    content = delivery(5, count=1, **good) + delivery(7, count=2, **frame) + delivery(9, count=3, **good)
    made = columns(wire)
    fill(made, content)
    with pytest.raises(MessageError, match=says) as caught:
        rows(made)
    assert (caught.value.stream, caught.value.sequence, caught.value.column) == ("S", 7, column)
    made = columns(wire)
    fill(made, content)
    first, found, last = rows(made, escape=True)
    assert {name: found[name] for name in escaped} == escaped
    for row in (first, last):
        assert (row["subject"], row["headers"]) == ("a.ж", [("Ä", ["ö"])])


# -- direct get ----------------------------------------------------------------------------------------------


def test_direct_replies_become_rows(wire: Any) -> None:
    """Sequence, time and subject come from the six headers that direct get adds, which are not shown."""
    made = columns(wire, 3)
    made.direct = True
    content = direct(3) + direct(9, b"", own=b"A: 1\r\nNats-Sequence: mine\r\n", subject=b"c")
    assert fill(made, content) == len(content)
    first, second = rows(made)
    assert (first["subject"], first["sequence"], first["headers"], first["data"]) == ("a.b", 3, [], b"data")
    assert (second["subject"], second["sequence"]) == ("c", 9)
    assert second["headers"] == [("A", ["1"]), ("Nats-Sequence", ["mine"])]
    assert int(first["time"].timestamp() * 1e6) == MICROS
    assert made.gap == 4


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"1970-01-01T00:00:00Z", 0),
        (b"2000-02-29T23:59:59.5Z", 951868799500000),
        (b"2024-02-29T12:00:00.000001Z", 1709208000000001),
        (b"2100-03-01T00:00:00.123456789Z", 4107542400123456),
        (b"2025-12-31T23:59:59.999999999Z", 1767225599999999),
    ],
)
def test_times_of_direct_replies(wire: Any, text: bytes, wanted: int) -> None:
    """RFC 3339 times are read to the microsecond, leap days included."""
    made = columns(wire)
    made.direct = True
    fill(made, direct(1, time=text))
    (row,) = rows(made)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    assert (row["time"] - epoch) // datetime.timedelta(microseconds=1) == wanted


@pytest.mark.parametrize(
    "frame",
    [
        b"HMSG i 7 20 20\r\nNATS/1.0 204 EOB\r\n\r\n\r\n",
        b"HMSG i 7 12 12\r\nNATS/1.0\r\n\r\n\r\n",
        direct(1, time=b"yesterday, I think"),
        direct(1, time=b"2025-11-15T07:00:00+01:00"),
        direct(1).replace(b"Nats-Sequence: 1", b"Nats-Sequence: x"),
        direct(1).replace(b"Nats-Subject", b"Nats-subject"),
        direct(1).replace(b"Nats-Stream: S", b"Nats-Stream: T"),
        direct(1, own=b"Nats-Stream: S\r\n").replace(b"Nats-Stream: S\r\nNats-Sub", b"Nats-Stream: M\r\nNats-Sub"),
        b"MSG i 7 5\r\nhello\r\n",
        delivery(1),
    ],
)
def test_other_answers_of_direct_get_are_left(wire: Any, frame: bytes) -> None:
    """A status, a reply of another stream or one that does not say sequence and time is left for the parser."""
    made = columns(wire)
    made.direct = True
    assert fill(made, frame) == 0
    assert (made.stop, made.rows) == (OTHER, 0)


def test_skipped_sequences_can_be_asked_about(wire: Any) -> None:
    """Where somebody wants to know, rows end before the first sequence that is missing."""
    made = columns(wire)
    made.direct = made.strict = True
    content = direct(1) + direct(2) + direct(5)
    assert fill(made, content) == 2 * len(direct(1))
    assert (made.stop, made.rows, made.next, made.sequence) == (SKIPPED, 2, 3, 5)


# -- both forms ----------------------------------------------------------------------------------------------

_token = st.binary(min_size=1, max_size=8).filter(lambda item: not set(item) & set(b" \t\r\n\x0b\x0c"))
_block = st.one_of(
    st.none(),
    st.binary(max_size=60),
    st.lists(st.tuples(_token, st.binary(max_size=8)), max_size=5).map(
        lambda lines: b"NATS/1.0\r\n" + b"".join(b"%s: %s\r\n" % line for line in lines) + b"\r\n"
    ),
)
_frames = st.lists(
    st.one_of(
        st.builds(
            delivery,
            st.integers(1, 30),
            st.binary(max_size=30),
            subject=_token,
            block=_block,
            count=st.integers(1, 8),
            sid=st.sampled_from([SID, SID, SID, 8]),
        ),
        st.builds(direct, st.integers(1, 30), st.binary(max_size=10), subject=_token),
        st.sampled_from([b"PING\r\n", b"MSG a 7 2\r\nhi\r\n", b"-ERR x\r\n", b"\x00\xff", b"MSG "]),
    ),
    max_size=8,
)


@given(
    frames=_frames,
    noise=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=3),
    is_direct=st.booleans(),
    cut=st.integers(0, 600),
)
@settings(max_examples=400)
def test_both_forms_agree(frames: list[bytes], noise: list[tuple[int, int]], is_direct: bool, cut: int) -> None:
    """Whatever the bytes, broken ones too, the compiled and the plain form take and stop alike."""
    buffer = bytearray(b"".join(frames))
    for place, byte in noise:
        if place < len(buffer):
            buffer[place] = byte
    end = min(cut, len(buffer)) if cut % 3 == 0 else len(buffer)
    outcomes = []
    for name in FORMS:
        made = columns(form(name), 1, 20, rows=5, size=100)
        made.direct, made.strict = is_direct, is_direct and cut % 2 == 0
        position = made.fill(buffer, 0, end)
        outcomes.append((position, made.stop, made.next, made.gap, made.count, made.wire_size, rows(made, escape=True)))
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_a_constant_column() -> None:
    """A column that says the same everywhere has exactly as many rows as asked for."""
    for count in (0, 1, 5, 1024, 1025, 3):
        assert constant("S", count).to_pylist() == ["S"] * count
    assert constant("", 2).to_pylist() == ["", ""]


def test_batches_that_somebody_has_stay_as_they_are(wire: Any) -> None:
    """The memory of a batch is used again only when nobody has the batch any more, not even its bare buffers."""
    made = columns(wire, rows=2)
    kept: list[Any] = []
    for number in range(1, 41, 2):
        size = 70_000 + number
        frames = [delivery(sequence=n, count=n, payload=b"%c" % (48 + n) * size) for n in (number, number + 1)]
        fill(made, b"".join(frames))
        closed = made.close()
        # Three ways to have it: as Arrow, as buffers, and not at all.
        how = number // 2 % 3
        kept.append((number, size, to_batch(closed, "S") if how == 0 else closed["data"] if how == 1 else None))
        made.restart()
    for number, size, held in kept:
        wanted = b"%c" % (48 + number) * size + b"%c" % (49 + number) * size
        if isinstance(held, tuple):
            assert bytes(held[1]) == wanted
        elif held is not None:
            assert b"".join(held["data"].to_pylist()) == wanted
