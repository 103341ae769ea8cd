"""Buckets: values under keys, and objects of any size under names, as other NATS clients store them.

The names that it exports are public; its modules are not for users.
"""

from __future__ import annotations

__all__: list[str] = []
