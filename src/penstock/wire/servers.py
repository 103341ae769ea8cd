"""The addresses of a cluster: those that were given, those that its servers told, and when each may be tried. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import LinkError, LoginError, TlsError, UnreachableError
from penstock.options import ConnectionOptions

__all__ = ["Address", "Servers", "most_telling"]

_ADDRESS = re.compile(r"[!-~]{1,300}")  # printable ASCII without blanks
MOST_LEARNT = 1000  # addresses that are kept of what servers tell
BRIEF = 2  # connections in a row that may end as soon as they stood before the server gets a pause
JITTER = 0.25  # share of the wait that is left to chance, so that a thousand clients do not come back at once


@dataclass
class Address:
    """One address, and how it went there."""

    url: str
    given: bool
    attempts: int = 0
    """How often it was tried since a connection to it last stood."""
    allowed: float = 0.0
    """When it may be tried again, in the caller's clock."""
    stood: float = 0.0
    """When a connection to it last began to stand."""
    brief: int = 0
    """How many connections to it in a row ended as soon as they stood."""


class Servers:
    """All known addresses of one connection; `options` say how often and how soon each is tried again."""

    def __init__(self, options: ConnectionOptions, chance: random.Random | None = None) -> None:
        self._options = options
        self._chance = chance or random.Random()  # noqa: S311  # spreads attempts only
        given = [Address(url, given=True) for url in options.urls]
        if not options.keep_order:
            self._chance.shuffle(given)
        self._known = {address.url: address for address in given}

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses that are known now."""
        return tuple(self._known)

    def learn(self, info: Mapping[str, Any], url: str) -> tuple[str, ...]:
        """Take the addresses that an INFO from `url` tells, forget those that it no longer tells; give the new ones."""
        scheme = urlsplit(url).scheme
        told = info.get("ws_connect_urls" if scheme in ("ws", "wss") else "connect_urls") or ()
        found = list(dict.fromkeys(_urls(told, scheme)))[:MOST_LEARNT]
        for old in [address for address in self._known.values() if not address.given]:
            if old.url not in found and old.url != url:
                del self._known[old.url]
        fresh = [item for item in found if item not in self._known]
        self._chance.shuffle(fresh)
        for item in fresh:
            self._known[item] = Address(item, given=False)
        return tuple(fresh)

    def round(self) -> list[Address]:
        """Give all addresses once, those that were given first."""
        return sorted(self._known.values(), key=lambda address: not address.given)

    def next(self, now: float) -> tuple[Address, float] | None:
        """Give the address to try next and how many seconds to wait before; None if all were tried enough."""
        most = self._options.reconnect_attempts
        open_ones = [item for item in self._known.values() if most < 0 or item.attempts < most]
        if not open_ones:
            return None
        found = min(open_ones, key=lambda item: (max(item.allowed, now), item.attempts))
        return found, max(0.0, found.allowed - now)

    def failed(self, address: Address, now: float) -> None:
        """Note an attempt that came to nothing."""
        address.attempts += 1
        wait = self._options.reconnect_wait
        address.allowed = now + wait * (1 + JITTER * self._chance.random())

    def stands(self, url: str, now: float) -> None:
        """Note that a connection stands there."""
        if (address := self._known.get(url)) is not None:
            address.attempts = 0
            address.allowed = address.stood = now

    def lost(self, url: str, now: float) -> None:
        """Note that the connection there is gone: others come first, and it gets a moment itself.

        One that lets in and hangs up again and again gets as long as one that lets nobody in.
        """
        if (address := self._known.get(url)) is not None:
            wait = self._options.reconnect_wait
            address.brief = address.brief + 1 if now - address.stood < wait else 0
            if address.brief > BRIEF:
                address.allowed = now + wait * (1 + JITTER * self._chance.random())
            else:
                short = min(wait, 0.1) if len(self._known) == 1 else wait
                address.allowed = now + short * JITTER * self._chance.random()


def _urls(told: Iterable[object], scheme: str) -> Iterable[str]:
    for item in told:
        if not isinstance(item, str) or not _ADDRESS.fullmatch(item):
            continue
        try:
            parts = urlsplit(f"{scheme}://{item}")
            if parts.hostname and parts.port and not parts.username and parts.netloc == item:
                yield f"{scheme}://{item}"
        except ValueError:
            continue


def most_telling(failures: list[LinkError]) -> LinkError:
    """Of what went wrong at several addresses, give what says most: a refusal tells more than a dead address."""
    for kind in (LoginError, TlsError):
        if (found := next((error for error in failures if isinstance(error, kind)), None)) is not None:
            return found
    return next((error for error in failures if not isinstance(error, UnreachableError)), failures[0])
