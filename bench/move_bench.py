"""How long it takes to move jobs between stores, and how much memory: `python move_bench.py`.

`--jobs N`, then any number of URLs of empty stores: the first is filled, and all of it is moved
into the second, then into the third, and so on. Each step is a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import time

from outlast.chance import SystemChance
from outlast.job import Alike, Job
from outlast.moving import move
from outlast.stores import connect

BITE = 5000


async def fill(url: str, jobs: int) -> None:
    """So many small jobs of one task."""
    store, chance = connect(url), SystemChance()
    await store.open()
    model = Job(id="model", task="receipt")
    for at in range(0, jobs, BITE):
        many = range(at, min(jobs, at + BITE))
        payloads = [b'{"order":%d,"to":"somebody@example.com"}' % n for n in many]
        await store.add(Alike(model, [chance.uuid7() for _ in many], payloads))
    await store.close()


async def move_all(source: str, target: str) -> None:
    out, into = connect(source), connect(target)
    await out.open()
    await into.open()
    began, used = time.monotonic(), time.process_time()
    moved = await move(out, into)
    seconds, cpu = time.monotonic() - began, time.process_time() - used
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{out.url} -> {into.url}: {moved.jobs} jobs, {seconds:.1f} s, {cpu:.1f} s of CPU here,"
        f" at most {most} MiB",
        flush=True,
    )
    await out.close()
    await into.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--step", choices=["fill", "move"])
    parser.add_argument("urls", nargs="+")
    told = parser.parse_args()
    if told.step == "fill":
        asyncio.run(fill(told.urls[0], told.jobs))
    elif told.step == "move":
        asyncio.run(move_all(*told.urls))
    else:
        again = [sys.executable, __file__, "--jobs", str(told.jobs), "--step"]
        subprocess.run([*again, "fill", told.urls[0]], check=True)
        for n in range(1, len(told.urls)):
            subprocess.run([*again, "move", *told.urls[n - 1 : n + 1]], check=True)


if __name__ == "__main__":
    main()
