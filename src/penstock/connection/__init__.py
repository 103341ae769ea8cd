"""The door to NATS for asyncio code: options in, a connected nats-py client out.

This package alone imports nats-py's client, and here its errors become ours. `attempt` connects, `client` is
nats-py's client with what we need of it, `taps` sees messages in the order of the wire, `failures` finds the sentence
for a connection that did not come about, `requests` asks JetStream and translates errors.
"""

from __future__ import annotations

from penstock.connection.attempt import connect
from penstock.connection.client import Client
from penstock.connection.requests import api_error, api_request, foreign_errors, jetstream, server_info, translate

__all__ = ["Client", "api_error", "api_request", "connect", "foreign_errors", "jetstream", "server_info", "translate"]
