"""Projects on disk: what a spec may say, where state and tables are, what `pipeline new` writes; replay settings."""

from __future__ import annotations

import ast
import json
import os
import py_compile
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import penstock.pipelines
from penstock.errors import InputError
from penstock.pipelines.new_project import write_project
from penstock.pipelines.project import Project
from penstock.pipelines.settings import Target, in_replay, start_position, target
from penstock.spark.pipeline_replay import VARIABLE, PipelineReplay

GOOD: dict[str, Any] = {"name": "shop", "storage": "state", "libraries": [{"glob": {"include": "flows/**"}}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two definitions, and no spec yet."""
    (tmp_path / "flows" / "deep").mkdir(parents=True)
    (tmp_path / "flows" / "a.py").write_text("x = 1\n")
    (tmp_path / "flows" / "deep" / "b.sql").write_text("SELECT 1\n")
    return tmp_path


def spec_in(folder: Path, **fields: Any) -> Path:
    """Write a spec: the good one with some fields changed; those that are ... are left out."""
    content = {key: value for key, value in {**GOOD, **fields}.items() if value is not ...}
    path = folder / "spark-pipeline.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


# -- finding a project -------------------------------------------------------------------------------------------------


def test_a_project_is_found_by_its_folder_or_its_spec(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder, a spec of any name, a path below ~, and the folder that one is in name the same project."""
    path = spec_in(folder)
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.chdir(folder)
    for named in (folder, path, str(folder), Path("~") / folder.name, "."):
        project = Project.load(named)
        assert (project.spec, project.folder, project.name) == (path, folder, "shop")
    other = path.rename(folder / "other.yaml")
    assert Project.load(other).spec == other
    with pytest.raises(InputError, match=r"no spark-pipeline\.yaml in .*pipeline new"):
        Project.load(folder)


def test_both_names_of_a_spec_are_known_and_only_one_may_be_there(folder: Path):
    """Spark reads .yaml and .yml; where both are there, nobody guesses."""
    path = spec_in(folder)
    (folder / "spark-pipeline.yml").write_text(path.read_text())
    with pytest.raises(InputError, match=r"spark-pipeline\.yaml and spark-pipeline\.yml\. Keep one"):
        Project.load(folder)
    path.unlink()
    assert Project.load(folder).spec == folder / "spark-pipeline.yml"
    with pytest.raises(InputError, match=r"no pipeline at .*nowhere.*pipeline new"):
        Project.load(folder / "nowhere")


# -- what a spec may say -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": ...}, "does not say its name"),
        ({"name": ""}, "does not say its name"),
        ({"name": 5}, "does not say its name"),
        ({"storage": None}, "does not say its storage"),
        ({"storages": "x"}, r"no field 'storages'\. Did you mean storage\?"),
        ({"qqq": "x"}, "no field 'qqq'. Known: name, storage"),
        ({5: "x"}, "no field 5. Known"),
        ({"catalog": 5}, "a catalog that is not text"),
        ({"database": ["x"]}, "a database that is not text"),
        ({"schema": True}, "a schema that is not text"),
        ({"libraries": ...}, "names no file"),
        ({"libraries": []}, "names no file"),
        ({"libraries": None}, "not a list of globs"),
        ({"libraries": 5}, "not a list of globs"),
        ({"libraries": ["flows/**"]}, "not a list of globs"),
        ({"libraries": [{"glob": "flows/**"}]}, "not a list of globs"),
        ({"libraries": [{"file": {"include": "flows/**"}}]}, "not a list of globs"),
        ({"libraries": [{"glob": {"include": 5}}]}, "names 5, which is not a path"),
        ({"libraries": [{"glob": {"include": ""}}]}, "names '', which is not a path"),
        ({"libraries": [{"glob": {"include": "/etc/**"}}]}, "names '/etc/\\*\\*', which is not a path inside"),
        ({"libraries": [{"glob": {"include": "flows/*.py"}}]}, r"no glob such as flows/\*\.py"),
        ({"libraries": [{"glob": {"include": "flows/**/*.py"}}]}, "no glob such as"),
        ({"libraries": [{"glob": {"include": "f[l]ows/**"}}]}, "no glob such as"),
        ({"libraries": [{"glob": {"include": "nowhere/**"}}]}, "names no file"),
        ({"configuration": None}, "configuration is not a table"),
        ({"configuration": ["a"]}, "configuration is not a table"),
        ({"configuration": {"spark.x": 4}}, r"setting spark\.x in configuration is not text\. Write it in quotes"),
        ({"configuration": {"spark.x": True}}, "is not text"),
        ({"configuration": {"spark.x": None}}, "is not text"),
        ({"configuration": {5: "x"}}, "setting 5 in configuration is not text"),
    ],
)
def test_what_is_wrong_in_a_spec_is_told(folder: Path, fields: dict[Any, Any], says: str):
    """Each thing that a spec gets wrong is told in a sentence that names it, before Spark is started."""
    path = folder / "spark-pipeline.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in {**GOOD, **fields}.items() if value is not ...}))
    with pytest.raises(InputError, match=says) as caught:
        Project.load(folder)
    assert str(path) in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no fields"),
        (b"- a", "holds no fields"),
        (b"a: [", "cannot be read"),
        (b"\xff\xfe\xff", "cannot be read"),
    ],
)
def test_what_is_no_spec_at_all_is_told(folder: Path, content: bytes, says: str):
    """An empty file, a list, broken YAML and no text are all told as what they are."""
    (folder / "spark-pipeline.yaml").write_bytes(content)
    with pytest.raises(InputError, match=says):
        Project.load(folder)


def test_a_file_that_defines_nothing_is_told(folder: Path):
    """Spark ends at a file that is neither Python nor SQL, after it has started; so it is told here."""
    spec_in(folder)
    cache = folder / "flows" / "__pycache__"
    cache.mkdir()
    (cache / "a.cpython-311.pyc").touch()
    assert Project.load(folder).name == "shop"
    (folder / "flows" / "deep" / "README.md").touch()
    with pytest.raises(InputError, match=r"names flows/deep/README\.md, .*\.py and \.sql files"):
        Project.load(folder)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"database": "d", "schema": "s", "catalog": "c"},
        {"schema": "s"},
        {"configuration": {"spark.x": "4", "": ""}},
        {"libraries": [{"glob": {"include": "flows/a.py"}}, {"glob": {"include": "flows/deep/**"}}]},
    ],
)
def test_spark_reads_the_same_in_a_spec(folder: Path, fields: dict[str, Any]):
    """What is good for us is good for Spark, and means the same there."""
    from pyspark.pipelines.cli import load_pipeline_spec

    path = spec_in(folder, **fields)
    ours, theirs = Project.load(folder), load_pipeline_spec(path)
    assert (ours.name, ours.catalog, ours.database) == (theirs.name, theirs.catalog, theirs.database)
    assert ours.configuration == theirs.configuration


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ...},
        {"storage": ...},
        {"more": 1},
        {"configuration": None},
        {"configuration": {"a": 1}},
        {"configuration": {1: "a"}},
        {"libraries": None},
        {"libraries": [1]},
        {"libraries": [{"glob": {"include": "flows/*.py"}}]},
        {"libraries": [{"glob": {"include": "*/**"}}]},
    ],
)
def test_what_spark_refuses_in_a_spec_is_refused_here(folder: Path, fields: dict[str, Any]):
    """Nothing that Spark would refuse gets as far as Spark."""
    from pyspark.pipelines.cli import load_pipeline_spec

    path = spec_in(folder, **fields)
    with pytest.raises(Exception):  # noqa: B017  # whatever it is that Spark raises
        load_pipeline_spec(path)
    with pytest.raises(InputError):
        Project.load(folder)


# -- where state and tables are ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("storage", "local"),
    [
        ("state", "{folder}/state"),
        ("./a/../state", "{folder}/state"),
        ("/abs/state", "/abs/state"),
        ("~/state", "{home}/state"),
        ("file:///abs/state", "/abs/state"),
        ("file:/abs/state", "/abs/state"),
        ("/abs/shöp/it's=1,+@~&(日)!", "/abs/shöp/it's=1,+@~&(日)!"),
        ("s3a://bucket/state", None),
        ("hdfs:///state", None),
        ("file://host/state", None),
    ],
)
def test_where_the_state_is(folder: Path, monkeypatch: pytest.MonkeyPatch, storage: str, local: str | None):
    """A path is from the spec, a URI is what it says; what is not on this machine has no folder."""
    monkeypatch.setenv("HOME", "/home/ann")
    spec_in(folder, storage=storage)
    project = Project.load(folder)
    expected = None if local is None else Path(local.format(folder=folder, home="/home/ann"))
    assert project.local_storage == expected
    assert project.warehouse == (None if expected is None else expected / "warehouse")
    assert project.storage == (storage if expected is None or storage.startswith("file:") else f"file://{expected}")
    assert Project.load(folder, storage="/other").local_storage == Path("/other")
    assert Project.load(folder).at("other").local_storage == folder / "other"


@pytest.mark.parametrize("character", [*' %#?"<>[]{}|\\^`;:$*\t\n\x7f'])
def test_a_path_that_spark_gets_wrong_is_refused(folder: Path, character: str):
    """Spark would keep checkpoints in another folder, or find no catalog: so such a path is refused, with the cause."""
    spec_in(folder)
    for storage in (f"/abs/a{character}b", f"file:///abs/a{character}b"):
        with pytest.raises(InputError, match=re.escape(f"has {character!r} in its path, which Spark gets wrong")):
            Project.load(folder, storage=storage)
    with pytest.raises(InputError, match="which Spark gets wrong"):
        Project.load(folder).at(folder / f"x{character}")
    assert Project.load(folder, storage=f"s3a://bucket/a{character}b").local_storage is None, "another matter"


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("/w", "/w"),
        ("file:///w", "/w"),
        ("file:/w", "/w"),
        ("/c#/w?x%20y", "/c#/w?x%20y"),
        ("s3a://bucket/w", None),
    ],
)
def test_where_the_tables_are(folder: Path, named: str, found: str | None):
    """The folder of the tables is what the setting says, to the letter: a reset deletes that, and no other."""
    spec_in(folder, configuration={"spark.sql.warehouse.dir": named})
    assert Project.load(folder).warehouse == (None if found is None else Path(found))
    moved = Project.load(folder).with_warehouse(Path("/v#1"))
    assert (moved.warehouse, moved.configuration["spark.sql.warehouse.dir"]) == (Path("/v#1"), "/v#1")


def test_a_topology_beside_the_spec_is_part_of_the_project(folder: Path):
    """`topology.toml` is read with the spec, and what is wrong in it is told at once; none is fine."""
    spec_in(folder)
    assert Project.load(folder).topology is None
    (folder / "topology.toml").write_text('[streams.A]\nsubjects = ["a.>"]\n')
    topology = Project.load(folder).topology
    assert topology is not None
    assert list(topology.streams) == ["A"]
    (folder / "topology.toml").write_text("[streams.A]\nsubject = 5\n")
    with pytest.raises(InputError, match=r"subject"):
        Project.load(folder)


# -- what `pipeline new` writes ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("new"), "my-Sensors_2")


def test_a_new_project_is_whole(written: Path):
    """Every file is there, names the project, and is what its kind must be."""
    files = {str(path.relative_to(written)) for path in written.rglob("*") if path.is_file()}
    assert files == {
        "spark-pipeline.yaml",
        "topology.toml",
        "transformations/readings.py",
        "transformations/alerts.py",
        "transformations/totals.sql",
        "traffic.py",
        "look.ipynb",
        "test_pipeline.py",
        "README.md",
        ".gitignore",
    }
    project = Project.load(written)
    assert (written.name, project.name) == ("my-Sensors_2", "my-Sensors_2")
    assert project.configuration == {"spark.sql.session.timeZone": "UTC"}
    assert (written / "README.md").read_text().startswith("# my-Sensors_2\n")
    assert (written / ".gitignore").read_text() == "storage/\nserver/\n"


def test_the_python_of_a_new_project_is_python(written: Path, tmp_path: Path):
    """Each file compiles, says what it is for, and imports nothing that is not there."""
    for number, path in enumerate(sorted(written.rglob("*.py"))):
        py_compile.compile(str(path), cfile=str(tmp_path / str(number)), doraise=True)
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path.name
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "penstock.pipelines":
                assert {alias.name for alias in node.names} <= set(penstock.pipelines.__all__)


def test_the_sample_of_a_new_project_is_the_same_each_time(written: Path):
    """The traffic and the test of a project agree on the readings: the same seed gives the same ones."""
    sample = runpy.run_path(str(written / "traffic.py"))["sample"]
    assert sample(50) == sample(50) == sample(1000)[:50]
    assert sample(50, seed=2) != sample(50)
    assert 0 < sum(reading["value"] > 90 for reading in sample()) < 1000, "the test would prove nothing"
    assert {reading["sensor"] for reading in sample()} == {f"s{number}" for number in range(8)}


def test_the_streams_of_a_new_project_fit_its_files(written: Path):
    """What the files read, write and publish to are streams and subjects of the topology."""
    topology = Project.load(written).topology
    assert topology is not None
    assert topology.streams["READINGS"].subjects == ["readings.*"]
    assert topology.streams["ALERTS"].subjects == ["alerts.*", "$PENSTOCK.ALERTS.>"]
    assert topology.streams["ALERTS"].allow_atomic
    text = "".join(path.read_text() for path in written.rglob("*.py"))
    assert set(re.findall(r'"stream", "(\w+)"|target\("(\w+)"\)', text)) == {("READINGS", ""), ("", "ALERTS")}


@pytest.mark.parametrize("name", ["", "1a", "a b", "a/b", "../a", "ä", "a" * 65, "-a", "a\n"])
def test_a_name_that_will_not_do_is_refused(tmp_path: Path, name: str):
    """A name is a folder, a name for Spark and part of a database: letters, digits, - and _, a letter first."""
    with pytest.raises(InputError, match="cannot be the name"):
        write_project(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path):
    """A file where a folder must be is told with its cause; nothing is written over."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        write_project(tmp_path / "file", "shop")
    (tmp_path / "shop").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="cannot be written: File exists"):
        write_project(tmp_path, "shop")
    assert (tmp_path / "file").read_text() == "mine"


# -- settings of a replay ----------------------------------------------------------------------------------------------


def encoded(start: str | None, into: dict[str, str]) -> str:
    return PipelineReplay(start, into).to_json()


def test_settings_come_from_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch):
    """Pipeline files ask without arguments, and are told by the environment, each time anew."""
    monkeypatch.delenv(VARIABLE, raising=False)
    assert (start_position(), target("A"), in_replay()) == ("all", Target("A"), False)
    monkeypatch.setenv(VARIABLE, encoded("2026-01-01T00:00:00Z", {"A": "B"}))
    assert (start_position(), target("A"), in_replay()) == ("2026-01-01T00:00:00Z", Target("B", "B."), True)
    monkeypatch.setenv(VARIABLE, "")
    assert (start_position("new"), target("A")) == ("new", Target("A"))


def test_settings_without_a_start_leave_it_to_the_file():
    """A replay into other streams alone reads from where the file says."""
    environ = {VARIABLE: encoded(None, {"A": "B"})}
    assert start_position("42", environ=environ) == "42"
    assert target("A", environ=environ).subject("x.y") == "B.x.y"


def test_settings_are_written_in_one_way():
    """The same settings are the same text, whatever their order: a replay compares what it was begun with."""
    assert encoded("1", {"B": "b", "A": "a"}) == encoded("1", {"A": "a", "B": "b"})
    assert json.loads(encoded("1", {"A": "a"})) == {"start": "1", "into": {"A": "a"}, "switched": False}


@pytest.mark.parametrize(
    "text", ["{", "[]", "5", '"x"', "{}", '{"start": "1"}', '{"into": {}}', '{"start": 1, "into": 5}']
)
def test_settings_that_no_replay_wrote_are_refused(text: str):
    """A variable that somebody set by hand is told by its name, with what to do."""
    for ask in (lambda: start_position(environ={VARIABLE: text}), lambda: target("A", environ={VARIABLE: text})):
        with pytest.raises(InputError, match=rf"{VARIABLE} holds .* which no replay wrote\. Unset it"):
            ask()


# -- the package -------------------------------------------------------------------------------------------------------


def test_names_are_loaded_when_they_are_used():
    """The package lists its names, loads each from its home, and knows no others."""
    assert dir(penstock.pipelines) == penstock.pipelines.__all__ == sorted(penstock.pipelines._HOMES)
    for name, home in penstock.pipelines._HOMES.items():
        assert getattr(penstock.pipelines, name) is getattr(sys.modules[home], name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        penstock.pipelines.nothing  # noqa: B018  # the access is the test


def test_pipeline_files_import_little():
    """A file of a pipeline that asks for its settings loads no Arrow and no Spark for that."""
    import subprocess

    program = "import sys; from penstock.pipelines import start_position, target; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert not {"pyarrow", "pyspark", "pydantic", "nats"} & set(done.stdout.split())
