"""An ordered read: the next message is the one with the next number, and every loss shows."""

from __future__ import annotations

import pytest

from penstock.errors import RemoteProtocolError
from penstock.wire.jetstream.ordered import Numbering, OrderedMessage, Said


def delivery(sequence: int, number: int, pending: int = 0, where: str = "S.c") -> tuple[bytes, bytes, bytes, None]:
    return b"s.x", f"$JS.ACK.{where}.1.{sequence}.{number}.1700000000000000001.{pending}".encode(), b"data", None


def status(text: str, reply: bytes = b"") -> tuple[bytes, bytes, bytes, bytes]:
    return b"inbox", reply, b"", f"NATS/1.0 {text}\r\n\r\n".encode()


def test_messages_in_order_are_given_with_what_is_known_of_them():
    """Sequences may have gaps, numbers may not; the reply subject of a domain has two tokens more."""
    order = Numbering()
    assert order.hear(*delivery(3, 1, 7)) == OrderedMessage(b"s.x", 3, 1_700_000_000_000_000_001, 7, b"data", None)
    assert isinstance(order.hear(*delivery(9, 2, where="hub.acc.S.c")), OrderedMessage)
    assert (order.came, order.sequence) == (2, 9)


@pytest.mark.parametrize("next_one", [delivery(9, 3), delivery(9, 1), delivery(3, 2)])
def test_a_number_that_is_not_the_next_is_a_loss(next_one: tuple[bytes, bytes, bytes, None]):
    """So is a sequence that was there before; what was counted stays as it was."""
    order = Numbering()
    order.hear(*delivery(3, 1))
    assert order.hear(*next_one) is Said.LOST
    assert (order.came, order.sequence) == (1, 3)


def test_a_heartbeat_tells_of_a_loss_at_the_end():
    """It says how many messages were sent."""
    order = Numbering()
    order.hear(*delivery(3, 1))
    assert order.hear(*status("100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\nNats-Last-Stream: 3")) is Said.ALIVE
    assert order.hear(*status("100 Idle Heartbeat\r\nNats-Last-Consumer: 2\r\nNats-Last-Stream: 4")) is Said.LOST


def test_a_server_that_waits_wants_an_answer():
    """Its question is the reply subject of a flow control request, or stands in a heartbeat."""
    order = Numbering()
    assert order.hear(*status("100 FlowControl Request", b"$JS.FC.S.c.x")) is Said.WAITS
    assert order.question == b"$JS.FC.S.c.x"
    stalled = "100 Idle Heartbeat\r\nNats-Last-Consumer: 0\r\nNats-Consumer-Stalled: $JS.FC.S.c.y"
    assert order.hear(*status(stalled)) is Said.WAITS
    assert order.question == b"$JS.FC.S.c.y"


def test_any_other_status_is_the_end_of_the_consumer():
    """A consumer that was deleted, or whose server stops, is replaced."""
    assert Numbering().hear(*status("409 Consumer Deleted")) is Said.LOST
    assert Numbering().hear(b"inbox", b"", b"nonsense", None) is Said.LOST


def test_a_reply_subject_that_is_none_is_the_servers_fault():
    """It is an error, and not taken for a message."""
    with pytest.raises(RemoteProtocolError):
        Numbering().hear(b"s", b"$JS.ACK.S.c.1.x.1.1.1", b"", None)
    with pytest.raises(RemoteProtocolError):
        Numbering().hear(b"s", b"$JS.ACK.S.c", b"", None)
    for nanoseconds in (b"-1", b"9223372036854775808", b"9" * 400):  # what no clock of a server says
        with pytest.raises(RemoteProtocolError):
            Numbering().hear(b"s", b"$JS.ACK.S.c.1.1.1.%b.0" % nanoseconds, b"", None)
