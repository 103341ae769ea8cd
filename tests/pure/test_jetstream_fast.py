"""Fast ingest: its subjects and its flow, and what is stored whatever breaks a batch."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import JetStreamError, NoRespondersError, PenstockError, RemoteProtocolError
from penstock.wire.jetstream.fast import FINAL, FLOW, OUTSTANDING, Batch, Operation, Silence


def flow(reached: int, every: int = 500) -> bytes:
    return b'{"type":"ack","seq":%d,"msgs":%d}' % (reached, every)


def final(count: int, sequence: int = 0, **more: object) -> bytes:
    return json.dumps({"stream": "S", "seq": sequence or count, "batch": "b", "count": count, **more}).encode()


def error(err_code: int, code: int = 400, **more: object) -> bytes:
    return json.dumps({**more, "error": {"code": code, "err_code": err_code, "description": "no"}}).encode()


GAP = b'{"type":"gap","last_seq":2,"seq":3}'
UNKNOWN_BATCH = error(10208, stream="S", seq=0)


def begun(sent: int = 1, *, ids: bool = True, safe: float = 100.0) -> Batch:
    """Give a batch of which so many messages are sent, at the moment 0, and whose first was answered."""
    batch = Batch("in", "S", ids=ids, safe=safe)
    batch.send(1, 0.0)
    batch.hear(flow(0))
    if sent > 1:
        batch.send(sent - 1, 0.0)
    return batch


# -- subjects and flow ---------------------------------------------------------------------------------------


def test_subjects() -> None:
    """A reply subject says the batch, the flow, what happens at a gap, the number and the operation."""
    batch, other = Batch("in", "S", ids=True, safe=1.0), Batch("in", "S", ids=True, safe=1.0)
    name = batch.inbox.removeprefix("in.")
    assert name
    assert "." not in name
    assert batch.inbox != other.inbox
    assert batch.listen == f"in.{name}.>"
    assert batch.reply(Operation.START) == f"in.{name}.1000.fail.1.0.$FI"
    assert batch.prefix + "1" + batch.suffix(Operation.START) == batch.reply(Operation.START)
    batch.send(4, 0.0)
    assert batch.reply(Operation.APPEND) == f"in.{name}.1000.fail.5.1.$FI"
    assert batch.reply(Operation.COMMIT) == f"in.{name}.1000.fail.5.2.$FI"
    assert batch.reply(Operation.END) == f"in.{name}.1000.fail.5.3.$FI"
    assert batch.reply(Operation.PING) == f"in.{name}.1000.fail.4.4.$FI", "a ping repeats the last number"


def test_the_flow() -> None:
    """One message goes out before the server has said how fast it wants them; then a few acks' worth."""
    batch = Batch("in", "S", ids=True, safe=1.0)
    assert batch.room == 1
    batch.send(1, 0.0)
    assert batch.room == 0
    batch.hear(flow(0, 10))
    assert batch.room == 10 * OUTSTANDING - 1
    batch.send(batch.room, 0.0)
    assert batch.room == 0
    batch.hear(flow(10, 20))
    assert (batch.acked, batch.room) == (10, 10 + 20 * OUTSTANDING - 30)
    batch.hear(flow(5, 1))
    assert (batch.acked, batch.room) == (10, 0), "an ack that comes late takes nothing back"


@pytest.mark.parametrize(("msgs", "every"), [(0, 1), (1, 1), (FLOW, FLOW), (10**6, FLOW), (2**64 - 1, FLOW)])
def test_a_flow_without_measure(msgs: int, every: int) -> None:
    """Whatever the server offers, what is under way stays bounded."""
    batch = begun()
    batch.hear(flow(0, msgs))
    assert batch.room == every * OUTSTANDING - 1


# -- the end -------------------------------------------------------------------------------------------------


def test_a_batch_that_goes_well() -> None:
    """The end counts all messages: nothing is in doubt, and nothing stands against another batch."""
    batch = begun(3)
    assert (batch.is_over, batch.doubtful) == (False, 3)
    batch.hear(final(3, 77))
    assert batch.final is not None
    assert (batch.is_over, batch.is_broken, batch.acked, batch.final.sequence) == (True, False, 3, 77)
    assert (batch.doubtful, batch.hindrance(1e9), batch.is_duplicate) == (0, "", False)
    batch.hear(final(2))
    assert batch.acked == 3, "the first end counts"


def test_a_single_message_that_was_there_before() -> None:
    """A batch of one message that is a duplicate counts it, also if the server's count leaves it out."""
    for answer in (final(1, 5, duplicate=True), b'{"stream":"S","seq":5,"duplicate":true}'):
        batch = begun(1)
        batch.hear(answer)
        assert batch.final is not None
        assert (batch.acked, batch.is_duplicate, batch.final.sequence) == (1, True, 5)


def test_a_gap() -> None:
    """At a gap the server ends the batch: what it counts is stored, what it passed on before it was replaced may be."""
    batch = begun(10, ids=False)
    batch.hear(GAP)
    assert (batch.is_broken, batch.is_over, batch.doubtful) == (True, False, 10)
    batch.hear(final(1))
    batch.hear(UNKNOWN_BATCH)  # for each message behind the end
    assert (batch.is_over, batch.acked, batch.sequence, batch.doubtful) == (True, 1, 1, 9)
    assert (batch.is_refused, batch.hindrance(1e9)) == (False, "without ids nothing is sent twice")


def test_an_ack_behind_the_end() -> None:
    """What the next leader acknowledges is stored, too, and the sequence of the end is not that of its last message."""
    batch = begun(10)
    batch.hear(GAP)
    batch.hear(final(2, 77))
    assert (batch.acked, batch.sequence) == (2, 77)
    batch.hear(flow(6))
    assert (batch.is_over, batch.acked, batch.sequence, batch.doubtful) == (True, 6, None, 4)


def test_an_early_end_without_a_reason() -> None:
    """An end that counts fewer than were sent, and does not say which was refused, leaves the others in doubt."""
    batch = begun(10)
    batch.hear(final(4))
    assert (batch.acked, batch.doubtful) == (4, 6)
    other = begun(10)
    other.hear(error(10077, 503, type="err", seq=8))
    other.hear(final(4))
    assert (other.acked, other.doubtful) == (4, 6), "of 5 to 7 nobody has said anything"


def test_a_message_that_is_refused() -> None:
    """The first error is the reason; with the end it is known what is stored, and that another batch is no help."""
    batch = begun(10)
    batch.hear(error(10077, 503, type="err", seq=4))
    batch.hear(UNKNOWN_BATCH)
    batch.hear(final(3))
    assert isinstance(batch.reason, JetStreamError)
    assert (batch.reason.err_code, batch.acked, batch.is_refused, batch.doubtful) == (10077, 3, True, 0)


def test_a_first_message_that_is_refused() -> None:
    """An error that answers the only message leaves no doubt, although no end follows."""
    batch = Batch("in", "S", ids=False, safe=1.0)
    batch.send(1, 0.0)
    batch.hear(error(10023, 503))
    assert (batch.is_broken, batch.doubtful, batch.is_refused, batch.hindrance(1e9)) == (True, 0, False, "")


@pytest.mark.parametrize(
    ("payload", "status", "refused"),
    [
        (b"", 503, False),
        (b"", 429, False),
        (error(10008, 503), None, False),
        (UNKNOWN_BATCH, None, False),
        (error(10205), None, True),
        (error(10077, 503, type="err", seq=1), None, True),
        (b'{"error":"nonsense"}', None, True),
    ],
)
def test_faults(payload: bytes, status: int | None, refused: bool) -> None:
    """What passes may go into another batch, what is refused may not."""
    batch = begun(1)
    batch.hear(payload, status)
    assert (batch.is_broken, batch.is_refused) == (True, refused)
    assert isinstance(batch.reason, JetStreamError | NoRespondersError)


def test_an_end_that_never_comes() -> None:
    """A server that does not know the batch sends no end: after a while, what it acknowledged counts."""
    batch = begun(700)
    batch.hear(flow(500))
    batch.hear(UNKNOWN_BATCH)
    assert batch.patience == FINAL
    assert batch.silent() is Silence.OVER
    assert (batch.is_over, batch.acked, batch.doubtful) == (True, 500, 200)


def test_a_reason_that_nobody_gave() -> None:
    """An end before the last message, without a word, is told as that."""
    batch = begun(5)
    batch.hear(final(2))
    assert "after 2 of 5 messages" in str(batch.reason)
    other = begun(5)
    other.hear(GAP)
    other.hear(final(1))
    assert "missed messages from 2 on" in str(other.reason)


# -- silence -------------------------------------------------------------------------------------------------


def test_silence() -> None:
    """An ack that does not come is asked for once; what is said starts the patience anew."""
    batch = Batch("in", "S", ids=True, safe=1.0, ping=1.0, silence=4.0)
    batch.send(1, 0.0)
    assert batch.patience == 1.0
    assert batch.silent() is Silence.PING
    assert batch.patience == 4.0
    batch.hear(flow(0))
    assert batch.patience == 1.0
    assert batch.silent() is Silence.PING
    assert batch.silent() is Silence.LOST
    assert Batch("in", "S", ids=True, safe=1.0).silent() is Silence.LOST, "nothing was sent that could be asked for"


# -- going on ------------------------------------------------------------------------------------------------


def test_what_stands_against_going_on() -> None:
    """What is in doubt is sent again with ids only, and only while the stream remembers when it was sent first."""
    assert begun(3, ids=False).hindrance(0.0) == "without ids nothing is sent twice"
    assert Batch("in", "S", ids=False, safe=1.0).hindrance(1e9) == "", "nothing was sent"
    batch = begun(1, safe=10.0)
    batch.send(5, 100.0)
    assert "duplicate window is too short" in batch.hindrance(50.0)
    batch.hear(flow(1))
    assert batch.hindrance(110.0) == ""
    assert "duplicate window is too short" in batch.hindrance(110.1)


def test_doubts_are_carried_on() -> None:
    """A batch that follows knows what the one before left in doubt, and since when, until an ack covers it."""
    first = begun(10, safe=100.0)
    first.hear(flow(4))
    second = first.follow("in2")
    assert second.inbox.startswith("in2.")
    assert (second.sent, second.acked, second.doubtful) == (0, 0, 6)
    second.send(1, 90.0)
    second.hear(final(0, 4))
    assert second.doubtful == 6, "this batch stored nothing, the one before may have"
    third = second.follow("in3")
    assert (third.doubtful, third.hindrance(100.0)) == (6, "")
    assert "too short" in third.hindrance(101.0)
    third.send(1, 99.0)
    third.hear(flow(0))
    third.send(7, 99.0)
    third.hear(flow(6))
    assert (third.doubtful, third.hindrance(199.0)) == (2, "")


# -- peers that lie ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"nonsense",
        b'{"type":7}',
        b'{"type":"ack"}',
        b'{"type":"ack","seq":"3","msgs":1}',
        b'{"type":"ack","seq":3,"msgs":"1"}',
        b'{"type":"ack","seq":3,"msgs":-1}',
        b'{"type":"ack","seq":true}',
        flow(7),
        flow(10**18),
        b'{"type":"ack","seq":' + b"9" * 5000 + b"}",
        b'{"type":"gap","last_seq":[]}',
        b"{}",
        b'{"stream":"S"}',
        b'{"stream":"S","seq":"1","count":1}',
        b'{"stream":"S","seq":1,"count":"1"}',
        final(6),
        final(1),
        b"[" * 100_000,
    ],
)
def test_what_no_server_says(payload: bytes) -> None:
    """A wrong type, a count of what was never sent, or less than was acknowledged, is the peer's fault."""
    batch = begun(5)
    batch.hear(flow(2))
    with pytest.raises(RemoteProtocolError):
        batch.hear(payload)
    assert (batch.acked, batch.final) == (2, None)


def test_the_end_of_another_stream() -> None:
    """An end that names another stream is an error, and nothing counts as stored."""
    batch = begun(5)
    with pytest.raises(JetStreamError, match="OTHER"):
        batch.hear(final(5).replace(b'"S"', b'"OTHER"'))
    assert (batch.acked, batch.final) == (0, None)


@given(st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([flow(0), flow(3), GAP, UNKNOWN_BATCH, final(4)]))))
def test_anything_may_be_said(payloads: list[bytes]) -> None:
    """Whatever is said, only errors of ours come out, and the counts hold together."""
    batch = begun(5)
    for payload in payloads:
        try:
            batch.hear(payload)
        except PenstockError:
            break
        assert 0 <= batch.acked <= batch.sent
        assert 0 <= batch.doubtful <= batch.sent
        assert batch.room <= FLOW * OUTSTANDING


# -- the whole, with losses ----------------------------------------------------------------------------------


class Peer:
    """A stream that takes fast batches in order, with or without ids, on a way that may break at any message."""

    def __init__(self, *, ids: bool) -> None:
        self.ids = ids
        self.stored: list[int] = []
        self.begin("")

    def begin(self, batch: str) -> None:
        self.batch, self.reached, self.told = batch, 0, 0

    def take(self, reply: str, row: int | None, every: int) -> list[bytes]:
        inbox, _, _, place, operation, _ = reply.rsplit(".", 5)
        number, what = int(place), Operation(int(operation))
        if what is Operation.START:
            self.begin(inbox)
            self._store(row)
            return [flow(0, every)]
        if inbox != self.batch:
            return [UNKNOWN_BATCH]
        if what is Operation.PING:
            self.told = self.reached
            return [flow(self.reached, every)]
        if number != self.reached + 1:
            return [b'{"type":"gap","last_seq":%d,"seq":%d}' % (self.reached, number), self._end()]
        if what is Operation.END:
            return [self._end()]
        self._store(row)
        if self.reached - self.told >= every:
            self.told = self.reached
            return [flow(self.reached, every)]
        return []

    def depose(self, place: int) -> list[bytes]:
        """End the batch as a leader that was replaced: what it has not told stays stored, and is not counted."""
        count = self.told
        self.begin("")
        return [b'{"type":"gap","last_seq":%d,"seq":%d}' % (count, place), final(count)]

    def _store(self, row: int | None) -> None:
        self.reached += 1
        assert row is not None
        if not self.ids or row not in self.stored:
            self.stored.append(row)

    def _end(self) -> bytes:
        count = self.reached
        self.begin("")
        return final(count, len(self.stored))


class Publisher:
    """Sends rows in fast batches as a driver does, on a way whose troubles are drawn."""

    def __init__(self, data: st.DataObject, peer: Peer) -> None:
        self.draw = data.draw
        self.peer = peer
        self.total = self.draw(st.integers(1, 25), "rows")
        self.troubles = self.draw(st.integers(0, 5), "troubles")
        self.base = 0
        self.batch = Batch("in", "S", ids=peer.ids, safe=1e9)

    def send(self, operation: Operation) -> bool:
        """Send one message and hear what is said to it; False if the connection breaks."""
        row = self.base + self.batch.sent if operation in (Operation.START, Operation.APPEND) else None
        reply = self.batch.reply(operation)
        if row is not None:
            self.batch.send(1, 0.0)
        fates = ["well", "lost", "broken", "moved", "deposed", "unheard"] if self.troubles else ["well"]
        fate = self.draw(st.sampled_from(fates), "fate")
        self.troubles -= fate != "well"
        if fate == "moved":
            self.peer.begin("")
        if fate == "deposed" and operation is Operation.APPEND:
            for payload in self.peer.depose(self.batch.sent):
                self.batch.hear(payload)
        if fate in ("well", "moved", "unheard"):
            said = self.peer.take(reply, row, self.draw(st.integers(1, 3), "every"))
            for payload in said if fate != "unheard" else []:
                self.batch.hear(payload)
        return fate != "broken"

    def run(self) -> None:
        """Bring one batch to its end, or to the break of the connection."""
        batch, alive, ended = self.batch, self.send(Operation.START), False
        while alive and not batch.is_over:
            more = self.base + batch.sent < self.total
            if batch.is_open and batch.room and more:
                alive = self.send(Operation.APPEND)
            elif batch.is_open and not more and not ended:
                ended = True
                alive = self.send(Operation.END)
            else:
                silence = batch.silent()
                alive = silence is not Silence.LOST
                if silence is Silence.PING:
                    alive = self.send(Operation.PING)
        self.base += batch.acked


@settings(max_examples=300)
@given(st.data(), st.booleans())
def test_rows_are_stored_in_order_whatever_breaks(data: st.DataObject, ids: bool) -> None:
    """Messages and answers are lost, leaders change, connections break: rows stay in order, and doubts are told.

    With ids everything is stored once in the end. Without, the first doubt ends it, and what is told as stored is.
    """
    peer = Peer(ids=ids)
    way = Publisher(data, peer)
    while True:
        way.run()
        assert peer.stored[: way.base] == list(range(way.base)), "what is told as stored is stored, in order"
        assert set(peer.stored) <= set(range(way.base + way.batch.doubtful)), "and nothing else, but for doubts"
        if way.base == way.total:
            break
        if way.batch.hindrance(0.0):
            assert not ids
            return
        way.batch = way.batch.follow("in")
    assert peer.stored == list(range(way.total))
