"""Both drivers hear every error code and every sentence of the server, and come to the verdict of the table."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from penstock.connection import Connection, api_request, connect
from penstock.errors import DeniedError, JetStreamError, PenstockError, PublishError
from penstock.jetstream import Publisher
from penstock.options import ConnectionOptions
from penstock.wire.bulk import BulkConnection
from penstock.wire.complaints import SENTENCES, read_complaint
from penstock.wire.jetstream.verdicts import ErrorCode, Verdict, error_codes, judge
from tests.scripted import GREETING, Asked, Step, hang_up, hear, log_in, message, playing, say, serve, then
from tests.scripted_stream import Good
from tests.support import Authority

PATIENCE = 20.0  # seconds; what passes does so after two attempts, and what is refused is told at once
GOOD = Good()


@pytest.fixture(scope="module", autouse=True)
def few_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust one authority instead of the system's hundreds, which every connection would read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(Authority(tmp_path_factory.mktemp("ca")).ca))
        yield


def options(url: str) -> ConnectionOptions:
    return ConnectionOptions(url, connect_timeout=PATIENCE, request_timeout=PATIENCE, reconnect=False)


# -- error codes -----------------------------------------------------------------------------------------------------


@dataclass
class Refusing:
    """Answers what is asked with an error, twice, and then as a good server does."""

    error: dict[str, Any]
    asked: Counter[str] = field(default_factory=Counter)

    def _answer(self, kind: str, asked: Asked, good: Callable[[Asked], bytes]) -> bytes:
        self.asked[kind] += 1
        return good(asked) if self.asked[kind] > 2 else message(asked, json.dumps({"error": self.error}).encode())

    def script(self) -> tuple[Step, ...]:
        """Give the script of such a server: stream `S` is there, and asking for any other gets the error."""

        def info(asked: Asked) -> bytes:
            return (
                GOOD.stream_info(asked)
                if asked.subject.endswith(".S")
                else self._answer("api", asked, GOOD.stream_info)
            )

        return log_in(), serve(stream_info=info, ack=lambda asked: self._answer("publish", asked, GOOD.ack))


def told(error: PenstockError | None) -> tuple[str, int | None]:
    """Give what an operation came to: how, and the server's code where it refused."""
    if error is None:
        return "done", None
    if isinstance(error, PublishError):
        assert not error.stored, "nothing was stored"
        return "refused", error.err_code
    return "refused" if isinstance(error, JetStreamError) else type(error).__name__, getattr(error, "err_code", None)


def attempt(work: Callable[[], object]) -> PenstockError | None:
    try:
        work()
    except PenstockError as error:
        return error
    return None


def blocking(error: dict[str, Any]) -> dict[str, Any]:
    """Ask and publish with the blocking driver, and give what came of it, and how often it asked."""
    refusing = Refusing(error)
    with playing(*refusing.script()) as server, BulkConnection(options(server.url)) as bulk:
        asked = attempt(lambda: bulk.api("STREAM.INFO.T", patience=PATIENCE))
        published = attempt(lambda: bulk.publish("S", ROWS, "acks", timeout=PATIENCE))
    return {"api": (told(asked), refusing.asked["api"]), "publish": (told(published), refusing.asked["publish"])}


def on_asyncio(error: dict[str, Any]) -> dict[str, Any]:
    """Ask and publish with the asyncio driver, and give what came of it, and how often it asked."""
    refusing = Refusing(error)

    async def outcome(work: Any) -> PenstockError | None:
        try:
            await work
        except PenstockError as error:
            return error
        return None

    async def run(url: str) -> tuple[PenstockError | None, PenstockError | None]:
        async with await connect(options(url)) as nc:
            asked = await outcome(api_request(nc, "STREAM.INFO.T", patience=PATIENCE))
            return asked, await outcome(_publish(nc))

    with playing(*refusing.script()) as server:
        asked, published = asyncio.run(run(server.url))
    return {"api": (told(asked), refusing.asked["api"]), "publish": (told(published), refusing.asked["publish"])}


def sayings() -> list[tuple[str, ErrorCode, str]]:
    """Give every code with a text, and those whose text decides with that text."""
    found = []
    for code in error_codes().values():
        found.append((f"{code.err_code}", code, f"what {code.constant} says"))
        if code.says:
            found.append((f"{code.err_code}, {code.says}", code, f"it is {code.says} now"))
    return found


@pytest.mark.parametrize(("code", "text"), [item[1:] for item in sayings()], ids=[item[0] for item in sayings()])
def test_error_codes(code: ErrorCode, text: str) -> None:
    """A refusal is told at once with its code; what passes, or leaves a doubt, is tried again; both drivers agree."""
    error = {"code": code.code, "err_code": code.err_code, "description": text}
    verdict = judge(JetStreamError("", **error))
    expected = (("refused", code.err_code), 1) if verdict is Verdict.REFUSED else (("done", None), 3)
    wanted = {"api": expected, "publish": expected}
    assert blocking(error) == wanted
    assert on_asyncio(error) == wanted


def test_codes_of_newer_servers() -> None:
    """A code that is in no table passes where HTTP's word for it says so, and is refused where not."""
    for code, passes in ((503, True), (429, True), (500, False), (400, False)):
        error = {"code": code, "err_code": 19999, "description": "something new"}
        expected = (("done", None), 3) if passes else (("refused", 19999), 1)
        assert blocking(error) == on_asyncio(error) == {"api": expected, "publish": expected}


# -- sentences -------------------------------------------------------------------------------------------------------


async def _publish(nc: Connection) -> None:
    async with Publisher(nc, "S", order="sent", ack_timeout=PATIENCE, patience=PATIENCE) as publisher:
        await publisher.publish("s.x", b"hello")


ROWS = pa.record_batch({"subject": ["s.x"], "data": [b"hello"]})
BLOCKING: dict[str, Callable[[BulkConnection], object]] = {
    "connect": lambda bulk: None,
    "request": lambda bulk: bulk.request("echo", b"hello"),
    "publish": lambda bulk: bulk.publish("S", ROWS, "acks", timeout=PATIENCE),
}
ASYNCIO: dict[str, Callable[[Connection], Any]] = {
    "connect": lambda nc: asyncio.sleep(0),
    "request": lambda nc: nc.request("echo", b"hello"),
    "publish": _publish,
}


def met(operation: str, *steps: Step) -> tuple[PenstockError, PenstockError]:
    """Let both drivers do something, and give what each one raised."""

    def block(url: str) -> None:
        with BulkConnection(options(url)) as bulk:
            BLOCKING[operation](bulk)

    async def run(url: str) -> None:
        async with await connect(options(url)) as nc:
            await ASYNCIO[operation](nc)

    found = []
    for work in (block, lambda url: asyncio.run(run(url))):
        with playing(*steps) as server, pytest.raises(PenstockError) as caught:
            work(server.url)
        found.append(caught.value)
    return found[0], found[1]


def complaint(text: str) -> Step:
    return say(f"-ERR '{text}'\r\n".encode())


@pytest.mark.parametrize("sentence", [*SENTENCES, "something new"])
def test_sentences_at_the_login(sentence: str) -> None:
    """A sentence that ends a login gives the same error on both sides, with the same verdict and the same words."""
    one, other = met("connect", say(GREETING), hear(rb"PING\r\n"), complaint(sentence), hang_up)
    assert type(one) is type(other)
    assert judge(one) is judge(other)
    assert one.what.partition("127.0.0.1")[0] == other.what.partition("127.0.0.1")[0]


@pytest.mark.parametrize("sentence", [item for item in SENTENCES if read_complaint(item).closes])
def test_sentences_that_end_a_connection(sentence: str) -> None:
    """A request under way when the server complains and hangs up ends with the same error, which says the sentence."""
    one, other = met("request", log_in(), serve(request=then(complaint(sentence), hang_up)))
    assert type(one) is type(other)
    assert judge(one) is judge(other) is Verdict.UNKNOWN
    assert sentence in str(one)
    assert sentence in str(other)


def test_a_denied_request() -> None:
    """A request to a subject that is denied is told at once, with the subject, on both sides alike."""
    denied = complaint('Permissions Violation for Publish to "echo"')
    for error in met("request", log_in(), serve(request=then(denied))):
        assert type(error) is DeniedError
        assert (error.subject, error.operation) == ("echo", "publish")
        assert judge(error) is Verdict.REFUSED


def test_a_denied_inbox() -> None:
    """A request whose answers we may not hear is told at once, with the inbox, on both sides alike."""

    def deny(asked: Asked) -> Step:
        inbox = asked.reply.rpartition(".")[0]
        return complaint(f'Permissions Violation for Subscription to "{inbox}.*"')

    for error in met("request", log_in(), serve(request=deny)):
        assert type(error) is DeniedError
        assert error.operation == "subscribe"
        assert error.subject.startswith("_INBOX.")


def test_a_denied_publish() -> None:
    """Rows and messages for a stream whose subject is denied are refused at once, with the subject."""
    denied = complaint('Permissions Violation for Publish to "s.x"')
    one, other = met("publish", log_in(), serve(ack=then(denied)))
    assert type(other) is DeniedError
    assert other.subject == "s.x"
    assert isinstance(one, DeniedError | PublishError)
    assert "s.x" in str(one)
    assert judge(one) is judge(other) is Verdict.REFUSED
