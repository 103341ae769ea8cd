"""Doing again what may be done twice, while NATS is away for a moment."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import DeadlineError, JetStreamError, PenstockError
from penstock.spark.line import Line
from penstock.wire.bulk.link import Deadline
from penstock.wire.jetstream.verdicts import may_ask_again

__all__ = ["recover", "steadily", "until_reached"]

_Result = TypeVar("_Result")


def until_reached(action: Callable[[], _Result], deadline: Deadline) -> _Result:
    """Make a connection, again and again while nobody answers."""
    return _again(action, deadline, lambda error: time.sleep(min(0.2, deadline.left)))


def recover(line: Line, error: PenstockError, deadline: Deadline) -> None:
    """Make a connection usable again after a passing error."""
    if isinstance(error, DeadlineError) or not isinstance(error, JetStreamError):
        line.drop()
    until_reached(line.restore, deadline)


def steadily(line: Line, action: Callable[[], _Result], patience: float) -> _Result:
    """Do something that may be done twice, again and again while the trouble is a passing one."""
    deadline = Deadline(patience)
    pause = 0.02

    def mend(error: PenstockError) -> None:
        nonlocal pause
        recover(line, error, deadline)
        time.sleep(min(pause * random.uniform(0.5, 1.5), deadline.left))  # noqa: S311  # spreads retries only
        pause = min(pause * 2, 1.0)

    return _again(action, deadline, mend)


def _again(action: Callable[[], _Result], deadline: Deadline, mend: Callable[[PenstockError], None]) -> _Result:
    while True:
        try:
            return action()
        except PenstockError as error:
            if not may_ask_again(error) or deadline.left == 0:
                raise
            mend(error)
