"""The durables of a NATS Streaming server, from its files, its database or its monitoring pages.

The store tells everything. The pages tell how many messages a durable has not acknowledged, and not which; so of them a
durable can be taken that has acknowledged all.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Protocol

from penstock.channels.names import is_channel
from penstock.channels.old_records import SubscriptionRecord
from penstock.errors import InputError, UnreachableError
from penstock.json_text import load_json

__all__ = ["KeptChannels", "OldDurable", "OldSubscribers", "from_monitor", "from_store", "names_from_monitor"]

_PAGE_BYTES = 256 * 1024 * 1024
_SECONDS = 10.0


@dataclass(frozen=True)
class OldDurable:
    """A durable subscription, or a durable queue, and how far it came."""

    channel: str
    client: str
    """Whose durable it is; for a queue, one of its members, if any is known."""
    durable: str
    """Empty for a queue."""
    queue: str
    """`durable:queue`; empty for the durable of one client."""
    max_in_flight: int
    ack_wait: int
    last: int
    """The last message that was sent to it."""
    pending: tuple[int, ...]
    """The messages that were sent and not acknowledged."""
    unknown: int = 0
    """How many more were not acknowledged, nobody can tell which."""

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What makes it the same one again: of a queue, its client is not a part."""
        return self.channel, "" if self.queue else self.client, self.durable, self.queue

    @property
    def title(self) -> str:
        """What people call it."""
        if self.queue:
            return f"durable queue {self.queue}"
        return f"durable {self.durable} of client {self.client}"


@dataclass(frozen=True)
class OldSubscribers:
    """Who was subscribed to some channels."""

    durables: tuple[OldDurable, ...]
    others: int
    """Subscriptions that are not durable: they end with the old server."""
    notes: tuple[str, ...] = ()
    """What was left out or put right, a sentence each."""


class KeptChannels(Protocol):
    """Where a server kept its channels: files, or a database."""

    notes: list[str]

    def clients(self) -> set[str]:
        """Give the ids of the clients that were connected."""

    def subscriptions(self, channel: str) -> list[SubscriptionRecord]:
        """Give the subscriptions of a channel, durable or not, with what each has not acknowledged."""


def from_store(store: KeptChannels, channels: Iterable[str]) -> OldSubscribers:
    """Read the durables of these channels from a store."""
    connected = store.clients()
    durables: list[OldDurable] = []
    notes: list[str] = []
    others = 0
    for channel in channels:
        queues: dict[str, list[SubscriptionRecord]] = defaultdict(list)
        for found in store.subscriptions(channel):
            if not found.keep:
                others += 1
            elif found.queue:
                queues[found.queue].append(found)
            else:
                durables.append(_durable(channel, found.client, found.durable, "", [found]))
        for queue, members in queues.items():
            # A member whose client is gone was left behind by an interruption; the old server would drop it. If there
            # is nobody else, its position is all that is known of the queue.
            ghosts = [item for item in members if item.client and item.client not in connected]
            alive = [item for item in members if item not in ghosts]
            if ghosts:
                what = "left out" if alive else "taken, as nobody else knows the position"
                who = ", ".join(sorted({item.client for item in ghosts}))
                notes.append(f"{channel}: members of the queue {queue} whose client is gone ({who}) were {what}")
            durables.append(_durable(channel, (alive or ghosts)[0].client, "", queue, alive or ghosts))
    durables.sort(key=lambda item: item.identity)
    return OldSubscribers(tuple(durables), others, (*store.notes, *notes))


def _durable(channel: str, client: str, durable: str, queue: str, members: list[SubscriptionRecord]) -> OldDurable:
    last = max(member.last_sent for member in members)
    pending = sorted({sequence for member in members for sequence in member.pending if 0 < sequence <= last})
    wishes = max(1, members[0].max_in_flight), max(1, members[0].ack_wait)
    return OldDurable(channel, client, durable, queue, *wishes, last, tuple(pending))


# -- the monitoring pages ----------------------------------------------------------------------------------------------


async def names_from_monitor(url: str) -> list[str]:
    """Ask the monitoring pages of a NATS Streaming server for its channels."""
    return _read_names(await _ask(url, "channelsz?limit=100000"), url)


def _read_names(content: bytes, url: str) -> list[str]:
    names = _read_page(content, url).get("names") or []
    if not isinstance(names, list):
        raise _no_page(url, "it does not list channels as NATS Streaming does")
    return [_checked(name, url) for name in names]


async def from_monitor(url: str, channels: Iterable[str]) -> OldSubscribers:
    """Read the durables of these channels from the monitoring pages of a server that runs."""
    return _read_subscribers(await _ask(url, "channelsz?subs=1&limit=100000"), url, set(channels))


def _read_subscribers(content: bytes, url: str, wanted: set[str]) -> OldSubscribers:
    page = _read_page(content, url)
    grouped: dict[tuple[str, str, str, str], list[dict[str, Any]]] = defaultdict(list)
    others = 0
    try:
        for channel in page.get("channels") or []:
            name = _checked(channel["name"], url)
            for found in channel.get("subscriptions") or []:
                if name in wanted and found["is_durable"]:
                    queue = str(found.get("queue_name", ""))
                    owner = "" if queue else str(found["client_id"])
                    grouped[name, owner, str(found.get("durable_name", "")), queue].append(found)
                elif name in wanted:
                    others += 1
        durables = tuple(_shown(*identity, members) for identity, members in sorted(grouped.items()))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise _no_page(url, "it does not list subscriptions as NATS Streaming does") from None
    return OldSubscribers(durables, others)


def _shown(channel: str, owner: str, durable: str, queue: str, members: list[dict[str, Any]]) -> OldDurable:
    wishes = max(1, int(members[0]["max_inflight"])), max(1, int(members[0]["ack_wait"]))
    last, unknown = (
        max(int(member["last_sent"]) for member in members),
        sum(int(member["pending_count"]) for member in members),
    )
    client = owner or str(members[0]["client_id"])
    return OldDurable(channel, client, durable, queue, *wishes, last, (), unknown)


def _checked(name: Any, url: str) -> str:
    if not isinstance(name, str) or not is_channel(name):
        raise _no_page(url, f"it lists a channel {name!r:.200}")
    return name


def _no_page(url: str, why: str) -> InputError:
    return InputError(f"{url} is not a monitoring page of NATS Streaming: {why}.", remedy="Check the address.")


async def _ask(url: str, page: str) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url!r} is not an address of a monitoring page.", remedy="Write it as http://host:8222.")

    def ask() -> bytes:
        with urllib.request.urlopen(f"{url.rstrip('/')}/streaming/{page}", timeout=_SECONDS) as answer:  # noqa: S310  # the scheme was checked
            content: bytes = answer.read(_PAGE_BYTES)
            return content

    try:
        return await asyncio.to_thread(ask)
    except (OSError, ValueError, HTTPException) as error:  # also whatever else listens there, such as NATS itself
        raise UnreachableError(
            f"The monitoring page at {url} does not answer: {str(error) or type(error).__name__:.200}.",
            remedy="Is it the address of monitoring, and is that on (-m 8222)? Else name the channels.",
        ) from None


def _read_page(content: bytes, url: str) -> dict[str, Any]:
    try:
        found = load_json(content)
    except ValueError:
        raise _no_page(url, "it does not answer with JSON") from None
    if not isinstance(found, dict):
        raise _no_page(url, "it does not answer with an object")
    return found
