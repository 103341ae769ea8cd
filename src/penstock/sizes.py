"""Sizes as people write them: "512", "64KiB", "1.5GB".

The units are those of the `nats` command, where K, KB and KiB all mean 1,024 bytes, and so on up to T. In Python a
size is a number of bytes as `int`.
"""

from __future__ import annotations

import re
from decimal import Decimal

from penstock.errors import OptionError

__all__ = ["format_size", "parse_size"]

_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)


def parse_size(text: str | int, *, option: str = "size") -> int:
    """Turn "64KiB" into 65536; a number is taken as bytes, and -1 as no limit. `option` names the culprit."""
    if isinstance(text, int) and not isinstance(text, bool):
        bytes_ = text
    elif isinstance(text, str) and text.strip() == "-1":
        bytes_ = -1
    elif isinstance(text, str) and (found := _SIZE.fullmatch(text.strip())):
        bytes_ = int(Decimal(found.group(1)) * 1024 ** _UNITS[found.group(2).upper()])
    else:
        what = f"{option} is {text!r}, which is not a size."
        remedy = 'Write a number of bytes, or one with a unit, such as "64KiB" or "1GB".'
        raise OptionError(what, remedy=remedy, option=option, value=text)
    if bytes_ < -1 or bytes_ > 2**63 - 1:
        what = f"{option} is {text!r}: a size is between 0 and 8 EiB, or -1 for no limit."
        raise OptionError(what, remedy='Write one such as "1GB".', option=option, value=text)
    return bytes_


def format_size(count: int) -> str:
    """Turn 1536 into "1.5 KiB", in the way the `nats` command shows sizes."""
    if count < 1024:
        return f"{count} B"
    power = 1
    while power < 6 and round(count / 1024**power, 1) >= 1024:
        power += 1
    return f"{count / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"
