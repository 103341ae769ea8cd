"""Power failures and damaged files on a real server: `make durability [ARGS="--seconds 10 --cuts 20"]`.

Prints tables, and writes artifacts/durability.json. It ends with 1 if a server that syncs always has lost anything that
it acknowledged.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.server import find_binary
from tests.durability.acts import KINDS as ACTS
from tests.durability.damage import KINDS, damage_cluster, damage_one
from tests.durability.power import traced
from tests.durability.trace import Tracer

ROOT = Path(__file__).resolve().parents[2]


def power(nodes: int, sync: str, seconds: float, cuts: int, seed: int) -> dict[str, Any]:
    """Let the power fail at some moments; give the worst of them."""
    chance = random.Random(seed)
    with traced(nodes=nodes, sync=sync, seconds=seconds) as run:
        failures = []
        for number in range(cuts):
            moment = run.begun + (run.ended - run.begun) * (number + chance.random()) / cuts
            names, torn = (("kept", None), ("strict", None), ("kept", chance))[number % 3]
            failures.append(run.fail(moment, names, torn))  # type: ignore[arg-type]  # one of the two words
        return {
            "nodes": nodes,
            "sync": sync,
            "seconds": round(run.ended - run.begun, 1),
            "acked": len(run.acks),
            "syncs": run.syncs,
            "failures": len(failures),
            "failures_with_loss": sum(failure.lost > 0 for failure in failures),
            "most_lost": max(failure.lost for failure in failures),
            "of": max(failures, key=lambda failure: (failure.lost, failure.acked)).acked,
            "oldest_lost_seconds": round(max(failure.seconds for failure in failures), 1),
        }


def power_of_acts(seconds: float, cuts: int, seed: int) -> dict[str, Any]:
    """Let the power of a server that syncs always fail; give for each kind of act what was confirmed and undone."""
    chance = random.Random(seed)
    with traced(seconds=seconds, acting=True) as run:
        rows = {
            kind: {"confirmed": sum(item.kind == kind for item in run.acts), "undone_seconds": 0.0} for kind in ACTS
        }
        for number in range(cuts):
            moment = run.begun + (run.ended - run.begun) * (number + chance.random()) / cuts
            names, torn = (("kept", None), ("strict", None), ("kept", chance))[number % 3]
            for kind, age in run.fail(moment, names, torn).undone.items():  # type: ignore[arg-type]  # as above
                rows[kind]["undone_seconds"] = max(rows[kind]["undone_seconds"], round(age, 2))
        return rows


def main() -> int:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--cuts", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=["power", "damage"], default=None)
    given = parser.parse_args()
    made: dict[str, Any] = {"nats-server": find_binary(None).version, "power": [], "damage": []}
    if given.only != "damage":
        if not Tracer.found():
            print("make durability needs strace, to see what a server has synced.", file=sys.stderr)
            return 2
        print("nodes  sync    seconds  acked  syncs  failures  with loss  most lost  oldest lost")
        for nodes, sync in ((1, "always"), (1, "2m"), (3, "always"), (3, "2m")):
            row = power(nodes, sync, given.seconds, given.cuts, given.seed)
            made["power"].append(row)
            lost = f"{row['most_lost']:>5} of {row['of']}  {row['oldest_lost_seconds']} s"
            print(
                f"{nodes:>5}  {sync:6}  {row['seconds']:>7}  {row['acked']:>5}  {row['syncs']:>5}  "
                f"{row['failures']:>8}  {row['failures_with_loss']:>9}  {lost}",
                flush=True,
            )
        made["acts"] = power_of_acts(given.seconds, given.cuts, given.seed)
        for kind, row in made["acts"].items():
            print(
                f"{kind:>10}: {row['confirmed']} confirmed, undone at most {row['undone_seconds']} s before", flush=True
            )
    if given.only != "power":
        for what, run in _damages():
            found = run()
            made["damage"].append({"what": what, **asdict(found), "lost": found.lost})
            print(f"{what}: {found.kind}: {found.held} of {found.acked} held, {found.wrong} wrong", flush=True)
            for word, said in (("files", found.store), ("start", found.start), ("read", found.read)):
                print(f"    {word}: {said[:160]}", flush=True)
    (ROOT / "artifacts").mkdir(exist_ok=True)
    (ROOT / "artifacts" / "durability.json").write_text(json.dumps(made, indent=1))
    undone = {kind for kind, row in made.get("acts", {}).items() if row["undone_seconds"]} - {"ack"}
    return 1 if undone or any(row["sync"] == "always" and row["most_lost"] for row in made["power"]) else 0


def _damages() -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []

    def add(what: str, run: Any, *about: Any, **more: Any) -> None:
        found.append((what, lambda: run(*about, **more)))

    for kind in KINDS:
        add("one node, stopped", damage_one, kind)
    for kind in ("one bit in one block", "a block cut in half"):
        add("one node, killed (no index)", damage_one, kind, index=False)
        add("one node, while it runs", damage_one, kind, running=True)
    for kind in KINDS:
        add("one of three nodes, which then leads", damage_cluster, kind)
    for kind in ("one bit in one block", "a block cut in half"):
        add("snapshots of the cluster's state, one of three nodes", damage_cluster, kind, snapshots=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
