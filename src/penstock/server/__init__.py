"""A real nats-server in our care: one node, or a three-node JetStream cluster, on this machine.

The names that it exports are public; its modules are not for users.
"""

from penstock.server.binary import Binary, find_binary
from penstock.server.node import Node
from penstock.server.recovery import Loss
from penstock.server.server import Server

__all__ = ["Binary", "Loss", "Node", "Server", "find_binary"]
