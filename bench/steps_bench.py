"""What a step costs on SQLite beside a plain commit, and how soon 1,000 steps are passed again.

`python bench/steps_bench.py`: medians of three rounds, pass or FAIL; exits with 1 if one is missed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from outlast import Outlast, Retry, RetryPolicy, current
from outlast.cli.bench_raw import Raw

STEPS = 1000
MOST_CPU = 100e-6
MOST_AGAIN = 0.1


async def nothing(number: int) -> int:
    return number


async def measure(folder: Path) -> tuple[float, float, float]:
    """CPU of a step in its first run, seconds for all in the second, and CPU of an enqueue."""
    app = Outlast(f"sqlite:///{folder / 'steps.db'}")
    spent: list[tuple[float, float]] = []

    @app.task(retry=RetryPolicy(attempts=2))
    async def many(steps: int) -> None:
        began, used = time.perf_counter(), time.process_time()
        for number in range(steps):
            assert await current().step("n", nothing, number) == number
        spent.append((time.perf_counter() - began, time.process_time() - used))
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
    (_, first), (again, _) = spent[2:]
    return first / STEPS, again, enqueue


def commit(folder: Path) -> float:
    """Seconds of CPU that one plain row with a commit of its own takes."""
    raw = Raw(folder / "raw.db")
    used = time.process_time()
    for _ in range(STEPS):
        raw.put_many(["1"])
    seconds = (time.process_time() - used) / STEPS
    raw.close()
    return seconds


def main() -> None:
    rounds = []
    for _ in range(3):
        with tempfile.TemporaryDirectory(dir=".", prefix=".steps-") as name:
            plain = commit(Path(name))
            step, again, enqueue = asyncio.run(measure(Path(name)))
            rounds.append((step - plain, again, step, plain, enqueue))
    beyond, again, step, plain, enqueue = (median(column) for column in zip(*rounds, strict=True))
    print(
        f"CPU of a step: {step * 1e6:.0f} us; of a plain commit of one row: {plain * 1e6:.0f} us;"
        f" of an enqueue: {enqueue * 1e6:.0f} us"
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
