"""What can be downloaded: the payload of a message, a payload in chunks as a whole, an object of a bucket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.console.backend import Backend, Download, PageRequest
from penstock.console.buckets import object_content
from penstock.console.masked_pieces import masked_pieces
from penstock.console.messages import fetch_message
from penstock.console.whole import whole_pieces

__all__ = ["DOWNLOADS"]


async def _payload(backend: Backend, request: PageRequest) -> Download:
    """Give the whole payload of a message; with `?whole=yes` that of all its chunks together."""
    client = await backend.upstream.client()
    found = await fetch_message(client, request)
    if request.query.get("whole") == "yes":
        pieces = masked_pieces(backend.mask, await whole_pieces(client, found))
        return Download(f"payload-{found.sequence}.bin", pieces)
    return Download(f"message-{found.sequence}.bin", backend.mask.data(found.data))


DOWNLOADS: dict[str, Callable[[Backend, PageRequest], Awaitable[Download]]] = {
    "/streams/{stream}/messages/{sequence}/payload": _payload,
    "/buckets/objects/{bucket}/content": object_content,
}
