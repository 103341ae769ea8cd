"""One nats-server process of a `Server`: its addresses, its files, and the faults that tests inflict."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from penstock.durations import parse_duration
from penstock.errors import ServerError, StartError, StoreInUseError
from penstock.json_text import load_json
from penstock.server.binary import Binary
from penstock.server.guard_process import GRACE, GuardProcess
from penstock.server.neighbours import server_using
from penstock.server.options import Routes, ServerOptions, statements, take_blocks
from penstock.server.recovery import Held, Loss, losses, record_of
from penstock.server.room import room_for

__all__ = ["Deployment", "ForeignNode", "Node", "is_port_clash"]

log = logging.getLogger("penstock.server")

_POLL = 0.01
_HTTP_TIMEOUT = 2.0
_LOG_LINES = 20
_DOWN = ("exited", "none")


@dataclass(repr=False)
class Deployment:
    """What all nodes of one server share: what was asked for, the program, the guard, the folder, the secrets."""

    options: ServerOptions
    binary: Binary
    guard: GuardProcess
    root: Path
    token: str | None
    monitor_path: str
    """What the path of each monitoring page begins with. Nobody can guess it: those pages ask for no other login."""
    routes: Routes | None
    nodes: list[Node] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)

    def scrub(self, text: str) -> str:
        """Take the secrets of this server out of a text."""
        for secret in (self.token, self.monitor_path.strip("/"), self.routes.password if self.routes else None):
            if secret:
                text = text.replace(secret, "***")
        return text


class Node:
    """One nats-server of a `Server`. Stopping and starting it keeps its ports, its name and its store."""

    def __init__(self, deployment: Deployment, index: int) -> None:
        run, options = deployment.guard.run, deployment.options
        self.name = f"n{index + 1}"
        self._deployment = deployment
        self._index = index
        self._port = options.port + index if options.port else 0
        self._monitor_port = 0
        self._config = run / f"{self.name}.conf"
        self._output = run / f"{self.name}.out"
        self._ports_dir = run / f"{self.name}.ports"
        self.store = deployment.root if options.nodes == 1 else deployment.root / self.name
        """The folder of this node's streams."""
        self.log = (run if options.root is None else deployment.root) / f"{self.name}.log"
        """The log file. It goes with a temporary store, and stays with one that was named."""
        self._log_start = 0
        self._record = None if options.root is None else record_of(options.root, self.name)
        self._held = Held()
        self._neighbours: set[int] = set()

    # -- reading -----------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The host and port that clients connect to."""
        return f"{self._deployment.options.reach}:{self._port}"

    @property
    def url(self) -> str:
        """The URL of this node; it carries the token."""
        login = f"{self._deployment.token}@" if self._deployment.token else ""
        return f"{'tls' if self._deployment.options.secure else 'nats'}://{login}{self.address}"

    @property
    def monitor_url(self) -> str:
        """The URL of the monitoring endpoints (`/healthz`, `/varz`, `/jsz`), on loopback; whoever has it is let in."""
        return f"http://127.0.0.1:{self._monitor_port}{self._deployment.monitor_path}"

    @property
    def pid(self) -> int | None:
        """The process id, None while the node is down."""
        facts = self._facts()
        return None if facts["state"] in _DOWN else facts["pid"]

    @property
    def alive(self) -> bool:
        """Whether the process is there; a paused one is."""
        return self.pid is not None

    @property
    def paused(self) -> bool:
        """Whether the process is paused."""
        return bool(self._facts()["state"] == "paused")

    def __repr__(self) -> str:
        return f"<Node {self.name} at {self.address}, {self._facts()['state']}>"

    def _facts(self) -> dict[str, Any]:
        if self._deployment.guard.open:
            with suppress(ServerError):  # the guard ended between the two lines, and its nodes with it
                facts = self._deployment.guard.state(self.name)
                self._tell_neighbour(facts.get("neighbour"))
                return facts
        return {"pid": None, "state": "exited", "status": None}

    def _tell_neighbour(self, pid: int | None) -> None:
        """Tell once of a server that somebody started on our store: nothing keeps it out."""
        if pid is not None and pid not in self._neighbours:
            self._neighbours.add(pid)
            text = f"process {pid}, a nats-server that was not started here, uses the store at the same time"
            log.error("Store %s: %s. Both write there: stop one, and look for what is missing.", self.store, text)
            self._deployment.losses.append(Loss(self.name, "", "", text, certain=False))

    # -- faults and repairs ------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the process at once (SIGKILL), as a crash would; return when it is gone."""
        self._signal(signal.SIGKILL, *_DOWN)

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): it keeps its connections and answers nothing."""
        self._signal(signal.SIGSTOP, "paused", *_DOWN)

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT)."""
        self._signal(signal.SIGCONT, "running", *_DOWN)

    def stop(self) -> None:
        """Stop the process gracefully, and kill it when it has not ended after ten seconds."""
        if not self._deployment.guard.signal(self.name, signal.SIGTERM, _DOWN, GRACE):
            self.kill()

    def start(self) -> None:
        """Start the process again, with the same ports and store, and wait until it is healthy."""
        # Asking raises if the whole server was stopped: nothing may be written to its folders then.
        if self._deployment.guard.state(self.name)["state"] not in _DOWN:
            return
        deadline = time.monotonic() + self._deployment.options.start_timeout
        clash: StartError | None = None
        while True:
            self._launch()
            try:
                self._wait_ready(deadline)
                self._compare(deadline)
                self._keep_record()
                return
            except StartError as error:
                # A client that tries to reconnect can hold our port for a moment, as its own end.
                routes = self._deployment.routes
                if not is_port_clash(error, (self._port, self._monitor_port, *(routes.ports if routes else ()))):
                    self.kill()
                    if clash is not None and error.status is None:  # the time was up in the middle of another try
                        raise clash from None
                    raise
                if time.monotonic() > deadline:
                    self.kill()  # it may be about to end by itself
                    raise
                clash = error
                time.sleep(0.1)

    def _signal(self, number: signal.Signals, *states: str) -> None:
        if not self._deployment.guard.signal(self.name, number, states, GRACE):
            raise ServerError(f"Node {self.name} did not take {number.name} within {GRACE:g} s.")

    # -- starting ----------------------------------------------------------------------------------

    def _launch(self) -> None:
        """Write the configuration and start the process, without waiting for it."""
        deployment = self._deployment
        self.store.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._record is not None:
            if (pid := server_using(self.store)) is not None:
                what = f"The store {self.store} is in use by a nats-server that was not started here, process {pid}."
                remedy = "Stop that server, or use another folder."
                raise StoreInUseError(what, remedy=remedy, store=str(self.store), pid=pid)
            self._held = Held.by(self.store, self._record)
        self._ports_dir.mkdir(mode=0o700, exist_ok=True)
        for stale in self._ports_dir.glob("*.ports"):
            stale.unlink()
        self._output.write_text("")
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._config.touch(mode=0o600)
        self._config.write_text(self._configuration())
        argv = [str(deployment.binary.path), "-c", str(self._config)]
        deployment.guard.ask("start", node=self.name, argv=argv, output=str(self._output))

    def _configuration(self) -> str:
        """Write what nats-server is told; a port of 0 lets the server choose."""
        options, token, routes = self._deployment.options, self._deployment.token, self._deployment.routes
        # A second block of jetstream would replace ours whole, so its inside joins ours.
        extra, jetstream = take_blocks(options.config, "jetstream")
        given = {statement.key for inside in jetstream for statement in statements(inside)}
        sync = options.sync
        if sync != "always":  # our durations know days and weeks, the server's do not
            sync = _text(f"{round(parse_duration(sync) * 1000)}ms")
        lines = [
            f"server_name: {self.name}",
            f"host: {_text(options.bind)}",
            f"port: {self._port or -1}",
            f'http: "127.0.0.1:{self._monitor_port or -1}"',
            f"http_base_path: {_text(self._deployment.monitor_path)}",
            f"ports_file_dir: {_text(self._ports_dir)}",
            f"log_file: {_text(self.log)}",
            "logfile_size_limit: 64MB",
            "logfile_max_num: 2",
            f"jetstream {{\n  store_dir: {_text(self.store)}\n  sync_interval: {sync}",
            *([] if given & {"max_file_store", "max_file"} else [f"  max_file_store: {room_for(self.store)}"]),
            *jetstream,
            "}",
        ]
        if options.max_payload is not None:
            lines.append(f"max_payload: {options.max_payload}")
        if token is not None:
            lines.append(f"authorization {{ token: {_text(token)} }}")
        if options.secure:
            files = {"cert_file": options.tls_cert, "key_file": options.tls_key, "ca_file": options.tls_ca}
            inner = [f"{key}: {_text(Path(file).expanduser().absolute())}" for key, file in files.items() if file]
            verify = ["verify: true"] if options.tls_ca is not None else []
            lines.append("\n  ".join(["tls {", *inner, *verify]) + "\n}")
        if routes is not None:
            login = f'authorization {{ user: route, password: "{routes.password}", timeout: 5 }}'
            others = [f'"nats-route://route:{routes.password}@127.0.0.1:{other}"' for other in routes.ports]
            # Our URL names every node already. Addresses that the server advertises carry no token, and clients that
            # found the token in a URL would knock there in vain.
            lines.append(
                f'cluster {{\n  name: penstock\n  listen: "127.0.0.1:{routes.ports[self._index]}"\n  {login}\n'
                f"  no_advertise: true\n  routes: [{', '.join(others)}]\n}}"
            )
        return "\n".join([*lines, extra, ""])

    def _wait_ready(self, deadline: float) -> None:
        """Wait until the server listens and calls itself healthy."""
        reason = "it did not say on which ports it listens"
        while True:
            facts = self._deployment.guard.state(self.name)
            if facts["state"] in _DOWN:
                self._fail(f"ended with status {facts['status']}", facts["status"])
            if self._read_ports():
                # If the others are down there is no quorum to be healthy in; this node must still start.
                running = [node for node in self._deployment.nodes if node._facts()["state"] == "running"]
                quorum = len(running) * 2 > self._deployment.options.nodes
                page = "/healthz" if quorum else "/healthz?js-enabled-only=true"
                status, body = self._monitor(page)
                if status == 200:
                    return
                reason = str(body.get("error") or body.get("status") or "its monitoring port does not answer")
            if time.monotonic() > deadline:
                self._fail(f"is not ready after {self._deployment.options.start_timeout:g} s ({reason})", None)
            time.sleep(_POLL)

    def _compare(self, deadline: float) -> None:
        """Tell what the store held before this start and the server did not bring up."""
        while True:
            status, details = self._monitor("/jsz?accounts=true&streams=true&consumers=true&config=true")
            if status == 200:
                break
            if time.monotonic() > deadline:
                self._fail("does not tell its streams", None)
            time.sleep(_POLL)
        folder = str((details.get("config") or {}).get("store_dir", ""))
        if os.path.realpath(folder) != os.path.realpath(self.store / "jetstream"):
            self._fail(f"stores its streams in {folder}, and not in {self.store}", None)
        if self._record is None:
            return
        found = losses(self.name, self.store, self._held, self._log(), details)
        for loss in found:
            log.warning("Store %s: %s.", self.store, loss.text)
        self._deployment.losses.extend(found)

    def _keep_record(self) -> None:
        """Let the guard write down what this node stores, for the next start to compare."""
        if self._record is not None:
            # What one node of a cluster says is not the last word: its store may be ahead of the others, or behind.
            port = self._monitor_port if self._deployment.options.nodes == 1 else None
            paths = {"store": str(self.store), "record": str(self._record)}
            base = self._deployment.monitor_path
            self._deployment.guard.ask("record", node=self.name, port=port, base=base, **paths)

    def _monitor(self, page: str) -> tuple[int, dict[str, Any]]:
        """Read a page of the monitoring port: its status and its JSON; (0, {}) if nobody answers."""
        with closing(HTTPConnection("127.0.0.1", self._monitor_port, timeout=_HTTP_TIMEOUT)) as connection:
            try:
                connection.request("GET", self._deployment.monitor_path + page)
                response = connection.getresponse()
                body = load_json(response.read())
            except (OSError, HTTPException, ValueError):
                return 0, {}  # not up yet, or frozen: the caller asks again until its deadline
        return response.status, body if isinstance(body, dict) else {}

    def _read_ports(self) -> bool:
        for file in self._ports_dir.glob("*.ports"):
            try:
                ports = load_json(file.read_text())
            except (ValueError, OSError):  # half written: read again in a moment
                return False
            self._port = urlsplit(ports["nats"][0]).port or self._port
            self._monitor_port = urlsplit(ports["monitoring"][0]).port or self._monitor_port
            return True
        return False

    def _fail(self, what: str, status: int | None) -> NoReturn:
        lines = self._tail()
        cause = _cause(lines)
        raise StartError(
            f"nats-server {self.name} {what}{f': {cause}' if cause else ''}.",
            remedy="\n  ".join(["The end of its log:", *lines]) if lines else "Its log is empty.",
            log="\n".join(lines),
            status=status,
        )

    def _log(self, most: int | None = None) -> str:
        """Read what was logged since this start, or the end of it."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            size = file.seek(0, 2)
            # A log that was rotated since is read from wherever its end is.
            start = self._log_start if self._log_start <= size else 0
            file.seek(start if most is None else max(start, size - most))
            return file.read().decode(errors="replace")

    def _tail(self) -> list[str]:
        text = self._log(65536)
        text += self._output.read_text(errors="replace") if self._output.exists() else ""
        # Every look at the health of a server that is not healthy is logged: nothing else would be left to see.
        lines = [line for line in self._deployment.scrub(text).splitlines() if "Healthcheck failed" not in line]
        return lines[-_LOG_LINES:]


# What a node of ours can do, and one of somebody else cannot.
_OURS_ALONE = {
    "monitor_url": "tell the monitoring address",
    "log": "read the log",
    "store": "tell the store",
    "pid": "tell the process",
    "alive": "watch the process",
    "paused": "watch the process",
    "kill": "kill a node",
    "pause": "pause a node",
    "resume": "resume a node",
    "stop": "stop a node",
    "start": "start a node",
}


class ForeignNode(Node):
    """One address of a server that somebody else runs: it can be reached, and not be touched."""

    address = url = ""  # given here, where a node of ours finds them out

    def __init__(self, name: str, address: str, url: str) -> None:
        self.name, self.address, self.url = name, address, url

    def __repr__(self) -> str:
        return f"<Node {self.name} at {self.address}, not ours>"

    def __getattribute__(self, name: str) -> Any:
        if name in _OURS_ALONE:
            what = f"Server.at() cannot {_OURS_ALONE[name]}: the server at {self.address} was not started here."
            raise ServerError(what, remedy="Use penstock.Server() for a server of your own.")
        return super().__getattribute__(name)


def _text(value: str | Path) -> str:
    return json.dumps(str(value), ensure_ascii=False)


def is_port_clash(error: StartError, ports: Iterable[int]) -> bool:
    """Tell whether a server failed to start because one of these ports was taken."""
    lines = [line for line in error.log.splitlines() if "address already in use" in line]
    return any(f":{port}:" in line for line in lines for port in ports)


def _cause(lines: list[str]) -> str:
    """Pick the line that tells most: the last fatal one, else the last error, else what is not log."""
    for mark in ("[FTL]", "[ERR]", "nats-server:", "cannot run"):
        for line in reversed(lines):
            if mark in line:
                return re.sub(r"^(\[\d+\] \S+ \S+ )?(\[[A-Z]{3}\] )?(nats-server: )?", "", line).rstrip(". ")
    return ""
