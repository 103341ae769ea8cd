"""The flags that every command takes: where the server is, and as whom we come.

They may stand before or after the command, as with the `nats` command.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.durations import parse_duration
from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.options import ConnectionOptions

__all__ = ["Globals", "hoist"]


@dataclass(frozen=True)
class Globals:
    """What the global flags said; `options` makes connection options of it."""

    url: str | None
    context: str | None
    user: str | None
    password: str | None = dataclasses.field(repr=False)
    creds: str | None
    nkey: str | None
    tlsca: str | None
    tlscert: str | None
    tlskey: str | None
    tlsfirst: bool
    timeout: str
    js_domain: str | None
    js_api_prefix: str | None
    inbox_prefix: str | None
    connection_name: str | None

    @property
    def seconds(self) -> float:
        """The time to wait for an answer."""
        seconds = parse_duration(self.timeout, option="--timeout")
        if seconds <= 0:
            raise OptionError("--timeout is zero.", remedy="Give some time, such as 5s.", option="--timeout")
        return seconds

    def options(self) -> ConnectionOptions:
        """Find the options to connect with, from the flags, the context and the environment."""
        from penstock.contexts import load_options

        lone_user = self.user is not None and self.password is None
        return load_options(
            self.url,
            context=self.context,
            # `--user X` alone is a token, as with the `nats` command.
            token=self.user if lone_user else None,
            user=None if lone_user else self.user,
            password=self.password,
            credentials=self.creds,
            nkey=self.nkey,
            tls_ca=self.tlsca,
            tls_cert=self.tlscert,
            tls_key=self.tlskey,
            tls_first=self.tlsfirst or None,
            domain=self.js_domain,
            api_prefix=self.js_api_prefix,
            inbox_prefix=self.inbox_prefix,
            name=self.connection_name or "penstock command",
            connect_timeout=self.seconds,
            request_timeout=self.seconds,
        )


def hoist(group: Any, arguments: list[str]) -> list[str]:
    """Move global flags that follow the command to its front, where the parser wants them.

    A flag that the command itself has under the same name stays where it is.
    """
    values = {name: not getattr(option, "is_flag", False) for option in group.params for name in option.opts}
    values = {name: takes for name, takes in values.items() if name.startswith("-") and "help" not in name}
    own = _own_flags(group, arguments)
    front: list[str] = []
    rest: list[str] = []
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        name, joined, _ = argument.partition("=")
        if argument == "--":
            rest += arguments[index:]
            break
        if name in values and name not in own:
            take = 2 if values[name] and not joined else 1
            if index + take > len(arguments):
                raise OptionError(f"{name} has no value.", remedy=f"Write it behind {name}.", option=name)
            front += arguments[index : index + take]
            index += take
            continue
        rest.append(argument)
        index += 1
    return front + rest


def _own_flags(group: Any, arguments: list[str]) -> set[str]:
    """Collect the flags of the command that these arguments name."""
    own: set[str] = set()
    current = group
    for argument in arguments:
        commands = getattr(current, "commands", None)
        if not commands:
            break
        if argument in commands:
            current = commands[argument]
            own |= {name for parameter in getattr(current, "params", []) for name in parameter.opts}
    return own
