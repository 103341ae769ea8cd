"""Buckets: values under keys, and objects of any size under names, as other NATS clients store them.

The names that it exports are public; its modules are not for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.exports import exports

if TYPE_CHECKING:
    from penstock.buckets.entry import Entry as Entry
    from penstock.buckets.key_stream import bucket_source as bucket_source
    from penstock.buckets.key_stream import bucket_stream as bucket_stream
    from penstock.buckets.key_value import KeyValue as KeyValue
    from penstock.buckets.status import BucketStatus as BucketStatus
    from penstock.buckets.watch import Watch as Watch

_MODULES = {
    "penstock.buckets.entry": ("Entry",),
    "penstock.buckets.key_stream": ("bucket_source", "bucket_stream"),
    "penstock.buckets.key_value": ("KeyValue",),
    "penstock.buckets.status": ("BucketStatus",),
    "penstock.buckets.watch": ("Watch",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)  # noqa: PLE0605  # the names are those above, all text

__getattr__, __dir__ = exports(__name__, _HOMES)
