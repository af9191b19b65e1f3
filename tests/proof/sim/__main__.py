"""Repeats a seed (`--seed 7 --profile dense`), or runs many (`--seeds 0-999`, `--budget 60`)."""

from __future__ import annotations

import argparse
import sys

import msgspec
from tests.proof.sim.plan import PROFILES
from tests.proof.sim.runs import explain, run_worlds
from tests.proof.sim.world import run_world

BLOCK = 1_000_000
"""Seeds that one numbered piece of a long run may use."""
TURNS = ("dense", "dense", "dense", "sparse")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", choices=list(PROFILES))
    parser.add_argument("--faults", help="numbers of the only faults to have, by comma, or none")
    parser.add_argument("--seeds", help="FIRST-LAST")
    parser.add_argument("--budget", type=float, help="seconds; then --seed numbers the piece")
    told = parser.parse_args()
    turns = TURNS if told.profile is None else (told.profile,)
    if told.seeds is None and told.budget is None:
        return _one(told.seed, told.profile or "dense", told.faults)
    if told.seeds is not None:
        first, _, last = told.seeds.partition("-")
        seeds = range(int(first), int(last or first) + 1)
    else:
        seeds = range(told.seed * BLOCK, (told.seed + 1) * BLOCK)
    total = run_worlds(seeds, turns, told.budget or 1e9)
    total.seed = told.seed
    print(msgspec.json.encode(total).decode())
    # The numbers tell of what is broken; the long run reads them there.
    return 1 if total.broken and told.budget is None else 0


def _one(seed: int, profile: str, faults: str | None) -> int:
    only = None
    if faults is not None:
        only = [] if faults == "none" else [int(number) for number in faults.split(",")]
    outcome = run_world(seed, profile, only)
    if outcome.broken:
        print(outcome.story if only is not None else explain(outcome))
    print(
        f"seed {seed}, {profile}: {outcome.steps} steps, {outcome.seconds:.0f} s,"
        f" {outcome.runs} runs, digest {outcome.digest}: {outcome.broken or 'all promises hold'}"
    )
    return 1 if outcome.broken else 0


if __name__ == "__main__":
    sys.exit(main())
