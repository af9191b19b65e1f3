"""Plants every bug once, those picked from the generated ones included: how many were caught."""

from __future__ import annotations

import argparse
import random
import shutil
import time
from pathlib import Path

import msgspec
from tests.proof.mutants.generic import PICKED, find
from tests.proof.mutants.plant import is_caught
from tests.proof.mutants.planted import BUGS
from tests.proof.mutants.planted_postgres import POSTGRES_BUGS
from tests.proof.mutants.planted_redis import REDIS_BUGS
from tests.servers import REDIS_SERVER


def no_server() -> bool:
    """Whether PostgreSQL is not there."""
    return not (shutil.which("postgres") or any(Path("/usr/lib/postgresql").glob("*/bin/postgres")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=3600.0)
    told = parser.parse_args()
    began = time.monotonic()
    redis = REDIS_BUGS if shutil.which(REDIS_SERVER) else ()
    postgres = () if no_server() else POSTGRES_BUGS
    bugs = [*BUGS, *redis, *postgres, *(find(pick) for pick in PICKED)]
    random.Random(told.seed).shuffle(bugs)
    planted = 0
    missed: list[str] = []
    for bug in bugs:
        if planted and time.monotonic() - began > told.budget:
            break
        planted += 1
        if said := is_caught(bug):
            missed.append(said)
    found = {
        "planted": planted,
        "caught": planted - len(missed),
        "broken": {"not caught": len(missed)} if missed else {},
        "stories": missed,
        "seed": told.seed,
    }
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
