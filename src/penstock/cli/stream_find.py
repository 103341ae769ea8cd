"""Which streams `stream find` and `stream cluster balance` mean: flags, and whether a stream matches them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.cli.flags import flag_table, table_flag
from penstock.cli.message_parts import check_subjects
from penstock.durations import parse_duration
from penstock.errors import InputError
from penstock.wire.numbers import read_count

if TYPE_CHECKING:
    from penstock.info import StreamInfo

__all__ = ["StreamCriteria"]


@flag_table
class StreamCriteria:
    """What a stream must be; --invert turns each of them around."""

    server_name: str | None = table_flag("Kept by a server whose name this finds.", "REGEX")
    cluster: str | None = table_flag("In a cluster whose name this finds.", "REGEX")
    empty: bool = table_flag("Without messages.", default=False)
    idle: str | None = table_flag("Without a new message for this long.", "DURATION")
    created: str | None = table_flag("Created at least this long ago.", "DURATION")
    consumers: int | None = table_flag("With this many consumers or fewer.", "COUNT", min=0)
    subject: str | None = table_flag("With a subject that this covers.")
    replicas: int | None = table_flag("With this many replicas or fewer.", "COUNT", min=1)
    sourced: bool = table_flag("That collect from other streams.", default=False)
    mirrored: bool = table_flag("That mirror another stream.", default=False)
    leader: str | None = table_flag("Led by this server.", "SERVER")
    api_level: int | None = table_flag("That need this level of the API, or a higher one.", "LEVEL", min=1)
    invert: bool = table_flag("Turn each of these into its opposite.", default=False)

    def check(self) -> None:
        """Refuse what says nothing, before a server is asked."""
        for flag, text in (("--server-name", self.server_name), ("--cluster", self.cluster)):
            try:
                re.compile(text or "")
            except re.error as error:
                raise InputError(f"{flag} {text!r} is not a regular expression: {error}.", remedy="Mend it.") from None
        for flag, text in (("--idle", self.idle), ("--created", self.created)):
            if text is not None:
                parse_duration(text, option=flag)
        if self.subject is not None:
            check_subjects(self.subject)

    def matches(self, info: StreamInfo) -> bool:
        """Tell whether a stream is meant."""
        return all(self._answers(info))

    def _answers(self, info: StreamInfo) -> Iterator[bool]:
        """Answer each question that was asked, turned around if that was."""
        from penstock.jetstream.peers import peers_of
        from penstock.wire.subjects import covers

        config, placed, now, turned = info.config, info.placed, datetime.now(UTC), self.invert
        if self.server_name is not None:
            servers = peers_of(placed)
            yield any(re.search(self.server_name, name) for name in servers) != turned
        if self.cluster is not None:
            yield (re.search(self.cluster, placed.cluster or "") is not None) != turned
        if self.empty:
            yield (info.messages == 0) != turned
        if self.idle is not None:
            limit = parse_duration(self.idle, option="--idle")
            yield (info.last_time is None or (now - info.last_time).total_seconds() > limit) != turned
        if self.created is not None and info.created is not None:
            yield ((now - info.created).total_seconds() >= parse_duration(self.created, option="--created")) != turned
        # Both ways of these two count the number itself, as with the `nats` command.
        if self.consumers is not None:
            yield info.consumers >= self.consumers if turned else info.consumers <= self.consumers
        if self.replicas is not None:
            yield config.num_replicas >= self.replicas if turned else config.num_replicas <= self.replicas
        if self.subject is not None:
            yield any(covers(self.subject, subject) != turned for subject in config.subjects)
        if self.sourced:
            yield bool(config.sources) != turned
        if self.mirrored:
            yield (config.mirror is not None) != turned
        if self.leader is not None:
            yield placed.cluster is not None and (placed.leader == self.leader) != turned
        if self.api_level is not None:
            needed = read_count(config.metadata.get("_nats.req.level", "0"))
            yield (needed is not None and needed >= self.api_level) != turned
