"""The file store of NATS Streaming, as the real server wrote it and as tests write it, whole and damaged."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys

import pytest

from penstock.channels.old_durables import OldDurable, _shown, from_store
from penstock.channels.old_records import checksum, fields_of, is_encrypted
from penstock.channels.old_store import OldStore
from penstock.errors import InputError, RemoteProtocolError, StoreDamagedError, StoreInUseError
from tests.old_store import GOLDEN, StoreWriter, acked, fields, record, sent, subscription


@pytest.fixture
def writer(tmp_path):
    return StoreWriter(tmp_path / "store")


def messages(store: OldStore, channel: str) -> list[tuple[int, bytes]]:
    async def read():
        ends = await store.ends(channel)
        if ends is None:
            return []
        return [(item.sequence, item.data) async for batch in store.read(channel, *ends) for item in batch]

    return asyncio.run(read())


def test_a_store_of_the_real_server():
    """Channels, clients, messages and durables of a store that the last real server wrote are read as it meant them."""
    store = OldStore(GOLDEN)
    assert (store.cluster_id, store.channels()) == ("old", ["orders", "orders.eu", "quiet"])
    assert store.clients() == {"pub", "audit", "w1", "w2"}
    assert messages(store, "orders") == [(number, b"order %d" % number) for number in range(1, 11)]
    assert messages(store, "quiet") == []
    found = from_store(store, store.channels())
    assert found.durables == (
        OldDurable("orders", "w1", "", "q:workers", 3, 60, 7, (3, 4, 5, 6, 7)),
        OldDurable("orders", "audit", "d2", "", 1024, 30, 10, ()),
        OldDurable("orders", "billing", "d1", "", 6, 30, 10, (3, 5, 7, 8, 9, 10)),
        OldDurable("orders.eu", "", "", "dq:g", 1024, 30, 1, (1,)),
        OldDurable("quiet", "w1", "e", "", 1024, 30, 0, ()),
    )
    assert (found.others, found.notes) == (2, ())


def test_the_pages_of_the_real_server_agree_with_its_store():
    """The monitoring pages of that server, asked at the same moment, tell the same, but not what is pending."""
    page = json.loads((GOLDEN.parent / "nats_streaming_pages" / "channelsz.json").read_text())
    stored = {item.identity: item for item in from_store(OldStore(GOLDEN), OldStore(GOLDEN).channels()).durables}
    seen = 0
    for channel in page["channels"]:
        groups: dict[tuple[str, ...], list] = {}
        for item in channel["subscriptions"]:
            if item["is_durable"]:
                queue = item.get("queue_name", "")
                key = ("" if queue else item["client_id"], item.get("durable_name", ""), queue)
                groups.setdefault(key, []).append(item)
        for key, members in groups.items():
            shown = _shown(channel["name"], *key, members)
            assert (shown.last, shown.unknown) == (stored[shown.identity].last, len(stored[shown.identity].pending))
            seen += 1
    assert seen == len(stored) == 5


def test_what_records_add_up_to(writer):
    """New, changed, gone, sent and acknowledged add up, in whatever order they repeat; unknown ids do no harm."""
    writer.clients("c")
    writer.subscriptions(
        "foo",
        (1, subscription(1, "c", durable="d", last=2)),
        *sent(1, 3, 4, 5, 4),
        *acked(1, 4),
        (2, subscription(1, "c", durable="d", last=6)),
        *sent(9, 1),
        *acked(9, 1),
        (1, subscription(2, "c", durable="gone")),
        *sent(2, 1),
        (3, fields(f1=2)),
        (2, subscription(3, "c", "dq:g", last=4)),
    )
    durables = from_store(OldStore(writer.folder), ["foo"]).durables
    assert durables == (
        OldDurable("foo", "c", "", "dq:g", 10, 30, 4, ()),
        OldDurable("foo", "c", "d", "", 10, 30, 6, (3, 5)),
    )


def test_members_whose_client_is_gone(writer):
    """A queue member that an interruption left behind is left out, unless it alone knows the queue's position."""
    writer.clients("here")
    writer.subscriptions(
        "foo",
        (1, subscription(1, "here", "d:two", last=4)),
        (1, subscription(2, "ghost", "d:two", last=9)),
        *sent(2, 8),
        (1, subscription(3, "ghost", "d:one", last=7)),
        *sent(3, 6),
    )
    found = from_store(OldStore(writer.folder), ["foo"])
    assert [(item.queue, item.last, item.pending) for item in found.durables] == [
        ("d:one", 7, (6,)),
        ("d:two", 4, ()),
    ]
    assert [note.rsplit("were ")[1] for note in found.notes] == [
        "left out",
        "taken, as nobody else knows the position",
    ]


@pytest.mark.parametrize("missing", range(1, 14))
def test_a_file_that_was_cut_off(writer, missing):
    """What the end of a file cut off is an error that names file and byte; asked to, the rest is read, with a note."""
    path = writer.subscriptions("foo", (1, subscription(1, "c", durable="d")), *sent(1, 1))
    whole = path.read_bytes()
    path.write_bytes(whole[:-missing])
    last = len(whole) - 12
    if missing == 12:
        assert from_store(OldStore(writer.folder), ["foo"]).durables[0].last == 0
        return
    with pytest.raises(
        StoreDamagedError, match=rf"subs.dat ends within a record that begins at byte {4 if missing > 12 else last}:"
    ):
        from_store(OldStore(writer.folder), ["foo"])
    found = from_store(OldStore(writer.folder, truncate=True), ["foo"])
    assert [item.last for item in found.durables] == ([] if missing > 12 else [0])
    assert "left out what begins at byte" in found.notes[0]


def test_room_made_in_advance(writer):
    """Zeros at the end of a file are no record."""
    writer.write("foo/subs.dat", [(1, subscription(1, "c", durable="d"))], tail=bytes(100))
    assert len(from_store(OldStore(writer.folder), ["foo"]).durables) == 1


@pytest.mark.parametrize("place", [0, 4, 7, 8, 12, 30, -1])
def test_every_damage_is_told(writer, place):
    """A byte that changed anywhere, in the version, a size, a checksum or a content, is told and never skipped."""
    path = writer.subscriptions("foo", (1, subscription(1, "c", durable="d", last=300)), *sent(1, 1000))
    content = bytearray(path.read_bytes())
    content[place] ^= 0x41
    path.write_bytes(content)
    with pytest.raises(StoreDamagedError, match=r"subs\.dat"):
        from_store(OldStore(writer.folder), ["foo"])


@pytest.mark.parametrize(
    ("kind", "content"),
    [(6, b""), (0, b"\x08\x01"), (1, b"\x09\x01"), (1, b"\x12\x05ab"), (5, b"\x08"), (1, b"\x12\x01\xff")],
)
def test_a_sound_record_of_no_meaning(writer, kind, content):
    """A record whose checksum is right and whose content nobody knows is damage as well."""
    writer.subscriptions("foo", (kind, content))
    with pytest.raises(StoreDamagedError, match="cannot be read"):
        from_store(OldStore(writer.folder), ["foo"])


def test_messages_over_several_files(writer):
    """Files are read by their number, gaps are kept, and what goes backwards is damage."""
    writer.messages("foo", range(1, 4), 1)
    writer.messages("foo", [4, 7], 2)
    writer.messages("foo", [8], 10)
    assert [number for number, _ in messages(OldStore(writer.folder), "foo")] == [1, 2, 3, 4, 7, 8]
    writer.messages("foo", [8, 9], 11)
    with pytest.raises(StoreDamagedError, match="message 8 behind message 8"):
        messages(OldStore(writer.folder), "foo")


def test_files_that_are_copied_already_are_not_read_again(writer):
    """The index tells where a file ends, so a later run reads only what is new; a wrong index is not believed."""
    old = writer.messages("foo", range(1, 4), 1)
    writer.messages("foo", range(4, 7), 2)
    content = bytearray(old.read_bytes())
    content[-1] ^= 1
    old.write_bytes(content)

    async def later() -> list[int]:
        store = OldStore(writer.folder)
        assert await store.ends("foo") == (1, 6)
        return [item.sequence async for batch in store.read("foo", 4, 6) for item in batch]

    assert asyncio.run(later()) == [4, 5, 6]
    with pytest.raises(StoreDamagedError, match="checksum"):
        messages(OldStore(writer.folder), "foo")
    index = old.with_suffix(".idx")
    index.write_bytes(index.read_bytes()[:-1] + b"!")
    with pytest.raises(StoreDamagedError, match="checksum"):
        asyncio.run(OldStore(writer.folder).ends("foo"))


def test_a_message_that_was_cut_off(writer):
    """A torn message is an error; not if the index, which the old server believes, ends before it."""
    path = writer.messages("foo", [1, 2])
    path.write_bytes(path.read_bytes() + record(b"x" * 50)[:20])
    store = OldStore(writer.folder)
    assert [number for number, _ in messages(store, "foo")] == [1, 2]
    assert "left out" in store.notes[0]
    path.with_suffix(".idx").unlink()
    with pytest.raises(StoreDamagedError, match="ends within a record"):
        messages(OldStore(writer.folder), "foo")
    assert len(messages(OldStore(writer.folder, truncate=True), "foo")) == 2


def test_another_polynomial(tmp_path):
    """A store with other checksums is read when the polynomial is given, and refused with that advice when not."""
    castagnoli = 0x82F63B78
    assert checksum(castagnoli)(b"123456789") == 0xE3069283
    writer = StoreWriter(tmp_path / "store", polynomial=castagnoli)
    writer.messages("foo", [1])
    assert messages(OldStore(writer.folder, polynomial=castagnoli), "foo") == [(1, b"1")]
    with pytest.raises(StoreDamagedError, match="--crc-poly"):
        OldStore(writer.folder)


def test_encrypted_messages_are_refused(writer):
    """A payload that begins with a cipher's number and a nonce that counts as the sequence does is encrypted."""

    def encrypted(number: int) -> bytes:
        return b"\x01" + b"rand" + struct.pack(">Q", number) + b"c" * 20

    writer.messages("foo", range(1, 4), data=encrypted)
    store = OldStore(writer.folder)
    assert asyncio.run(store.ends("foo")) == (1, 3)
    with pytest.raises(InputError, match=r"foo .* encrypted.*--from"):
        messages(store, "foo")
    assert not is_encrypted(2, encrypted(1))
    assert not is_encrypted(1, b"\x01" * 40)


def test_what_is_no_store(tmp_path, writer):
    """A folder of something else, a store of a cluster, and a folder that is no channel are refused in a sentence."""
    with pytest.raises(InputError, match=r"no server\.dat"):
        OldStore(tmp_path)
    with pytest.raises(InputError, match=r"-clustered.*--from-monitor"):
        OldStore(StoreWriter(tmp_path / "other", node="a").folder)
    (writer.folder / "bad..name").mkdir()
    with pytest.raises(InputError, match="no channel's name"):
        OldStore(writer.folder).channels()
    (writer.folder / "server.dat").write_bytes(b"\x02\0\0\0")
    with pytest.raises(StoreDamagedError, match="version 2"):
        OldStore(writer.folder)
    (writer.folder / "server.dat").write_bytes(b"\x01\0\0\0")
    with pytest.raises(StoreDamagedError, match="0 records"):
        OldStore(writer.folder)


def test_a_store_in_use(writer):
    """A store that another process has open is not read, whichever of its files that is."""
    OldStore(writer.folder).check_unused()
    script = f"import sys; f = open({str(writer.folder / 'clients.dat')!r}); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StoreInUseError, match=f"process {holder.pid}"):
            OldStore(writer.folder).check_unused()
        assert holder.stdin is not None
        holder.stdin.close()


def test_a_store_that_changes_meanwhile(writer):
    """What a server that is hidden from us writes while the store is read is told."""
    store = OldStore(writer.folder)
    store.check_unchanged()
    writer.subscriptions("foo", (1, subscription(1, "c", durable="d")))
    with pytest.raises(StoreInUseError, match=r"foo/subs\.dat has changed"):
        store.check_unchanged()


def test_numbers_of_any_size():
    """Fields are read up to 64 bits, and no further."""
    assert fields_of(fields(f1=2**64 - 1, f2="é")) == {1: 2**64 - 1, 2: "é".encode()}
    with pytest.raises(RemoteProtocolError, match="does not end"):
        fields_of(b"\x08" + b"\xff" * 11)
