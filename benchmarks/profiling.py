"""Writes where the time of a path goes, as text beside the page: docs/why/profiles/NAME.txt.

    python benchmarks/profiling.py read                     the profile of `read`
    python benchmarks/profiling.py read --as read-before    under another name, to keep one from before a change
    python benchmarks/profiling.py --list                   the paths

The path runs once to warm up, once for its CPU time, and once under cProfile, which makes Python calls dearer and does
not see into compiled code: a call into it is one line. The server runs beside it in a process of its own.
(It is not called profile.py: a module of that name would stand in the way of Python's own.)
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import io
import pstats
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _wire_sides as sides
from _measure import about, cpu_of
from wire import create

import penstock
from penstock.wire.bulk import BulkConnection

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "why" / "profiles"
PATHS = ("read", "publish_fast", "publish_acks", "publish_atomic")


def once(name: str, url: str, count: int, size: int) -> None:
    """Run the path."""
    found = sides.SIDES[name](url, count, size)
    if asyncio.iscoroutine(found):
        asyncio.run(found)


def main() -> None:
    """Profile one path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", choices=PATHS)
    parser.add_argument("--as", dest="name", help="another name for the file")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    if given.list or given.path is None:
        print("\n".join(PATHS))
        return
    name = given.name or given.path
    if not re.fullmatch(r"[a-z0-9_-]+", name):
        parser.error("--as takes small letters, digits, - and _")
    with penstock.Server(sync="2m") as server:

        def fresh() -> None:
            create(server.url)
            if given.path == "read":
                with BulkConnection(server.url) as bulk:
                    bulk.publish(sides.STREAM, sides.batches(given.messages, given.size), "fast", timeout=300)

        fresh()
        once(given.path, server.url, given.messages, given.size)
        fresh()
        pid = server.nodes[0].pid
        cpu, server_cpu = time.process_time(), cpu_of(pid)
        once(given.path, server.url, given.messages, given.size)
        cpu, server_cpu = time.process_time() - cpu, cpu_of(pid) - server_cpu
        fresh()
        profile = cProfile.Profile()
        profile.runcall(once, given.path, server.url, given.messages, given.size)
        version = server.version
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(25)
    places = r"[^ \n]*/(src/penstock|benchmarks|lib/python3\.[0-9]+(?:/site-packages)?)/"
    shown = re.sub(places, r"\1/", text.getvalue())  # no path of this machine
    facts = about()
    head = (
        f"{given.path}: {given.messages:,} messages of {given.size} bytes, Penstock {facts['penstock']}, "
        f"nats-server {version}, Python {facts['python']}\n"
        f"CPU time without the profiler: ours {cpu / given.messages * 1e6:.2f} us a message, "
        f"the server's {server_cpu / given.messages * 1e6:.2f} us\n"
        f"python benchmarks/profiling.py {given.path} --messages {given.messages} --size {given.size}\n"
    )
    given.folder.mkdir(parents=True, exist_ok=True)
    file = given.folder / f"{name}.txt"
    lines = [line.rstrip() for line in (head + shown).splitlines()]
    file.write_text("\n".join(lines).rstrip() + "\n")
    print(head + f"wrote {file}")


if __name__ == "__main__":
    main()
