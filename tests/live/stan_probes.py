"""Odd requests to a server of NATS Streaming, and what it answers, as values that can be compared.

Each probe speaks bytes of the protocol to whatever serves the cluster, from a client of its own. `ask_all` gives what
came back. The answers of the last real server, 0.25.6, are kept in tests/golden/channels_answers.json.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.channels.wire import (
    Ack,
    CloseRequest,
    CloseResponse,
    ConnectRequest,
    ConnectResponse,
    MsgProto,
    PingResponse,
    PubAck,
    PubMsg,
    SubscriptionRequest,
    SubscriptionResponse,
    UnsubscribeRequest,
    decode,
    frame,
)
from tests.live.stan import Raw

SILENCE = 1.0  # seconds in which nothing comes
SECONDS = 30.0  # that an answer may take
QUIET = ("empty", "garbage", "a group", "field zero", "cut off", "number for text")  # pings that nobody answers


class Asking(Raw):
    """A client that waits for an answer however slow the machine is."""

    async def ask(self, subject: str, content: Any, kind: Any = None, timeout: float = SECONDS) -> Any:
        return await super().ask(subject, content, kind, timeout)


Probe = Callable[[Raw], Awaitable[Any]]
PROBES: dict[str, Probe] = {}
LARGE = 1024 * 1024

NAMES = {
    "plain": "foo",
    "one letter": "f",
    "empty": "",
    "dot": ".",
    "leading dot": ".foo",
    "trailing dot": "foo.",
    "double dot": "foo..bar",
    "star": "foo.*",
    "star inside": "fo*o",
    "gt": "foo.>",
    "gt inside": "fo>o",
    "slash": "foo/bar",
    "backslash": "foo\\bar",
    "blank": "foo bar",
    "tab": "foo\tbar",
    "newline": "foo\nbar",
    "return": "foo\rbar",
    "nul": "a\0b",
    "delete": "a\x7fb",
    "dollar": "$foo",
    "dollar alone": "$",
    "dollar inside": "a$b",
    "dollar sys": "$SYS.foo",
    "dollar js": "$JS.API.INFO",
    "underscore": "_foo",
    "inbox": "_INBOX.foo",
    "umlaut": "f\u00fc\u00fc",
    "emoji": "\U0001f600",
    "colon": "foo:bar",
    "percent": "foo%41",
    "equals": "foo=41",
    "quote": 'foo"bar',
    "one dot": "foo.bar",
    "200": "x" * 200,
    "255": "y" * 255,
    "255 in tokens": ".".join(["z" * 50] * 5),
}
INBOXES = {
    "plain": "_INBOX.probe",
    "empty": "",
    "dot": ".",
    "leading dot": ".foo",
    "trailing dot": "foo.",
    "double dot": "foo..bar",
    "star": "foo.*",
    "gt": "foo.>",
    "umlaut": "f\u00fc",
    "quote": 'a"b',
    "delete": "a\x7fb",
    "1000": "i" * 1000,
}
NUMBERS = {"zero": 0, "one": 1, "minus one": -1, "most": 2**31 - 1, "least": -(2**31)}
DELTAS = {"zero": 0, "minus one": -1, "least": -(2**63), "most": 2**63 - 1, "an hour": 3600 * 10**9}
SEQUENCES = {"zero": 0, "three": 3, "five": 5, "six": 6, "seven": 7, "most": 2**64 - 1, "past int64": 2**63}
BYTES = {
    "empty": b"",
    "garbage": b"dummy",
    "a group": b"\x0b\x0c",
    "field zero": b"\x00\x00",
    "unknown field": b"\xf8\x06\x01",
    "unknown bytes": b"\xfa\x06\x03abc",
    "cut off": b"\x0a\x05ab",
    "number for text": b"\x08\x01",
    "no utf-8": b"\x0a\x02\xff\xfe",
}


def probe(name: str) -> Callable[[Probe], Probe]:
    """Take a function up as a probe."""

    def add(made: Probe) -> Probe:
        assert name not in PROBES, name
        PROBES[name] = made
        return made

    return add


def shown(answer: Any) -> Any:
    """Give an answer as plain values: what is random in it, or of the machine, is left out."""
    if answer is None:
        return "silence"
    fields = {field.name: value for field, value in answer.ListFields()}
    for name in ("ackInbox", "guid"):
        if len(fields.get(name, "")) > 8:
            fields[name] = "…"
    if "error" in fields:
        fields["error"] = re.sub(r"mkdir \S*/", "mkdir …/", fields["error"])
    return {
        name: value.decode("latin-1") if isinstance(value, bytes) else value
        for name, value in fields.items()
        if name != "pubPrefix" and not name.endswith("Requests")
    }


async def _joined(raw: Raw) -> Raw:
    answer = await raw.connect(timeout=SECONDS)
    assert answer is not None
    assert not answer.error, answer.error
    return raw


async def _ask(raw: Raw, what: str, content: Any, kind: Any, timeout: float = SECONDS) -> Any:
    subject = f"_STAN.{what}.{raw.cluster}" + (".x" if what == "pub" else ".pings" if what == "discover.pings" else "")
    return shown(await raw.ask(subject.replace("discover.pings", "discover"), content, kind, timeout))


class Inbox:
    """The deliveries to one inbox."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    async def listen(self, raw: Raw, subject: str) -> None:
        await raw.connection.tap(subject, lambda s, r, data, h: self.got.append(decode(MsgProto, data)))
        await raw.connection.flush()

    async def rest(self, number: int) -> list[int]:
        """Give the sequences that came: wait for this many, and then whether there are more."""
        try:
            async with asyncio.timeout(SECONDS):
                while len(self.got) < number:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pass
        await asyncio.sleep(0.3)
        return [message.sequence for message in self.got]


def _publishing(name: str) -> Probe:
    async def ask(raw: Raw) -> Any:
        await _joined(raw)
        return shown(await raw.publish(name, b"x"))

    return ask


def _subscribing(**fields: Any) -> Probe:
    async def ask(raw: Raw) -> Any:
        await _joined(raw)
        return shown(await raw.subscribe(fields.get("subject", "odd"), **fields))

    return ask


def _connecting(**fields: Any) -> Probe:
    async def ask(raw: Raw) -> Any:
        given = {"clientID": raw.client_id, "heartbeatInbox": raw.heartbeat_inbox, "protocol": 1}
        given |= {"connID": raw.conn_id}
        return await _ask(raw, "discover", ConnectRequest(**{**given, **fields}), ConnectResponse)

    return ask


def _starting(number: int, **fields: Any) -> Probe:
    async def ask(raw: Raw) -> Any:
        """Subscribe to a channel with five messages; one more comes after that."""
        await _joined(raw)
        channel, inbox, got = f"start-{raw.client_id}", f"_INBOX.{secrets.token_hex(8)}", Inbox()
        for _ in range(5):
            await raw.publish(channel)
        await got.listen(raw, inbox)
        answer = shown(await raw.subscribe(channel, inbox=inbox, **{"ackWaitInSecs": 60, **fields}))
        await raw.publish(channel)
        return [answer, await got.rest(number)]

    return ask


def _sending(what: str, content: bytes, kind: Any, wait: float = SECONDS) -> Probe:
    async def ask(raw: Raw) -> Any:
        await _joined(raw)
        return await _ask(raw, what, content, kind, wait)

    return ask


def _delivering(inbox: str) -> Probe:
    async def ask(raw: Raw) -> Any:
        """Subscribe with an odd inbox."""
        await _joined(raw)
        channel = f"inbox-{raw.client_id}"
        given = {"clientID": raw.client_id, "subject": channel, "inbox": inbox, "maxInFlight": 10, "ackWaitInSecs": 60}
        return await _ask(raw, "sub", SubscriptionRequest(**given), SubscriptionResponse)

    return ask


for title, value in NAMES.items():
    PROBES[f"publish to {title}"] = _publishing(value)
    PROBES[f"subscribe to {title}"] = _subscribing(subject=value)
for title, value in INBOXES.items():
    PROBES[f"connect with heartbeats to {title}"] = _connecting(heartbeatInbox=value)
    PROBES[f"subscribe with inbox {title}"] = _delivering(value)
for title, value in NUMBERS.items():
    PROBES[f"subscribe with max in flight {title}"] = _subscribing(maxInFlight=value)
    PROBES[f"subscribe with ack wait {title}"] = _subscribing(ackWaitInSecs=value)
    PROBES[f"subscribe at position {title}"] = _subscribing(startPosition=value)
    PROBES[f"connect with protocol {title}"] = _connecting(protocol=value)
    PROBES[f"connect with ping interval {title}"] = _connecting(pingInterval=value, pingMaxOut=3)
    PROBES[f"connect with pings out {title}"] = _connecting(pingInterval=5, pingMaxOut=value)
for title, value in DELTAS.items():
    expected = {"least": 6, "most": 6, "an hour": 6}.get(title, 1)
    PROBES[f"start at time delta {title}"] = _starting(expected, startPosition=2, startTimeDelta=value)
for title, value in SEQUENCES.items():
    expected = {"zero": 6, "three": 4, "five": 2}.get(title, 1)
    PROBES[f"start at sequence {title}"] = _starting(expected, startPosition=3, startSequence=value)
for title, value in {"new": (0, 1), "last": (1, 2), "first": (4, 6)}.items():
    PROBES[f"start at {title}"] = _starting(value[1], startPosition=value[0])
for title, content in BYTES.items():
    PROBES[f"bytes to publish: {title}"] = _sending("pub", content, PubAck, SECONDS / 3)
    PROBES[f"bytes to subscribe: {title}"] = _sending("sub", content, SubscriptionResponse)
    PROBES[f"bytes to unsubscribe: {title}"] = _sending("unsub", content, SubscriptionResponse)
    PROBES[f"bytes to close a subscription: {title}"] = _sending("subclose", content, SubscriptionResponse)
    PROBES[f"bytes to close: {title}"] = _sending("close", content, CloseResponse)
    wait = SILENCE if title in QUIET else SECONDS
    PROBES[f"bytes to ping: {title}"] = _sending("discover.pings", content, PingResponse, wait)
    PROBES[f"bytes to connect: {title}"] = _sending("discover", content, ConnectResponse)
for title, value in {
    "empty": "",
    "blank": "a b",
    "dot": "a.b",
    "umlaut": "\u00fc",
    "star": "*",
    "slash": "a/b",
    "newline": "a\n",
    "300": "c" * 300,
}.items():
    PROBES[f"connect as {title}"] = _connecting(clientID=value)
ODD = {"colon": "a:b", "dot": "a.b", "blank": "a b", "star": "*", "nul": "a\0b", "umlaut": "\u00fc"}
for title, value in ODD.items():
    PROBES[f"durable {title}"] = _subscribing(subject=f"durable-{title}", durableName=value)
    PROBES[f"queue {title}"] = _subscribing(subject=f"queue-{title}", qGroup=value)
    PROBES[f"durable queue {title}"] = _subscribing(subject=f"both-{title}", qGroup="q", durableName=value)
    PROBES[f"durable with queue {title}"] = _subscribing(subject=f"with-{title}", qGroup=value, durableName="d")


def _published(**fields: Any) -> Probe:
    async def ask(raw: Raw) -> Any:
        await _joined(raw)
        return shown(await raw.publish("published", **fields))

    return ask


PROBES["publish without a guid"] = _published(guid="")
PROBES["publish with a long guid"] = _published(guid="g" * 1000)
PROBES["publish without a connection id"] = _published(connID=b"")
PROBES["publish as nobody"] = _published(connID=b"", clientID="nobody")
PROBES["publish with an unknown connection id"] = _published(connID=b"unknown")
PROBES["publish with a connection id as somebody else"] = _published(clientID="nobody")
PROBES["publish nothing"] = _published(data=b"")
PROBES["publish with a digest"] = _published(sha256=b"x" * 32)


@probe("publish the largest message")
async def _largest(raw: Raw) -> Any:
    await _joined(raw)
    channel, inbox, got = f"large-{raw.client_id}", f"_INBOX.{secrets.token_hex(8)}", Inbox()
    await got.listen(raw, inbox)
    await raw.subscribe(channel, inbox=inbox, ackWaitInSecs=60)
    given = {"clientID": raw.client_id, "guid": "g", "subject": channel, "connID": raw.conn_id}
    size = LARGE - len(PubMsg(**given, data=b"x" * 2**20).SerializeToString()) + 2**20
    request = PubMsg(**given, data=b"x" * size)
    assert request.ByteSize() == LARGE
    answer = await _ask(raw, "pub", request, PubAck)
    return [answer, await got.rest(1), [len(message.data) == size for message in got.got]]


def _replying(value: str) -> Probe:
    async def ask(raw: Raw) -> Any:
        """Publish with a reply subject, and see whether it is delivered as it was."""
        await _joined(raw)
        channel, inbox, got = f"reply-{raw.client_id}", f"_INBOX.{secrets.token_hex(8)}", Inbox()
        await got.listen(raw, inbox)
        await raw.subscribe(channel, inbox=inbox, ackWaitInSecs=60)
        answer = shown(await raw.publish(channel, reply=value))
        await got.rest(1)
        return [answer, [message.reply == value for message in got.got]]

    return ask


for title, value in (ODD | {"newline": "a\r\nb", "1000": "r" * 1000}).items():
    PROBES[f"publish with reply {title}"] = _replying(value)


@probe("leave in odd ways")
async def _leave(raw: Raw) -> Any:
    await _joined(raw)
    channel = f"leave-{raw.client_id}"
    answer = await raw.subscribe(channel)
    inbox = answer.ackInbox
    return [
        shown(await raw.leave("unsub", "no-such-channel", inbox)),
        shown(await raw.leave("unsub", channel, "no-such-inbox")),
        shown(await raw.leave("unsub", channel, "")),
        shown(await raw.leave("unsub", channel, inbox, client="nobody")),
        shown(await raw.leave("unsub", channel, inbox, client="")),
        shown(await raw.leave("unsub", "", inbox)),
        shown(await raw.leave("subclose", "a..b", inbox)),
        shown(await raw.leave("unsub", channel, inbox)),
        shown(await raw.leave("unsub", channel, inbox)),
        shown(await raw.leave("subclose", channel, inbox)),
    ]


@probe("close in odd ways")
async def _close(raw: Raw) -> Any:
    await _joined(raw)
    return [shown(await raw.close(client)) for client in ("nobody", "", "a b", raw.client_id, raw.client_id)]


@probe("odd acks")
async def _acks(raw: Raw) -> Any:
    """Acks for other channels and sequences, and bytes that are none, settle nothing: the message comes again."""
    await _joined(raw)
    channel, inbox, got = f"acks-{raw.client_id}", f"_INBOX.{secrets.token_hex(8)}", Inbox()
    await got.listen(raw, inbox)
    answer = await raw.subscribe(channel, inbox=inbox, ackWaitInSecs=1)
    await raw.publish(channel)
    await got.rest(1)
    for content in (
        b"dummy",
        b"",
        Ack(subject=channel, sequence=0).SerializeToString(),
        Ack(subject=channel, sequence=2).SerializeToString(),
        Ack(subject=channel, sequence=2**64 - 1).SerializeToString(),
        Ack(subject="other", sequence=1).SerializeToString(),
        Ack(sequence=1).SerializeToString(),
    ):
        raw.connection.post(frame(answer.ackInbox.encode(), content))
    again = len(await got.rest(2)) >= 2
    raw.ack(answer.ackInbox, channel, 1)
    await raw.connection.flush()
    return [again, got.got[-1].redelivered]


@probe("case of names")
async def _case(raw: Raw) -> Any:
    await _joined(raw)
    first = f"case-{raw.client_id}"
    answers = [shown(await raw.publish(first)), shown(await raw.publish(first.upper()))]
    return [*answers, shown(await raw.subscribe(first.upper()))]


@probe("a durable twice")
async def _durable_twice(raw: Raw) -> Any:
    await _joined(raw)
    channel = f"twice-{raw.client_id}"
    return [
        shown(await raw.subscribe(channel, durableName="d")),
        shown(await raw.subscribe(channel, durableName="d")),
        shown(await raw.subscribe(channel, durableName="e")),
        shown(await raw.subscribe(channel, durableName="d", qGroup="q")),
        shown(await raw.subscribe(channel, durableName="d", qGroup="q")),
    ]


@probe("requests of an unknown client")
async def _unknown(raw: Raw) -> Any:
    return [
        shown(await raw.subscribe("odd", clientID="unknown")),
        shown(await raw.subscribe("odd", clientID="")),
        shown(await raw.publish("odd")),
        shown(await raw.leave("unsub", "odd", "x")),
        shown(await raw.close()),
    ]


@probe("requests with trailing bytes")
async def _trailing(raw: Raw) -> Any:
    """Fields that nobody knows are passed over; a field that comes twice counts as it came last."""
    await _joined(raw)
    given = {"clientID": raw.client_id, "guid": "g", "subject": "trailing", "connID": raw.conn_id}
    whole = PubMsg(**given, data=b"x").SerializeToString()
    sub = SubscriptionRequest(
        clientID=raw.client_id, subject="trailing", inbox="_INBOX.trailing", maxInFlight=1, ackWaitInSecs=30
    ).SerializeToString()
    answers = []
    for tail in (b"\xf8\x06\x01", b"\xfa\x06\x03abc", b"\x0b\x0c", b"\x08\x01", b"\xff", b"\x12\x02hh"):
        answers.append(await _ask(raw, "pub", whole + tail, PubAck))
    answers += [await _ask(raw, "sub", sub + tail, SubscriptionResponse) for tail in (b"\xf8\x06\x01", b"\x0b\x0c")]
    close = CloseRequest(clientID=raw.client_id).SerializeToString()
    leave = UnsubscribeRequest(clientID=raw.client_id, subject="trailing", inbox="x").SerializeToString()
    answers.append(await _ask(raw, "unsub", leave + b"\xf8\x06\x01", SubscriptionResponse))
    answers.append(await _ask(raw, "close", close + b"\x0b\x0c", CloseResponse))
    return answers


async def ask_all(make: Callable[[str], Awaitable[Asking]], at_once: int = 4) -> dict[str, Any]:
    """Ask a server everything, some of it at the same time; `make` gives a client on a connection of its own."""
    turns = asyncio.Semaphore(at_once)

    async def ask(number: int, name: str) -> Any:
        async with turns:
            raw = await make(f"probe{number}")
            try:
                return await PROBES[name](raw)
            finally:
                await raw.connection.close()

    answers = await asyncio.gather(*(ask(number, name) for number, name in enumerate(PROBES)))
    return dict(zip(PROBES, answers, strict=True))
