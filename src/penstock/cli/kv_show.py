"""What the commands of buckets share: names that are checked before there is a connection, and values as text."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated

from penstock.cli.flags import argument

if TYPE_CHECKING:
    from penstock.buckets import Entry

__all__ = ["Bucket", "Key", "bucket_name", "entry_words", "key_name", "shortened", "shown_value"]


def bucket_name(name: str | None) -> str | None:
    """Refuse what cannot be the name of a bucket before there is a connection."""
    from penstock.buckets.key_wire import check_bucket

    return None if name is None else check_bucket(name)


def key_name(key: str | None) -> str | None:
    """Refuse what cannot be a key."""
    from penstock.buckets.key_wire import check_key

    return None if key is None else check_key(key)


Bucket = Annotated[str, argument("The bucket.", "BUCKET", callback=bucket_name)]
Key = Annotated[str, argument("The key.", "KEY", callback=key_name)]


def shown_value(entry: Entry) -> str:
    """Write a value for people: text if it can be printed, else base64."""
    try:
        text = entry.value.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.isprintable() and (text or not entry.value) else base64.b64encode(entry.value).decode()


def shortened(text: str) -> str:
    """Leave the middle of a long text out."""
    return f"{text[:15]}...{text[-15:]}" if len(text) > 40 else text


def entry_words(count: int) -> str:
    """Write a number of entries."""
    return f"{count:,} {'entry' if count == 1 else 'entries'}"
