"""A snapshot: everything as a survey knows it at one moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from penstock.survey.edges import find_edges
from penstock.survey.state import ConsumerState, Covered, Edge, PipelineSeen, StreamState, Trouble

__all__ = ["Snapshot"]

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Snapshot:
    """Everything as the survey knows it at one moment."""

    taken: float = 0.0
    """When it was made, in seconds since 1970; 0 before the first look."""
    number: int = 0
    """It grows with every snapshot."""
    problem: str | None = None
    """Why nothing can be looked at: NATS does not answer, or JetStream is off; None if all is well."""
    jetstream: bool | None = None
    """Whether JetStream answers for this account; None as long as nobody knows."""
    account: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    """What the account uses of JetStream, in the words of the server's answer."""
    streams: Mapping[str, StreamState] = field(default_factory=lambda: _NOTHING)
    consumers: Mapping[tuple[str, str], ConsumerState] = field(default_factory=lambda: _NOTHING)
    pipelines: tuple[PipelineSeen, ...] = ()
    trouble: tuple[Trouble, ...] = ()
    """What needs attention, the severe and the oldest first."""
    covered: Covered = field(default_factory=Covered)

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """The ways that messages take between what was seen; found when somebody asks, for they may be many."""
        return find_edges(self.streams, self.consumers, self.pipelines)
