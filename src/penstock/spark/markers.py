"""What the exactly-once sink keeps in the stream beside the rows, as bytes: pure, and frozen by golden files.

Markers live under a root of their own in the stream that takes the rows, because only messages of one stream commit
together. For stream S and query Q::

    $PENSTOCK.S.origin                 the first message of a stream that was empty: the others come and go behind it,
                                       and the stream's first sequence stays where it is
    $PENSTOCK.S.Q.head                 one message: which batch is written, by which run, and how far
    $PENSTOCK.S.Q.anchor               stored just before the head that begins a batch; older than every journal of it
    $PENSTOCK.S.Q.<epoch>.<p>.<lane>   a task's right to write rows of partition p: its opening, or who took it since
    $PENSTOCK.S.Q.<epoch>.<p>.<id>     the journal of one batch of rows, stored with them while a lane is the task's
    $PENSTOCK.S.Q.<epoch>.claims.<p>-<part>  on replay: which rows of the journals partition p takes for its own
    $PENSTOCK.S.Q.<epoch>.claims.last  the fence of the claims

The epoch is the sequence of the head under which a run writes. No subject needs more than its last message, so that
streams work which keep no more. The markers of the last batch stay until the next one begins.

A micro-batch of few rows is stored by the driver in one atomic batch: anchor, rows, one journal (of epoch 0, because
there was none), and the head that says that it is done. Such a head says how far behind its anchor it stands.

A head of version 1 has neither starts nor a tally (`rows`, `sum`, `lacks`), and left no journals behind when it was
done. It is read, and never written. A head of version 2 follows its anchor at once, or says where that is; one that
stands further behind has version 3. A Penstock that knows an older version refuses a newer one, and says so.

A body is one line of JSON and, behind it, bytes::

    origin    {"v":1}
    head      {"v":2,"batch":7,"run":"...","state":"done","since":41,"past":[],"start":"...","starts":[],
               "rows":998,"sum":"...","lacks":0}
              version 3 only: "behind":203
    anchor    {"v":1,"batch":7}
    opening   {"v":1,"kind":"open","run":"...","task":4}
    journal   {"v":1,"kind":"rows","id":"...","rows":998}         + 16 bytes of digest a row
              objects only, ids of their chunks: "begun":[], "stored":[] (of those, described now), "old":[] (replaced)
    seal      {"v":1,"kind":"seal","run":"..."}
    fence     {"v":1,"kind":"claims","partition":3}
    claim     {"v":1,"kind":"claim","partition":3,"part":1,"parts":1,"rows":40}
              + for each journal: its sequence (8 bytes), its rows (2 bytes), a bit a row; little endian

docs/why/exactly-once.md says why, with the diagram of states.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from penstock.errors import RemoteProtocolError
from penstock.json_text import load_json
from penstock.wire.jetstream.names import TTL

__all__ = [
    "DIGEST_SIZE",
    "MARKER_ROOT",
    "VERSION",
    "Head",
    "MarkerSubjects",
    "State",
    "Tally",
    "anchor_body",
    "claim_bodies",
    "fence_body",
    "is_marker",
    "journal_body",
    "marker_filter",
    "marker_headers",
    "opening_body",
    "origin_body",
    "origin_subject",
    "read_claim",
    "read_lane",
    "seal_body",
]

MARKER_ROOT = "$PENSTOCK"
VERSION = 1
HEAD_VERSION = 2
WHOLE_VERSION = 3  # of a head that stands further behind its anchor
DIGEST_SIZE = 16
PAST = 100  # how many replaced runs a head remembers; a batch that was tried more often has other troubles
STARTS = 10  # how many starts of the query a head remembers besides the last one
_CLAIM = struct.Struct("<QH")
_MODULUS = 1 << (8 * DIGEST_SIZE)

State = Literal["open", "sealing", "replay", "done", "changed"]


def marker_filter(stream: str) -> str:
    """Give the subject that covers every marker in a stream."""
    return f"{MARKER_ROOT}.{stream}.>"


def origin_subject(stream: str) -> str:
    """Give the subject of the one marker that belongs to no query."""
    return f"{MARKER_ROOT}.{stream}.origin"


def origin_body() -> bytes:
    """Write that marker."""
    return _line()


def marker_headers(keep: bool) -> dict[str, str]:
    """Give the headers of every marker; `keep`: it must outlive an age limit of the stream."""
    return {TTL: "never"} if keep else {}


def is_marker(subject: str) -> bool:
    """Tell a marker from a message."""
    return subject.startswith(f"{MARKER_ROOT}.")


class MarkerSubjects:
    """The subjects of one query in one stream."""

    def __init__(self, stream: str, query: str) -> None:
        self._root = f"{MARKER_ROOT}.{stream}.{query}"
        self.all = f"{self._root}.>"
        """A filter for every marker of the query."""
        self.head = f"{self._root}.head"
        """The one message that says where the query is."""
        self.anchor = f"{self._root}.anchor"
        """The message whose loss tells that journals may be lost."""

    def of_task(self, epoch: int, partition: int, last: int | str = "*") -> str:
        """A lane of a partition, by its number; a journal, by the id of its batch; or a filter for all of these."""
        return f"{self._root}.{epoch}.{partition}.{last}"

    def is_of_task(self, subject: str) -> bool:
        """Tell lanes and journals from the other markers of the query."""
        parts = subject.removeprefix(f"{self._root}.").split(".")
        return len(parts) == 3 and parts[1] != "claims"

    def of_claims(self, epoch: int, last: str = "*") -> str:
        """A part of the claims of an epoch; `last`, the fence that every claim replaces; or a filter for all."""
        return f"{self._root}.{epoch}.claims.{last}"


@dataclass(frozen=True)
class Tally:
    """How many rows there are, and the sum of their digests, which is the same in any order."""

    rows: int = 0
    sum: int = 0
    """Modulo 2¹²⁸, as whole numbers in little endian."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.rows + other.rows, (self.sum + other.sum) % _MODULUS)


@dataclass(frozen=True)
class Head:
    """Where a query is: the batch it writes, the run that writes it, and how far that is."""

    batch: int
    """The number of the micro-batch."""
    run: str
    """One execution of the batch: every start of it on the driver makes a new name."""
    state: State
    """`open`: being written for the first time. `sealing`: an earlier run left rows, and its tasks are being locked
    out. `replay`: that is done, and the rest is being written. `done`: every row is stored. `changed`: every row is
    stored, and rows of an earlier run that this one did not have."""
    since: int = 0
    """The sequence of the batch's anchor; 0 in the head that came with it, which stands `behind` it."""
    past: tuple[str, ...] = ()
    """Runs of the same batch that were replaced."""
    start: str = ""
    """The start of the query that the run belongs to; a start has many batches."""
    starts: tuple[str, ...] = ()
    """Earlier starts, which must not write any more."""
    tally: Tally | None = None
    """The rows of the batch, once it is done or found changed."""
    lacks: int = 0
    """If rows changed: how many of those that are stored the last run did not have."""
    behind: int = 1
    """How many sequences a head that came with its anchor stands behind it."""
    sequence: int = 0
    """Where this head is stored; not part of its body."""
    time: str = ""
    """When it was stored, as the server writes it; not part of its body."""

    @property
    def anchor(self) -> int:
        """The sequence of the batch's anchor."""
        return self.since or self.sequence - self.behind

    @property
    def replay(self) -> bool:
        """Whether an earlier run may have written rows of this batch."""
        return self.state == "replay"

    @property
    def writable(self) -> bool:
        """Whether rows are stored under this head; none are if all of them are."""
        return self.state in ("open", "replay")

    def body(self) -> bytes:
        """Write the head."""
        fields: dict[str, Any] = {"batch": self.batch, "run": self.run, "state": self.state, "since": self.since}
        fields |= {"past": list(self.past[-PAST:]), "start": self.start, "starts": list(self.starts[-STARTS:])}
        if self.tally is not None:
            fields |= {"rows": self.tally.rows, "sum": f"{self.tally.sum:032x}", "lacks": self.lacks}
        if self.since or self.behind == 1:
            return _line(HEAD_VERSION, **fields)
        return _line(WHOLE_VERSION, **fields, behind=self.behind)

    @classmethod
    def read(cls, body: bytes, sequence: int, time: str = "") -> Head:
        """Read a head; RemoteProtocolError if it is something else."""
        fields, _ = _split(body, WHOLE_VERSION)
        try:
            if fields["state"] not in get_args(State):
                raise ValueError(fields)
            return cls(
                batch=int(fields["batch"]),
                run=str(fields["run"]),
                state=fields["state"],
                since=int(fields["since"]),
                behind=int(fields.get("behind", 1)),
                past=tuple(str(item) for item in fields["past"]),
                start=str(fields.get("start", "")),
                starts=tuple(str(item) for item in fields.get("starts", ())),
                tally=Tally(int(fields["rows"]), int(fields["sum"], 16)) if "rows" in fields else None,
                lacks=int(fields.get("lacks", 0)),
                sequence=sequence,
                time=time,
            )
        except (KeyError, TypeError, ValueError):
            raise _strange("head") from None


def anchor_body(batch: int) -> bytes:
    """Write an anchor."""
    return _line(batch=batch)


def opening_body(run: str, task: int) -> bytes:
    """Write the message with which a task takes a lane."""
    return _line(kind="open", run=run, task=task)


def seal_body(run: str) -> bytes:
    """Write the message with which a later run closes a lane of an earlier one."""
    return _line(kind="seal", run=run)


def fence_body(partition: int) -> bytes:
    """Write the fence of the claims."""
    return _line(kind="claims", partition=partition)


def journal_body(batch_id: str, digests: bytes, chunks: Mapping[str, Sequence[str]] | None = None) -> bytes:
    """Write the journal of one batch of rows; `chunks` of objects by what became of them: begun, stored, old."""
    noted: dict[str, Any] = {name: list(nuids) for name, nuids in (chunks or {}).items() if nuids}
    return _line(kind="rows", id=batch_id, rows=len(digests) // DIGEST_SIZE, **noted) + digests


def read_lane(body: bytes) -> tuple[dict[str, Any], bytes]:
    """Read a message of a lane: its fields, and the digests if it is a journal."""
    fields, rest = _split(body)
    kind = fields.get("kind")
    if kind not in ("open", "rows", "seal") or (kind == "rows" and len(rest) != fields.get("rows", -1) * DIGEST_SIZE):
        raise _strange("lane")
    return fields, rest


def claim_bodies(partition: int, taken: dict[int, list[bool]], size: int) -> list[bytes]:
    """Write the claims of a partition: for each journal, by its sequence, which rows; in parts of about `size` bytes.

    A partition that takes nothing says so, too: one part with no entries.
    """
    parts, counts = [bytearray()], [0]
    for sequence, rows in sorted(taken.items()):
        bits = sum(1 << place for place, mine in enumerate(rows) if mine).to_bytes((len(rows) + 7) // 8, "little")
        if parts[-1] and len(parts[-1]) + len(bits) > size:
            parts.append(bytearray())
            counts.append(0)
        parts[-1] += _CLAIM.pack(sequence, len(rows)) + bits
        counts[-1] += sum(rows)
    return [
        _line(kind="claim", partition=partition, part=number, parts=len(parts), rows=counts[number - 1])
        + bytes(content)
        for number, content in enumerate(parts, start=1)
    ]


def read_claim(body: bytes) -> tuple[dict[str, Any], dict[int, list[bool]]]:
    """Read one part of a claim: its fields, and for each journal which rows it takes."""
    fields, rest = _split(body)
    taken: dict[int, list[bool]] = {}
    place = 0
    if fields.get("kind") not in ("claim", "claims"):
        raise _strange("claim")
    while place < len(rest):
        if len(rest) - place < _CLAIM.size:
            raise _strange("claim")
        sequence, rows = _CLAIM.unpack_from(rest, place)
        place += _CLAIM.size
        size = (rows + 7) // 8
        if len(rest) - place < size:
            raise _strange("claim")
        bits = int.from_bytes(rest[place : place + size], "little")
        taken[sequence] = [bool(bits >> row & 1) for row in range(rows)]
        place += size
    return fields, taken


def _line(version: int = VERSION, **fields: Any) -> bytes:
    return json.dumps({"v": version, **fields}, separators=(",", ":")).encode() + b"\n"


def _split(body: bytes, newest: int = VERSION) -> tuple[dict[str, Any], bytes]:
    bulk, _, rest = body.partition(b"\n")
    try:
        fields = load_json(bulk)
    except ValueError:
        raise _strange("marker") from None
    if not isinstance(fields, dict):
        raise _strange("marker")
    if fields.get("v") not in range(VERSION, newest + 1):
        raise RemoteProtocolError(
            f"A marker of the Spark sink has version {fields.get('v')!r}, and this Penstock knows {newest}.",
            remedy="Run the query with the Penstock that wrote it, or a newer one.",
        )
    return fields, rest


def _strange(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"A message among the markers of the Spark sink is no {what}.",
        remedy=f"Somebody else published under {MARKER_ROOT}; only the sink may.",
        place=0,
    )
