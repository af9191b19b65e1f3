"""Kill rounds: processes that work on one store are killed at random moments, and nothing is lost.

Bare forks: each round forks a process that opens the store, adds, claims and settles, while another
one is killed. The forks come from a process that never touches the store itself.
``python -m tests.proof.kill --rounds 1000``.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from tests.proof import journal as journals
from tests.proof.actors import drained_in_child, live
from tests.proof.checker import Report, check
from tests.proof.journal import Journal
from tests.proof.patience import linger, until
from tests.proof.processes import Child, fork
from tests.proof.stage import result_of
from tests.proof.stores import sqlite_store

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Toll", "bare_rounds", "in_fresh_process", "run_rounds", "take_toll"]

SESSION = 250
"""Rounds on one store before it is drained and judged."""


@dataclass(slots=True)
class Toll:
    """The sum over the sessions of a kill test."""

    rounds: int = 0
    acknowledged: int = 0
    uncertain: int = 0
    runs: int = 0
    explained: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    stories: list[str] = field(default_factory=list)
    recovery_p99: float = 0.0
    recovery_worst: float = 0.0
    start_worst: float = 0.0
    """The longest that a job waited for its first start, where that was measured: the machine's
    own pace, by which a recovery is judged."""
    seconds: float = 0.0
    seed: int = 0

    def add(self, report: Report, events: list[journals.Event]) -> None:
        self.acknowledged += report.acknowledged
        self.uncertain += report.uncertain
        self.runs += report.runs
        self.explained += report.explained
        self.recovery_p99 = max(self.recovery_p99, report.recovery_at(0.99))
        self.recovery_worst = max(self.recovery_worst, report.worst_recovery)
        for name, found in report.broken.items():
            self.broken[name] = self.broken.get(name, 0) + len(found)
        if report.broken and len(self.stories) < 3:
            self.stories.append(report.story(events))


def bare_rounds(rounds: int, seed: int, budget: float = float("inf")) -> Toll:
    """So many forks, each killed at a moment drawn by lot, or as many as ``budget`` allows."""
    toll = Toll(seed=seed)
    began = time.monotonic()
    dice = random.Random(seed)
    while toll.rounds < rounds and time.monotonic() - began < budget:
        with tempfile.TemporaryDirectory(prefix="outlast-kill-") as scratch:
            folder = Path(scratch)
            witness = folder / "witness"
            witness.mkdir()
            wanted = min(SESSION, rounds - toll.rounds)
            toll.rounds += _session(folder / "proof.db", witness, wanted, dice, began + budget)
            final = drained_in_child(
                lambda db=folder / "proof.db": sqlite_store(db),  # type: ignore[misc]
                witness,
                folder / "final.json",
            )
            events = journals.read(witness)
            toll.add(check(events, final, result=result_of), events)
    toll.seconds = time.monotonic() - began
    return toll


def _session(db: Path, witness: Path, rounds: int, dice: random.Random, deadline: float) -> int:
    """Fork and kill, two at a time, so that a survivor goes on across each kill."""
    rig = Journal(witness)
    alive: list[Child] = []
    done = 0
    try:
        while done < rounds and time.monotonic() < deadline:
            number = dice.getrandbits(32)
            alive.append(fork(lambda n=number: _life(db, witness, n)))  # type: ignore[misc]
            if dice.random() < 0.7:
                # Most kills are to hit work; the others hit the opening, wherever it is by then.
                _until_it_works(witness, alive[-1])
            linger(dice.uniform(0.0, 0.04))
            if len(alive) < 2:
                continue
            victim = alive.pop(dice.randrange(2))
            rig.write("kill", target=victim.pid)
            if not victim.alive:
                raise RuntimeError(f"process {victim.pid} ended by itself: {victim.status}")
            victim.kill()
            done += 1
    finally:
        for child in alive:
            rig.write("kill", target=child.pid)
            child.kill()
        rig.write("calm")
        rig.close()
    return done


def _until_it_works(witness: Path, child: Child) -> None:
    until(lambda: any(witness.glob(f"{child.pid}-*")) or not child.alive, 60.0, "it does something")


def _life(db: Path, witness: Path, seed: int) -> None:
    # No lease runs out in a session: what the dead held has to come back by their lifelines.
    asyncio.run(live(lambda: sqlite_store(db), Journal(witness), seed, lease=3600.0))


def take_toll(rounds: int, seed: int, budget: float = 3600.0) -> Toll:
    """Run the rounds in a fresh process, which is small and forks fast."""
    return in_fresh_process("kill", rounds, seed, budget)


def in_fresh_process(rig: str, rounds: int, seed: int, budget: float) -> Toll:
    """What a module of this folder with ``run_rounds`` as its main prints."""
    words = ["--rounds", str(rounds), "--seed", str(seed), "--budget", str(budget)]
    done = subprocess.run(
        [sys.executable, "-m", f"tests.proof.{rig}", *words],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        check=True,
        timeout=budget + 300,
    )
    return msgspec.json.decode(done.stdout, type=Toll)


def run_rounds(about: str | None, rounds: int, run: Callable[[int, int, float], Toll]) -> None:
    """The main program of a rig that counts rounds: so many by default, and JSON in the end."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=3600.0)
    told = parser.parse_args()
    print(msgspec.json.encode(run(told.rounds, told.seed, told.budget)).decode())


if __name__ == "__main__":
    run_rounds(__doc__, 1000, bare_rounds)
