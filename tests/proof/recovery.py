"""How long it takes until a killed worker's job runs again, with another worker standing by.

``python -m tests.proof.recovery --rounds 20``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.proof import journal as journals
from tests.proof import tolls
from tests.proof.actors import dumped_in_child
from tests.proof.checker import check
from tests.proof.fleet import work
from tests.proof.journal import Journal
from tests.proof.kill import Toll, in_fresh_process, run_rounds
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
                in_child(lambda: enqueue_slow(0.2), 60.0)
                _one_kill(witness, rig, workers, dice.uniform(0.0, 0.1))
                starts = 2 * done + 2
                # Before its lease can have ended, which lasts 15 s.
                until(lambda n=starts: _count(witness, "start") == n, 14.0, "it runs elsewhere")  # type: ignore[misc]
                # Only now: whoever opens the store recovers what the dead one held.
                child = fork(work)
                workers[child.pid] = child
                ends = done + 1
                until(lambda n=ends: _count(witness, "end") == n, 60.0, "it ends elsewhere")  # type: ignore[misc]
            rig.write("calm")
            for child in workers.values():
                rig.write("term", target=child.pid)
                child.send(signal.SIGTERM)
                if child.wait(60) != 0:
                    raise RuntimeError("a worker did not end in order")
        finally:
            for child in workers.values():
                child.kill()
            rig.close()
        final = dumped_in_child(lambda: sqlite_store(folder / "proof.db"), folder / "final.json")
        events = journals.read(witness)
        toll.add(check(events, final, author=_author), events)
        toll.start_worst = max(_first_starts(events), default=0.0)
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


def _first_starts(events: list[journals.Event]) -> list[float]:
    """Seconds from adding each job to its first start."""
    added = {event.id: event.at for event in events if event.kind == "invoke"}
    started: dict[str, float] = {}
    for event in events:
        if event.kind == "start":
            started.setdefault(event.id, event.at)
    return [at - added[id] for id, at in started.items()]


def _count(witness: Path, kind: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return sum(event.kind == kind for event in journals.read(witness))
    return 0


def _author(job: Job) -> tuple[int, int] | None:
    return tolls.author(job.result)


def take_recovery(rounds: int, seed: int) -> Toll:
    """Run the rounds in a fresh process."""
    return in_fresh_process("recovery", rounds, seed, 60.0 * rounds)


if __name__ == "__main__":
    run_rounds(__doc__, 20, recovery_rounds)
