"""Writes the reference of the Python API: what programs may import, with signatures, types and what each does.

docs/reference/api.md lists the names; docs/reference/api/ has a page for each module.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import markdown_pages

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
PUBLIC_NAMES = ROOT / "tests" / "golden" / "public_names.json"
WIDTH = 100  # of a signature
SHOWN = (int, float, str, bytes, bool, tuple, frozenset, type(None))  # defaults that say what they are

# Pages that say more about all names of a module.
PAGES_OF = {
    "penstock.bus": "bus.md",
    "penstock.channels": "channels.md",
    "penstock.chunks": "chunks.md",
    "penstock.connection": "connection.md",
    "penstock.console": "console.md",
    "penstock.errors": "errors.md",
    "penstock.jetstream": "jetstream.md",
    "penstock.metrics": "metrics.md",
    "penstock.model": "model.md",
    "penstock.options": "connection.md",
    "penstock.server": "server.md",
    "penstock.spark": "spark-source.md",
    "penstock.system": "server.md",
    "penstock.wire.bulk": "wire.md",
}


def pages() -> dict[Path, str]:
    """Give the pages with their texts."""
    golden = json.loads(PUBLIC_NAMES.read_text())
    modules = {name: importlib.import_module(name) for name in golden["public"]}
    homes = _homes(golden["public"], modules)
    found = {
        FOLDER / "api" / f"{name}.md": _module_page(module, golden["public"][name], homes)
        for name, module in modules.items()
    }
    return {FOLDER / "api.md": _overview(golden, modules), **found}


# -- text -------------------------------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Put a text on one line, fit for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Write a table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def first_sentence(text: str | None) -> str:
    """Give the first sentence of a docstring."""
    paragraph = " ".join((text or "").split("\n\n")[0].split())
    return clean(re.split(r"(?<=\.)\s+(?=[A-Z`])", paragraph)[0])


def field_sentences(kind: type) -> dict[str, str]:
    """Read the sentence under each field of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    sentences = {}
    for field, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(following, ast.Expr):
            sentences[field.target.id] = clean(ast.literal_eval(following.value))
    return sentences


def meaning(module: Any, name: str) -> str:
    """Give the first sentence on a name: its docstring's, or that under its assignment."""
    value = getattr(module, name)
    if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
        return first_sentence(value.__doc__)
    body = ast.parse(inspect.getsource(module)).body
    for statement, following in itertools.pairwise(body):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        if isinstance(target, ast.Name) and target.id == name and isinstance(following, ast.Expr):
            return first_sentence(ast.literal_eval(following.value))
    raise SystemExit(f"{module.__name__}.{name} is public and has no sentence under it")


# -- pages ------------------------------------------------------------------------------------------------------------


def _overview(golden: dict[str, Any], modules: dict[str, Any]) -> str:
    text = [
        "# Public names",
        "",
        "What programs may import: these names, from these places; each leads to its signature. Every other module and",
        "name is Penstock's own and may change at any time, also if Python lets you reach it. What is public beside",
        "them (commands, options, files), and how long an old name stays: [compatibility](../why/compatibility.md).",
    ]
    for module, names in golden["public"].items():
        text += ["", f"## `{module}`", "", first_sentence(modules[module].__doc__)]
        if module in PAGES_OF:
            text[-1] += f" More: [{PAGES_OF[module]}]({PAGES_OF[module]})."
        rows = [
            (f"[`{name}`](api/{module}.md#{markdown_pages.anchor(name)})", meaning(modules[module], name))
            for name in names
        ]
        text += ["", table(("name", "what it is"), rows)]
    old = [(f"`{name}`", f"`{now}`") for name, now in golden["deprecated"].items()]
    if old:
        text += ["", "## Old names", "", "They still work, with a DeprecationWarning.", ""]
        text += [table(("old name", "now"), old)]
    return "\n".join(text) + "\n"


def _homes(public: dict[str, list[str]], modules: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Give, for a class that several modules export, the one that describes it: the longest name."""
    homes = dict[tuple[str, str], str]()
    for module, names in public.items():
        for name in names:
            same = [
                other
                for other in public
                if name in public[other] and getattr(modules[other], name) is getattr(modules[module], name)
            ]
            if max(same, key=len) != module:
                homes[module, name] = max(same, key=len)
    return homes


def _module_page(module: Any, names: Sequence[str], homes: dict[tuple[str, str], str]) -> str:
    more = PAGES_OF.get(module.__name__)
    text = [f"# `{module.__name__}`", "", clean_paragraph(module.__doc__)]
    text += ["", f"More about it: [{more}](../{more}). All modules: [public names](../api.md)."] if more else []
    text += [] if more else ["", "All modules: [public names](../api.md)."]
    for name in names:
        value = getattr(module, name)
        text += ["", f"## `{name}`", ""]
        if inspect.isclass(value):
            home = homes.get((module.__name__, name))
            text += (
                [f"See [`{home}.{name}`]({home}.md#{markdown_pages.anchor(name)})."]
                if home
                else _class(name, value, [getattr(module, other) for other in names])
            )
        elif inspect.isroutine(value):
            text += [_code(signature(name, value)), "", clean_paragraph(value.__doc__)]
        elif inspect.ismodule(value):
            text += [f"A module: {first_sentence(value.__doc__)}"]
        else:
            text += [_code(f"{name}: {type(value).__name__}"), "", meaning(module, name)]
    return "\n".join(text) + "\n"


def clean_paragraph(text: str | None) -> str:
    """Give the first paragraph of a docstring as prose: double ticks and marks of other tools do not occur."""
    paragraph = " ".join((text or "").split("\n\n")[0].split())
    return f"{paragraph[:-2]}." if paragraph.endswith("::") else paragraph


def _code(text: str) -> str:
    return f"```py\n{text}\n```"


def _class(name: str, kind: Any, others: Sequence[Any]) -> list[str]:
    """Describe a class: how it is made, its fields, what it can do."""
    bases = [
        base.__name__ for base in kind.__bases__ if base.__module__.startswith("penstock") and base.__name__[0] != "_"
    ]
    fields = list(_fields(kind))
    is_value = bool(fields) or issubclass(kind, enum.Enum)
    head = f"class {name}({', '.join(bases)})" if bases and is_value else f"class {name}"
    if not is_value and not issubclass(kind, BaseException) and "__init__" in vars(kind):
        head = signature(f"class {name}", kind.__init__, is_method=True).replace(" -> None", "")
    text = [_code(head), "", clean_paragraph(kind.__doc__)]
    if bases and not is_value:
        text[-1] += f" It is a {' and a '.join(f'`{base}`' for base in bases)}."
    if facts := getattr(kind, "fact_names", None):
        text += ["", "Facts, as attributes: " + ", ".join(f"`{fact}`" for fact in facts) + "."]
    if issubclass(kind, enum.Enum):
        text += ["", "Its values: " + ", ".join(f"`{item.value!r}`" for item in kind) + "."]
    if fields:
        text += ["", table(("field", "type", "default", "meaning"), fields)]
    for member, value, is_property in _members(kind, others):
        text += ["", f"### `{name}.{member}`", ""]
        if is_property:
            returned = annotation(inspect.signature(value).return_annotation) if callable(value) else ""
            text += [_code(f"{member}: {returned}" if returned else member)]
        else:
            text += [_code(signature(member, value, is_method=_binds(kind, member)))]
        text += ["", clean_paragraph(_doc(kind, member))]
    return text


def _binds(kind: type, member: str) -> bool:
    """Say whether a member takes the object, or the class, that it is called on."""
    return not isinstance(inspect.getattr_static(kind, member), staticmethod)


def _doc(kind: type, member: str) -> str:
    """Give the docstring of a member, or that of the member of ours that it overrides."""
    for base in kind.__mro__:
        if not base.__module__.startswith("penstock"):
            continue
        found = vars(base).get(member)
        found = getattr(found, "fget", None) or getattr(found, "func", None) or getattr(found, "__func__", found)
        if found is not None and found.__doc__:
            return str(found.__doc__)
    return ""


def _fields(kind: Any) -> Iterator[tuple[str, str, str, str]]:
    """Give the fields of a value: name, type, default, meaning."""
    if dataclasses.is_dataclass(kind):
        declared = [
            (item.name, item.type, item.default, item.default_factory) for item in dataclasses.fields(kind) if item.init
        ]
    elif hasattr(kind, "model_fields"):
        declared = [
            (
                name,
                _declared_type(kind, name) or item.annotation,
                dataclasses.MISSING if item.is_required() else item.default,
                item.default_factory or dataclasses.MISSING,
            )
            for name, item in kind.model_fields.items()
        ]
    else:
        return
    sentences = dict[str, str]()
    for base in reversed([base for base in kind.__mro__ if base.__module__.startswith("penstock")]):
        sentences |= field_sentences(base)
    for name, given, default, factory in declared:
        if name.startswith("_"):
            continue
        shown = "required" if default is dataclasses.MISSING else clean(f"`{_default(default)}`")
        if factory is not dataclasses.MISSING:
            shown = "empty"
        yield f"`{name}`", f"`{clean(annotation(given))}`", shown, sentences.get(name, "")


def _declared_type(kind: Any, name: str) -> str | None:
    """Give the type of a field as it is written."""
    for base in kind.__mro__:
        given = vars(base).get("__annotations__", {}).get(name)
        if given is not None:
            return given if isinstance(given, str) else inspect.formatannotation(given)
    return None


def _members(kind: Any, others: Sequence[Any]) -> Iterator[tuple[str, Any, bool]]:
    """Give the public methods and properties that are ours, as they are written; not those of `others`."""
    seen = {name for base in kind.__mro__[1:] if base in others for name in vars(base)} - vars(kind).keys()
    for base in kind.__mro__:
        if not base.__module__.startswith("penstock"):
            continue
        for name, found in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            if isinstance(found, property | functools.cached_property):
                seen.add(name)
                yield name, getattr(found, "fget", None) or getattr(found, "func", None), True
            elif isinstance(found, classmethod | staticmethod) or inspect.isfunction(found):
                seen.add(name)
                function = getattr(found, "__func__", found)
                # What others call, such as Spark its listeners, has their docstring, and is not for users.
                if function.__module__.startswith("penstock") and _doc(kind, name):
                    yield name, function, False


# -- signatures -------------------------------------------------------------------------------------------------------


def annotation(given: Any) -> str:
    """Write a type."""
    if given is inspect.Parameter.empty:
        return ""
    text = given if isinstance(given, str) else inspect.formatannotation(given)
    return re.sub(r"\b(?:collections\.abc|typing|penstock(?:\.\w+)*|datetime|pathlib)\.(?=[A-Za-z])", "", text)


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return repr(value.value)
    if isinstance(value, SHOWN) or value in ([], {}):
        return repr(value)
    return getattr(value, "__qualname__", "...")


def _parameter(item: inspect.Parameter) -> str:
    stars = (
        1 if item.kind is inspect.Parameter.VAR_POSITIONAL else 2 if item.kind is inspect.Parameter.VAR_KEYWORD else 0
    )
    text = f"{'*' * stars}{item.name}"
    given = annotation(item.annotation)
    text += f": {given}" if given else ""
    if item.default is not inspect.Parameter.empty:
        text += f" = {_default(item.default)}" if given else f"={_default(item.default)}"
    return text


def signature(name: str, function: Any, *, is_method: bool = False) -> str:
    """Write the signature of a function, in as many lines as it takes."""
    found = inspect.signature(function)
    items = list(found.parameters.values())[1 if is_method else 0 :]
    words = list[str]()
    for number, item in enumerate(items):
        if item.kind is inspect.Parameter.KEYWORD_ONLY and not any(
            before.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL)
            for before in items[:number]
        ):
            words.append("*")
        words.append(_parameter(item))
    returned = annotation(found.return_annotation)
    head = "async " if inspect.iscoroutinefunction(function) else ""
    end = f") -> {returned}" if returned else ")"
    line = f"{head}{name}({', '.join(words)}{end}"
    if len(line) <= WIDTH:
        return line
    return f"{head}{name}(\n" + "".join(f"    {word},\n" for word in words) + end
