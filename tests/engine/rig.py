"""A store, an app and a worker for the engine's tests, and ways to wait for what they do."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.fakes import FakeClock

from outlast import Outlast
from outlast.chance import SeededChance
from outlast.execution import Current, Means, execute
from outlast.store import Ledger
from outlast.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from outlast.job import Claim, Failure, Job, Progress, Verdict
    from outlast.store import Store

__all__ = ["Rig", "until"]

QUEUES = ("default",)


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Return once the condition holds, letting threads and loops go on meanwhile."""
    never = asyncio.get_running_loop().create_future()
    for _ in range(int(seconds / 0.002)):
        if condition():
            return
        await asyncio.wait((never,), timeout=0.002)
    raise AssertionError("it did not happen")


class Rig:
    """An app on a store in memory, on a clock that the test moves; the stores are counted."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.app = Outlast("memory://", clock=self.clock, chance=SeededChance(1))
        self.notes: list[Progress] = []

    @property
    def store(self) -> Store:
        return self.app.store

    @property
    def ledger(self) -> Ledger:
        assert isinstance(self.store, Ledger)
        return self.store

    async def job(self, id: str) -> Job:
        (job,) = await self.ledger.get([id])
        assert job is not None
        return job

    async def claim(self) -> Claim:
        (claim,) = await self.store.claim(QUEUES, list(self.app.tasks), 1, 15.0, "rig")
        return claim

    async def run(self, claim: Claim, means: Means | None = None) -> Verdict | None:
        """Execute a claim as the worker does, in an asyncio task of its own."""
        return await self.start(claim, means)[1]

    def start(
        self, claim: Claim, means: Means | None = None
    ) -> tuple[Current, asyncio.Task[Verdict | None]]:
        run = Current(claim.job, self.notes.append)
        means = means or Means(clock=self.clock, chance=SeededChance(2))
        task = self.app.tasks[claim.job.task or ""]
        return run, asyncio.ensure_future(execute(claim, task, run, means))

    async def failure(self, claim: Claim) -> Failure:
        """Execute a claim that must end with a failure."""
        verdict = await self.run(claim)
        assert verdict is not None
        assert verdict.failure is not None
        return verdict.failure

    @asynccontextmanager
    async def worker(self, **options: Any) -> AsyncIterator[Worker]:
        """A worker that runs while the block does; on the test's own loop unless told otherwise."""
        options = {"renew_on": "loop", "grace": 0.0, "chance": SeededChance(3), **options}
        worker = Worker(self.app.open_store, self.app.tasks, clock=self.clock, **options)
        running = asyncio.ensure_future(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await self.let_end(running)

    async def let_end(self, running: asyncio.Future[None]) -> None:
        """Let time pass until the worker has ended."""
        await self.clock.run(running, 60.0, 0.25)
        await running

    async def pass_time(self, seconds: float, step: float = 0.25) -> None:
        """Let time pass in steps, and everybody notice each."""
        never = asyncio.get_running_loop().create_future()
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            await asyncio.wait((never,), timeout=0.001)
