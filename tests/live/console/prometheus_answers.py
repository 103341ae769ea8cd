"""What a real Prometheus answered (Debian's 2.42, asked by this console), served again for the time of the test.

`tests/golden/prometheus.json` has the answers to the questions about one stream over seven days: in the first four days
another stream had its name, and a second NATS, told by the job `other`, has one of the same name all the time.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "prometheus.json").read_text())
_LINES = {
    "penstock_stream_created_timestamp_seconds{stream_name": "made",
    "jetstream_stream_last_seq": "rate",
    "jetstream_stream_total_messages": "messages",
    "jetstream_stream_total_bytes": "bytes",
}


class Answers:
    """Answers questions about a stream that was made at some moment; `asked` are those that came."""

    def __init__(self, created: float) -> None:
        self.created = created
        self.asked: list[dict[str, str]] = []
        self.logins: list[str | None] = []
        self.instead: tuple[int, bytes] | None = None
        """What is answered to everything, if it is not what Prometheus said."""
        self.stalls = threading.Event()
        """Set if it is to send a byte now and then, and never the whole."""
        self.over = threading.Event()
        self.url = ""

    def to(self, question: dict[str, str]) -> tuple[int, bytes]:
        self.asked.append(question)
        if self.instead is not None:
            return self.instead
        query = question["query"]
        wanted = (
            "made"
            if query.startswith("max by (job, instance)")
            else next(name for figure, name in _LINES.items() if figure in query and name != "made")
        )
        answer = copy.deepcopy(GOLDEN["answers"][wanted])
        shift = time.time() - GOLDEN["end"]
        for line in answer["data"]["result"]:
            line["values"] = [[round(when + shift, 3), self._made(value)] for when, value in line["values"]]
        return 200, json.dumps(answer).encode()

    def _made(self, value: str) -> str:
        return repr(self.created) if float(value) == GOLDEN["created"] else value


@contextmanager
def answering(created: float) -> Iterator[Answers]:
    """Listen on a free port of this machine."""
    answers = Answers(created)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            answers.logins.append(self.headers.get("authorization"))
            if answers.stalls.is_set():
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                while not answers.over.wait(0.1):
                    self.wfile.write(b"X: y\r\n")
                return
            question = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            status, body = answers.to(question) if parts.path == "/api/v1/query_range" else (404, b"404 page not found")
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    class Listener(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Whoever asks may hang up."""

    with Listener(("127.0.0.1", 0), Handler) as server:
        answers.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield answers
        finally:
            answers.over.set()
            server.shutdown()
            thread.join()
