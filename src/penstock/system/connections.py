"""All connections of all servers, page by page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import DeniedError
from penstock.system.fields import figure
from penstock.system.gathering import Gathered, ask_servers, data_of
from penstock.system.questions import ServerFilter

if TYPE_CHECKING:
    from penstock.connection import Connection

__all__ = ["ask_connections"]

_PAGE = 1024  # what a server gives at a time
_MOST_PAGES = 1000


async def ask_connections(
    client: Connection, about: Mapping[str, Any], *, where: ServerFilter, expect: int = 0, timeout: float | None = None
) -> Gathered:
    """Ask for the connections of all servers, all pages of them; MonitorError if a server refuses.

    A login outside of the system account is told with what it may ask: the connections of its own account.
    """
    answers: list[dict[str, Any]] = []
    missing: set[str] = set()
    absent = 0
    for page in range(_MOST_PAGES):
        question = {**about, "limit": _PAGE, "offset": page * _PAGE}
        try:
            got = await ask_servers(client, "CONNZ", question, where=where, expect=expect, timeout=timeout)
        except DeniedError as error:
            own = "For those of your own account: `penstock account report connections`."
            raise DeniedError(error.what, remedy=f"{error.remedy} {own}", **error.facts) from None
        answers += got.answers
        missing.update(got.missing)
        absent = max(absent, got.absent)
        if all(figure(data_of(answer), "total") <= (page + 1) * _PAGE for answer in got.answers):
            break
    return Gathered(tuple(answers), tuple(sorted(missing)), absent)
