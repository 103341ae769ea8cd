"""NATS Streaming on JetStream: a gateway that serves its clients unchanged, and an async client."""

from penstock.channels.gateway import Gateway
from penstock.channels.limits import ChannelLimits, Limits
from penstock.channels.options import GatewayOptions
from penstock.channels.wire import StartPosition

__all__ = ["ChannelLimits", "Gateway", "GatewayOptions", "Limits", "StartPosition"]
