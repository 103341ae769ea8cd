"""Configuration files of NATS servers: every form that their grammar has, and what is no configuration."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.conf_file import read_conf, read_conf_text, write_conf
from penstock.errors import InputError


def read(text: str, **environment: str):
    return read_conf_text(text, environment).values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a 1", 1),
        ("a: 1", 1),
        ("a = 1", 1),
        ("a=1", 1),
        ("a:1", 1),
        ('"a": 1', 1),
        ("'a': 1,", 1),
        ("a: 1;", 1),
        ("a: -3", -3),
        ("a: 1.5", 1.5),
        ("a: 10k", 10_000),
        ("a: 10kb", 10_240),
        ("a: 2MiB", 2 << 20),
        ("a: 1Gi", 1 << 30),
        ("a: 3g", 3_000_000_000),
        ("a: 5s", "5s"),
        ("a: 1h30m", "1h30m"),
        ("a: 127.0.0.1:4222", "127.0.0.1:4222"),
        ("a: nats://host:4222", "nats://host:4222"),
        ("a: 2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("a: true", True),
        ("a: On", True),
        ("a: no", False),
        ('a: "true"', "true"),
        ('a: "x # y // z"', "x # y // z"),
        (r'a: "\t\n\r\"\\\x41"', '\t\n\r"\\A'),
        (r"a: '\t'", r"\t"),
        (r"a: x\ty", "x\ty"),
        ("a: x#y", "x#y"),
        ("a: x # y", "x"),
        ("a: x // y", "x"),
        ("a: (\n one\n two)\n)\n", "\n one\n two)\n"),
        ("a: [1, 2,3]", [1, 2, 3]),
        ("a: [\n  1\n  2 # two\n  # three\n]", [1, 2]),
        ("a: []", []),
        ("a: [{b: 1}, {b: 2}]", [{"b": 1}, {"b": 2}]),
        ("a { b: 1, c { d e } }", {"b": 1, "c": {"d": "e"}}),
        ("a: {\n b: 1\n\n c: 2; d: 3\n}", {"b": 1, "c": 2, "d": 3}),
        ("a {}", {}),
        ("a\n{\n}", {}),
        ('{"a": {"b": [true, null]}}', {"b": [True, "null"]}),
        ("{a: 1}", 1),
        ("a: 1\r\n", 1),
        ("a: 1\na: 2", 2),
    ],
)
def test_every_form(text, value):
    """Each way to write a name and a value is read as NATS reads it."""
    assert read(text) == {"a": value}


def test_variables():
    """A variable is what this block, one around it, or the environment says, in this order; bcrypt is none."""
    text = "X: 1\na { X: two, b: $X\n c { d: $X } }\ne: $X\nf: $HOME_\ng: $2a$11$abc\nh: [$X]"
    conf = read_conf_text(text, {"HOME_": "[1, yes]", "X": "9"})
    assert conf.values["a"] == {"X": "two", "b": "two", "c": {"d": "two"}}
    assert [conf.values[name] for name in "efgh"] == [1, [1, True], "$2a$11$abc", [1]]
    assert conf.variables == {"X"}
    with pytest.raises(InputError, match=r"Line 2 of text: \$NO is set neither"):
        read("\na: $NO")
    with pytest.raises(InputError, match=r"\$A is set neither"):
        read("a: $A", A="$B", B="$A")


def test_files_that_include_others(tmp_path):
    """Included files are read from the folder of the file that names them; a ring of them is an error."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "main.conf").write_text("include 'sub/one.conf'\nb { include sub/two.conf }\nc: $who\n")
    (tmp_path / "sub" / "one.conf").write_text("who: me\ninclude two.conf\n")
    (tmp_path / "sub" / "two.conf").write_text("two: 2")
    assert read_conf(tmp_path / "main.conf", {}).values == {"who": "me", "two": 2, "b": {"two": 2}, "c": "me"}
    (tmp_path / "sub" / "two.conf").write_text('include "two.conf"')
    with pytest.raises(InputError, match="without end"):
        read_conf(tmp_path / "main.conf", {})
    (tmp_path / "sub" / "two.conf").unlink()
    with pytest.raises(InputError, match=r"two\.conf cannot be read: No such file"):
        read_conf(tmp_path / "main.conf", {})
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        read_conf(tmp_path / "bytes", {})


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a:",
        "a: \n 1",
        "a {",
        "a { b: 1",
        "a: [1",
        "a: [1 2]",
        'a: "x',
        "a: 'x",
        "a: (x)",
        r'a: "\q"',
        r'a: "\x4"',
        "}",
        "a: 1 }",
        "a: 1 b: 2",
        "= 1",
        ": 1",
        "{a: 1",
        "include ",
        "a: 99999999999999999999",
        "a: 9999e",
        "[1]",
        "a" + "{a" * 100,
        "a: " + "[" * 100,
    ],
)
def test_what_is_no_configuration(text):
    """Anything else is refused with a line; a value, which may be a secret, is never shown."""
    with pytest.raises(InputError, match=r"Line [0-9]+ of text"):
        read(text)


def test_secrets_stay_out_of_errors():
    """An error tells the line, and nothing of what stands there."""
    with pytest.raises(InputError) as error:
        read('password: "hunter2\n')
    assert "hunter2" not in str(error.value)


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_names = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="_.*>"), min_size=1, max_size=8)
_values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(_names, _values, max_size=4))
def test_what_is_written_is_read_again(values):
    """Whatever values are written come back the same, whatever is in their texts."""
    text = write_conf(values)
    assert read_conf_text(text).values == values


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    """No text leads to anything but values or an InputError."""
    with contextlib.suppress(InputError):
        read_conf_text(text, {})
