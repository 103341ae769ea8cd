"""The command `penstock`: a shell over the library, one file a noun.

Its commands and flags are public, and listed in docs/reference/commands.md; its modules are not for users.
"""

from penstock.cli.app import main

__all__ = ["main"]
