"""Uses an installed Penstock the way a first user does, in an environment without Spark: `make dist` runs it.

It is run by the Python of that environment, from outside of the repository: python smoke.py compiled|plain
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import penstock
from penstock import channels, store, wire


def main() -> None:
    """Look at what is installed, and use it."""
    wanted = sys.argv[1] == "compiled"
    package = Path(penstock.__file__).parent
    assert "site-packages" in package.parts, package
    assert penstock.__version__ == importlib.metadata.version("penstock")
    assert (package / "py.typed").exists()
    assert (package.parent / "pyspark_nats" / "py.typed").exists()
    assert {wire.compiled, store.compiled, channels.compiled} == {wanted}, "compiled in part, or not as it should be"
    assert asyncio.run(publish()) == (1, True)
    for file in ("wire/jetstream/codes.tsv", "console/static", "pipelines/template/look.ipynb.in"):
        assert (package / file).exists(), file
    assert command("--version").stdout == f"penstock {penstock.__version__}\n"
    made = command("pipeline", "new", "first")
    assert made.returncode == 0, made.stderr
    assert "pip install 'penstock[spark]'" in made.stdout
    for words in (["demo"], ["quickstart", "second"], ["pipeline", "run", "first"], ["console"]):
        sentence(command(*words))
    assert not Path("second").exists(), "nothing is made of what cannot run"
    said = missing()
    assert said is not None, "there is Spark in an environment without it"
    assert "pip install 'penstock[spark]'" in said
    print(f"works, {'compiled' if wanted else 'plain Python'}, and says in a sentence what is missing for Spark")


def missing() -> str | None:
    """Give what the Spark part says of what is not installed; None if it misses nothing."""
    import penstock.spark

    try:
        _ = penstock.spark.NatsDataSource
    except penstock.PenstockError as error:
        return str(error)
    return None


async def publish() -> tuple[int, bool]:
    """Store a message twice on a real server, and give what it answered."""
    with penstock.Server() as server:
        nc = await penstock.connect(server.url)
        js = nc.jetstream()
        await js.add_stream(name="ORDERS", subjects=["orders.>"])
        first = await js.publish("orders.new", b"order 1", headers={"Nats-Msg-Id": "1"})
        again = await js.publish("orders.new", b"order 1", headers={"Nats-Msg-Id": "1"})
        await nc.close()
        return first.seq, bool(again.duplicate)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    program = str(Path(sys.executable).parent / "penstock")
    return subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=120)


def sentence(done: subprocess.CompletedProcess[str]) -> None:
    """Check that a command ended in one sentence that says what to install."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert "pip install 'penstock[" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


if __name__ == "__main__":
    main()
