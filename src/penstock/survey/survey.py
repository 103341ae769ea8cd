"""`Survey`: goes round in the background, and has the newest snapshot for everybody who asks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError, PenstockError
from penstock.survey.ears import Ears
from penstock.survey.known import Known
from penstock.survey.last_hour import LastHour
from penstock.survey.pace import SurveyPace
from penstock.survey.pipelines import PipelineLook, look_at
from penstock.survey.rounds import Round
from penstock.survey.snapshot import Snapshot
from penstock.survey.state import Subject

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.pipelines.project import Project

__all__ = ["Survey", "SurveySettings"]

log = logging.getLogger("penstock.survey")

_NEWS = 1.0  # seconds between two snapshots while a round goes on, at least
_REST = 20.0  # so many times as long as a snapshot takes to make, there is none
_SHARE = 3.0  # so many times as long as a round took of the processor, the survey rests; but no longer than
_LONGEST = 10.0  # seconds


@dataclass(frozen=True)
class SurveySettings:
    """How often a survey looks, and how much it may ask and keep. Checked here, before anything is asked."""

    every: float = 2.0
    """Seconds from the beginning of one round to that of the next, if it does not take longer."""
    requests: float = 200.0
    """The most questions a second; fewer are asked if the server is slow."""
    at_once: int = 8
    """The most questions under way together."""
    ages: int = 100
    """The most messages that a round fetches to learn how old they are."""
    history: float = 3600.0
    """Seconds of figures that are kept."""
    room: int = 2_000_000
    """The most figures that are kept, eight bytes each; with more things to look at, they are further apart."""
    most: int = 200_000
    """The most streams that are kept, and the most consumers; the snapshot says what is left out."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value: Any = getattr(self, item.name)
            whole = type(item.default) is int
            number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not number or not 0 < value < 2**40:
                remedy = f"Give a {'whole ' if whole else ''}number above 0."
                raise OptionError(f"{item.name} is {value!r}.", remedy=remedy, option=item.name, value=value)


class Survey:
    """Looks at every stream, consumer and pipeline again and again; `snapshot` is what it saw last.

    `client` gives the connection, or raises why there is none; `pipelines` are looked at on disk; `scrub` takes secrets
    out of texts that are shown. `run` is one task; whoever started it cancels it.
    """

    def __init__(
        self,
        client: Callable[[], Awaitable[Connection]],
        settings: SurveySettings | None = None,
        *,
        pipelines: Sequence[Project] = (),
        scrub: Callable[[str], str] = str,
    ) -> None:
        self.settings = settings or SurveySettings()
        self.last_hour = LastHour(self.settings.history, self.settings.room)
        self.ears = Ears()
        self.snapshot = Snapshot()
        self._client = client
        self._projects = tuple(pipelines)
        self._scrub = scrub
        self._known = Known(self.last_hour)
        self._pace = SurveyPace(self.settings.requests, self.settings.at_once)
        self._news = asyncio.Event()
        self.error: PenstockError | None = None
        """What kept the last round from looking at anything; None if nothing did."""
        self._jetstream: bool | None = None
        self._begun, self._ended = 0, 0  # how many rounds
        self._wanted = asyncio.Event()
        self._next_news = 0.0
        self._failure: Exception | None = None  # why there are no more rounds

    def series(self, subject: Subject, field: str) -> list[tuple[float, float]]:
        """Give the history of one figure, oldest first: times in seconds since 1970, and values.

        Streams have `rate`, `messages`, `bytes`; consumers `lag`, `lag_seconds`, `rate`, `redelivered`, `ack_pending`,
        `ack_p50`, `ack_p99`; flows of pipelines `rows`, `rate`, `lag`, `batch_seconds`.
        """
        return self.last_hour.series(subject, field)

    async def next(self, after: Snapshot | None = None) -> Snapshot:
        """Wait for a snapshot that is newer than `after`, or than the one of now; PenstockError if none will come."""
        number = self.snapshot.number if after is None else after.number
        while self.snapshot.number <= number:
            if self._failure is not None:
                what = f"The survey ended, and its figures stay as they are: {type(self._failure).__name__}."
                raise PenstockError(what, remedy="Start it again, and report what the log says.") from self._failure
            await self._news.wait()
        return self.snapshot

    async def fresh(self) -> Snapshot:
        """Begin a round as soon as may be, and give the snapshot after it: everything was looked at after this call.

        It is for one who has just changed something, and for tests; a page reads `snapshot`, which costs nothing.
        """
        turn = self._begun + 1
        while self._ended < turn:
            self._wanted.set()
            await self.next()
        return self.snapshot

    async def run(self) -> None:
        """Go round until cancelled; what goes wrong is told in the snapshot, and tried again."""
        self._failure = None
        disk = ThreadPoolExecutor(1, "penstock-survey")  # one look at a time: a slow disk fills up no threads
        try:
            while True:
                begun, worked = time.monotonic(), time.thread_time()
                self._begun += 1
                self._wanted.clear()
                await self._look(disk)
                self._ended = self._begun
                self._known.seconds = time.monotonic() - begun
                self._publish()
                rest = max(self.settings.every - self._known.seconds, _SHARE * (time.thread_time() - worked))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(rest, max(_LONGEST, self.settings.every))):
                        await self._wanted.wait()
        except Exception as error:
            log.exception("The survey ended, and its figures stay as they are.")  # whoever began it may not look
            self._failure = error
            self._wake()
            raise
        finally:
            disk.shutdown(wait=False, cancel_futures=True)

    async def _look(self, disk: ThreadPoolExecutor) -> None:
        """Go round once."""
        known, settings = self._known, self.settings
        try:
            client = await self._client()
            await self.ears.listen(client)
            going = Round(client, known, self._pace, self.ears, most=settings.most, ages=settings.ages, news=self._tell)
            if self.ears.deaf:
                going.unseen["ack samples and advisories"] = self.ears.deaf
            self._jetstream = await going.go()
            known.rounds += 1
            self.error = None
        except PenstockError as error:
            self.error = error
        except Exception as error:
            log.exception("A round of the survey failed.")
            self.error = PenstockError(f"The survey failed unexpectedly: {type(error).__name__}.")
        await self._pipelines(disk)

    async def _pipelines(self, disk: ThreadPoolExecutor) -> None:
        looks: list[PipelineLook] = []
        for project in self._projects:
            try:
                looks += await asyncio.get_running_loop().run_in_executor(disk, look_at, project, self._scrub)
            except Exception as error:
                log.exception("The pipeline %s cannot be looked at.", project.name)
                self._known.unseen[f"pipeline {project.name}"] = f"Its files cannot be read: {type(error).__name__}."
        self._known.pipelines_of = len(self._projects)
        self._known.take_pipelines(looks, time.time())

    def _tell(self) -> None:
        """Make a snapshot while a round goes on, if the last one is old."""
        if time.monotonic() >= self._next_news:
            self._publish()

    def _publish(self) -> None:
        begun = time.monotonic()
        problem = None if self._jetstream is not False else "JetStream is not on, or not for this account."
        if self.error is not None:
            problem = self._scrub(str(self.error))
        self.snapshot = self._known.snapshot(
            self.snapshot.number + 1, time.time(), problem=problem, jetstream=self._jetstream
        )
        self._next_news = time.monotonic() + max(_NEWS, _REST * (time.monotonic() - begun))
        self._wake()

    def _wake(self) -> None:
        """Let those go on who wait for news, and others wait for the next."""
        self._news.set()
        self._news = asyncio.Event()
