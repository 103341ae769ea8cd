"""Who may see the console: whoever shows its token, under a name that leads here, and only to read.

The token is in the address that the command prints; the answer puts it into a cookie and takes it out of the address.
Programs show it as `Authorization: Bearer TOKEN`. A page of another site that makes its name lead to this machine (DNS
rebinding) still says its own name in `Host`, and is turned away: known are the names that were configured,
`localhost`, and addresses in numbers, which nobody can make lead elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Mapping
from typing import Literal

from penstock.addresses import is_address
from penstock.errors import OptionError

__all__ = ["HEADERS", "Access", "Admission"]

HEADERS = {
    # Nothing from elsewhere, no script or style in a page, no frame around it.
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_SHORTEST = 16
_ONCE = 60.0  # seconds that a code for the browser is good for

Admission = Literal["in", "enter", "out"]


class Access:
    """The token, and what a request must show."""

    def __init__(self, token: str | None = None, *, names: tuple[str, ...] = ()) -> None:
        if token is not None and not re.fullmatch(rf"[A-Za-z0-9._~-]{{{_SHORTEST},256}}", token):
            raise OptionError(
                "The console's token is too short, or cannot be part of an address.",
                remedy=f"Take {_SHORTEST} or more letters, digits, - and _, which nobody can guess.",
                option="token",
            )
        self.token = token or secrets.token_urlsafe(24)
        self._names = {name.lower() for name in names} | {"localhost"}
        self._code: tuple[bytes, float] | None = None
        """The digest of a code, and until when it is good."""

    def knows_host(self, host: str | None) -> bool:
        """Tell whether a `Host` header names us."""
        if not host or re.search(r"[\s/@\\?#]", host):
            return False
        name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
        return is_address(name) or name.lower().removesuffix(".") in self._names

    def code(self) -> str:
        """Give a code that lets one browser in, once, soon: the arguments of a program can be seen by others."""
        code = secrets.token_urlsafe(24)
        self._code = _digest(code), time.monotonic() + _ONCE
        return code

    def admit(self, *, query: Mapping[str, str], cookie: str | None, authorization: str | None) -> Admission:
        """Tell whether a request is let in, shows what lets its browser in from now on, or stays out."""
        if "token" in query:
            return "enter" if self._is_token(query["token"]) else "out"
        if "code" in query and self._code is not None:
            (known, until), self._code = self._code, None  # whatever becomes of it, it is used
            good = until >= time.monotonic() and hmac.compare_digest(known, _digest(query["code"]))
            return "enter" if good else "out"
        if cookie is not None and self._is_token(cookie):
            return "in"
        scheme, _, shown = (authorization or "").partition(" ")
        return "in" if scheme.lower() == "bearer" and self._is_token(shown.strip()) else "out"

    def _is_token(self, shown: str) -> bool:
        return hmac.compare_digest(_digest(shown), _digest(self.token))


def _digest(text: str) -> bytes:
    # Digests have one length, so that comparing tells nothing, not even how long the token is.
    return hashlib.sha256(text.encode(errors="replace")).digest()
