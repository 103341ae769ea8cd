"""A bulk connection that sits out an outage: a node that restarts, a leader that is being chosen.

Everything that the source asks may be asked again, so a request that failed is repeated until it works or the patience
is over. A query outlives a short outage so; a long one ends it with the sentence that says why.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.errors import PenstockError
from penstock.options import ConnectionOptions
from penstock.wire import protocol
from penstock.wire.bulk import BulkConnection
from penstock.wire.jetstream.verdicts import may_ask_again

__all__ = ["PatientConnection"]

log = logging.getLogger("penstock.spark")

Answer = TypeVar("Answer")


class PatientConnection(BulkConnection):
    """A connection whose requests are repeated for `patience` seconds.

    The first connection is made at once or not at all, unless `waits` is given: a wrong address should be told soon.
    """

    def __init__(self, options: ConnectionOptions, patience: float, *, waits: bool = False) -> None:
        self.patience = patience
        if waits:
            self._patiently(lambda: super(PatientConnection, self).__init__(options))
        else:
            super().__init__(options)

    def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> protocol.Message:
        """Ask and give the first answer, through an outage."""
        ask = super().request
        return self._patiently(lambda: ask(subject, payload, headers=headers, timeout=timeout))

    def api(self, method: str, body: object = None, *, timeout: float | None = None) -> dict[str, Any]:
        """Call the JetStream API, through an outage and while a leader is being chosen."""
        ask = super().api
        return self._patiently(lambda: ask(method, body, timeout=timeout))

    def _patiently(self, work: Callable[[], Answer]) -> Answer:
        deadline, pause = time.monotonic() + self.patience, 0.05
        while True:
            try:
                return work()
            except PenstockError as error:
                if not may_ask_again(error) or time.monotonic() + pause > deadline:
                    raise
                if pause > 0.5:
                    log.warning("NATS does not answer: %s Trying on.", error)
            time.sleep(pause)
            pause = min(1.0, pause * 2)
