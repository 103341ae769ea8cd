"""`OldDatabase`: the SQL database in which a NATS Streaming server kept its channels.

It is read through a module of Python's DB-API that the caller names: psycopg, pymysql, sqlite3. Only SELECT is used::

    ServerInfo     proto                                       the cluster id
    Clients        id
    Channels       id, name, deleted
    Messages       id, seq, data                               data is the message as protobuf
    Subscriptions  id, subid, lastsent, proto, deleted
    SubsPending    subid, row, seq, lastsent, pending, acks    one sequence, or lists as JSON; rows count in order
"""

from __future__ import annotations

import importlib
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl

from penstock.channels.names import is_channel
from penstock.channels.old_records import SubscriptionRecord, read_subscription
from penstock.channels.old_store import OldMessage, read_server_info, refuse_encrypted
from penstock.channels.store import MOST
from penstock.channels.wire import MsgProto, decode
from penstock.errors import InputError, RemoteProtocolError, StoreDamagedError, StoreInUseError
from penstock.json_text import load_json

__all__ = ["OldDatabase"]

_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_PAGE = min(MOST, 250)  # messages of a query, each as large as the server carried at most


class OldDatabase:
    """The database that `MODULE:KEY=VALUE&KEY=VALUE` names: a module, and what its `connect` takes.

    InputError if it cannot be opened or is not one of NATS Streaming. What the source says is a secret.
    """

    def __init__(self, source: str) -> None:
        module, colon, rest = source.partition(":")
        remedy = "Write MODULE:KEY=VALUE&KEY=VALUE, such as psycopg:host=db&dbname=nss&user=nss."
        if not colon or not _MODULE.fullmatch(module):
            raise InputError("--from-sql names no module and what to connect to.", remedy=remedy)
        try:
            options: dict[str, Any] = dict(parse_qsl(rest, strict_parsing=True))
        except ValueError:
            raise InputError("--from-sql does not say what to connect to.", remedy=remedy) from None
        if options.get("port", "").isdecimal():
            options["port"] = int(options["port"])
        self.notes: list[str] = []
        """What was left out, and why."""
        self._where = f"in {module}"
        try:
            self._connection = importlib.import_module(module).connect(**options)
        except ImportError:
            raise InputError(f"There is no module {module}.", remedy=f"Install it: pip install {module}.") from None
        except Exception as error:  # each module has errors of its own; their texts may hold the password
            raise InputError(
                f"{module} does not connect: {type(error).__name__}.", remedy="Check what follows its name."
            ) from None
        self._ids: dict[str, int] = {}
        try:
            [(content,)] = self._ask("SELECT proto FROM ServerInfo") or [(None,)]
            if content is None:
                raise InputError(f"The database {self._where} has no server.", remedy="Is it the right one?")
            self.cluster_id = read_server_info(bytes(content), self._where)
            self._seen = self._look()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        """Ask for rows. Only numbers are ever put into a query, so that it is the same for all modules."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(query)
            self._names = [column[0].lower() for column in cursor.description]
            return list(cursor.fetchall())
        except Exception as error:  # each module has errors of its own
            table = query.partition(" FROM ")[2].split(" ")[0]
            raise InputError(
                f"The table {table} {self._where} cannot be read: {type(error).__name__}.",
                remedy="Is it a database of NATS Streaming, and may we read it?",
            ) from None
        finally:
            cursor.close()

    def _look(self) -> list[Any]:
        """Give figures that change when a server writes."""
        return [
            self._ask("SELECT COUNT(*), MAX(seq) FROM Messages"),
            self._ask("SELECT COUNT(*), SUM(lastsent) FROM Subscriptions"),
            self._ask("SELECT COUNT(*), SUM(lastsent), SUM(seq) FROM SubsPending"),
        ]

    def check_unused(self) -> None:
        """Do nothing: a database does not tell who has it open; `check_unchanged` sees who writes."""

    def check_unchanged(self) -> None:
        """Raise StoreInUseError if the database has changed since it was opened."""
        self._connection.rollback()  # what others wrote since is to be seen
        if self._look() != self._seen:
            raise StoreInUseError(
                f"The database {self._where} has changed while it was read: a server writes there.",
                remedy="Stop the old server first.",
            )

    # -- what there is -----------------------------------------------------------------------------------------------

    def channels(self) -> list[str]:
        """Give the names of the channels."""
        for id, name, deleted in self._ask("SELECT id, name, deleted FROM Channels"):
            if not deleted:
                if not is_channel(str(name)):
                    raise self._damaged(f"has a channel {name!r}")
                self._ids[str(name)] = int(id)
        return sorted(self._ids)

    def clients(self) -> set[str]:
        """Give the ids of the clients that were connected."""
        return {str(name) for (name,) in self._ask("SELECT id FROM Clients")}

    def subscriptions(self, channel: str) -> list[SubscriptionRecord]:
        """Give the subscriptions of a channel, durable or not, with what each has not acknowledged."""
        found = []
        query = f"SELECT lastsent, proto, deleted FROM Subscriptions WHERE id = {self._ids[channel]}"  # noqa: S608  # a number
        for last, content, deleted in self._ask(query):
            if deleted or content is None:
                continue
            try:
                made = read_subscription(bytes(content))
                made.last_sent = max(made.last_sent, int(last))
                self._add_pending(made)
            except (RemoteProtocolError, ValueError, TypeError) as error:
                raise self._damaged(f"has a subscription of {channel} that cannot be read ({error})") from None
            found.append(made)
        return found

    def _add_pending(self, made: SubscriptionRecord) -> None:
        rows = self._ask(f"SELECT * FROM SubsPending WHERE subid = {made.id}")  # noqa: S608  # a number
        named = sorted((dict(zip(self._names, row, strict=True)) for row in rows), key=lambda row: int(row["row"]))
        for row in named:
            if row["seq"]:
                made.pending.add(int(row["seq"]))
            else:
                made.pending.update(int(number) for number in load_json(bytes(row["pending"] or b"") or b"[]"))
                made.pending.difference_update(int(number) for number in load_json(bytes(row["acks"] or b"") or b"[]"))
            made.last_sent = max(made.last_sent, int(row["seq"] or 0), int(row["lastsent"] or 0))

    def _damaged(self, what: str) -> StoreDamagedError:
        return StoreDamagedError(f"The database {self._where} {what}.", remedy="Put back a copy of it.")

    # -- messages ----------------------------------------------------------------------------------------------------

    async def ends(self, channel: str) -> tuple[int, int] | None:
        """Give the first and the last message of a channel; None if it has none."""
        query = f"SELECT MIN(seq), MAX(seq) FROM Messages WHERE id = {self._ids[channel]}"  # noqa: S608  # a number
        [(first, last)] = self._ask(query)
        return None if first is None else (int(first), int(last))

    async def read(self, channel: str, start: int, last: int) -> AsyncIterator[list[OldMessage]]:
        """Give a channel's messages from `start` to `last`, in batches."""
        while start <= last:
            rows = self._ask(
                f"SELECT seq, data FROM Messages WHERE id = {self._ids[channel]} AND seq >= {start} AND seq <= {last} "  # noqa: S608  # numbers
                f"ORDER BY seq LIMIT {_PAGE}"
            )
            if not rows:
                return
            batch = []
            for sequence, content in rows:
                try:
                    message = decode(MsgProto, bytes(content))
                except (RemoteProtocolError, TypeError):
                    raise self._damaged(f"has a message {sequence} of {channel} that cannot be read") from None
                if message.sequence != sequence:
                    raise self._damaged(f"has message {message.sequence} of {channel} in the place of {sequence}")
                refuse_encrypted(channel, message.sequence, message.data)
                batch.append(OldMessage(message.sequence, message.data, message.reply, message.timestamp))
            yield batch
            start = batch[-1].sequence + 1
