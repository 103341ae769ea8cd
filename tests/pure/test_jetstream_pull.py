"""Pull requests: how much is asked for and when, what each status means, and what silence means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import (
    DisconnectedError,
    InputError,
    JetStreamError,
    NotFoundError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.wire.jetstream.answers import read_status
from penstock.wire.jetstream.pull import Pulls, body

HEARTBEAT = read_status(100, "Idle Heartbeat")
EXPIRED = read_status(408, "Request Timeout")


def made(**options: Any) -> Pulls:
    return Pulls("S", "c", **{"batch": 10, "expires": 30.0, "heartbeat": 5.0, "now": 0.0, **options})


# -- requests ------------------------------------------------------------------------------------------------


def test_bodies() -> None:
    """A request says what it wants in the server's words, times in nanoseconds, and nothing that was not given."""
    assert body(5) == {"batch": 5}
    assert body(5, max_bytes=100, no_wait=True) == {"batch": 5, "max_bytes": 100, "no_wait": True}
    assert body(1, expires=0.1, heartbeat=0.05) == {"batch": 1, "expires": 100_000_000, "idle_heartbeat": 50_000_000}
    assert body(1, about={"group": "g", "id": "pin"}) == {"batch": 1, "group": "g", "id": "pin"}


def test_what_is_asked_for() -> None:
    """A batch is asked for, and the next one when less than half of it is here or on its way; two at a time at most."""
    pulls = made()
    assert pulls.want(0) == 10
    number, content = pulls.ask(10, 1.0)
    assert number == 1
    assert json.loads(content) == {"batch": 10, "expires": 30_000_000_000, "idle_heartbeat": 5_000_000_000}
    assert (pulls.want(0), pulls.outstanding) == (0, 10)
    for _ in range(6):
        pulls.came(2.0)
    assert pulls.outstanding == 4
    assert pulls.want(1) == 0, "five are here or on their way"
    assert pulls.want(0) == 6, "six were read"
    assert pulls.ask(6, 2.0)[0] == 2
    for _ in range(3):
        pulls.came(2.0)
    assert pulls.want(0) == 0, "two requests are out"
    pulls.came(2.0)
    assert (pulls.outstanding, pulls.want(0)) == (6, 0)
    pulls.came(2.0)
    pulls.came(2.0)
    assert pulls.want(0) == 6


def test_one_at_a_time() -> None:
    """With a batch of one, the next message is asked for when the one before was read."""
    pulls = made(batch=1)
    assert pulls.want(0) == 1
    pulls.ask(1, 0.0)
    pulls.came(0.0)
    assert (pulls.want(1), pulls.want(0)) == (0, 1)


def test_a_limit() -> None:
    """No more is asked for than is wanted in all, however it comes."""
    pulls = made(batch=10, limit=12)
    pulls.ask(pulls.want(0), 0.0)
    for _ in range(10):
        pulls.came(0.0)
    assert pulls.want(0) == 2
    pulls.ask(2, 0.0)
    pulls.came(0.0)
    pulls.came(0.0)
    assert pulls.want(0) == 0
    assert made(batch=10, limit=3).want(0) == 3


def test_bytes_that_are_used_up() -> None:
    """A request is over when its bytes are used up to the last one; the rest of it is asked for anew."""
    pulls = made(max_bytes=100)
    assert pulls.ask(10, 0.0)[0] == 1
    pulls.came(0.0, size=60)
    assert pulls.outstanding == 9
    pulls.came(0.0, size=40)
    assert (pulls.outstanding, pulls.want(2)) == (0, 8)
    assert pulls.ask(8, 0.0)[0] == 2
    pulls.came(0.0, size=99)
    pulls.told(2, read_status(409, "Message Size Exceeds MaxBytes"), 0.0, idle=False)
    assert (pulls.outstanding, pulls.error) == (0, None)


def test_a_pin() -> None:
    """A pin that a delivery brings goes with every request, until the server says that another client has it."""
    pulls = made(about={"group": "g"})
    pulls.came(0.0)
    pulls.about["id"] = "p1"
    assert json.loads(pulls.ask(5, 0.0)[1])["id"] == "p1"
    pulls.told(1, read_status(423, "Nats-Pin-Id mismatch"), 1.0)
    assert "id" not in json.loads(pulls.ask(5, 0.0)[1])
    assert json.loads(pulls.ask(5, 0.0)[1])["group"] == "g"
    assert pulls.error is None


def test_without_a_pin_one_request_is_out() -> None:
    """In a pinned group one request gets the pin; another one without it would only wait, and hold up those behind."""
    pulls = made(pinned=True, about={"group": "g"})
    pulls.ask(10, 0.0)
    pulls.came(0.0, count=6)
    assert pulls.want(0) == 0, "the pin is not known yet"
    pulls.about["id"] = "p1"
    pulls.came(0.0, count=1)
    assert pulls.want(0) == 7


def test_a_pin_that_is_lost_ends_all_requests() -> None:
    """Whatever is out names the old pin and brings nothing; what the server says of it later is about no other pin."""
    pulls = made(pinned=True, about={"group": "g"})
    pulls.ask(10, 0.0)
    pulls.about["id"] = "p1"
    pulls.came(0.0, count=6)
    pulls.ask(6, 0.0)
    pulls.told(1, read_status(423, "Nats-Wrong-Pin-Id"), 1.0)
    assert (pulls.pin, pulls.outstanding, pulls.want(0)) == (None, 0, 10)
    assert "id" not in json.loads(pulls.ask(10, 1.0)[1])
    pulls.about["id"] = "p2"
    pulls.came(1.0, count=1)
    pulls.told(2, read_status(423, "Nats-Wrong-Pin-Id"), 1.0)
    assert (pulls.pin, pulls.outstanding) == ("p2", 9)


# -- statuses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "description", "error", "trouble"),
    [
        (404, "No Messages", None, False),
        (408, "Request Timeout", None, False),
        (408, "Requests Pending", None, False),
        (408, "Interest Expired", None, False),
        (409, "Batch Completed", None, False),
        (409, "Message Size Exceeds MaxBytes", InputError, False),
        (409, "Consumer Deleted", NotFoundError, False),
        (409, "Leadership Change", None, True),
        (409, "Server Shutdown", None, True),
        (409, "Exceeded MaxWaiting", None, True),
        (503, "", None, True),
        (429, "Too Many Requests", None, True),
        (423, "Nats-Wrong-Pin-Id", None, False),
        (400, "Bad Request", JetStreamError, False),
        (409, "Consumer is push based", JetStreamError, False),
        (409, "Exceeded MaxRequestBatch of 5", JetStreamError, False),
        (412, "Required Api Level", JetStreamError, False),
        (777, "Something new", JetStreamError, False),
        (0, "", JetStreamError, False),
    ],
)
def test_the_end_of_a_request(code: int, description: str, error: type[PenstockError] | None, trouble: bool) -> None:
    """Every status of the server ends its request; some are no trouble, some pass, some are for good."""
    pulls = made()
    pulls.ask(10, 0.0)
    pulls.told(1, read_status(code, description), 1.0)
    assert pulls.outstanding == 0
    assert (type(pulls.error) if pulls.error else None) is error
    assert bool(pulls.trouble) is trouble
    assert (pulls.want(0) > 0) is (error is None and not trouble)


def test_a_heartbeat_ends_nothing() -> None:
    """A heartbeat says that the server is there; the request goes on."""
    pulls = made()
    pulls.ask(10, 0.0)
    pulls.told(1, HEARTBEAT, 20.0)
    assert (pulls.outstanding, pulls.is_in_trouble(25.0)) == (10, False)


def test_a_message_that_is_too_large() -> None:
    """The bytes of a request may be used up by what is here; only when nothing is, the next message is too large."""
    pulls = made(max_bytes=100)
    assert json.loads(pulls.ask(10, 0.0)[1])["max_bytes"] == 100
    status = read_status(409, "Message Size Exceeds MaxBytes")
    pulls.told(1, status, 0.0, idle=False)
    assert (pulls.error, pulls.want(0)) == (None, 10)
    pulls.ask(10, 0.0)
    pulls.told(2, status, 0.0)
    assert "larger than max_bytes (100)" in str(pulls.error)


def test_a_status_of_an_old_request() -> None:
    """A request that was given up may still be refused; that is no failure of what is asked for now."""
    pulls = made()
    pulls.ask(10, 0.0)
    pulls.begin_trouble("the connection was made anew", 1.0)
    pulls.restart(2.0)
    pulls.told(1, read_status(400, "Bad Request"), 3.0)
    assert (pulls.error, pulls.want(0)) == (None, 10)


def test_the_first_failure_counts() -> None:
    """What ends the reading is not replaced by what follows from it, and nothing is asked for any more."""
    pulls = made()
    pulls.fail(NotFoundError("gone"))
    pulls.fail(InputError("other"))
    assert isinstance(pulls.error, NotFoundError)
    assert pulls.want(0) == 0


# -- silence -------------------------------------------------------------------------------------------------


def test_silence() -> None:
    """A server that is silent for two heartbeats while a request is out is in trouble; without one it may be."""
    pulls = made(heartbeat=5.0)
    assert not pulls.is_in_trouble(1000.0)
    pulls.ask(10, 1000.0)
    assert not pulls.is_in_trouble(1010.4)
    pulls.came(1010.4)
    assert not pulls.is_in_trouble(1020.8)
    assert pulls.is_in_trouble(1021.0)
    assert (pulls.trouble, pulls.trouble_since, pulls.want(0)) == ("no heartbeat for 10.6 s", 1021.0, 0)
    pulls.told(1, HEARTBEAT, 1022.0)
    assert not pulls.is_in_trouble(1022.0)


def test_trouble_ends() -> None:
    """When the consumer is found to be there, all is asked for anew; when not for long, that is the end."""
    pulls = made()
    pulls.ask(10, 0.0)
    pulls.begin_trouble("409 Leadership Change", 5.0)
    pulls.begin_trouble("something else", 6.0)
    assert (pulls.trouble, pulls.trouble_since) == ("409 Leadership Change", 5.0)
    pulls.give_up("no answer", 60.0, 65.0)
    assert pulls.error is None
    pulls.restart(65.0)
    assert (pulls.outstanding, pulls.trouble, pulls.want(0)) == (0, "", 10)
    pulls.begin_trouble("503", 70.0)
    pulls.give_up("no answer", 60.0, 130.1)
    assert isinstance(pulls.error, DisconnectedError)
    assert "gave no sign for 60 s: no answer" in str(pulls.error)


# -- any order -----------------------------------------------------------------------------------------------


@given(
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(1, 30)),
    st.lists(st.sampled_from(["ask", "came", "read", "expired", "late", "restart"])),
)
def test_the_bounds_hold_in_any_order(batch: int, limit: int | None, steps: list[str]) -> None:
    """Whatever happens in any order, what is held and on its way stays within the batch, and all within the limit."""
    pulls = made(batch=batch, limit=limit)
    held = came = 0
    for step in steps:
        if step == "ask" and (want := pulls.want(held)):
            pulls.ask(want, 0.0)
            assert held + pulls.outstanding <= batch
            assert limit is None or came + pulls.outstanding <= limit
        elif step == "came" and pulls.outstanding:
            pulls.came(0.0)
            held, came = held + 1, came + 1
        elif step == "read" and held:
            held -= 1
        elif step == "expired":
            pulls.told(min(pulls._left, default=0), EXPIRED, 0.0)
        elif step == "late":
            pulls.told(0, EXPIRED, 0.0)
        elif step == "restart":
            pulls.restart(0.0)
        assert pulls.outstanding >= 0
    assert pulls.error is None
    pulls.restart(0.0)
    if limit is None or came < limit:
        assert pulls.want(0) > 0, "a reader that has read all can always go on"


# -- what nobody asked for -----------------------------------------------------------------------------------


def test_more_than_was_asked_for_ends_the_read() -> None:
    """What requests that were given up may still bring has room; what goes far beyond that is an error."""
    pulls = made()
    pulls.ask(10, 0.0)
    assert pulls.check(10)
    assert pulls.check(159)
    assert pulls.error is None
    assert not pulls.check(160)
    assert isinstance(pulls.error, RemoteProtocolError)
    assert "160 deliveries of consumer c of S wait to be read, and 10 were asked for" in str(pulls.error)


def test_more_bytes_than_were_asked_for_end_the_read() -> None:
    """If bytes are bounded, those count that came since the last request, and that none was out for."""
    pulls = made(batch=1000, max_bytes=100)
    pulls.ask(1000, 0.0)
    for _ in range(16):
        pulls.came(0.0, size=100)
        assert pulls.check(2)
    pulls.ask(1000, 0.0)
    for _ in range(16):
        pulls.came(0.0, size=100)
    assert pulls.check(2), "the first one was asked for"
    pulls.came(0.0, size=100)
    assert not pulls.check(2)
    assert isinstance(pulls.error, RemoteProtocolError)
