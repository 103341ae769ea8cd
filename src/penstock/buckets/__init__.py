"""Buckets: values under keys, and objects of any size under names, as other NATS clients store them.

The names load when they are first used. The names that it exports are public; its modules are not for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.exports import exports

if TYPE_CHECKING:
    from penstock.buckets.object_info import ObjectInfo as ObjectInfo
    from penstock.buckets.object_info import ObjectLink as ObjectLink
    from penstock.buckets.object_reading import StoredObject as StoredObject
    from penstock.buckets.object_status import ObjectStoreStatus as ObjectStoreStatus
    from penstock.buckets.object_store import ObjectStore as ObjectStore

_MODULES = {
    "penstock.buckets.object_info": ("ObjectInfo", "ObjectLink"),
    "penstock.buckets.object_reading": ("StoredObject",),
    "penstock.buckets.object_status": ("ObjectStoreStatus",),
    "penstock.buckets.object_store": ("ObjectStore",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)  # noqa: PLE0605  # the names are those above, all text

__getattr__, __dir__ = exports(__name__, _HOMES)
