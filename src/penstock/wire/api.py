"""Names, questions and answers of the JetStream API. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from penstock.errors import InputError, JetStreamError, NotFoundError, RemoteProtocolError

__all__ = ["AGAIN", "api_error", "check_name", "is_question", "not_yet", "read_answer"]

AGAIN = 2.0  # seconds after which a question is asked again
_BAD_NAME = set(" \t\r\n.*>/\\")
_QUESTION = re.compile(r"INFO|(STREAM|CONSUMER)\.(INFO|NAMES|LIST)(\..+)?|STREAM\.MSG\.GET\..+")


def check_name(stream: str) -> None:
    """Refuse what cannot be the name of a stream before it becomes part of a subject."""
    if not stream or _BAD_NAME & set(stream) or not stream.isprintable():
        raise InputError(f"{stream!r} is no name of a stream.", remedy="Names have no blanks, dots, *, > or slashes.")


def is_question(method: str) -> bool:
    """Tell a method that only asks, and may be asked again, from one that changes something.

    In a cluster nobody answers while a leader is being chosen, and the first answer to a new connection can be lost on
    its way between nodes.
    """
    return _QUESTION.fullmatch(method) is not None


def not_yet(error: JetStreamError) -> bool:
    """Tell a refusal that passes by itself: there is no leader yet, or a node is away for a moment."""
    away = error.err_code == 10005 and "offline" in str(error.description)
    return away or error.err_code in (10008, 10009)


def read_answer(payload: bytes) -> dict[str, Any]:
    """Read an answer of the JetStream API; JetStreamError where it holds an error."""
    try:
        answer = json.loads(payload)
    except (ValueError, RecursionError):
        raise RemoteProtocolError("The JetStream API answered something that is no JSON.", place=0) from None
    if not isinstance(answer, dict):
        raise RemoteProtocolError("The JetStream API answered something that is no object.", place=0)
    if "error" in answer:
        raise api_error(answer["error"])
    return answer


def api_error(error: dict[str, Any]) -> JetStreamError:
    """Turn the `error` object of a JetStream answer into ours."""
    code, err_code = error.get("code"), error.get("err_code")
    description = str(error.get("description", "no description"))
    kind = NotFoundError if code == 404 else JetStreamError
    return kind(
        f"The server refused: {description} ({err_code or code}).",
        code=code,
        err_code=err_code,
        description=description,
    )
