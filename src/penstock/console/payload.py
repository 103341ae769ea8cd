"""A payload as people can read it: JSON, Protobuf, text or hex; never more than was asked for, and never a surprise."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from penstock.console.protobuf import ProtobufTypes

from penstock.json_text import load_json

__all__ = ["FORMS", "Form", "Shown", "encoded", "preview", "render", "visible"]

Form = Literal["protobuf", "json", "text", "hex"]
FORMS: tuple[Form, ...] = get_args(Form)
_WIDTH = 16  # bytes a line of hex
_HEX_SHARE = 8  # a byte takes several characters in hex, and few people read far


@dataclass(frozen=True)
class Shown:
    """What is shown of a payload."""

    form: Form
    """How it is shown."""
    possible: tuple[Form, ...]
    """How else it could be."""
    text: str
    shown: int
    """How many bytes of it are in the text."""
    size: int
    """How many bytes it has."""
    note: str | None = None
    """What should be known of it."""

    @property
    def cut(self) -> bool:
        """Whether there is more of it."""
        return self.shown < self.size


def render(
    data: bytes,
    most: int,
    wanted: Form | None = None,
    protobuf: ProtobufTypes | None = None,
    type_name: str | None = None,
) -> Shown:
    """Show a payload as it is wanted, or else as it reads best; at most `most` bytes of it.

    With a `type_name`, one of `protobuf`, it is read as that first, and if it cannot be, that is told.
    """
    text = _text(data, most)
    pretty = _json(data) if text is not None and len(data) <= most else None
    decoded, note = None, None
    if protobuf is not None and type_name is not None and wanted in (None, "protobuf"):
        decoded = protobuf.show(type_name, data)
        if decoded is None:
            note = f"It cannot be read as {type_name}."
        elif decoded.unknown:
            note = f"{decoded.unknown:,} of its fields are not known to {type_name}: it may be of another type."
    laid_out = None if decoded is None else visible(decoded.text, keep="\n")
    offered = "" if laid_out is None and protobuf is not None and type_name is not None else laid_out
    known: dict[Form, str | None] = {"protobuf": offered, "json": pretty, "text": text, "hex": ""}
    possible = tuple(form for form, found in known.items() if found is not None)
    readable = tuple(form for form in possible if form != "protobuf" or laid_out is not None)
    form = wanted if wanted in readable else readable[0]
    if form == "protobuf" and laid_out is not None:
        cut = laid_out[: 4 * most]
        shown = len(data) if len(cut) == len(laid_out) else min(most, len(data) - 1)
        return Shown(form, possible, cut, shown, len(data), note)
    if form == "json" and pretty is not None:
        return Shown(form, possible, pretty, len(data), len(data), note)
    if form == "text" and text is not None:
        return Shown(form, possible, visible(text, keep="\n\t"), len(text.encode()), len(data), note)
    piece = data[: max(_WIDTH, most // _HEX_SHARE)]
    return Shown("hex", possible, _hex(piece), len(piece), len(data), note)


def preview(data: bytes, most: int = 160) -> str:
    """Give the beginning of a payload in one line."""
    text = _text(data, most * 4)
    if text is None:
        piece = data[: most // 4].hex(" ")
        return piece + (" …" if len(data) > most // 4 else "")
    line = visible(" ".join(text.split()))
    return line if len(line) <= most and len(text.encode()) == len(data) else line[:most] + "…"


def visible(text: str, keep: str = "") -> str:
    """Put a sign where a control character, or one that turns the writing around, would do something unseen."""
    if text.isprintable():
        return text
    return "".join(item if item.isprintable() or item in keep else _sign(item) for item in text)


def _sign(item: str) -> str:
    code = ord(item)
    if code < 0x20:
        return chr(0x2400 + code)  # the pictures of control characters
    return "␡" if code == 0x7F else f"\\u{code:04x}"


def _text(data: bytes, most: int) -> str | None:
    """Give the first bytes as text where they are text, whole characters only."""
    piece = data[:most]
    try:
        text = piece.decode()
    except UnicodeDecodeError as error:
        # A cut may fall into the middle of a character, which has four bytes at most.
        if len(piece) == len(data) or error.start < len(piece) - 3:
            return None
        text = piece[: error.start].decode()
    strange = sum(1 for item in text if ord(item) < 0x20 and item not in "\n\r\t")
    return None if strange * 20 > len(text) else text


def _json(data: bytes) -> str | None:
    if data[:1].strip() not in (b"{", b"[", b""):
        return None  # a lone number or word reads best as text
    try:
        content: Any = load_json(data, object_pairs_hook=_fields)
        if not isinstance(content, dict | list):
            return None
        # Infinity and NaN are not JSON, and a number that became one of them was another number.
        return visible(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False), keep="\n")
    except (ValueError, RecursionError):  # what could be read may be too deep to be written
        return None


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name stands there twice")  # laid out as JSON, one of the two would not be seen
    return fields


def _hex(data: bytes) -> str:
    lines = []
    for place in range(0, len(data), _WIDTH):
        piece = data[place : place + _WIDTH]
        letters = "".join(chr(item) if 0x20 <= item < 0x7F else "·" for item in piece)
        halves = f"{piece[:8].hex(' '):<23}  {piece[8:].hex(' '):<23}"
        lines.append(f"{place:08x}  {halves}  {letters}")
    return "\n".join(lines)


def encoded(data: bytes, most: int) -> str:
    """Give the first bytes in base64, for the JSON twin."""
    return base64.b64encode(data[:most]).decode()
