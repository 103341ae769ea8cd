"""Writes docs/reference/licences.md: under which licence everything is that the wheel holds, or needs.

`make docs` runs it. The licence of a package is what its own metadata say; a test compares them.
"""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["CONTENTS", "licence", "needed", "page", "pinned"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "licences.md"
# What the wheel holds, by the endings of its files.
CONTENTS = {
    ".py .pxd .pyi .typed": ("our own source", "Apache-2.0"),
    ".so": ("modules of ours that Cython compiled, with the parts of its runtime that it adds", "Apache-2.0"),
    ".html .css .js .svg": ("pages, style, script and sign of the console and of a report: ours", "Apache-2.0"),
    ".tsv": ("the error codes of nats-server, with our judgement of each", "Apache-2.0"),
    ".toml .yaml .sql .md .in .gitignore": ("the pipeline of the demo, and the template of one: ours", "Apache-2.0"),
}
# How packages spell their licence, and how SPDX does.
_SPELLED = {
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache-2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "http://www.apache.org/licenses/license-2.0": "Apache-2.0",
    "isc license": "ISC",
    "mit": "MIT",
    "mit license": "MIT",
    "bsd license": "BSD-3-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "python software foundation license": "PSF-2.0",
}
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def needed() -> dict[str, set[str]]:
    """Give every package that the project needs to run, and the extras that bring it; "" is not an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {"": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, set[str]] = {}
    for extra, lines in wanted.items():
        for line in lines:
            for name in _tree(Requirement(line), set()):
                if name != "penstock":
                    found.setdefault(name, set()).add(extra)
    return dict(sorted(found.items()))


def _tree(wanted: Requirement, seen: set[tuple[str, str]]) -> Iterator[str]:
    name = canonicalize_name(wanted.name)
    if name == "penstock":  # an extra that names others
        return
    yield name
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for extra in ("", *wanted.extras):
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for line in lines:
            inner = Requirement(line)
            if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                if extra and "extra" not in str(inner.marker):
                    continue
                yield from _tree(inner, seen)


def licence(name: str) -> str:
    """Give the licence that a package says it has, as SPDX spells it."""
    about = importlib.metadata.metadata(name)
    if "License-Expression" in about:
        return str(about["License-Expression"])
    said = [str(about["License"]) if "License" in about else ""]
    said += [str(item).rpartition(" :: ")[2] for item in about.get_all("Classifier") or [] if "License ::" in str(item)]
    for item in said:
        if (known := _SPELLED.get(item.strip().lower())) is not None:
            return known
    return next((item.splitlines()[0] for item in said if item), "unknown")


def pinned() -> dict[str, str]:
    """Give the versions that `make test` runs with."""
    text = (ROOT / "requirements" / "dev.txt").read_text()
    return {canonicalize_name(name): version for name, version in _PINNED.findall(text)}


def page() -> str:
    """Write the page."""
    contents = [
        f"| {' '.join(f'`{end}`' for end in ends.split())} | {what} | {under} |"
        for ends, (what, under) in CONTENTS.items()
    ]
    packages = [
        f"| {name} | {licence(name)} | {', '.join(f'`{extra}`' if extra else 'always' for extra in sorted(extras))} |"
        for name, extras in needed().items()
    ]
    return "\n".join(
        [
            "# Licences",
            "",
            "Written by `make docs` from what packages say of themselves.",
            "",
            "## What the wheel holds",
            "",
            "| files | what they are | licence |",
            "|---|---|---|",
            *contents,
            "",
            "No code of others is copied into it. Its own licence is the file `LICENSE`, which the wheel holds, too.",
            "",
            "## What it needs",
            "",
            "Installed beside it by pip, with their own licences; `always`, or with the extra that is named.",
            "",
            "| package | licence | with |",
            "|---|---|---|",
            *packages,
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
