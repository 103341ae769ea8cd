"""The options of Spark's format "nats", as data: what Spark hands over becomes checked, frozen values.

Pure: nothing here opens a file or a socket. Spark's option names are case-insensitive and their values are
text. An unknown name is refused with the nearest known one; a secret never stands in an error.

`CONNECTION` are the options that reading and writing share. Those of reading are the fields of `SourceOptions`, which
`SOURCE` lists. The tables are what the reference page is written from.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, NoReturn, Self

from penstock.asset_names import NAME
from penstock.durations import parse_duration
from penstock.errors import DataLossError, OptionError
from penstock.options import ConnectionOptions
from penstock.spark.positions import Position, parse_position
from penstock.spark.pushdown import without_overlap
from penstock.wire.subjects import overlaps, subject_fault

__all__ = ["CONNECTION", "SOURCE", "Option", "Options", "SourceOptions", "connection_fields", "refuse_unknown"]

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
    """How the default is shown in the reference, where its value does not say it."""

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


# -- how the text of an option is read -------------------------------------------------------------------------------


def refuse(name: str, value: Any, remedy: str, what: str = "") -> NoReturn:
    """Refuse the value of an option; `what` is wrong with it, if that is more than its being what it is."""
    raise OptionError(f"The option {name} {what or f'is {value!r}.'}", remedy=remedy, option=name, value=value)


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
            what = f"holds {item!r}, which is no subject."
            refuse(name, value, "Write tokens joined by dots; > only last.", what)
    found = without_overlap(found)
    for one, other in combinations(found, 2):
        if overlaps(one, other):
            what = f"holds {one!r} and {other!r}, which overlap: some subjects match both."
            refuse(name, value, "Name subjects of which none matches two.", what)
    return found


def stream_name(name: str, value: str) -> str:
    """Read the name of one stream."""
    if not NAME.fullmatch(value.strip()):
        remedy = "A name has no dots, spaces, wildcards or slashes; several streams go into the option streams."
        refuse(name, value, remedy, f"is {value!r}, which is no name of a stream.")
    return value.strip()


def stream_patterns(name: str, value: str) -> tuple[str, ...]:
    """Read names of streams, in which * and ? stand for any characters and one."""
    found = names(name, value)
    for item in found:
        if not re.fullmatch(r"[^\s.>/\\\x00-\x1f\x7f]+", item):
            refuse(name, value, "A name has no dots or spaces.", f"holds {item!r}, which is no name of a stream.")
    return found


def positions(name: str, value: str) -> dict[str, Position]:
    """Read a position for all streams, or a JSON object with one for each; "*" is all others."""
    if not value.strip().startswith("{"):
        return {"*": parse_position(value, option=name)}
    try:
        content = json.loads(value)
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
    Option("tls_first", truth, "Shake hands before the server speaks.", False),
    Option("tls_hostname", text, "The name that the server's certificate must carry."),
    Option("socks_proxy", secret, "A SOCKS5 proxy that every connection goes through: `socks5://host:port`."),
    Option("domain", text, "The JetStream domain; excludes `apiPrefix`."),
    Option("api_prefix", text, "The subject prefix of the JetStream API."),
    Option("inbox_prefix", text, "The first tokens of every reply subject."),
    Option("connect_timeout", duration, "How long a connection may take.", 5.0, shown="5s"),
    Option("request_timeout", duration, "How long an answer may take.", 5.0, shown="5s"),
)

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
    fields = _read(given, CONNECTION)
    try:
        ConnectionOptions(**{name: value for name, value in fields.items() if name != "context"})
    except OptionError as error:
        if "context" not in fields:  # the context may hold the other half of a login
            what, remedy, option = (_spelled(item or "") for item in (error.what, error.remedy, error.option))
            raise OptionError(what, remedy=remedy, option=option or None) from None
    return fields


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


# The source and the sink have it both.
PATIENCE: Final = (
    "How long a query and its tasks go on trying while NATS is away: a node that restarts, a leader being chosen."
)


@dataclass(frozen=True)
class SourceOptions(Options):
    """Everything that reading needs to know, checked."""

    stream: str | None = option(stream_name, "The stream to read.")
    streams: tuple[str, ...] | None = option(
        stream_patterns,
        "Several streams, separated by commas; * and ? make patterns. A stream that appears later and fits a "
        "pattern is read from its first message.",
    )
    channel: str | None = option(text, "The NATS Streaming channel to read, instead of a stream; see `clusterId`.")
    cluster_id: str = option(text, "The cluster id of the gateway that serves `channel`.", "test-cluster")
    backup: str | None = option(
        text,
        "A folder with a backup of the stream, as `penstock stream backup` or `nats stream backup` wrote it, or the "
        "URI of one; no server is asked. Batch only.",
    )
    store: str | None = option(
        text,
        "The store of a server that does not run, or a copy of one: a folder or its URI. `stream` says which stream of "
        "it. Batch only.",
    )
    subjects: tuple[str, ...] | None = option(
        subject_list, "Only messages on these subjects, separated by commas; wildcards * and > allowed."
    )
    start: Mapping[str, Position] | None = option(
        positions,
        "Where a new query or a batch begins: `all`, `last` (the last message and what follows), `new`, a sequence, "
        'an RFC 3339 time, or a duration ago such as "2m"; or a JSON object with one for each stream.',
        shown="all",
    )
    end: Mapping[str, Position] | None = option(
        positions,
        "Where a batch ends, exclusive: `new` (all that is there), `last`, a sequence, a time, or a duration ago; or "
        "a JSON object. Batch only.",
        shown="new",
    )
    start_strategy: str = option(
        choice("latest", "error"),
        "What to do where no message is as young as the time in `start`: begin with the next one that comes, or "
        "refuse.",
        "latest",
    )
    include_headers: bool = option(truth, "Whether there is a column `headers`.", True)
    invalid_text: str = option(
        choice("error", "escape"),
        "What to do with a subject or a header that is not UTF-8, which a column of text cannot hold: stop with an "
        "error that names the message, or write each such byte as `\\xff`.",
        "error",
    )
    push_down: bool = option(
        truth,
        "Whether filters of a batch query reach the server, where Spark's push-down for Python sources is on. Spark 4.3"
        " keeps what one query pushed down for all later queries of the same loaded frame: load one for each query.",
        False,
    )
    fail_on_data_loss: bool = option(
        truth,
        "Whether messages that are gone before they were read stop the query; otherwise they are skipped and counted.",
        True,
    )
    min_partitions: int | None = option(
        count, "The least number of tasks that a read is cut into, where there are messages for it."
    )
    max_records_per_partition: int | None = option(count, "The most messages that one task reads.")
    max_bytes_per_partition: int = option(
        size, "How many bytes of messages one task should read, by estimate.", 128 * 2**20, shown="128m"
    )
    max_messages_per_trigger: int | None = option(count, "The most messages in a micro-batch, all streams together.")
    max_bytes_per_trigger: int | None = option(size, "About the most bytes in a micro-batch, all streams together.")
    min_messages_per_trigger: int | None = option(
        count, "Wait for so many messages before a micro-batch, but no longer than `maxTriggerDelay`."
    )
    max_trigger_delay: float = option(
        duration, "How long `minMessagesPerTrigger` may hold messages back.", 900.0, shown="15m"
    )
    ack: str = option(
        choice("none", "commit"),
        "`commit` releases messages of a work-queue or interest stream once the query's checkpoint has them; needs "
        "`consumer`. Streams of these kinds are refused in a streaming query without it.",
        "none",
    )
    consumer: str | None = option(
        stream_name, "With `ack`: the name of the durable consumer that holds the query's place; one a query."
    )
    patience: float = option(duration, PATIENCE, 60.0, shown="1m")
    batch_rows: int = option(count, "The most rows in one Arrow batch.", 10_000)
    window_bytes: int = option(size, "The most bytes on their way from the server to one task.", 8 * 2**20, shown="8m")

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Read and check the options of a read, batch or streaming."""
        if "path" in {name.lower() for name in given}:
            raise OptionError(
                "load() was given a path, and NATS has none.",
                remedy='Name the stream: .option("stream", "ORDERS").load().',
                option="path",
            )
        return super().parse(given)

    def check_batch(self) -> None:
        """Refuse what only makes sense in a stream."""
        for name in ("max_messages_per_trigger", "max_bytes_per_trigger", "min_messages_per_trigger"):
            self.misplaced(name, "A batch has no triggers: leave it out, or use spark.readStream.")
        self.misplaced("ack", "Spark does not tell a batch read when its rows are safe: use spark.readStream.")

    def check_stream(self) -> None:
        """Refuse what only makes sense in a batch."""
        self.misplaced("end", "A stream has no end: leave it out, or use spark.read.")
        for name in ("backup", "store"):
            self.misplaced(name, "A stream that no server holds does not go on: use spark.read.")

    @property
    def is_stored(self) -> bool:
        """Whether no server is asked."""
        return self.backup is not None or self.store is not None

    def position(self, name: str, stream: str, default: str) -> Position:
        """Give `start` or `end` of one stream."""
        found: Mapping[str, Position] = getattr(self, name) or {}
        return found.get(stream) or found.get("*") or parse_position(default, option=name)

    def lose(self, error: DataLossError) -> None:
        """Stop at a loss, or go on with a word in the log."""
        if self.fail_on_data_loss:
            raise error
        log.warning("%s Skipped, because failOnDataLoss is false.", error.what)

    def __post_init__(self) -> None:
        if self.backup is not None and self.store is not None:
            raise OptionError("backup and store are given together.", remedy="Leave one out.", option="backup")
        ways = [name for name in ("stream", "streams", "channel") if getattr(self, name) is not None]
        if self.is_stored and not (ways == ["stream"] or (not ways and self.backup is not None)):
            what = f"{' and '.join(ways)} cannot be read from a {'backup' if self.backup else 'store'}." if ways else ""
            remedy = 'Name one stream: .option("stream", "ORDERS").'
            raise OptionError(what or "No stream of the store is named.", remedy=remedy, option="stream")
        if len(ways) != 1 and not self.is_stored:
            what = f"{' and '.join(ways)} are given together." if ways else "No stream is named."
            remedy = "Leave all but one out." if ways else 'Name one: .option("stream", "ORDERS").'
            raise OptionError(what, remedy=remedy, option="stream")
        for name in ("start", "end"):
            named = [item for item in getattr(self, name) or {} if item != "*" and not re.search(r"[*?]", item)]
            if self.stream and (strange := [item for item in named if item != self.stream]):
                remedy = f"This query reads {self.stream}."
                refuse(name, None, remedy, f"names {strange[0]!r}, which is not read.")
        if any(position.kind == "all" for position in (self.end or {}).values()):
            refuse("end", "all", "Leave it out to read all that is there.", "is 'all', which is where a stream begins.")
        if (self.ack == "commit") != (self.consumer is not None):
            raise OptionError(
                "The options ack and consumer belong together.",
                remedy='Give both, as .option("ack", "commit").option("consumer", "my-query"), or none.',
                option="consumer",
            )
        low, high = self.min_messages_per_trigger, self.max_messages_per_trigger
        if low is not None and high is not None and low > high:
            raise OptionError(
                f"minMessagesPerTrigger is {low}, above maxMessagesPerTrigger, {high}.",
                remedy="Swap them.",
                option="minMessagesPerTrigger",
                value=low,
            )
        for name in ("max_trigger_delay", "patience"):
            if getattr(self, name) <= 0:
                self.misplaced(name, "Zero is no duration to wait: leave it out, or give one.")


SOURCE: Final = SourceOptions.table()
