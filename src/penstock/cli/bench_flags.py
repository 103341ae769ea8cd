"""The flags of `penstock bench`, under the names of `nats bench`, and what they make of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from penstock.bench.client_job import ClientJob, Subjects, shares
from penstock.cli.flags import JSON, argument, flag, flag_table, table_flag
from penstock.cli.message_parts import check_subjects
from penstock.durations import parse_duration
from penstock.errors import InputError, OptionError
from penstock.options import ConnectionOptions
from penstock.sizes import parse_size

__all__ = ["Amount", "Large", "Making", "Rate", "Sending", "jobs_of", "parse_headers"]

LARGEST = 64 * 1024 * 1024  # of a message: what a server can be configured to take
MANY = 1000  # clients: each is a process


def _count(value: int) -> int:
    if not 1 <= value <= 2**53:
        raise OptionError(f"--msgs is {value}.", remedy="Give 1 or more.", option="--msgs")
    return value


@flag_table
class Amount:
    """How much, by how many, and where the figures go."""

    msgs: int = table_flag("How many messages.", "COUNT", default=100_000)
    size: str = table_flag("Size of a message.", "SIZE", default="128B")
    clients: int = table_flag("How many clients, each a process.", "COUNT", default=1)
    progress: bool = table_flag("Show a bar on a terminal.", default=True)
    csv: Path | None = table_flag("Write a line for each client into a file that is not there yet.", "FILE")
    json: bool = table_flag(JSON, "-j", "--json", default=False)

    def __post_init__(self) -> None:
        _count(self.msgs)
        if not 1 <= self.clients <= MANY:
            what = f"--clients is {self.clients}."
            raise OptionError(what, remedy=f"Give 1 to {MANY:,}: each is a process.", option="--clients")
        shares(self.msgs, self.clients)  # refuses more clients than messages
        if self.csv is not None and (
            self.csv.exists() or not self.csv.parent.is_dir() or not os.access(self.csv.parent, os.W_OK)
        ):
            raise InputError(
                f"--csv {self.csv} cannot be written.", remedy="Name a new file in a folder that you may write to."
            )

    def payload(self, file: Path | None = None, most: int = LARGEST) -> bytes:
        """Give the body of every message: zeros of that size, or what a file holds."""
        if file is not None:
            try:
                content = file.read_bytes()
            except OSError as error:
                raise InputError(f"--payload {file} cannot be read: {error.strerror}.", remedy="Name a file.") from None
            if len(content) > most:
                raise InputError(f"--payload {file} has {len(content):,} bytes.", remedy=f"Take {most:,} at the most.")
            return content
        size = parse_size(self.size, option="--size")
        if not 0 < size <= most:
            what = f"--size is {self.size!r}."
            raise OptionError(what, remedy=f"Give 1 to {most:,} bytes, such as 128B or 16KB.", option="--size")
        return bytes(size)


@flag_table
class Large(Amount):
    """The same for what is large: fewer and larger messages unless told."""

    msgs: int = table_flag("How many.", "COUNT", default=100)
    size: str = table_flag("Size of each.", "SIZE", default="1MB")


@flag_table
class Sending:
    """What is published, and on which subjects."""

    multisubject: bool = table_flag("Publish each message on a subject with its number.", default=False)
    multisubjectmax: int = table_flag("How many such subjects; 0 for one a message.", "COUNT", default=100_000, min=0)
    multisubjectrandomize: bool = table_flag("Choose among them by chance.", default=False)
    payload: Path | None = table_flag("File to send instead of zeros.", "FILE")
    header: list[str] | None = table_flag("Header to send; may be repeated.", "KEY:VALUE", "-H", "--header")

    def subjects(self, base: str) -> Subjects:
        """Give the subjects behind this one."""
        check_subjects(base, literal=True)
        return Subjects(base, self.multisubject, self.multisubjectmax, self.multisubjectrandomize)


@flag_table
class Rate:
    """How fast it may go."""

    throughput: int = table_flag("Messages a second of all clients at the most; 0: no bound.", "N", default=0, min=0)
    duration: str = table_flag("Run for this long at --throughput, instead of --msgs.", "DURATION", default="0s")

    def messages(self, amount: Amount) -> int:
        """Give the number of messages: --msgs, or what --duration and --throughput make."""
        seconds = parse_duration(self.duration, option="--duration")
        if not seconds:
            return amount.msgs
        if not self.throughput:
            raise InputError("--duration is given without --throughput.", remedy="Say how many messages a second.")
        shares(total := _count(round(self.throughput * seconds)), amount.clients)
        return total


@flag_table
class Making:
    """How a stream or a bucket is made."""

    storage: str = table_flag("Where messages are kept.", "file|memory", default="file")
    replicas: int = table_flag("How many servers keep a copy.", "COUNT", default=1, min=1, max=5)
    maxbytes: str = table_flag("The most bytes that it holds.", "SIZE", default="1GB")
    purge: bool = table_flag("Take all messages out of it first; asks if it was there before.", default=False)
    force: bool = table_flag("Do not ask.", "-f", "--force", default=False)

    def fields(self) -> dict[str, Any]:
        """Give the fields of the stream or bucket; the limit refuses what is too much, and drops nothing."""
        if self.storage not in ("file", "memory"):
            raise OptionError(f"--storage is {self.storage!r}.", remedy="Use file or memory.", option="--storage")
        most = parse_size(self.maxbytes, option="--maxbytes")
        if most == 0 or most < -1:
            raise OptionError(f"--maxbytes is {self.maxbytes!r}.", remedy="Give some room.", option="--maxbytes")
        return {"storage": self.storage, "replicas": self.replicas, "max_bytes": most}


Subject = Annotated[str, argument("Subject of the benchmark.", "SUBJECT")]
Sleep = Annotated[str, flag("Pause after each message.", "DURATION")]
SERVED = "Pause before each answer."


def parse_headers(given: list[str] | None) -> Mapping[str, list[str]]:
    """Read headers as they were typed."""
    from penstock.wire.protocol import encode_headers

    headers: dict[str, list[str]] = {}
    for text in given or []:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise InputError(f"--header {text!r} has no name.", remedy="Write it as KEY:VALUE.")
        headers.setdefault(name.strip(), []).append(value.strip())
    if headers:
        encode_headers(headers)  # refuses what cannot be one
    return headers


def jobs_of(
    work: str, options: ConnectionOptions, amount: Amount, messages: int, *, each: bool = False, **fields: Any
) -> list[ClientJob]:
    """Make the job of each client; `each` gives all messages to every one, otherwise they share them."""
    parts = [messages] * amount.clients if each else shares(messages, amount.clients)
    throughput, base = fields.pop("throughput", 0), fields.pop("first", 0)
    jobs, first = [], base
    for client, part in enumerate(parts):
        rate = throughput / amount.clients
        jobs.append(ClientJob(work, options, part, client=client, first=first, throughput=rate, **fields))
        first += 0 if each else part
    return jobs
