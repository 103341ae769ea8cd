"""The command inside of this process: quick, for what needs no process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import penstock
from penstock.cli.app import main


@dataclass(frozen=True)
class Done:
    """What a command said, and how it ended."""

    status: int
    stdout: str
    stderr: str


class Talk:
    """A command that runs in this process, as a thread beside it sees it."""

    def __init__(self, out: io.TextIOWrapper, err: io.TextIOWrapper) -> None:
        self._out, self._err = out, err
        self._lock = threading.Lock()
        self._ended = False

    @property
    def said(self) -> str:
        """What the command has printed so far, on standard error and on standard output."""
        return "".join(stream.buffer.getvalue().decode(errors="replace") for stream in (self._err, self._out))

    def wait_for(self, text: str, timeout: float = 20.0) -> str:
        """Wait until the command has said this, and give all that it said; fail when it ends without."""
        deadline = time.monotonic() + timeout
        while text not in (said := self.said):
            assert not self._ended, f"the command ended without {text!r}; it said: {said}"
            assert time.monotonic() < deadline, f"no {text!r} in {timeout:g} s; so far: {said}"
            time.sleep(0.005)
        return said

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Press Ctrl-C, unless the command has ended."""
        with self._lock:
            if not self._ended:
                os.kill(os.getpid(), number)

    def end(self) -> None:
        """Let no signal come any more."""
        with self._lock:
            self._ended = True


def invoke(
    url: str | None,
    *arguments: str,
    stdin: str | bytes = "",
    beside: Callable[[Talk], object] | None = None,
    **env: str,
) -> Done:
    """Run `penstock` with arguments, as in a pipe, with a bare environment but for NATS_URL and what is given.

    `beside` goes on in a thread while the command runs; what it raises is raised here, and ends the command.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "XDG_"))}
    kept |= {"NO_COLOR": "1", "HOME": "/nonexistent", **({"NATS_URL": url} if url else {}), **env}
    content = stdin.encode() if isinstance(stdin, str) else stdin
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    talk, failures, status = Talk(out, err), [], 0

    def accompany() -> None:
        try:
            if beside is not None:
                beside(talk)
        except BaseException as error:  # raised below, by the thread that runs the test
            failures.append(error)
            talk.interrupt()

    companion = threading.Thread(target=accompany)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with (
        _signals_kept(),
        mock.patch.dict(os.environ, kept, clear=True),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8")),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
    ):
        companion.start()
        try:
            main(arguments)
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        finally:
            talk.end()
            companion.join(30)
            root.handlers[:] = handlers  # the command sets its own, on a stream that ends here
            root.setLevel(level)
            out.flush()
            err.flush()
    if failures:
        raise failures[0]
    return Done(status, *(stream.buffer.getvalue().decode(errors="surrogateescape") for stream in (out, err)))


def runner(url: str, *verb: str) -> Callable[..., Done]:
    """Give what runs a verb of the command; it must end as is said, and a failure with one sentence."""

    def call(*arguments: str, status: int = 0, **further: Any) -> Done:
        done = invoke(url, *verb, *arguments, **further)
        assert done.status == status, f"{arguments}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        if status in (1, 2):
            assert done.stderr.splitlines()[-1].startswith("penstock: "), done.stderr
        return done

    return call


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Give signals back to whom they belonged: a command that waits for Ctrl-C leaves the defaults."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Peer:
    """Somebody else on the server, with a loop and a connection in a thread, for tests that run a command here."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.client = self.do(penstock.connect(url))

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine there, and give what it gives."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def publish(self, subject: str, *bodies: bytes, **options: Any) -> None:
        """Publish messages, and see that the server has them."""

        async def publish() -> None:
            for body in bodies:
                await self.client.publish(subject, body, **options)
            await self.client.flush()

        self.do(publish())

    def request(self, subject: str, body: bytes = b"", **options: Any) -> Any:
        """Ask, and give the answer."""
        return self.do(self.client.request(subject, body, **{"timeout": 10, **options}))

    @contextlib.contextmanager
    def listening(self, subject: str, answer: bytes | None = None) -> Iterator[list[Any]]:
        """Give a list that holds each message that comes; each is answered, if there is something to answer with."""
        heard: list[Any] = []

        async def take(message: Any) -> None:
            heard.append(message)
            if answer is not None and message.reply:
                await self.client.publish(message.reply, answer)

        async def begin() -> Any:
            subscription = await self.client.subscribe(subject, cb=take)
            await self.client.flush()
            return subscription

        subscription = self.do(begin())
        try:
            yield heard
        finally:
            self.do(subscription.unsubscribe())

    def close(self) -> None:
        """Leave."""
        self.do(self.client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
