"""The door to NATS for asyncio code: options in, a connection of our own out.

`connecting` makes a connection of options, `connection` has its verbs, `base` its state and what happens to it,
`lifeline` keeps it up, `transport` and `websocket` move its bytes, `subscription`, `messages` and `requests` are what
it hands out, `asking` is the one way to ask JetStream, `jetstream` that API with nats-py's names, `stock` gives a
client of nats-py itself.

The names that it exports are public; its modules are not for users.
"""

from __future__ import annotations

from penstock.connection.asking import api_request, direct_get, insist, patiently, store_frames
from penstock.connection.connecting import connect
from penstock.connection.connection import Connection
from penstock.connection.messages import Msg
from penstock.connection.subscription import Subscription

__all__ = [
    "Connection",
    "Msg",
    "Subscription",
    "api_request",
    "connect",
    "direct_get",
    "insist",
    "patiently",
    "store_frames",
]
