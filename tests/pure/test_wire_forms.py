"""Which form of the wire runs, and that a package can be built and installed with and without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock import wire
from tests.wire_sets import FORMS, PLAIN, form

ROOT = Path(__file__).resolve().parents[2]
SAY = "import penstock.wire as w; from penstock.wire import columns; print(w.compiled, columns.COMPILED)"


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_environment_forces_the_plain_form() -> None:
    """PENSTOCK_PURE=1 gives plain modules, wherever they are imported from; 0 and nothing leave the choice alone."""
    assert run(SAY, PENSTOCK_PURE="1") == "False False"
    asked_first = "from penstock.wire.columns import Columns, COMPILED; import penstock.wire; print(COMPILED)"
    assert run(asked_first, PENSTOCK_PURE="1") == "False"
    usual = "True True" if len(FORMS) == 2 else "False False"
    assert run(SAY, PENSTOCK_PURE="0") == usual
    assert run(SAY, PENSTOCK_PURE="") == usual


def test_the_plain_form_needs_no_cython() -> None:
    """Where Cython is not installed, the plain modules run without it."""
    hide = "import sys; sys.modules['cython'] = None; "
    assert run(hide + SAY, PENSTOCK_PURE="1") == "False False"


def test_both_forms_can_stand_side_by_side() -> None:
    """Loading the plain set leaves the modules in use alone, and the set holds together."""
    assert PLAIN["columns"].Numbers is PLAIN["buffers"].Numbers
    assert not any(module.COMPILED for module in PLAIN.values())
    again = wire.load_plain()
    assert again["columns"] is not PLAIN["columns"]
    assert sys.modules["penstock.wire.columns"] is not again["columns"]
    if len(FORMS) == 2:
        compiled = form("compiled")
        assert compiled.columns is sys.modules["penstock.wire.columns"]
        assert all(getattr(compiled, name).COMPILED for name in wire.MODULES)


def build(tmp_path: Path, **environment: str) -> list[str]:
    """Build a wheel from a copy of the sources and give the names in it, unpacked in `site`."""
    copy = tmp_path / "copy"
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    for name in files:
        if name and (ROOT / name).is_file() and (name.startswith("src/") or "/" not in name):
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        copy,
    ]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
        return packed.namelist()


def installed(tmp_path: Path) -> str:
    """Say which form runs where the wheel is installed, and that it works."""
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {SAY}; print(w.__file__); "
    code += "p = w.protocol.Parser(); p.feed(b'PING\\r\\n'); print(type(p.next_event()).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    form_of, where, event = done.stdout.split("\n")[:3]
    assert where.startswith(str(tmp_path)), "another penstock was imported"
    assert event == "Ping"
    return form_of


def test_a_package_without_a_compiler(tmp_path: Path) -> None:
    """Where the C compiler fails, the build still gives a wheel, and the wire runs as plain Python."""
    names = build(tmp_path, CC="/bin/false", LDSHARED="/bin/false")
    assert "penstock/wire/columns.py" in names
    assert not [name for name in names if name.endswith(".so")]
    assert installed(tmp_path) == "False False"


@pytest.mark.skipif(len(FORMS) < 2, reason="there is no C compiler on this machine")
def test_a_package_with_a_compiler(tmp_path: Path) -> None:
    """Where a C compiler is found, the wheel holds every wire module compiled, and its source beside it."""
    names = build(tmp_path, CFLAGS="-O0")  # quick to build; what is tested is that it is there
    for module in wire.MODULES:
        assert f"penstock/wire/{module}.py" in names
        assert [name for name in names if name.startswith(f"penstock/wire/{module}.") and name.endswith(".so")]
    assert installed(tmp_path) == "True True"
