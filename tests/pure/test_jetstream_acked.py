"""Acknowledged publish: whatever order answers come in, and whatever is lost, each message has one fate."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import JetStreamError, NoRespondersError, RemoteProtocolError
from penstock.wire.jetstream.acked import Window, confirm, joined, number_behind
from penstock.wire.jetstream.verdicts import Verdict


def ack(sequence: int, **more: object) -> bytes:
    return json.dumps({"stream": "S", "seq": sequence, **more}, separators=(",", ":")).encode()


def refusal(err_code: int, code: int = 400) -> bytes:
    return json.dumps({"error": {"code": code, "err_code": err_code, "description": "no"}}).encode()


FULL, BUSY = refusal(10077, 503), refusal(10167, 429)


def made(most: int = 10, most_bytes: int = 1000, safe: float = 60.0) -> tuple[Window[str], list[tuple[int, int, bool]]]:
    stored: list[tuple[int, int, bool]] = []
    window: Window[str] = Window(
        "S", most=most, most_bytes=most_bytes, safe=safe, on_stored=lambda *about: stored.append(about)
    )
    return window, stored


# -- one answer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (ack(7), (1, 7, False)),
        (b'{"stream": "S", "seq": 7}', (1, 7, False)),
        (ack(7, duplicate=True), (1, 7, True)),
        (ack(7, domain="hub"), (1, 7, False)),
        (ack(2**64 - 1), (1, 2**64 - 1, False)),
    ],
)
def test_an_ack(payload: bytes, told: tuple[int, int, bool]) -> None:
    """An ack in any form that the server writes says the sequence, once; a copy of it says nothing."""
    window, stored = made()
    window.add("a", 1, 10, 0.0)
    assert window.hear(1, payload) is Verdict.STORED
    assert stored == [told]
    assert (len(window), window.size) == (0, 0)
    assert window.hear(1, payload) is None
    assert stored == [told]


def test_a_refusal() -> None:
    """A message that is refused waits no more; the first refusal is kept, and later ones do not replace it."""
    window, stored = made()
    window.add("a", 1, 10, 0.0, count=3)
    assert window.hear(2, FULL) is Verdict.REFUSED
    assert window.hear(1, refusal(10071)) is Verdict.REFUSED
    assert window.refused is not None
    number, error = window.refused
    assert isinstance(error, JetStreamError)
    assert (number, error.err_code, len(window), window.unknown, stored) == (2, 10077, 1, [(3, 4)], [])


@pytest.mark.parametrize(("payload", "status"), [(BUSY, None), (b"", 503), (b"", 429)])
def test_what_passes_is_sent_again(payload: bytes, status: int | None) -> None:
    """What the server does not take just now stops the rest and is sent again; there is no doubt about it."""
    window, stored = made()
    window.add("a", 1, 10, 0.0, count=2)
    assert window.hear(1, payload, status) is Verdict.PASSING
    assert (window.room, window.again, window.unknown) == (0, {1}, [(2, 3)])
    assert isinstance(window.trouble, JetStreamError | NoRespondersError)
    assert window.resend() == [(1, "a")]
    assert (window.room, window.again, window.unknown) == (8, set(), [(1, 3)])
    window.hear(1, ack(5))
    window.hear(2, ack(6))
    assert (stored, window.unknown) == ([(1, 5, False), (2, 6, False)], [])


def test_an_error_that_leaves_a_doubt() -> None:
    """A message whose answer says that nobody knows is sent again, and stays in doubt until its ack comes."""
    window, _ = made()
    window.add("a", 1, 10, 0.0)
    window.lose()
    assert window.resend() == [(1, "a")]
    window.hear(1, BUSY)  # not taken this time; the first time may still have been stored
    assert window.unknown == [(1, 2)]


def test_the_ack_of_another_stream() -> None:
    """An ack of a stream that was not meant is an error that names it, and no success."""
    window, stored = made()
    window.add("a", 1, 10, 0.0)
    assert window.hear(1, b'{"stream":"OTHER","seq":7}') is Verdict.REFUSED
    assert window.refused is not None
    assert "Stream OTHER stored the message" in str(window.refused[1])
    assert not stored
    with pytest.raises(JetStreamError, match="meant for S"):
        confirm(b'{"stream":"S2","seq":1}', None, "S")
    with pytest.raises(JetStreamError):
        confirm(b'{"stream":"","seq":1}', None, "S")


@pytest.mark.parametrize("payload", [ack(7), ack(7, domain="leaf"), b'{"stream":"S","domain":"leaf","seq":7}'])
def test_the_ack_of_another_domain(payload: bytes) -> None:
    """Where a domain is named, an ack of another one, or of none, is an error; that of the domain itself is quick."""
    window: Window[str] = Window("S", most=10, most_bytes=1000, safe=60.0, domain="hub")
    for read in (lambda: confirm(payload, None, "S", "hub"), lambda: window.read(payload)):
        with pytest.raises(JetStreamError, match="was meant for one of domain hub"):
            read()
    for fine in (b'{"stream":"S","domain":"hub","seq":7}', ack(7, domain="hub")):
        assert (window.read(fine).sequence, window.read(fine).domain) == (7, "hub")
    assert confirm(payload, None, "S").sequence == 7  # nobody named one


def test_the_ack_of_a_domain_where_there_is_none() -> None:
    """A stream that is known to be in no domain does not acknowledge with one."""
    window: Window[str] = Window("S", most=10, most_bytes=1000, safe=60.0, domain="")
    for read in (window.read(ack(7)), confirm(ack(7), None, "S", "")):
        assert (read.sequence, read.domain) == (7, None)
    with pytest.raises(JetStreamError, match=r"of domain leaf stored .* for one of no domain"):
        window.read(ack(7, domain="leaf"))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"[]",
        b"nonsense",
        b'{"stream":"S","seq":}',
        b'{"stream":"S","seq":-1}',
        b'{"stream":"S","seq":"7"}',
        b'{"stream":"S","seq":true}',
        b'{"stream":"S","seq":1.5}',
        b'{"stream":"S","seq":7',
        b'{"stream":"S","seq":7]',
        b'{"stream":"S","seq":' + b"9" * 5000 + b"}",
        b'{"stream":"S","seq":99999999999999999999}',
        b'{"stream":["S"],"seq":7}',
        b'{"seq":7}',
        b'{"stream":"S"}',
        b"[" * 100_000,
        '{"stream":"S","seq":\u0667}'.encode(),
        b"\xff\xfe",
    ],
)
def test_answers_that_are_none(payload: bytes) -> None:
    """What is no answer of JetStream raises a RemoteProtocolError, and the message goes on waiting."""
    window, stored = made()
    window.add("a", 1, 10, 0.0)
    with pytest.raises(RemoteProtocolError):
        window.hear(1, payload)
    assert (len(window), stored, window.unknown) == (1, [], [(1, 2)])


@pytest.mark.parametrize("subject", ["in.", "in.x", "in.1.2", "in." + "9" * 5000, "in.²", "in"])
def test_numbers_in_subjects(subject: str) -> None:
    """The number of a message is read from the subject of its answer; what is none is the peer's fault."""
    assert number_behind("in.42", "in.") == 42
    with pytest.raises(RemoteProtocolError, match="does not end with a number"):
        number_behind(subject, "in.")


# -- the window ----------------------------------------------------------------------------------------------


def test_the_bounds() -> None:
    """Messages and bytes bound what waits; the bytes of messages sent together are free when the last has its ack."""
    window, _ = made(most=4, most_bytes=100)
    assert (window.room, window.fits(1000)) == (4, True)
    window.add("a", 1, 60, 0.0, count=2)
    assert (window.room, window.fits(40), window.fits(41)) == (2, True, False)
    window.add("b", 3, 40, 0.0)
    assert (window.room, window.size) == (0, 100)
    window.hear(1, ack(1))
    assert window.size == 100
    window.hear(2, ack(2))
    assert (window.size, window.room) == (40, 3)
    window.add("c", 4, 1, 0.0, count=3)
    assert (window.room, window.fits(1)) == (0, False)


def test_what_is_safe() -> None:
    """Sending again is safe as long as the oldest message without an ack is younger than the stream's memory."""
    window, _ = made(safe=10.0)
    assert window.is_safe(1e9)
    window.add("a", 1, 10, 100.0)
    window.add("b", 2, 10, 105.0)
    assert window.is_safe(110.0)
    assert not window.is_safe(110.1)
    window.hear(1, ack(1))
    assert window.is_safe(115.0)
    window.lose()
    window.resend()
    assert not window.is_safe(115.1), "sending again does not make a message younger"


def test_items() -> None:
    """What waits is given in the order of its numbers, and can be looked up and let go."""
    window, _ = made()
    for number, item in ((3, "c"), (1, "a"), (2, "b")):
        window.add(item, number, 1, 0.0)
    assert window.items() == ["a", "b", "c"]
    assert (window.get(2), window.get(4), 2 in window, 4 in window) == ("b", None, True, False)
    window.forget(2)
    window.forget(2)
    assert (window.items(), window.size) == (["a", "c"], 2)


@given(st.sets(st.integers(0, 60)))
def test_ranges(numbers: set[int]) -> None:
    """Ranges hold exactly the numbers, in order, and no two of them touch."""
    found = joined((number, number + 1) for number in numbers)
    assert [number for start, end in found for number in range(start, end)] == sorted(numbers)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(found))


# -- any order -----------------------------------------------------------------------------------------------


class Peer:
    """A stream that knows ids, and a way to it and back that loses, repeats and reorders as it is told."""

    def __init__(self) -> None:
        self.stored: dict[int, int] = {}
        self.answers: list[tuple[int, bytes]] = []

    def take(self, number: int, fate: str) -> None:
        if fate == "lost":
            return
        if fate == "busy":
            self.answers.append((number, BUSY))
            return
        if fate == "refused" and number not in self.stored:
            self.answers.append((number, FULL))
            return
        known = number in self.stored
        sequence = self.stored.setdefault(number, len(self.stored) + 1)
        if fate != "unheard":
            self.answers += [(number, ack(sequence, duplicate=True) if known else ack(sequence))] * (
                2 if fate == "twice" else 1
            )


FATES = st.sampled_from(["stored", "stored", "stored", "twice", "unheard", "lost", "busy", "refused"])


@settings(max_examples=300)
@given(st.data())
def test_no_message_is_lost_or_stored_twice(data: st.DataObject) -> None:
    """With any mixture of losses and orders, what is told as stored is stored, and only doubts may be stored beside."""
    peer = Peer()
    told: dict[int, int] = {}
    window: Window[str] = Window(
        "S", most=6, most_bytes=1000, safe=60.0, on_stored=lambda number, sequence, _: told.update({number: sequence})
    )
    total = data.draw(st.integers(1, 12), "messages")
    number = 1
    for _ in range(40):
        if window.refused is None and number <= total and window.room:
            count = data.draw(st.integers(1, min(window.room, total - number + 1)), "together")
            window.add(f"from {number}", number, count, 0.0, count)
            for one in range(number, number + count):
                peer.take(one, data.draw(FATES, f"fate of {one}"))
            number += count
        while peer.answers and data.draw(st.booleans(), "hear"):
            place = data.draw(st.integers(0, len(peer.answers) - 1), "which answer")
            window.hear(*peer.answers.pop(place))
        if data.draw(st.integers(0, 4), "lose") == 0:
            peer.answers.clear()
            window.lose()
        for one, _ in window.resend():
            peer.take(one, data.draw(FATES, f"fate of {one} again"))
        doubtful = {one for start, end in window.unknown for one in range(start, end)}
        assert told.items() <= peer.stored.items()
        assert set(peer.stored) <= set(told) | doubtful
        assert window.size == 0 or len(window) > 0
    window.lose()
    for one, _ in window.resend():
        peer.take(one, "stored")
    for answer in peer.answers:
        window.hear(*answer)
    assert told == peer.stored
    assert (len(window), window.size, window.unknown) == (0, 0, [])


def test_a_run_of_acks_is_as_good_as_each_of_them() -> None:
    """Acks that were read together free what waits for them; copies are told apart, and nothing is sent again."""
    window: Window[str] = Window("S", most=10, most_bytes=1000, safe=60.0)
    window.add("one", 1, 30, 0.0, count=3)
    window.add("two", 4, 20, 0.0, count=2)
    window.lose()
    assert window.hear_run(2, 1) == [(2, 3)]
    assert window.hear_run(1, 4) == [(1, 2), (3, 5)]
    assert (len(window), window.size, window.again) == (1, 20, {5})
    assert window.hear_run(5, 1) == [(5, 6)]
    assert (len(window), window.size, window.again, window.unknown) == (0, 0, set(), [])
