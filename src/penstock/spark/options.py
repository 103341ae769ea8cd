"""The options of Spark's format "nats", as data: what Spark hands over becomes checked, frozen values.

Pure: nothing here opens a file or a socket. Spark's option names are case-insensitive and their values are
text. An unknown name is refused with the nearest known one; a secret never stands in an error.

`CONNECTION` are the options that reading and writing share; those of reading are in `source_options`, those of writing
in `sink_options`. The tables are what the reference page is written from.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, NoReturn, Self

from penstock.asset_names import NAME
from penstock.buckets.key_wire import check_bucket, check_key_filter
from penstock.durations import parse_duration
from penstock.errors import InputError, OptionError
from penstock.json_text import load_json
from penstock.options import ConnectionOptions, is_hidden
from penstock.spark.positions import Position, parse_position
from penstock.spark.pushdown import without_overlap
from penstock.wire.subjects import overlaps, subject_fault

__all__ = ["CONNECTION", "Option", "Options", "connection_fields", "refuse_unknown"]

log = logging.getLogger("penstock.spark")

Reader = Callable[[str, str], Any]


@dataclass(frozen=True)
class Option:
    """One option: its name as Python writes it, how its text is read, a sentence for people, and its default."""

    field: str
    read: Reader
    sentence: str
    default: Any = None
    shown: str = ""
    """How the default is shown in the reference, if its value does not say it."""

    @property
    def name(self) -> str:
        """The same name as users write it."""
        return _camel(self.field)


def option(read: Reader, sentence: str, default: Any = None, *, shown: str = "") -> Any:
    """Declare an option as the field of a dataclass; `Options.table` gives them all."""
    return dataclasses.field(default=default, metadata={"read": read, "sentence": sentence, "shown": shown})


def _camel(field: str) -> str:
    first, *others = field.split("_")
    return first + "".join(word.capitalize() for word in others)


def _cut(value: Any) -> Any:
    return value[:200] if isinstance(value, str) else value


# -- how the text of an option is read -------------------------------------------------------------------------------


def refuse(name: str, value: Any, remedy: str, what: str = "") -> NoReturn:
    """Refuse the value of an option; `what` is wrong with it, if that is more than its being what it is."""
    raise OptionError(f"The option {name} {what or f'is {_cut(value)!r}.'}", remedy=remedy, option=name, value=value)


def text(name: str, value: str) -> str:
    """Take any text that is not empty."""
    return secret(name, value.strip())


def secret(name: str, value: str) -> str:
    """Take text as it is: a password may begin with a blank."""
    if not value:
        refuse(name, value, "Give a value, or leave the option out.", "is empty.")
    return value


def truth(name: str, value: str) -> bool:
    """Read true or false."""
    known = {"true": True, "false": False}
    if value.strip().lower() not in known:
        refuse(name, value, "Give true or false.")
    return known[value.strip().lower()]


def number(name: str, value: str) -> int:
    """Read a whole number, zero too."""
    if not re.fullmatch(r"[0-9]{1,18}", value.strip()):
        refuse(name, value, "Give a whole number.")
    return int(value)


def count(name: str, value: str) -> int:
    """Read a whole number above zero."""
    if not re.fullmatch(r"[0-9]{1,18}", value.strip().replace("_", "")) or int(value) == 0:
        refuse(name, value, "Give a whole number above zero.")
    return int(value)


def between(read: Reader, least: int, most: int) -> Reader:
    """Read a number of some kind that lies between two others."""

    def read_within(name: str, value: str) -> int:
        found: int = read(name, value)
        if not least <= found <= most:
            refuse(name, value, f"Give a number between {least:,} and {most:,}.")
        return found

    return read_within


_SIZES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}


def size(name: str, value: str) -> int:
    """Read a number of bytes, such as 1048576, 64m or 1g (powers of 1024, as Spark's own options have them)."""
    found = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", value.strip().lower().replace("ib", "b"))
    if found is None or found.group(2) not in _SIZES or int(found.group(1)) == 0:
        refuse(name, value, 'Give a number of bytes above zero, such as "1048576", "64m" or "1g".')
    return int(found.group(1)) * _SIZES[found.group(2)]


def duration(name: str, value: str) -> float:
    """Read a duration with its unit."""
    return parse_duration(value.strip(), option=name)


def choice(*known: str) -> Reader:
    """Read one of some words."""

    def read(name: str, value: str) -> str:
        if value.strip().lower() not in known:
            refuse(name, value, f"Give one of {', '.join(known)}.")
        return value.strip().lower()

    return read


def names(name: str, value: str) -> tuple[str, ...]:
    """Read a list, separated by commas."""
    found = tuple(dict.fromkeys(item.strip() for item in value.split(",") if item.strip()))
    if not found:
        refuse(name, value, "Give one or several, separated by commas, or leave the option out.", "is empty.")
    return found


def subject_list(name: str, value: str) -> tuple[str, ...]:
    """Read subjects with or without wildcards; those that another one holds are left out."""
    found = names(name, value)
    for item in found:
        if subject_fault(item):
            what = f"holds {item!r}, which is not a subject."
            refuse(name, value, "Write tokens joined by dots; > only last.", what)
    found = without_overlap(found)
    for one, other in combinations(found, 2):
        if overlaps(one, other):
            what = f"holds {one!r} and {other!r}, which overlap: some subjects match both."
            refuse(name, value, "Name subjects of which none matches two.", what)
    return found


def key_list(name: str, value: str) -> tuple[str, ...]:
    """Read patterns of keys; those that another one holds are left out."""
    for item in names(name, value):
        try:
            check_key_filter(item)
        except InputError as error:
            refuse(name, value, error.remedy or "", f"holds {item!r}, which matches no key.")
    return subject_list(name, value)


def bucket_name(name: str, value: str) -> str:
    """Read the name of one bucket."""
    try:
        return check_bucket(value.strip())
    except InputError as error:
        refuse(name, value, error.remedy or "", f"is {value!r}, which is not a name of a bucket.")


def stream_name(name: str, value: str) -> str:
    """Read the name of one stream."""
    if not NAME.fullmatch(value.strip()):
        remedy = "A name has no dots, spaces, wildcards or slashes; several streams go into the option streams."
        refuse(name, value, remedy, f"is {value!r}, which is not a name of a stream.")
    return value.strip()


def stream_patterns(name: str, value: str) -> tuple[str, ...]:
    """Read names of streams, in which * and ? stand for any characters and one."""
    found = names(name, value)
    for item in found:
        if not re.fullmatch(r"[^\s.>/\\\x00-\x1f\x7f]+", item):
            refuse(name, value, "A name has no dots or spaces.", f"holds {item!r}, which is not a name of a stream.")
    return found


def positions(name: str, value: str) -> dict[str, Position]:
    """Read a position for all streams, or a JSON object with one for each; "*" is all others."""
    if not value.strip().startswith("{"):
        return {"*": parse_position(value, option=name)}
    try:
        content = load_json(value)
    except ValueError:
        refuse(name, value, 'Write {"ORDERS": 23, "EVENTS": "2m", "*": "all"}.', "is not JSON.")
    if not all(isinstance(item, str | int) and not isinstance(item, bool) for item in content.values()):
        refuse(name, value, 'Write {"ORDERS": 23, "EVENTS": "2m"}.', "holds something else than positions.")
    return {stream: parse_position(str(item), option=name) for stream, item in content.items()}


# -- from text to values ---------------------------------------------------------------------------------------------

CONNECTION: Final = (
    Option("url", secret, "One address of NATS or several, separated by commas.", shown="as everywhere in Penstock"),
    Option("context", text, "The NATS context to connect with, by name or path; read on the driver."),
    Option("token", secret, "A shared token."),
    Option("user", text, "A user name; needs `password`."),
    Option("password", secret, "The password of `user`."),
    Option("nkey", secret, "An nkey seed, or the path of its file on the driver."),
    Option("jwt", secret, "A user JWT, or the path of its file on the driver; its seed is `nkey`."),
    Option("credentials", secret, "The text of a `.creds` file, or its path on the driver."),
    Option("tls_ca", secret, "Certificates to trust: PEM text, or the path of a file on the driver."),
    Option("tls_cert", secret, "Our own certificate: PEM text or a path on the driver; needs `tlsKey`."),
    Option("tls_key", secret, "The key of `tlsCert`: PEM text or a path on the driver."),
    Option("tls_first", truth, "Do the TLS handshake before the server's greeting.", False),
    Option("tls_hostname", text, "The name that the server's certificate must carry."),
    Option("socks_proxy", secret, "A SOCKS5 proxy that every connection goes through: `socks5://host:port`."),
    Option("domain", text, "The JetStream domain; excludes `apiPrefix`."),
    Option("api_prefix", text, "The subject prefix of the JetStream API."),
    Option("inbox_prefix", text, "The first tokens of every reply subject."),
    Option("connect_timeout", duration, "How long a connection may take.", 5.0, shown="5s"),
    Option("request_timeout", duration, "How long an answer may take.", 5.0, shown="5s"),
    Option("nkey_secret", secret, "`nkey`, under a name whose value Spark hides."),
    Option("jwt_secret", secret, "`jwt`, under a name whose value Spark hides."),
    Option("tls_key_secret", secret, "`tlsKey`, under a name whose value Spark hides."),
    Option("socks_proxy_secret", secret, "`socksProxy`, under a name whose value Spark hides."),
)
# Spark shows the value of an option in plans, logs and pages unless its name tells that it is a secret. These do not.
SHOWN: Final = {"nkey": "nkeySecret", "jwt": "jwtSecret", "tls_key": "tlsKeySecret", "socks_proxy": "socksProxySecret"}

# Names that options had before, and have still; they go with version 1.0.
FORMER = {"outagetimeout": "patience", "retrytimeout": "patience"}


def renamed(given: Mapping[str, str]) -> dict[str, str]:
    """Give options under the names that they have now; the former ones are taken with a word in the log."""
    found = {name: value for name, value in given.items() if name.lower() not in FORMER}
    for name in given.keys() - found.keys():
        now = FORMER[name.lower()]
        log.warning("The option %s is called %s now.", name, now)
        if now in {other.lower() for other in found}:
            raise OptionError(f"The options {now} and {name} are one.", remedy=f"Leave {name} out.", option=name)
        found[now] = given[name]
    return found


def refuse_unknown(given: Iterable[str], known: Iterable[Option]) -> None:
    """Refuse a name that no option has, with the nearest that one has."""
    names = {option.name.lower(): option.name for option in known}
    for name in given:
        if name.lower() not in names:
            near = difflib.get_close_matches(name.lower(), names, n=1)
            remedy = f"Did you mean {names[near[0]]}?" if near else f"Known: {', '.join(sorted(names.values()))}."
            raise OptionError(f"There is no option {name!r} in the format nats.", remedy=remedy, option=name)


def _read(given: Mapping[str, str], known: Iterable[Option]) -> dict[str, Any]:
    """Read what is given of the known options, by their Python names; others are left alone."""
    found = {name.lower(): value for name, value in given.items()}
    return {
        option.field: option.read(option.name, found[option.name.lower()])
        for option in known
        if found.get(option.name.lower()) is not None
    }


def connection_fields(given: Mapping[str, str]) -> dict[str, Any]:
    """Read the options of the connection: keyword arguments for `penstock.contexts.load_options`.

    What can be checked without looking at contexts and files is checked.
    """
    fields = _uncover(_read(given, CONNECTION))
    try:
        ConnectionOptions(**{name: value for name, value in fields.items() if name != "context"})
    except OptionError as error:
        if "context" not in fields:  # the context may hold the other half of a login
            what, remedy, option = (_spelled(item or "") for item in (error.what, error.remedy, error.option))
            raise OptionError(what, remedy=remedy, option=option or None) from None
    return fields


def _uncover(fields: dict[str, Any]) -> dict[str, Any]:
    """Put what was given under a name that Spark hides where it belongs; say so of a secret that Spark shows."""
    for name, hidden in SHOWN.items():
        found = fields.pop(f"{name}_secret", None)
        if found is None:
            given = fields.get(name, "")
            if is_hidden(given) or (name == "socks_proxy" and "@" in given):
                _tell_shown(_camel(name), hidden)
        elif name in fields:
            what = f"The options {_camel(name)} and {hidden} are one."
            raise OptionError(what, remedy=f"Leave {_camel(name)} out.", option=hidden)
        else:
            fields[name] = found
    return fields


@functools.cache
def _tell_shown(name: str, hidden: str) -> None:
    """Say, once, that Spark shows a secret."""
    log.warning("Spark shows the value of the option %s in plans and logs. Give the secret as %s.", name, hidden)


def _spelled(sentence: str) -> str:
    """Name options as Spark users write them."""
    known = "|".join(option.field for option in CONNECTION)
    return re.sub(rf"\b({known})\b", lambda found: _camel(found[0]), sentence)


@dataclass(frozen=True)
class Options:
    """What is made of options: each field of it is one."""

    @classmethod
    def table(cls) -> tuple[Option, ...]:
        """Give the options, in order."""
        fields = dataclasses.fields(cls)
        return tuple(Option(item.name, default=item.default, **item.metadata) for item in fields)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Read and check the options of a read or a write, batch or streaming; those of Spark are taken out before."""
        given, known = renamed(given), cls.table()
        refuse_unknown(given, (*CONNECTION, *known))
        connection_fields(given)
        return cls(**_read(given, known))

    def misplaced(self, field: str, remedy: str) -> None:
        """Refuse an option that is given and must not be."""
        if getattr(self, field) != getattr(type(self), field):
            name = _camel(field)
            raise OptionError(f"The option {name} cannot be used here.", remedy=remedy, option=name)


# The source and the sink have them both.
NO_STREAM: Final = (
    'Name one: .option("stream", "ORDERS"); or a bucket: .option("bucket", "PRICES"). A table has its '
    "OPTIONS if it was created without a list of columns and without AS SELECT, for Spark drops them otherwise: name "
    "its columns there, as CREATE TABLE orders USING nats OPTIONS (stream 'ORDERS', columns 'time TIMESTAMP, ...')."
)
PATIENCE: Final = (
    "How long a query and its tasks go on trying while NATS is away: a node that restarts, a leader being chosen."
)
