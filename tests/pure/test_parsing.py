"""How arguments become values, and how help is written: what typer would do slowly, with the same outcome."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
import typer.main

from penstock.cli.app import app
from penstock.cli.global_flags import Globals, hoist
from penstock.cli.parsing import Verb
from penstock.errors import OptionError
from tests.live.command import imported
from tests.live.inprocess import invoke
from tests.support import Authority

seen: dict[str, Any] = {}


def sample(
    word: Annotated[str, typer.Argument(help="Some text.")],
    rest: Annotated[list[str] | None, typer.Argument(help="More of it.")] = None,
    number: Annotated[int, typer.Option("--number", min=1, max=9, help="A number.")] = 5,
    share: Annotated[float | None, typer.Option("--share", help="A fraction.")] = None,
    file: Annotated[Path, typer.Option("--file", help="A path.")] = Path("here"),
    many: Annotated[list[str] | None, typer.Option("-m", "--many", help="Text, repeated.")] = None,
    counts: Annotated[list[int] | None, typer.Option("--counts", help="Numbers, repeated.")] = None,
    flag: Annotated[bool | None, typer.Option("--flag/--no-flag", help="Yes or no.")] = None,
    text: Annotated[str, typer.Option("--text", envvar="SAMPLE_TEXT", help="Text from somewhere.")] = "given",
    from_env: Annotated[int, typer.Option("--from-env", envvar="SAMPLE_NUMBER", help="A number from somewhere.")] = 1,
) -> None:
    """Take every kind of value.

    And say more of it here.
    """
    seen.update(locals())


def parsed(*arguments: str, kind: type[typer.core.TyperCommand] = Verb) -> dict[str, Any]:
    """Give what the function gets for these arguments; SystemExit where it gets nothing."""
    lone = typer.Typer(add_completion=False, rich_markup_mode=None)
    lone.command("sample", cls=kind)(sample)
    seen.clear()
    try:
        typer.main.get_command(lone)(list(arguments), prog_name="sample")
    except SystemExit as ended:
        if ended.code:
            raise
    return dict(seen)


CASES = [
    ["a"],
    [""],
    ["a", "b", "c"],
    ["a", "--number", "7"],
    ["a", "--share", "0.25"],
    ["a", "--file", "some/where"],
    ["a", "-m", "x", "--many", "y z"],
    ["a", "--counts", "1", "--counts", "2"],
    ["a", "--flag"],
    ["a", "--no-flag"],
    ["a", "--text", ""],
    ["a", "--text", "5"],
    ["--", "-a", "--flag"],
    ["a", "--text=b=c", "--number=1"],
]


@pytest.mark.parametrize("arguments", CASES)
def test_values_are_those_that_typer_gives(arguments: list[str]):
    """Quick parameters hand over the very values, of the same types, that typer's own hand over."""
    ours, theirs = parsed(*arguments), parsed(*arguments, kind=typer.core.TyperCommand)
    assert ours == theirs
    assert {name: type(value) for name, value in ours.items()} == {name: type(value) for name, value in theirs.items()}


def test_values_from_the_environment_are_read(monkeypatch: pytest.MonkeyPatch):
    """An environment variable gives text as it is, and a number as a number."""
    monkeypatch.setenv("SAMPLE_TEXT", "from there")
    monkeypatch.setenv("SAMPLE_NUMBER", "12")
    got = parsed("a")
    assert (got["text"], got["from_env"]) == ("from there", 12)
    assert parsed("a", "--text", "here")["text"] == "here"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument 'word'"),
        (["a", "--number", "0"], "--number"),
        (["a", "--number", "10"], "--number"),
        (["a", "--number", "many"], "--number"),
        (["a", "--number", ""], "--number"),
        (["a", "--counts", "1", "--counts", "x"], "--counts"),
        (["a", "--share", "half"], "--share"),
        (["a", "--many"], "--many"),
        (["a", "--flag=maybe"], "--flag"),
        (["a", "--nothing"], "--nothing"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]):
    """A value of the wrong kind or out of its range is refused with the flag's name, and the function is not called."""
    with pytest.raises(SystemExit) as ended:
        parsed(*arguments)
    assert (ended.value.code, seen) == (2, {})
    assert words in capsys.readouterr().err


def test_a_bad_value_from_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """What a variable says is checked as what a flag says."""
    monkeypatch.setenv("SAMPLE_NUMBER", "a dozen")
    with pytest.raises(SystemExit):
        parsed("a")
    assert "--from-env" in capsys.readouterr().err


def test_missing_arguments_of_a_list_are_refused():
    """`sub` without a subject, and `chunks send` without a file, are bad input and no command."""
    for arguments in (["sub"], ["chunks", "send"], ["stream", "copy", "S"], ["bus", "serve", "a:b"]):
        done = invoke(None, *arguments)
        assert done.status == 2, arguments
        assert "Missing" in done.stderr


def test_plain_values_load_no_validator():
    """Text, lists of text and defaults are taken without loading pydantic."""
    loaded = imported("bus", "--help")
    assert "typer" in loaded
    assert "pydantic" not in loaded


# -- help --------------------------------------------------------------------------------------------------------------


def test_help_is_plain_where_nobody_has_a_terminal():
    """Into a pipe goes text without any escape, with every flag and the whole first paragraph."""
    done = invoke(None, "stream", "purge", "--help")
    assert done.status == 0
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[0] == "Usage: penstock stream purge [OPTIONS] [STREAM]"
    for words in ("Remove messages from a stream.", "Arguments:", "Options:", "--keep", "-f, --force", "[x>=0]"):
        assert words in done.stdout


def test_headings_are_bold_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    """The headings of help stand out, and nothing else; a terminal that cannot show it gets plain text."""
    lone = typer.Typer(add_completion=False, rich_markup_mode=None)
    lone.command("sample", cls=Verb)(sample)
    command = typer.main.get_command(lone)
    monkeypatch.setenv("TERM", "xterm")
    with typer.Context(command, info_name="sample") as context:
        shown = command.get_help(context)
        assert shown.count("\x1b[1m") == 3
        for heading in ("Usage:", "Arguments:", "Options:"):
            assert f"\x1b[1m{heading}\x1b[0m" in shown
        assert "And say more of it here." in shown
        monkeypatch.setenv("TERM", "dumb")
        assert "\x1b" not in command.get_help(context)


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_help_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: str):
    """Lines are no longer than the terminal is wide, nor than can be read."""
    monkeypatch.setenv("COLUMNS", columns)
    lines = invoke(None, "--help").stdout.splitlines()
    assert max(map(len, lines)) <= min(max(int(columns), 50), 100)
    assert len([line for line in lines if line.startswith("  demo ")]) == 1


def test_bad_input_names_the_command_that_helps():
    """A refusal by the parser is one sentence on standard error, with what was meant and where the help is."""
    done = invoke(None, "stream", "ls", "--nams")
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.startswith("penstock: No such option: --nams")
    assert "`penstock stream ls -h`" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_version():
    """--version prints one line and ends with 0, whatever else is said."""
    for arguments in (["--version"], ["stream", "--version"], ["pub", "--version", "a"]):
        done = invoke(None, *arguments)
        assert (done.status, done.stdout) == (0, f"penstock {importlib.metadata.version('penstock')}\n")


# -- global flags ------------------------------------------------------------------------------------------------------


def moved(*arguments: str) -> list[str]:
    return hoist(typer.main.get_command(app), list(arguments))


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("pub a b -s X", "-s X pub a b"),
        ("pub a b --server X", "--server X pub a b"),
        ("pub a b --server=X", "--server=X pub a b"),
        ("-s X pub a b", "-s X pub a b"),
        ("pub a -sX b", "-sX pub a b"),
        ("-sX pub a b", "-sX pub a b"),
        ("stream ls -nsX", "stream ls -nsX"),
        ("pub a -HA:1 -- -sX", "pub a -HA:1 -- -sX"),
        ("pub -s X a --trace b", "-s X --trace pub a b"),
        ("stream ls --user U --password P --json", "--user U --password P stream ls --json"),
        ("stream info A --timeout 5s", "--timeout 5s stream info A"),
        ("pub a -- -s X", "pub a -- -s X"),
        ("pub a b --tlsfirst c", "--tlsfirst pub a b c"),
        ("stream add A --config F --context C", "--context C stream add A --config F"),
        ("pub a b --help", "pub a b --help"),
        ("channels serve --token T --trace", "--trace channels serve --token T"),
        ("nosuch --trace", "--trace nosuch"),
        ("", ""),
    ],
)
def test_global_flags_go_to_the_front(arguments: str, wanted: str):
    """Global flags behind a command are moved before it, with their values; all else keeps its order."""
    assert moved(*arguments.split()) == wanted.split()


def test_a_flag_that_the_command_has_stays_with_it():
    """`chunks receive --timeout` would be the command's own if it had one; -s of none is taken for the server's."""

    class Parameter:
        def __init__(self, *opts: str, is_flag: bool = False) -> None:
            self.opts, self.is_flag = list(opts), is_flag

    class Own:
        params = (Parameter("--timeout"), Parameter("-s", is_flag=True))

    class Root:
        params = (Parameter("-s", "--server"), Parameter("--timeout"))
        commands = {"own": Own()}  # noqa: RUF012  # it is only read

    assert hoist(Root(), ["own", "--timeout", "5s", "-s", "--server", "X"]) == [
        "--server",
        "X",
        "own",
        "--timeout",
        "5s",
        "-s",
    ]


@pytest.mark.parametrize("flag", ["-s", "--server", "--context", "--creds", "--timeout", "--password"])
def test_a_global_flag_without_its_value_is_named(flag: str):
    """A flag at the very end that wants a value is refused, and does not swallow the command."""
    with pytest.raises(OptionError, match=f"{flag} has no value"):
        moved("rtt", flag)
    done = invoke(None, "rtt", flag)
    assert (done.status, done.stderr) == (2, f"penstock: {flag} has no value. Write it behind {flag}.\n")


def flags(**given: Any) -> Globals:
    nothing = dict.fromkeys(Globals.__dataclass_fields__)
    return Globals(**{**nothing, "tlsfirst": False, "timeout": "5s", **given})  # type: ignore[arg-type]  # all names


def test_flags_become_connection_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Each global flag sets the option of its meaning; a lone --user is a token."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("NATS_URL", "NATS_CONTEXT", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    options = flags(url="nats://host:1", user="u", password="p", js_domain="d", timeout="3s").options()
    assert options.urls == ("nats://host:1",)
    assert (options.user, options.password, options.token, options.domain) == ("u", "p", None, "d")
    assert (options.connect_timeout, options.request_timeout, options.name) == (3.0, 3.0, "penstock command")
    options = flags(user="lone", js_api_prefix="up.API", inbox_prefix="_my", connection_name="me").options()
    assert (options.token, options.user, options.api_prefix) == ("lone", None, "up.API")
    assert (options.inbox_prefix, options.name, options.url) == ("_my", "me", "nats://127.0.0.1:4222")
    ca = str(Authority(tmp_path).ca)
    options = flags(tlsfirst=True, tlsca=ca, socks_proxy="socks5://h", js_event_prefix="up.EV").options()
    assert (options.tls_first, options.tls_ca, options.tls) == (True, ca, True)
    assert (options.socks_proxy, options.event_prefix) == ("socks5://h", "up.EV")


def test_a_password_is_not_shown():
    """The values of the flags can be logged: the password is not among what is shown."""
    assert "hush" not in repr(flags(user="u", password="hush", token="hush", jwt="hush", seed="hush", nkey="hush"))


@pytest.mark.parametrize("text", ["0s", "soon", "-1s", ""])
def test_a_timeout_is_some_time(text: str):
    """--timeout of nothing, or of what is no duration, is refused."""
    with pytest.raises(OptionError) as caught:
        flags(timeout=text).seconds  # noqa: B018  # the access is the test
    assert caught.value.option == "--timeout"


def test_a_second_run_in_one_process_is_like_the_first():
    """Commands keep nothing of a run: the same words give the same outcome again."""
    first, second = (
        invoke(None, "stream", "size", "--messages", "3", "--payload", "9", "--subject", "a") for _ in "ab"
    )
    assert first == second
    assert first.status == 0
    assert "penstock.cli.stream_look" in sys.modules
