"""Reports on connections, of all accounts or of our own: which are wanted, in what order, and how they are shown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.cli.flags import flag_table, table_flag
from penstock.cli.message_parts import check_subjects
from penstock.cli.server_asking import counted
from penstock.cli.values import choice
from penstock.errors import InputError
from penstock.sizes import format_size
from penstock.system.reports import CONNECTION_SORTS

__all__ = ["ConnectionChoice", "connection_tables"]

_STATES = ("open", "closed", "all")  # in the order of the numbers that the server has for them


@flag_table
class ConnectionChoice:
    """Which connections are wanted, and in what order."""

    sort: str = table_flag(f"Sort by one of {', '.join(CONNECTION_SORTS)}.", "KEY", default="subs")
    top: int = table_flag("Show this many at most, those with most of it; 0 for all.", "N", default=1000, min=0)
    subject: str | None = table_flag("Only those with a subscription that matches this.", "SUBJECT")
    username: str | None = table_flag("Only those of this user.", "NAME")
    state: str = table_flag("Those that are open, closed, or all.", "open|closed|all", default="open")
    closed_reason: str | None = table_flag("Only those whose reason to end matches this.", "REGEX")

    def question(self) -> dict[str, Any]:
        """Give what servers are asked; InputError if that cannot be."""
        choice(CONNECTION_SORTS)(self.sort, option="--sort")
        choice({name: name for name in _STATES})(self.state, option="--state")
        try:
            re.compile(self.closed_reason or "")
        except re.error as error:
            raise InputError(
                f"--closed-reason is {self.closed_reason!r}, which is not a regular expression: {error}.",
                remedy="Check brackets and backslashes.",
            ) from None
        if self.subject is not None:
            check_subjects(self.subject)
        wanted = {"filter_subject": self.subject, "user": self.username}
        asked = {key: value for key, value in wanted.items() if value}
        return {"subscriptions": True, "auth": True, "state": _STATES.index(self.state), **asked}

    def matching(self, found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Give those that ended for the reason that is asked for."""
        from penstock.system.fields import word

        reason = re.compile(self.closed_reason or "", re.IGNORECASE)
        return [item for item in found if reason.search(word(item, "reason"))]

    def sorted(self, found: Sequence[dict[str, Any]], reverse: bool) -> list[dict[str, Any]]:
        """Give the top of them, in order."""
        from penstock.system.reports import sort_rows

        return sort_rows(found, CONNECTION_SORTS[self.sort], reverse=reverse, top=self.top)


def connection_tables(
    found: Sequence[dict[str, Any]], kept: Sequence[dict[str, Any]], sort: str, *, reason: bool = False
) -> list[tuple[str, Sequence[str], Sequence[Sequence[Any]]]]:
    """Give the table of those that are kept, and how many each server has of all that were found."""
    from penstock.system.fields import figure, word
    from penstock.system.reports import subscriptions_of

    rows = [
        (
            f"{'' if word(item, 'kind') in ('', 'Client') else word(item, 'kind')[0]}{figure(item, 'cid')}",
            word(item, "name") or word(item, "mqtt_client"),
            word(item, "server", "name"),
            word(item, "server", "cluster"),
            f"{word(item, 'ip')}:{figure(item, 'port')}",
            word(item, "account"),
            word(item, "uptime"),
            *(f"{figure(item, key):,}" for key in ("in_msgs", "out_msgs")),
            *(format_size(figure(item, key)) for key in ("in_bytes", "out_bytes")),
            f"{subscriptions_of(item):,}",
            *([word(item, "reason")] if reason else []),
        )
        for item in kept
    ]
    heads = ("#CID", "Name", "Server", "Cluster", "Address", "Account", "#Uptime", "#In msgs", "#Out msgs", "#In bytes")
    columns = (*heads, "#Out bytes", "#Subs", *(["~Reason"] if reason else []))
    title = f"{counted(len(found), 'connection')} by {sort}"
    title = f"{len(kept):,} of {title}" if len(kept) < len(found) else title
    held = Counter((word(item, "server", "name"), word(item, "server", "cluster")) for item in found)
    each = [(*server, f"{count:,}") for server, count in sorted(held.items(), key=lambda item: (item[1], item[0]))]
    servers = ("Connections of each server", ("Server", "Cluster", "#Connections"), each)
    return [(title, columns, rows), *([servers] if len(each) > 1 else [])]
