"""Questions to the JetStream API as values. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

__all__ = ["AGAIN", "Question"]

AGAIN = 2.0  # seconds after which a question is asked again
# A cluster waits four seconds for nodes that are away before it gives a list without theirs.
_LISTS = re.compile(r"(STREAM|CONSUMER)\.LIST(\..+)?")
_LIST_AGAIN = 4.5
# The methods that change nothing. In a cluster nobody answers while a leader is being chosen, and the first answer to a
# new connection can be lost on its way between nodes.
_ONLY_ASKS = re.compile(r"INFO|(STREAM|CONSUMER)\.(INFO|NAMES|LIST)(\..+)?|STREAM\.MSG\.GET\..+")


@dataclass(frozen=True)
class Question:
    """One call of the JetStream API."""

    method: str
    """What follows the prefix, as the functions of `names` give it."""
    body: object = None
    """What is asked, as JSON; nothing is sent for None."""
    repeatable: bool = False
    """Whether it does no harm to ask it twice; a method that only asks always is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "repeatable", self.repeatable or bool(_ONLY_ASKS.fullmatch(self.method)))

    @property
    def again(self) -> float:
        """After how many seconds without an answer it is asked again, if it may be: the first answer would be lost."""
        return _LIST_AGAIN if _LISTS.fullmatch(self.method) else AGAIN

    @property
    def payload(self) -> bytes:
        """What is sent."""
        return b"" if self.body is None else json.dumps(self.body, separators=(",", ":")).encode()
