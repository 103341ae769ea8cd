"""The key file that `nats backup edit --obfuscate` writes: which word stands for which, and the secret behind it.

A word is the HMAC-SHA-256 of the original under the secret, as base32 in lower case, as long as the original and at
least 16 letters. More than 32 bytes come from further blocks: each the HMAC of the block before, the original and the
number of the block.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Any

from penstock.errors import InputError
from penstock.json_text import load_json

__all__ = ["read_key_file", "reveal"]

_SECRET, _LEAST = 32, 16
_PREFIXES = ("KV_", "OBJ_")
_REMEDY = "Name the file that was written beside an obfuscated backup."


def read_key_file(content: bytes, path: str) -> dict[str, str]:
    """Give the original of each word; InputError if the file is none, or was changed."""
    try:
        told: Any = load_json(content)
        version, words = told["version"], told["map"] or {}
        secret = base64.b64decode(told["secret"], validate=True)
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise InputError(f"{path} is not a key file.", remedy=_REMEDY) from None
    if version != 1 or len(secret) != _SECRET or not isinstance(words, dict):
        raise InputError(f"{path} is not a key file that is known here.", remedy=_REMEDY)
    for word, original in words.items():
        if not isinstance(original, str) or not _is_text(original) or hide(original, secret) != word:
            raise InputError(f"{path} was changed: {word[:60]!r} does not follow from its secret.", remedy=_REMEDY)
    return words


def _is_text(original: str) -> bool:
    """Tell whether this can be a name: half a character cannot be written."""
    return not any("\ud800" <= char <= "\udfff" for char in original)


def hide(original: str, secret: bytes) -> str:
    """Give the word that stands for an original."""
    text = original.encode()
    letters = max(_LEAST, len(text))
    made = hmac.digest(secret, text, hashlib.sha256)
    block = 0
    while len(made) * 8 < letters * 5:
        block += 1
        made += hmac.digest(secret, made[-32:] + text + block.to_bytes(4, "big"), hashlib.sha256)
    return base64.b32hexencode(made).decode().rstrip("=").lower()[:letters]


def reveal(value: str, words: dict[str, str]) -> str:
    """Give the original of a value, token by token; what the file does not know stays as it is."""
    return ".".join(_reveal_token(token, words) for token in value.split("."))


def _reveal_token(token: str, words: dict[str, str]) -> str:
    for prefix in ("", *_PREFIXES):
        if token.startswith(prefix) and token.removeprefix(prefix) in words:
            return prefix + words[token.removeprefix(prefix)]
    return token
