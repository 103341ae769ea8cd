"""Acting on buckets from the console, on a real server: whole buckets, keys and objects, each only as it was seen."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlencode

import pytest

from penstock.buckets import KeyValue, ObjectStore
from penstock.errors import NotFoundError
from penstock.jetstream import assets
from penstock.server import Server
from tests.live.acting import Actor, commands, filled
from tests.live.command import environment
from tests.live.visitor import visiting

Name = Callable[..., str]


@pytest.fixture
async def actor(server: Server, tmp_path: Path) -> AsyncIterator[Actor]:
    """One who may act on the shared server."""
    audit = tmp_path / "acts.log"
    async with visiting(server.url, audit=audit) as visitor:
        yield Actor(visitor, audit)


def run(shown: list[str], server: Server, folder: Path) -> None:
    """Paste commands into a shell."""
    shell = f'penstock() {{ {shlex.quote(sys.executable)} -m penstock "$@"; }}\n' + "\n".join(shown)
    env = environment(folder, NATS_URL=server.url)
    done = subprocess.run(
        ["bash", "-c", shell], cwd=folder, env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, (shown, done.stderr)


async def test_a_bucket_of_keys_is_added_edited_and_deleted(actor: Actor, server: Server, unique: Name, tmp_path: Path):
    """Each setting is what the server has then; a form over an older bucket is refused; the command does the same."""
    client, bucket = await actor.visitor.nats(), unique("b")
    values = {"history": "5", "ttl": "1h", "max_bytes": "1MiB", "max_value_size": "1KiB", "description": "-x $(true)"}
    values |= {"marker_ttl": "30m", "compression": "yes"}
    looked = await actor.look("bucket-add", {}, name=bucket, **values)
    made = await actor.post("bucket-add", [*filled(looked.text), ("step", "do")])
    assert made.status == 200, made.text
    status = await (await KeyValue.open(client, bucket)).status()
    config = status.stream.config
    assert (status.history, status.ttl, config.max_bytes, config.max_msg_size) == (5, 3600.0, 2**20, 2**10)
    assert (status.description, status.marker_ttl, status.is_compressed) == ("-x $(true)", 1800.0, True)
    assert (await actor.look("bucket-add", {}, name=bucket)).status == 400, "there is one already"
    assert (await actor.look("bucket-add", {}, name="a.b")).status == 400
    assert (await actor.look("bucket-add", {}, name=unique("b"), history="65")).status == 400
    target = {"bucket": bucket}
    late = await actor.look("bucket-edit", target, history="9")
    page = await actor.look("bucket-edit", target, history="7", ttl="", max_bytes="", compression="")
    assert "Values of a key that are kept: 5 → 7" in page.text
    run(commands(page.text), server, tmp_path)
    status = await (await KeyValue.open(client, bucket)).status()
    now = (status.history, status.ttl, status.stream.config.max_bytes, status.is_compressed, status.marker_ttl)
    assert now == (7, 0.0, -1, False, 1800.0)
    refused = await actor.post("bucket-edit", [*filled(late.text), ("typed", bucket), ("step", "do")])
    assert refused.status == 409, "it is not what it was"
    assert (await actor.do("bucket-edit", target, bucket, history="3")).status == 200
    assert (await (await KeyValue.open(client, bucket)).status()).history == 3
    old = filled((await actor.look("bucket-delete", target)).text)
    await KeyValue.delete_bucket(client, bucket)
    await KeyValue.create_bucket(client, bucket)
    assert (await actor.post("bucket-delete", [*old, ("typed", bucket), ("step", "do")])).status == 409
    assert "was deleted" in (await actor.do("bucket-delete", target, bucket)).text
    with pytest.raises(NotFoundError):
        await KeyValue.open(client, bucket)
    assert [line["act"] for line in actor.lines()] == ["bucket-add"] * 2 + ["bucket-edit"] * 2 + ["bucket-delete"] * 2


async def test_a_key_is_purged_with_its_history_also_if_it_was_deleted(actor: Actor, unique: Name):
    """Nothing of the key is left but a marker; one that was written meanwhile stays as it is."""
    client, bucket = await actor.visitor.nats(), unique("b")
    kv = await KeyValue.create_bucket(client, bucket, history=5)
    for value in (b"one", b"two"):
        await kv.put("a", value)
    key = {"bucket": bucket, "key": "a"}
    late = filled((await actor.look("key-purge", key)).text)
    await kv.delete("a")
    assert (await actor.post("key-purge", [*late, ("typed", "a"), ("step", "do")])).status == 409
    assert len(await kv.history("a")) == 3
    done = await actor.do("key-purge", key, "a")
    assert "was purged" in done.text, done.text
    assert [entry.operation for entry in await kv.history("a")] == ["PURGE"]
    assert (await actor.form("key-purge", bucket=bucket, key="nothing")).status == 404


@pytest.mark.parametrize("name", ["plan.pdf", "-f $(touch p)/\"<b>'", " two\tlines "])
async def test_an_object_is_deleted_only_as_it_was_seen(actor: Actor, unique: Name, name: str):
    """Any object goes, if nobody has put another one; if nobody can type its name, that of the bucket is asked for."""
    client, bucket = await actor.visitor.nats(), unique("o")
    store = await ObjectStore.create_bucket(client, bucket)
    await store.put(name, b"one")
    target = {"bucket": bucket, "object": name}
    typed = name if name.isprintable() else bucket
    page = await actor.visitor.get(
        f"/buckets/objects/{bucket}/object?" + urlencode({"name": name}), known=False, **actor.headers
    )
    assert "/act/object-delete" in page.text
    late = filled((await actor.look("object-delete", target)).text)
    await store.put(name, b"another one")
    assert (await actor.post("object-delete", [*late, ("typed", typed), ("step", "do")])).status == 409
    assert (await store.info(name)).size == 11
    done = await actor.do("object-delete", target, typed)
    assert "was deleted" in done.text, done.text
    assert "<b>" not in done.text
    with pytest.raises(NotFoundError):
        await store.info(name)
    assert (await assets.stream_info(client, store.stream)).messages == 1, "its chunks are gone, too"


async def test_a_bucket_of_objects_is_added_edited_sealed_and_deleted(
    actor: Actor, server: Server, unique: Name, tmp_path: Path
):
    """A sealed bucket lets nobody change anything, and its pages offer nothing but to delete it whole."""
    client, bucket = await actor.visitor.nats(), unique("o")
    target = {"bucket": bucket}
    page = await actor.look("objects-add", {}, name=bucket, ttl="2h", storage="memory")
    run(commands(page.text), server, tmp_path)
    status = await (await ObjectStore.open(client, bucket)).status()
    assert (status.ttl, status.storage) == (7200.0, "memory")
    done = await actor.do("objects-edit", target, bucket, description="plans", ttl="")
    assert done.status == 200, done.text
    store = await ObjectStore.open(client, bucket)
    status = await store.status()
    assert (status.description, status.ttl) == ("plans", 0.0)
    await store.put("a", b"x")
    sealed = await actor.do("objects-seal", target, bucket)
    assert "is sealed" in sealed.text, sealed.text
    assert (await store.status()).is_sealed
    assert (await actor.form("objects-seal", **target)).status == 400
    assert (await actor.form("object-delete", bucket=bucket, object="a")).status == 400
    shown = (await actor.visitor.get(f"/buckets/objects/{bucket}", known=False, **actor.headers)).text
    assert "/act/objects-delete" in shown
    assert "/act/objects-edit" not in shown
    assert "was deleted" in (await actor.do("objects-delete", target, bucket)).text
    made = await actor.do("objects-add", {}, name=bucket, compression="yes")
    assert made.status == 200, made.text
    assert (await (await ObjectStore.open(client, bucket)).status()).is_compressed
    assert {line["outcome"] for line in actor.lines()} == {"asked", "done"}
