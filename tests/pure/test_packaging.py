"""What is published: one version, extras that say what they bring, notes, a bill of materials; and a Java for it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import penstock
from penstock import worker_python
from penstock.cli.typed import typed
from penstock.errors import InputError
from penstock.exports import exports
from penstock.extras import EXTRAS, check_installed, missing_packages, without_extra

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# The name of a package, and the one under which it is imported, where these differ.
IMPORTED = {"prometheus-client": "prometheus_client", "pyyaml": "yaml", "nats-py": "nats"}


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_version_stands_in_one_place():
    """The package says its version, and the build reads it there."""
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "penstock.__version__"}
    source = (ROOT / "src" / "penstock" / "__init__.py").read_text()
    assert tool("release").version_of(source) == penstock.__version__
    command = tomllib.loads((ROOT / "packages" / "streaming-server" / "pyproject.toml").read_text())
    assert command["project"]["version"] == penstock.__version__, "the other distribution goes with this one"


def test_every_package_is_typed():
    """Each package that is installed says so to type checkers, and the wheel takes the file along."""
    for package in ("penstock", "pyspark_nats"):
        assert (ROOT / "src" / package / "py.typed").exists()
        assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"][package]


def test_the_wheel_carries_every_file_that_the_commands_read():
    """Each file that git knows under `src/penstock` is Python, or is named by the package data; none is an example."""
    listed = subprocess.run(["git", "ls-files", "src/penstock"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert listed.returncode == 0, listed.stderr
    files = [Path(line).relative_to("src/penstock") for line in listed.stdout.splitlines()]
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["penstock"]
    carried = {path.relative_to(SOURCE) for pattern in patterns for path in SOURCE.glob(pattern)}
    missing = [file for file in files if file.suffix != ".py" and file not in carried]
    assert missing == [], "name them in package-data of pyproject.toml"
    assert Path("demo/orders/topology.toml") in carried
    assert not [file for file in files if file.parts[0] == "examples"]


def test_extras_are_what_the_code_says():
    """Each extra is known to the code that names it to users, with the modules that it brings."""
    declared = PROJECT["project"]["optional-dependencies"]
    assert EXTRAS.keys() == declared.keys() - {"all"}
    for extra, lines in declared.items():
        if extra != "all":
            names = [re.match(r"[\w-]+", line)[0] for line in lines]
            assert tuple(IMPORTED.get(name, name) for name in names) == EXTRAS[extra]


def test_extras_are_told_to_users():
    """The page of the installation has a row for each extra, with the packages that it brings."""
    page = (ROOT / "docs" / "howto" / "install.md").read_text()
    for extra, lines in PROJECT["project"]["optional-dependencies"].items():
        row = re.search(rf"^\| `{extra}` \| (.*?) \|", page, re.MULTILINE)
        assert row is not None, extra
        if extra != "all":
            assert row[1].split(", ") == [re.match(r"[\w-]+", line)[0] for line in lines]


def test_what_is_missing_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    """A package of an extra that is not there is named with what to run; one that is nobody's stays what it is."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert missing_packages("uvloop") == ["uvloop"]
    with pytest.raises(InputError, match=r"Speed needs uvloop, which is not installed.*'penstock\[uvloop\]'"):
        check_installed("uvloop", "Speed")
    assert without_extra(ModuleNotFoundError("x", name="elsewhere"), "x") is None
    said = without_extra(ModuleNotFoundError("x", name="pyarrow.lib"), "This")
    assert "This needs pyarrow" in str(said)


def test_a_name_that_needs_more_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Who uses a name of a room whose extra is missing gets the sentence; other failures are not hidden."""
    for name, text in (("needs_arrow", "import pyarrow.nowhere_at_all"), ("needs_other", "import nowhere_at_all")):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    get, _ = exports("room", {"A": "needs_arrow", "B": "needs_other"})
    with pytest.raises(InputError, match=r"room needs pyarrow.*'penstock\[spark\]'"):
        get("A")
    with pytest.raises(ModuleNotFoundError):
        get("B")


# -- commands as they can be typed, and the Python of Spark ----------------------------------------------------------


def test_commands_are_printed_as_they_can_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """By name in an activated environment, by path in another one, and quoted where a shell needs it."""
    here = tmp_path / "venv" / "bin"
    here.mkdir(parents=True)
    for name in ("python", "python3", "penstock"):
        (here / name).write_text("#!/bin/sh\n")
        (here / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(here / "python"))
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    assert typed("penstock", "pipeline", "run", Path("a b")) == "penstock pipeline run 'a b'"
    assert typed("python", "x.py") == "python x.py"
    (here / "python").unlink()
    assert typed("python", "x.py") == "python3 x.py"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert typed("penstock", "doctor") == f"{here}/penstock doctor"
    assert typed("python", "x.py") == f"{here}/python x.py"
    (here / "penstock").unlink()
    assert typed("penstock", "doctor") == f"{here}/python -m penstock doctor"


@pytest.mark.parametrize("chosen", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"])
def test_spark_uses_this_python_unless_somebody_chose(monkeypatch: pytest.MonkeyPatch, chosen: str):
    """`import penstock.spark` names this Python to Spark only if Spark would take another one, and nobody chose."""
    for name in worker_python._CHOSEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    worker_python.use_this_python()
    assert "PYSPARK_PYTHON" not in os.environ, "the shell finds this one"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with monkeypatch.context() as inner:
        inner.setenv(chosen, "somebody's")
        worker_python.use_this_python()
        assert os.environ.get("PYSPARK_PYTHON") == ("somebody's" if chosen == "PYSPARK_PYTHON" else None)
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    worker_python.use_this_python()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


# -- notes and the bill ------------------------------------------------------------------------------------------------


def test_notes_are_the_section_of_the_version():
    """Notes are what the changelog says of this version, and nothing of another one."""
    notes = tool("release").notes
    log = (
        "# Changelog\n\n## Unreleased\n\n### Added\n\n- new\n\n## 0.2.0 - 2026-11-16\n\n- two\n\n## [0.1.0]\n\n- one\n"
    )
    assert notes(log, "0.2.0", draft=False) == "- two"
    assert notes(log, "0.1.0", draft=False) == "- one"
    assert notes(log, "0.1.0", draft=True) == "### Added\n\n- new"
    assert notes(log, "0.2", draft=False) is None
    assert notes("## Unreleased\n\nNothing yet.\n\n## 0.1.0\n- one", "0.1.0", draft=True) == "- one"
    assert notes("## Unreleased\n\n## 0.2.0\n- two", "0.1.0", draft=True) is None
    assert notes((ROOT / "CHANGELOG.md").read_text(), penstock.__version__, draft=True), "there is something to tell"


@pytest.mark.parametrize(
    ("log", "lacks"),
    [
        ("## Unreleased\n\nNothing yet.\n\n## 0.2.0 - 2026-11-16\n\n- two\n", []),
        ("## Unreleased\n\n- new\n\n## 0.2.0 - 2026-11-16\n\n- two\n", ["Unreleased"]),
        ("## Unreleased\n\n- new\n\n## 0.2.0\n\n- two\n", ["no date", "Unreleased"]),
        ("## Unreleased\n\n- new\n\n## 0.1.0 - 2026-11-16\n\n- one\n", ["no section for 0.2.0"]),
    ],
)
def test_a_version_is_published_with_all_that_is_told_of_it(log: str, lacks: list[str]):
    """The section of a version has a date, and nothing is left for a version to come; a draft may lack both."""
    untold = tool("release").untold
    told = untold(log, "0.2.0", draft=False)
    assert len(told) == len(lacks)
    assert all(lack in sentence for lack, sentence in zip(lacks, told, strict=True))
    assert untold(log, "0.2.0", draft=True) == []


def test_the_bill_of_a_wheel(tmp_path: Path):
    """It names the wheel by its hash, every pinned dependency once, and which of them a user can leave out."""
    wheel = tmp_path / "penstock-9-py3-none-any.whl"
    needs = [*PROJECT["project"]["dependencies"], "pyspark[connect]>=4.2; extra == 'spark'"]
    with zipfile.ZipFile(wheel, "w") as packed:
        lines = ["Name: penstock", "Version: 9", "Summary: s", "License-Expression: Apache-2.0"]
        packed.writestr("penstock-9.dist-info/METADATA", "\n".join([*lines, *(f"Requires-Dist: {x}" for x in needs)]))
    sbom = tool("sbom")
    text = sbom.text(wheel)
    assert text == sbom.text(wheel), "the same wheel, the same bill"
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/penstock@9"
    parts = {part["name"]: part for part in bill["components"]}
    assert len(parts) == len(bill["components"])
    assert {parts[name]["scope"] for name in ("typer", "protobuf", "cffi")} == {"required"}
    assert {parts[name]["scope"] for name in ("pyspark", "pyarrow", "grpcio", "starlette")} == {"optional"}
    assert all(part["properties"] for part in bill["components"]), "each has its hashes"
    assert not {"pytest", "ruff", "mypy", "cython"} & parts.keys()
    direct = bill["dependencies"][0]["dependsOn"]
    assert {re.match(r"pkg:pypi/(.*)@", ref)[1] for ref in direct} >= {"nkeys", "typer", "pyspark"}
    refs = [part["bom-ref"] for part in bill["components"]]
    assert all(ref in refs for ref in direct)


def test_what_is_built_takes_its_pins_with_hashes(monkeypatch: pytest.MonkeyPatch):
    """Builds and trials install exactly the pinned versions: each with its hashes."""
    monkeypatch.syspath_prepend(ROOT / "tools")  # one tool imports another
    text = tool("dist").pinned("dev.txt", ("cython", "setuptools", "wheel"))
    assert [line.partition("==")[0] for line in text.splitlines() if "==" in line] == ["cython", "setuptools", "wheel"]
    assert text.count("--hash=sha256:") > 5


# -- a machine without Java --------------------------------------------------------------------------------------------


def programs(folder: Path, **texts: str) -> str:
    """Make a folder of programs: those that the script needs, and these stand-ins; give it as a PATH."""
    folder.mkdir()
    for name in ("bash", "env", "id", "sed", "head", "tail", "mktemp", "rm", "readlink", "mkdir", "cp"):
        (folder / name).symlink_to(f"/usr/bin/{name}" if Path(f"/usr/bin/{name}").exists() else f"/bin/{name}")
    for name, text in texts.items():
        path = folder / name.replace("_", "-")
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(folder)


def find_java(tmp_path: Path, **texts: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": programs(tmp_path / "bin", **texts), "JVMS": str(tmp_path / "jvm"), "HOME": str(tmp_path)}
    return subprocess.run(
        ["/bin/bash", str(ROOT / "tools" / "java")], env=env, capture_output=True, text=True, timeout=60
    )


JAVA = "echo 'openjdk version \"{}.0.1\"' >&2"
INSTALL = """case "$*" in
  *update*) exit 0 ;;
  *openjdk-21*) mkdir -p {jvm}/new/bin; cp {ready} {jvm}/new/bin/java ;;
  *) echo 'E: Unable to locate package'; exit 100 ;;
esac"""


def test_a_java_that_is_there_is_found(tmp_path: Path):
    """The Java of the shell is taken if it is new enough."""
    done = find_java(tmp_path, java=JAVA.format(17))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path}\n", "")


def test_without_java_and_apt_one_sentence_says_what_to_install(tmp_path: Path):
    """No Java, or one that is too old, and nothing that could install one."""
    done = find_java(tmp_path, java=JAVA.format(11))
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "Java 17 or newer is needed for Spark, and there is none here: install one" in line


def test_the_set_up_says_so_before_it_installs_anything(tmp_path: Path):
    """`make demo` and `make test` begin with the set-up: without Java it ends in that sentence, and leaves nothing."""
    path = programs(tmp_path / "bin")
    for name in ("dirname", "cat"):
        (tmp_path / "bin" / name).symlink_to(
            f"/usr/bin/{name}" if Path(f"/usr/bin/{name}").exists() else f"/bin/{name}"
        )
    (tmp_path / "tools").mkdir()
    for name in ("setup", "java"):
        shutil.copy(ROOT / "tools" / name, tmp_path / "tools" / name)
    env = {"PATH": path, "JVMS": str(tmp_path / "jvm"), "HOME": str(tmp_path)}
    words = ["/bin/bash", str(tmp_path / "tools" / "setup")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("setup: Java 17 or newer is needed for Spark, and there is none here: install one")
    assert not (tmp_path / ".venv").exists()
    for target in ("demo", "test"):
        assert re.search(rf"^{target}: setup\b", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_without_java_and_without_rights_the_command_is_named(tmp_path: Path):
    """With apt-get, and nobody who may use it without a password."""
    done = find_java(tmp_path, apt_get="exit 1", id="echo 1000", sudo="exit 1")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert 'run "sudo apt-get install openjdk-17-jre-headless" (openjdk-21-jre-headless on newer' in line


def test_java_is_installed_with_apt_under_the_name_that_there_is(tmp_path: Path):
    """A newer distribution has no Java 17 any more: the next name is tried."""
    ready = Path(programs(tmp_path / "ready", java=JAVA.format(21)), "java")
    done = find_java(tmp_path, apt_get=INSTALL.format(jvm=tmp_path / "jvm", ready=ready), id="echo 0")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path}/jvm/new\n"


@pytest.mark.parametrize("fails", ["update", "install"])
def test_an_apt_that_fails_is_told_in_its_own_words(tmp_path: Path, fails: str):
    """No network, or no such package: what apt-get said last is in the sentence."""
    text = f"case \"$*\" in *{fails}*) echo 'E: no network' >&2; exit 100 ;; esac"
    done = find_java(tmp_path, apt_get=text, id="echo 0")
    assert done.returncode == 1
    assert "E: no network" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
