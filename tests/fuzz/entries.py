"""Which functions of Penstock read what comes from outside: found in the sources, not listed by hand.

A function reads bytes or words if it decodes something (JSON, protobuf, base64, numbers of bytes, times), or is named
after that. Each of them must be reached by the corpus of some target, or stand among `NOT_FROM_OUTSIDE` with a reason.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import penstock
from tests.fuzz.target import TARGETS, check, seeds

__all__ = ["NOT_FROM_OUTSIDE", "reached", "readers"]

SOURCE = Path(penstock.__file__).resolve().parent
_CALLS = {
    *("load_json", "safe_load", "from_bytes", "unpack_from", "FromString", "b64decode", "urlsafe_b64decode"),
    *("fromhex", "fromisoformat", "strptime", "decode_headers", "decode_status", "parse_qsl", "parse_qs"),
}
_OWNED = {("json", "loads"), ("tomllib", "loads"), ("struct", "unpack"), ("HEAD", "unpack"), ("INDEX", "unpack")}
_NAMES = ("decode", "parse_", "read_", "from_json", "from_bytes", "from_message")

NOT_FROM_OUTSIDE = {
    "bench/": "the processes of a benchmark talk to each other",
    "cli/": "words of the command line: tests/golden/wrong.txt has them, and files go through the readers below",
    "demo/": "the demo reads what it has written",
    "server/guard": "our own process at the other end of a socket that nobody else has",
    "server/node.py": "the server that we started, on its own port",
    "server/server.py": "the greeting of a port, of which only a version is read; whatever else it says is no server",
    "server/neighbours.py": "what another server says of itself; whatever is wrong with it is passed over",
    "server/records.py:read_page": "the server that we started, on its own port",
    "pipelines/process.py": "lines of our own child",
    "pipelines/listening.py": "the Spark that runs the pipeline",
    "pipelines/remote.py": "the Spark that runs the pipeline",
    "pipelines/tables.py": "tests/pipelines damages the logs of tables",
    "pipelines/agreement.py:_newest_entry": "tests/pipelines damages checkpoints",
    "spark/archive_writer.py": "what the same run wrote a moment ago",
    "spark/progress.py": "the Spark that runs the query",
    "spark/exactly_once.py": "digests that the same task spooled to its own file",
    "spark/bucket_task.py": "digests of the same task",
    "spark/archive_files.py:read_archived": "Parquet, which Arrow reads; tests/spark damages the files of archives",
    "spark/bucket_reader.py:read_state": "a task's own read, whose frames the protocol reads",
    "spark/stored_reader.py:read_stored": "a task's own read, through penstock.store",
    "spark/assembly.py": "Spark's state store, through assembly_state",
    "spark/functions.py": "runs inside of Spark; tests/spark/test_functions.py has broken payloads",
    "spark/object_rows.py:described": "columns that the same task has checked",
    "spark/archive_files.py:archived_files": "names that match a pattern of digits",
    "spark/tables.py": "metadata that CREATE TABLE wrote, in the catalog of the same Spark",
    "channels/old_durables.py": "needs a server's pages; tests/live/test_channels_old_server.py has broken ones",
    "channels/old_sql.py": "needs a database; tests/pure/test_channels_old_sql.py has broken rows",
    "channels/old_store.py:OldStore": "whole folders; tests/pure/test_channels_old_store.py damages them",
    "channels/messages.py:read_encoded": "hands answers to a reader that the target channels-answers has",
    "channels/state.py:read_state": "a server's answers, through read_found",
    "channels/store.py": "a server's answers, through read_message",
    "channels/positions.py": "records that decode_state has read before",
    "channels/lease.py": "a sign of life; one that is none says nothing",
    "buckets/object_putting.py": "a digest that we computed",
    "context_files.py:read_context": "opens a file that parse_context reads",
    "console/channels.py:_known": "a sign of life beside what decode_state has read; a live test has broken ones",
    "local_server.py": "a file of the same user alone; tests/pure/test_local_server.py has others",
    "console/formatting.py": "times that the model has read",
    "jetstream/counters.py": "tests/live/test_counters.py has values that are none",
    "wire/dispatch.py:Reading": "says which methods a driver has, and has none itself",
    "connection/": "hands blocks to the protocol",
    "bus/requester.py": "hands blocks to the protocol",
    "chunks/pacing.py": "hands blocks to the protocol",
    "jetstream/batch.py": "hands blocks to the protocol",
    "jetstream/consume.py": "hands blocks to the protocol",
    "jetstream/in_flight.py": "hands blocks to the protocol",
}


def readers() -> Iterator[str]:
    """Give every function that reads something, as `room/module.py:Class.function`."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        for place, function in _functions(ast.parse(path.read_text()), ""):
            if _reads(function):
                yield f"{name}:{place}"


def _functions(node: ast.AST, before: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield before + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{before}{child.name}.")
        else:
            yield from _functions(child, before)


def _reads(function: ast.AST) -> bool:
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    if function.name.startswith(_NAMES):
        return True
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in _CALLS:
                return True
            if isinstance(called, ast.Attribute):
                owner = called.value.id if isinstance(called.value, ast.Name) else ""
                if called.attr in _CALLS or (owner, called.attr) in _OWNED:
                    return True
    return False


def reached() -> set[str]:
    """Run every target over its corpus; give every function of Penstock that was called."""
    found: set[str] = set()
    seen: set[int] = set()
    source = f"{SOURCE}/"

    def note(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and id(code) not in seen:
            seen.add(id(code))
            kept.append(code)  # so that no other code gets its id
            if code.co_filename.startswith(source):
                found.add(f"{code.co_filename.removeprefix(source)}:{code.co_qualname}")

    kept: list[object] = []
    sys.setprofile(note)
    try:
        for target in TARGETS.values():
            for _, content in seeds(target.name):
                check(target, content)
    finally:
        sys.setprofile(None)
    return found
