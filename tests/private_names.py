"""Finds uses of private names of other people's packages: a name with a leading underscore may go with any release.

Python does not say whose an attribute is, so three rules stand for it, each on the safe side:

- what comes from an import of theirs, or is annotated with a type of theirs, has no private attribute that we may use;
- a class of ours that stands on one of theirs has no private attribute but those that it, or another class of ours that
  it stands on, defines; and it defines none that theirs has;
- wherever else an attribute is private, some code of ours defines it.

`getattr` and the like with a text, and `vars(x)["_name"]`, count as the attribute.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Use", "private_uses"]

FOREIGN = ("pyspark", "nats", "py4j")
_BY_NAME = {"getattr", "setattr", "hasattr", "delattr", "attrgetter", "methodcaller", "__getattribute__", "__setattr__"}
_STANDARD = {"_replace", "_asdict", "_fields", "_make", "_field_defaults", "_value_", "_name_", "_missing_"}


@dataclass(frozen=True)
class Use:
    """A private name of theirs in a module of ours."""

    module: str
    line: int
    name: str


def private_uses(modules: Mapping[str, ast.Module]) -> list[Use]:
    """Find every use of a private name of a foreign package in these modules."""
    own = {name for tree in modules.values() for name in _defined(tree)}
    rooms = {name: _Room(name, tree) for name, tree in modules.items()}
    classes = {node.name: (room, node) for room in rooms.values() for node in room.classes}
    found = [use for room in rooms.values() for use in room.uses(own, classes)]
    return sorted(set(found), key=lambda use: (use.module, use.line, use.name))


def _is_private(name: object) -> bool:
    return isinstance(name, str) and name[:1] == "_" and name[:2] != "__" and name != "_" and name not in _STANDARD


def _is_foreign(module: str | None) -> bool:
    return (module or "").split(".")[0] in FOREIGN


def _defined(tree: ast.AST) -> Iterator[str]:
    """Give the private names that a piece of code makes: functions, classes, variables, attributes and slots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and _is_private(node.name):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and _is_private(node.id):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_private(node.attr):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__slots__" for target in node.targets
        ):
            yield from (
                item.value
                for item in ast.walk(node.value)
                if isinstance(item, ast.Constant) and _is_private(item.value)
            )


class _Room:
    """One module: what it imports, and which of its names come from there."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name, self.tree = name, tree
        self.imported: dict[str, str] = {}  # local name -> what it is the name of
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.imported[alias.asname or alias.name.split(".")[0]] = alias.name
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        self.classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        self.theirs = {local for local, full in self.imported.items() if _is_foreign(full)}
        while self.theirs and (more := set(self._flow()) - self.theirs):
            self.theirs |= more

    def _flow(self) -> Iterator[str]:
        """Give the variables and attributes that hold something of theirs, as far as the code says so."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.arg) and node.annotation is not None and self._names_theirs(node.annotation):
                yield node.arg
            elif isinstance(node, ast.AnnAssign) and self._names_theirs(node.annotation):
                yield from _target(node.target)
            elif isinstance(node, ast.Assign) and self._root(node.value) in self.theirs:
                for target in node.targets:
                    yield from _target(target)
            elif isinstance(node, ast.withitem) and node.optional_vars and self._root(node.context_expr) in self.theirs:
                yield from _target(node.optional_vars)

    def _names_theirs(self, annotation: ast.expr) -> bool:
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        found = {part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)}
        return any(_is_foreign(self.imported.get(name)) for name in found)

    def _root(self, node: ast.expr) -> str | None:
        """Give the name that an expression hangs on: `a` in `a.b(c)[d].e`; of what hangs on self, the attribute."""
        before: str | None = None
        while True:
            if isinstance(node, ast.Await):
                node = node.value
            elif isinstance(node, ast.Call):
                node = node.func
            elif isinstance(node, ast.Subscript):
                node = node.value
            elif isinstance(node, ast.Attribute):
                node, before = node.value, node.attr
            elif isinstance(node, ast.Name):
                return before if node.id in ("self", "cls") else node.id
            else:
                return None

    def uses(self, own: set[str], classes: Mapping[str, tuple[_Room, ast.ClassDef]]) -> Iterator[Use]:
        """Find the uses in this module."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from self._imports(node)
        for node, name, line in _accesses(self.tree):
            root = self._root(node)
            on_self = isinstance(node, ast.Name) and node.id in ("self", "cls")
            if on_self or (root in self.imported and root not in self.theirs):
                continue  # a class is looked at below; what a module of others offers is not our matter
            if root in self.theirs or name not in own:
                yield Use(self.name, line, name)
        for kind in self.classes:
            yield from self._inherits(kind, classes)

    def _imports(self, node: ast.Import | ast.ImportFrom) -> Iterator[Use]:
        for alias in node.names:
            full = alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
            if _is_foreign(full):
                yield from (Use(self.name, node.lineno, part) for part in full.split(".") if _is_private(part))

    def _inherits(self, kind: ast.ClassDef, classes: Mapping[str, tuple[_Room, ast.ClassDef]]) -> Iterator[Use]:
        """Look at a class that stands on one of theirs: what it takes from it in silence, and what it overrides."""
        line, bases, defined = [(self, kind)], set[str](), set[str]()
        while line:
            room, node = line.pop()
            defined |= set(_defined(node))
            for base in node.bases:
                name = room._root(base) or ""
                if _is_foreign(room.imported.get(name)):
                    bases.add(ast.unparse(base).replace(name, room.imported[name], 1))
                elif name in classes and classes[name][1] is not node:
                    line.append(classes[name])
        if not bases:
            return
        for node in ast.walk(kind):
            silent = isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in defined
            if silent and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield Use(self.name, node.lineno, node.attr)
        for name in set(_defined(kind)):
            if any(hasattr(_load(base), name) for base in bases):
                yield Use(self.name, kind.lineno, name)


def _accesses(tree: ast.AST) -> Iterator[tuple[ast.expr, str, int]]:
    """Give every private attribute that is named, by a dot or by a text, with what it is an attribute of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            yield node.value, node.attr, node.lineno
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            for given in node.args if called in _BY_NAME else []:
                if isinstance(given, ast.Constant) and _is_private(given.value):
                    yield node.args[0], given.value, node.lineno
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and _is_private(node.slice.value):
            holder = node.value
            if isinstance(holder, ast.Attribute) and holder.attr == "__dict__":
                yield holder.value, node.slice.value, node.lineno
            elif isinstance(holder, ast.Call) and ast.unparse(holder.func) == "vars" and holder.args:
                yield holder.args[0], node.slice.value, node.lineno


def _target(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Tuple):
        for part in node.elts:
            yield from _target(part)


def _load(path: str) -> object:
    """Import what a dotted path names."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ImportError(path)
