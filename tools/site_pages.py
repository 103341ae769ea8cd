"""Builds the site of the documentation: `make docs`.

The pages of docs/ are written for a code host, and stay as they are. This lays them out for a site in build/pages, and
lets Zensical build that, strictly, into build/site:

- the groups and their order come from docs/site.toml, titles from the pages; a page in no group is an error;
- every heading gets the anchor that a code host gives it;
- files outside of docs/ that a page links to come along: Markdown as pages, folders as lists, all else as text;
- what the two kinds of Markdown take differently (lists right behind a paragraph, pipes in code in tables) is
  written so that the site shows what a code host shows.

Nothing is loaded from elsewhere when the site is read, and nothing is needed from elsewhere to build it.
"""

from __future__ import annotations

import fnmatch
import html.parser
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import markdown_pages as markdown

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BUILD = ROOT / "build"
TEXTS = (".md", ".toml")  # what is not copied as it stands
TIMEOUT = 600.0  # seconds for the build of the site


class SiteError(Exception):
    """The pages cannot become a site; the text says why."""


def build(out: Path = BUILD, docs: Path = DOCS) -> Path:
    """Lay out the pages and build the site of them; give its folder."""
    pages, site = out / "pages", out / "site"
    for folder in (pages, site):
        shutil.rmtree(folder, ignore_errors=True)
    Layout(docs, pages / "docs").write()
    config = {**CONFIG, "nav": navigation(docs), "docs_dir": "docs", "site_dir": "site"}
    (pages / "mkdocs.yml").write_text(json.dumps(config, indent=1))  # JSON is YAML, too
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", "mkdocs.yml"],
        cwd=pages,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode:
        said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
        raise SiteError(f"The site cannot be built:\n{said}")
    shutil.move(pages / "site", site)
    if foreign := sorted(set(foreign_assets(site))):
        raise SiteError(f"Pages of the site load what is not part of it: {', '.join(foreign)}")
    return site


# -- groups -----------------------------------------------------------------------------------------------------------


def navigation(docs: Path) -> list[Any]:
    """Give the groups with their pages, as Zensical wants them."""
    order = tomllib.loads((docs / "site.toml").read_text())
    names = {path.relative_to(docs).as_posix(): path for path in docs.rglob("*.md")}
    titles = {name: _title(path) for name, path in names.items()}
    places = dict[str, tuple[int, int, int]]()
    for group, section, place, pattern in _patterns(order):
        for name in names:
            if name != "README.md" and fnmatch.fnmatchcase(name, pattern) and "/" not in name[len(pattern) :]:
                places.setdefault(name, (group, section, place))
    if lost := sorted(names.keys() - places.keys() - {"README.md"}):
        raise SiteError(f"No group of docs/site.toml has a place for {', '.join(lost)}.")
    found: list[Any] = [{"Start": "index.md"}] if "README.md" in names else []
    for number, group in enumerate(order["group"]):
        inside = list[Any]()
        for which, section in enumerate(group["section"]):
            mine = [name for name, place in places.items() if place[:2] == (number, which)]
            mine.sort(key=lambda name: (places[name], titles[name].lower()))
            pages = [{titles[name]: _staged(name)} for name in mine]
            inside += [{section["title"]: pages}] if "title" in section and pages else pages
        found.append({group["title"]: inside})
    return found


def _patterns(order: dict[str, Any]) -> Iterator[tuple[int, int, int, str]]:
    """Give the patterns of the order; those that name one page win over those that find many."""
    found = [
        (group, section, place, pattern)
        for group, in_group in enumerate(order["group"])
        for section, in_section in enumerate(in_group["section"])
        for place, pattern in enumerate(in_section["pages"])
    ]
    return iter(sorted(found, key=lambda item: "*" in item[3]))


def _title(path: Path) -> str:
    try:
        return markdown.title(path.read_text())
    except ValueError as error:
        raise SiteError(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}: {error}.") from None


def _staged(name: str) -> str:
    """Give the name of a page in the site: a folder's README is its index."""
    return f"{name.removesuffix('README.md')}index.md" if posixpath.basename(name) == "README.md" else name


# -- pages ------------------------------------------------------------------------------------------------------------


class Layout:
    """Writes pages for the site, and whatever they link to."""

    def __init__(self, docs: Path, out: Path) -> None:
        self._docs, self._root, self._out = docs, docs.parent, out
        self._brought = set[Path]()

    def write(self) -> None:
        """Write all pages of the docs, and what lies beside them."""
        for path in sorted(self._docs.rglob("*")):
            if path.is_file():
                self._write(path, self._place(path))

    def _place(self, path: Path) -> str:
        """Give the place of a file or folder in the site."""
        if path.is_relative_to(self._docs):
            return _staged(path.relative_to(self._docs).as_posix())
        name = f"files/{path.relative_to(self._root).as_posix()}"
        if path.is_dir():
            return f"{name}/index.md"
        return name if path.suffix == ".md" else f"{name}.txt"

    def _write(self, path: Path, place: str) -> None:
        target = self._out / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(self._page(path, place))
        elif path.suffix not in TEXTS or not path.is_relative_to(self._docs):
            shutil.copyfile(path, target)

    def _bring(self, path: Path) -> str:
        """Take a file or folder outside of the docs along, once, and give its place."""
        place = self._place(path)
        if path not in self._brought:
            self._brought.add(path)
            if path.is_dir():
                self._write_folder(path, place)
            else:
                self._write(path, place)
        return place

    def _write_folder(self, path: Path, place: str) -> None:
        files = [item for item in sorted(path.iterdir()) if item.is_file() and _is_text(item)]
        name = path.relative_to(self._root).as_posix()
        here = posixpath.dirname(place)
        rows = [f"- [{item.name}]({posixpath.relpath(self._bring(item), here)})" for item in files]
        target = self._out / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join([f"# {name}/", "", *rows, ""]))

    def _page(self, path: Path, place: str) -> str:
        text = path.read_text()
        pieces, end = [], 0
        for link in markdown.links(text):
            pieces += [text[end : link.start], self._target(path, place, link.target)]
            end = link.end
        text = "".join([*pieces, text[end:]])
        return readable(text)

    def _target(self, path: Path, place: str, target: str) -> str:
        """Give where a link leads in the site."""
        name, mark, fragment = target.partition("#")
        if not name or "://" in name or name.startswith("mailto:"):
            return target
        file = Path(os.path.normpath(path.parent / name))
        if not file.exists() or not file.is_relative_to(self._root):
            raise SiteError(f"{path.relative_to(self._root)} links to {target}, which is not there.")
        if file.is_dir() and (file / "README.md").exists():
            file = file / "README.md"
        inside = file.is_relative_to(self._docs) and not file.is_dir()
        return posixpath.relpath(self._place(file) if inside else self._bring(file), posixpath.dirname(place)) + (
            f"{mark}{fragment}"
        )


_TEXT = (".py", ".pxd", ".md", ".toml", ".yaml", ".json", ".tsv", ".html", ".css", ".js", ".sh", ".in")


def _is_text(path: Path) -> bool:
    return path.suffix in _TEXT


def readable(text: str) -> str:
    """Write a page so that Python-Markdown shows what a code host shows."""
    marks = {heading.line: heading.anchor for heading in markdown.headings(text)}
    shown = markdown.prose(text).split("\n")
    lines, item = list[str](), 0  # how far the text of the list item that we are in stands from the margin
    fenced = ""
    for number, line in enumerate(text.split("\n")):
        fence = re.match(r"^( *)(`{3,})(\w*).*$", line)
        if fenced:
            lines.append(_indented(line, item))
            fenced = "" if line.strip() == fenced else fenced
            continue
        bullet = re.match(r"^(?:[-*+]|\d+\.) +", line)
        if fence:
            fenced, line = fence[2], f"{fence[1]}{fence[2]}{fence[3]}"
        if bullet:
            if lines and lines[-1].strip() and not item:
                lines.append("")
            item = len(bullet[0])
        elif line.strip() and not line.startswith(" " * max(item, 1)):
            item = item if item and lines[-1].strip() and not line.startswith("#") else 0
        if number in marks:
            if lines and lines[-1].strip():
                lines.append("")
            line = f"{line.rstrip()} {{#{marks[number].replace('_', chr(92) + '_')}}}"  # else _ would be emphasis
        elif shown[number].startswith("|"):
            line = re.sub(r"`[^`]*`", lambda span: span[0].replace("\\|", "|"), line)
        lines.append(line if bullet else _indented(line, item))
    return "\n".join(lines)


def _indented(line: str, item: int) -> str:
    """Move a line that belongs to an item of a list to where Python-Markdown looks for it."""
    return f"    {line[item:]}" if item and line.startswith(" " * item) else line


# -- what is loaded ---------------------------------------------------------------------------------------------------

_ASSETS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
_LOADED = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "modulepreload", "manifest"}


class _Assets(html.parser.HTMLParser):
    """Collects what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in _ASSETS:
            self.found.append(given.get(_ASSETS[tag], ""))
        elif tag == "link" and _LOADED & set(given.get("rel", "").split()):
            self.found.append(given.get("href", ""))


def foreign_assets(site: Path) -> Iterator[str]:
    """Give every script, style, font or picture that a page of the site would load from elsewhere."""
    for page in site.rglob("*.html"):
        assets = _Assets()
        assets.feed(page.read_text())
        yield from (asset for asset in assets.found if asset.startswith(("http:", "https:", "//")))
    for style in site.rglob("*.css"):
        loaded = re.findall(r"(?:url\(|@import )\s*[\"']?([^\"')\s;]+)", style.read_text())
        yield from (asset for asset in loaded if asset.startswith(("http:", "https:", "//")))


CONFIG: dict[str, Any] = {
    "site_name": "Penstock",
    "site_description": "NATS streams through Spark and back, each message exactly once, from Python.",
    "use_directory_urls": False,
    "theme": {
        "name": "material",
        "variant": "modern",
        "font": False,
        "language": "en",
        # The reader's system chooses light or dark, so that pictures and pages choose alike.
        "palette": [
            {"media": "(prefers-color-scheme: light)", "scheme": "default"},
            {"media": "(prefers-color-scheme: dark)", "scheme": "slate"},
        ],
        "features": [
            "content.code.copy",
            "navigation.footer",
            "navigation.indexes",
            "navigation.sections",
            "navigation.tabs",
            "navigation.top",
            "search.highlight",
            "toc.follow",
        ],
    },
    "extra": {"generator": False},
    "plugins": ["search"],
    "markdown_extensions": [
        "attr_list",
        "tables",
        "sane_lists",
        {"toc": {"permalink": True, "toc_depth": 3}},
        {"pymdownx.highlight": {"anchor_linenums": False}},
        "pymdownx.superfences",
    ],
}


if __name__ == "__main__":
    try:
        made = build()
    except SiteError as error:
        sys.exit(str(error))
    print(f"The site is in {made.relative_to(ROOT)}: {len(list(made.rglob('*.html')))} pages.")
