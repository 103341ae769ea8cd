"""The site of the documentation: built strictly, whole, and the same as what a code host shows."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))  # where tools find each other
try:
    import markdown_pages
    import site_pages
finally:
    sys.path.remove(str(ROOT / "tools"))

PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once; a warning, a page in no group, and whatever is loaded from elsewhere end the build."""
    return site_pages.build(tmp_path_factory.mktemp("site"))


class Shown(HTMLParser):
    """Reads what a page shows: its words, and the elements that order them; of a page of the site, its article."""

    ELEMENTS = ("h1", "h2", "h3", "h4", "h5", "ul", "ol", "li", "table", "tr", "th", "td", "pre", "img")

    def __init__(self, text: str, *, is_site: bool = False) -> None:
        super().__init__()
        self._inside, self._is_site, self._mark = not is_site, is_site, False
        self.ids = list[str]()
        self.targets = list[str]()
        self._seen = list[str]()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [given["id"]] if given.get("id") else []
        target = given.get("href" if tag in ("a", "link") else "src")
        self.targets += [target] if target else []
        self._inside |= tag == "article"
        self._mark = tag == "a" and "headerlink" in (given.get("class") or "")
        if self._inside and tag in self.ELEMENTS:
            self._seen.append(f"\n<{tag}>")

    def handle_endtag(self, tag: str) -> None:
        self._inside &= not (self._is_site and tag == "article")
        self._mark = False

    def handle_data(self, data: str) -> None:
        if self._inside and not self._mark:
            self._seen.append(data)

    @property
    def lines(self) -> list[str]:
        """What is shown, an element a line, without the spaces, which are a matter of layout."""
        return [re.sub(r"\s+", "", line) for line in re.split(r"\n(?=<[a-z0-9]+>)", "".join(self._seen))]


@pytest.fixture(scope="module")
def shown(site: Path) -> dict[Path, Shown]:
    """What each page of the site shows."""
    return {path: Shown(path.read_text(), is_site=True) for path in site.rglob("*.html") if path.name != "404.html"}


def built(site: Path, page: Path) -> Path:
    name = page.relative_to(ROOT / "docs").as_posix()
    return site / re.sub(r"(^|/)README\.md$", r"\1index.md", name).replace(".md", ".html")


def test_the_site_shows_what_a_code_host_shows(site: Path, shown: dict[Path, Shown]):
    """Headings, lists, tables, code and every word of a page are in the site what they are as CommonMark."""
    host = MarkdownIt("commonmark").enable("table")
    wrong = []
    for page in PAGES:
        there = Shown(host.render(page.read_text())).lines
        here = shown[built(site, page)].lines
        wrong += [f"{page.name}: {one} / {other}" for one, other in zip(there, here, strict=False) if one != other][:1]
        if len(there) != len(here):
            wrong.append(f"{page.name}: {len(there)} / {len(here)} elements")
    assert not wrong


def test_every_link_of_the_site_leads_to_a_file_of_it(site: Path, shown: dict[Path, Shown]):
    """Links between pages, to sources and to pictures, and the anchors that they name, hold in the site, too."""
    wrong = set()
    for path, page in shown.items():
        for target in page.targets:
            name, _, fragment = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            file = (path.parent / unquote(name)).resolve() if name not in ("", ".") else path
            if not file.is_file() or (fragment and file in shown and unquote(fragment) not in shown[file].ids):
                wrong.add(f"{path.relative_to(site)}: {target}")
    assert len(shown) > len(PAGES)
    assert not wrong


def test_anchors_of_the_site_are_those_of_a_code_host(site: Path, shown: dict[Path, Shown]):
    """A link to a heading that was copied from one of them works at the other."""
    for page in PAGES:
        ids = set(shown[built(site, page)].ids)
        assert markdown_pages.anchors(page.read_text()) - ids == set(), page


def small(folder: Path, **pages: str) -> Path:
    """Write docs of one group with a few pages."""
    docs = folder / "docs"
    (docs / "howto").mkdir(parents=True)
    (docs / "site.toml").write_text(
        '[[group]]\ntitle = "How-to"\n[[group.section]]\npages = ["howto/b.md", "howto/*.md"]\n'
    )
    for name, text in pages.items():
        (docs / f"{name.replace('__', '/')}.md").write_text(text)
    return docs


def test_pages_are_found_in_order(tmp_path: Path):
    """A page that is named stands before those that a pattern finds, which are in the order of their titles."""
    docs = small(tmp_path, howto__a="# Zebra\n", howto__b="# B\n", howto__c="# `apple`\n")
    assert site_pages.navigation(docs) == [
        {"How-to": [{"B": "howto/b.md"}, {"apple": "howto/c.md"}, {"Zebra": "howto/a.md"}]}
    ]


@pytest.mark.parametrize(
    ("page", "text", "said"),
    [
        ("elsewhere", "# Lost\n", "No group of docs/site.toml has a place for elsewhere.md"),
        ("howto__d", "No title.\n", "it does not begin with a heading of the first level"),
    ],
)
def test_a_page_that_has_no_place_is_refused(tmp_path: Path, page: str, text: str, said: str):
    """Nobody can add a page that no reader of the site would find."""
    with pytest.raises(site_pages.SiteError, match=re.escape(said)):
        site_pages.navigation(small(tmp_path, **{page: text}))


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path):
    """It ends the build."""
    docs = small(tmp_path, howto__b="# B\n\n[gone](../../src/gone.py)\n")
    with pytest.raises(site_pages.SiteError, match="links to"):
        site_pages.Layout(docs, tmp_path / "out").write()


FOREIGN = [
    ("a.html", '<script src="https://cdn.example/x.js"></script>'),
    ("a.html", '<link rel="preconnect" href="//fonts.example">'),
    ("a.html", '<img alt="" src="http://pictures.example/a.png">'),
    ("a.css", "@font-face { src: url('https://fonts.example/a.woff2') }"),
]


@pytest.mark.parametrize(("name", "text"), FOREIGN)
def test_what_is_loaded_from_elsewhere_is_found(tmp_path: Path, name: str, text: str):
    """A script, a style, a font or a picture of another host does not get into the site; a link may lead there."""
    (tmp_path / name).write_text(text)
    (tmp_path / "b.html").write_text('<a href="https://nats.io">NATS</a><img src="a.svg">')
    assert len(list(site_pages.foreign_assets(tmp_path))) == 1
