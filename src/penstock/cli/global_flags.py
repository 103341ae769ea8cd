"""The flags that every command takes: where the server is, and as whom we come.

They may stand before or after the command, as with the `nats` command.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import typer

from penstock import __version__
from penstock.cli.flags import flag_table, given_fields, table_flag
from penstock.cli.tables import SCHEMES
from penstock.cli.values import refuse_both
from penstock.durations import parse_duration
from penstock.errors import InputError, OptionError

if TYPE_CHECKING:
    from penstock.options import ConnectionOptions

__all__ = ["Globals", "hoist"]

# The ways to log in, by the flags of each, and the options of those that are called otherwise.
_WAYS = (("user", "password"), ("token",), ("creds",), ("nkey",), ("jwt", "seed"))
_OPTIONS = {"creds": "credentials", "seed": "nkey"}
_LONGEST = 86400.0  # seconds to wait for an answer: who waits for longer than a day has mistyped


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@flag_table
class Globals:
    """What the global flags said; `options` makes connection options of it."""

    url: str | None = table_flag("Address of the NATS server, or several with commas.", "URL", "-s", "--server", to="")
    context: str | None = table_flag("NATS context to take the connection from.", "NAME")
    no_context: bool = table_flag("Use no context.", "--no-context", default=False)
    user: str | None = table_flag("User name, or token.", envvar="NATS_USER", to="")
    password: str | None = table_flag("Password of the user.", envvar="NATS_PASSWORD", repr=False, to="")
    token: str | None = table_flag("Token.", envvar="NATS_TOKEN", repr=False, to="")
    creds: str | None = table_flag("User credentials file.", "FILE", envvar="NATS_CREDS", repr=False, to="")
    nkey: str | None = table_flag("File with an nkey seed.", "FILE", envvar="NATS_NKEY", repr=False, to="")
    jwt: str | None = table_flag("User JWT, or its file.", "JWT", envvar="NATS_JWT", repr=False, to="")
    seed: str | None = table_flag("Seed for --jwt, or its file.", "SEED", envvar="NATS_SEED", repr=False, to="")
    tlsca: str | None = table_flag("Certificates to trust.", "FILE", envvar="NATS_CA", to="tls_ca")
    tlscert: str | None = table_flag("Our own certificate.", "FILE", envvar="NATS_CERT", to="tls_cert")
    tlskey: str | None = table_flag("Key of our certificate.", "FILE", envvar="NATS_KEY", to="tls_key")
    tlsfirst: bool | None = table_flag(
        "Do the TLS handshake before the server's greeting.", "--tlsfirst", "--tls-first", to="tls_first"
    )
    socks_proxy: str | None = table_flag(
        "SOCKS5 proxy to connect through; none for none.", "URL", envvar="NATS_SOCKS_PROXY", repr=False
    )
    timeout: str = table_flag("Time to wait for an answer.", "DURATION", envvar="NATS_TIMEOUT", default="5s", to="")
    js_domain: str | None = table_flag(
        "JetStream domain.", "NAME", "--js-domain", "--domain", envvar="NATS_DOMAIN", to="domain"
    )
    js_api_prefix: str | None = table_flag("Prefix of the JetStream API.", "PREFIX", to="api_prefix")
    js_event_prefix: str | None = table_flag("Prefix of JetStream's advisories.", "PREFIX", to="event_prefix")
    inbox_prefix: str | None = table_flag("Prefix of reply subjects.", "PREFIX")
    connection_name: str | None = table_flag("Name to show at the server.", "NAME", to="")
    colors: str | None = table_flag("Look of tables: " + ", ".join(SCHEMES) + ".", "SCHEME", envvar="NATS_COLOR", to="")
    trace: bool = table_flag("Log what goes on.", default=False, to="")
    version: bool = table_flag(
        "Show the version and exit.", "--version", callback=_version, is_eager=True, default=False, to=""
    )

    def __post_init__(self) -> None:
        if self.colors and self.colors not in SCHEMES:
            raise OptionError(
                f"--colors is {self.colors!r}.", remedy=f"Use one of {', '.join(SCHEMES)}.", option="--colors"
            )
        refuse_both("--context", bool(self.context), "--no-context", self.no_context)

    @property
    def seconds(self) -> float:
        """The time to wait for an answer."""
        seconds = parse_duration(self.timeout, option="--timeout")
        if not 0 < seconds <= _LONGEST:
            what = "--timeout is zero." if seconds <= 0 else f"--timeout is {self.timeout!r}, longer than a day."
            raise OptionError(what, remedy="Give some time, such as 5s.", option="--timeout")
        return seconds

    @property
    def names_a_server(self) -> bool:
        """Whether a flag or a variable says which server is meant."""
        return bool(self.url or self.context or os.environ.get("NATS_URL") or os.environ.get("NATS_CONTEXT"))

    def login(self) -> dict[str, str]:
        """Give the login by its flags; one that is typed goes before those of the environment."""
        typed = [way for way in _WAYS if any(self._is_typed(name) for name in way)]
        given = {name: value for way in typed or _WAYS for name in way if (value := getattr(self, name)) is not None}
        if given.get("user") and not given.get("password"):
            # `--user X` alone is a token, as with the `nats` command.
            token = given.pop("user")
            if given.setdefault("token", token) != token:
                what = "--user without --password is a token, and --token is another one."
                raise InputError(what, remedy="Leave one of them out.")
        refuse_both("--nkey", bool(given.get("nkey")), "--seed", bool(given.get("seed")))
        return given

    def _is_typed(self, name: str) -> bool:
        return getattr(self, name) not in (None, os.environ.get(f"NATS_{name.upper()}"))

    def options(self) -> ConnectionOptions:
        """Find the options to connect with, from the flags, the context and the environment.

        What they name is read here: a file that is missing is told before anything is opened.
        """
        from penstock.contexts import load_options, resolve
        from penstock.credentials import check

        login: dict[str, Any] = {_OPTIONS.get(name, name): value for name, value in self.login().items()}
        login = {option: resolve(value, option) for option, value in login.items()}
        found = load_options(
            self.url,
            name=self.connection_name or "penstock command",
            connect_timeout=self.seconds,
            request_timeout=self.seconds,
            **login,
            **given_fields(self),
        )
        check(found)
        self.choose_colors()
        return found

    def choose_colors(self) -> None:
        """Draw tables as --colors says, or the context that the connection comes from."""
        from penstock.cli.tables import use_scheme
        from penstock.contexts import context_colors, used_context

        name = None if self.colors else used_context(self.url, self.context, no_context=self.no_context)
        scheme = self.colors or (context_colors(name) if name else None)
        use_scheme(scheme if scheme in SCHEMES else SCHEMES[0])


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
