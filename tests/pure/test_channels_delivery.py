"""The rules of delivery, with a clock of our own: who gets a message, and when again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.channels.delivery import HANDOVER, TOLERANCE, Group, Member


def member(number: int = 1, *, most: int = 1024, wait: int = 1) -> Member:
    return Member(number, f"c{number}", f"_INBOX.{number}", f"_INBOX.a{number}", max_in_flight=most, ack_wait=wait)


def plain(most: int = 1024, wait: int = 1) -> tuple[Group, Member]:
    group = Group(1, "foo")
    only = member(most=most, wait=wait)
    group.join(only)
    return group, only


def queue(*members: Member) -> Group:
    group = Group(1, "foo", queue="q")
    for item in members:
        group.join(item)
    return group


def assign(group: Group, sequence: int, now: float) -> Member | None:
    chosen = group.choose()
    if chosen is not None:
        group.assign(chosen, sequence, now)
    return chosen


def test_the_example_of_the_seed():
    """Two in flight: 1 and 2; ack 2; then 3, and 4 waits; 1 again after its ack wait; ack 1 lets 4 go."""
    group, only = plain(most=2)
    assert assign(group, 1, 0.0) is only
    assert assign(group, 2, 0.0) is only
    assert assign(group, 3, 0.0) is None
    assert group.ack(only, 2)
    assert assign(group, 3, 0.1) is only
    assert assign(group, 4, 0.2) is None
    assert group.next_due() == 1.0
    assert group.due(0.9) == []
    assert group.due(1.0) == [(only, 1)]
    assert group.redeliver(only, 1, 1.0) == (only, 1)
    assert group.due(1.1) == [(only, 3)]
    assert group.redeliver(only, 3, 1.1) == (only, 1)
    assert group.choose() is None
    assert group.ack(only, 1)
    assert assign(group, 4, 1.2) is only


def test_one_in_flight_keeps_the_order():
    """With one message in flight nothing overtakes it, however often it goes out."""
    group, only = plain(most=1)
    assign(group, 1, 0.0)
    for turn in range(1, 6):
        assert assign(group, 2, float(turn)) is None
        assert group.due(float(turn)) == [(only, 1)]
        assert group.redeliver(only, 1, float(turn)) == (only, turn)
    group.ack(only, 1)
    assert assign(group, 2, 6.0) is only


def test_the_cadence_does_not_drift():
    """A late timer does not shift the later redeliveries: each is one ack wait after the time it was due."""
    group, only = plain()
    assign(group, 1, 0.0)
    for turn in range(1, 5):
        group.redeliver(only, 1, turn + 0.01)
        assert only.pending[1] == pytest.approx(turn + 1.0)


def test_missed_turns_are_not_made_up_for():
    """After a long sleep a message goes out once, and then waits a whole ack wait."""
    group, only = plain()
    assign(group, 1, 0.0)
    group.redeliver(only, 1, 100.0)
    assert only.pending[1] == 101.0


def test_nearly_expired_goes_along():
    """What expires within the tolerance goes out with what has expired; what expires later does not."""
    group, only = plain()
    assign(group, 1, 0.0)
    assign(group, 2, TOLERANCE * 0.9)
    assign(group, 3, TOLERANCE * 2)
    assert group.due(1.0) == [(only, 1), (only, 2)]


def test_expired_go_out_by_time_then_sequence():
    """A message that was sent again takes its place behind those that expire before it."""
    group, only = plain()
    assign(group, 1, 0.0)
    assign(group, 2, 0.5)
    group.redeliver(only, 1, 1.0)
    assert [sequence for _, sequence in group.due(2.0)] == [2, 1]


def test_unknown_acks_are_ignored():
    """An ack for a message that is not pending changes nothing."""
    group, only = plain()
    assign(group, 1, 0.0)
    assert not group.ack(only, 2)
    assert not group.ack(only, 0)
    assert list(only.pending) == [1]
    assert group.ack(only, 1)
    assert not group.ack(only, 1)


def test_a_count_ends_with_its_ack():
    """The count of redeliveries is kept while a message is pending, and forgotten with its ack."""
    group, only = plain()
    assign(group, 1, 0.0)
    assert group.redeliver(only, 1, 1.0) == (only, 1)
    assert group.redeliver(only, 1, 2.0) == (only, 2)
    group.ack(only, 1)
    assert group.counts == {}
    assert group.redeliver(only, 1, 3.0) is None


def test_a_sick_plain_member_is_left_in_peace():
    """While its client misses heartbeats a plain member gets nothing again; new messages still go out."""
    group, only = plain()
    assign(group, 1, 0.0)
    only.sick = True
    assert group.due(1.0) == []
    assert group.next_due() == 2.0
    assert assign(group, 2, 1.0) is only
    only.sick, only.quiet_until = False, 0.0
    assert group.due(1.5) == [(only, 1)]


def test_a_fresh_queue_takes_turns():
    """Members with the same load get messages in turn."""
    a, b, c = member(1), member(2), member(3)
    group = queue(a, b, c)
    assert [assign(group, sequence, 0.0) for sequence in range(1, 7)] == [a, b, c, a, b, c]


@given(st.integers(2, 8), st.integers(1, 400))
def test_a_queue_is_fair(count, messages):
    """Whoever acknowledges as fast as the others gets the same share, give or take one."""
    members = [member(number) for number in range(count)]
    group = queue(*members)
    got = dict.fromkeys(members, 0)
    for sequence in range(1, messages + 1):
        chosen = assign(group, sequence, 0.0)
        got[chosen] += 1
        if sequence % 7 == 0:
            for item in members:
                item.pending.clear()
    assert max(got.values()) - min(got.values()) <= 1 + messages // 7


def test_the_least_loaded_is_chosen():
    """A member with fewer messages in flight comes first."""
    a, b = member(1), member(2)
    group = queue(a, b)
    assign(group, 1, 0.0)
    assign(group, 2, 0.0)
    group.ack(b, 2)
    assert assign(group, 3, 0.0) is b
    assert assign(group, 4, 0.0) is not None
    assert len(a.pending) == len(b.pending) + 0 or abs(len(a.pending) - len(b.pending)) == 1


def test_one_stalled_member_does_not_stall_the_queue():
    """A full member is passed over; the queue stalls when all are full, and one ack releases it."""
    a, b = member(1, most=1), member(2, most=3)
    group = queue(a, b)
    chosen = [assign(group, sequence, 0.0) for sequence in range(1, 5)]
    assert chosen.count(a) == 1
    assert chosen.count(b) == 3
    assert group.choose() is None
    assert assign(group, 5, 0.0) is None
    group.ack(a, next(iter(a.pending)))
    assert assign(group, 5, 0.0) is a


def test_a_new_member_releases_a_stalled_queue():
    """Somebody who joins has room."""
    a = member(1, most=1)
    group = queue(a)
    assign(group, 1, 0.0)
    assert group.choose() is None
    group.join(b := member(2))
    assert assign(group, 2, 0.0) is b


def test_sick_members_are_passed_over():
    """A member whose client misses heartbeats gets nothing while a sound one is there, even a full one."""
    a, b = member(1), member(2, most=2)
    a.sick = True
    group = queue(a, b)
    assert [assign(group, sequence, 0.0) for sequence in (1, 2, 3)] == [b, b, None]
    b.sick = True
    assert assign(group, 3, 0.0) is a


def test_redelivery_moves_to_the_best_member():
    """In a queue an expired message may go to another member; the first one's ack still settles it."""
    a, b = member(1, most=1), member(2)
    group = queue(a, b)
    assert assign(group, 1, 0.0) is a
    assert group.due(1.0) == [(a, 1)]
    assert group.redeliver(a, 1, 1.0) == (b, 1)
    assert (list(a.pending), list(b.pending)) == ([], [1])
    assert group.redeliver(b, 1, 2.0)[1] == 2
    assert group.ack(a, 1)
    assert not a.pending
    assert not b.pending


def test_redelivery_is_forced_when_all_are_full():
    """An expired message goes out also when nobody has room."""
    a, b = member(1, most=1), member(2, most=1)
    group = queue(a, b)
    assign(group, 1, 0.0)
    assign(group, 2, 0.0)
    target, count = group.redeliver(a, 1, 1.0)
    assert target in (a, b)
    assert count == 1


def test_each_member_has_its_own_ack_wait():
    """A message expires by the ack wait of whoever holds it."""
    a, b = member(1, wait=1), member(2, wait=5)
    group = queue(a, b)
    assign(group, 1, 0.0)
    assign(group, 2, 0.0)
    assert group.due(2.0) == [(a, 1)]
    group.redeliver(a, 1, 2.0, stay=True)
    assert group.next_due() == 3.0


def test_a_leaving_member_hands_over():
    """What a leaving member had pending is dealt out in turn, and goes out again shortly after."""
    a, b, c = member(1), member(2), member(3)
    group = queue(a, b, c)
    for sequence in range(1, 10):
        assign(group, sequence, 0.0)
    assert list(a.pending) == [1, 4, 7]
    group.leave(a, 0.5)
    assert sorted([len(b.pending), len(c.pending)]) == [4, 5]
    assert sorted([*b.pending, *c.pending]) == list(range(1, 10))
    assert group.next_due() == pytest.approx(0.5 + HANDOVER)
    due = group.due(0.5 + HANDOVER)
    assert [sequence for _, sequence in due] == [1, 4, 7]
    assert group.redeliver(*due[0], 0.6)[1] == 1


def test_a_returning_durable_gets_its_old_messages_first():
    """On resume new messages are on hold; everything pending goes out at once, beyond max in flight, in order."""
    group = Group(1, "foo", durable="d", keep=True)
    group.join(only := member())
    for sequence in range(1, 6):
        assign(group, sequence, 0.0)
    only.online = False
    assert group.choose() is None
    assert group.next_due() is None
    group.resume(back := Member(0, "c", "i", "a", max_in_flight=1, ack_wait=2))
    assert (back.number, group.members) == (only.number, [back])
    assert group.hold
    assert assign(group, 6, 10.0) is None
    assert group.waiting(back, 10.0) == [1, 2, 3, 4, 5]
    for sequence in (1, 2, 3, 4, 5):
        assert group.redeliver(back, sequence, 10.0, stay=True) == (back, 1)
        assert back.pending[sequence] == 12.0
    group.hold = False
    assert assign(group, 6, 10.0) is None  # five are pending, and one is allowed
    for sequence in (1, 2, 3, 4, 5):
        group.ack(back, sequence)
    assert assign(group, 6, 10.0) is back


def test_resume_without_pending_holds_nothing():
    """A durable that had acknowledged everything goes on at once."""
    group = Group(1, "foo", durable="d", keep=True, last=5)
    group.join(only := member())
    only.online, only.sick = False, True
    group.resume(back := Member(0, "c", "i", "a", max_in_flight=1, ack_wait=2))
    assert not back.sick
    assert assign(group, 6, 0.0) is back


def test_a_message_that_is_gone_is_forgotten():
    """A message that the channel dropped is no longer pending, and its count is gone."""
    group, only = plain()
    assign(group, 1, 0.0)
    group.redeliver(only, 1, 1.0)
    group.drop(only, 1)
    group.drop(only, 1)
    assert not only.pending
    assert not group.counts


def test_skipping_never_goes_back():
    """A position moves over what is gone, and never backwards."""
    group, _ = plain()
    group.skip_to(7)
    group.skip_to(3)
    assert group.last == 7


def test_what_a_leaving_member_had_is_kept_where_nobody_is_there():
    """If all others of a queue are offline, its messages wait for whoever takes the first one's place."""
    group = Group(1, "foo", queue="d:q", keep=True)
    a, b = (Member(number, f"c{number}", "i", "a", max_in_flight=10, ack_wait=30) for number in (1, 2))
    group.join(a)
    group.join(b)
    b.online = False
    for sequence in (1, 2, 3):
        group.assign(a, sequence, 0.0)
    group.leave(a, 1.0)
    assert sorted(b.pending) == [1, 2, 3]
    back = Member(0, "c3", "i", "a", max_in_flight=10, ack_wait=30)
    group.resume(back)
    assert group.waiting(back, 2.0) == [1, 2, 3]


@given(st.lists(st.tuples(st.sampled_from(["new", "ack", "wait", "leave"]), st.integers(0, 30)), max_size=80))
def test_nothing_is_ever_lost(steps):
    """Whatever happens, a message that was sent as new is acknowledged or pending with exactly one member."""
    members = [member(number, most=4) for number in range(3)]
    group = queue(*members)
    now, acked = 0.0, set()
    for what, number in steps:
        now += 0.3
        if what == "new":
            assign(group, group.last + 1, now)
        elif what == "ack" and group.members:
            if group.ack(group.members[number % len(group.members)], number):
                acked.add(number)
        elif what == "wait":
            for holder, sequence in group.due(now):
                group.redeliver(holder, sequence, now)
        elif what == "leave" and len(group.members) > 1:
            group.leave(group.members[number % len(group.members)], now)
        held = [sequence for item in group.members for sequence in item.pending]
        assert len(held) == len(set(held))
        assert set(held) | acked == set(range(1, group.last + 1))
        assert not set(held) & acked


def test_how_far_the_state_goes_ahead():
    """The state says further ahead what may have been sent while messages wait for it, and less far when few go out."""
    group, _ = plain()
    group.last = 10
    first = group.reserve() - group.last
    group.waits = True
    assert group.reserve() - group.last == 2 * first
    for _ in range(40):
        assert group.reserve() - group.last <= 65_536
    group.waits = False
    group.last += 1
    for _ in range(40):
        group.reserve()
    assert group.reserve() - group.last == first
    assert group.reserve(ahead=False) == 11, "nothing more is sent after that"


def test_one_calm_write_alone_changes_nothing():
    """While much goes out, a write that finds little new does not bring the state less far ahead: the next one may."""
    group, _ = plain()
    group.waits = True
    for _ in range(4):
        wide = group.reserve() - group.last
    group.waits = False
    for _ in range(20):
        assert group.reserve() - group.last == wide
        group.last += wide // 4
    for _ in range(6):
        narrow = group.reserve() - group.last
    assert narrow < wide


def test_what_must_be_synced_now():
    """Of what the state says anew nothing is needed until half of what was synced has gone out, or until all waits."""
    group, _ = plain()
    group.last, group.reserved = 100, 300
    assert not group.is_short_of(500)
    group.last = 120
    assert group.is_short_of(500)
    group.reserved = 500
    assert not group.is_short_of(500)
    group.waits = True
    assert group.is_short_of(500)


def test_nothing_goes_out_beyond_what_the_state_may_say():
    """While a lower bound is being stored, the lower one counts; a higher one counts once it is stored."""
    group, only = plain()
    group.last, group.reserved = 10, 300
    only.online = False
    assert group.reserve() == group.reserved == 10
    only.online = True
    assert group.reserve() > group.reserved == 10


def test_what_is_in_doubt_stays_so():
    """What a gateway before us may have sent is remembered as such until it was sent again, and counts as such."""
    group, only = plain()
    group.doubt = 1000
    assert group.reserve() == group.reserve(ahead=False) == 1000
    assert group.assign_in_doubt(only, 1, 0.0) == 1
    assert group.redeliver(only, 1, 1.0) == (only, 2)
