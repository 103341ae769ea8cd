"""The door to NATS for asyncio code: options in, a connection of our own out.

`connecting` makes a connection of options, `connection` has its verbs, `base` its state and what happens to it,
`lifeline` keeps it up, `transport` and `websocket` move its bytes, `subscription`, `messages` and `requests` are what
it hands out, `asking` is the one way to ask JetStream, `jetstream` that API with nats-py's names, `stock` gives a
client of nats-py itself.

The names that it exports are public; its modules are not for users.
"""

from __future__ import annotations

from penstock.connection.asking import api_request
from penstock.connection.connecting import connect
from penstock.connection.connection import Connection
from penstock.connection.messages import Msg
from penstock.connection.stock import connect_nats_py
from penstock.connection.subscription import Subscription
from penstock.credentials import inline

__all__ = ["Connection", "Msg", "Subscription", "api_request", "connect", "connect_nats_py", "inline"]
