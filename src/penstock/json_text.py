"""JSON that somebody else wrote: whatever is wrong with it is one kind of error, which who reads it knows of."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["load_json"]


def load_json(content: str | bytes | bytearray, **how: Any) -> Any:
    """Read JSON; ValueError for whatever is none, also if it is nested deeper than Python follows."""
    try:
        return json.loads(content, **how)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
