"""What one client of a benchmark is told: how many messages of which size, where to, and how. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.errors import InputError
from penstock.options import ConnectionOptions

__all__ = ["ClientJob", "Subjects", "shares"]


@dataclass(frozen=True)
class Subjects:
    """The subject of each message: one for all, or one with a number behind it."""

    base: str
    many: bool = False
    most: int = 100_000
    """How many there are of those with a number; 0 for as many as messages."""
    randomize: bool = False

    @property
    def pattern(self) -> str:
        """What a subscription or a stream needs to get them all."""
        return f"{self.base}.*" if self.many else self.base

    def of(self, number: int) -> str:
        """Give the subject of a message."""
        if not self.many:
            return self.base
        if not self.most:
            return f"{self.base}.{number}"
        chosen = random.randrange(self.most) if self.randomize else number % self.most  # noqa: S311  # no secret
        return f"{self.base}.{chosen:0{len(str(self.most))}}"


@dataclass(frozen=True)
class ClientJob:
    """The part of one client. It is pickled into the process that does it; its repr shows no login."""

    work: str
    """The loop, as module.function of this room."""
    options: ConnectionOptions
    messages: int
    payload: bytes = field(default=b"", repr=False)
    subjects: Subjects = Subjects("")
    client: int = 0
    first: int = 0
    """How many messages the clients before this one have: numbers of messages differ between clients."""
    headers: Mapping[str, list[str]] = field(default_factory=dict)
    sleep: float = 0.0
    throughput: float = 0.0
    """Messages a second of this client at the most; 0 for no bound."""
    patience: float = 30.0
    """Seconds without any progress after which it is given up."""
    name: str = ""
    """The stream, bucket, queue or cluster."""
    consumer: str = ""
    batch: int = 500
    acks: str = "explicit"
    double_ack: bool = False
    filters: tuple[str, ...] = ()
    ids: bool = False
    randomize: int = 0
    mode: str = ""
    window: int = 64
    elements: int = 0

    @property
    def size(self) -> int:
        """The bytes of a message."""
        return len(self.payload)

    def each_key(self) -> Iterator[str]:
        """Give the keys of a bucket that this client works on: its own in order, or any below `randomize`."""
        for number in range(self.first, self.first + self.messages):
            yield str(random.randrange(self.randomize) if self.randomize else number)  # noqa: S311  # no secret


def shares(messages: int, clients: int) -> list[int]:
    """Cut a number of messages into the parts of clients; none of them has nothing to do."""
    if clients > messages:
        what = f"There are {clients:,} clients for {messages:,} messages."
        raise InputError(what, remedy="Give at least one message to each: raise --msgs, or lower --clients.")
    part, rest = divmod(messages, clients)
    return [part + (number < rest) for number in range(clients)]
