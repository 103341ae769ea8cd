"""Who may see the console: whoever shows its token, under a name that leads here. And who may act: another token.

The token is in the address that the command prints; the answer puts it into a cookie and takes it out of the address.
Programs show it as `Authorization: Bearer TOKEN`. A page of another site that makes its name lead to this machine (DNS
rebinding) still says its own name in `Host`, and is turned away: known are the names that were configured,
`localhost`, and addresses in numbers, which nobody can make lead elsewhere.

There are two roles. Whoever reads shows the token; whoever acts shows the write token, which is there only if the
console was told to let somebody act. No request with the first token alone can act. The cookie of one who acts is a
session: a number of its own, signed with the write token, and no page of another site can make the browser send it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from penstock.addresses import is_address
from penstock.errors import OptionError

__all__ = ["ADMISSION", "HEADERS", "NOBODY", "Access", "Admission", "Role", "is_same_site", "may_act"]

HEADERS = {
    # Nothing from elsewhere, no script or style in a page, no frame around it.
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Nothing to others. With `no-referrer`, browsers would not say of our own forms that they are ours.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_SHORTEST = 16
_ONCE = 60.0  # seconds that a code for the browser is good for

Role = Literal["read", "write"]


@dataclass(frozen=True)
class Admission:
    """What becomes of a request: it is `in`, its browser may `enter` from now on, or it stays `out`."""

    how: Literal["in", "enter", "out"]
    role: Role = "read"
    session: str = ""
    """Whoever sent it, for what is bound to that: a digest that tells nothing of the token."""
    by: Literal["cookie", "bearer"] = "cookie"


NOBODY = Admission("out")
ADMISSION: ContextVar[Admission] = ContextVar("ADMISSION", default=NOBODY)
"""Whoever sent the request in hand."""


def may_act() -> bool:
    """Tell whether the one who looks may act; templates ask."""
    return ADMISSION.get().role == "write"


class Access:
    """The tokens, and what a request must show. With `write` somebody may act, who shows the write token."""

    def __init__(
        self,
        token: str | None = None,
        *,
        names: tuple[str, ...] = (),
        write: bool = False,
        write_token: str | None = None,
    ) -> None:
        self.token = _checked(token, "token") or secrets.token_urlsafe(24)
        self.write_token = (_checked(write_token, "write_token") or secrets.token_urlsafe(24)) if write else None
        """What lets somebody act; None if nobody may."""
        if write_token is not None and not write:
            raise OptionError(
                "There is a token for acting, and nobody may act.", remedy="Give --write, too.", option="write_token"
            )
        if self.write_token == self.token:
            raise OptionError(
                "The token for acting is the one for reading, too.",
                remedy="Take two: whoever may look could act otherwise.",
                option="write_token",
            )
        self._names = {name.lower() for name in names} | {"localhost"}
        self._code: tuple[bytes, float, Role] | None = None
        """The digest of a code, until when it is good, and for which role."""

    def knows_host(self, host: str | None) -> bool:
        """Tell whether a `Host` header names us."""
        if not host or re.search(r"[\s/@\\?#]", host):
            return False
        name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
        return is_address(name) or name.lower().removesuffix(".") in self._names

    def code(self, role: Role = "read") -> str:
        """Give a code that lets one browser in, once, soon: the arguments of a program can be seen by others."""
        code = secrets.token_urlsafe(24)
        self._code = _digest(code), time.monotonic() + _ONCE, role
        return code

    def admit(self, *, query: Mapping[str, str], cookie: str | None, authorization: str | None) -> Admission:
        """Tell whether a request is let in, shows what lets its browser in from now on, or stays out."""
        if "token" in query:
            role = self._role(query["token"])
            return NOBODY if role is None else Admission("enter", role)
        if "code" in query and self._code is not None:
            (known, until, role), self._code = self._code, None  # whatever becomes of it, it is used
            good = until >= time.monotonic() and hmac.compare_digest(known, _digest(query["code"]))
            return Admission("enter", role) if good else NOBODY
        if cookie is not None and (role := self._role_of_cookie(cookie)) is not None:
            return Admission("in", role, _digest(f"cookie {cookie}").hex())
        scheme, _, shown = (authorization or "").partition(" ")
        role = self._role(shown.strip()) if scheme.lower() == "bearer" else None
        return NOBODY if role is None else Admission("in", role, _digest(f"bearer {shown.strip()}").hex(), "bearer")

    def cookie(self, role: Role) -> str:
        """Give what the cookie of a browser holds that may enter."""
        if role == "read":
            return self.token
        number = secrets.token_urlsafe(16)
        return f"{number}.{self._signed(number)}"

    def _role(self, token: str) -> Role | None:
        # Both are compared always: how long it takes tells nothing.
        reads = hmac.compare_digest(_digest(token), _digest(self.token))
        writes = self.write_token is not None and hmac.compare_digest(_digest(token), _digest(self.write_token))
        return "write" if writes else "read" if reads else None

    def _role_of_cookie(self, cookie: str) -> Role | None:
        if hmac.compare_digest(_digest(cookie), _digest(self.token)):
            return "read"
        number, _, signature = cookie.partition(".")
        if self.write_token is None or not number:
            return None
        return "write" if hmac.compare_digest(_digest(signature), _digest(self._signed(number))) else None

    def _signed(self, number: str) -> str:
        key = (self.write_token or "").encode()
        return hmac.digest(key, f"session {number}".encode(errors="replace"), "sha256").hex()


def is_same_site(admission: Admission, *, host: str, origin: str | None, fetch_site: str | None) -> bool:
    """Tell whether a request that changes something comes from a page of ours, or from a program.

    Browsers say so themselves, in `Sec-Fetch-Site` and `Origin`, and no page can forge it. A program shows the token
    as a bearer, which browsers do not do by themselves, and says neither.
    """
    if fetch_site is None and origin is None:
        return admission.by == "bearer"
    if fetch_site not in (None, "same-origin"):
        return False
    if origin is None:
        return True
    scheme, mark, place = origin.partition("://")
    return scheme in ("http", "https") and bool(mark) and place.lower() == host.lower()


def _checked(token: str | None, option: str) -> str | None:
    if token is not None and not re.fullmatch(rf"[A-Za-z0-9._~-]{{{_SHORTEST},256}}", token):
        raise OptionError(
            "The console's token is too short, or cannot be part of an address.",
            remedy=f"Take {_SHORTEST} or more letters, digits, - and _, which nobody can guess.",
            option=option,
        )
    return token


def _digest(text: str) -> bytes:
    # Digests have one length, so that comparing tells nothing, not even how long the token is.
    return hashlib.sha256(text.encode(errors="replace")).digest()
