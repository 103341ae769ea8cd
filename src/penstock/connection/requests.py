"""Requests to JetStream over a connected client, and nats-py's errors made into ours."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import nats.errors
import nats.js
import nats.js.errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js.api import DEFAULT_PREFIX

from penstock.connection.client import Client
from penstock.errors import (
    DeadlineError,
    DisconnectedError,
    LinkError,
    LocalProtocolError,
    NoRespondersError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.wire.jetstream.answers import api_error
from penstock.wire.jetstream.questions import AGAIN, is_question

__all__ = ["api_error", "api_request", "foreign_errors", "jetstream", "server_info", "translate"]


def jetstream(client: NatsClient, *, timeout: float | None = None) -> nats.js.JetStreamContext:
    """Give nats-py's JetStream context with the domain or API prefix of the connection."""
    given = client.given if isinstance(client, Client) else None
    return client.jetstream(
        prefix=given.js_prefix if given else DEFAULT_PREFIX,
        timeout=timeout or (given.request_timeout if given else 5.0),
    )


def server_info(client: NatsClient) -> Mapping[str, Any]:
    """Give what the server said of itself when we connected: its INFO."""
    return MappingProxyType(client._server_info)


async def api_request(
    client: NatsClient, method: str, body: object = None, *, timeout: float | None = None, again: bool = False
) -> Any:
    """Call the JetStream API, `method` being what follows the prefix, and give the decoded answer.

    An answer that holds an error raises JetStreamError with the server's codes; `foreign_errors` covers the
    rest. What only asks is asked again when no answer comes (`is_question` says why), and so is anything else that may
    be done twice, if the caller says so with `again`.
    """
    given = client.given if isinstance(client, Client) else None
    prefix = given.js_prefix if given else DEFAULT_PREFIX
    payload = b"" if body is None else json.dumps(body).encode()
    subject = f"{prefix}.{method}"
    timeout = timeout or (given.request_timeout if given else 5.0)
    with foreign_errors(subject):
        if again or is_question(method):
            reply = await _insist(client, subject, payload, timeout)
        else:
            reply = await client.request(subject, payload, timeout=timeout)
    try:
        answer = json.loads(reply.data)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise RemoteProtocolError(
            f"What answered on {subject} is not JetStream: {reply.data[:40]!r}.",
            remedy="Does another service listen on that subject? Check domain and api_prefix.",
        )
    if error := answer.get("error"):
        raise api_error(error)
    return answer


async def _insist(client: NatsClient, subject: str, payload: bytes, timeout: float) -> Msg:
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > AGAIN:
        try:
            return await client.request(subject, payload, timeout=AGAIN)
        except nats.errors.NoRespondersError:
            raise
        except nats.errors.TimeoutError:
            continue
    return await client.request(subject, payload, timeout=max(left, 0.01))


@contextmanager
def foreign_errors(subject: str | None = None) -> Iterator[None]:
    """Translate what nats-py raises inside the block into our errors."""
    try:
        yield
    except PenstockError:
        raise
    except (nats.errors.Error, TimeoutError) as error:
        raise translate(error, subject) from error


def translate(error: Exception, subject: str | None = None) -> PenstockError:
    """Give our error for one of nats-py's."""
    about = f" on {subject}" if subject else ""
    if isinstance(error, nats.js.errors.APIError):
        return api_error({"code": error.code, "err_code": error.err_code, "description": error.description})
    if isinstance(error, nats.errors.NoRespondersError | nats.js.errors.NoStreamResponseError):
        return NoRespondersError(
            f"Nobody listens{about}.",
            remedy="Is the service running, or, for JetStream, is it on and does a stream hold the subject?",
            subject=subject,
        )
    if isinstance(error, TimeoutError):
        return DeadlineError(f"No answer{about} in time.", remedy="A longer timeout may help.", subject=subject)
    if isinstance(error, nats.errors.MaxPayloadError):
        return LocalProtocolError(
            f"The message{about} is larger than the server takes.",
            remedy="Send it in chunks (penstock.chunks), or raise max_payload at the server.",
        )
    if isinstance(error, nats.errors.BadSubjectError | nats.errors.BadHeaderError | nats.errors.BadSubscriptionError):
        return LocalProtocolError(f"nats-py refuses what we send{about}: {error}.")
    if isinstance(
        error,
        nats.errors.ConnectionClosedError
        | nats.errors.StaleConnectionError
        | nats.errors.ConnectionDrainingError
        | nats.errors.ConnectionReconnectingError
        | nats.errors.OutboundBufferLimitError,
    ):
        return DisconnectedError(f"The connection is gone{about}: {error}.", remedy="Is the server still running?")
    return LinkError(f"nats-py reports{about}: {str(error) or type(error).__name__}.")
