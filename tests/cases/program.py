"""The tasks of the cases: each says when it starts and when it ends, in a log shared by all."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from outlast import Outlast, RetryPolicy, current
from outlast.clock import SystemClock

__all__ = ["CLOCK", "LOG", "NEW_KIND", "FiledClock", "app", "make"]

LOG = "CASES_LOG"
CLOCK = "CASES_CLOCK"
NEW_KIND = "CASES_NEW_KIND"


class FiledClock:
    """Stands at the moment that a file names: a case moves the time of all its processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.monotonic = SystemClock.monotonic
        self.sleep = SystemClock.sleep

    def now(self) -> float:
        return float(self._path.read_text())

    def move(self, moment: float) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(repr(moment))
        new.replace(self._path)


def say(what: str) -> None:
    job = current()
    line = f"{what} {job.id} {job.attempt} {os.getpid()} {time.monotonic()}\n"
    descriptor = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def poison(app: Outlast) -> None:
    """The tasks that take their worker down with them."""

    @app.task(name="kills")
    async def kills() -> None:
        say("start")
        os._exit(137)

    @app.task(name="stops-the-loop")
    async def stops_the_loop() -> None:
        say("start")
        asyncio.get_running_loop().stop()
        await asyncio.sleep(3600)

    @app.task(name="cancels-everything")
    async def cancels_everything() -> None:
        say("start")
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(3600)

    @app.task(name="closes-descriptors")
    async def closes_descriptors() -> None:
        say("start")
        os.closerange(3, 1000)


def make(url: str | None = None) -> Outlast:
    """The program; with ``CASES_NEW_KIND`` in the environment it knows one task more.

    With ``CASES_CLOCK`` the time is what the file of that name says.
    """
    clock = FiledClock(Path(os.environ[CLOCK])) if CLOCK in os.environ else None
    app = Outlast(url, clock=clock)

    @app.task(name="instant")
    async def instant(number: int = 0) -> int:
        say("start")
        say("end")
        return number

    @app.task(name="until", retry=RetryPolicy(attempts=2))
    async def until(name: str) -> int:
        """At work until a file of that name is there."""
        say("start")
        while not await asyncio.to_thread(Path(name).exists):
            await asyncio.sleep(0.01)
        say("end")
        return os.getpid()

    @app.task(name="nap")
    async def nap(seconds: float) -> None:
        say("start")
        await asyncio.sleep(seconds)
        say("end")

    @app.task(name="raises", retry=RetryPolicy(attempts=2, delay=0.0))
    async def raises() -> None:
        say("start")
        raise ValueError("no")

    poison(app)
    if os.environ.get(NEW_KIND):

        @app.task(name="new-kind")
        async def new_kind(number: int) -> None:
            say("start")
            say("end")

    return app


app = make()
