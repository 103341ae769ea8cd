"""`context`: named sets of connection settings, shared with the `nats` command."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from penstock.cli.context_show import connection_row, problem_of, show_context, tell_environment
from penstock.cli.flags import Force, Json, argument, flag
from penstock.cli.output import print_json
from penstock.cli.questions import ask, asking, confirm, pick, yes
from penstock.cli.tables import plain, print_table
from penstock.errors import ContextError, InputError

__all__ = ["add", "copy", "edit", "info", "ls", "previous", "rm", "select", "unselect", "validate"]

Name = Annotated[str, argument("The context.", "NAME")]
AnyName = Annotated[str | None, argument("The context.", "NAME")]
Description = Annotated[str | None, flag("Say what it is for.", "TEXT")]
Select = Annotated[bool, flag("Select it, too.")]
Embed = Annotated[bool, flag("Put the content of the login's files into the context.")]
Connect = Annotated[bool, flag("Connect with it, too.")]

# Flags that are kept in a context, and its fields.
_KEPT = {
    "url": "url",
    "socks_proxy": "socks_proxy",
    "tlscert": "cert",
    "tlskey": "key",
    "tlsca": "ca",
    "tlsfirst": "tls_first",
    "js_domain": "jetstream_domain",
    "js_api_prefix": "jetstream_api_prefix",
    "js_event_prefix": "jetstream_event_prefix",
    "inbox_prefix": "inbox_prefix",
    "colors": "color_scheme",
}
_LOGIN = {"jwt": "user_jwt", "seed": "user_seed"}
_VARIABLES = {
    "NATS_SOCKS_PROXY": "socks_proxy",
    "NATS_CERT": "cert",
    "NATS_KEY": "key",
    "NATS_CA": "ca",
    "NATS_DOMAIN": "jetstream_domain",
    "NATS_COLOR": "color_scheme",
    "NATS_URL": "url",
    "NATS_USER": "user",
    "NATS_PASSWORD": "password",
    "NATS_TOKEN": "token",
    "NATS_CREDS": "creds",
    "NATS_NKEY": "nkey",
    "NATS_JWT": "user_jwt",
    "NATS_SEED": "user_seed",
}


def add(
    ctx: typer.Context, name: Name, description: Description = None, select: Select = False, embed: Embed = False
) -> None:
    """Create a context, or change one, with the global flags: -s, --creds, --user, --js-domain and so on.

    An empty value takes a setting back. What is not named stays, or is taken from --context if NAME is new. A login
    may be given as file://PATH, env://NAME or data:;base64,CONTENT, too.
    """
    from penstock.context_files import context_path, known_contexts, read_context

    path = context_path(name)
    fields: dict[str, Any] = {}
    if name in known_contexts():
        fields = read_context(path, name)
    elif ctx.obj.context:
        fields = _named(ctx.obj.context)
    _keep(ctx, name, fields, description, select, embed)


def copy(
    ctx: typer.Context,
    source: Annotated[str, argument("The context to copy.", "SOURCE")],
    name: Annotated[str, argument("The new one.", "NAME")],
    description: Description = None,
    select: Select = False,
    embed: Embed = False,
) -> None:
    """Create a context from another one; the global flags say what is to differ."""
    from penstock.context_files import context_path, known_contexts

    context_path(name)
    fields = _named(source)
    if name in known_contexts():
        what = f"There is a context {name!r} already."
        raise ContextError(what, remedy="Remove it first, or change it with `penstock context add`.", context=name)
    _keep(ctx, name, fields, description, select, embed)


def _named(name: str) -> dict[str, Any]:
    from pathlib import Path

    from penstock.context_files import context_path, read_context

    is_path = name.endswith(".json") or os.sep in name
    return read_context(Path(name).expanduser() if is_path else context_path(name), name)


def _keep(
    ctx: typer.Context, name: str, fields: dict[str, Any], description: str | None, select: bool, embed: bool
) -> None:
    """Change fields as the flags say, check them, and write them as a context."""
    from penstock.context_files import select_context, write_context
    from penstock.contexts import change_context, check_context, embed_files, shared_form
    from penstock.credentials import check
    from penstock.options import DEFAULT_URL

    changes = _changes(ctx)
    if description is not None:
        changes["description"] = description
    fields = change_context(fields, changes)
    fields["url"] = fields.get("url") or DEFAULT_URL
    if embed:
        fields = embed_files(fields)
    check(check_context(name, _set_or_not(fields)))
    for variable, field in _VARIABLES.items():
        if os.environ.get(variable) and changes.get(field) == shared_form(field, os.environ[variable]):
            typer.echo(f"The {field} is that of {variable} in the environment.", err=True)
    path = write_context(name, fields)
    if select:
        select_context(name)
    show_context(name, fields, path)


def _set_or_not(fields: dict[str, Any]) -> dict[str, Any]:
    """Give fields as if every variable that they refer to were set: a context may be used elsewhere."""
    found = dict(fields)
    for field, value in fields.items():
        if isinstance(value, str) and value.lower().startswith("env://") and not os.environ.get(value[6:]):
            found[field] = "-" if field in ("token", "password") else ""
    return found


def _changes(ctx: typer.Context) -> dict[str, Any]:
    from penstock.contexts import shared_form

    flags = ctx.obj
    given = {field: getattr(flags, name) for name, field in _KEPT.items()}
    given["url"] = flags.url if flags.url is not None else os.environ.get("NATS_URL") or None
    given |= {_LOGIN.get(name, name): value for name, value in flags.login().items()}
    return {field: shared_form(field, value) for field, value in given.items() if value is not None}


def edit(ctx: typer.Context, name: Name) -> None:
    """Change a context in the editor that EDITOR names; one that is broken is opened as it is."""
    from penstock.cli.editor import in_editor
    from penstock.context_files import context_bytes, context_path, parse_context, to_bytes, write_context
    from penstock.contexts import check_context
    from penstock.credentials import check

    path = context_path(name)
    before = context_bytes(path, name)
    try:
        text = to_bytes(parse_context(before, path, name)).decode() + "\n"
    except ContextError:
        text = before.decode("utf-8", "replace")
    while True:
        text = in_editor(text, ".json")
        try:
            fields = parse_context(text.encode(), path, name)
            check(check_context(name, _set_or_not(fields)))
            break
        except InputError as error:
            if not asking():
                raise InputError(f"{error.what} Nothing was changed.", remedy=error.remedy) from None
            typer.echo(plain(str(error)), err=True)
            if not ask("Edit it again", "y", yes):
                raise InputError("Nothing was changed.", remedy="Edit it again.") from None
    if context_bytes(path, name) != before:
        what = f"The context {name!r} was changed by somebody else meanwhile; your changes were not written."
        raise ContextError(what, remedy="Edit it again.", context=name, path=str(path))
    show_context(name, fields, write_context(name, fields))


def ls(
    ctx: typer.Context,
    json: Json = False,
    names: Annotated[bool, flag("Only the names.", "--names")] = False,
    completion: Annotated[bool, flag("Names and descriptions, as the completion of a shell wants them.")] = False,
) -> None:
    """List the contexts; the selected one has a star."""
    from penstock.context_files import context_path, known_contexts, read_context, selected_context
    from penstock.contexts import mask_context

    found: dict[str, dict[str, Any]] = {}
    for name in known_contexts():
        try:
            found[name] = mask_context(read_context(context_path(name), name))
        except ContextError as error:
            typer.echo(plain(f"penstock: {error}"), err=True)
    chosen = selected_context()
    if json:
        print_json([{"name": name, **fields} for name, fields in found.items()])
    elif names:
        typer.echo("".join(f"{plain(name)}\n" for name in found), nl=False)
    elif completion:
        for name, fields in found.items():
            star = "*" if name == chosen else ""
            typer.echo(plain(f"{name}{star}".replace(":", "\\:") + f":{fields['description']}"))
    elif found:
        ctx.obj.choose_colors()
        rows = [(f"{name}*" if name == chosen else name, fields["description"]) for name, fields in found.items()]
        print_table("Known contexts", ("Name", "~Description"), rows)
    else:
        typer.echo("There are no contexts.")


def rm(name: Name, force: Force = False) -> None:
    """Remove a context."""
    from penstock.context_files import context_bytes, context_path, remove_context, selected_context

    context_bytes(context_path(name), name)  # whatever it holds
    if name == selected_context() and not force:
        raise ContextError(
            f"The context {name!r} is the selected one.",
            remedy="Select another one, or `penstock context unselect`, or give -f.",
            context=name,
        )
    confirm(f"Really remove the context {name!r}?", force)
    remove_context(name)


def select(name: AnyName = None) -> None:
    """Select the context that is used if nothing else is named."""
    from penstock.context_files import context_path, known_contexts, read_context, select_context

    if name is None:
        name = pick("context", known_contexts())
    path = context_path(name)
    fields = read_context(path, name)
    select_context(name)
    show_context(name, fields, path)
    tell_environment()


def unselect() -> None:
    """Select no context."""
    from penstock.context_files import unselect_context

    before = unselect_context()
    typer.echo("No context is selected." if before is None else plain(f"The context {before!r} is selected no longer."))


def previous() -> None:
    """Select the context that was selected before."""
    from penstock.context_files import previous_context

    before = previous_context()
    if before is None:
        raise InputError("No context was selected before.", remedy="Select one with `penstock context select NAME`.")
    select(before)


async def info(ctx: typer.Context, name: AnyName = None, json: Json = False, connect: Connect = False) -> None:
    """Show a context, or the selected one; secrets are not shown."""
    from penstock.context_files import context_path, read_context, selected_context
    from penstock.contexts import mask_context
    from penstock.options import DEFAULT_URL

    name = name or selected_context()
    if name is None:
        remedy = "Name one, or select one with `penstock context select NAME`."
        raise InputError("No context is selected, and none is named.", remedy=remedy)
    path = context_path(name)
    fields = read_context(path, name)
    row = await connection_row(ctx, name, fields) if connect else None
    if json:
        print_json({"name": name, **mask_context({**fields, "url": fields.get("url") or DEFAULT_URL})})
        return
    show_context(name, fields, path, row)
    tell_environment()


async def validate(ctx: typer.Context, name: AnyName = None, connect: Connect = False) -> None:
    """Check a context, or all: whether each can be read, and its files are there; exit status 1 if one is not so."""
    from penstock.context_files import context_path, known_contexts, read_context
    from penstock.errors import PenstockError

    names = known_contexts() if name is None else [name]
    bad = 0
    for each in names:
        path = context_path(each)
        try:
            fields = read_context(path, each)
        except ContextError as error:
            if name is not None:
                raise
            bad += 1
            typer.echo(plain(str(error)) + "\n")
            continue
        row, problem = None, problem_of(each, fields)
        if connect and problem is None:
            try:
                row = await connection_row(ctx, each, fields)
            except PenstockError as error:
                row, problem = str(error), str(error)
        bad += problem is not None
        show_context(each, fields, path, row)
        typer.echo("")
    if bad:
        typer.echo(f"penstock: {bad} of {len(names)} contexts cannot be used.", err=True)
        raise typer.Exit(1)
    tell_environment()
