"""How long it takes until a killed worker's job runs again, with another worker standing by.

``python -m tests.proof.recovery --rounds 20``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from tests.proof import journal as journals
from tests.proof import tolls
from tests.proof.actors import dumped_in_child
from tests.proof.checker import check
from tests.proof.fleet import work
from tests.proof.journal import Journal
from tests.proof.kill import Toll
from tests.proof.patience import linger, until
from tests.proof.processes import Child, fork, in_child
from tests.proof.stores import sqlite_store

if TYPE_CHECKING:
    from outlast.job import Job

__all__ = ["enqueue_slow", "recovery_rounds", "take_recovery"]


def enqueue_slow(seconds: float) -> None:
    """Add one job that runs so long; told before and after."""

    async def add() -> None:
        journal = tolls.say_hello()
        async with tolls.app as app:
            call = tolls.slow.call(seconds)
            journal.write("invoke", call.job.id)
            await app.enqueue_many([call])
            journal.write("ok", call.job.id)

    asyncio.run(add())


def recovery_rounds(rounds: int, seed: int, budget: float = 3600.0) -> Toll:
    """Kill the worker that runs the one job there is, so many times, and see it run elsewhere."""
    toll = Toll(seed=seed)
    dice = random.Random(seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outlast-recovery-") as scratch:
        folder = Path(scratch)
        witness = folder / "witness"
        witness.mkdir()
        os.environ["OUTLAST_URL"] = f"sqlite:///{folder / 'proof.db'}"
        os.environ["PROOF_WITNESS"] = str(witness)
        workers = {child.pid: child for child in (fork(work), fork(work))}
        rig = Journal(witness)
        try:
            for done in range(rounds):
                if time.monotonic() - began > budget:
                    break
                toll.rounds += 1
                in_child(lambda: enqueue_slow(0.2), 20)
                _one_kill(witness, rig, workers, dice.uniform(0.0, 0.1))
                starts = 2 * done + 2
                until(lambda n=starts: _count(witness, "start") == n, 60.0, "it runs elsewhere")  # type: ignore[misc]
                # Only now: whoever opens the store recovers what the dead one held.
                child = fork(work)
                workers[child.pid] = child
                ends = done + 1
                until(lambda n=ends: _count(witness, "end") == n, 60.0, "it ends elsewhere")  # type: ignore[misc]
            rig.write("calm")
            for child in workers.values():
                rig.write("term", target=child.pid)
                child.send(signal.SIGTERM)
                if child.wait(20) != 0:
                    raise RuntimeError("a worker did not end in order")
        finally:
            for child in workers.values():
                child.kill()
            rig.close()
        final = dumped_in_child(lambda: sqlite_store(folder / "proof.db"), folder / "final.json")
        events = journals.read(witness)
        toll.add(check(events, final, author=_author), events)
    toll.seconds = time.monotonic() - began
    return toll


def _one_kill(witness: Path, rig: Journal, workers: dict[int, Child], pause: float) -> None:
    """Kill whoever has begun the last job."""
    before = _count(witness, "end")

    def running() -> int:
        begun = [event for event in journals.read(witness) if event.kind in ("start", "end")]
        return begun[-1].pid if begun and begun[-1].kind == "start" else 0

    until(running, 60.0, "the job runs")
    linger(pause)
    victim = running()
    if not victim or _count(witness, "end") != before:
        raise RuntimeError("the job ended before the kill")
    rig.write("kill", target=victim)
    workers.pop(victim).kill()


def _count(witness: Path, kind: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return sum(event.kind == kind for event in journals.read(witness))
    return 0


def _author(job: Job) -> tuple[int, int] | None:
    return tolls.author(job.result)


def take_recovery(rounds: int, seed: int) -> Toll:
    """Run the rounds in a fresh process."""
    words = ["--rounds", str(rounds), "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.recovery", *words],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        check=True,
        timeout=60 + rounds * 10,
    )
    return msgspec.json.decode(done.stdout, type=Toll)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=3600.0)
    told = parser.parse_args()
    print(msgspec.json.encode(recovery_rounds(told.rounds, told.seed, told.budget)).decode())


if __name__ == "__main__":
    main()
