"""The processes that a torture kills: producers and workers on a namespace of their own.

``python -m outlast.doctor.torture_work produce|work``, told by the environment what to work on.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from outlast.app import Outlast
from outlast.clock import SystemClock
from outlast.running import current
from outlast.stores.urls import parse

__all__ = ["JOURNAL", "NAMESPACE", "make", "makes_nothing", "note"]

JOURNAL = "OUTLAST_TORTURE_JOURNAL"
NAMESPACE = "OUTLAST_TORTURE_NAMESPACE"
MAKES_NOTHING = ("redis", "rabbitmq")
_clock = SystemClock()


def note(word: str, id: str) -> None:
    """One line, one write: a kill can't tear it."""
    descriptor = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{word} {id} {os.getpid()} {_clock.monotonic()}\n".encode())
    os.close(descriptor)


def makes_nothing(url: str) -> bool:
    """Whether a scratch namespace is all there is to be made, as on Redis and on brokers."""
    address = parse(url)
    return (parse(address.records) if address.records else address).scheme in MAKES_NOTHING


def make() -> Outlast:
    """The app, on the namespace that the environment names."""
    create = makes_nothing(os.environ["OUTLAST_URL"])
    app = Outlast(namespace=os.environ[NAMESPACE], create=create)

    # It is killed on purpose, more often than a task may be.
    @app.task(name="work", max_crashes=None)
    async def work(seconds: float) -> None:
        note("start", current().id)
        await _clock.sleep(seconds)
        note("end", current().id)

    return app


async def produce() -> None:
    app = make()
    async with app:
        number = 0
        while True:
            call = app.tasks["work"].call(0.002 * (number % 10))
            note("adding", call.job.id)
            await app.enqueue_many([call])
            note("added", call.job.id)
            number += 1
            await _clock.sleep(0.002)


async def work() -> None:
    app = make()
    async with app, app.worker(concurrency=4):
        # The rig closes our standard input when it wants us to stop, or dies.
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    Path(os.environ[JOURNAL]).touch(0o600)
    asyncio.run(produce() if sys.argv[1] == "produce" else work())
