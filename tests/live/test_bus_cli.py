"""`penstock bus`, run as its users run it: one process serves, another asks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.server import Server
from tests.live.command import Command

HANDLER = """
import asyncio
from penstock.bus import Response

async def answer(request, sender):
    if request.resource == "one":
        await sender.respond(Response(data=request.body))
    elif request.resource == "missing":
        await sender.respond(Response(404, "text/plain", b"no such thing"))
    elif request.resource == "where":
        await sender.respond(Response(data=str(request.partition).encode()))
    elif request.resource == "facts":
        async with sender.sections() as out:
            await out.object("facts", [request.method, request.wsid, dict(request.header), dict(request.query)])
    elif request.resource == "stuck":
        async with sender.sections() as out:
            out.array("a")
            await out.send(b"begun")
            await asyncio.Event().wait()
    else:
        async with sender.sections() as out:
            await out.object("secObj", {"total": 1}, path=["meta"])
            out.map("secMap", path=["classifier", "2"])
            await out.send({"fld1": "fld1Val"}, name="id1")
            await out.send(b"raw<&>", name="id2")
            await out.send(bytes([0, 255]) if request.resource == "fine" else b"last", name="id3")
            out.array("secArr")
            await out.send(42)
            if request.resource == "fail":
                raise ValueError("test error")

def plain(request, sender):
    pass
"""


@pytest.fixture
def penstock(server: Server, tmp_path: Path, monkeypatch) -> Command:
    (tmp_path / "bus_answers.py").write_text(HANDLER)
    (tmp_path / "bus_broken.py").write_text("import nothing_of_the_kind")
    monkeypatch.chdir(tmp_path)
    return Command(tmp_path, server.url)


def test_call_and_serve(penstock: Command, unique):
    """One process serves a queue with a function; calls show responses, sections as they come, and errors."""
    queue = unique("q")
    with penstock.running("bus", "serve", "bus_answers:answer", "--queue", queue, "--partitions", "3") as service:
        service.wait_for(f"Serving {queue}, partitions 0 to 2 of 3")

        done = penstock("bus", "call", queue, "one", "--body", '{"a": 1}')
        assert (done.returncode, done.stdout, done.stderr) == (0, '{"a": 1}\n', "200 application/json\n")
        done = penstock("bus", "call", f"{queue}:2", "where", "--json")
        assert json.loads(done.stdout) == {"status": 200, "content_type": "application/json", "data": 2}
        done = penstock("bus", "call", queue, "one", "--body", "-", stdin="from stdin")
        assert done.stdout == "from stdin\n"
        done = penstock("bus", "call", queue, "missing")
        assert (done.returncode, done.stdout, done.stderr) == (1, "no such thing\n", "404 text/plain\n")

        for window in ("0", "64"):
            done = penstock("bus", "call", queue, "fine", "--window", window, "--json")
            assert done.returncode == 0, done.stderr
            assert [json.loads(line) for line in done.stdout.splitlines()] == [
                {"kind": "object", "type": "secObj", "path": ["meta"], "element": {"total": 1}},
                {
                    "kind": "map",
                    "type": "secMap",
                    "path": ["classifier", "2"],
                    "name": "id1",
                    "element": {"fld1": "fld1Val"},
                },
                {"kind": "map", "type": "secMap", "path": ["classifier", "2"], "name": "id2", "element": "raw<&>"},
                {
                    "kind": "map",
                    "type": "secMap",
                    "path": ["classifier", "2"],
                    "name": "id3",
                    "element": {"base64": "AP8="},
                },
                {"kind": "array", "type": "secArr", "path": [], "element": 42},
            ]

        done = penstock("bus", "call", queue, "fail")
        assert done.returncode == 1
        assert done.stderr == f"penstock: The handler of {queue}0 failed: test error\n"
        assert 'object secObj at meta\n  {"total":1}\nmap secMap at classifier/2\n  id1: ' in done.stdout
        assert done.stdout.endswith("array secArr\n  42\n")

        facts = ("-X", "put", "--wsid", "7", "-H", "A:b", "-H", "A:c", "--query", "q=1")
        done = penstock("bus", "call", queue, "facts", "--json", *facts)
        assert json.loads(done.stdout)["element"] == ["PUT", 7, {"A": ["b", "c"]}, {"q": ["1"]}]

        assert service.interrupt() == 0
        assert f"GET {queue}:2 where" in service.rest()


def test_the_caller_presses_ctrl_c(penstock: Command, unique):
    """Ctrl-C ends a call that waits; a service with a handler that is stuck ends within its limit."""
    queue = unique("q")
    serve = ("bus", "serve", "bus_answers:answer", "--queue", queue, "--stop-timeout", "200ms", "--json")
    with penstock.running(*serve) as service:
        service.wait_for("Serving")
        with penstock.running("bus", "call", queue, "stuck", "--timeout", "30s") as call:
            call.wait_for("begun")
            assert call.interrupt() == 130
        with penstock.running("bus", "call", queue, "stuck", "--timeout", "30s") as call:
            call.wait_for("begun")
            assert service.interrupt() == 0
            assert any("the service was stopped" in line for line in call.rest())
        assert any('"resource": "stuck"' in line for line in service.rest())


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("call", "nobody", "x"), 1, "Nobody serves nobody0"),
        (("call", "q:x", "x"), 2, "'x' is not a partition"),
        (("call", "a b", "x"), 2, "'a b' cannot be the name of a queue"),
        (("call", "q", "x", "-H", "novalue"), 2, "KEY:VALUE"),
        (("serve", "bus_nowhere:f", "--queue", "q"), 2, "There is no module bus_nowhere"),
        (("serve", "bus_broken:f", "--queue", "q"), 2, "imports nothing_of_the_kind, which is not installed"),
        (("serve", "bus_answers:plain", "--queue", "q"), 2, "plain is not a coroutine function"),
        (("serve", "bus_answers:answer", "--queue", "a b"), 2, "cannot be the name"),
        (("serve", "bus_answers:answer", "--queue", "q", "--parts", "2", "--part", "3"), 2, "part is 3"),
    ],
)
def test_what_goes_wrong(penstock: Command, arguments, status: int, words: str):
    """Every failure is one sentence, and a status that says whose fault it is."""
    done = penstock("bus", *arguments)
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith("penstock: ")
    assert "Traceback" not in done.stderr
    assert words in done.stderr
