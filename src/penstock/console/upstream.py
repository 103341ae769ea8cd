"""The console's connection to NATS: made when a page needs it, and made again when a later page does."""

from __future__ import annotations

import asyncio
import logging
import time

from penstock.connection import Connection, connect
from penstock.errors import DisconnectedError, PenstockError
from penstock.options import ConnectionOptions

__all__ = ["Upstream"]

log = logging.getLogger("penstock.console")

_REST = 1.0  # seconds after a failure in which nobody tries again: many pages may ask at once


class Upstream:
    """Gives a client that is connected, or says at once why there is none."""

    def __init__(self, options: ConnectionOptions, *, timeout: float) -> None:
        self.given = options
        """What it was made with: for those who connect by themselves."""
        self.options = options.replace(
            connect_timeout=min(options.connect_timeout, timeout),
            request_timeout=min(options.request_timeout, timeout),
            # A page that wants NATS tries again; attempts while nobody looks would only fill the log.
            reconnect=False,
        )
        self._client: Connection | None = None
        self._lost = False
        self._lock = asyncio.Lock()
        self._failed: tuple[float, PenstockError] | None = None

    async def client(self) -> Connection:
        """Give the connection; an error where NATS does not answer."""
        async with self._lock:
            if self._client is not None and self._client.is_closed:
                self._client, self._lost = None, True
            if self._client is None:
                self._client = await self._connect()
                if self._lost:
                    log.warning("Connected to %s again.", self.options.url)
                self._lost = False
            if not self._client.is_connected:
                raise DisconnectedError(
                    f"The connection to {self.options.url} is just going.", remedy="Is the server still running?"
                )
            return self._client

    async def _connect(self) -> Connection:
        if self._failed is not None and time.monotonic() - self._failed[0] < _REST:
            raise self._failed[1]
        try:
            client = await connect(self.options)
        except PenstockError as error:
            self._failed = time.monotonic(), error
            raise
        self._failed = None
        return client

    async def close(self) -> None:
        """Close the connection."""
        async with self._lock:
            if self._client is not None:
                await self._client.close()
                self._client = None
