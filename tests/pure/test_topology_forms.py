"""A topology in YAML and in JSON is the one in TOML, checked alike; what YAML leaves open is told, not guessed."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InputError
from penstock.jetstream import Topology
from penstock.jetstream.topology_forms import read_form
from tests.pure.test_jetstream_topology import TOML

YAML = """
# the same as TOML, in the manner of YAML
streams:
  ORDERS:
    subjects: [ORDERS.*]
    max_age: 7d
    max_bytes: 1GB
    sources: []
    consumers:
      DISPATCH:
        filter_subjects:
          - ORDERS.processed
        ack_wait: 30s
        sample_freq: 80
      MONITOR: {ephemeral: true, deliver_policy: "last"}
  COPY:
    mirror: {name: ORDERS}
"""


def test_all_forms_say_the_same(tmp_path: Path):
    """What is declared in one form is what is declared in the others; the end of a file's name says which it is."""
    wanted = Topology.parse(TOML)
    texts = {"t.toml": TOML, "t": TOML, "t.yaml": YAML, "t.YML": YAML, "t.json": json.dumps(tomllib.loads(TOML))}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        assert Topology.load(tmp_path / name) == wanted, name
    assert Topology.parse(YAML, "yaml") == wanted
    assert Topology.parse(texts["t.json"], "yaml") == wanted, "JSON is YAML, too"
    for text, form in (("", "yaml"), ("# nothing", "yaml"), ("{}", "yaml"), ("{}", "json"), ("", "toml")):
        assert Topology.parse(text, form) == Topology()
    (tmp_path / "t.yaml").write_text("\ufeff" + YAML, encoding="utf-8")
    assert Topology.load(tmp_path / "t.yaml") == wanted
    with pytest.raises(InputError, match="Use toml, yaml or json"):
        Topology.parse("", "xml")


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("true", True),
        ("False", False),
        ("12", 12),
        ("-1", -1),
        ("0", 0),
        ("1.5", 1.5),
        ("ORDERS.>", "ORDERS.>"),
        ("7d", "7d"),
        ("10GB", "10GB"),
        ("1.2.3", "1.2.3"),
        ("2026-01-31-copy", "2026-01-31-copy"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("2026-01-31T12:00:00.5+02:00", "2026-01-31T12:00:00.5+02:00"),
        ("'no'", "no"),
        ('"010"', "010"),
        ("'*'", "*"),
        ("!!str 1e3", "1e3"),
        ("|\n   two\n   lines\n", "two\nlines\n"),
        ("nobody", "nobody"),
        ("&x 5", 5),
    ],
)
def test_what_a_value_of_yaml_is(written: str, found: Any):
    """Quoted text is text, true and false and plain numbers are themselves, and what is text to all readers is text."""
    made = read_form(f"x: {written}", "yaml")["x"]
    assert (made, type(made)) == (found, type(found))


TRAPS = (
    "no yes On off y N null ~ 010 0o10 0x1F 0b11 1_000 1e3 1E+3 +5 1. .5 .inf -.INF .nan 12:30 190:20:30 2026-01-31 "
    "2026-01-31T12:00:00 12345678901234567890123"
)


@pytest.mark.parametrize("written", [*TRAPS.split(), "", "2026-1-31 12:00:00"])
def test_what_readers_of_yaml_do_not_agree_on(written: str):
    """What means one thing to one reader and another to the next is refused, with its place and what to write."""
    with pytest.raises(InputError, match=r"can be read in several ways \(at line 3, column \d+\)") as caught:
        Topology.parse(f"streams:\n  A:\n    description: {written}\n", "yaml")
    assert caught.value.remedy


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "form", "says"),
    [
        ("streams:\n  A: {}\n  A: {}", "yaml", r"'A' stands twice, first in line 2 \(at line 3, column 3\)"),
        ('streams:\n  A: {}\n  "A": {}', "yaml", "'A' stands twice"),
        ("streams:\n  A: {max_msgs: 5, max_msgs: 6}", "yaml", "'max_msgs' stands twice"),
        ("streams:\n\tA: {}", "yaml", r"This is not YAML: .*\(at line 2, column 1\)"),
        ("streams: {A: ", "yaml", "This is not YAML"),
        ("x: a: b: c", "yaml", "This is not YAML: mapping values are not allowed"),
        ("--- {}\n--- {}\n", "yaml", "This is not YAML: expected a single document"),
        ("- A\n- B", "yaml", "The topology is not a table"),
        ("streams: !!python/object/apply:os.system ['true']", "yaml", "There is a tag"),
        ("!!python/name:os.system {}", "yaml", "There is a tag"),
        ("streams: !mine {}", "yaml", "There is a tag, '!mine'"),
        ("x: &x {max_msgs: 5}\nstreams: {A: {<<: *x}}", "yaml", "tables are not merged"),
        ("x: &x {y: *x}", "yaml", "A value holds itself"),
        ("streams: {[a]: 5}", "yaml", "a list or a table is not a name of a field"),
        ("streams: *nobody", "yaml", "This is not YAML: found undefined alias"),
        (BOMB, "yaml", "more than 100,000 values"),
        ("x: " + "[" * 5000, "yaml", "nested too deep"),
        ("x: \x00", "yaml", "This is not YAML: special characters are not allowed"),
        ("streams: {A: {max_mgs: 5}}", "yaml", "there is no field 'max_mgs', did you mean 'max_msgs'"),
        ("streams: {A: {max_msgs: -5}}", "yaml", "max_msgs is -5"),
        ("streams: {A: {description: 5}}", "yaml", "description is 5"),
        ("stream: {}", "yaml", "has no 'stream'. Did you mean 'streams'"),
        ("streams: {A: 5}", "yaml", "streams is not a table of tables"),
        ('{"streams": {"A": {}, "A": {}}}', "json", "'A' stands twice"),
        ('{"streams": {"A": {"max_age": null}}}', "json", "'max_age' is null"),
        ('{"streams": {"A": {"max_msgs": NaN}}}', "json", "NaN is not a number"),
        ('{"streams": {"A": {"max_msgs": 1' + "0" * 5000 + "}}}", "json", "is too long"),
        ('{"streams":\n {"A" 5}}', "json", r"This is not JSON: .*\(at line 2, column 7\)"),
        ("[]", "json", "The topology is not a table"),
        ("[" * 100_000, "json", "nested too deep"),
    ],
    ids=range(30),
)
def test_bad_files(text: str, form: Any, says: str):
    """What a file says wrong is one sentence, with its place where the form has one; nothing of it is carried out."""
    with pytest.raises(InputError, match=says) as caught:
        Topology.parse(text, form)
    assert "\n" not in caught.value.what


def test_a_bad_file_is_named(tmp_path: Path):
    """The sentence begins with the file."""
    (tmp_path / "t.yaml").write_text("streams:\n  A: no")
    with pytest.raises(InputError, match=r"t\.yaml: 'no' can be read in several ways \(at line 2, column 6\)"):
        Topology.load(tmp_path / "t.yaml")


def test_without_pyyaml(monkeypatch: pytest.MonkeyPatch):
    """Who has not installed it is told what to install; the other forms need nothing."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InputError, match=r"pip install 'penstock\[yaml\]'"):
        Topology.parse(YAML, "yaml")
    assert Topology.parse(TOML).streams
