"""Looks for known faults in the pinned packages with pip-audit, once a day; `make lint` runs it.

It is skipped, with a word, if the index of faults cannot be reached, or if AUDIT=0. pip-audit has an environment of its
own in `.venv/audit`: what it needs is nothing that we stand on.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import subprocess
import sys
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PINNED = ROOT / "requirements" / "dev.txt"
INDEX = "https://pypi.org/pypi/pip/json"  # where pip-audit asks for each package
PROGRAM = "pip-audit==2.9.0"
PLACE = ROOT / ".venv" / "audit"
STAMP = ROOT / ".venv" / ".audited"
LONGEST = 240  # seconds for each of the two steps, of which the first is taken once
# Faults that were looked at and do not concern us, each with the reason.
IGNORED: dict[str, str] = {}


def reason_to_skip() -> str | None:
    """Say why nothing can be looked for; None if it can."""
    if os.environ.get("AUDIT") == "0":
        return "AUDIT is 0"
    try:
        with urllib.request.urlopen(INDEX, timeout=5) as answer:
            if b'"vulnerabilities"' not in answer.read():
                return f"{INDEX} tells of no faults"
    except (OSError, ValueError) as error:
        return f"{INDEX} cannot be reached ({error})"
    if not (PLACE / "bin" / "pip-audit").exists():
        venv.create(PLACE, with_pip=True)
        install = [str(PLACE / "bin" / "python"), "-m", "pip", "install", "--quiet", PROGRAM]
        if subprocess.run(install, capture_output=True, timeout=LONGEST, check=False).returncode:
            return f"{PROGRAM} cannot be installed"
    return None


def main() -> int:
    """Give the status of the command: 1 if a package has a fault that is known."""
    try:
        return _audit()
    except subprocess.TimeoutExpired:
        print(f"pip-audit: skipped, it took longer than {LONGEST} s.", file=sys.stderr)
        return 0


def _audit() -> int:
    mark = f"{datetime.date.today()} {hashlib.sha256(PINNED.read_bytes()).hexdigest()}"
    if STAMP.exists() and STAMP.read_text() == mark:
        return 0
    if (why := reason_to_skip()) is not None:
        print(f"pip-audit: skipped, {why}.", file=sys.stderr)
        return 0
    words = [str(PLACE / "bin" / "pip-audit"), "-r", str(PINNED), "--disable-pip", "--require-hashes"]
    words += ["--progress-spinner", "off", *(f"--ignore-vuln={name}" for name in IGNORED)]
    done = subprocess.run(words, check=False, timeout=LONGEST, capture_output=True, text=True)
    if done.returncode == 0:
        STAMP.write_text(mark)
        return 0
    print(done.stdout + done.stderr, file=sys.stderr)
    if "Found" not in done.stdout + done.stderr:  # it could not look, which is nobody's fault here
        print("pip-audit: skipped, it could not look.", file=sys.stderr)
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
