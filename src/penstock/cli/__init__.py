"""The command `penstock`: a shell over the library, one file a noun."""

from penstock.cli.app import main

__all__ = ["main"]
