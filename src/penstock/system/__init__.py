"""Servers seen by their system account: who is there, what each says of itself, and whether that is healthy.

`questions` says what can be asked and of whom, `fields` reads what is answered, `gathering` asks all servers at once,
`seen` and `reports` put the answers together, `result` and the `check_` modules judge them, `events` reads what servers
tell by themselves.

The names that it exports are public; its modules are not for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.exports import exports

if TYPE_CHECKING:
    from penstock.system.gathering import Gathered as Gathered
    from penstock.system.gathering import ask_servers as ask_servers
    from penstock.system.gathering import servers as servers
    from penstock.system.questions import ServerFilter as ServerFilter
    from penstock.system.result import CheckResult as CheckResult
    from penstock.system.result import Gauge as Gauge
    from penstock.system.seen import ServerSeen as ServerSeen

_MODULES = {
    "penstock.system.gathering": ("Gathered", "ask_servers", "servers"),
    "penstock.system.questions": ("ServerFilter",),
    "penstock.system.result": ("CheckResult", "Gauge"),
    "penstock.system.seen": ("ServerSeen",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)  # noqa: PLE0605  # the names are those above, all text

__getattr__, __dir__ = exports(__name__, _HOMES)
