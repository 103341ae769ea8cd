"""The generator's own books: what was sent, and what must come out of it at the other end. Pure: no I/O.

Everything follows from a seed, so that two runs send the same orders. Nothing here looks at what the pipeline does.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

__all__ = ["BROKEN", "Customer", "Document", "Ledger", "Order", "Volume"]

REGIONS = ("north", "east", "south", "west", "islands")
_FIRST = ("Ada", "Boris", "Carla", "Deniz", "Eva", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Lev")
_LAST = ("Abel", "Brandt", "Costa", "Dietz", "Eriksen", "Fuchs", "Garcia", "Horn", "Ito", "Jensen")
WINDOW = timedelta(minutes=1)
CATCH_UP = timedelta(seconds=20)  # how far the clock of the shop moves with each order that is drawn later
Key = TypeVar("Key", bound=Hashable)
BROKEN = ("not an order", "no amount", "no time", "unknown customer")


@dataclass(frozen=True)
class Volume:
    """How much traffic, and how much of it is of each awkward kind."""

    orders: int = 6000
    customers: int = 60
    documents: int = 48
    document_bytes: int = 2_500_000
    minutes: int = 60
    """How much time the orders span, by their own clocks."""
    repeated: float = 0.05
    """The share that is sent twice on purpose."""
    unacked: float = 0.01
    """The share whose sender dies before its ack and sends again."""
    legacy: float = 0.1
    """The share that comes through an old NATS Streaming client."""
    broken: float = 0.02
    """The share that is not an order."""
    seed: int = 7


@dataclass(frozen=True)
class Customer:
    """A customer."""

    customer: str
    name: str
    region: str

    def encode(self) -> bytes:
        """Give the message."""
        return json.dumps(self.__dict__).encode()


@dataclass(frozen=True)
class Order:
    """A message that is an order, or should be one."""

    order_id: str
    customer: str
    cents: int
    ordered: datetime
    way: str
    """How it is sent: once, twice, unacked, or legacy."""
    fault: str | None = None

    def encode(self) -> bytes:
        """Give the message, broken in the way that its fault says."""
        if self.fault == "not an order":
            return f"<order id={self.order_id!r}/>".encode()
        cents = "a lot" if self.fault == "no amount" else self.cents
        ordered = "yesterday" if self.fault == "no time" else self.ordered.isoformat().replace("+00:00", "Z")
        content = {"order_id": self.order_id, "customer": self.customer, "cents": cents, "ordered": ordered}
        return json.dumps(content).encode()


@dataclass(frozen=True)
class Document:
    """A scanned document: pages of noise, as a scanner gives them, with a form feed behind each."""

    name: str
    seed: int
    size: int

    def content(self) -> bytes:
        """Make the bytes; the same each time."""
        noise = random.Random(self.seed)  # noqa: S311  # a repeatable document, not a secret
        pages, left = [], self.size
        while left > 0:
            length = min(left, noise.randrange(150_000, 350_000))
            pages.append(noise.randbytes(length - 1).replace(b"\x0c", b"\x0d") + b"\x0c")
            left -= length
        return b"".join(pages)


@dataclass
class Ledger:
    """What was sent, and what follows from it."""

    volume: Volume
    start: datetime
    customers: list[Customer] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    digests: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    """Size, SHA-256 and pages of each document that was sent."""

    @classmethod
    def draw(cls, volume: Volume, start: datetime | None = None) -> Ledger:
        """Draw that much traffic; orders span its minutes from `start`, by default up to now."""
        dice = random.Random(volume.seed)  # noqa: S311  # repeatable traffic, not a secret
        begin = (start or datetime.now(UTC) - timedelta(minutes=volume.minutes + 45)).replace(second=0, microsecond=0)
        books = cls(volume, begin)
        books.customers = [
            Customer(f"c-{number:03}", f"{dice.choice(_FIRST)} {dice.choice(_LAST)}", dice.choice(REGIONS))
            for number in range(volume.customers)
        ]
        books.orders = list(books._orders(dice))
        books.documents = [
            Document(f"scan-{number:04}", dice.randrange(2**32), int(volume.document_bytes * dice.uniform(0.5, 1.5)))
            for number in range(volume.documents)
        ]
        return books

    def _orders(self, dice: random.Random) -> Iterator[Order]:
        volume = self.volume
        step = timedelta(minutes=volume.minutes) / max(volume.orders, 1)
        for number in range(volume.orders):
            # Clocks differ, and so orders come a little out of order.
            ordered = self.start + step * number + timedelta(seconds=dice.uniform(-45, 45))
            ordered = max(self.start, ordered).replace(microsecond=0)
            yield self._order(number, ordered, dice)
        # The last order of the day is half an hour later: it closes every minute before it.
        closing = self.start + timedelta(minutes=volume.minutes + 30)
        yield Order(f"o-{volume.orders:06}", "c-000", 4200, closing, "once")

    def _order(self, number: int, ordered: datetime, dice: random.Random) -> Order:
        volume = self.volume
        way = dice.choices(
            ("twice", "unacked", "legacy", "once"),
            (volume.repeated, volume.unacked, volume.legacy, 1 - volume.repeated - volume.unacked - volume.legacy),
        )[0]
        fault = dice.choice(BROKEN) if dice.random() < volume.broken else None
        customer = f"c-{min(int(dice.expovariate(4 / volume.customers)), volume.customers - 1):03}"
        if fault == "unknown customer":
            customer = "c-unknown"
        return Order(f"o-{number:06}", customer, dice.randrange(100, 50_000), ordered, way, fault)

    def draw_next(self, now: datetime) -> Order:
        """Draw one more order after all others, and enter it into the books.

        By its own clock it comes 20 s after the one before, but never later than now: the clock runs ahead until it
        has caught up, so that minutes close soon, and an order that somebody sends by the true time is never late.
        """
        number = len(self.orders)
        ordered = min(self.orders[-1].ordered + CATCH_UP, now).replace(microsecond=0)
        dice = random.Random(f"{self.volume.seed}/{number}")  # noqa: S311  # repeatable traffic, not a secret
        order = self._order(number, ordered, dice)
        self.orders.append(order)
        return order

    # -- what must come out --------------------------------------------------------------------------------------------

    @property
    def legacy(self) -> list[Order]:
        """Orders that go through the channel."""
        return [order for order in self.orders if order.way == "legacy"]

    @property
    def whole(self) -> list[Order]:
        """Orders that can be counted."""
        return [order for order in self.orders if order.fault is None]

    def note(self, document: Document, content: bytes) -> None:
        """Remember a document as it was sent."""
        self.digests[document.name] = (len(content), hashlib.sha256(content).hexdigest(), content.count(b"\x0c"))

    def regions(self) -> dict[str, str]:
        """Give the region of each customer."""
        return {customer.customer: customer.region for customer in self.customers}

    def revenue(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Give cents and orders of each region and minute that is closed when the last order is in."""
        regions = self.regions()
        # A minute is open while an order of it may come up to ten minutes late.
        closed = max(order.ordered for order in self.whole) - timedelta(minutes=10) - WINDOW
        minutes = ((order, order.ordered.replace(second=0)) for order in self.whole)
        return _sums(
            ((regions[order.customer], minute.strftime("%Y-%m-%dT%H:%M:%SZ")), order)
            for order, minute in minutes
            if minute <= closed
        )

    def top(self) -> dict[str, tuple[int, int]]:
        """Give cents and orders of each customer."""
        return _sums((order.customer, order) for order in self.whole)


def _sums(keyed: Iterable[tuple[Key, Order]]) -> dict[Key, tuple[int, int]]:
    """Add up the cents of the orders of each key, and count them."""
    sums: dict[Key, tuple[int, int]] = {}
    for key, order in keyed:
        cents, orders = sums.get(key, (0, 0))
        sums[key] = (cents + order.cents, orders + 1)
    return sums
