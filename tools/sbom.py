"""What a wheel is made of and needs, as CycloneDX 1.6: itself, and the pinned versions of its dependencies.

The versions and hashes are those of `requirements/`, with which it was tested: required ones from base.txt, those of
extras, which a user may leave out, from dev.txt. Pure: a wheel and the requirement files in, text out.
"""

from __future__ import annotations

import email
import hashlib
import json
import re
import sys
import tomllib
import uuid
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENTRY = re.compile(r"^([a-z0-9._-]+)==([^\s;\\]+)[^\n]*((?:\n +--hash=[^\n]*)*)", re.MULTILINE)
"""A pin of a requirement file: the package, its version, and the lines with its hashes."""
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def text(wheel: Path) -> str:
    """Give the bill of a wheel as JSON; the same wheel gives the same bill."""
    return json.dumps(bill(wheel), indent=2) + "\n"


def bill(wheel: Path) -> dict[str, Any]:
    """Give the bill of a wheel."""
    metadata = _metadata(wheel)
    name, version = metadata["Name"], metadata["Version"]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    needed = _pins("base.txt")
    optional = {key: value for key, value in _pins("dev.txt").items() if key in _closure()}
    us = {
        "type": "library",
        "bom-ref": _purl(name, version),
        "name": name,
        "version": version,
        "purl": _purl(name, version),
        "description": metadata["Summary"],
        "licenses": [{"license": {"id": metadata["License-Expression"]}}],
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }
    components = [
        {
            "type": "library",
            "bom-ref": _purl(key, found),
            "name": key,
            "version": found,
            "purl": _purl(key, found),
            "scope": "required" if key in needed else "optional",
            # One of these is the file that was installed: a pin allows each file of the version.
            "properties": [{"name": "penstock:sha256", "value": digest} for digest in hashes],
        }
        for key, (found, hashes) in sorted({**optional, **needed}.items())
        if key != name
    ]
    direct = {_key(line) for line in metadata.get_all("Requires-Dist") or []}
    known = {part["name"]: part["bom-ref"] for part in components}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{wheel.name} {digest}')}",
        "version": 1,
        "metadata": {"component": us},
        "components": components,
        "dependencies": [
            {"ref": us["bom-ref"], "dependsOn": sorted(known[key] for key in direct if key in known)},
            *({"ref": part["bom-ref"]} for part in components),
        ],
    }


def _metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (item for item in packed.namelist() if item.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(packed.read(name))


def _pins(file: str) -> dict[str, tuple[str, list[str]]]:
    content = (ROOT / "requirements" / file).read_text()
    return {_key(found[1]): (found[2], _HASH.findall(found[3])) for found in ENTRY.finditer(content)}


def _closure() -> set[str]:
    """Give the packages that the extras bring, with all that those need."""
    import importlib.metadata

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [_key(line) for lines in project["optional-dependencies"].values() for line in lines]
    found: set[str] = set()
    while waiting:
        key = waiting.pop()
        if key in found:
            continue
        found.add(key)
        try:
            lines = importlib.metadata.requires(key) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        extras = {"pyspark": ("connect", "pipelines")}.get(key, ())
        waiting += [
            _key(line)
            for line in lines
            if "extra ==" not in line or any(f'extra == "{extra}"' in line.replace("'", '"') for extra in extras)
        ]
    return found


def _key(requirement: str) -> str:
    """Give the name of a package as indexes write it."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{_key(name)}@{version}"


if __name__ == "__main__":
    print(text(Path(sys.argv[1])), end="")
