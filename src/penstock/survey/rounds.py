"""One round of a survey: every stream, every consumer, and the age of what waits, asked of the JetStream API by pages.

What goes wrong with one question is told under `unseen`, and the round goes on: a login that may not see the consumers
of a stream still sees the others. Only if there is no connection, or no JetStream, does the round end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.connection import api_request
from penstock.errors import (
    DeniedError,
    JetStreamError,
    LinkError,
    NoRespondersError,
    NotFoundError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.info import ConsumerInfo, StreamInfo
from penstock.jetstream import assets
from penstock.spark.markers import MARKER_ROOT, marker_filter
from penstock.survey.ears import Ears
from penstock.survey.known import Known
from penstock.survey.looks import has_markers, see_consumer, see_stream
from penstock.survey.pace import SurveyPace
from penstock.survey.state import ConsumerState, StreamState
from penstock.times import parse_time
from penstock.wire.jetstream.answers import absent, number, parts

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["Round"]

_NO_JETSTREAM = (10039, 10076)  # not on for the account, not on at all
_DOUBTED = 20  # streams that a list lacks and that are asked for by name, before they count as gone
_FILTERS = 3  # of a consumer that are asked for one by one
_LARGE = 128 * 1024  # bytes of an average message from which on none is fetched to learn its age


class Round:
    """Goes round once."""

    def __init__(
        self,
        client: Connection,
        known: Known,
        pace: SurveyPace,
        ears: Ears,
        *,
        most: int,
        ages: int,
        news: Callable[[], None],
    ) -> None:
        self.client = client
        self.known = known
        self.pace = pace
        self.ears = ears
        self.most = most
        self.ages = ages
        self.news = news
        self.unseen: dict[str, str] = {}
        self.writers: dict[str, str] = {}

    async def go(self) -> bool:
        """Look at everything; whether JetStream is on."""
        known = self.known
        denied: DeniedError | None = None
        try:
            account = await self._ask("INFO")
            with self._reading("what the account uses"):
                known.take_account(account, time.time())
        except DeniedError as error:
            denied = error
            self._miss("what the account uses", error)
        except (NoRespondersError, JetStreamError) as error:
            if isinstance(error, JetStreamError) and error.err_code not in _NO_JETSTREAM:
                raise
            known.forget()
            return False
        if await self._streams():
            read = [state.name for state in known.streams.values() if state.consumers or state.name in known.names]
            await self._all(read, self._consumers)
            await self._ages()
        elif denied is not None:
            raise denied  # it may see nothing at all
        known.unseen = self.unseen
        return True

    async def _ask(self, method: str, body: object = None) -> dict[str, Any]:
        return dict(await self.pace.ask(lambda: api_request(self.client, method, body)))

    async def _all(self, items: list[Any], look: Callable[[Any], Any]) -> None:
        """Look at all of them; as many at a time as the pace lets through, and no task waits for its turn in vain."""
        left = iter(items)

        async def worker() -> None:
            for item in left:
                await look(item)
                self.news()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.pace.at_once, len(items))):
                    group.create_task(worker())
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None  # the others were cancelled because of it

    def _miss(self, what: str, error: PenstockError) -> None:
        """Take down what could not be looked at; an error that ends the round is raised."""
        if isinstance(error, LinkError) and not isinstance(error, DeniedError):
            raise error
        self.unseen[what] = str(error)

    # -- streams -----------------------------------------------------------------------------------------------------

    async def _streams(self) -> bool:
        known, listed, away, offset = self.known, set[str](), set[str](), 0
        while True:
            try:
                answer = await self._ask("STREAM.LIST", {"offset": offset})
                total, page, lacking = number(answer, "total", 0), parts(answer, "streams"), absent(answer)
            except PenstockError as error:
                self._miss("the list of streams" if not offset else f"streams from the {offset + 1:,}th on", error)
                return offset > 0
            known.streams_of = total
            looked = time.time()
            marked = []
            for item in page:
                with self._reading("a stream"):
                    info = StreamInfo.from_json(item)
                    listed.add(info.name)
                    if len(known.streams) >= self.most and info.name not in known.streams:
                        self.unseen["further streams"] = f"A survey keeps {self.most:,} streams."
                    elif has_markers(info):
                        marked.append(info.name)
                    else:
                        self._stream(info, looked)
            await self._all(marked, self._marked)
            self.news()
            away.update(lacking)
            offset += len(page) + len(lacking)
            if not page or offset >= total:
                break
        for name in sorted(away):
            self.unseen[f"stream {name}"] = "The servers that hold it do not answer."
        known.set_away(away, time.time())
        known.writers = self.writers
        gone = [name for name in known.streams if name not in listed and name not in away]
        await self._all(gone[:_DOUBTED], self._doubt)
        for name in gone[_DOUBTED:]:
            known.forget_stream(name)
        return True

    async def _marked(self, name: str) -> None:
        """Look at a stream that holds markers: they are not its messages, and tell who writes to it."""
        try:
            answer = await self._ask(f"STREAM.INFO.{name}", {"subjects_filter": marker_filter(name)})
        except NotFoundError:
            return
        except PenstockError as error:
            self._miss(f"stream {name}", error)
            return
        with self._reading(f"stream {name}"):
            info = StreamInfo.from_json(answer)
            for subject in info.held:
                words = subject.removeprefix(f"{MARKER_ROOT}.{name}.").split(".")
                if len(words) == 2 and words[1] == "head":
                    self.writers[words[0]] = name
            self._stream(info, time.time(), sum(info.held.values()))

    async def _doubt(self, name: str) -> None:
        """Ask for a stream that the list lacks: it may have been passed over because others came or went."""
        try:
            answer = await self._ask(f"STREAM.INFO.{name}")
        except NotFoundError:
            self.known.forget_stream(name)
        except PenstockError as error:
            self._miss(f"stream {name}", error)
        else:
            with self._reading(f"stream {name}"):
                self._stream(StreamInfo.from_json(answer), time.time())

    def _stream(self, info: StreamInfo, looked: float, markers: int | None = None) -> None:
        state = see_stream(info, self.known.streams.get(info.name), looked, markers)
        self.known.take_stream(state, str(info.raw.get("created", "")))

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Take down what cannot be read, whatever it is, and go on with the rest."""
        try:
            yield
        except (RemoteProtocolError, AttributeError, TypeError, LookupError) as error:
            self.unseen[what] = f"The server's answer cannot be read: {error}"

    # -- consumers ---------------------------------------------------------------------------------------------------

    async def _consumers(self, stream: str) -> None:
        known, listed, offset = self.known, set[str](), 0
        while True:
            try:
                answer = await self._ask(f"CONSUMER.LIST.{stream}", {"offset": offset})
                total, page, away = number(answer, "total", 0), parts(answer, "consumers"), absent(answer)
            except NotFoundError:
                known.forget_stream(stream)
                return
            except PenstockError as error:
                self._miss(f"the consumers of {stream}", error)
                return
            looked = time.time()
            for item in page:
                with self._reading(f"a consumer of {stream}"):
                    info = ConsumerInfo.from_json(item)
                    listed.add(info.name)
                    self._consumer(info, looked)
            for name in away:
                self.unseen[f"consumer {name} of {stream}"] = "The servers that hold it do not answer."
                listed.add(name)
            offset += len(page) + len(away)
            if not page or offset >= total:
                break
        known.keep_consumers(stream, listed)

    def _consumer(self, info: ConsumerInfo, looked: float) -> None:
        known, key = self.known, (info.stream, info.name)
        before = known.consumers.get(key)
        if before is None and len(known.consumers) >= self.most:
            self.unseen["further consumers"] = f"A survey keeps {self.most:,} consumers."
            return
        age = self._age(info, before) if info.pending else None
        known.take_consumer(see_consumer(info, before, looked, lag_seconds=age, acks=self.ears.acks(*key)))

    def _age(self, info: ConsumerInfo, before: ConsumerState | None) -> float | None:
        """Give the age of the oldest message that was never delivered, as far as it is known without asking."""
        now = time.time() if info.time is None else info.time.timestamp()
        same = before is not None and (before.created, before.delivered.stream) == (info.created, info.delivered.stream)
        if before is not None and same and before.lag_seconds:
            return before.lag_seconds + now - before.looked
        if any(info.raw["config"].get(name) for name in ("filter_subject", "filter_subjects")):
            return None  # which message is the next one, only the server knows
        stored = self.known.last_hour.passed(info.stream, info.delivered.stream + 1)
        return None if stored is None else max(0.0, now - stored)

    # -- how old what waits is ---------------------------------------------------------------------------------------

    async def _ages(self) -> None:
        known = self.known
        unknown = [
            state
            for state in known.consumers.values()
            if state.lag and state.lag_seconds is None and not state.bookmark and not state.sourcing
        ]
        unknown = [state for state in unknown if _is_small(known.streams.get(state.stream))]
        unknown.sort(key=lambda state: -state.lag)
        await self._all(unknown[: self.ages], self._ask_age)

    async def _ask_age(self, state: ConsumerState) -> None:
        begin = state.delivered.stream + 1
        try:
            moments = [
                await self._stored_at(state.stream, begin, subject) for subject in (state.filter[:_FILTERS] or (">",))
            ]
        except DeniedError as error:
            self._miss("the age of messages that wait", error)
            return
        except PenstockError as error:
            self._miss(f"the age of what waits for {state.name} of {state.stream}", error)
            return
        found = [moment for moment in moments if moment is not None]
        if found and len(state.filter) <= _FILTERS:
            self.known.learn_age(state, min(found))

    async def _stored_at(self, stream: str, begin: int, subject: str) -> float | None:
        try:
            asked = self.pace.ask(lambda: assets.get_stored(self.client, stream, begin, next_for=subject))
            return parse_time(str((await asked)["time"])).timestamp()
        except NotFoundError:
            return None


def _is_small(state: StreamState | None) -> bool:
    return state is not None and state.bytes <= _LARGE * max(1, state.messages)
