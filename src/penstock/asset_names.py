"""What can be the name of a stream or a consumer. Pure, and quick to load."""

from __future__ import annotations

import re

__all__ = ["NAME"]

# A name is a token of API subjects and a folder in the store; halves of characters cannot be sent.
NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f\ud800-\udfff]+")
