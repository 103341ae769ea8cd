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
    *("read_object", "read_answer", "read_answers", "read_json", "read_ack", "read_event", "parse_event"),
}
_OWNED = {
    ("json", "loads"),
    ("json_text", "loads"),
    ("tomllib", "loads"),
    ("struct", "unpack"),
    ("HEAD", "unpack"),
    ("INDEX", "unpack"),
}
_NAMES = ("decode", "parse_", "read_", "from_json", "from_bytes", "from_message")

NOT_FROM_OUTSIDE = {
    "bench/": "the processes of a benchmark talk to each other",
    "cli/": "words of the command line, as tests/golden/wrong.txt has them; files go through the readers below",
    "demo/": "the demo reads what it has written",
    "account.py": "asks, and hands answers to readers that the targets accounts and system have",
    "console/monitor.py": "hands an answer to node_of, which the target system has",
    "jetstream/snapshot.py:restore": "hands answers to StreamInfo, which the target info has",
    "wire/bulk/connection.py:BulkConnection.api": "hands answers to readers that the targets info and answers have",
    "spark/connections.py:TaskConnection._lasts": "hands answers to read_message, which the target stored-message has",
    "server/guard": "our own process at the other end of a socket that nobody else has",
    "server/node.py": "the server that we started, on its own port",
    "server/server.py": "the greeting of a port, of which only a version is read; whatever else it says is no server",
    "server/neighbours.py": "what another server says of itself; whatever is wrong with it is passed over",
    "server/records.py:read_page": "the server that we started, on its own port",
    "pipelines/process.py": "lines of our own child",
    "pipelines/listening.py": "the Spark that runs the pipeline",
    "pipelines/remote.py": "the Spark that runs the pipeline",
    "spark/archive_writer.py": "what the same run wrote a moment ago",
    "spark/progress.py": "the Spark that runs the query",
    "spark/exactly_once.py": "digests that the same task spooled to its own file",
    "spark/bucket_task.py": "digests of the same task",
    "spark/archive_files.py:read_archived": "Parquet: test_a_damaged_file_of_an_archive (tests/live/test_archive.py)",
    "spark/bucket_reader.py:read_state": "a task's own read, whose frames the protocol reads",
    "spark/stored_reader.py:read_stored": "a task's own read, through penstock.store",
    "spark/assembly.py": "Spark's state store, through assembly_state",
    "spark/functions.py": "runs inside of Spark: test_json, test_compressed (tests/spark/test_functions.py)",
    "spark/object_rows.py:described": "columns that the same task has checked",
    "spark/archive_files.py:archived_files": "names that match a pattern of digits",
    "spark/tables.py": "metadata that CREATE TABLE wrote, in the catalog of the same Spark",
    "channels/old_sql.py": "needs a database: test_damage_is_told (tests/pure/test_channels_old_sql.py)",
    "channels/old_store.py:OldStore": "folders: test_every_damage_is_told (tests/pure/test_channels_old_store.py)",
    "channels/messages.py:read_encoded": "hands answers to a reader that the target channels-answers has",
    "channels/state.py:read_state": "a server's answers, through read_found",
    "channels/store.py": "a server's answers, through read_message",
    "channels/positions.py": "records that decode_state has read before",
    "channels/lease.py": "a sign of life; one that is none says nothing",
    "buckets/object_putting.py": "a digest that we computed",
    "context_files.py:read_context": "opens a file that parse_context reads",
    "local_server.py": "a file of one user: test_a_file_that_is_none_leads_nowhere (tests/pure/test_local_server.py)",
    "console/formatting.py": "times that the model has read",
    "jetstream/counters.py": "test_what_is_no_counter (tests/live/test_counters.py)",
    "wire/dispatch.py:Reading": "says which methods a driver has, and has none itself",
    "channels/channel.py:GroupDelivery._read": "reads through penstock.channels.store",
    "chunks/source.py:_read": "a file of the user, whose bytes are sent as they are",
    "console/search.py:_Search._read": "messages that the connection has read",
    "pipelines/tables.py:_read": "Parquet, which Arrow reads; the log that names the files has the target table-log",
    "spark/archive_run.py:_read": "the notes of an archive, through the readers that the target archive has",
    "spark/object_reader.py:Objects._read": "messages that the bulk connection has read",
    "spark/object_survey.py:ObjectSurvey._read": "messages that the bulk connection has read",
    "spark/past.py:_read": "a message that penstock.store has read",
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
    if function.name.startswith(_NAMES) or function.name == "_read":
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
