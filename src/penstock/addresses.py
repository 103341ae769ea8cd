"""Addresses of machines: which texts are one, and which reach no further than this machine."""

from __future__ import annotations

import ipaddress

__all__ = ["is_address", "is_loopback"]


def is_address(host: str) -> bool:
    """Tell whether a host is an address, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach that address."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)
