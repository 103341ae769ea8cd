"""The options of Spark's format "nats", as data: what Spark hands over becomes checked, frozen values.

Pure: nothing here opens a file or a socket. Spark's option names are case-insensitive and their values are
text. An unknown name is refused with the nearest known one; a secret never stands in an error.

`CONNECTION` are the options that reading and writing share, `SOURCE` those of reading. The tables are what the
reference page is written from.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final, NoReturn

from penstock.durations import parse_duration
from penstock.errors import OptionError
from penstock.options import ConnectionOptions
from penstock.spark.positions import Position, parse_position
from penstock.spark.pushdown import without_overlap
from penstock.wire.subjects import overlaps

__all__ = ["CONNECTION", "SOURCE", "Option", "SourceOptions", "connection_fields", "parse_options", "refuse_unknown"]

log = logging.getLogger("penstock.spark")

Reader = Callable[[str, str], Any]


@dataclass(frozen=True)
class Option:
    """One option: its name as users write it, how its text is read, its default and a sentence for people."""

    name: str
    read: Reader
    sentence: str
    default: Any = None
    secret: bool = False
    shown: str = ""
    """How the default is shown in the reference, where its value does not say it."""

    @property
    def field(self) -> str:
        """The same name as Python writes it."""
        return re.sub(r"([A-Z])", r"_\1", self.name).lower()


# -- how the text of an option is read -------------------------------------------------------------------------------


def text(name: str, value: str) -> str:
    """Take any text that is not empty."""
    if not value.strip():
        _refuse(name, value, "is empty.", "Give a value, or leave the option out.")
    return value.strip()


def secret(name: str, value: str) -> str:
    """Take text as it is: a password may begin with a blank."""
    if not value:
        _refuse(name, "", "is empty.", "Give a value, or leave the option out.")
    return value


def truth(name: str, value: str) -> bool:
    """Read true or false."""
    known = {"true": True, "false": False}
    if value.strip().lower() not in known:
        _refuse(name, value, f"is {value!r}.", "Give true or false.")
    return known[value.strip().lower()]


def count(name: str, value: str) -> int:
    """Read a whole number above zero."""
    if not re.fullmatch(r"[0-9]{1,18}", value.strip().replace("_", "")) or int(value) == 0:
        _refuse(name, value, f"is {value!r}.", "Give a whole number above zero.")
    return int(value)


_SIZES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}


def size(name: str, value: str) -> int:
    """Read a number of bytes, such as 1048576, 64m or 1g (powers of 1024, as Spark's own options have them)."""
    found = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", value.strip().lower().replace("ib", "b"))
    if found is None or found.group(2) not in _SIZES or int(found.group(1)) == 0:
        _refuse(name, value, f"is {value!r}.", 'Give a number of bytes above zero, such as "1048576", "64m" or "1g".')
    return int(found.group(1)) * _SIZES[found.group(2)]


def duration(name: str, value: str) -> float:
    """Read a duration with its unit."""
    return parse_duration(value.strip(), option=name)


def names(name: str, value: str) -> tuple[str, ...]:
    """Read a list, separated by commas."""
    found = tuple(dict.fromkeys(item.strip() for item in value.split(",") if item.strip()))
    if not found:
        _refuse(name, value, "is empty.", "Give one or several, separated by commas, or leave the option out.")
    return found


def choice(*known: str) -> Reader:
    """Read one of some words."""

    def read(name: str, value: str) -> str:
        if value.strip().lower() not in known:
            _refuse(name, value, f"is {value!r}.", f"Give one of {', '.join(known)}.")
        return value.strip().lower()

    return read


def subjects(name: str, value: str) -> tuple[str, ...]:
    """Read subjects with or without wildcards; those that another one holds are left out."""
    found = names(name, value)
    for item in found:
        tokens = item.split(".")
        if not all(tokens) or re.search(r"[\s\x00-\x1f\x7f]", item) or ">" in tokens[:-1]:
            _refuse(name, value, f"holds {item!r}, which is no subject.", "Write tokens joined by dots; > only last.")
    found = without_overlap(found)
    for one, other in combinations(found, 2):
        if overlaps(one, other):
            _refuse(
                name,
                value,
                f"holds {one!r} and {other!r}, which overlap: some subjects match both.",
                "Name subjects of which none matches two.",
            )
    return found


def stream_name(name: str, value: str) -> str:
    """Read the name of one stream."""
    if not re.fullmatch(r"[^\s.*>/\\\x00-\x1f\x7f]+", value.strip()):
        _refuse(
            name,
            value,
            f"is {value!r}, which is no name of a stream.",
            "A name has no dots, spaces, wildcards or slashes; several streams go into the option streams.",
        )
    return value.strip()


def stream_patterns(name: str, value: str) -> tuple[str, ...]:
    """Read names of streams, in which * and ? stand for any characters and one."""
    found = names(name, value)
    for item in found:
        if not re.fullmatch(r"[^\s.>/\\\x00-\x1f\x7f]+", item):
            _refuse(name, value, f"holds {item!r}, which is no name of a stream.", "A name has no dots or spaces.")
    return found


def positions(name: str, value: str) -> dict[str, Position]:
    """Read a position for all streams, or a JSON object with one for each; "*" is all others."""
    if not value.strip().startswith("{"):
        return {"*": parse_position(value, option=name)}
    try:
        content = json.loads(value)
    except ValueError:
        _refuse(name, value, "is not JSON.", 'Write {"ORDERS": 23, "EVENTS": "2m", "*": "all"}.')
    if not all(isinstance(item, str | int) and not isinstance(item, bool) for item in content.values()):
        _refuse(name, value, "holds something else than positions.", 'Write {"ORDERS": 23, "EVENTS": "2m"}.')
    return {stream: parse_position(str(item), option=name) for stream, item in content.items()}


def _refuse(name: str, value: Any, what: str, remedy: str) -> NoReturn:
    raise OptionError(f"The option {name} {what}", remedy=remedy, option=name, value=value)


# -- the tables ------------------------------------------------------------------------------------------------------

CONNECTION: Final = (
    Option("url", secret, "One address of NATS or several, separated by commas.", shown="as everywhere in Penstock"),
    Option("context", text, "The NATS context to connect with, by name or path; read on the driver."),
    Option("token", secret, "A shared token.", secret=True),
    Option("user", text, "A user name; needs `password`."),
    Option("password", secret, "The password of `user`.", secret=True),
    Option("nkey", secret, "An nkey seed, or the path of its file on the driver.", secret=True),
    Option("credentials", secret, "The text of a `.creds` file, or its path on the driver.", secret=True),
    Option("tlsCa", secret, "Certificates to trust: PEM text, or the path of a file on the driver."),
    Option("tlsCert", secret, "Our own certificate: PEM text or a path on the driver; needs `tlsKey`."),
    Option("tlsKey", secret, "The key of `tlsCert`: PEM text or a path on the driver.", secret=True),
    Option("tlsFirst", truth, "Shake hands before the server speaks.", False),
    Option("tlsHostname", text, "The name that the server's certificate must carry."),
    Option("domain", text, "The JetStream domain; excludes `apiPrefix`."),
    Option("apiPrefix", text, "The subject prefix of the JetStream API."),
    Option("inboxPrefix", text, "The first tokens of every reply subject."),
    Option("connectTimeout", duration, "How long a connection may take.", 5.0, shown="5s"),
    Option("requestTimeout", duration, "How long an answer may take.", 5.0, shown="5s"),
)

# The source and the sink have it both.
PATIENCE: Final = Option(
    "patience",
    duration,
    "How long a query and its tasks go on trying while NATS is away: a node that restarts, a leader being chosen.",
    60.0,
    shown="1m",
)

SOURCE: Final = (
    Option("stream", stream_name, "The stream to read."),
    Option(
        "streams",
        stream_patterns,
        "Several streams, separated by commas; * and ? make patterns. A stream that appears later and fits a "
        "pattern is read from its first message.",
    ),
    Option("channel", text, "The NATS Streaming channel to read, instead of a stream; see `clusterId`."),
    Option("clusterId", text, "The cluster id of the gateway that serves `channel`.", "test-cluster"),
    Option("subjects", subjects, "Only messages on these subjects, separated by commas; wildcards * and > allowed."),
    Option(
        "start",
        positions,
        "Where a new query or a batch begins: `all`, `last` (the last message and what follows), `new`, a sequence, "
        'an RFC 3339 time, or a duration ago such as "2m"; or a JSON object with one for each stream.',
        shown="all",
    ),
    Option(
        "end",
        positions,
        "Where a batch ends, exclusive: `new` (all that is there), `last`, a sequence, a time, or a duration ago; or "
        "a JSON object. Batch only.",
        shown="new",
    ),
    Option(
        "startStrategy",
        choice("latest", "error"),
        "What to do where no message is as young as the time in `start`: begin with the next one that comes, or "
        "refuse.",
        "latest",
    ),
    Option("includeHeaders", truth, "Whether there is a column `headers`.", True),
    Option(
        "pushDown",
        truth,
        "Whether filters of a batch query reach the server, where Spark's push-down for Python sources is on. Spark 4.3"
        " keeps what one query pushed down for all later queries of the same loaded frame: load one for each query.",
        False,
    ),
    Option(
        "failOnDataLoss",
        truth,
        "Whether messages that are gone before they were read stop the query; otherwise they are skipped and counted.",
        True,
    ),
    Option(
        "minPartitions", count, "The least number of tasks that a read is cut into, where there are messages for it."
    ),
    Option("maxRecordsPerPartition", count, "The most messages that one task reads."),
    Option(
        "maxBytesPerPartition",
        size,
        "How many bytes of messages one task should read, by estimate.",
        128 * 2**20,
        shown="128m",
    ),
    Option("maxMessagesPerTrigger", count, "The most messages in a micro-batch, all streams together."),
    Option("maxBytesPerTrigger", size, "About the most bytes in a micro-batch, all streams together."),
    Option(
        "minMessagesPerTrigger",
        count,
        "Wait for so many messages before a micro-batch, but no longer than `maxTriggerDelay`.",
    ),
    Option("maxTriggerDelay", duration, "How long `minMessagesPerTrigger` may hold messages back.", 900.0, shown="15m"),
    Option(
        "ack",
        choice("none", "commit"),
        "`commit` releases messages of a work-queue or interest stream once the query's checkpoint has them; needs "
        "`consumer`. Streams of these kinds are refused in a streaming query without it.",
        "none",
    ),
    Option(
        "consumer",
        stream_name,
        "With `ack`: the name of the durable consumer that holds the query's place; one a query.",
    ),
    PATIENCE,
    Option("batchRows", count, "The most rows in one Arrow batch.", 10_000),
    Option("windowBytes", size, "The most bytes on their way from the server to one task.", 8 * 2**20, shown="8m"),
)


# -- from text to values ---------------------------------------------------------------------------------------------


# Names that options had before, and have still; they go with version 1.0.
FORMER = {"outagetimeout": "patience", "retrytimeout": "patience"}


def renamed(given: Mapping[str, str]) -> dict[str, str]:
    """Give options under the names that they have now; the former ones are taken with a word in the log."""
    found: dict[str, str] = {}
    for name, value in given.items():
        now = FORMER.get(name.lower(), name)
        if now != name:
            log.warning("The option %s is called %s now.", name, now)
        if now.lower() in {other.lower() for other in found} and now != name:
            raise OptionError(f"The options {now} and {name} are one.", remedy=f"Leave {name} out.", option=name)
        found[now] = value
    return found


def refuse_unknown(given: Iterable[str], known: Iterable[Option]) -> None:
    """Refuse a name that no option has, with the nearest that one has."""
    names = {option.name.lower(): option.name for option in known}
    for name in given:
        if name.lower() not in names:
            near = difflib.get_close_matches(name.lower(), names, n=1)
            remedy = f"Did you mean {names[near[0]]}?" if near else f"Known: {', '.join(sorted(names.values()))}."
            raise OptionError(f"There is no option {name!r} in the format nats.", remedy=remedy, option=name)


def parse_options(given: Mapping[str, str], known: Iterable[Option]) -> dict[str, Any]:
    """Read every known option from what Spark hands over, by its Python name; defaults where nothing is given.

    Options that are not in `known` are left alone: `refuse_unknown` is for those.
    """
    found = {name.lower(): value for name, value in given.items()}
    values = {}
    for option in known:
        if (value := found.get(option.name.lower())) is None:
            values[option.field] = option.default
            continue
        try:
            values[option.field] = option.read(option.name, value)
        except OptionError as error:
            if option.secret or option.name == "url":
                raise OptionError(error.what, remedy=error.remedy, option=option.name) from None
            raise
    return values


def connection_fields(given: Mapping[str, str]) -> dict[str, Any]:
    """Read the options of the connection: keyword arguments for `penstock.contexts.load_options`.

    What can be checked without looking at contexts and files is checked.
    """
    values = parse_options(given, CONNECTION)
    fields = {name: value for name, value in values.items() if name.lower().replace("_", "") in _lowered(given)}
    try:
        ConnectionOptions(**{name: value for name, value in fields.items() if name != "context"})
    except OptionError as error:
        if "context" in fields:  # the context may hold the other half of a login
            return fields
        raise _camel(error) from None
    return fields


def _lowered(given: Mapping[str, str]) -> set[str]:
    return {name.lower() for name in given}


def _camel(error: OptionError) -> OptionError:
    """Name options as Spark users write them."""

    def spell(sentence: str) -> str:
        for option in CONNECTION:
            sentence = re.sub(rf"\b{option.field}\b", option.name, sentence)
        return sentence

    option = spell(str(error.option)) if error.option else error.option
    return OptionError(spell(error.what), remedy=spell(error.remedy), option=option)


@dataclass(frozen=True)
class SourceOptions:
    """Everything that reading needs to know, checked; see the table `SOURCE` for the meanings."""

    stream: str | None = None
    streams: tuple[str, ...] | None = None
    channel: str | None = None
    cluster_id: str = "test-cluster"
    subjects: tuple[str, ...] | None = None
    start: dict[str, Position] | None = field(default=None, hash=False)
    end: dict[str, Position] | None = field(default=None, hash=False)
    start_strategy: str = "latest"
    include_headers: bool = True
    push_down: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int = 128 * 2**20
    max_messages_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_messages_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    ack: str = "none"
    consumer: str | None = None
    patience: float = 60.0
    batch_rows: int = 10_000
    window_bytes: int = 8 * 2**20

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Read and check the options of a read, batch or streaming."""
        if "path" in _lowered(given):
            raise OptionError(
                "load() was given a path, and NATS has none.",
                remedy='Name the stream: .option("stream", "ORDERS").load().',
                option="path",
            )
        given = renamed(given)
        refuse_unknown(given, (*CONNECTION, *SOURCE))
        connection_fields(given)
        options = cls(**parse_options(given, SOURCE))
        options._check()
        return options

    def check_batch(self) -> None:
        """Refuse what only makes sense in a stream."""
        for name in ("max_messages_per_trigger", "max_bytes_per_trigger", "min_messages_per_trigger"):
            if getattr(self, name) is not None:
                self._misplaced(name, "A batch has no triggers: leave it out, or use spark.readStream.")
        if self.ack != "none":
            self._misplaced("ack", "Spark does not tell a batch read when its rows are safe: use spark.readStream.")

    def check_stream(self) -> None:
        """Refuse what only makes sense in a batch."""
        if self.end is not None:
            self._misplaced("end", "A stream has no end: leave it out, or use spark.read.")

    def position(self, name: str, stream: str, default: str) -> Position:
        """Give `start` or `end` of one stream."""
        found: dict[str, Position] = getattr(self, name) or {}
        return found.get(stream) or found.get("*") or parse_position(default, option=name)

    @property
    def is_pattern(self) -> bool:
        """Whether streams may appear later that this query reads, too."""
        return any(re.search(r"[*?]", name) for name in self.streams or ())

    def _misplaced(self, name: str, remedy: str) -> NoReturn:
        option = next(option.name for option in SOURCE if option.field == name)
        raise OptionError(f"The option {option} cannot be used here.", remedy=remedy, option=option)

    def _check(self) -> None:
        ways = [name for name in ("stream", "streams", "channel") if getattr(self, name) is not None]
        if len(ways) != 1:
            what = f"{' and '.join(ways)} are given together." if ways else "No stream is named."
            remedy = "Leave all but one out." if ways else 'Name one: .option("stream", "ORDERS").'
            raise OptionError(what, remedy=remedy, option="stream")
        for name in ("start", "end"):
            named = [item for item in getattr(self, name) or {} if item != "*" and not re.search(r"[*?]", item)]
            if self.stream and (strange := [item for item in named if item != self.stream]):
                raise OptionError(
                    f"The option {name} names {strange[0]!r}, which is not read.",
                    remedy=f"This query reads {self.stream}.",
                    option=name,
                )
        if any(position.kind == "all" for position in (self.end or {}).values()):
            raise OptionError(
                "The option end is 'all', which is where a stream begins.",
                remedy="Leave it out to read all that is there.",
                option="end",
                value="all",
            )
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
                self._misplaced(name, "Zero is no duration to wait: leave it out, or give one.")
