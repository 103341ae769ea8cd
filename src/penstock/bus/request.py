"""`Request`, and the JSON that carries it and the elements of a reply.

::

    Request = JSON object with the field names of the reference, in this order:
              Method QueueID WSID PartitionNumber [Header] Resource [Query] [Body] [Attachments]
    Method  = 0 GET | 1 POST | 2 PUT | 3 PATCH | 4 DELETE
    Body    = base64; Header and Query are lists of strings by name, Attachments a string by name
    Fields in brackets are left out when empty. Newer peers write PartitionID for PartitionNumber.

JSON is written as Go writes it: no spaces, keys sorted, `<`, `>` and `&` escaped, 1.0 as 1. Pure.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import InputError, RemoteProtocolError
from penstock.json_text import load_json

__all__ = ["METHODS", "Request", "decode_request", "encode_element", "go_json"]

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_NUMBERS = {name: number for number, name in enumerate(METHODS)}
_INT64 = range(-(2**63), 2**63)
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
_ESCAPED = re.compile("[<>&\u2028\u2029]")
_quoted = json.encoder.encode_basestring
_written = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True)
class Request:
    """What is asked of a queue, as an HTTP request would ask it."""

    queue: str
    """Name of the queue."""
    partition: int = 0
    """Partition of the queue, from 0."""
    method: str = "GET"
    """GET, POST, PUT, PATCH or DELETE."""
    resource: str = ""
    """What is asked for: the last part of a URL's path."""
    wsid: int = 0
    """Number of the workspace; 0 if there are none."""
    header: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Header values by name; a single string stands for a list of one."""
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Query values by name; a single string stands for a list of one."""
    body: bytes = b""
    """The body, any bytes."""
    attachments: Mapping[str, str] = field(default_factory=dict)
    """Identifiers of attachments by name."""

    def __post_init__(self) -> None:
        if not isinstance(self.queue, str) or not self.queue:
            raise InputError(f"queue is {self.queue!r}.", remedy="Name the queue.")
        if not isinstance(self.partition, int) or isinstance(self.partition, bool) or self.partition < 0:
            raise InputError(f"partition is {self.partition!r}.", remedy="Give a whole number from 0.")
        if self.method not in METHODS:
            raise InputError(f"method is {self.method!r}.", remedy=f"Use one of {', '.join(METHODS)}.")
        if not isinstance(self.wsid, int) or isinstance(self.wsid, bool) or self.wsid not in _INT64:
            raise InputError(f"wsid is {self.wsid!r}.", remedy="Give a whole number of 64 bits.")
        if not isinstance(self.resource, str):
            raise InputError(f"resource is {self.resource!r}.", remedy="Give text.")
        if not isinstance(self.body, bytes | bytearray | memoryview):
            raise InputError(f"body is {type(self.body).__name__}.", remedy="Give bytes; text wants .encode().")
        object.__setattr__(self, "body", bytes(self.body))
        object.__setattr__(self, "header", _lists("header", self.header))
        object.__setattr__(self, "query", _lists("query", self.query))
        if not all(isinstance(item, str) for pair in self.attachments.items() for item in pair):
            raise InputError("attachments holds something that is not text.", remedy="Give text by name.")
        object.__setattr__(self, "attachments", dict(self.attachments))

    def encode(self) -> bytes:
        """Give the bytes that travel."""
        # Go keeps the order of a struct's fields, leaves out the empty ones that may be, and sorts the keys of maps.
        # Everything here is text or a whole number by now, so that the parts can be written without a look inside.
        parts = [
            f'{{"Method":{_NUMBERS[self.method]},"QueueID":{_quoted(self.queue)},"WSID":{int(self.wsid)},'
            f'"PartitionNumber":{int(self.partition)}'
        ]
        if self.header:
            parts.append(f',"Header":{_written(self.header)}')
        parts.append(f',"Resource":{_quoted(self.resource)}')
        if self.query:
            parts.append(f',"Query":{_written(self.query)}')
        if self.body:
            parts.append(f',"Body":"{binascii.b2a_base64(self.body, newline=False).decode()}"')
        if self.attachments:
            parts.append(f',"Attachments":{_written(self.attachments)}')
        parts.append("}")
        try:
            return _escaped("".join(parts)).encode()
        except UnicodeEncodeError as error:
            raise _unwritable(error) from None


def _lists(name: str, given: Mapping[str, Sequence[str] | str]) -> dict[str, list[str]]:
    lists = {key: [value] if isinstance(value, str) else list(value) for key, value in given.items()}
    if not all(isinstance(item, str) for key, values in lists.items() for item in (key, *values)):
        raise InputError(f"{name} holds something that is not text.", remedy="Give lists of text by name.")
    return lists


def decode_request(data: bytes) -> Request:
    """Read a request; fields that are missing or null have their defaults, unknown ones are left alone."""
    try:
        # What begins like an object is UTF-8; only of anything else does the encoding have to be found out.
        fields = load_json(data.decode("utf-8", "surrogatepass") if data[:2] == b'{"' else data)
        if not isinstance(fields, dict):
            raise ValueError("not an object")
        get = fields.get
        method: Any = get("Method") or 0
        body, header, query = get("Body"), get("Header"), get("Query")
        given = {
            "queue": fields["QueueID"],
            "partition": get("PartitionNumber") or get("PartitionID") or 0,
            "method": METHODS[method] if isinstance(method, int) and method >= 0 else method,
            "resource": get("Resource") or "",
            "wsid": get("WSID") or 0,
            "header": {name: value or () for name, value in header.items()} if header else {},
            "query": {name: value or () for name, value in query.items()} if query else {},
            "body": base64.b64decode(body, validate=True) if body else b"",
            "attachments": get("Attachments") or {},
        }
        return _trusted(given) or Request(**given)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise RemoteProtocolError(f"This is not a request of the bus: {type(error).__name__}: {error}") from None


def _trusted(given: dict[str, Any]) -> Request | None:
    """Make a request of fields that need no check but that of their types; None if they might."""
    partition, wsid = given["partition"], given["wsid"]
    if (
        given["header"]
        or given["attachments"]
        or given["method"] not in METHODS
        or type(given["queue"]) is not str
        or not given["queue"]
        or type(partition) is not int
        or partition < 0
        or type(wsid) is not int
        or wsid not in _INT64
        or type(given["resource"]) is not str
    ):
        return None
    if given["query"]:
        given["query"] = _lists("query", given["query"])
    made = Request.__new__(Request)
    made.__dict__.update(given)  # the checks of a request that a program makes cost more than reading this one
    return made


def encode_element(value: object) -> bytes:
    """Give the bytes of an element: bytes as they are, anything else as JSON."""
    if type(value) is bytes:
        return value
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else go_json(value)


def go_json(value: object) -> bytes:
    """Write JSON as Go does; what cannot be written is an InputError."""
    try:
        text = json.dumps(
            _whole_floats(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
        )
        return _escaped(text).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _unwritable(error) from None


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES) if _ESCAPED.search(text) else text


def _unwritable(error: Exception) -> InputError:
    return InputError(f"The value cannot be written as JSON: {error}.", remedy="Send bytes, or plain values.")


def _whole_floats(value: Any) -> Any:
    """Turn 1.0 into 1, everywhere inside; Go writes it so up to 1e21."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e21 else value
    if isinstance(value, dict):
        return {key: _whole_floats(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole_floats(item) for item in value]
    return value
