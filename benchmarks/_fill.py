"""A buffer full of deliveries becomes columns, again and again: for counting instructions, not for the clock.

    valgrind --tool=callgrind python benchmarks/_fill.py ROUNDS BYTES [headers]

Run it for 2 rounds and for 12: the difference, divided by ten times `ROWS`, is a message's share.
"""

from __future__ import annotations

import sys
import time

from penstock.wire import columns

ROWS = 8192


def frames(size: int, headers: bool) -> bytearray:
    """Write deliveries of a consumer as a server does."""
    made = []
    for number in range(1, ROWS + 1):
        block = b"NATS/1.0\r\nNats-Msg-Id: abc.%d\r\n\r\n" % number if headers else b""
        sizes = (b"%d " % len(block) if headers else b"") + b"%d" % (len(block) + size)
        reply = b"$JS.ACK.BENCH.penstock-0123456789ab.1.%d.%d.1763585074123456789.%d" % (number, number, 10**6 - number)
        made.append(b"%sMSG bench.a 7 %s %s\r\n%s%s\r\n" % (b"H" * headers, reply, sizes, block, b"x" * size))
    return bytearray(b"".join(made))


def main() -> None:
    """Fill columns as often as told."""
    rounds, size, headers = int(sys.argv[1]), int(sys.argv[2]), "headers" in sys.argv
    made = columns.Columns(1, 1 << 60, max_rows=65_536, max_bytes=1 << 24, max_payload=1 << 20)
    made.sid, content = 7, frames(size, headers)
    before = time.process_time()
    for _ in range(rounds):
        made.next = made.count = 1
        assert made.fill(content, 0, len(content)) == len(content), made.stop
        made.close()
        made.restart()
    print(f"{(time.process_time() - before) / rounds / ROWS * 1e9:.0f} ns a message")


if __name__ == "__main__":
    main()
