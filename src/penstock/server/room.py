"""How much a node may store: what it holds already, and most of what its disk has left.

nats-server takes three quarters of what is free when it starts, and counts what it holds against that: each start would
leave it less room, and one whose store is larger than what is left would refuse every message.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

__all__ = ["room_for"]

_SHARE = 0.75  # of what is free, as nats-server has it
_LEAST = 1024 * 1024  # bytes; none at all would mean that the server decides


def room_for(folder: Path) -> int:
    """Give how many bytes may be stored below a folder, with those that are there."""
    held = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                held += os.lstat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue  # it went while we looked
    there = folder
    while not there.exists():
        there = there.parent
    return max(_LEAST, held + int(shutil.disk_usage(there).free * _SHARE))
