"""The tree of commands, the global flags, and what becomes of errors.

Commands load when they are wanted (`tree`), and import heavy modules inside, so that `penstock --help` answers at once.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
import typer.main

from penstock.cli.flags import as_command
from penstock.cli.global_flags import Globals, hoist
from penstock.cli.parsing import misuse
from penstock.cli.standard_output import guarded
from penstock.cli.tables import plain
from penstock.cli.tree import Tree
from penstock.errors import InputError, PenstockError
from penstock.extras import without_extra

__all__ = ["app", "main"]

_Misuse: Any = typer.BadParameter.__base__  # what typer raises for arguments that do not fit; it exports no name of it

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


@app.callback()
@as_command
def _globals(ctx: typer.Context, flags: Globals) -> None:
    """NATS streams through Spark and back, each message exactly once."""
    import logging

    level = logging.DEBUG if flags.trace else logging.WARNING
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr, force=True)
    ctx.obj = flags


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command: 0 when it did what it was asked, 1 when it failed, 2 for bad input, 130 after Ctrl-C."""
    with guarded():
        try:
            command = typer.main.get_command(app)
            words = hoist(command, list(sys.argv[1:] if arguments is None else arguments))
            status = command.main(words, prog_name="penstock", standalone_mode=False)
        except PenstockError as error:
            _end(str(error), 2 if isinstance(error, InputError) else 1)
        except ModuleNotFoundError as error:
            said = without_extra(error, "This command")
            if said is None:
                raise
            _end(str(said), 2)
        except _Misuse as error:
            if error.ctx is not None and error.message == error.ctx.get_help():  # nothing was said at all
                error.show()
                sys.exit(2)
            _end(misuse(error), 2)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            _end("This process has as many files open as it may. Raise the limit: ulimit -n.", 1)
        except typer.Abort:
            _end("Ended at the question; nothing was changed.", 1)
        sys.exit(status or 0)


def _end(sentence: str, status: int) -> NoReturn:
    quoted = "\n  "  # how lines of a server's log follow; any other break is shown as such
    typer.echo(f"penstock: {quoted.join(map(plain, sentence.split(quoted)))}", err=True)
    sys.exit(status)
