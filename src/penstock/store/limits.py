"""What the limits of a stream remove from a store whose index is lost: the server applies them again at its start.

They are applied as of the time of the newest message: a store that was found after a year still says what the stream
held when it was last written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.durations import parse_duration
from penstock.errors import InputError
from penstock.store.records import Records, key_of
from penstock.wire.jetstream import names

if TYPE_CHECKING:
    from penstock.store.graves import Graves
    from penstock.store.stored import Segment

__all__ = ["beyond_limits"]

_SECONDS = re.compile(r"[0-9]+")
_TTL_HEADER = names.TTL.encode()


def beyond_limits(
    name: str, config: dict[str, Any], segments: Iterable[Segment], dead: Graves, newest: int
) -> Iterator[int]:
    """Give the sequences that limits have removed; `newest` is the time of the newest message in microseconds."""
    most, size, per_subject = (config.get(key) or 0 for key in ("max_msgs", "max_bytes", "max_msgs_per_subject"))
    age, ttl = (config.get("max_age") or 0) // 1000, bool(config.get("allow_msg_ttl"))
    if max(most, size, per_subject, age) <= 0 and not ttl:
        return
    messages = total = 0
    of_subject: Counter[bytes] = Counter()
    for segment in sorted(segments, key=lambda each: each.number, reverse=True):
        for sequence, subject, stored, time, lives in _rows(name, segment, ttl):
            if sequence in dead:
                continue
            # What was removed for another reason was gone before the total counted it.
            if (age > 0 and time < newest - age) or time + lives < newest:
                yield sequence
                continue
            of_subject[subject] += 1
            if 0 < per_subject < of_subject[subject]:
                yield sequence
                continue
            messages += 1
            total += stored
            if 0 < most < messages or 0 < size < total:
                yield sequence


def _rows(name: str, segment: Segment, ttl: bool) -> Iterator[tuple[int, bytes, int, int, int]]:
    """Give the messages of a block, newest first: sequence, subject, bytes in the store, time, how long it lives."""
    records = Records(0, 1 << 62, max_rows=1 << 62, max_bytes=1 << 62, headers=True, verify=False, sized=True)
    records.open(key_of(name, segment.number))
    content = segment.place.load()
    position, parts = records.take(content, 0, len(content)), []
    while records.rows:  # more than one part if its subjects are very long
        parts.append((records.close(), records.stored_sizes()))
        records.restart()
        position = records.take(content, position, len(content))
    for rows, sizes in reversed(parts):
        sequences, times = (memoryview(rows[key]).cast("B").cast("q") for key in ("sequence", "time"))
        subjects = rows["subject"]
        of_subject = memoryview(subjects[0]).cast("B").cast("i")
        lives = _lives(rows) if ttl else {}
        for place in range(len(sequences) - 1, -1, -1):
            subject = bytes(subjects[1][of_subject[place] : of_subject[place + 1]])
            yield sequences[place], subject, sizes[place], times[place], lives.get(place, 1 << 62)


def _lives(rows: dict[str, Any]) -> dict[int, int]:
    """Give how long messages live that say so, in microseconds, by their row."""
    maps, lists = (memoryview(rows[key]).cast("B").cast("i") for key in ("header_maps", "header_lists"))
    keys, values = rows["header_names"], rows["header_values"]
    of_name, of_value = (memoryview(each[0]).cast("B").cast("i") for each in (keys, values))
    found = {}
    for row in range(rows["rows"]):
        for name in range(maps[row], maps[row + 1]):
            if bytes(keys[1][of_name[name] : of_name[name + 1]]) == _TTL_HEADER:
                first = lists[name]
                text = bytes(values[1][of_value[first] : of_value[first + 1]]).decode("ascii", "replace")
                found[row] = _microseconds(text)
    return found


def _microseconds(text: str) -> int:
    """Read a TTL as the server does: seconds, a duration, or never."""
    if text == "never":
        return 1 << 62
    try:
        return int(float(text) if _SECONDS.fullmatch(text) else parse_duration(text, option=names.TTL)) * 1_000_000
    except InputError:
        return 1 << 62
