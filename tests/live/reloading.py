"""Changes the configuration of a running server."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request

from penstock.server import Server


def reload(server: Server, before: str, after: str) -> None:
    """Put some text of the configuration for another, and wait until the server says that it has read it.

    It says so on its monitoring page: its log may be on a disk that is full.
    """
    node = server.nodes[0]
    assert node.pid is not None
    text = node._config.read_text()
    assert before in text
    read = loaded(node.monitor_url)
    node._config.write_text(text.replace(before, after))
    os.kill(node.pid, signal.SIGHUP)
    deadline = time.monotonic() + 20
    while loaded(node.monitor_url) == read:
        assert time.monotonic() < deadline, node.log.read_text()[-2000:]
        time.sleep(0.01)


def loaded(url: str) -> str:
    """Ask a server when it read its configuration."""
    with urllib.request.urlopen(f"{url}/varz", timeout=20) as answer:
        return str(json.load(answer)["config_load_time"])
