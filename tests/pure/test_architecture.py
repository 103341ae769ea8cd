"""The page and the picture of the architecture follow the house."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest

from penstock.spark.markers import State
from penstock.spark.source_options import SourceOptions
from tests.pure.test_house import ROOT, SOURCE, modules

PAGE = (ROOT / "docs" / "why" / "architecture.md").read_text()
PICTURE = ROOT / "docs" / "why" / "architecture.svg"
ROOMS = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists())


def words_of_the_picture() -> str:
    return " ".join(
        element.text or "" for element in ElementTree.parse(PICTURE).getroot().iter("{http://www.w3.org/2000/svg}text")
    )


def test_every_room_is_on_the_page_and_in_the_picture():
    """A room that is added or renamed gets its place in both."""
    assert [room for room in ROOMS if f"src/penstock/{room}/" not in PAGE] == []
    assert [room for room in ROOMS if not re.search(rf"\b{room}\b", words_of_the_picture())] == []


def test_the_picture_of_the_source_says_how_large_a_task_is():
    """What picture and page say of the bytes of a task is the default of the option."""
    shown = f"up to {SourceOptions.max_bytes_per_partition // 2**20} MB each"
    assert shown in (ROOT / "docs" / "why" / "spark-source.svg").read_text()


def test_the_stops_of_the_picture_are_those_of_the_page():
    """The way of a message has as many numbered stops in the picture as rows in the table."""
    drawn = [int(text) for text in re.findall(r'class="count"[^>]*>(\d+)<', PICTURE.read_text())]
    told = [int(number) for number in re.findall(r"^\| (\d+) \| ", PAGE, re.MULTILINE)]
    assert drawn == told == list(range(1, len(told) + 1))


def test_modules_that_the_picture_names_exist():
    """`room: one, two` in the picture names modules of that room."""
    known = {name for name, _, _ in modules()}
    named = re.findall(r'class="name"[^>]*>(wire(?:\.jetstream)?): ([a-z, ]+)<', PICTURE.read_text())
    assert named
    wrong = [
        f"penstock.{room}.{module}"
        for room, listed in named
        for module in listed.split(", ")
        if f"penstock.{room}.{module}" not in known
    ]
    assert not wrong


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "why").glob("*.svg")), ids=lambda picture: picture.stem)
def test_a_picture_needs_nothing_from_elsewhere(picture: Path):
    """It loads no font, image or style, is drawn for light and dark pages, and says what it shows."""
    text = picture.read_text()
    assert re.findall(r"https?://[^\"\s]+", text) == ["http://www.w3.org/2000/svg"]
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    assert 'aria-labelledby="title what"' in text
    root = ElementTree.fromstring(text)
    assert all(root.findtext(f"{{http://www.w3.org/2000/svg}}{name}") for name in ("title", "desc"))


def test_the_heads_of_the_sequence_diagram_are_those_of_the_sink():
    """The picture of exactly-once knows the states that a head can have on its way to done, in their order."""
    drawn = re.findall(r">head: (\w+) \d", (ROOT / "docs" / "why" / "exactly-once.svg").read_text())
    assert drawn == ["open", "sealing", "replay", "done"]
    assert set(drawn) <= set(get_args(State))
