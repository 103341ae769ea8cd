"""The addresses of a cluster: in which order they are tried, what is learnt and forgotten, when each may be tried."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.errors import DisconnectedError, LinkError, LoginError, TlsError, UnreachableError
from penstock.options import ConnectionOptions
from penstock.wire.servers import BRIEF, JITTER, MOST_LEARNT, Servers, most_telling

A, B, C, D = (f"nats://{name}.example:4222" for name in "abcd")


def servers(url: str = f"{A},{B},{C}", *, seed: int = 7, **options: Any) -> Servers:
    options.setdefault("keep_order", True)
    return Servers(ConnectionOptions(url, **options), random.Random(seed))


def told(*addresses: str) -> dict[str, Any]:
    return {"connect_urls": list(addresses)}


# -- order -------------------------------------------------------------------------------------------------------------


def test_given_addresses_keep_their_order_if_asked():
    """With keep_order the first round goes through the addresses as they were given."""
    assert [address.url for address in servers().round()] == [A, B, C]
    assert servers().urls == (A, B, C)


def test_given_addresses_are_shuffled():
    """Without it each connection has an order of its own, and all orders come up."""
    orders = {tuple(item.url for item in servers(seed=seed, keep_order=False).round()) for seed in range(200)}
    assert len(orders) == 6


def test_learnt_addresses_come_after_given_ones_in_a_round():
    """Who gave addresses wants those tried first."""
    known = servers(A)
    known.learn(told("b.example:4222", "c.example:4222"), A)
    first, *rest = known.round()
    assert (first.url, first.given) == (A, True)
    assert {item.url for item in rest} == {B, C}
    assert not any(item.given for item in rest)


# -- learning and forgetting -------------------------------------------------------------------------------------------


def test_new_addresses_are_learnt_once():
    """An INFO gives the addresses that were not known; the same one again gives none."""
    known = servers(A)
    assert set(known.learn(told("a.example:4222", "b.example:4222", "c.example:4222"), A)) == {B, C}
    assert known.learn(told("a.example:4222", "b.example:4222", "c.example:4222"), A) == ()
    assert set(known.urls) == {A, B, C}
    assert known.learn(told("d.example:4222", "b.example:4222"), A) == (D,)
    assert set(known.urls) == {A, B, D}, "c is no longer told"


def test_given_addresses_and_the_one_in_use_are_not_forgotten():
    """What the caller gave stays, whatever a server tells; so does the address of the connection that stands."""
    known = servers(f"{A},{B}")
    known.learn(told("c.example:4222"), A)
    known.learn(told("d.example:4222"), C)
    assert set(known.urls) == {A, B, C, D}
    known.learn({}, A)
    assert set(known.urls) == {A, B}


def test_what_is_learnt_has_the_scheme_of_the_connection():
    """A connection with TLS goes nowhere without it; WebSocket addresses have a field of their own."""
    for scheme, field in (
        ("nats", "connect_urls"),
        ("tls", "connect_urls"),
        ("ws", "ws_connect_urls"),
        ("wss", "ws_connect_urls"),
    ):
        known = servers(f"{scheme}://a.example:99")
        info = {"connect_urls": ["x.example:1"], "ws_connect_urls": ["x.example:1"], field: ["y.example:2"]}
        assert known.learn(info, f"{scheme}://a.example:99") == (f"{scheme}://y.example:2",)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "no-port.example",
        ":4222",
        "a.example:port",
        "a.example:99999",
        "a.example:-1",
        "user@a.example:4222",
        "user:password@a.example:4222",
        "a.example:4222/path",
        "a.example:4222?x",
        "a.example:4222#x",
        "a b.example:4222",
        "a.example:4222\r\n",
        "ünicode.example:4222",
        "a" * 400 + ":4222",
        5,
        None,
        ["a.example:4222"],
        {"host": "a.example"},
        "[::1:4222",
    ],
)
def test_what_is_no_address_is_passed_over(address: Any):
    """A server can tell anything: what is no plain host and port is not tried, and does not disturb the others."""
    known = servers(A)
    assert known.learn({"connect_urls": ["b.example:4222", address, "c.example:4222"]}, A) in ((B, C), (C, B))


def test_addresses_of_version_six():
    """An address in brackets is one."""
    known = servers(A)
    assert known.learn(told("[::1]:4222", "[fe80::1]:4333"), A) in (
        ("nats://[::1]:4222", "nats://[fe80::1]:4333"),
        ("nats://[fe80::1]:4333", "nats://[::1]:4222"),
    )


@pytest.mark.parametrize("field", [None, 0, "", [], {}])
def test_an_info_without_addresses(field: Any):
    """Nothing told is nothing learnt."""
    known = servers(A)
    assert known.learn({"connect_urls": field}, A) == ()
    assert known.urls == (A,)


def test_what_is_learnt_is_bounded():
    """A server that tells addresses without end fills no memory: some are kept, and again as many, not more."""
    known = servers(A)
    fresh = known.learn(told(*(f"10.0.{number // 256}.{number % 256}:4222" for number in range(5000))), A)
    assert len(fresh) == MOST_LEARNT
    known.learn(told(*(f"10.1.{number // 256}.{number % 256}:4222" for number in range(5000))), A)
    assert len(known.urls) == MOST_LEARNT + 1
    assert known.learn(told(*["b.example:4222"] * 100), A) == (B,)


def test_learnt_addresses_are_shuffled():
    """Clients of one cluster do not all go to the same node."""
    orders = set()
    for seed in range(100):
        known = servers(A, seed=seed)
        orders.add(known.learn(told("b.example:4222", "c.example:4222", "d.example:4222"), A))
    assert len(orders) == 6


# -- when --------------------------------------------------------------------------------------------------------------


def test_a_lost_address_comes_after_the_others():
    """In a cluster the next node is tried at once, and the one that was lost in its turn."""
    known = servers()
    known.stands(A, 100.0)
    known.lost(A, 200.0)
    first, wait = known.next(200.0)  # type: ignore[misc]
    assert (first.url, wait) == (B, 0.0)
    known.failed(first, 200.0)
    second, wait = known.next(200.0)  # type: ignore[misc]
    assert (second.url, wait) == (C, 0.0)
    known.failed(second, 200.0)
    third, wait = known.next(200.0)  # type: ignore[misc]
    assert third.url == A
    assert 0 <= wait <= JITTER


def test_a_lone_address_is_tried_again_soon():
    """The only server gets a moment, a small part of the wait; then it is tried."""
    for seed in range(50):
        known = servers(A, seed=seed, reconnect_wait=10.0)
        known.stands(A, 0.0)
        known.lost(A, 100.0)
        _, wait = known.next(100.0)  # type: ignore[misc]
        assert 0 <= wait <= 0.1 * JITTER


def test_attempts_at_one_address_are_spread():
    """Between two attempts lies the wait, and up to a quarter of it more, by chance."""
    waits = []
    for seed in range(200):
        known = servers(A, seed=seed, reconnect_wait=2.0)
        address, _ = known.next(0.0)  # type: ignore[misc]
        known.failed(address, 50.0)
        _, wait = known.next(50.0)  # type: ignore[misc]
        waits.append(wait)
    assert 2.0 <= min(waits) < 2.1
    assert 2.4 < max(waits) <= 2.0 * (1 + JITTER)
    known = servers(A, reconnect_wait=2.0)
    address, _ = known.next(0.0)  # type: ignore[misc]
    known.failed(address, 50.0)
    assert known.next(60.0) == (address, 0.0)


def test_the_same_seed_gives_the_same_waits():
    """Chance is the caller's, so that a test can know it."""

    def play() -> list[tuple[str, float]]:
        known, now, found = servers(seed=3), 0.0, []
        for _ in range(20):
            address, wait = known.next(now)  # type: ignore[misc]
            now += wait
            found.append((address.url, wait))
            known.failed(address, now)
        return found

    assert play() == play()


def test_every_address_is_tried_as_often_as_allowed():
    """Each address has its attempts; when all are used up there is none."""
    known, now, tried = servers(reconnect_attempts=3), 0.0, []
    while (found := known.next(now)) is not None:
        address, wait = found
        now += wait
        tried.append(address.url)
        known.failed(address, now)
    assert sorted(tried) == sorted([A, B, C] * 3)
    assert tried[:3] != tried[:1] * 3, "one after the other"
    assert known.next(now + 1000) is None


def test_attempts_begin_anew_where_a_connection_stood():
    """An address that let us in has all its attempts again; the others have used theirs."""
    known = servers(reconnect_attempts=2)
    for address in known.round():
        known.failed(address, 0.0)
        known.failed(address, 0.0)
    assert known.next(100.0) is None
    known.stands(B, 100.0)
    found = known.next(100.0)
    assert found is not None
    assert (found[0].url, found[0].attempts) == (B, 0)


def test_without_a_limit_it_never_ends():
    """-1 stands for ever."""
    known = servers(A, reconnect_attempts=-1)
    for number in range(5000):
        found = known.next(float(number * 10))
        assert found is not None
        known.failed(found[0], float(number * 10))


def test_a_new_address_is_tried_before_those_that_failed():
    """What a cluster told meanwhile is tried at once."""
    known = servers(A)
    known.failed(known.round()[0], 10.0)
    known.learn(told("b.example:4222"), A)
    found = known.next(10.0)
    assert found is not None
    assert (found[0].url, found[1]) == (B, 0.0)


def test_an_address_that_hangs_up_again_and_again_gets_a_pause():
    """Connections that end as soon as they stood are made again at once a few times only; a long one ends that."""
    known, now = servers(A, reconnect_wait=1.0), 1000.0
    waits = []
    for _ in range(BRIEF + 3):
        known.stands(A, now)
        known.lost(A, now + 0.01)
        _, wait = known.next(now + 0.01)  # type: ignore[misc]
        waits.append(wait)
        now += 0.01 + wait
    assert all(wait < 0.1 for wait in waits[:BRIEF])
    assert all(1.0 <= wait <= 1.0 + JITTER for wait in waits[BRIEF:])
    known.stands(A, now)
    known.lost(A, now + 60)
    assert known.next(now + 60)[1] < 0.1  # type: ignore[index]


def test_an_address_that_is_not_known_any_more():
    """A node that the cluster forgot while the connection stood may be lost without harm."""
    known = servers(A)
    known.learn(told("b.example:4222"), A)
    known.learn(told("c.example:4222"), A)
    known.stands(B, 1.0)
    known.lost(B, 2.0)
    assert set(known.urls) == {A, C}


# -- what to tell ------------------------------------------------------------------------------------------------------


def test_the_most_telling_failure():
    """A refused login tells more than a failed handshake, that more than a broken connection, that more than nobody."""
    nobody, login, tls, gone = UnreachableError("n"), LoginError("l"), TlsError("t"), DisconnectedError("g")
    assert most_telling([nobody, gone, tls, login]) is login
    assert most_telling([nobody, gone, tls]) is tls
    assert most_telling([nobody, gone]) is gone
    assert most_telling([nobody, UnreachableError("m")]) is nobody
    failures: list[LinkError] = [login, LoginError("second")]
    assert most_telling(failures) is login
