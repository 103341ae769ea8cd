"""Flags: how they are described, those that several commands have, and tables of them.

A table (`flag_table`) is a class whose fields are flags (`table_flag`); a command takes it as one parameter.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from penstock.asset_names import checked

__all__ = ["argument", "as_command", "flag", "flag_table", "given_fields", "option_name", "table_flag"]

Table = TypeVar("Table")


def flag(help: str, *words: str, **checks: Any) -> Any:
    """Describe a flag: words with dashes are its names, another one stands for its value in the help.

    Without a name it is called like its parameter; a switch that is on, or None, by default then has a --no-, too.
    """
    names = [word for word in words if word.startswith("-")]
    metavar = next((word for word in words if not word.startswith("-")), None)
    return typer.Option(*names, metavar=metavar, help=help, **checks)


def argument(help: str, metavar: str | None = None, **checks: Any) -> Any:
    """Describe an argument."""
    return typer.Argument(metavar=metavar, help=help, **checks)


JSON = "Print JSON for programs instead of text for people."
Json = Annotated[bool, flag(JSON, "-j", "--json")]
Raw = Annotated[bool, flag("Print payloads and nothing else.", "-r", "--raw")]
Force = Annotated[bool, flag("Do not ask.", "-f", "--force")]
NoSelect = Annotated[bool, flag("Do not ask which one.", "--no-select")]
Names = Annotated[bool, flag("Only the names.", "-n", "--names")]
All = Annotated[bool, flag("Show the markers of the Spark sink, too.", "-a", "--all")]
StopAfter = Annotated[int, flag("Stop after this many; 0 for never.", "--count", min=0)]
Wait = Annotated[str | None, flag("Stop if nothing came for this long.", "DURATION")]
Headers = Annotated[list[str] | None, flag("Header to send; may be repeated.", "KEY:VALUE", "-H", "--header")]


def stream_name(name: str | None) -> str | None:
    """Refuse what cannot be the name of a stream before there is a connection."""
    return None if name is None else checked(name, "stream")


def consumer_name(name: str | None) -> str | None:
    """Refuse what cannot be the name of a consumer."""
    return None if name is None else checked(name, "consumer")


StreamName = Annotated[str, argument("The stream.", "STREAM", callback=stream_name)]
ConsumerName = Annotated[str, argument("The consumer.", "CONSUMER", callback=consumer_name)]
AnyStream = Annotated[str | None, argument("The stream.", "STREAM", callback=stream_name)]
"""A stream that a terminal is asked for if it is not named."""
AnyConsumer = Annotated[str | None, argument("The consumer.", "CONSUMER", callback=consumer_name)]


# -- tables ----------------------------------------------------------------------------------------------------------


def table_flag(
    help: str,
    *words: str,
    to: str | None = None,
    read: Callable[..., Any] | None = None,
    default: Any = None,
    show_default: bool = True,
    repr: bool = True,
    **checks: Any,
) -> Any:
    """Describe a flag as a field of a dataclass.

    What it says becomes the field `to` of a configuration, which has its own name if nothing is said, and is none if it
    is empty; `read` makes a value of it, and is told the flag's name as `option`, for its complaints.
    """
    about = {"flag": flag(help, *words, show_default=show_default, **checks), "to": to, "read": read}
    return dataclasses.field(default=default, repr=repr, metadata=about)


@dataclass_transform(frozen_default=True)
def flag_table(kind: type[Table]) -> type[Table]:
    """Make a class a table: a frozen dataclass of flags."""
    return dataclasses.dataclass(frozen=True)(kind)


def option_name(name: str) -> str:
    """Give the name of a flag as it is typed."""
    return f"--{name.replace('_', '-')}"


def field_set(item: dataclasses.Field[Any]) -> str:
    """Give the field of a configuration that a flag of a table sets; nothing if it sets none by itself."""
    to: str | None = item.metadata["to"]
    return item.name if to is None else to


def given_fields(flags: Any) -> dict[str, Any]:
    """Give the fields of a configuration that a table's flags set; a flag that says nothing sets none."""
    fields = {}
    for item in dataclasses.fields(flags):
        value, read = getattr(flags, item.name), item.metadata["read"]
        if value is not None and (to := field_set(item)):
            fields[to] = value if read is None else read(value, option=option_name(item.name))
    return fields


def as_command(function: Callable[..., Any]) -> Callable[..., None]:
    """Give what typer is to call: a parameter that is a table becomes its flags, and a coroutine runs to its end.

    Ctrl-C cancels the coroutine, so that it can clean up.
    """
    parameters: list[inspect.Parameter] = []
    tables: dict[str, Any] = {}
    for item in inspect.signature(function, eval_str=True).parameters.values():
        if dataclasses.is_dataclass(item.annotation):
            tables[item.name] = item.annotation
            parameters += _parameters(item.annotation)
        else:
            parameters.append(item.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    parameters = [_named(item) for item in parameters]

    @functools.wraps(function)
    def command(**given: Any) -> None:
        for name, table in tables.items():
            given[name] = table(**{item.name: given.pop(item.name) for item in dataclasses.fields(table)})
        if inspect.iscoroutine(work := function(**given)):
            from penstock.cli.running import run

            run(work)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    return command


def _named(item: inspect.Parameter) -> inspect.Parameter:
    """Name a switch that is off by default: typer would add a second name, with --no-."""
    option = get_args(item.annotation)[-1] if item.default is False else None
    if not isinstance(option, OptionInfo) or option.default is not ...:
        return item
    option = copy.copy(option)
    option.default = option_name(item.name)
    return item.replace(annotation=Annotated[bool, option])


def _parameters(table: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(table)
    return [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=item.default,
            annotation=Annotated[hints[item.name], item.metadata["flag"]],
        )
        for item in dataclasses.fields(table)
    ]
