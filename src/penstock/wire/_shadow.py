"""What the plain modules need of `cython` if Cython is not installed: one name, and it says no."""

__all__ = ["compiled"]

compiled = False
