"""9. The point of it all: the program ends, another one begins, and the job is still there."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from outlast import Durability, Outlast, Status

if TYPE_CHECKING:
    from pathlib import Path


def shop(url: str) -> Outlast:
    # By default a store must survive a power cut, or it does not open. A folder for tests is often
    # in memory, so here the death of every process is enough.
    app = Outlast(url, durability=Durability.PROCESS)

    @app.task(name="pack")
    async def pack(order: int) -> str:
        return f"packed {order}"

    return app


async def test_a_job_outlives_the_program(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"

    first = shop(url)
    async with first:
        assert first.store.durability is Durability.PROCESS
        job = (await first.tasks["pack"].enqueue(42)).id

    second = shop(url)
    async with second.worker():
        handle = second.handle(job)
        assert await handle.result(timeout=60) == "packed 42"
        assert await handle.status() is Status.DONE


DIES = """
import asyncio, os, signal, sys
from tests.basics.test_09_after_the_end import shop

async def main():
    async with shop(sys.argv[1]) as app:
        print((await app.tasks["pack"].enqueue(42)).id, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_also_when_it_is_killed(tmp_path: Path) -> None:
    """`enqueue` has returned, so the job is stored: there is nothing left to flush."""
    url = f"sqlite:///{tmp_path}/shop.db"
    killed = subprocess.run(
        [sys.executable, "-c", DIES, url], capture_output=True, text=True, timeout=90, check=False
    )
    assert killed.returncode == -9, killed.stderr
    app = shop(url)
    async with app.worker():
        assert await app.handle(killed.stdout.strip()).result(timeout=60) == "packed 42"
