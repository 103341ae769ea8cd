"""`penstock object`: buckets and objects from the command line, and no file that nobody asked for."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.buckets import ObjectInfo, ObjectStore, object_orphans
from penstock.cli.object import file_of
from penstock.errors import InputError
from penstock.server import Server
from tests.live.inprocess import Peer, Talk, runner

DATA = os.urandom(300_000)


@pytest.fixture
def run(server: Server) -> Callable[..., Any]:
    return runner(server.url, "object")


@pytest.fixture
def bucket(run: Callable[..., Any], unique: Callable[..., str]) -> str:
    """A bucket of its own."""
    name = unique("B")
    run("add", name, "--storage", "memory")
    return name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_buckets(run: Callable[..., Any], unique: Callable[..., str]) -> None:
    """A bucket is made as the flags say, shown, listed, changed, sealed and deleted; what loses something asks."""
    name = unique("B")
    flags = ("--ttl", "1h", "--replicas", "1", "--max-bucket-size", "10MB", "--description", "words", "--storage", "m")
    made = run("add", name, *flags, "--metadata", "k=v", "--no-compress", "--json")
    config = json.loads(made.stdout)["config"]
    assert (config["name"], config["max_age"], config["max_bytes"]) == (f"OBJ_{name}", 3_600_000_000_000, 10 * 1024**2)
    assert (config["storage"], config["description"], config["metadata"]["k"]) == ("memory", "words", "v")
    run("add", name, *flags, "--metadata", "k=v")
    assert "another way" in run("add", name, "--description", "other", status=1).stderr
    shown = run("info", name).stdout
    assert "TTL: 1h0m0s" in shown
    assert "Maximum Bucket Size: 10.0 MiB" in shown
    assert name in run("ls").stdout
    assert name in run("ls", "--names").stdout.splitlines()
    assert name in json.loads(run("ls", "--names", "--json").stdout)
    assert [item["bucket"] for item in json.loads(run("ls", "--json").stdout) if item["bucket"] == name] == [name]
    assert json.loads(run("edit", name, "--ttl", "1m", "--json").stdout)["config"]["max_age"] == 60_000_000_000
    run("put", name, "--name", "x", stdin="old")
    assert "Not confirmed" in run("edit", name, "--ttl", "1ms", status=2).stderr
    assert "Description: new" in run("edit", name, "--description", "new", "--ttl", "0").stdout
    assert "Nothing is to be changed" in run("edit", name, status=2).stderr
    assert "Not confirmed" in run("seal", name, status=2).stderr
    assert "Sealed: true" in run("seal", name, "--force").stdout
    assert "already" in run("seal", name).stdout
    assert "Not confirmed" in run("del", name, status=2).stderr
    run("rm", name, "-f")
    assert f"no object bucket {name}" in run("info", name, status=1).stderr


def test_a_file_goes_there_and_back(run: Callable[..., Any], bucket: str, folder: Path) -> None:
    """What is put is got; a file and an object that are there are replaced only if somebody agrees."""
    (folder / "f.bin").write_bytes(DATA)
    shown = run("put", bucket, "f.bin", "-H", "A:1", "--description", "words", "--metadata", "k=v").stdout
    assert hashlib.sha256(DATA).hexdigest() in shown
    assert "Header: A: 1" in shown
    assert "Not confirmed" in run("put", bucket, "f.bin", status=2).stderr
    found = json.loads(run("put", bucket, "f.bin", "--json", "--chunk-size", "1000", stdin="y\n").stdout)
    assert (found["name"], found["size"], found["chunks"]) == ("f.bin", len(DATA), 300)
    assert json.loads(run("info", bucket, "f.bin", "--json").stdout) | {"mtime": ""} == found | {"mtime": ""}
    assert "Not confirmed" in run("get", bucket, "f.bin", status=2).stderr
    assert "Wrote: 293.0 KiB" in run("get", bucket, "f.bin", "-O", "g.bin", "--no-progress").stdout
    (folder / "f.bin").write_bytes(b"old")
    run("get", bucket, "f.bin", "--force")
    told = json.loads(run("get", bucket, "f.bin", "-O", "h.bin", "--json").stdout)
    assert (told["file"], told["size"]) == (str(folder / "h.bin"), len(DATA))
    assert sorted(path.name for path in folder.iterdir()) == ["f.bin", "g.bin", "h.bin"]
    assert {path.read_bytes() for path in folder.iterdir()} == {DATA}
    assert run("get", bucket, "none", status=1).stderr.startswith(f"penstock: Bucket {bucket} has no object 'none'.")
    assert not (folder / "none").exists()


def test_standard_input_and_output(run: Callable[..., Any], bucket: str, folder: Path) -> None:
    """An object comes from standard input under a name, and goes to standard output as it is."""
    run("put", bucket, "--name", "x", stdin="hello")
    assert run("get", bucket, "x", "-O", "-").stdout == "hello"
    assert "standard input is the new object" in run("put", bucket, "--name", "x", stdin="other", status=2).stderr
    run("put", bucket, "--name", "x", "-f", stdin="other")
    assert run("get", bucket, "x", "-O", "-").stdout == "other"
    assert list(folder.iterdir()) == []


def test_names_that_others_chose_make_no_paths(run: Callable[..., Any], bucket: str, folder: Path, peer: Peer) -> None:
    """Only the last part of a name becomes a file, here; what makes no plain file name must be given one."""
    store = ObjectStore(peer.client, bucket)
    for name in ("../../up", "/etc/absolute", "a/b/..", "..", ".hidden", "a/", "-", "a\nb", "a\\b", "\x1b[31mred"):
        peer.do(store.put(name, b"x"))
    inner = folder / "inner"
    inner.mkdir()
    os.chdir(inner)
    run("get", bucket, "../../up")
    run("get", bucket, "/etc/absolute")
    run("get", bucket, "a/")
    for name in ("a/b/..", "..", ".hidden", "-", "a\nb", "a\\b", "\x1b[31mred"):
        assert "cannot be used as the name of a file" in run("get", bucket, "--", name, status=2).stderr
        run("get", bucket, "-O", "named", "-f", "--", name)
    assert sorted(path.name for path in inner.iterdir()) == ["a", "absolute", "named", "up"]
    assert [path.name for path in folder.iterdir()] == ["inner"]
    assert "\x1b" not in run("ls", bucket).stdout + run("ls", bucket, "-n").stdout
    for name in ("", "a/b/.."):
        with pytest.raises(InputError):
            file_of(name)


def test_what_is_torn_leaves_no_file(run: Callable[..., Any], bucket: str, folder: Path, peer: Peer) -> None:
    """A file appears only when all of its object was right."""
    store = ObjectStore(peer.client, bucket)
    put = peer.do(store.put("x", DATA, chunk_size=1000))
    peer.do(peer.client.jetstream().delete_msg(store.stream, 100))
    assert "299 of its 300 chunks" in run("get", bucket, "x", status=1).stderr
    assert list(folder.iterdir()) == []
    assert put.chunks == 300


def test_listing_renaming_linking_and_deleting(
    run: Callable[..., Any], bucket: str, unique: Callable[..., str]
) -> None:
    """The other verbs do what they say, and say what they did."""
    run("put", bucket, "--name", "b", stdin="1")
    run("put", bucket, "--name", "a", stdin="22")
    assert run("ls", bucket, "--names").stdout.splitlines() == ["a", "b"]
    assert [item["size"] for item in json.loads(run("ls", bucket, "--json").stdout)] == [2, 1]
    assert "Bucket Contents" in run("ls", bucket).stdout
    assert "Renamed" in run("rename", bucket, "a", "c").stdout
    run("link", bucket, "l", "c")
    assert run("get", bucket, "l", "-O", "-").stdout == "22"
    assert f"Link to: {bucket} > c" in run("info", bucket, "l").stdout
    run("link", bucket, "all", "--to", bucket)
    assert "is a link to the whole bucket" in run("get", bucket, "all", status=2).stderr
    assert "Not confirmed" in run("del", bucket, "c", status=2).stderr
    assert "Removed" in run("rm", bucket, "c", "-f").stdout
    assert run("ls", bucket, "-n").stdout.splitlines() == ["all", "b", "l"]
    assert "no object 'c'" in run("del", bucket, "c", "-f", status=1).stderr
    other = unique("B")
    assert f"no object bucket {other}" in run("ls", other, status=1).stderr


def test_watching_until_ctrl_c(run: Callable[..., Any], bucket: str, peer: Peer) -> None:
    """First what is there, then each change, a line each that goes out at once."""
    store = ObjectStore(peer.client, bucket)
    peer.do(store.put("a", DATA))

    def beside(talk: Talk) -> None:
        talk.wait_for(f"PUT {bucket} > a: 293.0 KiB in 3 chunks")
        peer.do(store.delete("a"))
        talk.wait_for(f"DEL {bucket} > a")
        talk.interrupt()

    run("watch", bucket, beside=beside)

    def beside_json(talk: Talk) -> None:
        talk.wait_for('"deleted": true')
        talk.interrupt()

    found = json.loads(run("watch", bucket, "--json", beside=beside_json).stdout)
    assert ObjectInfo.from_json(found).name == "a"


def test_choosing_a_bucket(run: Callable[..., Any], bucket: str) -> None:
    """Where nobody can be asked, the error names the buckets that there are."""
    assert "Which object bucket?" in run("info", status=2).stderr


def test_chunks_that_no_object_has(
    run: Callable[..., Any], bucket: str, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compact` shows what it would remove, asks, and removes it; a put that may be under way is left alone."""
    store = ObjectStore(peer.client, bucket)
    peer.do(store.put("x", DATA))
    monkeypatch.setattr(object_orphans, "YOUNGEST", 0.0)
    compact = partial(run, "compact", bucket, "--older")
    assert compact("0s", "--dry-run").stdout == "Every chunk belongs to an object\n"
    assert compact("0s").stderr == "Removed 0 chunks, 0 B\n"
    peer.publish(f"$O.{bucket}.C.NOBODY", *[bytes(512)] * 3)
    shown = json.loads(compact("0s", "--dry-run", "--json").stdout)["orphans"]
    assert [(item["nuid"], item["chunks"], item["size"]) for item in shown] == [("NOBODY", 3, 1536)]
    assert "NOBODY" in compact("0s", "--dry-run").stdout
    assert compact("1h", "--force").stderr == "Removed 0 chunks, 0 B\n"
    assert "Not confirmed" in compact("0s", status=2).stderr
    assert compact("0s", "--force").stderr == "Removed 3 chunks, 1.5 KiB\n"
    assert peer.do(store.fetch("x")) == DATA
