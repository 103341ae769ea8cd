"""The two ends of `make release`: what must be so before anything is built, and the notes of the version after it.

python tools/release.py check           one sentence for each thing that is not so
python tools/release.py notes           the section of CHANGELOG.md into dist/NOTES.md
--draft                                 takes what is there so far, and lets the tree be as it is
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
NOTHING = "Nothing yet."
"""What stands under "Unreleased" if there is nothing."""


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


def sections(changelog: str) -> dict[str, tuple[str, str]]:
    """Give the sections of a changelog by their names, in order: the date of each, and what it says."""
    found = {}
    for section in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        head, _, text = section.partition("\n")
        name, _, date = head.strip().partition(" - ")
        found[name.strip("[]")] = (date.strip(), text.strip())
    return found


def notes(changelog: str, version: str, *, draft: bool) -> str | None:
    """Give the section of a version, or for a draft what is unreleased, if anything; None if there is nothing."""
    found = sections(changelog)
    coming = found.get("Unreleased", ("", ""))[1]
    if draft and coming not in ("", NOTHING):
        return coming
    return found.get(version, ("", ""))[1] or None


def problems(version: str, *, draft: bool) -> list[str]:
    """Give what keeps this version from being published."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    found = untold(changelog, version, draft=draft)
    if draft:
        return found
    if _git("status", "--porcelain"):
        found.append("There are changes that are not committed: commit them, or put them aside.")
    if _git("tag", "--list", f"v{version}"):
        found.append(f"The tag v{version} is there: raise the version in src/penstock/__init__.py.")
    return found


def untold(changelog: str, version: str, *, draft: bool) -> list[str]:
    """Give what the changelog lacks."""
    if notes(changelog, version, draft=draft) is None:
        return [f"CHANGELOG.md has no section for {version}: write one, such as `## {version} - YYYY-MM-DD`."]
    if draft:
        return []
    found, known = [], sections(changelog)
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", known[version][0]):
        found.append(f"The section {version} of CHANGELOG.md has no date: write `## {version} - YYYY-MM-DD`.")
    if known.get("Unreleased", ("", NOTHING))[1] not in ("", NOTHING):
        found.append(f'CHANGELOG.md has lines under "Unreleased": move them to {version}, and leave "{NOTHING}" there.')
    return found


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
