"""The guards of the house: public names, the direction of imports, purity, size, and pages that follow the code."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.wire import MODULES as COMPILED
from tests.private_names import private_uses

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"

# A module's floor; imports go to the same or a lower one. The longest matching prefix counts.
FLOORS = {
    # the pure floor: no I/O, no async
    "penstock.errors": 0,
    "penstock.addresses": 0,
    "penstock.durations": 0,
    "penstock.model": 0,
    "penstock.options": 0,
    "penstock.wire.subjects": 0,
    "penstock.wire": 0,
    "penstock.chunks.wire": 0,
    "penstock.bus.wire": 0,
    "penstock.bus.limits": 0,
    "penstock.bus.request": 0,
    "penstock.bus.window": 0,
    "penstock.channels.wire": 0,
    "penstock.channels.names": 0,
    "penstock.channels.old_records": 0,
    "penstock.channels.old_words": 0,
    "penstock.channels.limits": 0,
    "penstock.channels.messages": 0,
    "penstock.channels.encoded": 0,
    "penstock.channels.publishes": 0,
    "penstock.channels.delivery": 0,
    "penstock.channels.subscribers": 0,
    "penstock.channels.state_records": 0,
    "penstock.buckets.entry": 0,
    "penstock.buckets.key_stream": 0,
    "penstock.buckets.key_wire": 0,
    "penstock.buckets.status": 0,
    "penstock.buckets.object_wire": 0,
    "penstock.buckets.object_info": 0,
    "penstock.buckets.object_status": 0,
    "penstock.part_file": 1,
    "penstock.store.blocks": 0,
    "penstock.store.checksums": 0,
    "penstock.store.decoding": 0,
    "penstock.store.entries": 0,
    "penstock.store.graves": 0,
    "penstock.store.index": 0,
    "penstock.store.records": 0,
    "penstock.store.s2": 0,
    "penstock.spark.options": 0,
    "penstock.spark.source_options": 0,
    "penstock.spark.offsets": 0,
    "penstock.spark.told": 0,
    "penstock.spark.positions": 0,
    "penstock.spark.planning": 0,
    "penstock.spark.pushdown": 0,
    "penstock.spark.assembly_state": 0,
    "penstock.spark.markers": 0,
    "penstock.spark.refusals": 0,
    "penstock.spark.sink_options": 0,
    "penstock.spark.json_learn": 0,
    "penstock.spark.json_rows": 0,
    "penstock.spark.json_values": 0,
    "penstock.spark.json_payloads": 0,
    "penstock.spark.tables": 0,
    "penstock.pipelines.outcome": 0,
    "penstock.pipelines.reasons": 0,
    "penstock.system.fields": 0,
    "penstock.system.questions": 0,
    "penstock.system.seen": 0,
    "penstock.system.result": 0,
    "penstock.system.reports": 0,
    "penstock.system.check_assets": 0,
    "penstock.system.check_servers": 0,
    "penstock.system.events": 0,
    "penstock.bench.client_job": 0,
    "penstock.bench.results": 0,
    "penstock.survey.state": 0,
    "penstock.survey.last_hour": 0,
    "penstock.survey.trouble": 0,
    "penstock.survey.trends": 0,
    "penstock.survey.edges": 0,
    "penstock.survey.snapshot": 0,
    "penstock.metrics.text": 0,
    "penstock.console.access": 0,
    "penstock.console.config": 0,
    "penstock.console.layout": 0,
    "penstock.console.masking": 0,
    "penstock.console.payload": 0,
    "penstock.console.picture": 0,
    "penstock.console.rates": 0,
    "penstock.console.settings": 0,
    "penstock.console.formatting": 0,
    "penstock.demo.charts": 0,
    "penstock.demo.ledger": 0,
    "penstock.__main__": 6,
    "penstock": 0,  # the package itself: names only, loaded when used
    # files and environment that the doors share
    "penstock.conf_file": 1,
    "penstock.context_files": 1,
    "penstock.contexts": 1,
    "penstock.credentials": 1,
    "penstock.local_server": 1,
    "penstock.worker_python": 1,
    # the doors to the world
    "penstock.http_pages": 2,
    "penstock.server": 2,
    "penstock.connection": 2,
    "penstock.wire.bulk": 2,
    "penstock.store": 2,  # files; the formats themselves are pure
    # capabilities
    "penstock.account": 3,
    "penstock.jetstream": 3,
    "penstock.buckets": 3,
    "penstock.system": 3,
    "penstock.chunks": 3,
    "penstock.bus": 3,
    "penstock.channels": 3,
    # front doors
    "penstock.spark": 4,
    "penstock.pipelines": 4,
    "penstock.survey": 4,
    "penstock.metrics": 5,
    "penstock.bench": 5,
    "penstock.console": 5,
    "penstock.demo": 5,
    "penstock.cli": 6,
}
IMPURE = {
    "asyncio",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "select",
    "selectors",
    "tempfile",
    "shutil",
    "nats",
}
# Private names of pyspark and nats-py that we use: where, which ("*" for all there), and why nothing public will do.
# None at present; an entry is ("penstock.room", "_name"): "The reason."
PRIVATE: dict[tuple[str, str], str] = {}


@functools.cache
def modules() -> tuple[tuple[str, Path, ast.Module], ...]:
    """Read all modules, once for all who look at them."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append((name, path, ast.parse(path.read_text())))
    return tuple(found)


@functools.cache
def imports(tree: ast.Module) -> tuple[str, ...]:
    """Every module that a file imports, also inside functions, but not what only type checkers see."""
    found: list[str] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.stmt | ast.Module | ast.ExceptHandler | ast.match_case):  # where a statement may stand
            waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "imports are absolute"
            found.append(node.module)
            if node.module.startswith("penstock"):
                found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)


def floor(name: str) -> int:
    while name not in FLOORS:
        name = name.rpartition(".")[0]
    return FLOORS[name]


def is_module(name: str) -> bool:
    path = SOURCE.parent / Path(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


@pytest.mark.parametrize("name", [item.name for item in pkgutil.walk_packages([str(SOURCE)], "penstock.")])
def test_every_module_names_what_it_offers(name: str):
    """Every module has a docstring and an __all__ whose names exist."""
    if name.endswith("__main__"):
        return
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    for public in module.__all__:
        assert hasattr(module, public), f"{name}.__all__ names {public}, which is not there"


def test_imports_point_down():
    """No module imports from a floor above its own."""
    wrong = [
        f"{name} imports {target}"
        for name, _, tree in modules()
        for target in imports(tree)
        if target.startswith("penstock") and is_module(target) and floor(target) > floor(name)
    ]
    assert not wrong


def test_capabilities_do_not_lean_on_each_other_in_circles():
    """Two packages of the same floor never import each other both ways."""
    edges = {
        (".".join(name.split(".")[:2]), ".".join(target.split(".")[:2]))
        for name, _, tree in modules()
        for target in imports(tree)
        if target.startswith("penstock.") and is_module(target)
    }
    assert not [(one, other) for one, other in edges if one < other and (other, one) in edges]


def test_the_pure_floor_is_pure():
    """Modules of the pure floor import nothing that does I/O, define no coroutine and open no file."""
    wrong = []
    for name, _, tree in modules():
        if floor(name) > 0:
            continue
        wrong += [f"{name} imports {target}" for target in imports(tree) if target.split(".")[0] in IMPURE]
        wrong += [
            f"{name} has async code" for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)
        ]
        wrong += [
            f"{name} opens a file"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
        ]
    assert not wrong


def test_one_module_imports_nats_py():
    """nats-py is imported by `penstock.connection.stock` alone, which hands out its stock client; types included."""
    wrong = [
        f"{name} imports {target}"
        for name, _, tree in modules()
        for node in ast.walk(tree)
        for target in imported(node)
        if target.split(".")[0] == "nats" and name != "penstock.connection.stock"
    ]
    assert not wrong


def imported(node: ast.AST) -> list[str]:
    """Give the modules that one statement imports, also where only type checkers see it."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_nobody_waits_with_wait_for():
    """`asyncio.wait_for` is used nowhere: Python 3.11's drops a cancellation; `asyncio.timeout` does not."""
    wrong = [
        f"{name}, line {node.lineno}"
        for name, _, tree in modules()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and ast.unparse(node) == "asyncio.wait_for")
        or (isinstance(node, ast.ImportFrom) and node.module == "asyncio" and "wait_for" in ast.unparse(node))
    ]
    assert not wrong


def header_names(tree: ast.Module) -> Iterator[str]:
    """Give the literals that spell a header of NATS; prose (a docstring, or a name in backticks) does not count."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in prose:
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            if re.search(r"(?<![`\w])Nats-(?=[A-Z]|$)", text):
                yield text


def test_header_names_are_spelt_in_one_place():
    """Header names of NATS stand in `wire.jetstream.names`, and in compiled modules, which cannot take them thence."""
    allowed = {"penstock.wire.jetstream.names", *(f"penstock.wire.{name}" for name in COMPILED)}
    spelling = {name for name, _, tree in modules() if list(header_names(tree))} - allowed
    assert not spelling, "take these names from penstock.wire.jetstream.names"


def test_no_private_name_of_others_is_used():
    """No private name of pyspark, py4j or nats-py is used but those listed with a reason, and each of these is used."""
    trees = {name: tree for name, _, tree in modules()}
    for folder in ("src/pyspark_nats", "tools", "benchmarks"):
        trees |= {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in (ROOT / folder).rglob("*.py")}

    def listed(module: str, name: str) -> Iterator[tuple[str, str]]:
        for where, what in PRIVATE:
            if (module == where or module.startswith(f"{where}.")) and what in ("*", name):
                yield where, what

    used = private_uses(trees)
    assert not [f"{use.module}:{use.line} uses {use.name}" for use in used if not list(listed(use.module, use.name))]
    assert {entry for use in used for entry in listed(use.module, use.name)} == PRIVATE.keys()


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("from pyspark.sql import SparkSession\nSparkSession(x)._jvm.x", ["_jvm"]),
        ("from nats.aio.client import _secret", ["_secret"]),
        ("import nats._inner.x", ["_inner"]),
        ("from pyspark._globals import _NoValue", ["_NoValue", "_globals"]),
        ("def f(spark): return spark._jsparkSession", ["_jsparkSession"]),
        ("def f(spark): return spark.sparkContext._jsc.sc()", ["_jsc"]),
        ("def f(x): return getattr(x, '_sc', None)", ["_sc"]),
        ("def f(x): setattr(x, '_sc', 1); return vars(x)['_a'], x.__dict__['_b']", ["_a", "_b", "_sc"]),
        ("import operator\noperator.attrgetter('_jdf')", ["_jdf"]),
        # A name that we have, too, on something of theirs: by its type, where it comes from, or what it is kept in.
        ("from nats.aio.client import Client\n_subs = 1\ndef f(x: Client | None): return x._subs", ["_subs"]),
        ("import nats\n_subs = 1\nasync def f():\n  x = await nats.connect()\n  return x._subs", ["_subs"]),
        (
            "from nats.aio.client import Client\nclass A:\n  def __init__(self, c: 'Client'):\n    self._c = c\n"
            "    self._subs = 1\n  def f(self): return self._c._subs",
            ["_subs"],
        ),
        # A class on theirs: what it takes from it in silence, and what it overrides.
        ("from nats.aio.client import Client\nclass A(Client):\n  def f(self): return self._ours", ["_ours"]),
        ("from nats.aio.client import Client\nclass A(Client):\n  def _send_ping(self): pass", ["_send_ping"]),
        (
            "import nats.aio.client as nc\nclass A(nc.Client):\n  def _own(self): pass\n"
            "class B(A):\n  def f(self): return self._own(), self._pongs",
            ["_pongs"],
        ),
        # What is ours, the language's or another package's.
        ("class A:\n  def __init__(self): self._x = 1\ndef f(a): return a._x, a.__dict__", []),
        ("import os\nos._exit(1)\ndef f(p): return p._replace(x=1)", []),
        ("from pyspark.sql import SparkSession\nSparkSession.__name__\nSparkSession.builder", []),
    ],
)
def test_private_names_of_others_are_found(code: str, names: list[str]):
    """The guard sees a private name however it is reached, and leaves alone what is ours."""
    assert sorted(use.name for use in private_uses({"sample": ast.parse(code)})) == names


def test_no_file_grows_past_500_lines():
    """A source file that passes 500 lines is split."""
    assert not [path.name for _, path, _ in modules() if len(path.read_text().splitlines()) > 500]


def test_generated_pages_are_fresh():
    """The reference pages say what the code says: every command, option and error; `make docs` writes them."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "reference.py", "--check"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
