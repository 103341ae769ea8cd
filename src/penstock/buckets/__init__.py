"""Buckets: values under keys, and objects of any size under names, as other NATS clients store them.

The names load when they are first used. The names that it exports are public; its modules are not for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.exports import exports

if TYPE_CHECKING:
    from penstock.buckets.entry import Entry as Entry
    from penstock.buckets.key_stream import bucket_source as bucket_source
    from penstock.buckets.key_stream import bucket_stream as bucket_stream
    from penstock.buckets.key_value import KeyValue as KeyValue
    from penstock.buckets.object_info import ObjectInfo as ObjectInfo
    from penstock.buckets.object_info import ObjectLink as ObjectLink
    from penstock.buckets.object_orphans import Orphan as Orphan
    from penstock.buckets.object_reading import StoredObject as StoredObject
    from penstock.buckets.object_status import ObjectStoreStatus as ObjectStoreStatus
    from penstock.buckets.object_store import ObjectStore as ObjectStore
    from penstock.buckets.object_watch import ObjectWatch as ObjectWatch
    from penstock.buckets.status import BucketStatus as BucketStatus
    from penstock.buckets.watch import Watch as Watch

_MODULES = {
    "penstock.buckets.entry": ("Entry",),
    "penstock.buckets.key_stream": ("bucket_source", "bucket_stream"),
    "penstock.buckets.key_value": ("KeyValue",),
    "penstock.buckets.object_info": ("ObjectInfo", "ObjectLink"),
    "penstock.buckets.object_orphans": ("Orphan",),
    "penstock.buckets.object_reading": ("StoredObject",),
    "penstock.buckets.object_status": ("ObjectStoreStatus",),
    "penstock.buckets.object_store": ("ObjectStore",),
    "penstock.buckets.object_watch": ("ObjectWatch",),
    "penstock.buckets.status": ("BucketStatus",),
    "penstock.buckets.watch": ("Watch",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)  # noqa: PLE0605  # the names are those above, all text

__getattr__, __dir__ = exports(__name__, _HOMES)
