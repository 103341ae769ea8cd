"""`Server`: a real nats-server with JetStream, started, watched and stopped from Python."""

from __future__ import annotations

import errno
import logging
import secrets
import shutil
import socket
import tempfile
import threading
import time
import weakref
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit

from penstock.errors import OptionError, ServerError, StartError, StoreDamagedError, UnreachableError
from penstock.json_text import load_json
from penstock.options import ConnectionOptions
from penstock.server.binary import FAST_INGEST, find_binary, version_numbers
from penstock.server.guard_process import GuardProcess
from penstock.server.node import Deployment, ForeignNode, Node, is_port_clash
from penstock.server.options import Routes, ServerOptions
from penstock.server.recovery import Loss, record_of, refuse

__all__ = ["Server"]

log = logging.getLogger("penstock.server")

_POLL = 0.01
_CLASHES = 5  # how often a cluster may lose the race for its route ports
_INFO_TIMEOUT = 5.0
_SHOWN = 3  # losses in the text of an error; all of them are among its facts


class Server:
    """A real nats-server as a child of this process: one node, or three that make a JetStream cluster.

    It listens on loopback with a generated token, syncs before it acknowledges, and dies with this process
    however this process ends. Options are checked here; `start()`, or `with`, starts it. Keep the object:
    when it is garbage, the server stops.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        store: str | Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        sync: str = "always",
        max_payload: int | None = None,
        token: str | None = None,
        auth: bool = True,
        tls_cert: str | Path | None = None,
        tls_key: str | Path | None = None,
        tls_ca: str | Path | None = None,
        config: str = "",
        binary: str | Path | None = None,
        start_timeout: float = 30.0,
        on_loss: str = "refuse",
    ) -> None:
        self._options = ServerOptions(
            nodes=nodes,
            store=store,
            host=host,
            port=port,
            sync=sync,
            max_payload=max_payload,
            token=token,
            auth=auth,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_ca=tls_ca,
            config=config,
            binary=binary,
            start_timeout=start_timeout,
            on_loss=on_loss,
        )
        self.token = token or (secrets.token_urlsafe(24) if auth else None)
        """The token that clients must show; None with `auth=False`."""
        self.nodes: tuple[Node, ...] = ()
        """The nodes, in the order of their names; none before the first start."""
        self._lock = threading.RLock()
        self._deployment: Deployment | None = None

    @classmethod
    def at(cls, url: str) -> Server:
        """Give the same face to a server already running; `start` and `stop` leave it alone."""
        return _Elsewhere(url)

    # -- reading -----------------------------------------------------------------------------------

    @property
    def urls(self) -> tuple[str, ...]:
        """The URL of each node, with the token."""
        return tuple(node.url for node in self._started().nodes)

    @property
    def url(self) -> str:
        """What to connect to, with the token; the addresses of three nodes are separated by commas."""
        return ",".join(self.urls)

    @property
    def monitor_urls(self) -> tuple[str, ...]:
        """The monitoring address of each node, on loopback; like the token, it lets in whoever has it."""
        return tuple(node.monitor_url for node in self._started().nodes)

    @property
    def version(self) -> str:
        """The version of nats-server, such as "2.15.1"."""
        return self._started().binary.version

    @property
    def supports_fast_ingest(self) -> bool:
        """Whether this server has fast ingest: 2.14 or newer."""
        return version_numbers(self.version) >= FAST_INGEST

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What a named store held and its nodes did not bring up when they were started, and who else writes there."""
        deployment = self._started()
        for node in deployment.nodes:
            node._facts()
        return tuple(deployment.losses)

    @property
    def running(self) -> bool:
        """Whether any node is there."""
        return any(node.alive for node in self.nodes)

    def check(self) -> None:
        """Raise ServerError if what watches over the nodes is gone: they have ended with it, then."""
        guard = self._started().guard
        for node in self.nodes:
            guard.state(node.name)

    def __repr__(self) -> str:
        if not self.nodes:
            return f"<Server of {self._options.nodes}, not started>"
        where = ", ".join(node.address for node in self.nodes)
        return f"<Server at {where}, {'running' if self.running else 'stopped'}>"

    def _started(self) -> Deployment:
        if self._deployment is None:
            raise ServerError("The server was not started.", remedy="Call start(), or use it with `with`.")
        return self._deployment

    # -- starting and stopping ---------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *about: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Start every node and wait until all are healthy; a server that runs already is left alone."""
        try:
            return self._start()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise ServerError(
                "The server was not started: this process has as many files open as it may.",
                remedy="Raise the limit (ulimit -n), or close files and connections.",
            ) from None

    def _start(self) -> Self:
        with self._lock:
            if self._deployment is not None and self._deployment.guard.open:
                return self
            options = self._options
            binary = find_binary(options.binary)
            _check_listen(options)
            with ExitStack() as undo:
                run = Path(tempfile.mkdtemp(prefix="penstock-"))
                undo.callback(shutil.rmtree, run, ignore_errors=True)
                guard = undo.enter_context(closing(GuardProcess(run)))
                root = options.root or run / "store"
                try:
                    root.mkdir(mode=0o700, parents=True, exist_ok=True)
                except OSError as error:
                    what = f"The store {root} cannot be made: {error.strerror}."
                    raise OptionError(what, remedy="Name another folder.", option="store", value=str(root)) from None
                guard.hold(options.root)
                if options.root is not None and options.sync == "always" and _is_in_memory(root):
                    log.warning(
                        "The store %s is in memory (tmpfs): whatever is synced there goes with a restart.", root
                    )
                monitor_path = f"/{secrets.token_urlsafe(24)}"
                deployment = Deployment(options, binary, guard, root, self.token, monitor_path, None)
                _bring_up(deployment)
                _check_losses(deployment)
                for node in deployment.nodes:
                    node._keep_record()
                undo.pop_all()
            self._deployment, self.nodes = deployment, tuple(deployment.nodes)
            weakref.finalize(self, guard.close)
            return self

    def stop(self) -> None:
        """Stop every node gracefully, kill what does not end in ten seconds, and remove a temporary store."""
        with self._lock:
            if self._deployment is not None:
                for node in self._deployment.nodes:
                    node._facts()  # the last chance to tell who else uses the store
                self._deployment.guard.close()


class _Elsewhere(Server):
    """A server that somebody else runs."""

    def __init__(self, url: str) -> None:
        options = self._connection = ConnectionOptions(url)
        login = ""
        if options.token is not None:
            login = quote(options.token, safe="") + "@"
        elif options.user is not None:
            login = f"{quote(options.user, safe='')}:{quote(options.password or '', safe='')}@"
        self.token = options.token
        self.nodes = tuple(
            ForeignNode(f"n{count}", urlsplit(plain).netloc, plain.replace("://", f"://{login}", 1))
            for count, plain in enumerate(options.urls, start=1)
        )

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses that were given, with their login."""
        return tuple(node.url for node in self.nodes)

    @property
    def monitor_urls(self) -> tuple[str, ...]:
        """None are known."""
        return ()

    @property
    def version(self) -> str:
        """The version that the server greets with; asked for each time."""
        failures = []
        for plain in self._connection.urls:
            try:
                return _greeting_version(plain)
            except (OSError, ValueError) as error:
                failures.append(f"{plain}: {error}")
        what = f"No NATS server answers: {'; '.join(failures)}."
        raise UnreachableError(what, remedy="Check the address, and that the server runs.", urls=self._connection.urls)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """None are known."""
        return ()

    @property
    def running(self) -> bool:
        """Whether any of the addresses answers as a NATS server."""
        try:
            return bool(self.version)
        except UnreachableError:
            return False

    def __repr__(self) -> str:
        return f"<Server at {', '.join(node.address for node in self.nodes)}, not ours>"

    def check(self) -> None:
        """Do nothing: nothing of ours watches over it."""

    def start(self) -> Self:
        """Do nothing: the server is not ours to start."""
        return self

    def stop(self) -> None:
        """Do nothing: the server is not ours to stop."""


def _greeting_version(plain: str) -> str:
    """Read the INFO line with which a NATS server greets."""
    parts = urlsplit(plain)
    if parts.scheme.startswith("ws"):
        raise ValueError("a WebSocket address gives no greeting without a login")
    with socket.create_connection((parts.hostname, parts.port), timeout=_INFO_TIMEOUT) as probe:
        held = b""
        deadline = time.monotonic() + _INFO_TIMEOUT
        while b"\n" not in held:
            if len(held) > 1 << 20 or time.monotonic() > deadline:
                raise ValueError("it does not greet as a NATS server")
            data = probe.recv(65536)
            if not data:
                raise ValueError("it hangs up without a greeting")
            held += data
    try:
        return str(load_json(held.removeprefix(b"INFO ").partition(b"\n")[0])["version"])
    except (ValueError, KeyError, TypeError):
        raise ValueError("it does not greet as a NATS server") from None


def _is_in_memory(folder: Path) -> bool:
    """Tell whether a folder lies on a file system that keeps nothing on a disk, if that can be known."""
    try:
        mounts = Path("/proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return False
    kinds = {Path(point.replace(r"\040", " ")): kind for _, point, kind, *_ in map(str.split, mounts)}
    real = folder.resolve()
    return next((kinds[point] for point in (real, *real.parents) if point in kinds), "") in ("tmpfs", "ramfs")


def _check_listen(options: ServerOptions) -> None:
    """Find out whether we may listen on the ports that were asked for, before anything is started."""
    family = socket.AF_INET6 if ":" in options.bind else socket.AF_INET
    for port in range(options.port, options.port + options.nodes) if options.port else [0]:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((options.bind, port))
            except OSError as error:
                what = f"Nothing can listen on {options.bind} port {port}: {error.strerror}."
                if error.errno == errno.EADDRINUSE:
                    what = f"Port {port} on {options.bind} is in use by another program."
                    remedy = "Stop that program, choose another port, or leave port out for a free one."
                elif error.errno == errno.EACCES:
                    remedy = "Choose a port above 1023."
                else:
                    remedy = "Use an address of this machine."
                    raise OptionError(what, remedy=remedy, option="host", value=options.host) from None
                raise OptionError(what, remedy=remedy, option="port", value=port) from None


def _bring_up(deployment: Deployment) -> None:
    """Start all nodes and wait until they are healthy; a cluster that loses a race for a port retries."""
    for attempt in range(1, _CLASHES + 1):
        deadline = time.monotonic() + deployment.options.start_timeout
        if deployment.options.nodes > 1:
            deployment.routes = Routes(_free_ports(deployment.options.nodes), secrets.token_hex(16))
        deployment.nodes = [Node(deployment, index) for index in range(deployment.options.nodes)]
        try:
            for node in deployment.nodes:
                node._launch()
            for node in deployment.nodes:
                node._wait_ready(deadline)
            if deployment.routes is not None:
                _wait_for_leader(deployment, deadline)
            for node in deployment.nodes:
                node._compare(deadline)
            return
        except StartError as error:
            if deployment.routes is None or attempt == _CLASHES or not is_port_clash(error, deployment.routes.ports):
                raise
            for node in deployment.nodes:
                node.kill()


def _check_losses(deployment: Deployment) -> None:
    """Refuse to go on with a store that came up with less than it held."""
    certain = tuple(loss.text for loss in deployment.losses if loss.certain)
    if not certain or deployment.options.on_loss == "tell":
        return
    for node in deployment.nodes:
        refuse(record_of(deployment.root, node.name))
    more = f"; and {len(certain) - _SHOWN} more" if len(certain) > _SHOWN else ""
    raise StoreDamagedError(
        f"The store {deployment.root} came up with less than it held: {'; '.join(certain[:_SHOWN])}{more}.",
        remedy='Put back a copy of the folder, or go on with what is left: on_loss="tell", or `penstock server run '
        "--on-loss tell`, once. If another nats-server has used the folder meanwhile, it may have removed them.",
        store=str(deployment.root),
        losses=certain,
    )


def _free_ports(count: int) -> tuple[int, ...]:
    """Choose ports that are free now; if one is taken before it is used, the caller tries again."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return tuple(probe.getsockname()[1] for probe in probes)


def _wait_for_leader(deployment: Deployment, deadline: float) -> None:
    """Wait until the JetStream meta group has a leader that sees every other node up to date."""
    while True:
        for node in deployment.nodes:
            meta = node._monitor("/jsz")[1].get("meta_cluster") or {}
            peers = meta.get("replicas") or []
            current = [peer for peer in peers if peer.get("current") and not peer.get("offline")]
            if meta.get("leader") == node.name and len(current) == len(deployment.nodes) - 1:
                return
        if time.monotonic() > deadline:
            deployment.nodes[0]._fail(f"found no meta leader in {deployment.options.start_timeout:g} s", None)
        time.sleep(_POLL)
