"""The guards of the house: public names, the direction of imports, purity, size, and pages that follow the code."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

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
    "penstock.wire": 0,
    "penstock.chunks.wire": 0,
    "penstock.bus.wire": 0,
    "penstock.bus.limits": 0,
    "penstock.bus.request": 0,
    "penstock.bus.window": 0,
    "penstock.channels.wire": 0,
    "penstock.channels.names": 0,
    "penstock.channels.limits": 0,
    "penstock.channels.messages": 0,
    "penstock.channels.delivery": 0,
    "penstock.channels.subscribers": 0,
    "penstock.channels.records": 0,
    "penstock.channels.recent": 0,
    "penstock.spark.options": 0,
    "penstock.spark.offsets": 0,
    "penstock.spark.positions": 0,
    "penstock.spark.planning": 0,
    "penstock.spark.pushdown": 0,
    "penstock.spark.assembling": 0,
    "penstock.spark.markers": 0,
    "penstock.spark.sink_options": 0,
    "penstock.pipelines.outcome": 0,
    "penstock.console.access": 0,
    "penstock.console.config": 0,
    "penstock.console.masking": 0,
    "penstock.console.payload": 0,
    "penstock.console.rates": 0,
    "penstock.console.settings": 0,
    "penstock.console.formatting": 0,
    "penstock.examples.orders.charts": 0,
    "penstock.examples.orders.ledger": 0,
    "penstock.__main__": 6,
    "penstock": 0,  # the package itself: names only, loaded when used
    # files and environment that the doors share
    "penstock.contexts": 1,
    "penstock.credentials": 1,
    # the doors to the world
    "penstock.server": 2,
    "penstock.connection": 2,
    "penstock.wire.bulk": 2,
    # capabilities
    "penstock.jetstream": 3,
    "penstock.chunks": 3,
    "penstock.bus": 3,
    "penstock.channels": 3,
    "penstock.metrics": 3,
    # front doors
    "penstock.spark": 4,
    "penstock.pipelines": 4,
    "penstock.console": 5,
    "penstock.examples": 5,
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


def modules() -> Iterator[tuple[str, Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield name, path, ast.parse(path.read_text())


def imports(tree: ast.Module) -> Iterator[str]:
    """Every module that a file imports, also inside functions, but not what only type checkers see."""
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "imports are absolute"
            yield node.module
            if node.module.startswith("penstock"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def floor(name: str) -> int:
    while name not in FLOORS:
        name = name.rpartition(".")[0]
    return FLOORS[name]


def is_module(name: str) -> bool:
    path = SOURCE.parent / Path(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_public_names():
    """The public face of the package is exactly this."""
    assert penstock.__all__ == [
        "__version__",
        "ConnectionOptions",
        "Consumer",
        "Message",
        "PenstockError",
        "PubAck",
        "Server",
        "Stream",
        "connect",
        "errors",
    ]
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        penstock.nothing  # noqa: B018  # the access is the test


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


def test_only_the_door_imports_the_nats_client():
    """nats-py's client is imported by penstock.connection alone; others may name its types and errors."""
    allowed = ("penstock.connection",)
    wrong = [
        f"{name} imports {target}"
        for name, _, tree in modules()
        for target in imports(tree)
        if (target == "nats" or target.startswith("nats.aio.client")) and not name.startswith(allowed)
    ]
    assert not wrong


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


def test_links_in_the_docs_lead_somewhere():
    """Every relative link in a Markdown page points to a file that exists."""
    wrong = []
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]:
        for part in page.read_text().split("](")[1:]:
            target = part.split(")")[0].split("#")[0]
            if target and "://" not in target and not (page.parent / target).exists():
                wrong.append(f"{page.relative_to(ROOT)}: {target}")
    assert not wrong
