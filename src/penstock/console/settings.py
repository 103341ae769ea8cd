"""The settings of the console, as data: the command line, the console's own page and the docs read them from here."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from penstock.addresses import is_address
from penstock.errors import OptionError

__all__ = ["LOOPBACK", "Settings"]

LOOPBACK = "127.0.0.1"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Settings:
    """Where the console listens, and how much a page may ask and show. Checked here, before anything is opened."""

    host: str = LOOPBACK
    """The address to listen on: this machine alone, unless another one is named."""
    port: int = 0
    """The port to listen on; 0 takes one that is free."""
    names: tuple[str, ...] = ()
    """Further host names under which browsers may ask for it; addresses in numbers and `localhost` always may."""
    rows: int = 100
    """The most rows of one table; what is left out is counted, or reached with a link."""
    messages: int = 25
    """The most messages of one page."""
    lookups: int = 400
    """The most sequences that are looked at to fill a page of messages: gaps and markers of the Spark sink count."""
    message_bytes: int = 4 * 2**20
    """The most bytes of messages that one page fetches."""
    payload_bytes: int = 64 * 2**10
    """The most bytes of a payload that a page shows; the whole of it can be downloaded."""
    search_messages: int = 20_000
    """The most messages that one step of a search looks at; a link, or the page itself, goes on from there."""
    search_bytes: int = 64 * 2**20
    """The most bytes of messages that one step of a search fetches, but for the last block of it."""
    search_seconds: float = 2.0
    """Seconds after which a step of a search ends."""
    whole_bytes: int = 4 * 2**20
    """The most bytes of a payload in chunks that are put together for a page; the download has all of them."""
    subjects: int = 10_000
    """The most subjects that a stream may hold for them to be counted one by one."""
    scan_streams: int = 20
    """The most streams that are looked through for transfers: those written to last."""
    scan_messages: int = 2000
    """The most messages of a stream whose headers are looked at for transfers: the newest."""
    timeout: float = 5.0
    """Seconds for one answer of NATS."""
    page_timeout: float = 20.0
    """Seconds for a whole page."""
    pages: int = 8
    """The most pages that are made at the same time; others wait."""
    idle: float = 10.0
    """Seconds that a connection may take to send its request."""
    connections: int = 100
    """The most browsers and programs that may be connected; more are answered with 503."""

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not (is_address(self.host) or _NAME.fullmatch(self.host)):
            raise OptionError(
                f"host is {self.host!r}, which is neither an address nor a name.",
                remedy=f"Leave it out for {LOOPBACK}.",
                option="host",
                value=self.host,
            )
        names: Any = self.names  # a single text would be taken for names of one letter each
        if isinstance(names, str) or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
            raise OptionError(
                f"names is {names!r}, and not everything there is a host name.",
                remedy='Give names without port and scheme, as in ("console.example.com",).',
                option="names",
                value=names,
            )
        for field in fields(self):
            if field.name not in ("host", "names"):
                self._check_number(field.name, type(field.default))

    def _check_number(self, name: str, kind: type) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, int | kind) and not isinstance(value, bool)
        if name == "port":
            if not is_number or not 0 <= value <= 65535:
                raise OptionError(f"port is {value!r}.", remedy="Give 0 to 65535.", option=name, value=value)
        elif not is_number or not 0 < value < 2**40:
            remedy = f"Give a {'whole ' if kind is int else ''}number above 0."
            raise OptionError(f"{name} is {value!r}.", remedy=remedy, option=name, value=value)
