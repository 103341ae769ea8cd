"""Starts the processes of a benchmark, lets them begin at the same moment, and hears what becomes of them.

Each is a session of its own, so that Ctrl-C reaches us alone, and none outlives us: its standard input is our word.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

from penstock.bench.client_job import ClientJob
from penstock.bench.results import Sample
from penstock.bench.worker import LENGTH
from penstock.errors import PenstockError, ProgramError

__all__ = ["Crew", "run_jobs"]

_START = 120.0  # seconds for a process to be ready; Spark's takes long on a busy machine
_STOP = 10.0
_TAIL = 2000  # bytes of what a process that failed said last

Advance = Callable[[int], None]


class _Process:
    """One process, and what it says."""

    def __init__(self, job: ClientJob, process: asyncio.subprocess.Process) -> None:
        self.job, self._process = job, process
        self._tail = b""
        self._due: int | None = None  # bytes of the word that comes: who stops listening in the middle may go on
        self._listening = asyncio.ensure_future(self._listen())

    @classmethod
    async def start(cls, job: ClientJob) -> Self:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock.bench.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        made = cls(job, process)
        content = pickle.dumps(job)
        assert process.stdin is not None
        with suppress(ConnectionError):  # what it said last tells more
            process.stdin.write(LENGTH.pack(len(content)) + content)
            await process.stdin.drain()
        return made

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while said := await self._process.stderr.read(4096):
            self._tail = (self._tail + said)[-_TAIL:]

    async def hear(self) -> tuple[str, Any]:
        """Give its next word; raise the error that it tells, or that it ended without one."""
        assert self._process.stdout is not None
        try:
            if self._due is None:
                (self._due,) = LENGTH.unpack(await self._process.stdout.readexactly(LENGTH.size))
            content = await self._process.stdout.readexactly(self._due)
            self._due = None
            kind, what = pickle.loads(content)  # noqa: S301  # our own process
        except asyncio.IncompleteReadError:
            await self._process.wait()
            await self._listening
            lines = self._tail.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
            what = f"A client of the benchmark ended with status {self._process.returncode}; it said: {lines[-1]}"
            raise ProgramError(what, remedy="The run is over.") from None
        if isinstance(what, PenstockError):
            raise what
        return kind, what

    async def until_ready(self) -> None:
        """Wait until it is prepared."""
        try:
            async with asyncio.timeout(_START):
                while (await self.hear())[0] != "ready":
                    pass
        except TimeoutError:
            raise ProgramError(f"A client of the benchmark was not ready within {_START:g} s.") from None

    def say(self, word: bytes) -> None:
        """Tell it to begin, or to stop."""
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(word)

    async def result(self, advance: Advance) -> Sample:
        """Wait for its sample."""
        while True:
            kind, what = await self.hear()
            if kind == "step":
                advance(what)
            elif kind == "done":
                found: Sample = what
                return found

    async def end(self) -> None:
        """Let it close what it opened, and end it, whatever it does, with all that it started."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP):
                    await self._process.wait()
        with suppress(ProcessLookupError, PermissionError):  # nobody is left of its group
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        with suppress(TimeoutError):  # its pipes are at their end, unless somebody else holds them
            async with asyncio.timeout(_STOP):
                await asyncio.gather(self._listening, self._process.stdout.read())


class Crew:
    """The processes of a run; `async with` ends those that still are there."""

    def __init__(self) -> None:
        self._started: list[_Process] = []
        self.helpers: list[_Process] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *about: object) -> None:
        # All at the same time: one that closes slowly must not hold up the others.
        await asyncio.gather(*(process.end() for process in self._started))

    async def start(self, jobs: Sequence[ClientJob]) -> list[_Process]:
        """Start a process for each job, and wait until all are ready."""
        started = []
        for job in jobs:
            started.append(await _Process.start(job))
            self._started.append(started[-1])
        await _all([process.until_ready() for process in started])
        return started

    async def help(self, jobs: Sequence[ClientJob]) -> None:
        """Start those that serve the others, and let them begin."""
        self.helpers += await self.start(jobs)
        for process in self.helpers:
            process.say(b"g")

    async def work(self, jobs: Sequence[ClientJob], advance: Advance = lambda step: None) -> list[Sample]:
        """Let all do their jobs at the same time, and give their samples."""
        started = await self.start(jobs)
        for process in started:
            process.say(b"g")
        # One that serves ends only when it is told: if it says something, that is an error.
        served = [asyncio.ensure_future(process.result(advance)) for process in self.helpers]
        work = asyncio.ensure_future(_all([process.result(advance) for process in started]))
        try:
            await asyncio.wait([work, *served], return_when=asyncio.FIRST_COMPLETED)
            for helper in served:
                if helper.done():
                    helper.result()
            return await work
        finally:
            work.cancel()
            for helper in served:
                helper.cancel()
            await asyncio.gather(work, *served, return_exceptions=True)

    async def stop_helpers(self) -> list[Sample]:
        """Let those that served end in peace, and give what they did."""
        for process in self.helpers:
            process.say(b"s")
        try:
            async with asyncio.timeout(_STOP):
                return await _all([process.result(lambda step: None) for process in self.helpers])
        except TimeoutError:
            raise ProgramError(f"What served the benchmark did not stop within {_STOP:g} s.") from None


async def _all(work: Sequence[Any]) -> list[Any]:
    """Wait for all, or for the first that fails, and leave nothing running."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_jobs(
    jobs: Sequence[ClientJob], advance: Advance = lambda step: None, *, helpers: Sequence[ClientJob] = ()
) -> tuple[list[Sample], float]:
    """Run jobs beside those that serve them; give their samples, and the CPU seconds of the helpers."""
    async with Crew() as crew:
        await crew.help(helpers)
        samples = await crew.work(jobs, advance)
        return samples, sum(sample.cpu for sample in await crew.stop_helpers())
