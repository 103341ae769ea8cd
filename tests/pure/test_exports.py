"""Public names that load when they are used, and old ones that still work."""

from __future__ import annotations

import subprocess
import sys
import warnings
from types import ModuleType

import pytest

from penstock import info
from penstock.exports import exports


@pytest.fixture
def package(monkeypatch) -> ModuleType:
    """A package `shop` with one name of its own, one that lives elsewhere, and one that was renamed."""
    made = ModuleType("shop")
    made.__all__ = ["own", "ConnectionOptions"]  # type: ignore[attr-defined]  # a module takes any name
    made.own = 1  # type: ignore[attr-defined]  # likewise
    made.__getattr__, made.__dir__ = exports(  # type: ignore[method-assign]  # as a package's file does
        "shop", {"ConnectionOptions": "penstock.options"}, deprecated={"Options": "penstock.options.ConnectionOptions"}
    )
    monkeypatch.setitem(sys.modules, "shop", made)
    return made


def test_a_name_is_found_where_it_lives(package):
    """A name of the package is the very thing that its home holds, and no warning is given."""
    from penstock.options import ConnectionOptions

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert package.ConnectionOptions is ConnectionOptions
        assert package.own == 1


def test_a_name_may_be_a_module_of_the_package():
    """`penstock.errors` is there without an import of its own, as in programs that were written for nats-py."""
    program = "import penstock, sys; print('penstock.errors' in sys.modules, penstock.errors.PenstockError.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "PenstockError"]


def test_what_is_listed_is_the_public_face(package):
    """`dir` gives the names of `__all__`, in order, and no old name."""
    assert dir(package) == ["ConnectionOptions", "own"]


def test_an_unknown_name_is_an_attribute_error(package):
    """What is not there is refused in Python's own words."""
    with pytest.raises(AttributeError, match="module 'shop' has no attribute 'nothing'"):
        package.nothing  # noqa: B018  # the access is the test


def test_an_old_name_gives_the_new_thing_and_says_so(package):
    """A renamed name still works; the warning says what it is now, and points at the line that used it."""
    from penstock.options import ConnectionOptions

    with pytest.warns(
        DeprecationWarning, match=r"^shop\.Options is now penstock\.options\.ConnectionOptions\.$"
    ) as told:
        assert package.Options is ConnectionOptions
    assert [item.filename for item in told] == [__file__]


def test_an_old_name_can_be_imported():
    """`from module import Old` works as the attribute does."""
    with pytest.warns(DeprecationWarning, match="is now penstock.info.SequenceInfo"):
        from penstock.info import Position
    assert Position is info.SequenceInfo


def test_importing_the_package_loads_no_room():
    """`import penstock` loads this helper and nothing else of ours; a name loads its home."""
    program = (
        "import sys, penstock\n"
        "print(sorted(name for name in sys.modules if name.startswith('penstock')))\n"
        "penstock.ConnectionOptions\n"
        "print('penstock.options' in sys.modules, 'penstock.connection' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["['penstock', 'penstock.exports']", "True False"]
