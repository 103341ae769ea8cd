"""What a gateway can be told; the names are those of the old server's flags, as far as it had them."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.channels.limits import Limits
from penstock.channels.names import is_client
from penstock.errors import OptionError

__all__ = ["GatewayOptions"]


@dataclass(frozen=True, kw_only=True)
class GatewayOptions:
    """The options of a gateway, checked before anything is opened."""

    cluster_id: str = "test-cluster"
    """The name under which clients look for it."""
    discover_prefix: str = "_STAN.discover"
    """The first tokens of the subject that clients connect on."""
    subject_prefix: str = ""
    """What stands before a channel's name in the subject of its stream; with its dot, such as `channels.`."""
    replicas: int = 1
    """How many servers keep each stream."""
    limits: Limits = field(default_factory=Limits)
    """How many channels there may be, and what each may hold."""
    hb_interval: float = 30.0
    """Seconds between two heartbeats to a client."""
    hb_timeout: float = 10.0
    """Seconds that a client has to answer a heartbeat."""
    hb_fail_count: int = 10
    """Heartbeats that a client may miss in a row; one more, and it is closed."""
    duplicate_timeout: float = 0.5
    """Seconds that a client has to answer when another one comes with its id."""
    replace_durable: bool = False
    """Whether a durable that is still active gives way to a new subscription with its name."""
    standby: bool = False
    """Whether to wait if another gateway serves the cluster, instead of refusing to start."""
    lease: float = 10.0
    """Seconds after which a standby takes over from a gateway that gives no sign of life."""
    timeout: float = 5.0
    """Seconds to wait for an answer of JetStream before asking again."""
    synced_store: str | None = None
    """The folder of the server's store, if the gateway shall sync what it stores there before it acknowledges it.

    It is for a server on this machine that does not sync always, which the gateway does for many messages at once.
    """
    monitor: str | None = None
    """Where the monitoring pages are, such as `127.0.0.1:8222`; none if nothing is given."""
    nats_monitor: str | None = None
    """Where the pages of the NATS server are, such as `http://127.0.0.1:8222`; they are passed on beside ours."""

    def __post_init__(self) -> None:
        if not is_client(self.cluster_id):
            self._refuse("cluster_id", "Use letters, digits, - and _.")
        for name in ("discover_prefix", "subject_prefix"):
            value = getattr(self, name)
            parts = value.removesuffix(".").split(".") if name == "subject_prefix" else value.split(".")
            if value and not all(part and part.isascii() and part.isprintable() for part in parts):
                self._refuse(name, "Use tokens joined by dots.")
            if any(letter in value for letter in "*> "):
                self._refuse(name, "Leave out blanks and wildcards.")
        if not self.discover_prefix:
            self._refuse("discover_prefix", "Give one, such as _STAN.discover.")
        if self.replicas not in (1, 3, 5):
            self._refuse("replicas", "Use 1, 3 or 5.")
        if self.synced_store is not None and self.replicas > 1:
            self._refuse("synced_store", "Leave it out: only a stream of one replica can be synced from outside.")
        for name in ("hb_interval", "hb_timeout", "duplicate_timeout", "lease", "timeout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                self._refuse(name, "Give some seconds.")
        if isinstance(self.hb_fail_count, bool) or not isinstance(self.hb_fail_count, int) or self.hb_fail_count < 0:
            self._refuse("hb_fail_count", "Give a whole number, zero or more.")
        if self.monitor is not None:
            host, _, port = self.monitor.rpartition(":")
            if not host or not port.isdigit() or int(port) > 65535:
                self._refuse("monitor", "Write it as 127.0.0.1:8222; port 0 takes a free one.")
        if self.nats_monitor is not None and not self.nats_monitor.startswith("http://"):
            self._refuse("nats_monitor", "Write it as http://127.0.0.1:8222.")

    def _refuse(self, name: str, remedy: str) -> None:
        value = getattr(self, name)
        raise OptionError(f"{name} is {value!r}.", remedy=remedy, option=name, value=value)
