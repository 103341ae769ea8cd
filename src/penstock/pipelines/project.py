"""A pipeline project on disk: the spec that Spark reads, the topology beside it, and where its state lives."""

from __future__ import annotations

import difflib
import glob
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import InputError
from penstock.jetstream.topology import Topology

__all__ = ["SPEC_NAMES", "Project", "local_path", "names_catalog"]

SPEC_NAMES = ("spark-pipeline.yaml", "spark-pipeline.yml")
TOPOLOGY_NAME = "topology.toml"
_FIELDS = ("name", "storage", "catalog", "database", "schema", "configuration", "libraries")
# Spark writes the path of a storage as a URI, and reads that as a path: a space, and checkpoints are in another folder.
# With the last four in a path its catalog fails.
_MISTAKEN = re.compile(r"[\s\x00-\x1f\x7f%#?\"<>\[\]{}|\\^`;:$*]")

# With any of these the catalog is not the one that a run keeps in its storage.
_CATALOGS = (
    "spark.sql.catalog",
    "spark.sql.defaultCatalog",
    "spark.sql.hive.metastore",
    "spark.hadoop.javax.jdo",
    "spark.hadoop.hive.metastore",
    "spark.hive.metastore",
)
_DEEPEST = 50  # levels of lists and tables in a spec


@dataclass(frozen=True)
class Project:
    """A spec and what goes with it, checked before Spark is started."""

    spec: Path
    name: str
    storage: str
    """Where checkpoints, tables and the catalog live, as a URI with a scheme."""
    catalog: str | None = None
    database: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    topology: Topology | None = None

    @classmethod
    def load(cls, path: str | Path = ".", *, storage: str | Path | None = None) -> Project:
        """Read the project in a folder, or the one of a spec file; `storage` takes the place of the spec's."""
        spec = _find(Path(path))
        content = _read(spec)
        for what, remedy in _faults(spec, content):
            raise InputError(what, remedy=remedy)
        beside = spec.parent / TOPOLOGY_NAME
        return cls(
            spec=spec,
            name=content["name"],
            storage=_uri(str(storage) if storage is not None else content["storage"], spec.parent),
            catalog=content.get("catalog"),
            database=content.get("database", content.get("schema")),
            configuration=content.get("configuration", {}),
            topology=Topology.load(beside) if beside.exists() else None,
        )

    @property
    def folder(self) -> Path:
        """The folder of the project."""
        return self.spec.parent

    @property
    def local_storage(self) -> Path | None:
        """The storage as a folder of this machine; None if it is elsewhere."""
        return local_path(self.storage)

    @property
    def warehouse(self) -> Path | None:
        """The folder that holds the tables, if it is on this machine."""
        named = self.configuration.get("spark.sql.warehouse.dir")
        if named is not None:
            return local_path(named) if urlsplit(named).scheme else Path(named)
        return self.local_storage / "warehouse" if self.local_storage is not None else None

    def at(self, storage: str | Path) -> Project:
        """Give the same project with its state elsewhere."""
        return replace(self, storage=_uri(str(storage), self.folder))

    def with_warehouse(self, folder: Path) -> Project:
        """Give the same project with its tables elsewhere."""
        return replace(self, configuration={**self.configuration, "spark.sql.warehouse.dir": str(folder)})


def names_catalog(catalog: str | None, settings: Mapping[str, str]) -> bool:
    """Whether a spec, or who runs it, names a catalog: then tables are not the storage's alone."""
    return catalog is not None or any(key.startswith(_CATALOGS) for key in settings)


def _find(path: Path) -> Path:
    path = path.expanduser()
    if path.is_file():
        return path.resolve()
    if not path.is_dir():
        what = f"There is no pipeline at {path}."
        raise InputError(what, remedy="Name a folder, or make one: penstock pipeline new.")
    found = [path / name for name in SPEC_NAMES if (path / name).is_file()]
    if not found:
        what = f"There is no {SPEC_NAMES[0]} in {path.resolve()}."
        raise InputError(what, remedy="Name the folder of a pipeline, or make one: penstock pipeline new.")
    if len(found) > 1:
        raise InputError(f"{path} holds {' and '.join(SPEC_NAMES)}.", remedy="Keep one of them.")
    return found[0].resolve()


def _read(spec: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        what = "Pipelines need pyspark with its pipelines extra."
        raise InputError(what, remedy="Run: pip install 'penstock[spark]'.") from None
    try:
        text, depth = spec.read_text(encoding="utf-8"), 0
        for event in yaml.parse(text, yaml.SafeLoader):  # bit by bit: what is nested deep takes very long as a whole
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise InputError(f"{spec} cannot be read: it is nested too deep.", remedy="Mend it.")
        content = yaml.safe_load(text)
    except InputError:
        raise
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: no UTF-8, a day that is none
        raise InputError(f"{spec} cannot be read: {error}.", remedy="Mend it.") from None
    if not isinstance(content, dict):
        raise InputError(f"{spec} holds no fields.", remedy="Write name, storage and libraries.")
    return content


def _faults(spec: Path, content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Find what Spark would refuse, after it has started: what is wrong with a spec, and what to do."""
    for key in content:
        if key not in _FIELDS:
            near = difflib.get_close_matches(str(key), _FIELDS, n=1)
            remedy = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(_FIELDS)}."
            yield f"{spec} has no field {key!r}.", remedy
    for key in ("name", "storage"):
        if not isinstance(content.get(key), str) or not content[key]:
            yield f"{spec} does not say its {key}.", f"Add a line: {key}: ..."
    for key in ("catalog", "database", "schema"):
        if not isinstance(content.get(key), str | None):
            yield f"{spec} has a {key} that is not text.", "Write it in quotes."
    yield from _faults_of_libraries(spec, content.get("libraries", []))
    settings = content.get("configuration", {})
    if not isinstance(settings, dict):
        yield f"{spec}: configuration is not a table.", "Write lines of key: value."
    for key, value in settings.items():
        if not isinstance(key, str) or not isinstance(value, str):
            yield f"{spec}: the setting {key} in configuration is not text.", f'Write it in quotes: {key}: "..."'


def _faults_of_libraries(spec: Path, libraries: Any) -> Iterator[tuple[str, str]]:
    """Find other patterns than the two that Spark knows, and files of other kinds."""
    remedy = "Write: libraries: [{glob: {include: folder/**}}]."
    patterns, found = list[Any](), list[Path]()
    try:
        patterns += [entry["glob"]["include"] for entry in libraries]
    except (TypeError, KeyError):
        yield f"{spec}: libraries is not a list of globs.", remedy
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern or Path(pattern).is_absolute():
            yield f"{spec}: libraries names {pattern!r}, which is not a path inside the project.", remedy
        if glob.has_magic(pattern.removesuffix("/**")):
            yield f"{spec}: Spark takes no glob such as {pattern}.", "Name a file, or folder/**."
        files = spec.parent.glob(f"{pattern}/*" if pattern.endswith("/**") else pattern)
        try:
            found += [path for path in files if path.is_file() and "__pycache__" not in path.parts]
        except (OSError, ValueError):  # a name that is too long, or holds a zero byte
            yield f"{spec}: libraries names {pattern[:200]!r}, which can be no path.", remedy
    if not found:
        remedy = "Write transformations, and name their folder under libraries."
        yield f"{spec} names no file that defines anything.", remedy
    for path in found:
        if path.suffix not in (".py", ".sql"):
            named = path.relative_to(spec.parent)
            yield (
                f"{spec} names {named}, and a pipeline is defined in .py and .sql files.",
                "Move it to another folder.",
            )


def _uri(storage: str, folder: Path) -> str:
    named = storage if urlsplit(storage).scheme else f"file://{(folder / Path(storage).expanduser()).resolve()}"
    local = local_path(named)
    if local is not None and (mistaken := _MISTAKEN.search(str(local))):
        what = f"The storage {local} has {mistaken.group()!r} in its path, which Spark gets wrong."
        raise InputError(what, remedy="Name a folder without it, in the spec or with --storage.")
    return named


def local_path(uri: str) -> Path | None:
    """Give the folder that a URI names on this machine, to the letter: Spark takes no quotes out of it."""
    found = re.fullmatch(r"file:(?://(?=/))?(/(?!/).*|/)", uri, re.DOTALL)
    return Path(found.group(1)) if found else None
