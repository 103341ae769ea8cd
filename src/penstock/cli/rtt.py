"""`penstock rtt`: how long a round trip to each address of each server takes."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from penstock.cli.flags import Json, argument
from penstock.cli.output import print_json
from penstock.cli.running import connected
from penstock.cli.tables import print_table
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.options import ConnectionOptions

__all__ = ["rtt"]


@dataclass
class _Target:
    """One address of a server, and what was measured there."""

    server: str
    address: str
    options: ConnectionOptions
    """What leads there."""
    time: datetime = field(default_factory=lambda: datetime.now(UTC))
    times: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return sum(self.times) / len(self.times) if self.times else 0.0

    def to_json(self) -> dict[str, Any]:
        """Give it as the `nats` command does: nanoseconds, 0 and no URL if nobody answered."""
        from penstock.times import format_time

        return {
            "time": format_time(self.time),
            "address": self.address,
            "rtt": round(self.mean * 1_000_000_000),
            "url": self.address if self.times else "",
        }


async def rtt(
    ctx: typer.Context,
    iterations: Annotated[int, argument("How many round trips to measure.", min=1)] = 5,
    json: Json = False,
) -> None:
    """Measure the round trip to each address of each server."""
    options = ctx.obj.options()
    targets = [target for url in options.urls for target in await _targets(options, url)]
    failures: list[PenstockError] = []
    for target in targets:
        target.time = datetime.now(UTC)
        try:
            async with connected(ctx, target.options) as client:
                target.times += [await client.rtt() for _ in range(iterations)]
        except PenstockError as error:
            failures.append(error)
    if json:
        servers = dict.fromkeys(target.server for target in targets)
        print_json(
            [{"url": one, "results": [item.to_json() for item in targets if item.server == one]} for one in servers]
        )
    elif len(failures) < len(targets):
        print_table(
            f"Round trips, {iterations} to each address",
            ("Server", "Address", "#Mean", "#Shortest", "#Longest"),
            [(item.server, item.address, *_shown(item)) for item in targets],
        )
    if failures:
        raise failures[0]


def _shown(target: _Target) -> list[str]:
    if not target.times:
        return ["failed", "", ""]
    return [f"{seconds * 1000:.3f}ms" for seconds in (target.mean, min(target.times), max(target.times))]


async def _targets(options: ConnectionOptions, url: str) -> list[_Target]:
    """Give the addresses behind the name of a server; the certificate must still be for that name."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    if _is_address(host) or parts.scheme in ("ws", "wss"):
        return [_Target(url, url, options.replace(url=url))]
    try:
        async with asyncio.timeout(options.connect_timeout):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):  # connecting tells what is wrong with it
        return [_Target(url, url, options.replace(url=url))]
    named = options.tls_hostname or host
    addresses = dict.fromkeys(str(address[0]) for *_, address in found)
    shown = {one: f"{parts.scheme}://{f'[{one}]' if ':' in one else one}:{port}" for one in addresses}
    return [_Target(url, one, options.replace(url=one, tls_hostname=named)) for one in shown.values()]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
