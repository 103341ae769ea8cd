"""Run the compiled modules under AddressSanitizer: `make asan [MINUTES=m]`.

The sources are copied to a scratch folder and compiled there with -fsanitize=address; Python's own memory comes from
malloc, so that a byte behind a buffer is known to be nobody's. First a planted overflow must be found: a sanitizer that
sees nothing proves nothing. Then the corpus, the hypothesis sets of wire, store and channels, and mutated bytes run
over the compiled forms. What AddressSanitizer finds ends the process with its report; `--page` writes a row into
docs/why/hostile-input.md if it comes to its end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = (
    *(
        "blake2",
        "wire",
        "wire-small",
        "headers",
        "plain-acks",
        "frames",
        "outbox",
        "records",
        "entries",
        "s2",
        "s2-block",
    ),
    *("checksums", "store", "backup", "backup-tar", "channels-publishes", "channels-answers", "channels-acks"),
)
SETS = (
    *("test_wire_agree", "test_wire_columns", "test_wire_dispatch", "test_wire_frames", "test_wire_outbox_frames"),
    *("test_wire_plain_acks", "test_wire_acked_rows", "test_wire_blake2", "test_wire_protocol", "test_wire_offsets"),
    *("test_store_formats", "test_store_golden", "test_channels_codec", "test_channels_messages"),
)
PLANTED = """
import ctypes
buffer = bytearray(64)
place = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
ctypes.memmove(ctypes.create_string_buffer(4096), place, 512)
"""


def library() -> str:
    """Give AddressSanitizer's library."""
    compiler = shutil.which("gcc") or sys.exit("make asan needs gcc.")
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    path = found.stdout.strip()
    if not Path(path).is_absolute():
        sys.exit("make asan needs libasan: install libasan for this gcc.")
    return str(Path(path).resolve())


def build(scratch: Path) -> Path:
    """Compile a copy of the sources; give the folder to import from."""
    shutil.copytree(ROOT / "src", scratch / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, scratch)
    flags = "-fsanitize=address -fno-omit-frame-pointer -g -O1"
    environment = {**os.environ, "CC": "gcc", "CFLAGS": flags, "LDFLAGS": "-fsanitize=address", "PENSTOCK_PURE": "0"}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
    done = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, check=False)
    made = list((scratch / "src").rglob("*.so"))
    if done.returncode or not made:
        sys.exit(f"The modules cannot be compiled:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    print(f"{len(made)} modules compiled with -fsanitize=address", flush=True)
    return scratch / "src"


def main() -> int:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--page", action="store_true", help="write what was found into docs/why/hostile-input.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-asan-") as name:
        source = build(Path(name))
        environment = {
            **os.environ,
            "LD_PRELOAD": library(),
            "PYTHONMALLOC": "malloc",
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=86:allocator_may_return_null=1",
            "PYTHONPATH": f"{source}:{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PENSTOCK_PURE": "0",
        }

        def run(what: str, *command: str) -> int:
            print(f"-- {what}", flush=True)
            return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=False).returncode

        planted = subprocess.run(
            [sys.executable, "-c", PLANTED], env=environment, capture_output=True, text=True, check=False
        )
        if planted.returncode != 86 or "heap-buffer-overflow" not in planted.stderr:
            print(f"A planted overflow was not found:\n{planted.stderr[-1000:]}")
            return 1
        print("a planted overflow is found", flush=True)
        said = "import penstock.wire.columns as c; print('compiled:', c.COMPILED, c.__file__.endswith('.so'))"
        tests = [f"tests/pure/{item}.py" for item in SETS]
        failed = run("what runs", "-c", said) or run(
            "the hypothesis sets", "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *tests
        )
        page = ["--page", "--as", f"make asan MINUTES={given.minutes:g}"] if given.page else []
        return failed or run(
            "mutated bytes", "-m", "tests.fuzz.run", "--minutes", str(given.minutes), *page, "--only", *TARGETS
        )


if __name__ == "__main__":
    sys.exit(main())
