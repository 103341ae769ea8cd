"""What a server, a proxy or another publisher may send over a connection."""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from penstock.errors import PenstockError, RemoteProtocolError
from penstock.options import ConnectionOptions, SocksProxy
from penstock.wire import protocol
from penstock.wire.arrow import HEADERS
from penstock.wire.bulk import rows as bulk_rows
from penstock.wire.complaints import complaint_error, read_complaint
from penstock.wire.jetstream import answers, direct, verdicts
from penstock.wire.jetstream.fast import Batch
from penstock.wire.jetstream.ordered import Numbering
from penstock.wire.jetstream.pull import Pulls
from penstock.wire.session import Notice, Session
from penstock.wire.socks import SocksHandshake
from penstock.wire.subjects import covers
from tests.fuzz.target import agree, as_message, target
from tests.wire_outcomes import filled, handed_out, outcomes, parsed

INBOX, WORDS = b"_INBOX.a.b.", b'{"stream":"ORDERS","seq":'


@target("wire")
def wire(content: bytes) -> None:
    """Everything that reads what a server sends, at once and in pieces."""
    whole = agree(lambda form: outcomes(form, content))
    agree(lambda form: _told(form, content))
    for cut in {len(content) // 3, len(content) - 1} & set(range(1, len(content))):
        assert agree(lambda form, cut=cut: _in_pieces(form, content, cut)) == whole["parser"][0]
    for direct_get in (False, True):
        rows, ended = whole["direct get" if direct_get else "deliveries"]
        assert agree(lambda form, how=direct_get, at=ended[0]: filled(form, content[:at], how)[0]) == rows
    assert agree(lambda form: handed_out(form, content))[0] == whole["dispatch"][0]


def _told(form: Any, content: bytes) -> list[Any]:
    """Read headers and status of all messages, of a broken block as well."""
    parser, found = form.protocol.Parser(), []
    parser.feed(content)
    while (event := parser.next_event()) is not None:
        if isinstance(event, form.protocol.Message):
            found.append((event.headers, event.status, event.description))
    return found


def _in_pieces(form: Any, content: bytes, cut: int) -> list[Any]:
    parser, found = form.protocol.Parser(), []
    for piece in (content[:cut], content[cut:]):
        parser.feed(piece)
        try:
            while (event := parser.next_event()) is not None:
                found.append((type(event).__name__, *(getattr(event, name) for name in type(event).__slots__)))
        except RemoteProtocolError:
            break
    return found


@target("wire-small")
def wire_small(content: bytes) -> None:
    """A parser with narrow limits: whatever comes, it holds no more than they allow."""

    def read(form: Any) -> Any:
        parser, found = form.protocol.Parser(max_line=64, max_header=32, max_payload=128), []
        for start in range(0, len(content), 16):
            parser.feed(content[start : start + 16])
            assert len(parser.buffer) <= parser.limit
            while (event := parser.next_event()) is not None:
                found.append(type(event).__name__)
        return found, parser.place

    agree(read)


@target("headers")
def headers(content: bytes) -> None:
    """A header block, which any publisher may have written."""
    found = agree(lambda form: form.protocol.decode_headers(content))
    agree(lambda form: form.protocol.decode_status(content))
    direct.read_headers(content)
    for many in (False, True):
        direct.published_headers(content, many=many)
    if isinstance(found, tuple) and len(found) == 3:
        with suppress(PenstockError):
            block = protocol.encode_headers(found[2])
            assert protocol.decode_headers(block)[2] == {name: values for name, values in found[2].items() if values}


@target("plain-acks")
def plain_acks(content: bytes) -> None:
    """The acks of a publisher, as they come."""

    def read(form: Any) -> Any:
        acks, runs = form.plain_acks.PlainAcks(INBOX, WORDS), []
        acks.sid = 7
        place = acks.take(bytearray(content), 0, len(content), runs)
        return place, runs

    place, runs = agree(read)
    events, _ = parsed(_wire(), content)
    assert sum(count for _, count, _ in runs) <= len(events)
    assert 0 <= place <= len(content)


def _wire() -> Any:
    from tests.fuzz.target import PLAIN

    return PLAIN


@target("frames")
def frames(content: bytes) -> None:
    """Rows that become frames: a line each, of a subject, a payload and headers, separated by tabs."""
    rows = []
    for line in content.split(b"\n")[:50]:
        subject, _, rest = line.partition(b"\t")
        payload, _, lines = rest.partition(b"\t")
        pairs = [pair.decode("utf-8", "replace").partition(":") for pair in lines.split(b"\t") if pair]
        rows.append(
            {
                "subject": subject.decode("utf-8", "replace"),
                "data": payload,
                "headers": [(name, value.split(",")) for name, _, value in pairs],
            }
        )
    schema = pa.schema([("subject", pa.string()), ("data", pa.binary()), ("headers", HEADERS)])
    batch = pa.RecordBatch.from_pylist(rows, schema)

    def write(form: Any) -> Any:
        usual, bulk_rows.frames = bulk_rows.frames, form.frames
        try:
            source = bulk_rows.Source(batch, subject=None, subjects=["s.>", "*.b"], max_payload=1 << 20)
            ((_, made),) = source
        finally:
            bulk_rows.frames = usual
        encoder = form.frames.Encoder(
            reply_prefix=b"_R.", counter=b"N", id_prefix=b"i-", id_offset=5, fixed=b"F: 1\r\n"
        )
        place = 0
        while place < batch.num_rows:
            place = encoder.write(made, place, batch.num_rows, 9 + place, 200)
        return bytes(encoder.take()), form.frames.sizes(made), form.blake2.row_digests(made)

    found = agree(write)
    if isinstance(found[0], bytes):
        assert found[0].count(b"HPUB ") >= batch.num_rows
        assert all(covers("s.>", row["subject"]) or covers("*.b", row["subject"]) for row in rows)


@target("blake2")
def blake2(content: bytes) -> None:
    """Digests of rows, whatever bytes their columns hold: the first two bytes say how a row is cut out of the rest."""
    cuts, text = content[:2].ljust(2, b"\0"), content[2:]
    rows = [text[: cuts[0]], text[cuts[0] :], text[: cuts[1] * 16], b""]
    data = pa.array([*rows, *reversed(rows)], pa.binary())
    subjects = pa.array([b"a", b"", text[-cuts[1] :], b"\xff", *rows], pa.binary())

    def digest(form: Any) -> bytes:
        columns = [
            form.frames.Texts(bulk_rows.offsets(column), memoryview(column.buffers()[2] or b"").cast("B"))
            for column in (subjects, data)
        ]
        return bytes(form.blake2.row_digests(form.frames.Rows(len(data), *columns)))

    found = agree(digest)
    for place, (subject, row) in enumerate(zip(subjects.to_pylist(), data.to_pylist(), strict=True)):
        assert found[16 * place :][:16] == blake2b(subject + b"\r\n\r\n" + row, digest_size=16).digest()


@target("outbox")
def outbox(content: bytes) -> None:
    """What is posted comes out as it went in, in both forms."""
    block, payload = as_message(content)

    def write(form: Any) -> Any:
        box = form.dispatch.Outbox()
        box.subjects["a.b"], box.plain = b"a.b", 64
        counts = [box.post("a.b", payload), box.publish(b"a", b"r", block, payload), box.add(content)]
        return counts, box.messages, box.bytes, bytes(box.take())

    agree(write)


@target("session")
def session(content: bytes) -> None:
    """The first words of a server, up to the login and behind it."""
    options = ConnectionOptions("nats://secret-token-of-ours@127.0.0.1:4222")
    made = Session(options, options.urls[0], lambda nonce: {"auth_token": "x"}, "1")
    parser = protocol.Parser()
    parser.feed(content)
    while (event := parser.next_event()) is not None:
        if isinstance(event, protocol.Message):
            assert event.headers is not None
            assert event.status is None or event.description is not None
            if made.state.name == "OPEN":
                continue
        told = made.receive(event)
        if isinstance(told, PenstockError):
            assert "secret-token-of-ours" not in str(told)
        if told is Notice.SECURE:
            made.secured()
        if len(made.take()) > 1 << 20:
            raise AssertionError("much was to be sent")
        assert 0 < made.max_payload <= 1 << 40
    made.ended("it hung up")


@target("complaints")
def complaints(content: bytes) -> None:
    """What stands behind -ERR."""
    found = read_complaint(content.decode("utf-8", "replace"))
    complaint_error(found, ("nats://x:1",), text=found.text)


@target("socks")
def socks(content: bytes) -> None:
    """What a SOCKS proxy answers."""
    handshake = SocksHandshake(SocksProxy("proxy", 1080, "user", "password"), "example.com", 4222, ("nats://x:1",))
    rest = content
    while handshake.wanted:
        handshake.take()
        piece, rest = rest[: handshake.wanted], rest[handshake.wanted :]
        handshake.receive(piece)


# -- JetStream ---------------------------------------------------------------------------------------------------------


@target("answers")
def js_answers(content: bytes) -> None:
    """An answer of the JetStream API, and an ack."""
    block, payload = as_message(content)
    with suppress(RemoteProtocolError):
        status, description = protocol.decode_status(block) if block is not None else (None, "")
        said = answers.read_status(status or 0, description)
        assert said.verdict
    for read in (answers.read_ack, answers.read_answer):
        try:
            read(payload)
        except PenstockError as error:
            verdicts.judge(error)
            str(error).encode()
    answers.read_ack(payload).to_json()


@target("direct")
def js_direct(content: bytes) -> None:
    """An answer to a direct get."""
    block, payload = as_message(content)
    get = direct.DirectGet("S", {"seq": 1, "batch": 5})
    get.hear(payload, block)
    direct.is_answer_of("S", block)
    direct.nanoseconds(direct.answers_for(block))
    if block is not None:
        direct.nanoseconds(direct.value(block, b"\r\nNats-Time-Stamp:").decode("utf-8", "replace"))
        direct.read_answer(payload, block, "S")
    found = direct.read_found(payload, block)
    found.as_answer("S")
    get.result()


@target("stored-message")
def js_stored(content: bytes) -> None:
    """The leader's answer to STREAM.MSG.GET."""
    direct.read_message(answers.read_answer(content)).as_answer("S")


@target("ordered")
def js_ordered(content: bytes) -> None:
    """Deliveries of an ordered consumer: reply subjects, one a line, and statuses."""
    numbering = Numbering()
    for line in content.split(b"\n"):
        if line.startswith(b"NATS/1.0"):
            numbering.hear(b"a", b"", b"", line.replace(b"|", b"\r\n"))
        else:
            numbering.hear(b"a", line, b"x", None)


@target("pulls")
def js_pulls(content: bytes) -> None:
    """Statuses that answer pull requests, one a line."""
    pulls = Pulls("S", "c", batch=10, expires=30.0, heartbeat=5.0, now=0.0, max_bytes=1000)
    number, _ = pulls.ask(10, 0.0)
    for line in content.split(b"\n"):
        status, description = protocol.decode_status(line + b"\r\n\r\n")
        pulls.told(number, answers.read_status(status or 0, description), 1.0)
        if pulls.want(0) > 0:
            number, _ = pulls.ask(pulls.want(0), 1.0)


@target("fast")
def js_fast(content: bytes) -> None:
    """What a server says about a fast batch, one a line; a wrong word ends the batch, and is never an ack."""
    batch = Batch("_INBOX.x", "S", ids=False, safe=0.0)
    batch.send(20, 0.0)
    for line in content.split(b"\n"):
        batch.hear(line)
        assert 0 <= batch.acked <= 20
    with suppress(PenstockError):
        raise batch.reason


@target("json-depth")
def json_depth(content: bytes) -> None:
    """JSON of a server: whatever it is, it is an object or an error."""
    assert isinstance(answers.read_json(content), dict)
    json.dumps(answers.read_json(content))
