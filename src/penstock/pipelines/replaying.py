"""Replay: a pipeline run over history into new streams beside the old ones, and the two compared.

The replay has a state of its own, under the storage of the pipeline, so that the pipeline itself goes on undisturbed.
A new stream has the configuration of the old one; its own name stands before each subject, because two streams cannot
capture the same subject. It republishes nothing: whoever listens there has heard it once. The stream of a key-value
bucket is replaced by that of another bucket, which has the same keys.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.buckets.key_stream import bucket_of
from penstock.buckets.key_wire import key_subjects
from penstock.contexts import load_options
from penstock.errors import InputError, NotFoundError, OptionError
from penstock.jetstream import assets
from penstock.jetstream.topology import Topology, apply
from penstock.model import Stream
from penstock.options import ConnectionOptions
from penstock.pipelines.order import RunOrder
from penstock.pipelines.outcome import Outcome
from penstock.pipelines.process import PipelineRun
from penstock.pipelines.project import Project
from penstock.pipelines.remote import check_remote
from penstock.pipelines.replays import (
    NAME,
    begun_replay,
    beside,
    check_can_switch,
    database,
    keep_replay,
    other_replays,
    switch,
)
from penstock.pipelines.running import apply_topology, blocking, check_where, follow
from penstock.spark.markers import is_marker, marker_filter
from penstock.spark.past import past_stream
from penstock.spark.positions import parse_position

__all__ = ["Comparison", "Replay", "compare_streams", "replay"]

OBJECTS = "OBJ_"  # how the stream of an object bucket begins


@dataclass(frozen=True)
class Comparison:
    """An old stream and the new one beside it, message by message; order does not count."""

    old: str
    new: str
    old_count: int
    new_count: int
    same: int
    only_old: int
    only_new: int

    def plain(self) -> dict[str, Any]:
        """Give it as JSON wants it."""
        return asdict(self)


@dataclass(frozen=True)
class Replay:
    """What a replay came to."""

    outcome: Outcome
    comparisons: tuple[Comparison, ...]
    warehouse: Path | None
    """The folder of its tables, if it is on this machine."""
    database: str | None
    """The database of its tables, if it is not the pipeline's."""


def replay(
    path: str | Path | Project = ".",
    *,
    url: str | None = None,
    options: ConnectionOptions | None = None,
    start: str = "all",
    into: Mapping[str, str] | None = None,
    name: str = "replay",
    backups: Sequence[str | Path] = (),
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    switch_to_it: bool = False,
    watch: Callable[[Outcome], None] | None = None,
) -> Replay:
    """Run a pipeline over history from `start` (a sequence, a time, ...), writing to the streams that `into` names.

    The pipeline's files ask `penstock.pipelines.start_position()` and `target("STREAM")` for where to read and write.
    The same replay run again goes on where it was; another name begins anew. With `switch_to_it` the pipeline's next
    run goes on where the replay ended, into its streams; `penstock.pipelines.replays.switch_back` undoes that.
    `backups` are backups or archives of streams that the pipeline reads: its sources begin in them.
    """
    project = path if isinstance(path, Project) else Project.load(path)
    found = options or load_options(url)
    pairs = dict(into or {})
    parse_position(start, option="from")
    check_where(master, remote)
    if remote is not None:
        check_remote(remote)
    if "spark.sql.warehouse.dir" in (conf or {}):
        what = "A replay keeps its tables in a warehouse of its own."
        raise OptionError(what, remedy="Leave spark.sql.warehouse.dir out of conf.", option="conf")
    if not NAME.fullmatch(name):
        raise InputError(f"{name!r} cannot be the name of a replay.", remedy="Use letters, digits, - and _.")
    past = _backfill(backups, remote)
    place = beside(project, name)
    if switch_to_it:
        check_can_switch(project)
    _check_targets(project, name, pairs)
    fresh = begun_replay(project, name, start, pairs, past) is None
    apply_topology(project, found)
    blocking(_make_streams(project, found, pairs, fresh))
    kept = keep_replay(project, name, start, pairs, past)
    order = RunOrder(
        master=master or "local[*]",
        remote=remote,
        replay=kept.settings(),
        database=database(project, name, remote, conf),
        conf=dict(conf or {}),
    )
    outcome = follow(PipelineRun(place, found, order).start(), watch)
    read = {stream for flow in outcome.flows.values() for stream in flow.streams}
    if fresh and (unread := sorted(past.keys() - read)):
        what = f"No source of the pipeline read {unread[0]}, so that the backup {past[unread[0]]} was of no use."
        raise InputError(what, remedy="Leave it out, or let a source name that stream with the option stream.")
    compared = tuple(compare_streams(found, old, new) for old, new in pairs.items())
    if switch_to_it:
        switch(project, name)
    return Replay(outcome, compared, place.warehouse if remote is None else None, order.database)


def _backfill(backups: Sequence[str | Path], remote: str | None) -> dict[str, str]:
    """Say of which stream each backup is."""
    if backups and remote is not None:
        what = "A replay on a Spark Connect server cannot begin in a backup: its sources are not told."
        raise InputError(what, remedy='Leave remote out, or write .option("backfill", DIR) into the pipeline\'s files.')
    found: dict[str, str] = {}
    for backup in backups:
        place = str(backup) if "://" in str(backup) else str(Path(backup).absolute())
        stream = past_stream(place)
        if stream in found:
            raise InputError(f"Two backups of {stream} are named.", remedy="Leave one out.")
        found[stream] = place
    return found


def _check_targets(project: Project, name: str, pairs: Mapping[str, str]) -> None:
    """Refuse streams that are the pipeline's own, or two in one: a replay must have its streams to itself."""
    own = {*pairs, *(project.topology.streams if project.topology is not None else ())}
    for old, new in pairs.items():
        _check_kinds(old, new)
        if new in own:
            what = f"The replay would write into {new}, which is a stream of the pipeline itself."
            raise InputError(what, remedy=f"Name a new stream: --into {old}=NEW.")
        for other in other_replays(project, name):
            if new in other.into.values():
                what = f"The replay would write into {new}, which is a stream of the replay {other.name}."
                raise InputError(what, remedy=f"Name a new stream: --into {old}=NEW.")
    if len(set(pairs.values())) < len(pairs):
        raise InputError("The replay would write two streams into one.", remedy="Name a new stream for each.")


def _check_kinds(old: str, new: str) -> None:
    """Refuse to let a bucket take the place of a stream, or the other way round; and objects."""
    if old.startswith(OBJECTS):
        what = f"{old} holds objects, which are stored under other ids each time: a replay of it cannot be compared."
        raise InputError(what, remedy="Write the objects in another pipeline, into a bucket of its own.")
    if (bucket_of(old) is None) != (bucket_of(new) is None):
        one, other = (old, new) if bucket_of(new) is None else (new, old)
        what = f"{one} is the stream of a key-value bucket, and {other} is not."
        raise InputError(what, remedy="Name two buckets by their streams, such as --into KV_PRICES=KV_PRICES_V2.")


async def _make_streams(project: Project, options: ConnectionOptions, pairs: Mapping[str, str], fresh: bool) -> None:
    from penstock.connection import connect

    made = []
    async with await connect(options) as client:
        for old, new in pairs.items():
            if project.topology is not None and old in project.topology.streams:
                config = project.topology.streams[old]
            else:
                config = (await assets.stream_info(client, old)).config
            try:
                held = (await assets.stream_info(client, new)).messages
            except NotFoundError:
                held = 0
            if fresh and held:
                what = f"The stream {new} holds {held:,} messages already, and this replay is new."
                raise InputError(what, remedy="Write into a stream that is not there yet, or purge it.")
            made.append(_beside(config, new))
        await apply(client, Topology(made))


def _beside(config: Stream, name: str) -> Stream:
    """Give the configuration of the stream that takes the place of another."""
    subjects = [f"{name}.{subject}" for subject in config.subjects or [config.name] if not is_marker(subject)]
    if (bucket := bucket_of(name)) is not None:
        subjects = [key_subjects(bucket)]
    # Metadata that begins so is the server's.
    told = {key: text for key, text in config.metadata.items() if not key.startswith("_nats.")}
    update = {"name": name, "subjects": [*subjects, marker_filter(name)], "republish": None, "metadata": told}
    return config.model_copy(update=update)


def compare_streams(options: ConnectionOptions, old: str, new: str) -> Comparison:
    """Compare the messages of two streams by subject and payload; of two buckets, what is there by key."""
    from penstock.wire.bulk import BulkConnection

    with BulkConnection(options) as bulk:
        prefixes = {old: "", new: f"{new}."}
        prefixes |= {
            name: key_subjects(bucket).removesuffix(">") for name in prefixes if (bucket := bucket_of(name)) is not None
        }
        before, after = (Counter(_digests(bulk, name, prefixes[name])) for name in (old, new))
    same = (before & after).total()
    return Comparison(old, new, before.total(), after.total(), same, before.total() - same, after.total() - same)


def _before_key(stream: str) -> str | None:
    """Give what stands before a key in the stream of a bucket; None if it is that of none."""
    bucket = bucket_of(stream)
    return None if bucket is None else key_subjects(bucket).removesuffix(">")


def _digests(bulk: Any, stream: str, prefix: str) -> Iterator[bytes]:
    # The sink's own marks are purged as it goes, so that the head of a stream may be gone.
    for batch in bulk.read(stream, headers=False, on_loss=lambda lost: None):
        for subject, data in zip(batch["subject"].to_pylist(), batch["data"].to_pylist(), strict=True):
            if is_marker(subject):
                continue
            named = subject.removeprefix(prefix).encode()
            yield hashlib.blake2b(named + b"\x00" + data, digest_size=16).digest()
