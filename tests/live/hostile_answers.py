"""Hostile answers: what JetStream might say to a question, a publish, a get or a pull, and must not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from tests.live.hostile_scripts import DEEP, DIGITS, INDIRECT, WRONG, Case, Script, replaced
from tests.scripted import Answer, Asked, Step, flood, headed, js, log_in, message, serve, status
from tests.scripted_stream import ACK, STREAM, TIME, Good, direct_block

__all__ = ["answers"]

GOOD = Good()
Making = Callable[[Any], Answer]

# Bodies that are no answer to anything.
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "blanks": b"   ",
    "text": b"hello",
    "half of JSON": b'{"stream":"S","se',
    "JSON and more": b'{"stream":"S","seq":4} {"stream":"S"}',
    "null": b"null",
    "a number": b"5",
    "a number of 5,000 digits": DIGITS,
    "a list": b"[1,2,3]",
    "deep lists": DEEP,
    "deep objects": b'{"a":' * 20_000,
    "text in JSON": b'"hello"',
    "bytes that are no UTF-8": b'{"stream":"\xff\xfe","seq":4,\xff}',
    "UTF-16": '{"stream":"S","seq":4'.encode("utf-16"),
    "NaN": b"NaN",
    "an empty object": b"{}",
}
# Where a wrong value stands in an error that JetStream answers with.
ERRORS: dict[str, bytes] = {
    "an error": b'{"error":@}',
    "an error's code": b'{"error":{"code":@,"err_code":10077,"description":"x"}}',
    "an error's err_code": b'{"error":{"code":400,"err_code":@,"description":"x"}}',
    "an error's description": b'{"error":{"code":400,"err_code":10077,"description":@}}',
}
# Blocks of headers that are broken, or have a status that is none.
BLOCKS: dict[str, bytes] = {
    "no version": b"Nats-Sequence: 1\r\n\r\n",
    "another version": b"NATS/2.0 503\r\n\r\n",
    "HTTP": b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
    "a status that is text": b"NATS/1.0 abc\r\n\r\n",
    "a status of five digits": b"NATS/1.0 50300\r\n\r\n",
    "a status of 5,000 digits": b"NATS/1.0 " + DIGITS + b"\r\n\r\n",
    "a negative status": b"NATS/1.0 -503\r\n\r\n",
    "no end": b"NATS/1.0 503",
    "a lone LF": b"NATS/1.0 503\n\n",
    "nothing": b"",
    "bytes that are no UTF-8": b"NATS/1.0 503 \xff\xfe\r\n\xff: \xfe\r\n\r\n",
    "a line without a colon": b"NATS/1.0 503\r\nhello\r\n\r\n",
    "a NUL": b"NATS/1.0\x00503\r\n\r\n",
}
PULLS = ("pull", "consume")
STATUSES = ("000", "100", "204", "400", "404", "408", "409", "503", "999")
# Which answer of `Good` an operation waits for.
AWAITED = {
    "request": "request",
    "api": "stream_info",
    "publish": "ack",
    "acks": "ack",
    "atomic": "atomic",
    "fast": "fast",
    "direct": "direct",
    "pull": "pull",
    "consume": "pull",
}


def changed(operation: str, **answers: Answer | None) -> tuple[Step, ...]:
    """Give the script of a good server with some answers changed."""
    if operation == "pull":
        answers = {"stream_info": js(INDIRECT), **answers}
    return log_in(), serve(**answers)


def answers() -> Iterator[Script]:
    """Give every wrong answer."""
    yield from _infos()
    yield from _acks()
    yield from _fast()
    yield from _blocks()
    yield from _direct()
    yield from _pulls()


def wrong(
    name: str, operations: tuple[str, ...], making: Mapping[str, Making], values: Mapping[str, Any], *, fails: bool
) -> Script:
    """Make a script of wrong values: each operation, each value, the answers of a good server changed by `making`."""
    return Script(
        name,
        tuple(
            Case(kind, operation, changed(operation, **{key: make(value) for key, make in making.items()}), fails)
            for operation in operations
            for kind, value in values.items()
        ),
    )


def _error(form: bytes, raw: bytes | None) -> bytes:
    return form.replace(b"@", raw or b"{}")


# -- what is told about a stream -------------------------------------------------------------------------------------


def _infos() -> Iterator[Script]:
    everything, reads, publishes = (
        ("api", "acks", "atomic", "fast", "direct", "pull"),
        ("direct", "pull"),
        ("acks", "atomic", "fast"),
    )
    told: dict[str, Making] = {"stream_info": js}
    bodies = {kind: body for kind, body in BODIES.items() if body != b"{}"}
    yield wrong("a stream's info that is none", everything, told, bodies, fails=True)
    yield wrong("a consumer that is none", ("pull", "consume"), {"consumer_info": js}, bodies, fails=True)
    for what, form in ERRORS.items():
        values = {kind: _error(form, raw) for kind, raw in WRONG.items()}
        yield wrong(
            f"a stream's info with a wrong value for {what}", ("api", "acks", "pull"), told, values, fails=False
        )
        yield wrong(
            f"a consumer with a wrong value for {what}", ("pull", "consume"), {"consumer_info": js}, values, fails=False
        )
    fields: dict[tuple[str, ...], tuple[str, ...]] = {
        ("config",): (*reads, *publishes),
        ("state",): reads,
        ("created",): ("pull",),
        ("state", "first_seq"): reads,
        ("state", "last_seq"): reads,
        ("config", "num_replicas"): reads,
        ("config", "allow_direct"): reads,
        ("config", "subjects"): publishes,
        ("config", "max_msg_size"): publishes,
        ("config", "duplicate_window"): publishes,
        ("config", "mirror"): ("acks",),
        ("config", "allow_atomic"): ("atomic",),
        ("config", "allow_batched"): ("fast",),
    }
    for path, operations in fields.items():
        for operation in operations:
            info = INDIRECT if operation == "pull" else STREAM
            values = {kind: replaced(info, path, raw) for kind, raw in WRONG.items()}
            yield wrong(
                f"a stream's info with a wrong {'.'.join(path)}, for {operation}",
                (operation,),
                told,
                values,
                fails=False,
            )


# -- acks ------------------------------------------------------------------------------------------------------------


def _at_the_commit(body: bytes) -> Answer:
    def answer(asked: Asked) -> bytes:
        if b"Nats-Batch-Commit" not in asked.header:
            return GOOD.atomic(asked)
        name = re.search(rb"Nats-Batch-Id: (\w+)", asked.header)
        assert name is not None
        return message(asked, body.replace(b'"batch": "b"', b'"batch": "%b"' % name[1]))

    return answer


def _acks() -> Iterator[Script]:
    single = {"stream": "S", "seq": 4, "duplicate": False, "domain": "d"}
    batch = {"stream": "S", "seq": 13, "batch": "b", "count": 10, "domain": "d"}
    kinds: tuple[tuple[str, dict[str, Making], dict[str, Any]], ...] = (
        ("publish", {"ack": js}, single),
        ("acks", {"ack": js}, single),
        ("atomic", {"atomic": _at_the_commit}, batch),
    )
    for operation, making, good in kinds:
        yield wrong(f"an ack that is none, for {operation}", (operation,), making, BODIES, fails=True)
        for field in good:
            values = {kind: replaced(good, [field], raw) for kind, raw in WRONG.items()}
            fails = field in ("batch", "count")  # such an ack says nothing of the messages before the last
            yield wrong(f"an ack with a wrong {field}, for {operation}", (operation,), making, values, fails=fails)
        for what, form in ERRORS.items():
            values = {kind: _error(form, raw) for kind, raw in WRONG.items()}
            name = f"an ack with a wrong value for {what}, for {operation}"
            yield wrong(name, (operation,), making, values, fails=False)

    def ack(asked: Asked, place: Callable[[str], str] = str, sequence: int = 4) -> bytes:
        return message(asked, b'{"stream":"S","seq":%d}' % sequence, subject=place(asked.reply))

    places: dict[str, Callable[[str], str]] = {
        "text": lambda reply: reply + "x",
        "5,000 digits": lambda reply: reply + DIGITS.decode(),
        "more tokens": lambda reply: reply + ".1.2",
        "an empty token": lambda reply: reply + ".",
        "no row": lambda reply: reply.rpartition(".")[0] + ".",
        "a row that was never sent": lambda reply: reply.rpartition(".")[0] + ".123456",
        "a negative row": lambda reply: reply.rpartition(".")[0] + ".-1",
    }
    strays = [
        Case(kind, "acks", changed("acks", ack=partial(ack, place=place)), False) for kind, place in places.items()
    ]
    yield Script("acks on other subjects than ours", tuple(strays))
    thrice = [Case("", "acks", changed("acks", ack=lambda asked: 3 * ack(asked, sequence=3 + asked.number)), False)]
    yield Script("every ack three times", tuple(thrice))
    other = [
        Case(operation, operation, changed(operation, **{name: js(b'{"stream":"OTHER","seq":4,"count":10}')}), False)
        for operation, name in (("acks", "ack"), ("atomic", "atomic"), ("fast", "fast"))
    ]
    yield Script("acks of another stream", tuple(other))
    alone, other_batch = b'{"stream":"S","seq":13}', b'{"stream":"S","seq":13,"batch":"b","count":10}'
    plain = [
        Case("of the last message", "atomic", changed("atomic", atomic=_at_the_commit(alone))),
        Case("of each message", "atomic", changed("atomic", atomic=GOOD.ack)),
        Case(
            "of another batch",
            "atomic",
            changed("atomic", atomic=_at_the_commit(other_batch)),
        ),
    ]
    yield Script("an atomic batch of which only messages are acknowledged", tuple(plain))
    yield Script("the first ack without end", (Case("", "acks", changed("acks", ack=lambda asked: flood(ack(asked)))),))
    passing = b'{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}'
    never = [
        Case(operation, operation, changed(operation, **{AWAITED[operation]: js(passing)}))
        for operation in ("api", "acks", "atomic", "fast")
    ]
    yield Script("a server that is never available", tuple(never))


def _at_the_end(body: bytes) -> Answer:
    return lambda asked: message(asked, body) if asked.reply.split(".")[-2] in "23" else GOOD.fast(asked)


def _fast() -> Iterator[Script]:
    flow, gap = {"type": "ack", "seq": 1, "msgs": 100}, {"type": "gap", "last_seq": 1, "seq": 3}
    final = {"stream": "S", "seq": 13, "batch": "b", "count": 10}
    yield wrong("a flow ack that is none", ("fast",), {"fast": js}, BODIES, fails=True)
    yield wrong("the sum of a fast batch that is none", ("fast",), {"fast": _at_the_end}, BODIES, fails=True)
    parts: tuple[tuple[str, dict[str, Any], Making], ...] = (
        ("a flow ack", flow, js),
        ("a gap", gap, js),
        ("the sum of a fast batch", final, _at_the_end),
    )
    for what, good, make in parts:
        for field in good:
            values = {kind: replaced(good, [field], raw) for kind, raw in WRONG.items()}
            yield wrong(f"{what} with a wrong {field}", ("fast",), {"fast": make}, values, fails=False)
    for what, form in ERRORS.items():
        values = {kind: _error(form, raw) for kind, raw in WRONG.items()}
        yield wrong(f"fast ingest with a wrong value for {what}", ("fast",), {"fast": js}, values, fails=False)
    strange = {
        "a flow ack of more than was sent": {**flow, "seq": 1_000_000},
        "a flow that lets a billion come": {**flow, "msgs": 1_000_000_000},
        "a sum of more than was sent": {**final, "count": 1_000_000},
        "a sum of nothing": {**final, "count": 0},
        "a sum at once": final,
        "a gap at once": gap,
    }
    yield wrong("fast ingest that does not add up", ("fast",), {"fast": js}, strange, fails=False)

    def again(asked: Asked) -> Step:
        return flood(message(asked, b'{"type":"ack","seq":0,"msgs":1}'))

    yield Script("flow acks without end and without progress", (Case("", "fast", changed("fast", fast=again)),))


# -- headers ---------------------------------------------------------------------------------------------------------


def _blocks() -> Iterator[Script]:
    def answer(asked: Asked, block: bytes) -> bytes:
        return headed(asked, block) if asked.reply else b""

    for kind, block in BLOCKS.items():
        yield Script(
            f"an answer whose headers have {kind}",
            tuple(
                # Broken headers of a reply are for its reader to find; a read may take another way.
                Case("", operation, changed(operation, **{name: partial(answer, block=block)}), fails=False)
                for operation, name in AWAITED.items()
            ),
        )
    for code in STATUSES:
        yield Script(
            f"an answer that is a bare {code}",
            tuple(
                Case(
                    "",
                    operation,
                    changed(operation, **{name: partial(answer, block=b"NATS/1.0 %s\r\n\r\n" % code.encode())}),
                    fails=False,
                )
                for operation, name in AWAITED.items()
            ),
        )


def _direct() -> Iterator[Script]:
    end = status("204 EOB", Nats_Num_Pending="0", Nats_Last_Sequence="3")
    stored = {"subject": "s.x", "seq": 1, "time": "2025-11-15T07:00:00Z"}
    values = {
        "left out": "",
        "text": "one",
        "5,000 digits": DIGITS.decode(),
        "a negative number": "-1",
        "zero": "0",
        "a huge number": "18446744073709551616",
        "a fraction": "1.5",
        "a list": "[1]",
        "a year of five digits": "12025-11-15T07:00:00Z",
        "a time without a zone": "2025-11-15T07:00:00",
        "month 13": "2025-13-01T00:00:00Z",
        "before 1970": "1900-01-01T00:00:00Z",
        "a time with letters": "2025-11-15T07:00:00.xyzZ",
    }

    def found(asked: Asked, block: bytes) -> bytes:
        return headed(asked, block, b"hello") + end(asked)

    def some(asked: Asked, *numbers: int) -> bytes:
        return b"".join(headed(asked, direct_block(number), b"hello") for number in numbers) + end(asked)

    for field in ("Stream", "Subject", "Sequence", "Time_Stamp", "Num_Pending", "Last_Sequence"):
        blocks = {kind: direct_block(1, **{field: value}) for kind, value in values.items()}
        blocks["no UTF-8"] = direct_block(1, **{field: "@"}).replace(b"@", b"\xff\xfe")
        cases = [
            Case(kind, "direct", changed("direct", direct=partial(found, block=block)), False)
            for kind, block in blocks.items()
        ]
        yield Script(f"a direct get with a wrong Nats-{field.replace('_', '-')}", tuple(cases))
    yield Script(
        "a direct get out of order",
        (
            Case("backwards", "direct", changed("direct", direct=lambda asked: some(asked, 3, 2, 1))),
            Case("the same three times", "direct", changed("direct", direct=lambda asked: some(asked, 1, 1, 1))),
            Case("without end", "direct", changed("direct", direct=lambda asked: flood(some(asked, 1)))),
        ),
    )
    lines = (
        "100 Idle Heartbeat",
        "204 EOB",
        "404 Message Not Found",
        "408 Request Timeout",
        "413 Too Many Results",
        "503",
    )
    for line in lines:
        stuck: dict[str, Answer | None] = {"stored": js({"message": stored}), "consumer_info": None}
        yield Script(
            f"a direct get that never says more than {line}",
            (
                Case("once", "direct", changed("direct", direct=status(line), **stuck)),
                Case("without end", "direct", changed("direct", direct=partial(_flooding, line=line), **stuck)),
            ),
        )
    early: dict[str, Making] = {"stored": js, "direct": lambda _: status("204 EOB"), "consumer_info": lambda _: None}  # type: ignore[dict-item,return-value]  # no answer
    sequences = {kind: replaced({"message": stored}, ["message", "seq"], raw) for kind, raw in WRONG.items()}
    yield wrong("a stored message with a wrong sequence", ("direct",), early, sequences, fails=False)
    messages = {kind: replaced({"message": stored}, ["message"], raw) for kind, raw in WRONG.items()}
    yield wrong("a stored message that is none", ("direct",), early, messages, fails=False)


def _flooding(asked: Asked, line: str) -> Step:
    return flood(status(line)(asked))


# -- deliveries ------------------------------------------------------------------------------------------------------


def _pulls() -> Iterator[Script]:
    good = {"consumer": "c", "sequence": 1, "count": 1, "time": TIME, "pending": 2}
    numbers = {
        "text": "one",
        "nothing": "",
        "5,000 digits": DIGITS.decode(),
        "a negative number": "-1",
        "zero": "0",
        "a huge number": "18446744073709551616",
        "the largest number": "9223372036854775807",
    }

    def delivery(asked: Asked, reply: str = ACK.format(**good), subject: bytes = b"s.x") -> bytes:
        return message(asked, b"hello", subject="@", reply=reply).replace(b"@", subject, 1)

    for field in ("sequence", "count", "time", "pending"):
        replies = {kind: ACK.format(**{**good, field: value}) for kind, value in numbers.items()}
        cases = [
            Case(kind, operation, changed(operation, pull=partial(delivery, reply=reply)), False)
            for kind, reply in replies.items()
            for operation in PULLS
        ]
        yield Script(f"a delivery with a wrong {field}", tuple(cases))
    others = {
        "no reply": "",
        "another reply": "_INBOX.x",
        "too few tokens": "$JS.ACK.S.c.1.1.1",
        "one token too many": "$JS.ACK.S.c.1.1.1.5.0.x",
        "only a beginning": "$JS.ACK.",
    }
    strange = [
        Case(kind, operation, changed(operation, pull=partial(delivery, reply=reply)), False)
        for kind, reply in others.items()
        for operation in PULLS
    ]
    for operation in PULLS:
        strange.append(
            Case("no UTF-8", operation, changed(operation, pull=partial(delivery, subject=b"\xff\xfe")), False)
        )
        endless = changed(operation, pull=lambda asked: flood(delivery(asked)))
        # Whoever takes what comes takes the same three times; whoever knows what must come does not.
        strange.append(Case("the same without end", operation, endless, operation == "pull"))
    yield Script("a delivery that is none", tuple(strange))
    waiting = js({"message": {"subject": "s.x", "seq": 1, "time": "2025-11-15T07:00:00Z"}})
    for line in (
        "100 Idle Heartbeat",
        "100 FlowControl Request",
        "404 No Messages",
        "408 Request Timeout",
        "409 Consumer Deleted",
        "409 Message Size Exceeds MaxBytes",
        "409 Batch Completed",
        "409 Exceeded MaxWaiting",
        "409 Leadership Change",
        "503 No Responders",
    ):
        yield Script(
            f"a pull that never says more than {line}",
            (
                *(Case("once", kind, changed(kind, pull=status(line), stored=waiting)) for kind in PULLS),
                *(
                    Case("without end", kind, changed(kind, pull=partial(_flooding, line=line), stored=waiting))
                    for kind in PULLS
                ),
            ),
        )
    pending = [
        Case(f"{name} {kind}", operation, changed(operation, pull=status("409 Exceeded MaxBytes", **{name: value})))
        for name in ("Nats_Pending_Messages", "Nats_Pending_Bytes", "Nats_Last_Consumer")
        for kind, value in numbers.items()
        for operation in PULLS
    ]
    yield Script("a pull whose status has wrong numbers", tuple(pending))
