"""The flags that every command takes: where the server is, and as whom we come.

They may stand before or after the command, as with the `nats` command.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import typer

from penstock import __version__
from penstock.cli.flags import flag_table, given_fields, table_flag
from penstock.durations import parse_duration
from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.options import ConnectionOptions

__all__ = ["Globals", "hoist"]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@flag_table
class Globals:
    """What the global flags said; `options` makes connection options of it."""

    url: str | None = table_flag("Address of the NATS server, or several with commas.", "URL", "-s", "--server", to="")
    context: str | None = table_flag("NATS context to take the connection from.", "NAME")
    user: str | None = table_flag("User name, or token.", envvar="NATS_USER", to="")
    password: str | None = table_flag("Password of the user.", envvar="NATS_PASSWORD", repr=False)
    creds: str | None = table_flag("User credentials file.", "FILE", envvar="NATS_CREDS", to="credentials")
    nkey: str | None = table_flag("File with an nkey seed.", "FILE", envvar="NATS_NKEY")
    tlsca: str | None = table_flag("Certificates to trust.", "FILE", envvar="NATS_CA", to="tls_ca")
    tlscert: str | None = table_flag("Our own certificate.", "FILE", envvar="NATS_CERT", to="tls_cert")
    tlskey: str | None = table_flag("Key of our certificate.", "FILE", envvar="NATS_KEY", to="tls_key")
    tlsfirst: bool | None = table_flag("Shake hands before the server speaks.", "--tlsfirst", to="tls_first")
    timeout: str = table_flag("Time to wait for an answer.", "DURATION", envvar="NATS_TIMEOUT", default="5s", to="")
    js_domain: str | None = table_flag("JetStream domain.", "NAME", envvar="NATS_DOMAIN", to="domain")
    js_api_prefix: str | None = table_flag("Prefix of the JetStream API.", "PREFIX", to="api_prefix")
    inbox_prefix: str | None = table_flag("Prefix of reply subjects.", "PREFIX")
    connection_name: str | None = table_flag("Name to show at the server.", "NAME", to="")
    trace: bool = table_flag("Log what goes on.", default=False, to="")
    version: bool = table_flag(
        "Show the version and exit.", "--version", callback=_version, is_eager=True, default=False, to=""
    )

    @property
    def seconds(self) -> float:
        """The time to wait for an answer."""
        seconds = parse_duration(self.timeout, option="--timeout")
        if seconds <= 0:
            raise OptionError("--timeout is zero.", remedy="Give some time, such as 5s.", option="--timeout")
        return seconds

    @property
    def names_a_server(self) -> bool:
        """Whether a flag or a variable says which server is meant."""
        return bool(self.url or self.context or os.environ.get("NATS_URL") or os.environ.get("NATS_CONTEXT"))

    def options(self) -> ConnectionOptions:
        """Find the options to connect with, from the flags, the context and the environment."""
        from penstock.contexts import load_options

        return load_options(
            self.url,
            # `--user X` alone is a token, as with the `nats` command.
            token=self.user if self.password is None else None,
            user=None if self.password is None else self.user,
            name=self.connection_name or "penstock command",
            connect_timeout=self.seconds,
            request_timeout=self.seconds,
            **given_fields(self),
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
    left = iter(arguments)
    for argument in left:
        name, joined, _ = argument.partition("=")
        if argument == "--":
            rest += [argument, *left]
        elif _joined(argument, values) and argument[:2] not in own:
            front.append(argument)
        elif name in values and name not in own:
            front.append(argument)
            if values[name] and not joined:
                value = next(left, None)
                if value is None:
                    raise OptionError(f"{name} has no value.", remedy=f"Write it behind {name}.", option=name)
                front.append(value)
        else:
            rest.append(argument)
    return front + rest


def _joined(argument: str, values: dict[str, bool]) -> bool:
    """Tell whether this is a short flag with its value, as in -sURL."""
    return len(argument) > 2 and argument[1] != "-" and values.get(argument[:2], False)


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
