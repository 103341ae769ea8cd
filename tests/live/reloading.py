"""Changes the configuration of a running server."""

from __future__ import annotations

import os
import signal
import time

from penstock.server import Server


def reload(server: Server, before: str, after: str) -> None:
    """Put some text of the configuration for another, and wait until the server says that it has read it."""
    node = server.nodes[0]
    assert node.pid is not None
    told = node.log.read_text().count("Reloaded")
    text = node._config.read_text()
    assert before in text
    node._config.write_text(text.replace(before, after))
    os.kill(node.pid, signal.SIGHUP)
    deadline = time.monotonic() + 20
    while node.log.read_text().count("Reloaded") == told:
        assert time.monotonic() < deadline, node.log.read_text()[-2000:]
        time.sleep(0.01)
