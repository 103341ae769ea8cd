"""Names, limits, records and identities of channels: what is allowed, and what is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.channels.delivery import Group, Member
from penstock.channels.limits import ChannelLimits, Limits, gather_limits, parse_limits
from penstock.channels.messages import ChannelStream, encode, quote_reply, read_message
from penstock.channels.names import channel_of, is_channel, is_client, is_inbox, stream_name, subject_name
from penstock.channels.options import GatewayOptions
from penstock.channels.recent import Recent, RecentRoom, _memory
from penstock.channels.state_records import (
    ClientRecord,
    MemberRecord,
    decode_group,
    decode_record,
    encode_group,
    encode_member,
    encode_record,
    pack,
    unpack,
)
from penstock.channels.subscribers import Subscribers
from penstock.errors import OptionError, RemoteProtocolError
from tests.channels_sets import deliveries, encoded_of


@pytest.mark.parametrize("name", ["a", "A-b_9", "-", "0"])
def test_client_ids(name):
    """A client id has letters, digits, - and _."""
    assert is_client(name)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "é", "a/b", "a*", "a:b"])
def test_no_client_ids(name):
    """Anything else is no client id."""
    assert not is_client(name)


@pytest.mark.parametrize("name", ["foo", "foo.bar", "Foo", "a b", "a-b_c", "é", "$x", "a:b"])
def test_channels(name):
    """A channel is called nearly anything, blanks included."""
    assert is_channel(name)


@pytest.mark.parametrize(
    "name", ["", ".", "foo.", ".foo", "a..b", "a/b", "foo.*", "*", ">", "foo.>", "a*b", "a\0b", "é" * 513, "a\ud800"]
)
def test_no_channels(name):
    """No wildcard, no slash, no empty token, no zero byte, and no more than a kilobyte."""
    assert not is_channel(name)


@pytest.mark.parametrize(
    ("channel", "stream", "subject"),
    [
        ("foo", "c:foo", "foo"),
        ("orders.new", "c:orders:new", "orders.new"),
        ("a:b", "c:a=3Ab", "a:b"),
        ("a=b", "c:a=3Db", "a=3Db"),
        ("a b", "c:a=20b", "a=20b"),
        ("é", "c:=C3=A9", "=C3=A9"),
        ("$SYS.a$b", "c:=24SYS:a=24b", "=24SYS.a$b"),
        ("_INBOX.x", "c:_INBOX:x", "=5FINBOX.x"),
    ],
)
def test_golden_names(channel, stream, subject):
    """The names of streams and subjects are frozen: data lies under them."""
    assert stream_name("c", channel) == stream
    assert subject_name("", channel) == subject
    assert channel_of("c", stream) == channel


def test_a_long_name():
    """A name too long for a stream is cut, and ends in a digest; the stream's metadata has the whole one."""
    name = "y" * 255
    stream = stream_name("c", name)
    assert stream == f"c:{'y' * 219}=h36f3aea1fca314f7b4cef81c423c1a05"
    assert len(stream) == 255
    assert channel_of("c", stream, name) == name
    assert channel_of("c", stream) is None
    assert channel_of("c", stream, "y" * 256) is None
    assert channel_of("c", stream, "other") is None
    assert stream_name("c", "y" * 253) == f"c:{'y' * 253}"


@pytest.mark.parametrize("name", ["_INBOX.a", "a", ".a", "a.", "a..b", "é", "a*b", "a>b", "a\x7f", "i" * 1024])
def test_inboxes(name):
    """A client may be sent things nearly anywhere."""
    assert is_inbox(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "a b", "a\tb", "a\r\nPUB b 0", "a\0", "*", ">", "a.*", "a.>", "*.a", "a.*.b", "i" * 1025),
        *("$JS.API.STREAM.DELETE.S", "$SYS.x", "$KV.b.k", "_PENSTOCK.channels.c.lead"),
    ],
)
def test_no_inboxes(name):
    """Nothing that breaks a line, that streams of others store, or that JetStream takes for a request of ours."""
    assert not is_inbox(name)


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_no_two_channels_share_a_stream(one, other):
    """A stream's name gives its channel back, so two channels never meet in one stream."""
    for name in (one, other):
        if is_channel(name):
            assert channel_of("test-cluster", stream_name("test-cluster", name)) == name
    if one != other:
        assert stream_name("c", one) != stream_name("c", other)
        assert subject_name("", one) != subject_name("", other)


@pytest.mark.parametrize("stream", ["foo", "c", "d:foo", "c:a=ZZ", "c:=C3", "c:a b", "c:", "c=state"])
def test_other_streams_are_no_channels(stream):
    """A stream that we would not have named so is none of ours."""
    assert channel_of("c", stream) is None


def test_limits_inherit_from_wide_to_narrow():
    """The narrowest pattern counts, zero inherits, a negative number means unlimited."""
    limits = Limits(
        default=ChannelLimits(max_msgs=100, max_bytes=1000, max_age=60.0),
        patterns=gather_limits(
            ["foo.bar:max_msgs=3", "foo.*:max_msgs=20,max_age=5s", "foo.>:max_msgs=50,max_bytes=-1", ">:max_subs=7"]
        ),
    )
    assert limits.of("x") == ChannelLimits(100, 1000, 60.0, 7, 0.0)
    assert limits.of("foo.a.b") == ChannelLimits(50, 0, 60.0, 7, 0.0)
    assert limits.of("foo.a") == ChannelLimits(20, 0, 5.0, 7, 0.0)
    assert limits.of("foo.bar") == ChannelLimits(3, 0, 5.0, 7, 0.0)
    assert limits.of("foo").max_msgs == 100


def test_default_limits_are_the_old_ones():
    """100 channels, 1000 subscriptions, a million messages, a million KiB, no age, no inactivity."""
    assert Limits().channels == 100
    assert Limits().of("foo") == ChannelLimits(1_000_000, 1_024_000_000, 0.0, 1000, 0.0)


@pytest.mark.parametrize("text", ["foo", "foo:", "foo:max_msgs", "foo:max_msgs=x", "foo:max_magic=1", "foo:max_age=5"])
def test_bad_limits_are_refused(text):
    """A limit that cannot be read is refused, and the error says how to write it."""
    with pytest.raises(OptionError) as error:
        Limits(patterns=(parse_limits(text),))
    assert error.value.remedy


@pytest.mark.parametrize("pattern", ["foo.>.bar:max_msgs=1", "a..b:max_msgs=1", "a/b:max_msgs=1", ":max_msgs=1"])
def test_bad_patterns_are_refused(pattern):
    """A pattern that matches no channel is refused."""
    with pytest.raises(OptionError, match="matches no channel"):
        Limits(patterns=(parse_limits(pattern),))


def test_negative_global_limits_are_refused():
    """Globally, unlimited is zero; a negative number is a mistake."""
    with pytest.raises(OptionError, match="max_msgs"):
        Limits(default=ChannelLimits(max_msgs=-1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cluster_id", "a.b"),
        ("cluster_id", ""),
        ("subject_prefix", "a*."),
        ("subject_prefix", "a b."),
        ("discover_prefix", ""),
        ("replicas", 2),
        ("hb_interval", 0),
        ("hb_fail_count", -1),
        ("lease", -1),
        ("monitor", "8222"),
        ("monitor", "host:99999"),
    ],
)
def test_bad_gateway_options_are_refused(name, value):
    """Every option is checked before anything is opened, and the error names it."""
    with pytest.raises(OptionError) as error:
        GatewayOptions(**{name: value})
    assert error.value.option == name


def test_golden_records():
    """What is remembered of clients and subscriptions is frozen: newer gateways must read it."""
    client = ClientRecord("me", "_INBOX.hb", b"\x01\x02", 1, 5, 3)
    written = b'{"v":1,"id":"me","heartbeat":"_INBOX.hb","connection":"0102","protocol":1,"interval":5,"out":3}'
    assert encode_record(client) == written
    assert decode_record(ClientRecord, written) == client
    group = Group(3, "foo", queue="d:q", keep=True, last=9)
    member = Member(7, "me", "_INBOX.i", "_INBOX.a", max_in_flight=10, ack_wait=30)
    group.join(member)
    member.pending = {9: 0.0, 5: 0.0, 6: 0.0}
    written = (
        b'{"v":1,"channel":"foo","client":"me","inbox":"_INBOX.i","ack":"_INBOX.a","max":10,"wait":30,'
        b'"durable":"","queue":"d:q","keep":true,"online":true,"group":3}'
    )
    assert encode_member(group, member) == written
    assert decode_record(MemberRecord, written).group == 3
    written = b'{"v":1,"last":9,"pending":{"7":[[5,7],[9,10]]}}'
    assert encode_group(group) == written
    assert decode_group(written).pending == {7: (5, 6, 9)}
    assert decode_group(written).created == "", "as gateways wrote it that did not note the stream"
    group.stream = ChannelStream("foo", "C:foo", "foo", ChannelLimits(), created="2026-01-02T03:04:05.678Z")
    written = b'{"v":1,"last":9,"pending":{"7":[[5,7],[9,10]]},"stream":"2026-01-02T03:04:05.678Z"}'
    assert encode_group(group) == written
    assert decode_group(written).created == group.stream.created
    assert decode_group(written).sent == 0, "as gateways wrote it that did not say it ahead"
    written = b'{"v":1,"last":9,"pending":{"7":[[5,7],[9,10]]},"stream":"2026-01-02T03:04:05.678Z","sent":265}'
    assert encode_group(group, 265) == written
    assert decode_group(written).sent == 265


@pytest.mark.parametrize("content", [b"", b"x", b"[]", b"{}", b'{"v":2}'])
def test_records_of_another_version_are_refused(content):
    """A record that this version does not know is refused, not guessed at."""
    for kind in (ClientRecord, MemberRecord):
        with pytest.raises(RemoteProtocolError, match="version"):
            decode_record(kind, content)
    with pytest.raises(RemoteProtocolError, match="version"):
        decode_group(content)


@given(st.sets(st.integers(1, 200)))
def test_pending_sequences_survive_packing(sequences):
    """Ranges give back the sequences they were made of."""
    assert set(unpack(pack(sequences))) == sequences


@given(st.sets(st.integers(1, 200)), st.integers(1, 10))
def test_positions_stay_small(sequences, most):
    """A position with very many gaps forgets some of them: what is pending stays so, and it fits its message."""
    ranges = pack(sequences, most)
    assert len(ranges) <= most
    assert set(unpack(ranges)) >= sequences
    assert not sequences or max(unpack(ranges)) == max(sequences)


@given(st.text(max_size=40))
def test_any_reply_subject_fits_a_header(reply):
    """A reply subject survives the header, line breaks and blanks included; an ordinary one is not changed."""
    block = f"NATS/1.0\r\nNats-Sequence: 7\r\nPenstock-Time: 5\r\nPenstock-Reply: {quote_reply(reply)}\r\n\r\n"
    assert block.count("\r\n") == 5
    assert read_message(b"x", block.encode()).reply == reply
    assert quote_reply("_INBOX.aB3$x") == "_INBOX.aB3$x"


def test_stored_messages_of_others():
    """A message without our headers has the time of its stream, to the nanosecond."""
    header = b"NATS/1.0\r\nNats-Sequence: 3\r\nNats-Time-Stamp: 2026-01-31T23:59:59.123456789Z\r\n\r\n"
    stored = read_message(b"x", header)
    assert stored.time == 1769903999123456789
    assert (stored.sequence, stored.bytes_so_far, stored.origin, stored.reply) == (3, None, None, "")
    odd = header[:-2] + b"Penstock-Time: soon\r\nPenstock-Bytes: -1\r\nPenstock-Sequence: \xff\r\n\r\n"
    strange = read_message(b"x", odd)
    assert (strange.time, strange.bytes_so_far, strange.origin) == (stored.time, None, None), "it does no harm"
    with pytest.raises(RemoteProtocolError):
        read_message(b"x", b"NATS/1.0\r\n\r\n")


BESIDE = _memory(encoded_of(1, b"")) - encoded_of(1, b"").size  # what a piece of one message takes beside it


def test_recent_messages_stay_within_their_bound():
    """The newest messages are kept, up to a number of bytes."""
    large = b"x" * 60_000  # those that are smaller are put together, and go together
    size = encoded_of(1, large).size
    recent = Recent(RecentRoom(3 * (size + BESIDE)))
    for sequence in range(1, 6):
        recent.add(encoded_of(sequence, large))
    assert [sequence for sequence in range(1, 6) if sequence in recent] == [3, 4, 5]
    assert recent.size == 3 * size
    recent.drop_before(5)
    assert [sequence for sequence in range(1, 6) if sequence in recent] == [5]
    recent.add(encoded_of(6, large * 5))
    assert recent.size == 0
    assert 5 not in recent
    assert 6 not in recent


def test_recent_messages_of_all_channels_share_one_room():
    """What came first makes room, whatever clocks say; one that ended takes none, an idle one keeps none for long."""
    large = b"x" * 70_000
    size = encoded_of(1, large).size
    each = size + BESIDE
    room = RecentRoom(4 * each)
    first, second, third = Recent(room), Recent(room), Recent(room)
    for time, recent, sequence in ((9, first, 1), (8, second, 1), (7, first, 2), (6, second, 2), (5, third, 1)):
        recent.add(encoded_of(sequence, large, time=time))
    assert [1 in first, 2 in first, 1 in second, 2 in second, 1 in third] == [False, True, True, True, True]
    first.close()
    assert room.used == 3 * each
    for sequence in range(2, 6):
        third.add(encoded_of(sequence, large))
    assert [second.size, third.size, room.used] == [0, 4 * size, 4 * each], "one channel may have all of it"
    second.add(encoded_of(3, large))
    assert [second.size, third.size] == [size, 3 * size]
    for recent in (second, third):
        recent.close()
    assert (room.used, room._oldest) == (0, [])


def test_recent_messages_with_gaps_are_bounded_by_what_they_take():
    """Messages between which others wrote stay pieces of their own: their memory counts, not their bytes alone."""
    room = RecentRoom(1 << 20)
    recent = Recent(room)
    for sequence in range(1, 4001, 2):
        recent.add(encoded_of(sequence, b"x"))
    assert room.used <= 1 << 20
    assert len(recent._pieces) < (1 << 20) // 1024
    assert 3999 in recent
    for sequence in range(4001, 4101):  # these are joined, and take less then
        recent.add(encoded_of(sequence, b"x" * 1000))
    assert room.used == sum(map(_memory, recent._pieces))


def test_recent_messages_are_found_one_by_one():
    """Small messages stand together in memory, and each is found as it was encoded; what others wrote is not there."""
    recent = Recent(RecentRoom(1 << 20))
    for sequence in (1, 2, 3, 5, 6):
        recent.add(encoded_of(sequence, b"%d" % sequence))
    assert [recent.get(sequence) for sequence in range(8)] == [
        None,
        *(encode("foo", sequence, b"%d" % sequence, 1, "") for sequence in (1, 2, 3)),
        None,
        *(encode("foo", sequence, b"%d" % sequence, 1, "") for sequence in (5, 6)),
        None,
    ]


def _subscribe(subscribers: Subscribers, number: int, client: str, durable: str = "", queue: str = "") -> Member:
    group = subscribers.find(client, durable, queue)
    if group is None:
        key = f"{durable}:{queue}" if durable and queue else queue
        group = Group(number, "foo", durable="" if queue else durable, queue=key, keep=bool(durable))
    member = Member(number, client, f"i{number}", f"a{number}", max_in_flight=1, ack_wait=1)
    subscribers.add(group, member)
    return member


def test_identities():
    """A durable is the client's own; a durable queue is anybody's; a queue named like one joins it."""
    subscribers = Subscribers()
    plain = _subscribe(subscribers, 1, "a")
    durable = _subscribe(subscribers, 2, "a", durable="d")
    queued = _subscribe(subscribers, 3, "a", queue="q")
    both = _subscribe(subscribers, 4, "a", durable="d", queue="q")
    assert subscribers.find("a", "", "") is None
    assert subscribers.find("a", "d", "") is durable.group
    assert subscribers.find("b", "d", "") is None
    assert subscribers.find("b", "", "q") is queued.group
    assert subscribers.find("b", "d", "q") is both.group
    assert subscribers.find("b", "", "d:q") is both.group
    assert len({plain.group, durable.group, queued.group, both.group}) == 4
    assert subscribers.by_inbox("a1") is plain
    assert subscribers.by_inbox("i1") is plain
    assert subscribers.by_inbox("x") is None


@pytest.mark.parametrize(
    ("durable", "queue", "unsubscribe", "stays"),
    [
        ("", "", False, False),
        ("", "", True, False),
        ("d", "", False, True),
        ("d", "", True, False),
        ("", "q", False, False),
        ("", "q", True, False),
        ("d", "q", False, True),
        ("d", "q", True, False),
    ],
)
def test_the_last_member_leaves(durable, queue, unsubscribe, stays):
    """Close keeps a durable's position, unsubscribe does not, and the others are gone either way."""
    subscribers = Subscribers()
    member = _subscribe(subscribers, 1, "a", durable, queue)
    gone = subscribers.remove(member, 0.0, unsubscribe=unsubscribe)
    assert gone is not stays
    assert (subscribers.find("a", durable, queue) is not None) is stays
    assert subscribers.by_inbox("a1") is None
    assert not subscribers.active
    assert len(subscribers) == int(stays)


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 40), st.sampled_from([0, 10, 900, 30_000])), max_size=60))
def test_recent_messages_are_the_newest_whatever_came(pieces):
    """Whatever the sizes and gaps of what is stored, what is kept are the newest messages, as they were encoded."""
    recent, contents, last = Recent(RecentRoom(250_000)), {}, 0
    for step, count, size in pieces:
        filling = [b"%d" % number + b"x" * size for number in range(count)]
        piece = encoded_of(last + step, *filling[: 200_000 // (size + 40)])
        contents |= dict(deliveries([piece]))
        last = piece.last
        recent.add(piece)
    kept = {sequence: content for sequence, content in contents.items() if sequence in recent}
    assert all(recent.get(sequence) == content for sequence, content in kept.items())
    assert list(kept) == list(contents)[len(contents) - len(kept) :]
    assert recent.size == sum(map(len, kept.values())) <= 250_000
    assert not any(sequence in recent for sequence in range(last + 2) if sequence not in contents)
    recent.drop_before(last + 1)
    assert recent.size == 0
