"""The extension of the bus: its bytes, and a window that loses nothing whatever is lost on the way."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bus.window import LAST, PART, RESEND, Offer, ReceiveWindow, SendWindow, Signal, decode_signal, split
from penstock.bus.wire import Misc
from penstock.errors import RemoteProtocolError

OFFER = "1; window=64; bytes=1048576; element=67108864"
RUN = b"\x07\x02\0\0\0\0\0\0\0" + b"\x03\0\0\0\x0542" + b"\x01\0\0\0\x01"


def test_offer():
    """An offer is written and read as it stands in the docs; what is not one means the plain protocol."""
    offer = Offer(64, 1 << 20, 64 << 20)
    assert offer.encode() == OFFER
    assert Offer.decode(OFFER) == offer
    for end in range(OFFER.rindex("=") + 4):  # up to three digits of the last number: below the least
        assert Offer.decode(OFFER[:end]) is None
    for other in (None, "", "2; window=1; bytes=1024; element=1024", OFFER + ";", OFFER.replace("64;", "0;"), "window"):
        assert Offer.decode(other) is None


def test_offers_meet():
    """Both sides bound the window; how large an element may be is the reader's to say."""
    assert Offer(64, 2000, 5000).meet(Offer(32, 3000, 4000)) == Offer(32, 2000, 4000)


@pytest.mark.parametrize(
    ("signal", "data"),
    [
        (Signal(Misc.GO_ON, 258), b"\x00\x02\x01\0\0\0\0\0\0"),
        (Signal(Misc.NO_CONSUMER), b"\x01"),
        (Signal(Misc.SLOW_CONSUMER), b"\x02"),
        (Signal(RESEND, 7), b"\x03\x07\0\0\0\0\0\0\0"),
    ],
)
def test_signals(signal: Signal, data: bytes):
    """Each signal has its bytes; cut or with a tail it is refused."""
    assert signal.encode() == data
    assert decode_signal(data) == signal
    for wrong in [*(data[:end] for end in range(len(data)) if data[:end] not in (b"\x01", b"\x02")), data + b"\0"]:
        with pytest.raises(RemoteProtocolError):
            decode_signal(wrong)


def test_run_bytes():
    """A run has a number and its units with their lengths; cut it is refused, or a run of fewer units."""
    out = SendWindow(8, 1 << 20)
    out.push(b"first")
    out.push(b"second")
    out.run(1000)
    out.push(b"\x0542")
    out.push(b"\x01")
    assert out.run(1000) == RUN
    for end in range(len(RUN) + 1):
        reader = ReceiveWindow(8, 1 << 20)
        reader.expected = 2
        if end in (9, 16, 21):
            assert reader.feed(RUN[:end]) == ([b"\x0542", b"\x01"][: (end - 9) // 6], False)
        else:
            with pytest.raises(RemoteProtocolError):
                reader.feed(RUN[:end])
    with pytest.raises(RemoteProtocolError):
        ReceiveWindow(8, 1 << 20).feed(b"\x0542")


@given(st.binary(max_size=2000), st.integers(2, 500))
def test_pieces_make_the_packet(packet: bytes, most: int):
    """A packet that is cut into pieces is whole again when they are put together, and each piece fits."""
    pieces = list(split(packet, most))
    assert all(len(piece) <= most for piece in pieces)
    if len(packet) <= most:
        assert pieces == [packet]
    else:
        assert [piece[0] for piece in pieces] == [PART] * (len(pieces) - 1) + [LAST]
        assert b"".join(piece[1:] for piece in pieces) == packet


def test_window_is_bounded():
    """Units fit up to their number and their bytes; one alone fits always."""
    out = SendWindow(3, 100)
    assert out.fits(1000)
    out.push(b"x" * 60)
    assert out.fits(40)
    assert not out.fits(41)
    out.push(b"y")
    out.push(b"z")
    assert not out.fits(1)
    out.run(1000)
    assert out.taken(2)
    assert not out.taken(2), "the same count is no news"
    assert (out.bytes, out.first, out.end, out.run(1000)) == (1, 2, 3, None)
    assert out.fits(99)


def test_runs_fit_a_message():
    """A run is no longer than a message may be, and nothing is left out."""
    out, reader, seen = SendWindow(100, 1 << 20), ReceiveWindow(100, 1 << 20), []
    for number in range(100):
        out.push(bytes((5, number)))
    while (run := out.run(64)) is not None:
        assert len(run) <= 64
        seen += reader.feed(run)[0]
    assert [unit[1] for unit in seen] == list(range(100))


def test_a_handler_that_ignores_the_window():
    """A handler that sends more than the window holds is refused, by number and by bytes."""
    out = SendWindow(100, 1 << 30)
    for _ in range(10):
        out.push(b"x" * 50_000)
    run = out.run(1 << 30)
    with pytest.raises(RemoteProtocolError, match="window"):
        ReceiveWindow(8, 1 << 30).feed(run)
    with pytest.raises(RemoteProtocolError, match="window"):
        ReceiveWindow(100, 65536).feed(run)


def test_a_requester_that_takes_what_was_not_sent():
    """A count or a number beyond what was sent is refused."""
    out = SendWindow(8, 1000)
    out.push(b"x")
    with pytest.raises(RemoteProtocolError):
        out.taken(1)
    with pytest.raises(RemoteProtocolError):
        out.rewind(1)


@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 2**32))
def test_nothing_is_lost_or_doubled_over_a_bad_line(count: int, units: int, seed: int):
    """Over a line that loses runs and signals, every unit is read once and in order."""
    line = random.Random(seed)  # a repeatable line, not a secret
    out, reader = SendWindow(units, 10_000), ReceiveWindow(units, 10_000)
    made, read, waiting = 0, [], []

    def to_handler(signal: Signal) -> None:
        if line.random() < 0.7:
            if signal.kind == RESEND:
                out.rewind(signal.number)
            else:
                out.taken(signal.number)

    def to_reader(run: bytes) -> None:
        if line.random() < 0.7:
            new, gap = reader.feed(run)
            waiting.extend(new)
            if gap:
                to_handler(Signal(RESEND, reader.expected))
            elif not new:
                to_handler(Signal(Misc.GO_ON, reader.taken))

    for _ in range(5000):
        if made < count and out.fits(9):
            out.push(b"\x05" + made.to_bytes(8, "big"))
            made += 1
        if line.random() < 0.5 and (run := out.run(line.randrange(30, 100))) is not None:
            to_reader(run)
        if line.random() < 0.3:
            to_reader(out.probe())
        if waiting and line.random() < 0.8:
            unit = waiting.pop(0)
            reader.take(len(unit))
            read.append(int.from_bytes(unit[1:], "big"))
            to_handler(Signal(Misc.GO_ON, reader.taken))
        assert len(waiting) <= units
        if out.first == count:
            break
    assert read == list(range(count))
    assert (out.bytes, reader.bytes) == (0, 0)
