"""Workers killed at writes of jobs with steps and transactions: each effect is there exactly once.

Each round is a process that works on one file and kills itself as it is about to do its n-th write
or sync, wherever that is: ``--sweep`` takes each n in turn, else n is drawn by lot.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
from tests.proof.processes import fork, in_child
from tests.proof.stores import sqlite_store
from tests.proof.vfs import watched

from outlast import Outlast, current
from outlast.stores.sqlite.schema import DONE
from outlast.stores.sqlite.verify import verify
from outlast.worker import Worker

if TYPE_CHECKING:
    from tests.proof.vfs import Op

__all__ = ["Deeds", "take_deeds"]

QUEUE = "deeds"
JOBS = 8
"""In one file; when all are done, the next round begins another."""
REACH = 200
"""The highest n that is drawn."""


@dataclass
class Deeds:
    """The sum over the rounds."""

    rounds: int = 0
    killed: int = 0
    acknowledged: int = 0
    """Jobs that were to be done once."""
    effects: int = 0
    repeated: int = 0
    """Works of steps that were done more than once: killed before they were remembered."""
    broken: dict[str, int] = field(default_factory=dict)
    stories: list[str] = field(default_factory=list)
    seconds: float = 0.0
    seed: int = 0

    def finding(self, what: str, story: str) -> None:
        self.broken[what] = self.broken.get(what, 0) + 1
        self.stories.append(f"{what}: {story}")


class _Killer:
    """Looks on at the files, and kills this process at its n-th write."""

    def __init__(self, nth: int) -> None:
        self._left = nth

    def before(self, op: Op) -> None:
        if op.kind in ("write", "sync", "truncate", "delete"):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def after(self, op: Op) -> None:
        """Nothing to note."""


def app_at(folder: Path) -> Outlast:
    """Jobs whose effects are seen: marks in a file outside, rows inside, jobs that follow."""
    app = Outlast(f"sqlite:///{folder}/deeds.db")
    marks = folder / "marks"

    def mark(kind: str, n: int) -> str:
        token = uuid.uuid4().hex
        out = os.open(marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(out, f"{kind} {n} {token}\n".encode())
        os.close(out)
        return token

    @app.task(name="follow", queue=QUEUE, max_crashes=None)
    async def follow(n: int) -> str:
        return str(await current().step("follow", mark, "follow", n))

    @app.task(name="deed", queue=QUEUE, max_crashes=None)
    async def deed(n: int) -> str:
        step = current().step
        first = await step("first", mark, "first", n)
        await asyncio.gather(step("side", mark, "side1", n), step("side", mark, "side2", n))
        async with current().transaction() as tx:
            await tx.execute("INSERT INTO effects (n, mark) VALUES (?, ?)", (n, first))
            await follow.enqueue(n)
            await step("inner", mark, "inner", n)
            tx.result = first
        return "too late"

    return app


async def _fill(folder: Path, jobs: int) -> None:
    app = app_at(folder)
    async with app:
        await app.enqueue_many([app.tasks["deed"].call(n) for n in range(jobs)])
    connection = apsw.Connection(str(folder / "deeds.db"))
    connection.execute("CREATE TABLE effects (n INTEGER NOT NULL, mark TEXT NOT NULL)")
    connection.close()


async def _work(folder: Path, vfs: str) -> None:
    app = app_at(folder)
    async with app:
        # No lease runs out here: what the dead held comes back by their lifelines.
        worker = Worker(
            lambda: sqlite_store(folder / "deeds.db", vfs=vfs),
            app.tasks,
            queues=(QUEUE,),
            concurrency=3,
            lease=3600.0,
        )
        running = asyncio.create_task(worker.run())
        while (await app.store.depth(QUEUE)).live and not running.done():
            await app.store.wait(("none",), 0.01)
        worker.stop()
        await running


def _life(folder: Path, nth: int) -> None:
    with watched("proof-deeds", _Killer(nth)) as vfs:
        asyncio.run(_work(folder, vfs))


def _round(folder: Path, nth: int, deeds: Deeds) -> bool:
    """One life; whether it came to its end."""
    child = fork(lambda: _life(folder, nth))
    try:
        code = child.wait(120.0)
    except TimeoutError:
        deeds.finding("stuck", f"a worker that was to die at write {nth} did nothing for 120 s")
        raise
    finally:
        child.kill()
    deeds.rounds += 1
    if code == -signal.SIGKILL:
        deeds.killed += 1
    elif code != 0:
        deeds.finding("failed", f"a worker ended with {code} before its write {nth}")
    return code == 0


def _judge(folder: Path, jobs: int, deeds: Deeds) -> None:
    """What must be true when all jobs have ended."""
    connection = apsw.Connection(str(folder / "deeds.db"))
    deeds.acknowledged += jobs
    for wrong in verify(connection):
        deeds.finding("verify", wrong)
    effects: list[Any] = connection.execute("SELECT n, mark FROM effects ORDER BY n").fetchall()
    deeds.effects += len(effects)
    if [n for n, _ in effects] != list(range(jobs)):
        deeds.finding("effects", f"{jobs} jobs left the rows {[n for n, _ in effects]}")
    results, stored = _outcomes(connection, deeds)
    connection.close()
    wanted = sorted([(task, n) for task in ("deed", "follow") for n in range(jobs)])
    if sorted(task for task, _ in results) != wanted:
        deeds.finding("jobs", f"there are {sorted(results)}")
    _judge_marks(folder, jobs, stored, deeds)
    found = dict(results)
    for n, mark in effects:
        if not mark == found.get(("deed", n)) == stored.get(("first", n)):
            deeds.finding("result", f"deed {n}: row, result and step differ")
        if found.get(("follow", n)) != stored.get(("follow", n)):
            deeds.finding("result", f"follow {n}: result and step differ")


def _outcomes(
    connection: apsw.Connection, deeds: Deeds
) -> tuple[list[tuple[tuple[str, int], Any]], dict[tuple[str, int], str]]:
    """The result of each job, by its task and number, and what is stored of each step."""
    jobs: list[Any] = connection.execute(
        "SELECT j.id, l.task, j.state, j.payload, j.result"
        " FROM jobs j JOIN lines l ON l.id = j.line"
    ).fetchall()
    results: list[tuple[tuple[str, int], Any]] = []
    stored: dict[tuple[str, int], str] = {}
    kinds = {"side#1": "side1", "side#2": "side2"}
    for identifier, task, state, payload, result in jobs:
        n = msgspec.json.decode(payload)["n"]
        if state != DONE:
            deeds.finding("unfinished", f"{task} {n} is in state {state}")
        results.append(((task, n), msgspec.json.decode(result or b"null")))
        steps: list[Any] = connection.execute(
            "SELECT name, result FROM steps WHERE job = ?", (identifier,)
        ).fetchall()
        for name, value in steps:
            stored[kinds.get(name, name.partition("#")[0]), n] = msgspec.json.decode(value)
    return results, stored


def _judge_marks(folder: Path, jobs: int, stored: dict[tuple[str, int], str], deeds: Deeds) -> None:
    """What is remembered of a step is the last time it was done: it was not done again after."""
    made: dict[tuple[str, int], list[str]] = {}
    for line in (folder / "marks").read_text().splitlines():
        kind, number, token = line.split()
        made.setdefault((kind, int(number)), []).append(token)
    wanted = {
        (kind, n) for kind in ("first", "side1", "side2", "inner", "follow") for n in range(jobs)
    }
    if set(made) != wanted or set(stored) != wanted:
        deeds.finding("steps", f"made {sorted(made)}, stored {sorted(stored)}")
    for place, tokens in made.items():
        deeds.repeated += len(tokens) - 1
        if stored.get(place) != tokens[-1]:
            deeds.finding("repeated", f"{place} was remembered and done again: {tokens}")


def _judged(folder: Path, jobs: int, deeds: Deeds) -> None:
    """Judge in a child: beside the rounds to come no open database must be in this process."""
    found = folder / "found"

    def judge() -> None:
        mine = Deeds()
        _judge(folder, jobs, mine)
        found.write_bytes(msgspec.json.encode(mine))

    in_child(judge, 120.0)
    mine = msgspec.json.decode(found.read_bytes(), type=Deeds)
    deeds.acknowledged += mine.acknowledged
    deeds.effects += mine.effects
    deeds.repeated += mine.repeated
    for story in mine.stories:
        deeds.finding(story.partition(":")[0], story)


def _sweep(deeds: Deeds, most: int, until: float) -> None:
    """One job, killed at each of its writes in turn, each time from the same start."""
    with tempfile.TemporaryDirectory(prefix="deeds-") as name:
        start = Path(name) / "start"
        start.mkdir()
        in_child(lambda: asyncio.run(_fill(start, 1)), 120.0)
        for nth in range(1, most + 1):
            folder = Path(name) / str(nth)
            shutil.copytree(start, folder)
            ended = _round(folder, nth, deeds)
            if not ended:
                _round(folder, sys.maxsize, deeds)
            _judged(folder, 1, deeds)
            shutil.rmtree(folder)
            if ended or time.monotonic() > until:
                break


def _by_lot(deeds: Deeds, most: int, until: float, dice: random.Random) -> None:
    with tempfile.TemporaryDirectory(prefix="deeds-") as name:
        folder = Path(name)
        in_child(lambda: asyncio.run(_fill(folder, JOBS)), 120.0)
        while deeds.rounds < most and time.monotonic() < until:
            if _round(folder, dice.randint(1, REACH), deeds):
                break
        else:
            # Out of rounds: one last life, which nobody kills.
            _round(folder, sys.maxsize, deeds)
        _judged(folder, JOBS, deeds)


def rounds(most: int, seed: int, budget: float, *, sweep: bool) -> Deeds:
    """So many lives, or those that fit into the budget."""
    deeds = Deeds(seed=seed)
    began = time.monotonic()
    if sweep:
        _sweep(deeds, most, began + budget)
    else:
        dice = random.Random(seed)
        while deeds.rounds < most and time.monotonic() < began + budget:
            _by_lot(deeds, most, began + budget, dice)
    deeds.seconds = time.monotonic() - began
    return deeds


def take_deeds(most: int, seed: int, *, sweep: bool = False, budget: float = 3600.0) -> Deeds:
    """Run the rounds in a fresh process, which is small and forks fast."""
    words = ["--rounds", str(most), "--seed", str(seed), "--budget", str(budget)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.deeds", *words, *(["--sweep"] if sweep else [])],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        check=True,
        timeout=budget + 300,
    )
    return msgspec.json.decode(done.stdout, type=Deeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=3600.0)
    parser.add_argument("--sweep", action="store_true")
    told = parser.parse_args()
    deeds = rounds(told.rounds, told.seed, told.budget, sweep=told.sweep)
    print(msgspec.json.encode(deeds).decode())


if __name__ == "__main__":
    main()
