"""NATS Streaming on JetStream: a gateway that serves its clients unchanged, and an async client.

The names that it exports are public; its modules are not for users.
"""

from penstock.channels.client import Client
from penstock.channels.gateway import Gateway
from penstock.channels.limits import ChannelLimits, Limits
from penstock.channels.options import GatewayOptions
from penstock.channels.subscription import Message, Subscription
from penstock.channels.wire import StartPosition

__all__ = ["ChannelLimits", "Client", "Gateway", "GatewayOptions", "Limits", "Message", "StartPosition", "Subscription"]
