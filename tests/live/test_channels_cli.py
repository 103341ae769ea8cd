"""The channels command as people run it, and moving channels over."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from penstock.channels import Client
from penstock.channels.limits import ChannelLimits
from penstock.channels.migrate import RunningServer, copy_channel, verify_channel
from penstock.channels.old_durables import names_from_monitor
from penstock.channels.store import Store
from penstock.cli.app import main
from penstock.connection import api_request
from penstock.errors import DataLossError, InputError, UnreachableError
from tests.channels_sets import new_messages
from tests.live.command import Command, environment
from tests.live.inprocess import Done, invoke
from tests.live.stan import Got, cluster_of, until


@pytest.fixture
def beside(server):
    """Run the command beside the gateway of the test, which goes on meanwhile."""

    async def run(*arguments: str) -> Done:
        return await asyncio.to_thread(invoke, server.url, *arguments)

    return run


def test_serve_embedded(tmp_path):
    """Without a server's address the command brings its own, prints where it is, and ends with Ctrl-C."""
    command = Command(tmp_path)
    arguments = ("channels", "serve", "--port", "0", "--store", str(tmp_path / "s"), "--sync", "2m", "-m", "0")
    with command.running(*arguments, "--max_msgs", "3") as running:
        url = running.wait_for("nats://").strip()
        monitor = running.wait_for("Monitoring").partition(": ")[2]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/streaming/serverz", monitor)
        running.wait_for("Serving the cluster test-cluster")

        async def use() -> list[int]:
            async with Client(url, client_id="me") as client:
                for _ in range(5):
                    await client.publish("foo", b"x")
                got = Got()
                await client.subscribe("foo", got, start="First")
                await got.count(3)
                return got.sequences

        assert asyncio.run(use()) == [3, 4, 5]
        assert running.interrupt(signal.SIGINT) == 0
        assert running.rest()[-1] == "Stopped."


def _children(pid: int) -> list[int]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(one) for file in files for one in file.read_text().split()]


def test_serve_ends_with_its_own_server(tmp_path):
    """If the server that it brought is killed, the command ends and says so: nobody else starts that one again."""
    with Command(tmp_path).running("channels", "serve", "--port", "0", "--sync", "2m") as running:
        running.wait_for("Serving the cluster")
        (node,) = [pid for guard in _children(running.process.pid) for pid in _children(guard)]
        os.kill(node, signal.SIGKILL)
        assert running.process.wait(30) == 1
        said = running.rest()
        assert [line for line in said if line.startswith("n1 is dead")]
        assert "The nats-server that this command started has ended" in said[-1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--cluster-id", "not ok"), "cluster_id"),
        (("--limits", "foo"), "limits"),
        (("--max-age", "soon"), "--max-age"),
        (("--max-msgs", "-1"), "max_msgs"),
        (("--replicas", "2"), "replicas"),
        (("--no-auth", "--token", "t"), "--token"),
    ],
)
def test_serve_refuses_bad_options(capsys, monkeypatch, tmp_path, flags, words):
    """A bad option is refused in one sentence, before a server is started."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NATS_URL", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["channels", "serve", "--port", "0", *flags])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_flags_of_the_embedded_server_need_one(capsys, server, tmp_path):
    """A store for the embedded server makes no sense with a server that is elsewhere."""
    with pytest.raises(SystemExit) as ended:
        main(["channels", "serve", "-s", server.url, "--store", str(tmp_path)])
    assert ended.value.code == 2
    assert "embedded" in capsys.readouterr().err


async def test_ls_info_export(stan, beside, tmp_path):
    """ls and info show channels and subscriptions, export writes messages, for people and as JSON."""
    await stan.serve()
    client = await stan.client("me")
    got = Got()
    await client.subscribe("foo.bar", got, durable="d", manual_acks=True)
    for number in range(5):
        await client.publish("foo.bar", b"%d" % number, reply="answer" if number == 4 else "")
    await got.count(5)
    for message in got.messages[:2]:
        message.ack()
    flags = ("--cluster-id", stan.cluster)
    state = stan.gateways[0].service.state
    await until(lambda: len(stan.gateways[0].service.channels["foo.bar"].subscribers.members[0].pending) == 3)
    await state.flush()
    [listed] = json.loads((await beside("channels", "ls", "--json", *flags)).stdout)
    assert (listed["name"], listed["messages"], listed["last"]) == ("foo.bar", 5, 5)
    assert listed["subscriptions"][0]["durable"] == "d"
    assert listed["subscriptions"][0]["pending"] == 3
    shown = (await beside("channels", "info", "foo.bar", *flags)).stdout
    assert f"{stan.cluster}:foo:bar" in shown
    assert "online" in shown
    lines = (await beside("channels", "export", "foo.bar", "--start", "2", "--end", "4", *flags)).stdout.splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == [2, 3]
    target = tmp_path / "out.jsonl"
    done = await beside("channels", "export", "foo.bar", "-o", str(target), *flags)
    assert "Wrote 5 messages" in done.stderr
    last = json.loads(target.read_text().splitlines()[-1])
    assert base64.b64decode(last["data"]) == b"4"
    assert last["reply"] == "answer"
    assert last["time"] == got.messages[-1].timestamp
    full = await beside("channels", "export", "foo.bar", "-o", "/dev/full", *flags)
    assert "/dev/full cannot be written: No space left on device" in full.stderr
    nowhere = await beside("channels", "export", "foo.bar", "-o", str(tmp_path / "none" / "out.jsonl"), *flags)
    assert "cannot be written: No such file or directory" in nowhere.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


async def test_an_export_through_links(stan, server, beside, tmp_path):
    """A link stays when a channel is exported to it; one as /dev/stdout is standard output, also if that is a file."""
    await stan.serve()
    client = await stan.client("me")
    await client.publish("foo", b"x")
    target, link, out, stdout = (tmp_path / name for name in ("target", "link", "out", "stdout"))
    target.touch(0o600)
    link.symlink_to(target)
    stdout.symlink_to("/proc/self/fd/1")  # as /dev/stdout, which a mistake of ours shall not replace
    arguments = ("channels", "export", "foo", "--cluster-id", stan.cluster, "-o")
    assert "Wrote 1 messages" in (await beside(*arguments, str(link))).stderr
    assert link.readlink() == target
    assert target.stat().st_mode & 0o777 == 0o600
    with out.open("w") as file:
        file.write("before\n")
        file.flush()
        env = environment(tmp_path, NATS_URL=server.url)
        command = (sys.executable, "-m", "penstock", *arguments, str(stdout))
        process = await asyncio.create_subprocess_exec(*command, stdout=file, env=env)
        assert await asyncio.wait_for(process.wait(), 60) == 0
    assert stdout.is_symlink()
    assert out.read_text() == "before\n" + target.read_text()
    assert json.loads(target.read_text())["sequence"] == 1


def test_there_is_nothing(capsys, server, unique):
    """A cluster without channels, and a channel that is not there, are told in a sentence."""
    with pytest.raises(SystemExit) as ended:
        main(["channels", "ls", "-s", server.url, "--cluster-id", unique("c")])
    assert ended.value.code == 0
    assert "No channels in the cluster" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["channels", "info", "nothing", "-s", server.url, "--cluster-id", unique("c")])
    assert ended.value.code == 1
    assert "penstock channels ls" in capsys.readouterr().err


async def test_migrate(stan, beside, unique, server):
    """migrate copies what is there, keeps sequence, time, reply and payload, goes on later, and compares the two.

    The source here is a gateway of ours; it speaks the same protocol as the old server.
    """
    await stan.serve()
    client = await stan.client("me")
    for number in range(2500):
        await client.publish_async("foo", b"%d" % number, reply="r" if number == 7 else "")
    await client.publish("bar", b"only")
    async with cluster_of(server.url, unique("target")) as target:
        flags = ("--from", server.url, "--from-cluster", stan.cluster, "--cluster-id", target.cluster)
        flags += ("--subject-prefix", f"{target.cluster}.", "--json")
        done = await beside("channels", "migrate", "foo", "bar", "empty", *flags)
        assert done.status == 0, done.stderr
        foo, bar, empty = json.loads(done.stdout)
        assert (foo["first"], foo["end"], foo["copied"], foo["verified"]) == (1, 2501, 2500, 2500)
        assert (bar["copied"], empty["copied"]) == (1, 0)
        for number in range(2500, 2600):
            await client.publish("foo", b"%d" % number)
        [foo] = json.loads((await beside("channels", "migrate", "foo", *flags)).stdout)
        assert (foo["end"], foo["copied"], foo["verified"]) == (2601, 100, 2600)
        before, after = Got(), Got()
        await client.subscribe("foo", before, start="First")
        await target.serve()
        moved = await target.client("me")
        await moved.subscribe("foo", after, start="First")
        await before.count(2600)
        await after.count(2600)
        for old, new in zip(before.messages, after.messages, strict=True):
            assert (old.sequence, old.timestamp, old.data, old.reply) == (
                new.sequence,
                new.timestamp,
                new.data,
                new.reply,
            )
        late = Got()
        await moved.subscribe("foo", late, since=time.time() - before.messages[2499].timestamp / 1e9 - 0.1)
        await late.count(100)
        assert late.sequences[0] == 2501, "a start by time goes by the time that was copied"
        await moved.publish("foo", b"new")
        await after.count(2601)
        assert after.sequences[-1] == 2601
        refused = await beside("channels", "migrate", "foo", *flags)
        assert refused.status == 2
        assert "not copied from foo" in refused.stderr


async def test_migrate_a_channel_that_lost_messages(stan, unique, server):
    """A channel that does not begin at 1, and one with a gap, keep their sequences."""
    gateway = await stan.serve()
    client = await stan.client("me")
    for _ in range(20):
        await client.publish("foo", b"x")
    connection = await stan.connection()
    await api_request(connection, f"STREAM.PURGE.{stan.stream('foo')}", {"seq": 6})
    for sequence in (10, 11, 12):
        await api_request(connection, f"STREAM.MSG.DELETE.{stan.stream('foo')}", {"seq": sequence})
    gateway.service.channels["foo"].recent.drop_before(1 << 62)
    async with cluster_of(server.url, unique("target")) as target:
        store = Store(connection, target.cluster, prefix=f"{target.cluster}.")
        ends = await RunningServer(client).ends("foo")
        assert ends == (6, 20)
        steps = []
        copied = await copy_channel(RunningServer(client), store, "foo", ends, steps.append)
        assert (copied.first, copied.end, copied.copied) == (6, 21, 12)
        assert await verify_channel(RunningServer(client), store, "foo", ends, steps.append) == 12
        await target.serve()
        reader = await target.client("reader")
        got = Got()
        await reader.subscribe("foo", got, start="First")
        await got.count(12)
        assert got.sequences == [6, 7, 8, 9, *range(13, 21)]
        await api_request(connection, f"STREAM.MSG.DELETE.{target.stream('foo')}", {"seq": 15})
        with pytest.raises(DataLossError, match="15 of foo is missing"):
            await verify_channel(RunningServer(client), store, "foo", ends, steps.append)


async def test_migrate_refuses_a_stream_in_use(stan, unique, server):
    """A stream that publishers wrote to already is not mixed with copies."""
    await stan.serve()
    client = await stan.client("me")
    await client.publish("foo", b"x")
    connection = await stan.connection()
    async with cluster_of(server.url, unique("target")) as target:
        store = Store(connection, target.cluster, prefix=f"{target.cluster}.")
        made = await store.create("foo", ChannelLimits())
        await store.append(made, new_messages(b"mine"))
        with pytest.raises(InputError, match="not copied from foo"):
            await copy_channel(RunningServer(client), store, "foo", (1, 1), lambda step: None)


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (("foo",), 2, "--from is missing"),
        (("--from", "nats://127.0.0.1:1"), 2, "No channel is named"),
        (("--from", "nats://127.0.0.1:1", "--from-monitor", "http://127.0.0.1:1"), 1, "monitoring page"),
        (("--from", "nats://127.0.0.1:1", "--from-monitor", "file:///etc/passwd"), 2, "is not an address"),
    ],
)
def test_migrate_wants_to_know_what_and_from_where(capsys, server, flags, status, words):
    """migrate says what is missing, and when the monitoring page does not answer."""
    with pytest.raises(SystemExit) as ended:
        main(["channels", "migrate", "-s", server.url, *flags])
    assert ended.value.code == status
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"INFO {}\r\n", "does not answer: INFO"),  # as the port of NATS itself
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nno JSON {", "does not answer with JSON"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"names":5}', "does not list channels"),
    ],
)
async def test_what_is_no_monitoring_page_is_told(said, words):
    """Whatever listens at the address of the monitoring pages, its answer is an error that says what is wrong."""

    async def answer(reader, writer):
        writer.write(said)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as there:
        host, port = there.sockets[0].getsockname()
        with pytest.raises((InputError, UnreachableError), match=words):
            await names_from_monitor(f"http://{host}:{port}")


async def test_all_channels_from_the_monitoring_page(stan, beside, unique, server):
    """With the monitoring address of the source every channel is copied."""
    gateway = await stan.serve(monitor="127.0.0.1:0")
    client = await stan.client("me")
    for channel in ("a", "b.c", "d"):
        await client.publish(channel, b"x")
    async with cluster_of(server.url, unique("target")) as target:
        done = await beside(
            *("channels", "migrate", "--json", "--from", server.url, "--from-cluster", stan.cluster),
            *("--from-monitor", gateway.monitor_url.removesuffix("/streaming"), "--cluster-id", target.cluster),
            *("--subject-prefix", f"{target.cluster}."),
        )
        assert [row["channel"] for row in json.loads(done.stdout)] == ["a", "b.c", "d"]
