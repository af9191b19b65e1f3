"""What a step costs on SQLite beside a plain commit, and how soon 1,000 steps are passed again.

`python bench/steps_bench.py`: medians of three rounds, pass or FAIL; exits with 1 if one is missed.

CPU is that of the whole process, all of its threads, kernel included. The yardstick is the least
that SQLite can do for the same promise: the same row, in a table with the same columns and key, by
one prepared INSERT between BEGIN IMMEDIATE and COMMIT, with the same settings on the same disk.
It is made by the thread that asks, which a step can't: its loop would stand still for as long as
the disk takes, so a step pays for a second thread and the way there and back.

The two take turns, twenty at a time in one job, so that both have the same noise beside them;
and not before both logs are as long as they get, for a log that grows costs more at each commit.
Checkpoints are counted with both. An enqueue by a program without a worker is there to compare.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import apsw

from outlast import Outlast, Retry, RetryPolicy, current
from outlast.store import Durability
from outlast.stores.sqlite import schema

STEPS = 1000
TURN = 20
LOG = 2100
"""Commits of one page each after which a log is as long as it gets."""
MOST_CPU = 100e-6
MOST_AGAIN = 0.1
_TABLE = (
    "CREATE TABLE steps (space INTEGER NOT NULL, job TEXT NOT NULL, name TEXT NOT NULL,"
    " digest BLOB NOT NULL, result BLOB, PRIMARY KEY (space, job, name)) STRICT, WITHOUT ROWID"
)
_INSERT = "INSERT INTO steps (space, job, name, digest, result) VALUES (?, ?, ?, ?, ?)"


async def nothing(number: int) -> int:
    return number


class Plain:
    """A row a commit, by the thread that asks; checkpoints as SQLite makes them by itself."""

    def __init__(self, path: Path) -> None:
        apsw.Connection(str(path)).close()
        self._connection = schema.connect(str(path), Durability.POWER)
        self._connection.execute(_TABLE)
        self._connection.pragma("wal_autocheckpoint", 1000)
        self._number = 0

    def put(self, job: str) -> None:
        self._number += 1
        row = (1, job, f"n#{self._number}", bytes(16), b"%d" % self._number)
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute(_INSERT, row)
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


async def step(job: str, many: int) -> float:
    """Seconds of CPU for so many steps of the job that runs."""
    used = time.process_time()
    for number in range(many):
        assert await current().step("n", nothing, number) == number
    return time.process_time() - used


def commit(plain: Plain, job: str, many: int) -> float:
    used = time.process_time()
    for _ in range(many):
        plain.put(job)
    return time.process_time() - used


async def costs(folder: Path) -> list[tuple[float, float]]:
    """CPU of a step and of a plain commit, in three rounds."""
    app = Outlast(f"sqlite:///{folder / 'steps.db'}")
    plain = Plain(folder / "plain.db")
    rounds: list[tuple[float, float]] = []

    @app.task
    async def turns() -> None:
        job = current().id
        for _ in range(LOG // TURN):
            await step(job, TURN)
            commit(plain, job, TURN)
        for _ in range(3):
            pairs = [
                (await step(job, TURN), commit(plain, job, TURN)) for _ in range(STEPS // TURN)
            ]
            steps, commits = (sum(column) for column in zip(*pairs, strict=True))
            rounds.append((steps / STEPS, commits / STEPS))

    async with app, app.worker():
        await (await turns.enqueue()).result(timeout=300)
    plain.close()
    return rounds


async def passed_again(folder: Path) -> tuple[float, float]:
    """Seconds in which a second run passes all steps of the first; and the CPU of an enqueue."""
    app = Outlast(f"sqlite:///{folder / 'again.db'}")
    taken: list[float] = []

    @app.task(retry=RetryPolicy(attempts=2))
    async def many(steps: int) -> None:
        began = time.perf_counter()
        await step(current().id, steps)
        taken.append(time.perf_counter() - began)
        if current().attempt == 1:
            raise Retry(delay=0)

    async with app, app.worker():
        for steps in (10, STEPS):  # the first time is not like the others
            await (await many.enqueue(steps)).result(timeout=300)
    async with app:
        used = time.process_time()
        for _ in range(STEPS):
            await many.enqueue(1)
        enqueue = (time.process_time() - used) / STEPS
    return taken[-1], enqueue


def main() -> None:
    with tempfile.TemporaryDirectory(dir=".", prefix=".steps-") as name:
        rounds = asyncio.run(costs(Path(name)))
        rest = []
        for number in range(3):
            folder = Path(name, str(number))
            folder.mkdir()
            rest.append(asyncio.run(passed_again(folder)))
    steps, plain = (median(column) for column in zip(*rounds, strict=True))
    beyond = median(step - commit for step, commit in rounds)
    again, enqueue = (median(column) for column in zip(*rest, strict=True))
    print(
        f"CPU of a step: {steps * 1e6:.0f} us; of a plain commit of the same row:"
        f" {plain * 1e6:.0f} us; of an enqueue: {enqueue * 1e6:.0f} us"
    )
    floors = [
        ("a step beyond one commit", f"{beyond * 1e6:.0f} us", "100 us", beyond <= MOST_CPU),
        (f"{STEPS} steps passed again", f"{again * 1e3:.0f} ms", "100 ms", again <= MOST_AGAIN),
    ]
    for what, found, floor, met in floors:
        print(f"{'pass' if met else 'FAIL'}  {what}: {found} (at most {floor})")
    sys.exit(not all(met for *_, met in floors))


if __name__ == "__main__":
    main()
