"""The console as a command: a server that goes and comes, Ctrl-C, bad input, what is not installed."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.console import Console, Settings
from penstock.console.pages import PAGES
from penstock.errors import InputError
from penstock.jetstream import assets
from penstock.model import Stream
from penstock.options import ConnectionOptions
from penstock.server import Server
from tests.live.browser import Browser, address, fill
from tests.live.command import Command
from tests.live.inprocess import invoke

# -- NATS that goes and comes ------------------------------------------------------------------------------------------


def test_the_console_outlives_its_server(tmp_path: Path, eventually: Callable[..., Any]):
    """With NATS gone the pages say so with 503; once it is back they are as before. A frozen NATS is a timeout."""
    with Server(sync="2m") as own:
        fill(own.url, lambda client: assets.add_stream(client, Stream(name="KEPT", subjects=["kept"])))
        with Command(tmp_path, own.url).running("console", "--timeout", "1s") as child:
            browser = Browser(address(child))
            assert browser.get("/streams/KEPT").status == 200
            own.nodes[0].kill()
            eventually(lambda: browser.get("/streams/KEPT").status == 503)
            page = browser.get("/overview")
            assert page.status == 503
            assert "NATS does not answer" in page.text
            assert 'data-refresh="3.0"' in page.text, "the page tries again by itself"
            assert own.token not in page.text
            assert browser.get("/overview.json").json()["error"]["kind"] in ("DisconnectedError", "UnreachableError")
            assert browser.get("/about").status == 200, "what needs no NATS is there"
            own.nodes[0].start()
            eventually(lambda: browser.get("/streams/KEPT").status == 200)
            own.nodes[0].pause()
            frozen = browser.get("/overview.json")
            assert (frozen.status, frozen.json()["error"]["kind"]) == (503, "DeadlineError")
            own.nodes[0].resume()
            eventually(lambda: browser.get("/overview").status == 200)
            assert child.interrupt() == 0
            assert len(child.rest()) < 12, child.lines  # the log is no list of attempts


async def test_the_end_does_not_wait_for_nats(caplog: pytest.LogCaptureFixture):
    """A page that waits for a frozen server is answered when the console ends, and nothing is logged of it."""
    with Server(sync="2m") as own:
        console = await Console(ConnectionOptions(own.url), Settings(timeout=50.0, page_timeout=100.0)).start()
        try:
            browser = Browser(console.url)
            assert await console.problem() is None
            own.nodes[0].pause()
            waiting = asyncio.create_task(asyncio.to_thread(browser.get, "/overview.json"))
            while not console._server.server_state.tasks:
                await asyncio.sleep(0.01)
                assert not waiting.done()
        finally:
            await console.stop()
            own.nodes[0].resume()
        assert "is ending" in (await waiting).json()["error"]["what"]
    assert not caplog.records


def test_it_starts_without_a_server_and_finds_it_later(tmp_path: Path, eventually: Callable[..., Any]):
    """A console whose NATS is not there yet starts, warns, says so on its pages, and recovers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Command(tmp_path, f"nats://127.0.0.1:{port}").running("console") as child:
        browser = Browser(address(child))
        child.wait_for("NATS does not answer yet")
        assert browser.get("/streams").status == 503
        with Server(port=port, auth=False, sync="2m"):
            eventually(lambda: browser.get("/streams").status == 200)
            assert child.interrupt(signal.SIGTERM) == 0


def test_a_server_without_jetstream_is_no_error(tmp_path: Path):
    """Where JetStream is not on, the overview still shows the server, and says that there are no streams."""
    from penstock.server import find_binary

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    plain = subprocess.Popen(
        [find_binary().path, "-a", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with Command(tmp_path, f"nats://127.0.0.1:{port}").running("console") as child:
            browser = Browser(address(child))
            child.wait_for("It shows")
            page, data = browser.both("/overview")
            assert data["jetstream"] is None
            assert "JetStream is not on" in page
            assert browser.get("/streams").status == 503
            assert child.interrupt() == 0
    finally:
        plain.terminate()
        plain.wait(20)


# -- the command -------------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_it_while_a_page_is_open(server: Server, tmp_path: Path):
    """A browser that keeps its connection open does not hold the end up, and nothing is said but the address."""
    with Command(tmp_path, server.url).running("console") as child:
        browser = Browser(address(child))
        child.wait_for("It shows")
        with socket.create_connection((browser.host, browser.port), timeout=20) as idle:
            idle.sendall(b"GET /about HTTP/1.1\r\nHost: 127.0.0.1\r\n")  # and never the end of it
            assert child.interrupt() == 0
        assert len(child.rest()) == 2, child.lines


def test_bad_input_is_said_before_anything_runs(server: Server, tmp_path: Path):
    """A port that is taken, an address that is not ours, a weak token, no pipeline: status 2 and a sentence."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for arguments, said in (
            (("--port", str(taken.getsockname()[1])), "cannot listen"),
            (("--host", "192.0.2.1"), "cannot listen"),
            (("--host", "a b"), "neither an address nor a name"),
            (("--name", "http://x"), "a host name"),
            (("--pipeline", str(tmp_path)), "no spark-pipeline.yaml"),
        ):
            done = invoke(server.url, "console", *arguments)
            assert (done.status, said in done.stderr) == (2, True), done.stderr
    weak = Command(tmp_path, server.url)("console", PENSTOCK_CONSOLE_TOKEN="short-one")
    assert (weak.returncode, "too short" in weak.stderr, "short-one" in weak.stderr) == (2, True, False)


def test_a_token_of_ones_own_is_not_printed(server: Server, tmp_path: Path):
    """The token of PENSTOCK_CONSOLE_TOKEN lets in, and stays out of what the command prints."""
    own = "my-own-console-token-123"
    with Command(tmp_path, server.url).running("console", PENSTOCK_CONSOLE_TOKEN=own) as child:
        browser = Browser(address(child))
        browser.token = own
        assert browser.get("/about").status == 200
        assert child.interrupt() == 0
        assert own not in "\n".join(child.rest())


def test_a_missing_extra_is_one_sentence():
    """Without starlette the command says what to install, and every other command is as before."""
    code = "import sys; sys.modules['starlette'] = None; from penstock.cli import main; main(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, "console"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "penstock: The console needs starlette, which is not installed. Run: pip install 'penstock[console]'."
    )
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "console" in done.stdout) == (0, True)


def test_it_needs_no_spark(server: Server):
    """Every page of the menu is there in an installation that has the console and nothing of Spark."""
    code = """
import asyncio, sys
for name in ("pyspark", "pyarrow", "pandas", "yaml", "prometheus_client", "aiohttp"):
    sys.modules[name] = None
from tests.live.browser import Browser
from penstock.console import Console
from penstock.console.pages import PAGES
from penstock.options import ConnectionOptions

async def main():
    async with Console(ConnectionOptions(sys.argv[1])) as console:
        browser = Browser(console.url)
        for page in PAGES:
            if page.menu:
                print((await asyncio.to_thread(browser.get, page.path)).status)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code, server.url], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["200"] * sum(page.menu for page in PAGES), done.stderr


def test_help_loads_nothing_of_the_console():
    """`penstock --help` answers without the web framework."""
    code = (
        "import sys\nfrom penstock.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'starlette', 'uvicorn', 'jinja2', 'nats'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


async def test_from_python(server: Server):
    """`async with Console(options)` serves from the running loop; a code opens it once; its port is free afterwards."""
    async with Console(ConnectionOptions(server.url)) as console:
        browser = Browser(console.url)
        assert await console.problem() is None
        once = console.url_once().removeprefix(console.address)
        assert (await asyncio.to_thread(browser.get, once, known=False)).status == 303
        assert (await asyncio.to_thread(browser.get, once, known=False)).status == 401
        with pytest.raises(InputError, match="cannot listen"):
            await Console(ConnectionOptions(server.url), Settings(port=browser.port)).start()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind((browser.host, browser.port))
    assert penstock.console.Settings is Settings


async def test_whoever_asks_for_nothing_is_hung_up_on(server: Server):
    """A connection that sends no request, or half of its second one, is closed; others are served meanwhile."""

    def stay(browser: Browser, first: bytes, then: bytes) -> bytes:
        said = b""
        with socket.create_connection((browser.host, browser.port), timeout=30) as link:
            link.sendall(first + then)
            while piece := link.recv(65536):
                said += piece
        return said

    async with Console(ConnectionOptions(server.url), Settings(idle=0.3)) as console:
        browser = Browser(console.url)
        whole = f"GET /about HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {browser.token}\r\n\r\n".encode()
        answers = await asyncio.gather(
            asyncio.to_thread(stay, browser, b"", b""),
            asyncio.to_thread(stay, browser, b"", whole[:20]),
            asyncio.to_thread(stay, browser, whole, whole[:20]),
            asyncio.to_thread(browser.get, "/about"),
        )
        assert answers[0] == b""
        assert answers[1] == b""
        assert answers[2].startswith(b"HTTP/1.1 200")
        assert answers[3].status == 200
