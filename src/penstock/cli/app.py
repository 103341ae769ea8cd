"""The tree of commands, the global flags, and what becomes of errors.

Commands load when they are wanted (`tree`), and import heavy modules inside, so that `penstock --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
import typer.main

from penstock import __version__
from penstock.cli.global_flags import Globals, hoist
from penstock.cli.tree import Tree
from penstock.errors import InputError, PenstockError

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Tree,
    name="penstock",
    help="NATS streams through Spark and back, each message exactly once.",
    epilog="The flags above may also follow the command: penstock pub orders.new hello -s nats://host:4222",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _globals(
    ctx: typer.Context,
    server_url: Annotated[
        str | None,
        typer.Option("-s", "--server", metavar="URL", help="Address of the NATS server, or several with commas."),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option("--context", metavar="NAME", help="NATS context to take the connection from."),
    ] = None,
    user: Annotated[str | None, typer.Option("--user", envvar="NATS_USER", help="User name, or token.")] = None,
    password: Annotated[
        str | None, typer.Option("--password", envvar="NATS_PASSWORD", help="Password of the user.")
    ] = None,
    creds: Annotated[
        str | None,
        typer.Option("--creds", envvar="NATS_CREDS", metavar="FILE", help="User credentials file."),
    ] = None,
    nkey: Annotated[
        str | None, typer.Option("--nkey", envvar="NATS_NKEY", metavar="FILE", help="File with an nkey seed.")
    ] = None,
    tlsca: Annotated[
        str | None, typer.Option("--tlsca", envvar="NATS_CA", metavar="FILE", help="Certificates to trust.")
    ] = None,
    tlscert: Annotated[
        str | None, typer.Option("--tlscert", envvar="NATS_CERT", metavar="FILE", help="Our own certificate.")
    ] = None,
    tlskey: Annotated[
        str | None,
        typer.Option("--tlskey", envvar="NATS_KEY", metavar="FILE", help="Key of our certificate."),
    ] = None,
    tlsfirst: Annotated[bool, typer.Option("--tlsfirst", help="Shake hands before the server speaks.")] = False,
    timeout: Annotated[
        str,
        typer.Option("--timeout", envvar="NATS_TIMEOUT", metavar="DURATION", help="Time to wait for an answer."),
    ] = "5s",
    js_domain: Annotated[
        str | None,
        typer.Option("--js-domain", envvar="NATS_DOMAIN", metavar="NAME", help="JetStream domain."),
    ] = None,
    js_api_prefix: Annotated[
        str | None, typer.Option("--js-api-prefix", metavar="PREFIX", help="Prefix of the JetStream API.")
    ] = None,
    inbox_prefix: Annotated[
        str | None, typer.Option("--inbox-prefix", metavar="PREFIX", help="Prefix of reply subjects.")
    ] = None,
    connection_name: Annotated[
        str | None, typer.Option("--connection-name", metavar="NAME", help="Name to show at the server.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Log what goes on.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """NATS streams through Spark and back, each message exactly once."""
    import logging

    logging.basicConfig(
        level=logging.DEBUG if trace else logging.WARNING, format="%(message)s", stream=sys.stderr, force=True
    )
    ctx.obj = Globals(
        url=server_url,
        context=context,
        user=user,
        password=password,
        creds=creds,
        nkey=nkey,
        tlsca=tlsca,
        tlscert=tlscert,
        tlskey=tlskey,
        tlsfirst=tlsfirst,
        timeout=timeout,
        js_domain=js_domain,
        js_api_prefix=js_api_prefix,
        inbox_prefix=inbox_prefix,
        connection_name=connection_name,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command: 0 when it did what it was asked, 1 when it failed, 2 for bad input, 130 after Ctrl-C."""
    try:
        command = typer.main.get_command(app)
        command(hoist(command, list(sys.argv[1:] if arguments is None else arguments)), prog_name="penstock")
    except PenstockError as error:
        typer.echo(f"penstock: {error}", err=True)
        sys.exit(2 if isinstance(error, InputError) else 1)
