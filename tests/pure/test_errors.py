"""The errors: their tree, their facts, and that they travel."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from penstock import errors
from penstock.errors import (
    DataLossError,
    DeadlineError,
    InputError,
    JetStreamError,
    LinkError,
    NotFoundError,
    OptionError,
    PenstockError,
)


def classes() -> list[type[PenstockError]]:
    found = [PenstockError]
    for kind in found:
        found.extend(kind.__subclasses__())
    return [kind for kind in found if kind.__module__ == "penstock.errors"]


def drawn() -> dict[str, str | None]:
    """Read the tree in the module's docstring: each name, and the one it hangs from."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ((?:[│ ] {3})*)(?:[├└]── )?([A-Z]\w+Error)\b", line)
        if match:
            depth = len(match.group(1)) // 4 + ("── " in line)
            path[depth:] = [match.group(2)]
            parents[match.group(2)] = path[depth - 1] if depth else None
    return parents


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
class TestEveryError:
    def test_is_drawn_in_the_tree(self, kind: type[PenstockError]) -> None:
        """The tree in the docstring shows every class below its base."""
        base = next((base.__name__ for base in kind.__bases__ if issubclass(base, PenstockError)), None)
        assert drawn()[kind.__name__] == base

    def test_is_public(self, kind: type[PenstockError]) -> None:
        """Every class is in `__all__`."""
        assert kind.__name__ in errors.__all__

    def test_survives_pickling(self, kind: type[PenstockError]) -> None:
        """A pickled error has the same class, text and facts, at every protocol."""
        facts = {name: f"<{name}>" for name in kind.fact_names}
        error = kind("It broke.", remedy="Mend it.", **facts)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            same = pickle.loads(pickle.dumps(error, protocol))
            assert type(same) is kind
            assert (str(same), same.what, same.remedy, same.facts) == (
                "It broke. Mend it.",
                "It broke.",
                "Mend it.",
                facts,
            )

    def test_copies(self, kind: type[PenstockError]) -> None:
        """A copied error is the same error."""
        assert str(copy.copy(kind("It broke.", remedy="Mend it."))) == "It broke. Mend it."

    def test_refuses_a_fact_it_does_not_have(self, kind: type[PenstockError]) -> None:
        """A misspelt fact is noticed where the error is raised, not where it is read."""
        with pytest.raises(TypeError, match=f"{kind.__name__} has no fact colour"):
            kind("It broke.", colour="red")

    def test_knows_whose_fault_it_is(self, kind: type[PenstockError]) -> None:
        """Every leaf says whose fault it is."""
        assert kind.__subclasses__() or kind.fault != "unknown"


def test_the_tree_draws_nothing_else() -> None:
    """The docstring, `__all__` and the module hold the same names."""
    names = {kind.__name__ for kind in classes()}
    assert set(drawn()) == names == set(errors.__all__)


def test_facts_are_attributes() -> None:
    """A fact that was given is an attribute; one that was not is None."""
    error = DataLossError("Gone.", stream="ORDERS", start=1, end=5)
    assert (error.stream, error.start, error.end, error.first) == ("ORDERS", 1, 5, None)


def test_text_is_what_happened_and_what_to_do() -> None:
    """The remedy follows what happened; without one there is no stray space."""
    assert str(PenstockError("It broke.")) == "It broke."
    assert str(PenstockError("It broke.", remedy="Mend it.")) == "It broke. Mend it."


@pytest.mark.parametrize(
    ("kind", "base"),
    [(InputError, ValueError), (OptionError, ValueError), (LinkError, ConnectionError), (DeadlineError, TimeoutError)],
)
def test_errors_are_also_what_python_calls_them(kind: type[PenstockError], base: type[Exception]) -> None:
    """Code that knows nothing of Penstock catches the built-in class."""
    with pytest.raises(base, match="It broke"):
        raise kind("It broke.")


def test_not_found_is_a_jetstream_error() -> None:
    """Whoever catches every refusal of JetStream catches this one."""
    error = NotFoundError("No stream.", code=404, err_code=10059, description="stream not found")
    assert isinstance(error, JetStreamError)
    assert error.facts == {"code": 404, "err_code": 10059, "description": "stream not found"}


def test_a_sentence_can_always_be_shown():
    """What somebody else wrote may be part of a sentence: it is cut, holds no half character, and survives pickling."""
    error = InputError("\ud800 and " + "x" * 5000 + " at the end", remedy="y" * 3000)
    assert error.what.startswith("\\ud800 and xxx")
    assert error.what.endswith("xxx at the end")
    assert len(str(error)) <= 4001
    str(error).encode()
    again = pickle.loads(pickle.dumps(error))
    assert (again.what, again.remedy) == (error.what, error.remedy)
