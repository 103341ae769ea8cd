"""Runs one client under test until it is told to end: `python -m tests.faults.client PROGRAM '{"url": …}'`.

SIGUSR1 has it write into its log what each of its threads is doing.
"""

from __future__ import annotations

import _thread
import asyncio
import faulthandler
import importlib
import inspect
import json
import signal
import sys
import threading
from pathlib import Path

from penstock.errors import PenstockError
from tests.faults.history import Ledger, Told


async def _run_async(program, given: dict, ledger: Ledger) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    await program(given, ledger, over)


def main() -> int:
    """Run the program; an error of Penstock's own is written down, anything else is a traceback."""
    name, given = sys.argv[1], json.loads(sys.argv[2])
    program = importlib.import_module(f"tests.faults.clients.{name}").run
    ledger = Ledger(Path(given["ledger"]), given["client"], given["life"])
    faulthandler.register(signal.SIGUSR1)
    ledger.note("begin")
    try:
        if inspect.iscoroutinefunction(program):
            asyncio.run(_run_async(program, given, ledger))
        else:
            over = threading.Event()
            # By another thread: an event has a lock, which the main thread may hold when the signal comes.
            signal.signal(signal.SIGTERM, lambda *_: _thread.start_new_thread(over.set, ()))
            program(given, ledger, over)
    except PenstockError as error:
        ledger.note("stopped", error=type(error).__name__, text=str(error))
        return 1
    except Told as told:
        ledger.note("stopped", error=told.name, text=told.text)
        return 1
    ledger.note("end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
