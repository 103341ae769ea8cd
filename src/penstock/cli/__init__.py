"""The command `penstock`: a shell over the library, one file a noun.

A verb is a function that `tree` names, and a coroutine if it asks a server (`running`). Its parameters are its flags
and arguments (`flags`); a flag that sets a field of a configuration is a line of a table (`stream_flags`).

Its commands and flags are public, and listed in docs/reference/commands.md; its modules are not for users.
"""

from penstock.cli.app import main

__all__ = ["main"]
