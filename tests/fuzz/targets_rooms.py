"""What other programs say to chunks, the bus, channels and buckets."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from penstock.buckets.entry import entry_of_found
from penstock.buckets.object_info import ObjectInfo
from penstock.buckets.object_wire import name_of, read_digest
from penstock.bus.request import decode_request
from penstock.bus.window import Offer, ReceiveWindow, SendWindow, decode_signal, header_of
from penstock.bus.wire import Element, ReplyDecoder, Response, decode_misc
from penstock.channels import Gateway
from penstock.channels import messages as channel_messages
from penstock.channels.messages import more_lines, read_message
from penstock.channels.monitoring import Monitor
from penstock.channels.old_durables import _read_names, _read_subscribers
from penstock.channels.old_records import Subscriptions, checksum, records
from penstock.channels.old_store import read_server_info, refuse_encrypted
from penstock.channels.state_records import decode_state
from penstock.channels.wire import MESSAGES, MsgProto, PubMsg, ack_start, again, canonical_publish, decode
from penstock.chunks import wire as chunks
from penstock.chunks.stored import read_name
from penstock.errors import PenstockError
from penstock.http_pages import HttpRefused, _read
from penstock.jetstream.delivery import parse_place
from penstock.jetstream.letter import LETTERS, read_letter
from penstock.metrics import MetricsServer
from penstock.model import Message
from penstock.options import ConnectionOptions
from penstock.wire.jetstream.direct import read_found
from penstock.wire.protocol import decode_headers
from tests.channels_sets import deliveries
from tests.fuzz.target import agree, as_message, target

# -- chunks ------------------------------------------------------------------------------------------------------------


@target("chunks", chunks.Refusal)
def chunk(content: bytes) -> None:
    """Chunks of one message, one behind the other; each is a header block and the bytes up to the next block."""
    tiling = chunks.Tiling(max_size=1 << 20, max_chunks=100)
    for part in content.split(b"NATS/1.0")[1:20]:
        block, payload = as_message(b"NATS/1.0" + part)
        headers = chunks.read_headers(block)
        chunks.size_of(headers)
        read_name(headers, chunks.message_id_of(headers) or "x")
        found = chunks.decode(headers, len(payload))
        assert found.offset + len(payload) < 1 << 64
        tiling.add(found, len(payload))
        assert len(tiling) <= 100
        tiling.missing()


# -- bus ---------------------------------------------------------------------------------------------------------------


@target("bus-request")
def bus_request(content: bytes) -> None:
    """A request of the bus."""
    block, payload = as_message(content)
    offer = Offer.decode(header_of(block))
    if offer is not None:
        assert Offer.decode(offer.encode()) == offer
    decode_request(payload)


@target("bus-reply")
def bus_reply(content: bytes) -> None:
    """The packets of a reply, each behind its length of two bytes."""
    decoder = ReplyDecoder()
    for packet in _packets(content):
        found = decoder.decode(packet)
        if isinstance(found, Response | Element):
            with suppress(ValueError, RecursionError):  # who asks for JSON of what is none gets what the library says
                found.json()


@target("bus-window")
def bus_window(content: bytes) -> None:
    """Runs and signals of the extension, each behind its length."""
    window, sent = ReceiveWindow(16, 4096), SendWindow(16, 4096)
    sent.push(b"x")
    sent.run(100)
    for packet in _packets(content):
        for read in (decode_misc, decode_signal):
            with suppress(PenstockError):
                signal = read(packet)
                if read is decode_signal and signal.number:
                    sent.taken(signal.number)
                    sent.rewind(signal.number)
        units, _ = window.feed(packet)
        for unit in units:
            window.take(len(unit))
        assert 0 <= window.bytes <= 4096 + (64 << 10)


def _packets(content: bytes) -> list[bytes]:
    packets = []
    while content and len(packets) < 50:
        size = int.from_bytes(content[:2], "little")
        packets.append(content[2 : 2 + size])
        content = content[2 + size :]
    return packets


# -- channels ----------------------------------------------------------------------------------------------------------


@target("channels")
def channels(content: bytes) -> None:
    """A message of the protocol of NATS Streaming, read as each of its kinds."""
    for kind in MESSAGES.values():
        with suppress(PenstockError):
            found = decode(kind, content)
            assert decode(kind, found.SerializeToString()) == found
    if (whole := canonical_publish(content)) is not None:
        assert canonical_publish(whole) == whole
    with suppress(PenstockError):
        decode(MsgProto, content)  # what is delivered again was one: the count may complete what was cut off
        assert decode(MsgProto, again(content, 300)).redeliveryCount == 300


@target("channels-publishes")
def publishes(content: bytes) -> None:
    """Publishes as they arrive together, each behind its length of two bytes."""
    batch = [(b"r" if place % 2 else b"", packet) for place, packet in enumerate(_packets(content))]

    def read(form: Any) -> Any:
        made = form.publishes.Publishes(batch)
        made.sort(
            lambda name, conn: name == "me" or conn == b"c",
            lambda name: bool(name) and "\x00" not in name,
            canonical_publish,
            lambda reply: more_lines(reply=reply),
            1000,
            b"invalid",
            b"large",
        )
        found = {}
        for name, wanted in made.channels.items():
            field = form.encoded.channel_field(name)
            found[name] = deliveries(form.publishes.encode_new(wanted, 0, len(wanted), field, 7, 1000, 5))
        out = form.encoded.ClientFrames()
        made.write_acks(out)
        return found, out.take()

    agree(read)
    with suppress(PenstockError):
        for _, packet in batch:
            decode(PubMsg, packet)


@target("channels-answers")
def channel_answers(content: bytes) -> None:
    """Messages of a channel as a direct get gives them; each is a header block and the bytes up to the next one."""
    parts = [as_message(b"NATS/1.0" + part) for part in content.split(b"NATS/1.0")[1:20]] or [as_message(content)]
    words = (
        channel_messages._OURS,
        channel_messages._REPLY,
        channel_messages._AT,
        channel_messages._read_other,
    )
    for block, payload in parts:
        with suppress(PenstockError):
            read_message(payload, block).encode("foo")

    def read(form: Any) -> Any:
        answers = [(payload, block) for block, payload in parts]
        return deliveries([form.encoded.read_answers(answers, form.encoded.channel_field(b"foo"), *words)])

    agree(read)


@target("channels-acks")
def channel_acks(content: bytes) -> None:
    """Acks of subscribers."""
    start = ack_start("orders")
    agree(lambda form: form.arrivals.sequence_in(start + content, len(start)))
    agree(lambda form: form.arrivals.sequence_in(content, 0))


@target("channels-state")
def channel_state(content: bytes) -> None:
    """What a gateway kept of clients, subscriptions and positions: a line each."""
    stored = {}
    for number, line in enumerate(content.split(b"\n")[:20]):
        for kind in ("client", "sub", "pos"):
            with suppress(PenstockError):
                decode_state({f"{kind}.{number}": line})
        stored[f"{('client', 'sub', 'pos')[number % 3]}.{number}"] = line
    decode_state(stored)


@target("channels-store")
def old_store(content: bytes) -> None:
    """A file of an old file store, whose checksums are made right, and the records in it."""
    crc = checksum()
    for typed in (False, True):
        subscriptions, file = Subscriptions(), _with_crc(content, crc, typed)
        with suppress(PenstockError):
            for kind, _, found in records(io.BytesIO(file), "f", len(file), crc, lambda at: None, typed=typed):
                with suppress(PenstockError):
                    read_server_info(found, "here")
                with suppress(PenstockError):
                    message = decode(MsgProto, found)
                    refuse_encrypted("c", message.sequence, message.data)
                subscriptions.add(kind, found)
    for _ in records(io.BytesIO(content), "f", len(content), crc, lambda at: None, typed=True):
        pass


@target("monitoring", HttpRefused)
def monitoring(content: bytes) -> None:
    """A request of the monitoring pages of a gateway, which serves nobody yet, and of the pages of figures."""
    asked = _read(content)
    monitor = Monitor(Gateway("nats://127.0.0.1:1", cluster_id="test-cluster"), "127.0.0.1:0")
    figures = MetricsServer(ConnectionOptions("nats://127.0.0.1:1"), token="a-token")
    for pages in (monitor, figures):
        with suppress(HttpRefused):
            answer = asyncio.run(pages._answer(asked))
            assert f"{answer.status}{answer.kind}".isprintable()


@target("old-pages")
def old_pages(content: bytes) -> None:
    """What answers in the place of the monitoring pages of NATS Streaming: channels and subscriptions."""
    with suppress(PenstockError):
        _read_names(content, "http://127.0.0.1:8222")
    found = _read_subscribers(content, "http://127.0.0.1:8222", {"orders", "orders.eu", "foo"})
    assert all(item.max_in_flight > 0 and item.title for item in found.durables)


def _with_crc(content: bytes, crc: Any, typed: bool) -> bytes:
    made, place = bytearray(content), 4
    while len(made) - place >= 8:
        size = int.from_bytes(made[place : place + 4], "little") & (0xFFFFFF if typed else 0xFFFFFFFF)
        if place + 8 + size > len(made):
            break
        made[place + 4 : place + 8] = crc(bytes(made[place + 8 : place + 8 + size])).to_bytes(4, "little")
        place += 8 + size
    return bytes(made)


# -- buckets and deliveries --------------------------------------------------------------------------------------------


@target("dead-letter")
def dead_letter(content: bytes) -> None:
    """A message of a dead-letter stream, which others may write to as well."""
    block, payload = as_message(content)
    headers = {} if block is None else decode_headers(block)[2]
    letter = read_letter(5, Message(subject=f"{LETTERS}.S.c", data=payload, headers=headers, sequence=5))
    assert 0 < letter.sequence < 1 << 64
    json.dumps(letter.to_json()).encode()
    assert all("".join(values).encode() is not None for values in letter.headers.values())


@target("objects")
def objects(content: bytes) -> None:
    """The description of an object, which any client may have written."""
    info = ObjectInfo.from_message("B", "name", content, time=datetime.now(UTC), sequence=1)
    if info.digest:
        read_digest(info.digest)
    name_of("B", f"$O.B.M.{info.nuid}")
    assert ObjectInfo.from_message("B", "name", info.encode()).size == info.size


@target("object-names")
def object_names(content: bytes) -> None:
    """Subjects and digests of objects."""
    text = content.decode("utf-8", "replace")
    name_of("B", f"$O.B.M.{text}")
    read_digest(text)


@target("keys")
def keys(content: bytes) -> None:
    """A value of a bucket as a direct get gives it."""
    block, payload = as_message(content)
    entry_of_found("B", "key", read_found(payload, block))


@target("deliveries")
def delivery(content: bytes) -> None:
    """The reply subject of a delivery."""
    parse_place(content.decode("utf-8", "replace"))
