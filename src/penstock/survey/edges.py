"""The ways that messages take, drawn from what is there: who publishes, copies, reads and writes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from penstock.survey.state import ConsumerState, Edge, PipelineSeen, StreamState

__all__ = ["find_edges"]


def find_edges(
    streams: Mapping[str, StreamState],
    consumers: Mapping[tuple[str, str], ConsumerState],
    pipelines: Iterable[PipelineSeen],
) -> tuple[Edge, ...]:
    """Give every edge between things that were seen."""
    return (
        *(edge for state in streams.values() for edge in _stream(state, streams)),
        *(
            Edge(("stream", state.stream), state.subject, "consume", state.rate, state.lag)
            for state in consumers.values()
            # Such a consumer is how a copy is fed, and a bookmark how a flow keeps its place: both are edges already.
            if not state.sourcing and not state.bookmark
        ),
        *(edge for state in pipelines for edge in _pipeline(state)),
    )


def _stream(state: StreamState, streams: Mapping[str, StreamState]) -> Iterator[Edge]:
    mine = state.subject
    origin = state.name.removesuffix("-DEAD")
    if state.dead_letters and origin in streams and origin != state.name:
        yield Edge(("stream", origin), mine, "dead", state.rate)
    elif state.subjects:
        yield Edge(("subjects", state.name), mine, "publish", state.rate)
    for copy in state.copies:
        # A stream of another account or domain may have the same name as one of ours.
        if copy.external is None:
            kind = "mirror" if copy.name == state.mirror else "source"
            # With several sources nobody knows how much comes from which.
            rate = state.rate if len(state.copies) == 1 and not state.subjects else None
            yield Edge(("stream", copy.name), mine, kind, rate, copy.lag)


def _pipeline(state: PipelineSeen) -> Iterator[Edge]:
    for flow in state.flows:
        mine = ("flow", state.subject[1], flow.name)
        for stream in flow.streams:
            latest = flow.latest.get(stream)
            lag = None if latest is None else max(0, latest - flow.streams[stream])
            yield Edge(("stream", stream), mine, "read", flow.rate, lag)
        for stream in flow.writes:
            yield Edge(mine, ("stream", stream), "write", flow.rate)
