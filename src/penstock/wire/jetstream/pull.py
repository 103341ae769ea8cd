"""Pull requests of one consumer: what was asked for and is still to come, and what the server says of it.

A request asks for messages, on a reply subject that ends with its number::

    {"batch": n, "max_bytes": b, "expires": ns, "idle_heartbeat": ns, "no_wait": true, "group": g, "id": pin}

Messages come on subjects of their own and do not say whose they are, so they count for the oldest request. A status
comes on the reply subject. It ends its request, unless it is a heartbeat; as long as a request is out, something is
heard at least every heartbeat. Only a request whose bytes are used up to the last one ends without a word, so they are
counted here as the server counts: subject, reply subject, headers and payload. What is not heard, and what comes when a
leader moves, is trouble: the driver finds out whether the consumer is there, and then asks anew (`restart`) or gives up
(`error`). After that the requests before may still be answered, so somewhat more may come than was asked for; `check`
refuses what no server would send.

In a priority group that is pinned, the server delivers to one client. The first delivery says under which id; requests
that name it are served, those that name none wait until the pin is free, and those that name an old one end with 423.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import (
    DisconnectedError,
    InputError,
    JetStreamError,
    NotFoundError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.wire.jetstream.answers import Status, StatusKind
from penstock.wire.jetstream.verdicts import Verdict

__all__ = ["Pulls", "body"]

_NANO = 1_000_000_000
_AT_ONCE = 2  # requests: the second one is on its way while the first one is served
_SLACK = 0.5  # seconds that a heartbeat may be late, beyond one that is missed
_BEYOND = 16  # times what is asked for at once: more than requests that were given up can bring


def body(
    batch: int,
    *,
    max_bytes: int | None = None,
    expires: float | None = None,
    heartbeat: float | None = None,
    no_wait: bool = False,
    about: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Give a request for messages; `about` are the fields of priority groups."""
    fields = {
        "batch": batch,
        "max_bytes": max_bytes,
        "expires": None if expires is None else round(expires * _NANO),
        "idle_heartbeat": None if heartbeat is None else round(heartbeat * _NANO),
        "no_wait": no_wait or None,
    }
    return {name: value for name, value in fields.items() if value is not None} | (about or {})


class Pulls:
    """The requests of one reader of a consumer.

    `batch` and `max_bytes` bound what is asked for and held, `limit` what is asked for in all. `expires` is how long
    one request lasts, `heartbeat` how often the server shows that it is there. `pinned` says that the group is pinned.
    """

    def __init__(
        self,
        stream: str,
        consumer: str,
        *,
        batch: int,
        expires: float,
        heartbeat: float,
        now: float,
        max_bytes: int | None = None,
        limit: int | None = None,
        about: dict[str, Any] | None = None,
        pinned: bool = False,
    ) -> None:
        self.stream, self.consumer, self.pinned = stream, consumer, pinned
        self.batch = batch if limit is None else min(batch, limit)
        self.expires, self.heartbeat = expires, heartbeat
        self.max_bytes, self.limit = max_bytes, limit
        self.about = dict(about or {})
        self.error: PenstockError | None = None
        self.trouble = ""
        """Why nothing is asked for now."""
        self.trouble_since = 0.0
        self._left: dict[int, int] = {}  # what each request may still bring
        self._bytes_left: dict[int, int] = {}  # and how much, if there is a bound
        self._unasked = 0  # bytes that came since we asked last, and that no request was out for; if there is a bound
        self._number = self._came = 0
        self._heard_at = now

    @property
    def pin(self) -> str | None:
        """The id under which the server delivers to us in a pinned group; None while it does not."""
        return self.about.get("id")

    @property
    def outstanding(self) -> int:
        """How many messages were asked for and may still come."""
        return sum(self._left.values())

    # -- asking ---------------------------------------------------------------------------------------------------

    def want(self, held: int) -> int:
        """Say how many messages to ask for, `held` of them waiting to be read: none until half of a batch was read."""
        # Without a pin one request gets it, and others would wait for the time that they have left.
        at_once = 1 if self.pinned and self.pin is None else _AT_ONCE
        if self.trouble or self.error is not None or len(self._left) >= at_once:
            return 0
        here = held + self.outstanding
        want = self.batch - here
        if self.limit is not None:
            want = min(want, self.limit - self._came - self.outstanding)
        return want if want > 0 and (here == 0 or here < self.batch // 2) else 0

    def ask(self, count: int, now: float) -> tuple[int, bytes]:
        """Begin a request; give its number and what is sent."""
        if not self._left:
            self._heard_at = now
        self._number += 1
        self._left[self._number] = count
        if self.max_bytes is not None:
            self._unasked = 0
            self._bytes_left = {number: self._bytes_left[number] for number in self._left if number in self._bytes_left}
            self._bytes_left[self._number] = self.max_bytes
        asked = body(count, max_bytes=self.max_bytes, expires=self.expires, heartbeat=self.heartbeat, about=self.about)
        return self._number, json.dumps(asked).encode()

    # -- hearing --------------------------------------------------------------------------------------------------

    def came(self, now: float, count: int = 1, size: int = 0) -> None:
        """Take note of deliveries; if bytes are bounded, of one with its size."""
        self._heard_at = now
        self.trouble = ""
        self._came += count
        if not self._left:
            self._unasked += size
        while count and (oldest := next(iter(self._left), None)) is not None:
            taken = min(count, self._left[oldest])
            self._left[oldest] -= taken
            count -= taken
            if oldest in self._bytes_left:
                self._bytes_left[oldest] -= size
            if not self._left[oldest] or self._bytes_left.get(oldest, 1) <= 0:
                del self._left[oldest]

    def check(self, held: int) -> bool:
        """Tell whether there is room for one more delivery, with `held` of them waiting to be read; fail if not."""
        bound = self.max_bytes
        if held < _BEYOND * self.batch and (bound is None or self._unasked < _BEYOND * bound):
            return True
        self.fail(
            RemoteProtocolError(
                f"{held:,} deliveries of consumer {self.consumer} of {self.stream} wait to be read, and {self.batch:,} "
                "were asked for at a time.",
                remedy="Is a nats-server at the other end? What is not acknowledged comes again.",
            )
        )
        return False

    def told(self, number: int, status: Status, now: float, *, idle: bool = True) -> None:
        """Take note of a status of a request; `idle` says that nothing waits to be read or is worked on."""
        self._heard_at = now
        if not status.ends:
            self.trouble = ""
            return
        ours = self._left.pop(number, None) is not None
        if status.kind is StatusKind.TOO_LARGE:
            if idle:
                self.fail(
                    InputError(
                        f"The next message of {self.stream} is larger than max_bytes ({self.max_bytes}).",
                        remedy="Raise max_bytes.",
                    )
                )
        elif status.kind is StatusKind.DELETED:
            self.fail(NotFoundError(f"Consumer {self.consumer} of {self.stream} was deleted.", code=404))
        elif status.kind is StatusKind.PINNED:
            if ours:  # all that is out names the same pin, which another client has now, or nobody
                self.about.pop("id", None)
                self._left.clear()
        elif status.kind in (StatusKind.NONE, StatusKind.EXPIRED, StatusKind.COMPLETED):
            pass  # it is over, and more may be asked for
        elif status.verdict is Verdict.PASSING:
            self.begin_trouble(f"{status.code} {status.description}".strip(), now)
        elif ours:
            self.fail(
                JetStreamError(
                    f"The server refuses to deliver: {status.code} {status.description}.",
                    code=status.code,
                    description=status.description,
                )
            )

    def fail(self, error: PenstockError) -> None:
        """Take note that there will be no more; the first reason counts."""
        self.error = self.error or error

    # -- trouble --------------------------------------------------------------------------------------------------

    def is_in_trouble(self, now: float) -> bool:
        """Tell whether nothing can be asked for, having looked at how long the server has been silent."""
        quiet = now - self._heard_at
        if self._left and quiet > 2 * self.heartbeat + _SLACK:
            self.begin_trouble(f"no heartbeat for {quiet:.1f} s", now)
        return bool(self.trouble)

    def begin_trouble(self, what: str, now: float) -> None:
        """Take note that the server does not answer as it should, or that the connection was made anew."""
        if not self.trouble:
            self.trouble, self.trouble_since = what, now

    def restart(self, now: float) -> None:
        """Forget all requests: the consumer is there, and is asked anew."""
        self._left.clear()
        self.trouble = ""
        self._heard_at = now

    def give_up(self, why: object, patience: float, now: float) -> None:
        """Fail if the trouble lasts for longer than `patience`."""
        if now - self.trouble_since > patience:
            self.fail(
                DisconnectedError(
                    f"Consumer {self.consumer} of {self.stream} gave no sign for {patience:g} s: {why}",
                    remedy="Is the server running, and does the stream have a leader?",
                )
            )
