"""Topologies against the real server: applied, applied again without a change, edited, refused; backups."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.connection import Connection, api_request, connect
from penstock.connection.asking import patiently
from penstock.errors import InputError, JetStreamError, NotFoundError
from penstock.jetstream import Publisher, Topology, apply, assets, plan, snapshot
from penstock.jetstream.topology import _take
from penstock.model import Consumer, Stream
from penstock.server import Server

STREAMS: list[dict[str, Any]] = [
    {},
    {"retention": "interest", "discard": "new", "max_msgs": 10, "max_bytes": 10_000, "max_age": "1h"},
    {"retention": "workqueue", "max_msgs_per_subject": 3, "max_msg_size": 512, "max_consumers": 4},
    {"discard": "new", "max_msgs_per_subject": 1, "discard_new_per_subject": True, "storage": "memory"},
    {"duplicate_window": "10s", "no_ack": True, "description": "quiet", "metadata": {"team": "x"}},
    {"compression": "s2", "allow_direct": False, "allow_atomic": True, "allow_batched": True, "first_seq": 100},
    {"allow_rollup_hdrs": True, "allow_msg_ttl": True, "subject_delete_marker_ttl": "5s"},
    {"deny_delete": True, "deny_purge": True},
    {"allow_msg_counter": True},
    {"allow_rollup_hdrs": True, "allow_msg_schedules": True},
    {"sealed": True},
    {"consumer_limits": {"max_ack_pending": 50}},
    {"republish": {"src": ">", "dest": "again.>"}, "max_age": 60},
    {"persist_mode": "async"},
    {"persist_mode": "default", "max_msgs": 0},
]


@pytest.mark.parametrize("fields", STREAMS, ids=[next(iter(item), "nothing") for item in STREAMS])
async def test_what_is_applied_is_there(nc: Connection, unique: Callable[..., str], fields: dict[str, Any]):
    """Every kind of stream is created as it is declared, and then nothing is left to change."""
    name = unique("TOP")
    topology = Topology([Stream(name=name, subjects=[f"{name}.>"], **fields)])
    done = await apply(nc, topology)
    assert [step.action for step in done.steps] == ["create"]
    assert (await plan(nc, topology)).empty
    assert [step.action for step in (await apply(nc, topology)).steps] == ["none"]


CONSUMERS: list[dict[str, Any]] = [
    {},
    {"filter_subject": "{}.a"},
    {"filter_subjects": ["{}.a", "{}.b"]},
    {"deliver_policy": "last"},
    {"deliver_policy": "last_per_subject", "filter_subject": "{}.>"},
    {"deliver_policy": "new"},
    {"deliver_policy": "by_start_sequence", "opt_start_seq": 5},
    {"deliver_policy": "by_start_time", "opt_start_time": "2026-01-31T23:59:59.123456Z"},
    {"ack_policy": "all", "ack_wait": "5s", "max_deliver": 3, "max_ack_pending": 10},
    {"ack_policy": "none"},
    {"backoff": ["1s", "5s"], "max_deliver": 5},
    {"deliver_subject": "out.{}", "idle_heartbeat": "5s", "flow_control": True, "rate_limit_bps": 100_000},
    {"deliver_subject": "out.{}", "deliver_group": "g", "replay_policy": "original"},
    {"sample_freq": "50", "headers_only": True, "inactive_threshold": "1h", "mem_storage": True},
    {"max_waiting": 5, "max_batch": 10, "max_expires": "5s", "max_bytes": 1000},
    {"priority_policy": "overflow", "priority_groups": ["g"]},
    {"priority_policy": "pinned_client", "priority_groups": ["g"], "priority_timeout": "5s"},
    {"pause_until": "2099-01-01T00:00:00Z", "description": "later", "metadata": {"a": "b"}},
]


async def test_consumers_are_applied_in_the_same_way(nc: Connection, unique: Callable[..., str]):
    """Every kind of consumer is created as it is declared, and then nothing is left to change."""
    name = unique("TOP")

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(item) for item in value]
        return value.replace("{}", name) if isinstance(value, str) else value

    declared = [
        Consumer(
            **({"name": f"c{number}"} if number % 5 == 4 else {"durable": f"c{number}"}),
            **{key: filled(value) for key, value in fields.items()},
        )
        for number, fields in enumerate(CONSUMERS)
    ]
    topology = Topology([Stream(name=name, subjects=[f"{name}.>"])], {name: declared})
    assert {step.action for step in (await apply(nc, topology)).steps} == {"create"}
    assert (await plan(nc, topology)).empty
    edited = [item.model_copy(update={"description": "new words"}) for item in declared]
    changed = Topology([Stream(name=name, subjects=[f"{name}.>"])], {name: edited})
    done = await apply(nc, changed)
    assert [[change.field for change in step.changes] for step in done.steps[1:]] == [["description"]] * len(declared)
    assert (await plan(nc, changed)).empty


async def test_updates_keep_what_others_wrote(nc: Connection, unique: Callable[..., str]):
    """An update changes the fields that differ and no other: exact times, metadata of the server stay."""
    name = unique("TOP")
    body = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "max_age": 3_600_000_000_001}
    await api_request(nc, f"STREAM.CREATE.{name}", body)
    start = {"durable_name": "c", "deliver_policy": "by_start_time", "opt_start_time": "2026-01-01T00:00:00.123456789Z"}
    await api_request(nc, f"CONSUMER.CREATE.{name}.c", {"stream_name": name, "config": {**start, "ack_policy": "all"}})
    stream = Stream(name=name, subjects=[f"{name}.>"], max_age=3600.000000001, allow_direct=False, max_msgs=5)
    consumer = Consumer(
        durable="c",
        deliver_policy="by_start_time",
        opt_start_time="2026-01-01T00:00:00.123456Z",
        ack_policy="all",
        max_deliver=7,
    )
    done = await apply(nc, Topology([stream], {name: [consumer]}))
    assert [[change.field for change in step.changes] for step in done.steps] == [["max_msgs"], ["max_deliver"]]
    config = (await api_request(nc, f"CONSUMER.INFO.{name}.c"))["config"]
    assert config["opt_start_time"] == "2026-01-01T00:00:00.123456789Z"
    assert (await api_request(nc, f"STREAM.INFO.{name}"))["config"]["max_age"] == 3_600_000_000_001


async def test_a_conflict_changes_nothing(nc: Connection, unique: Callable[..., str]):
    """Where one stream cannot become what is declared, no other is touched either; the field is named."""
    name, other = unique("TOP"), unique("TOP")
    await apply(nc, Topology([Stream(name=name, subjects=[f"{name}.>"])]))
    wanted = Topology(
        [
            Stream(name=other, subjects=[f"{other}.>"]),
            Stream(name=name, subjects=[f"{name}.>"], storage="memory", max_msgs=3),
        ]
    )
    with pytest.raises(InputError, match=f"stream {name}: storage is file and cannot become memory"):
        await apply(nc, wanted)
    with pytest.raises(NotFoundError):
        await assets.stream_info(nc, other)
    assert (await assets.stream_info(nc, name)).config.max_msgs == -1


async def test_nothing_is_lost_unasked(nc: Connection, unique: Callable[..., str]):
    """A tighter limit that would drop messages is refused until it is allowed."""
    name = unique("TOP")
    await apply(nc, Topology([Stream(name=name, subjects=[f"{name}.>"])]))
    async with Publisher(nc, name) as publisher:
        for number in range(5):
            await publisher.send(f"{name}.x", b"%d" % number)
    tight = Topology([Stream(name=name, subjects=[f"{name}.>"], max_msgs=2)])
    with pytest.raises(InputError, match="it would drop 3 of 5 messages"):
        await apply(nc, tight)
    assert (await assets.stream_info(nc, name)).messages == 5
    await apply(nc, tight, may_lose_data=True)
    assert (await assets.stream_info(nc, name)).messages == 2


async def test_overlaps_are_found_before_anything_is_changed(nc: Connection, unique: Callable[..., str]):
    """Subjects of a stream that is on the server, and consumers of a work queue there, count too."""
    name, other, queue = unique("TOP"), unique("TOP"), unique("TOP")
    await assets.add_stream(nc, Stream(name=name, subjects=[f"{name}.>"]))
    first = Stream(name=unique("TOP"), subjects=["nobody.else"])
    with pytest.raises(InputError, match=f"overlap: .*{name} is on the server already"):
        await apply(nc, Topology([first, Stream(name=other, subjects=[f"{name}.x"])]))
    with pytest.raises(NotFoundError):
        await assets.stream_info(nc, first.name)
    await assets.add_stream(nc, Stream(name=queue, subjects=[f"{queue}.>"], retention="workqueue"))
    await assets.add_consumer(nc, queue, Consumer(durable="a"))
    wanted = Topology(
        [Stream(name=queue, subjects=[f"{queue}.>"], retention="workqueue")], {queue: [Consumer(durable="b")]}
    )
    with pytest.raises(InputError, match="Consumers a and b of the work queue"):
        await apply(nc, wanted)
    assert (await plan(nc, wanted, prune=True)).steps[1].action == "delete"
    await apply(nc, wanted, prune=True)
    assert [info.name for info in await assets.consumers(nc, queue)] == ["b"]


async def test_copies_come_after_what_they_copy(nc: Connection, unique: Callable[..., str]):
    """Streams are created in an order that works; a circle is refused."""
    a, b, c = (unique("TOP") for _ in range(3))
    streams = [
        Stream(name=c, mirror={"name": b}),
        Stream(name=b, sources=[{"name": a}]),
        Stream(name=a, subjects=[f"{a}.>"]),
    ]
    done = await apply(nc, Topology(streams))
    assert [step.name for step in done.steps] == [a, b, c]
    circle = [Stream(name=a, sources=[{"name": b}]), Stream(name=b, sources=[{"name": a}])]
    with pytest.raises(InputError, match="copy each other in a circle"):
        await plan(nc, Topology(circle))


async def test_a_step_that_fails_says_what_is_done(nc: Connection, unique: Callable[..., str]):
    """What only the server can know fails in the middle; the error tells which steps are done."""
    one, two = unique("TOP"), unique("TOP")
    wanted = Topology(
        [Stream(name=one, subjects=[f"{one}.>"]), Stream(name=two, subjects=[f"{two}.>"], num_replicas=3)]
    )
    with pytest.raises(JetStreamError, match=f"create stream {two}: .*replicas.*Done before it: stream {one}"):
        await apply(nc, wanted)


async def test_what_changed_since_the_plan_is_not_written_over(nc: Connection, unique: Callable[..., str]):
    """A step that was planned on another configuration is refused: its update would undo what somebody else did."""
    name = unique("APPLY")
    stream, consumer = Stream(name=name, subjects=[f"{name}.>"]), Consumer(durable="c")
    await apply(nc, Topology([stream], {name: [consumer]}))
    wanted = Topology(
        [stream.model_copy(update={"max_age": 60.0})], {name: [consumer.model_copy(update={"max_deliver": 3})]}
    )
    planned = await plan(nc, wanted)
    await assets.edit_stream(nc, stream.model_copy(update={"description": "theirs"}))
    await assets.edit_consumer(nc, name, consumer.model_copy(update={"description": "theirs"}))
    for step in planned.steps:
        with pytest.raises(JetStreamError, match="Somebody else changed it"):
            await _take(nc, step)
    await apply(nc, Topology([stream.model_copy(update={"max_age": 60.0, "description": "theirs"})]))
    assert (await assets.stream_info(nc, name)).config.description == "theirs"


@pytest.mark.heavy
async def test_a_stream_whose_server_is_away_is_not_taken_for_gone(caplog: pytest.LogCaptureFixture):
    """A list that lacks streams says so, and no plan is made of it: what is away is not made anew."""
    with Server(nodes=3, sync="2m", start_timeout=60) as cluster:
        async with await connect(cluster.url, reconnect_wait=0.1) as nc:
            stream = Stream(name="AWAY", subjects=["away"])
            await patiently(lambda: assets.add_stream(nc, stream), 60, nobody=True)
            leader = (await assets.stream_info(nc, "AWAY")).placed.leader
            await asyncio.to_thread(next(node for node in cluster.nodes if node.name == leader).kill)
            assert await patiently(lambda: assets.streams(nc), 60, nobody=True) == []
            assert "The list lacks AWAY" in caplog.text
            with pytest.raises(JetStreamError, match="Nobody answers for AWAY now"):
                await plan(nc, Topology([stream]))


async def test_undeclared_consumers_are_left_alone(nc: Connection, unique: Callable[..., str]):
    """A consumer that the declaration does not name is told, and stays."""
    name = unique("TOP")
    topology = Topology([Stream(name=name, subjects=[f"{name}.>"])])
    await apply(nc, topology)
    await assets.add_consumer(nc, name, Consumer(durable="other"))
    done = await apply(nc, topology)
    assert done.undeclared == (f"{name} > other",)
    assert [info.name for info in await assets.consumers(nc, name)] == ["other"]


# -- backups ---------------------------------------------------------------------------------------------------------


async def test_a_backup_brings_everything_back(nc: Connection, unique: Callable[..., str], tmp_path: Path):
    """A stream and its consumers come back from a folder as they were; progress is told."""
    name, folder, steps = unique("BAK"), tmp_path / "backup", []
    await assets.add_stream(nc, Stream(name=name, subjects=[f"{name}.>"], description="mine"))
    async with Publisher(nc, name) as publisher:
        for number in range(2000):
            await publisher.send(f"{name}.x", b"%d" % number * 100, id=str(number))
    await assets.add_consumer(nc, name, Consumer(durable="c"))
    made = await snapshot.backup(nc, name, folder, progress=steps.append)
    assert sum(steps) == made["size"] == (folder / "stream.arc.s2").stat().st_size
    assert json.loads((folder / "backup.json").read_text())["config"]["name"] == name
    await assets.delete_stream(nc, name)
    info = await snapshot.restore(nc, folder)
    assert (info.messages, info.config.description) == (2000, "mine")
    assert [item.name for item in await assets.consumers(nc, name)] == ["c"]
    assert (await assets.get_message(nc, name, 2000)).headers["Nats-Msg-Id"] == ["1999"]


async def test_what_cannot_be_backed_up_or_restored(nc: Connection, unique: Callable[..., str], tmp_path: Path):
    """Streams in memory, folders in use, folders without a backup, other names: one sentence each."""
    name = unique("BAK")
    await assets.add_stream(nc, Stream(name=name, subjects=[f"{name}.>"], storage="memory"))
    with pytest.raises(InputError, match="kept in memory"):
        await snapshot.backup(nc, name, tmp_path / "b")
    assert not (tmp_path / "b").exists()
    kept = unique("BAK")
    await assets.add_stream(nc, Stream(name=kept, subjects=[f"{kept}.>"]))
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(InputError, match="not an empty folder"):
        await snapshot.backup(nc, kept, tmp_path / "used")
    with pytest.raises(InputError, match="holds no complete backup"):
        await snapshot.restore(nc, tmp_path / "used")
    await snapshot.backup(nc, kept, tmp_path / "good")
    with pytest.raises(InputError, match="cannot become OTHER"):
        await snapshot.restore(nc, tmp_path / "good", config=Stream(name="OTHER"))
    with pytest.raises(JetStreamError, match="name already in use"):
        await snapshot.restore(nc, tmp_path / "good")
