"""Files and words of users: topologies, contexts, credentials, configurations, options, durations, sizes, times."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path

from penstock.channels.limits import parse_limits
from penstock.channels.old_settings import read_settings
from penstock.conf_file import read_conf_text
from penstock.context_files import parse_context, to_bytes
from penstock.contexts import check_context, resolve
from penstock.credentials import claims
from penstock.durations import format_duration, parse_duration
from penstock.errors import PenstockError
from penstock.info import ConsumerInfo, StreamInfo
from penstock.jetstream.samples import Figures, parse_event
from penstock.jetstream.schedule import Schedule
from penstock.jetstream.snapshot import read_meta
from penstock.jetstream.topology import Topology
from penstock.model import Consumer, Message, Stream
from penstock.options import ConnectionOptions, SocksProxy
from penstock.pipelines.project import Project
from penstock.sizes import parse_size
from penstock.spark.sink_options import read_ttl
from penstock.store.opening import _refuse_secrets
from penstock.system.events import read_event
from penstock.system.fields import read_object
from penstock.times import parse_time
from penstock.wire.jetstream.answers import read_answer
from penstock.wire.protocol import check_subject
from tests.fuzz.target import target


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _schedule(text: str) -> Schedule:
    return Schedule(text, "orders.late")


def _ttl(text: str) -> str:
    return read_ttl("ttl", text)


_WORDS = (
    *(parse_size, parse_time, parse_limits, SocksProxy.parse, ConnectionOptions, check_subject, _schedule, _ttl),
    _refuse_secrets,
)


@target("topology")
def topology(content: bytes) -> None:
    """A topology, in each of its forms."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        for form in ("toml", "json", "yaml"):
            path = Path(name) / f"topology.{form}"
            path.write_bytes(content)
            with suppress(PenstockError):
                Topology.load(path)


@target("project")
def project(content: bytes) -> None:
    """The description of a pipeline, which is YAML."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        (Path(name) / "transformations").mkdir()
        (Path(name) / "transformations" / "orders.py").touch()
        (Path(name) / "spark-pipeline.yml").write_bytes(content)
        Project.load(name)


@target("context")
def context(content: bytes) -> None:
    """A context, as the `nats` command or an editor wrote it."""
    fields = parse_context(content, Path("here.json"), "here")
    assert isinstance(json.loads(to_bytes(fields)), dict)
    check_context("here", fields, {})


@target("secrets")
def secrets(content: bytes) -> None:
    """What a context refers to instead of a secret; files and variables are not of this test."""
    text = _text(content)
    if "file://" not in text.lower():
        for option in ("token", "nkey", "credentials"):
            with suppress(PenstockError):
                resolve(text, option, {"NAME": text.replace("\x00", "")})


@target("credentials")
def credentials(content: bytes) -> None:
    """A credentials file, given as its content."""
    claims("-----BEGIN NATS USER JWT-----\n" + _text(content))


@target("conf")
def conf(content: bytes) -> None:
    """The configuration of a server, as a text."""
    read_conf_text(_text(content), {"NAME": "value"})


@target("old-settings")
def old_settings(content: bytes) -> None:
    """The command line of NATS Streaming, a word a line, and its configuration file."""
    with suppress(PenstockError):
        words = [word.replace("\x00", "") for word in _text(content).split("\n")]
        if not any(word.lstrip("-").partition("=")[0] in ("sc", "stan_config", "c", "config") for word in words):
            read_settings(words, {})
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        path = Path(name) / "stan.conf"
        path.write_bytes(content)
        read_settings(["-sc", str(path)], {})


@target("words")
def words(content: bytes) -> None:
    """Durations, sizes, times, limits, schedules, subjects and URIs, as users write them."""
    text = _text(content)
    with suppress(PenstockError):
        seconds = parse_duration(text)
        format_duration(seconds)
    for read in _WORDS:
        with suppress(PenstockError):
            read(text)


@target("info")
def info(content: bytes) -> None:
    """What a server says of streams, consumers, messages and accounts."""
    answer = read_answer(content)
    for kind in (StreamInfo, ConsumerInfo, Stream, Consumer, Message):
        with suppress(PenstockError):
            found = kind.from_json(answer)
            if isinstance(found, StreamInfo | ConsumerInfo):
                with suppress(PenstockError):
                    found.config.to_json()


@target("events")
def events(content: bytes) -> None:
    """Events and advisories of a server."""
    with suppress(PenstockError):
        event = read_event(content)
        json.dumps(event.to_cloudevent())
    with suppress(PenstockError):
        told = parse_event(content)
        {(told.stream, told.consumer): Figures()}.popitem()[1].add(told)
    read_object(content)


@target("backup-meta")
def backup_meta(content: bytes) -> None:
    """The description beside a backup that is restored."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        (Path(name) / "backup.json").write_bytes(content)
        (Path(name) / "stream.arc.s2").write_bytes(b"x")
        read_meta(Path(name))
