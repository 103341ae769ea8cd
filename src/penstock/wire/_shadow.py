"""What the plain modules need of `cython` where Cython is not installed: names that do nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

compiled = False


class _Type:
    """Stands for a C type: it can be indexed and called like one, and has no effect."""

    def __getitem__(self, _size: object) -> _Type:
        return self


int = uint = longlong = ulonglong = Py_ssize_t = bint = uchar = p_uchar = p_int = p_longlong = void = _Type()


def _unchanged(item: T) -> T:
    return item


cclass = cfunc = ccall = inline = final = _unchanged


def _decorator(*_types: object, **_named: object) -> Callable[[T], T]:
    return _unchanged


locals = returns = exceptval = _decorator


def declare(_type: object = None, value: Any = None, **_named: object) -> Any:
    """Give the value; the type is for the compiler."""
    return value
