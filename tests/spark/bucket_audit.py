"""The audit of the sink of buckets: counts of keys that are being killed all the time, and another writer beside.

    python -m tests.spark.bucket_audit --kills 100 --seed 7

The query counts the numbers of each key and puts the counts in update mode, so that a key's count only grows. All
values of all keys are kept. Lost is a number that a key's last count does not have; repeated is a count that stands
behind one that is not smaller: an old value that was brought back, or one that was stored twice. A service writes to
the same keys all the time; what stands behind its value and is old is counted likewise.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
from itertools import pairwise
from typing import Any, ClassVar

from penstock.buckets.key_stream import bucket_stream
from penstock.errors import PenstockError
from penstock.options import ConnectionOptions
from penstock.spark.connections import TaskConnection
from penstock.spark.markers import marker_filter
from penstock.spark.sink_options import SinkOptions
from tests.live.keying import history, put
from tests.spark.audit import KINDS, Audit, Result, audit_in_rounds
from tests.spark.java import set_up_java

KEYS = 400
SERVICE = b"service"


def account_keys(sent: int, found: dict[str, list[bytes | None]]) -> tuple[int, int]:
    """Count numbers below `sent` that are in no count, and counts that are not above those before them."""
    lost = repeated = 0
    for key in range(min(KEYS, sent)):
        counts = [int(value) for value in found.get(str(key), []) if value is not None and value != SERVICE]
        lost += abs(len(range(key, sent, KEYS)) - (counts[-1] if counts else 0))
        repeated += sum(1 for before, after in pairwise(counts) if after <= before)
    return lost, repeated


class Service(threading.Thread):
    """Writes to keys of the bucket, as somebody else who does not know the query."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.over, self.writes = url, threading.Event(), 0

    def run(self) -> None:
        while not self.over.is_set():
            try:
                with TaskConnection(ConnectionOptions(self.url)) as bulk:
                    while not self.over.wait(0.01):
                        put(bulk, "OUT", str(random.randrange(KEYS)), SERVICE)
                        self.writes += 1
            except (PenstockError, AssertionError):
                self.over.wait(0.1)  # the node is down: that is the test

    def stop(self) -> None:
        self.over.set()
        self.join(60)


class BucketAudit(Audit):
    """One audited run of counts into a bucket."""

    out = "KV_OUT"
    config: ClassVar[dict[str, Any]] = {
        **bucket_stream("OUT").to_json(),
        "max_msgs_per_subject": -1,  # of each key everything is looked at in the end
        "duplicate_window": 10**9,
    }
    sink = SinkOptions(bucket="OUT", prepare=True)

    def __init__(self, **given: Any) -> None:
        settings = {"bucket": "OUT", "keys": KEYS, **(given.pop("settings", None) or {})}
        super().__init__(settings=settings, **given)
        self.config = {**self.config, "num_replicas": self.nodes}
        self.writes = 0

    def _audit(self) -> None:
        service = Service(self.server.url)
        service.start()
        try:
            super()._audit()
        finally:
            service.stop()
            self.writes = service.writes

    def _count(self, bulk: TaskConnection) -> tuple[int, int]:
        return account_keys(self.sent, history(bulk, "OUT"))

    def _last_sequence(self) -> int:
        """Give where the query stored something last; the service writes all the time."""
        asked = {"last_by_subj": marker_filter(self.out)}
        return int(self._api(f"STREAM.MSG.GET.{self.out}", asked)["message"]["seq"])

    def _stored(self) -> int:
        """Give how many numbers are in the newest counts."""
        while True:
            try:
                with self._connect() as bulk:
                    found = history(bulk, "OUT").values()
                break
            except PenstockError:
                continue  # a node was killed while it was read
        counts = ([int(value) for value in values if value is not None and value != SERVICE] for values in found)
        return sum(max(values, default=0) for values in counts)


def main() -> None:
    """Run an audit from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--round", type=int, default=25, help="how many kills before the keys are looked at")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next one has the next number")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which kills, separated by commas")
    given = parser.parse_args()
    set_up_java()
    kinds = tuple(given.kinds.split(","))
    result: Result = audit_in_rounds(
        given.kills,
        given.round,
        given.seed,
        kind=BucketAudit,
        nodes=given.nodes,
        kinds=kinds,
        say=lambda text: print(text, flush=True),
    )
    print(result)
    sys.exit(0 if result.clean else 1)


if __name__ == "__main__":
    main()
