"""Workers killed at writes of jobs with steps and transactions: each effect is there exactly once.

Each round is a process that works on one store and kills itself as it is about to do its n-th
write or sync, wherever that is: ``--sweep 1`` takes each n in turn, else n is drawn by lot. With
``--postgres`` or ``--redis`` the writes are those to the server, and it dies before or behind one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol
from unittest import mock

import apsw
import msgspec
from tests.proof.processes import fork, in_child
from tests.proof.replay import scratch
from tests.proof.stores import sqlite_store
from tests.proof.vfs import watched

from outlast import Durability, Outlast, current
from outlast.stores.sqlite import files
from outlast.stores.sqlite.schema import DONE
from outlast.stores.sqlite.verify import verify
from outlast.worker import Worker

if TYPE_CHECKING:
    from tests.proof.vfs import Op

__all__ = ["Deeds", "Ground", "Mark", "TableGround", "fill", "take_deeds", "work"]

Mark = Callable[[str, int], str]
"""Leaves a mark in a file outside, as the work of a step; the mark."""
QUEUE = "deeds"
JOBS = 24
"""In one file; when all are done, the next round begins another."""
REACH = 200
SHORT = 0.25
"""What share of the reach most of the n are drawn from: a life costs what it does until it ends."""
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


class Ground(Protocol):
    """Where the jobs of some lives are."""

    reach: int
    """The highest n that is drawn."""
    pause: float
    """Seconds between two looks whether all is done."""

    def app(self) -> Outlast: ...
    def begun(self) -> None:
        """A task has begun."""
        ...

    def store(self, vfs: str) -> Any: ...
    async def effect(self, app: Outlast, n: int, first: str, mark: Mark) -> str:
        """Store the effect of a deed, have the next job follow, do a last step; the result."""
        ...

    def copy(self, folder: Path) -> Ground:
        """The same at another place, as it stands; to be called once it is filled."""
        ...

    def life(self, nth: int) -> None:
        """Work in this process until all is done, or until the n-th write."""
        ...

    def prepare(self) -> None:
        """Make the table of effects."""
        ...

    def effects(self) -> list[Any]:
        """Number and mark of each effect, in order."""
        ...

    def jobs(self) -> list[Any]:
        """Id, task, state, payload and result of each job that has ended."""
        ...

    def steps(self) -> list[Any]:
        """Job, name and result of each step."""
        ...

    def verify(self) -> list[str]:
        """What is wrong with the store as a whole."""
        ...


class TableGround:
    """Where effects are rows beside the jobs, in one transaction with their ends."""

    text = ""
    """How the task stores its effect."""
    ended = "jobs"
    """The table of jobs that have ended."""

    async def effect(self, app: Outlast, n: int, first: str, mark: Mark) -> str:
        async with current().transaction() as tx:
            await tx.execute(self.text, (n, first))
            await app.tasks["follow"].enqueue(n)
            await current().step("inner", mark, "inner", n)
            tx.result = first
        return "too late"

    def rows(self, text: str) -> list[Any]:
        """What a statement reads; ``@`` stands for the place of the tables."""
        raise AssertionError("a subclass says it")

    def effects(self) -> list[Any]:
        return self.rows("SELECT n, mark FROM @effects ORDER BY n")

    def jobs(self) -> list[Any]:
        return self.rows(
            "SELECT j.id, l.task, j.state, j.payload, j.result"
            f" FROM @{self.ended} j JOIN @lines l ON l.id = j.line"
        )

    def steps(self) -> list[Any]:
        return self.rows("SELECT job, name, result FROM @steps")


class SqliteGround(TableGround):
    """A file in a folder."""

    text = "INSERT INTO effects (n, mark) VALUES (?, ?)"
    reach = REACH
    pause = 0.01

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def app(self) -> Outlast:
        return Outlast(f"sqlite:///{self.folder}/deeds.db")

    def begun(self) -> None:
        """What was written until then counts, too."""

    def store(self, vfs: str) -> Any:
        return sqlite_store(self.folder / "deeds.db", vfs=vfs)

    def copy(self, folder: Path) -> SqliteGround:
        shutil.copytree(self.folder, folder)
        return SqliteGround(folder)

    def life(self, nth: int) -> None:
        with watched("proof-deeds", _Killer(nth)) as vfs:
            asyncio.run(work(self, self.folder, vfs))

    def prepare(self) -> None:
        self.rows("CREATE TABLE effects (n INTEGER NOT NULL, mark TEXT NOT NULL)")

    def rows(self, text: str) -> list[Any]:
        connection = apsw.Connection(str(self.folder / "deeds.db"))
        try:
            return connection.execute(text.replace("@", "")).fetchall()
        finally:
            connection.close()

    def verify(self) -> list[str]:
        connection = apsw.Connection(str(self.folder / "deeds.db"))
        try:
            return list(verify(connection))
        finally:
            connection.close()


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


def app_at(ground: Ground, folder: Path) -> Outlast:
    """Jobs whose effects are seen: marks in a file outside, rows inside, jobs that follow."""
    app = ground.app()
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
        ground.begun()
        step = current().step
        first = await step("first", mark, "first", n)
        await asyncio.gather(step("side", mark, "side1", n), step("side", mark, "side2", n))
        return await ground.effect(app, n, first, mark)

    return app


def fill(ground: Ground, jobs: int) -> None:
    async def enqueue() -> None:
        app = app_at(ground, Path())
        async with app:
            await app.enqueue_many([app.tasks["deed"].call(n) for n in range(jobs)])

    asyncio.run(enqueue())
    ground.prepare()


def warm(at: Callable[[Path], Ground]) -> None:
    """Import what a whole life imports, once and here: each of the forked ones has it then."""
    with scratch() as folder:
        ground = at(folder)
        names = folder / "names"

        def life() -> None:
            fill(ground, 1)
            ground.life(sys.maxsize)
            names.write_text("\n".join(sys.modules))

        in_child(life, 120.0)
        for name in names.read_text().splitlines():
            if name not in sys.modules:
                importlib.import_module(name)


async def work(ground: Ground, folder: Path, vfs: str = "") -> None:
    """Until nothing is left to be done."""
    app = app_at(ground, folder)
    async with app:
        # No lease runs out here: what the dead held comes back by their lifelines.
        worker = Worker(
            lambda: ground.store(vfs), app.tasks, queues=(QUEUE,), concurrency=3, lease=3600.0
        )
        running = asyncio.create_task(worker.run())
        while (await app.store.depth(QUEUE)).live and not running.done():
            await app.store.wait(("none",), ground.pause)
        worker.stop()
        await running


def _round(ground: Ground, nth: int, deeds: Deeds) -> bool:
    """One life; whether it came to its end."""
    child = fork(lambda: ground.life(nth))
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


def _judge(ground: Ground, folder: Path, jobs: int, deeds: Deeds) -> None:
    """What must be true when all jobs have ended."""
    deeds.acknowledged += jobs
    for wrong in ground.verify():
        deeds.finding("verify", wrong)
    effects = ground.effects()
    deeds.effects += len(effects)
    if [n for n, _ in effects] != list(range(jobs)):
        deeds.finding("effects", f"{jobs} jobs left the rows {[n for n, _ in effects]}")
    results, stored = _outcomes(ground, deeds)
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
    ground: Ground, deeds: Deeds
) -> tuple[list[tuple[tuple[str, int], Any]], dict[tuple[str, int], str]]:
    """The result of each job, by its task and number, and what is stored of each step."""
    steps: dict[str, list[tuple[str, Any]]] = {}
    for identifier, name, value in ground.steps():
        steps.setdefault(identifier, []).append((name, value))
    results: list[tuple[tuple[str, int], Any]] = []
    stored: dict[tuple[str, int], str] = {}
    kinds = {"side#1": "side1", "side#2": "side2"}
    for identifier, task, state, payload, result in ground.jobs():
        n = msgspec.json.decode(payload)["n"]
        if state != DONE:
            deeds.finding("unfinished", f"{task} {n} is in state {state}")
        results.append(((task, n), msgspec.json.decode(result or b"null")))
        for name, value in steps.get(identifier, ()):
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


def _judged(ground: Ground, folder: Path, jobs: int, deeds: Deeds) -> None:
    """Judge in a child: beside the rounds to come no open database must be in this process."""
    found = folder / "found"

    def judge() -> None:
        mine = Deeds()
        _judge(ground, folder, jobs, mine)
        found.write_bytes(msgspec.json.encode(mine))

    in_child(judge, 120.0)
    mine = msgspec.json.decode(found.read_bytes(), type=Deeds)
    deeds.acknowledged += mine.acknowledged
    deeds.effects += mine.effects
    deeds.repeated += mine.repeated
    for story in mine.stories:
        deeds.finding(story.partition(":")[0], story)


def _sweep(
    at: Callable[[Path], Ground], deeds: Deeds, most: int, until: float, stride: int
) -> None:
    """One job, killed at each of its writes in turn, each time from the same start.

    A stride may pass by every kill that interrupts a step: then those in between are taken, too.
    """
    with scratch() as name:
        folder = name / "start"
        folder.mkdir()
        start = at(folder)
        in_child(lambda: fill(start, 1), 120.0)
        for first in range(1, stride + 1):
            for nth in range(first, most + 1, stride):
                folder = name / str(nth)
                ground = start.copy(folder)
                ended = _round(ground, nth, deeds)
                if not ended:
                    _round(ground, sys.maxsize, deeds)
                _judged(ground, folder, 1, deeds)
                shutil.rmtree(folder)
                if ended or time.monotonic() > until:
                    break
            if deeds.repeated:
                break


def _by_lot(
    at: Callable[[Path], Ground], deeds: Deeds, most: int, until: float, dice: random.Random
) -> None:
    with scratch() as folder:
        ground = at(folder)
        in_child(lambda: fill(ground, JOBS), 120.0)
        while deeds.rounds < most and time.monotonic() < until:
            reach = ground.reach * (SHORT if dice.random() < 0.8 else 1.0)
            if _round(ground, dice.randint(1, round(reach)), deeds):
                break
        else:
            # Out of rounds: one last life, which nobody kills.
            _round(ground, sys.maxsize, deeds)
        _judged(ground, folder, JOBS, deeds)


def rounds(at: Callable[[Path], Ground], most: int, seed: int, budget: float, sweep: int) -> Deeds:
    """So many lives, or those that fit into the budget."""
    deeds = Deeds(seed=seed)
    warm(at)
    began = time.monotonic()
    if sweep:
        _sweep(at, deeds, most, began + budget, sweep)
    else:
        dice = random.Random(seed)
        while deeds.rounds < most and time.monotonic() < began + budget:
            _by_lot(at, deeds, most, began + budget, dice)
    deeds.seconds = time.monotonic() - began
    return deeds


def take_deeds(
    most: int,
    seed: int,
    *,
    sweep: int = 0,
    server: Literal["", "postgres", "redis"] = "",
    budget: float = 3600.0,
) -> Deeds:
    """Run the rounds in a fresh process, which is small and forks fast."""
    words = ["--rounds", str(most), "--seed", str(seed), "--budget", str(budget)]
    words += ["--sweep", str(sweep), *[f"--{server}"] * bool(server)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.deeds", *words],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        check=True,
        timeout=budget + 300,
    )
    return msgspec.json.decode(done.stdout, type=Deeds)


def beside(words: list[str], seed: int, many: int) -> Deeds:
    """The sum of so many processes with seeds of their own: a life mostly waits for the disk."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.proof.deeds", *words, "--seed", str(seed * 1000 + n)],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
        )
        for n in range(many)
    ]
    total = Deeds(seed=seed)
    for process in running:
        out, _ = process.communicate()
        if process.returncode:
            total.finding("rig", f"a process ended with {process.returncode}")
            continue
        mine = msgspec.json.decode(out.strip().split(b"\n")[-1], type=Deeds)
        for name in ("rounds", "killed", "acknowledged", "effects", "repeated"):
            setattr(total, name, getattr(total, name) + getattr(mine, name))
        for story in mine.stories:
            total.finding(story.partition(":")[0], story)
        total.seconds = max(total.seconds, mine.seconds)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=3600.0)
    parser.add_argument("--sweep", type=int, default=0, help="each write, or each n-th")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--redis", action="store_true")
    parser.add_argument("--beside", type=int, default=1, help="so many processes at once")
    told = parser.parse_args()
    if told.beside > 1:
        words = ["--rounds", str(told.rounds), "--budget", str(told.budget)]
        words += ["--postgres"] * told.postgres + ["--redis"] * told.redis
        print(msgspec.json.encode(beside(words, told.seed, told.beside)).decode())
        return
    with contextlib.ExitStack() as stack:
        at: Callable[[Path], Ground] = SqliteGround
        # What a killed process wrote is there, synced or not: files in memory will do.
        stack.enter_context(
            mock.patch.object(files, "path_durability", return_value=(Durability.POWER, ""))
        )
        if told.postgres:
            from tests.proof.deeds_postgres import grounds

            at = stack.enter_context(grounds())
        if told.redis:
            from tests.proof.deeds_redis import redis_grounds

            at = stack.enter_context(redis_grounds())
        deeds = rounds(at, told.rounds, told.seed, told.budget, told.sweep)
    print(msgspec.json.encode(deeds).decode())


if __name__ == "__main__":
    main()
