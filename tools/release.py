"""The two ends of `make release`: what must be so before anything is built, and the notes of the version after it.

python tools/release.py check           one sentence for each thing that is not so
python tools/release.py notes           the section of CHANGELOG.md into dist/NOTES.md
--draft                                 takes the section "Unreleased", and lets the tree be as it is
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def main() -> None:
    """Check, or write the notes."""
    words = sys.argv[1:]
    draft = "--draft" in words
    version = version_of((ROOT / "src" / "penstock" / "__init__.py").read_text())
    if "check" in words:
        if wrong := problems(version, draft=draft):
            sys.exit("\n".join(f"release: {sentence}" for sentence in wrong))
    elif "notes" in words:
        text = notes((ROOT / "CHANGELOG.md").read_text(), version, draft=draft)
        if text is None:
            sys.exit(f"release: CHANGELOG.md has no section for {version}.")
        (ROOT / "dist").mkdir(exist_ok=True)
        (ROOT / "dist" / "NOTES.md").write_text(f"# Penstock {version}\n\n{text}\n")
        print(f"release: dist/NOTES.md, {len(text.splitlines())} lines")
    else:
        sys.exit("release: say check or notes.")


def version_of(source: str) -> str:
    """Give the version that the package says of itself: the one place in which it stands."""
    found = _VERSION.search(source)
    assert found is not None, "src/penstock/__init__.py has no __version__"
    return found[1]


def notes(changelog: str, version: str, *, draft: bool) -> str | None:
    """Give the section of a version; None if there is none, or nothing in it."""
    wanted = "Unreleased" if draft else version
    for section in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        head, _, text = section.partition("\n")
        if re.fullmatch(rf"\[?{re.escape(wanted)}\]?( .*)?", head.strip()):
            return text.strip() or None
    return None


def problems(version: str, *, draft: bool) -> list[str]:
    """Give what keeps this version from being published."""
    found = []
    if notes((ROOT / "CHANGELOG.md").read_text(), version, draft=draft) is None:
        what = "Unreleased" if draft else f"{version}, which src/penstock/__init__.py names"
        found.append(f"CHANGELOG.md has no section for {what}: write one, such as `## {version} - YYYY-MM-DD`.")
    if draft:
        return found
    if _git("status", "--porcelain"):
        found.append("There are changes that are not committed: commit them, or put them aside.")
    if _git("tag", "--list", f"v{version}"):
        found.append(f"The tag v{version} is there: raise the version in src/penstock/__init__.py.")
    return found


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
