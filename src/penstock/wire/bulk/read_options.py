"""What a bulk read is asked for, as one checked value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import DataLossError, InputError
from penstock.wire import protocol
from penstock.wire.columns import MOST_ROWS
from penstock.wire.jetstream.answers import number, part

__all__ = ["ReadOptions", "allows_direct", "bounds"]


@dataclass(frozen=True)
class ReadOptions:
    """What to read and how, checked; `BulkConnection.read` says what each option means."""

    stream: str
    start: int
    end: int | None
    subjects: tuple[str, ...]
    batch_rows: int
    batch_bytes: int
    window_bytes: int
    headers: bool
    payloads: bool
    timeout: float
    on_loss: Callable[[DataLossError], None] | None
    info: dict[str, Any] | None = None
    escape: bool = False

    def __post_init__(self) -> None:
        if self.start < 1:
            raise InputError(f"start is {self.start}.", remedy="Sequences begin with 1.")
        if self.end is not None and self.end < self.start:
            raise InputError(f"The range [{self.start}, {self.end}) ends before it starts.", remedy="Swap its ends.")
        for name, least, most in (
            ("batch_rows", 1, MOST_ROWS),
            ("batch_bytes", 1, 1 << 30),  # with one message more, offsets of 32 bits still hold it
            ("window_bytes", 1024, 1 << 30),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise InputError(f"{name} is {value}.", remedy=f"Give a number between {least} and {most}.")
        if not self.timeout > 0:
            raise InputError(f"timeout is {self.timeout}.", remedy="Give a number of seconds above zero.")
        for subject in self.subjects:
            protocol.check_subject(subject, wildcards=True)

    def loss(self, start: int, first: int, last: int) -> DataLossError:
        """Say that messages from `start` on are gone, of a stream that holds what lies between `first` and `last`."""
        end = self.end if self.end is not None else last + 1
        what = f"Stream {self.stream} holds [{first}, {last + 1}), and messages of [{start}, {end}) are wanted."
        if self.subjects and start < first and end <= last + 1:
            what += f" Nobody knows whether any that is gone was on {', '.join(self.subjects)}."
        return DataLossError(
            what,
            remedy="Its limits, a purge or a restore took them away: start at what is there, or allow the loss.",
            stream=self.stream,
            start=start,
            end=end,
            first=first,
            last=last,
        )

    def not_given(self, count: int, start: int, end: int, first: int, last: int) -> DataLossError:
        """Say that the stream counts messages which it does not give."""
        return DataLossError(
            f"Stream {self.stream} counts {count} more messages in [{start}, {end}) than it gives: on the disk of its "
            "server they are damaged.",
            remedy="Bring it back from a backup or a replica; or allow the loss, and go on without them.",
            stream=self.stream,
            start=start,
            end=end,
            first=first,
            last=last,
        )

    def set_back(self, at: int, end: int, first: int, last: int) -> DataLossError:
        """Say that an older copy of the stream has taken its place while the range was being read."""
        return DataLossError(
            f"Stream {self.stream} ends with sequence {last} now, and reached {end - 1} when this read began: an older "
            "copy of it was brought back.",
            remedy=f"What this read gave, up to sequence {at - 1}, may be of either copy: drop it, and read again.",
            stream=self.stream,
            start=self.start,
            end=end,
            first=first,
            last=last,
        )

    def made_anew(self, created: str | None, first: int, last: int) -> DataLossError:
        """Say that another stream has taken the name while the range was being read."""
        return DataLossError(
            f"Stream {self.stream} was made anew at {created}, while it was being read.",
            remedy="What this read gave may be of either stream: drop it, and read again.",
            stream=self.stream,
            start=self.start,
            end=self.end,
            first=first,
            last=last,
        )


def allows_direct(info: dict[str, Any]) -> bool:
    """Tell whether a stream gives messages directly."""
    return bool(part(info, "config").get("allow_direct"))


def bounds(info: dict[str, Any]) -> tuple[int, int]:
    """Read the first and the last sequence of a stream."""
    state = part(info, "state")
    return number(state, "first_seq"), number(state, "last_seq")
