"""What a survey knows so far: states, troubles since when, and history; it becomes a snapshot. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.survey.last_hour import LastHour
from penstock.survey.pipelines import PipelineLook, with_streams
from penstock.survey.snapshot import Snapshot
from penstock.survey.state import (
    ConsumerState,
    Covered,
    PipelineSeen,
    StreamState,
    Subject,
    Trouble,
    Unseen,
    page_of,
)
from penstock.survey.trends import growing, letters_grow
from penstock.survey.trouble import (
    Symptom,
    account_trouble,
    consumer_trouble,
    pipeline_trouble,
    stream_trouble,
)

__all__ = ["Known"]


class Known:
    """The newest look at everything."""

    def __init__(self, last_hour: LastHour) -> None:
        self.last_hour = last_hour
        self.account: Mapping[str, Any] = {}
        self.streams: dict[str, StreamState] = {}
        self.consumers: dict[tuple[str, str], ConsumerState] = {}
        self.names: dict[str, set[str]] = {}
        """For each stream, the names of its consumers."""
        self.pipelines: tuple[PipelineSeen, ...] = ()
        self.made: dict[str, str] = {}
        """For each stream, when it was made, in the server's words."""
        self.writers: dict[str, str] = {}
        """For each query that keeps markers, the stream that it writes to."""
        self.unseen: dict[str, str] = {}
        """What could not be looked at, and why."""
        self.streams_of = 0
        self.pipelines_of = 0
        self.rounds = 0
        self.seconds: float | None = None
        self._troubles: dict[Subject, tuple[Trouble, ...]] = {}
        self._away: dict[str, float] = {}

    # -- what was looked at ------------------------------------------------------------------------------------------

    def take_account(self, account: Mapping[str, Any], now: float) -> None:
        """Take what the account uses."""
        self.account = account
        found = dict(account_trouble(account))
        for name in ("memory", "storage", "streams", "consumers"):
            self._judge(("account", name), [found[name]] if name in found else (), now)

    def take_stream(self, state: StreamState, made: str) -> None:
        """Take a look at a stream."""
        before = self.streams.get(state.name)
        if before is not None and before.created != state.created:
            self._troubles.pop(state.subject, None)  # another stream of that name has troubles of its own
        self.streams[state.name] = state
        self.made[state.name] = made
        values = (state.rate, state.messages, state.bytes, state.last_sequence)
        self.last_hour.add(state.subject, state.looked, values, state.created)
        self._judge(state.subject, [*stream_trouble(state), *letters_grow(state, self.last_hour)], state.looked)

    def take_consumer(self, state: ConsumerState) -> None:
        """Take a look at a consumer."""
        self.consumers[state.stream, state.name] = state
        self.names.setdefault(state.stream, set()).add(state.name)
        values = (
            *(state.lag, state.lag_seconds, state.rate, state.redelivered, state.ack_pending),
            *(state.ack_p50, state.ack_p99),
        )
        self.last_hour.add(state.subject, state.looked, values, state.created)
        self._judge(state.subject, [*consumer_trouble(state), *growing(state, self.last_hour)], state.looked)

    def learn_age(self, state: ConsumerState, stored: float) -> None:
        """Take when the oldest message that waits for a consumer was stored."""
        if self.consumers.get((state.stream, state.name)) is not state:
            return  # it was looked at again meanwhile, or is gone
        age = max(0.0, state.looked - stored)
        still = state.still if state.ack_pending else max(state.still, min(age, _quiet(state)))
        self.take_consumer(replace(state, lag_seconds=age, still=still))

    def take_pipelines(self, looks: Sequence[PipelineLook], now: float) -> None:
        """Take a look at all pipelines."""
        ends = {name: (self.made[name], state.last_sequence + 1) for name, state in self.streams.items()}
        whole = self.rounds > 0 and not self.unseen
        self.pipelines = tuple(with_streams(look, ends, self.writers, whole=whole) for look in looks)
        for state in self.pipelines:
            self._judge(state.subject, pipeline_trouble(state, now), now)
            for flow in state.flows:
                values = (flow.rows, flow.rate, flow.lag, flow.batch_seconds)
                self.last_hour.add(("flow", state.subject[1], flow.name), now, values, None)
        there = {state.subject for state in self.pipelines}
        for subject in [key for key in self._troubles if key[0] == "pipeline" and key not in there]:
            del self._troubles[subject]

    def set_away(self, names: Iterable[str], now: float) -> None:
        """Take the names of streams that a cluster has, and that no server answers for."""
        self._away = {name: self._away.get(name, now) for name in names}

    def forget_stream(self, name: str) -> None:
        """Drop a stream that is gone, with its consumers; its history stays until it is old."""
        self.streams.pop(name, None)
        self.made.pop(name, None)
        self._troubles.pop(("stream", name), None)
        self.keep_consumers(name, ())

    def keep_consumers(self, stream: str, names: Iterable[str]) -> None:
        """Drop the consumers of a stream that are gone."""
        kept = set(names)
        for name in self.names.get(stream, set()) - kept:
            self.consumers.pop((stream, name), None)
            self._troubles.pop(("consumer", stream, name), None)
        if kept:
            self.names[stream] = kept
        else:
            self.names.pop(stream, None)

    def forget(self) -> None:
        """Drop everything but the history: nobody answers."""
        for name in list(self.streams):
            self.forget_stream(name)
        self.account = {}

    # -- what is the matter ------------------------------------------------------------------------------------------

    def _judge(self, subject: Subject, found: Iterable[Symptom], now: float) -> None:
        """Take down the troubles of something; one that was there keeps the moment since when it is."""
        since = {trouble.kind: trouble.since for trouble in self._troubles.get(subject, ())}
        page = page_of(subject)
        troubles = tuple(
            Trouble(item.kind, subject, item.says, since.get(item.kind, now - item.ago), page, item.severe)
            for item in found
        )
        if troubles:
            self._troubles[subject] = troubles
        else:
            self._troubles.pop(subject, None)

    def snapshot(self, number: int, now: float, *, problem: str | None, jetstream: bool | None) -> Snapshot:
        """Give everything as it is known now."""
        looks = [state.looked for state in self.streams.values()]
        looks += [state.looked for state in self.consumers.values()]
        covered = Covered(
            streams=len(self.streams),
            streams_of=max(self.streams_of, len(self.streams)),
            consumers=len(self.consumers),
            consumers_of=max(sum(state.consumers for state in self.streams.values()), len(self.consumers)),
            pipelines=len(self.pipelines),
            pipelines_of=max(self.pipelines_of, len(self.pipelines)),
            oldest=min(looks, default=None),
            rounds=self.rounds,
            seconds=self.seconds,
            unseen=tuple(Unseen(what, why) for what, why in sorted(self.unseen.items())),
            apart=self.last_hour.apart,
        )
        troubles = [trouble for several in self._troubles.values() for trouble in several]
        for name, since in self._away.items():
            subject = ("stream", name)
            troubles.append(Trouble("away", subject, "the servers that hold it do not answer", since, page_of(subject)))
        troubles.sort(key=lambda trouble: (not trouble.severe, trouble.since, trouble.subject))
        return Snapshot(
            taken=now,
            number=number,
            problem=problem,
            jetstream=jetstream,
            account=self.account,
            streams=dict(self.streams),
            consumers=dict(self.consumers),
            pipelines=self.pipelines,
            trouble=tuple(troubles),
            covered=covered,
        )


def _quiet(state: ConsumerState) -> float:
    """Give for how long nothing was delivered or acknowledged, whether or not something waited."""
    moves = (state.delivered.last, state.acked.last, state.created)
    return max(0.0, state.looked - max((moment.timestamp() for moment in moves if moment is not None), default=0.0))
