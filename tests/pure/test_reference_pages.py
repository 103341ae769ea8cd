"""Pages of the reference that are written by hand: wire formats, options and defaults in them are those of the code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

import pytest

from penstock.bus import window
from penstock.bus import wire as bus_wire
from penstock.bus.limits import BusOptions
from penstock.channels import messages
from penstock.channels.options import GatewayOptions
from penstock.chunks import Assembler, Publisher
from penstock.chunks import wire as chunks_wire
from penstock.chunks.limits import Limits
from penstock.server.options import ServerOptions
from penstock.sizes import parse_size
from penstock.wire.jetstream import names
from tests.pure.test_house import ROOT

REFERENCE = ROOT / "docs" / "reference"
CHUNKS, BUS, CHANNELS, SERVER = (
    (REFERENCE / f"{name}.md").read_text() for name in ("chunks", "bus", "channels", "server")
)


def table(page: str, *, after: str) -> list[list[str]]:
    """Give the rows of the first table after a text, cell by cell."""
    _, found, rest = page.partition(after)
    assert found, after
    lines = re.search(r"^(\|.*\n)+", rest, re.MULTILINE)
    assert lines is not None
    return [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in lines[0].splitlines()[2:]]


def words(page: str, *, after: str) -> set[str]:
    """Give the names in the first column of a table."""
    return {name for row in table(page, after=after) for name in re.findall(r"`([^`]+)`", row[0])}


# -- wire formats ------------------------------------------------------------------------------------------------------


def test_the_page_has_the_headers_of_chunks():
    """All five headers, what each flag is, how large they are at most, and why a payload is given up."""
    ours = {getattr(chunks_wire, name) for name in ("MESSAGE_ID", "OFFSET", "FLAGS", "TOTAL_SIZE", "DIGEST")}
    assert words(CHUNKS, after="## The format") == ours
    rows = {row[0].strip("`"): row[1] for row in table(CHUNKS, after="## The format")}
    digest, uuid = "d" * 64, "u" * 36
    last, whole = (chunks_wire.Chunk(uuid, 2**64 - 1, 2**64 - 1, known) for known in (None, digest))
    flags = [chunks_wire.encode(chunk)[chunks_wire.FLAGS] for chunk in (chunks_wire.Chunk(uuid, 0), last, whole)]
    assert rows["X-Flags"] == "decimal: {} in the middle, {} = last, {} = last, with digest".format(*flags)
    assert f"1 to {chunks_wire.MAX_ID} printable ASCII" in rows["X-Msg-Id"]
    block = (
        "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in chunks_wire.encode(whole).items()) + "\r\n"
    )
    assert f"take {len(block)} bytes at most" in " ".join(CHUNKS.split())
    assert words(CHUNKS, after="### Reasons") == {str(reason) for reason in chunks_wire.Reason}
    stored = {names.EXPECTED_STREAM, names.MSG_ID, names.EXPECTED_LAST_SUBJECT_SEQUENCE}
    assert words(CHUNKS, after="Each chunk has the headers above and these") == stored


@pytest.mark.parametrize(("module", "heading"), [(bus_wire, "## Packets"), (window, "## The extension")])
def test_the_page_draws_the_packets_of_the_bus(module: Any, heading: str):
    """Each packet stands there byte for byte as at the head of the code that writes and reads it."""
    blocks = re.findall(
        r"^```text\n(.*?)^```$", BUS.partition(heading)[2].partition("\n## ")[0], re.DOTALL | re.MULTILINE
    )
    on_page = {line for block in blocks for line in packets(block)}
    in_code = set(packets(module.__doc__ or ""))
    assert len(in_code) >= 5
    assert on_page == in_code


def packets(text: str) -> Iterator[tuple[str, str]]:
    """Give what a grammar says of the bytes of each packet: its name, and its parts."""
    for name, parts in re.findall(r"^ *(\S+) *= (0x[^\n]*)$", text, re.MULTILINE):
        yield name, re.split(r" {3,}", parts)[0]


def test_packets_begin_with_the_bytes_that_are_drawn():
    """The first byte of each packet and signal on the page is the number in the code."""
    first = {name: int(parts[:4], 16) for name, parts in packets(BUS)}
    assert [first[name] for name in ("Response", "Close", "Elem", "MiscInboxName")] == [
        bus_wire.Type.RESPONSE, bus_wire.Type.CLOSE, bus_wire.Type.ELEMENT, bus_wire.Type.INBOX,
    ]  # fmt: skip
    sections = [first[f"{kind}Section+Elem"] for kind in ("Map", "Array", "Object")]
    assert sections == [bus_wire.Type.MAP, bus_wire.Type.ARRAY, bus_wire.Type.OBJECT]
    signals = [first[name] for name in ("GoOn", "NoConsumer", "SlowConsumer")]
    assert signals == [bus_wire.Misc.GO_ON, bus_wire.Misc.NO_CONSUMER, bus_wire.Misc.SLOW_CONSUMER]
    assert first["Resend"] == window.RESEND
    default = BusOptions(queues={})
    offer = window.Offer(default.window, default.window_bytes, default.max_element)
    assert f"\n{window.HEADER}: {offer.encode()}\n" in BUS


def test_the_page_has_the_headers_of_a_channel():
    """Every header that a stored message of a channel may have, and no other one."""
    ours = {getattr(messages, name) for name in ("TIME", "BYTES", "REPLY", "SEQUENCE", "GAP", "BATCH")}
    assert words(CHANNELS, after="and these headers") == {*ours, names.BATCH_ID}


# -- options and their defaults ----------------------------------------------------------------------------------------


def told(page: str, after: str, column: int) -> dict[str, str]:
    """Give each option of a table with what stands as its default; a row may have several of them."""
    found = {}
    for row in table(page, after=after):
        options, defaults = re.findall(r"`([^`]+)`", row[0]), [row[column]]
        if len(options) > 1:
            defaults = row[column].split(", ")
        found |= dict(zip(options, defaults, strict=True))
    return found


def fits(text: str, value: Any) -> bool:
    """Say whether a cell says a default: a literal, a size, seconds, yes or no; in words what None stands for."""
    bare = text.strip("`")
    if value is None or value in ("", ()):
        return bare == ('""' if value == "" else repr(value)) or not re.match(r'[\d"]|yes$|no$|True$|False$', bare)
    if isinstance(value, bool):
        return bare in (str(value), "yes" if value else "no")
    if isinstance(value, int | float):
        bare = bare.removesuffix(" s")
        return float(parse_size(bare.replace(" ", "")) if bare.endswith("iB") else float(bare)) == value
    return ast.literal_eval(bare) == value if isinstance(value, str) else bare == f"{type(value).__name__}()"


@pytest.mark.parametrize(
    ("page", "after", "kind", "column"),
    [
        (CHANNELS, "`Gateway(url, **options)`", GatewayOptions, 1),
        (CHUNKS, "## `Assembler(", Limits, 2),
        (SERVER, "# The server", ServerOptions, 2),
        (BUS, "## `Bus(nc, queues, ...)`", BusOptions, 2),
    ],
    ids=["gateway", "assembler", "server", "bus"],
)
def test_a_table_has_every_option_with_its_default(page: str, after: str, kind: Any, column: int):
    """A field that is new, gone, or has another default shows here."""
    known = {
        item.name: item.default if item.default_factory is MISSING else item.default_factory() for item in fields(kind)
    }
    defaults = told(page, after, column)
    more = {"handler", "on_error"} if kind is Limits else set()  # an assembler has these beside its limits
    assert set(defaults) - more == set(known)
    for name, value in known.items():
        assert defaults[name] == "required" if value is MISSING else fits(defaults[name], value), name


@pytest.mark.parametrize(
    ("text", "value", "is_right"),
    [
        ("1 GiB", 1024**3, True), ("1 MiB", 1024**3, False), ("0.5 s", 0.5, True), ("`30.0`", 30.0, True),
        ("yes", True, True), ("yes", False, False), ("never", None, True), ("5", None, False), ('`"a"`', "b", False),
    ],
)  # fmt: skip
def test_a_default_is_compared(text: str, value: Any, is_right: bool):
    """A default that is another one is noticed."""
    assert fits(text, value) is is_right


@pytest.mark.parametrize(
    ("heading", "function"),
    [
        ("Publisher", Publisher.__init__),
        ("Publisher.persistent", Publisher.persistent),
        ("Assembler", Assembler.__init__),
    ],
)
def test_a_heading_is_the_signature(heading: str, function: Any):
    """What a heading shows of a call are its parameters and their defaults, in their order."""
    (shown,) = re.findall(rf"^## `{re.escape(heading)}\((.*)\)`$", CHUNKS, re.MULTILINE)
    call = inspect.signature(function).replace(return_annotation=inspect.Signature.empty)
    kept = [item.replace(annotation=item.empty) for name, item in call.parameters.items() if name != "self"]
    written = str(call.replace(parameters=kept)).strip("()")
    assert shown == written.replace("**limits", "...")
