"""Replay a pipeline with changed code: from a time, beside what runs, compare, and switch.

The pipeline in `pipeline/` writes readings above 90 into the stream HIGH. The limit becomes 80. The changed code runs
over what is in the stream already, into a new stream; the two are compared, and only then the pipeline is switched.

    penstock server run                             # in a terminal of its own, or set NATS_URL to a server of yours
    python examples/replay/replay.py [FOLDER] [sc://...]

The folder is example-output/replay if none is named. It starts Spark twice, or uses the Spark Connect server that is
named. The same by hand, in the folder that it makes:

    penstock pipeline run example-output/replay
    penstock pipeline replay example-output/replay --from 101 --into HIGH=HIGH_V2 --name v2 --switch
    penstock pipeline switch example-output/replay --back
"""

import asyncio
import json
import shutil
import sys
from pathlib import Path

import penstock
from penstock.errors import NotFoundError
from penstock.jetstream import Publisher, Topology, apply
from penstock.pipelines import replay, run

HERE = Path(__file__).parent
READINGS = [{"meter": f"m{number % 4}", "value": number * 37 % 100} for number in range(200)]


async def send() -> str:
    """Fill the stream METERS, and give the time at which its 101st reading was stored."""
    async with await penstock.connect() as nc:  # the server that `penstock server run` runs, or NATS_URL
        try:
            await nc.jetstream().stream_info("METERS")
        except NotFoundError:
            pass
        else:
            sys.exit("There is a stream METERS already: remove what an earlier run made, or use another server.")
        await apply(nc, Topology.load(HERE / "pipeline" / "topology.toml"))
        async with Publisher(nc, "METERS") as publisher:
            for reading in READINGS:
                await publisher.send(f"meters.{reading['meter']}", json.dumps(reading).encode())
        stored = await nc.jetstream().get_msg("METERS", 101)
        return stored.time.isoformat()


def above(limit: int, first: int = 0) -> int:
    return sum(reading["value"] > limit for reading in READINGS[first:])


def main(folder: Path, remote: str | None = None) -> None:
    if folder.exists():
        sys.exit(f"{folder} is there already: name another folder, or remove it.")
    moment = asyncio.run(send())
    shutil.copytree(HERE / "pipeline", folder, ignore=shutil.ignore_patterns("storage", "__pycache__"))
    outcome = run(folder, remote=remote)
    print(f"The pipeline read {outcome.rows_in} readings, and wrote those above 90 into HIGH.")

    code = folder / "transformations" / "high.py"
    code.write_text(code.read_text().replace("LIMIT = 90", "LIMIT = 80"))
    done = replay(folder, start=moment, into={"HIGH": "HIGH_V2"}, name="v2", switch_to_it=True, remote=remote)
    (found,) = done.comparisons
    print(f"Changed, and replayed from {moment} into HIGH_V2. HIGH has {found.old_count}, HIGH_V2 {found.new_count}:")
    print(f"{found.same} are the same, {found.only_old} only in HIGH (before that time), {found.only_new} are new.")
    assert (found.old_count, found.new_count) == (above(90), above(80, 100)), "each reading counts once, in both"
    assert (found.same, found.only_new) == (above(90, 100), above(80, 100) - above(90, 100))
    print("Switched: the next run goes on where the replay ended, into HIGH_V2. `--back` would undo it.")


if __name__ == "__main__":
    words = [*sys.argv[1:], "example-output/replay"]
    main(Path(words[0]).absolute(), next((word for word in words if word.startswith("sc://")), None))
