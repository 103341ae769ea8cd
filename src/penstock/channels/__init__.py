"""NATS Streaming on JetStream: a gateway that serves its clients unchanged, and an async client.

The names that it exports are public; its modules are not for users. The inner ones (`MODULES`) are compiled as those of
the wire are, and stand on them.
"""

from types import ModuleType

from penstock import plain
from penstock.wire import MODULES as WIRE

# In the order of their imports.
MODULES = ("encoded", "publishes", "arrivals")


def load_plain() -> dict[str, ModuleType]:
    """Load the plain form of all of `MODULES`, by their names, on the plain form of the wire."""
    loaded = plain.load_plain({"penstock.wire": WIRE, __name__: MODULES})
    return {name: loaded[f"{__name__}.{name}"] for name in MODULES}


compiled: bool = plain.choose(__name__, MODULES)
"""Whether the modules are the compiled ones; chosen before anybody imports them."""

from penstock.channels.client import Client  # noqa: E402
from penstock.channels.gateway import Gateway  # noqa: E402
from penstock.channels.limits import ChannelLimits, Limits  # noqa: E402
from penstock.channels.options import GatewayOptions  # noqa: E402
from penstock.channels.subscription import Message, Subscription  # noqa: E402
from penstock.channels.wire import StartPosition  # noqa: E402

__all__ = ["ChannelLimits", "Client", "Gateway", "GatewayOptions", "Limits", "Message", "StartPosition", "Subscription"]
