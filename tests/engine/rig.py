"""A store, an app and a worker for the engine's tests, and ways to wait for what they do."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.fakes import FakeClock

from outlast import Outlast
from outlast.chance import SeededChance
from outlast.clock import SystemClock
from outlast.execution import Means, execute
from outlast.running import Current
from outlast.store import Ledger, offers
from outlast.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from outlast.clock import Clock
    from outlast.job import Claim, Failure, Job, Progress, Verdict
    from outlast.store import Store

__all__ = ["Gate", "Rig", "Spy", "until"]

QUEUES = ("default",)


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Return once the condition holds, letting threads and loops go on meanwhile."""
    never = asyncio.get_running_loop().create_future()
    for _ in range(int(seconds / 0.002)):
        answer = condition()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        await asyncio.wait((never,), timeout=0.002)
    raise AssertionError("it did not happen")


class Gate:
    """A task that waits for the test, and shows how many of it run at once."""

    def __init__(self, rig: Rig) -> None:
        self.open = asyncio.Event()
        self.doors: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.running: list[int] = []
        self.ran: list[int] = []
        self.most = 0

        @rig.app.task(name="gate")
        async def gate(n: int) -> int:
            self.running.append(n)
            self.ran.append(n)
            self.most = max(self.most, len(self.running))
            try:
                waits = [asyncio.ensure_future(door.wait()) for door in (self.open, self.doors[n])]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for wait in waits:
                    wait.cancel()
            finally:
                self.running.remove(n)
            return n

        self.task = gate

    def is_running(self, *numbers: int) -> bool:
        """Whether exactly these run."""
        return self.running == list(numbers)


class Spy:
    """Stands before a store: counts the calls, and lets a test fail or hold them."""

    def __init__(self, store: Store, before: dict[str, Callable[..., Any]]) -> None:
        self._store = store
        self._before = before
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            if name in self._before:
                answer = self._before[name](*args, **kwargs)
                if asyncio.iscoroutine(answer):
                    await answer
            return await found(*args, **kwargs)

        return call


class Rig:
    """An app on a store in memory, on a clock that the test moves; or on the ``real`` one."""

    def __init__(self, *, real: bool = False) -> None:
        self.clock = FakeClock()
        self.time: Clock = SystemClock() if real else self.clock
        self.app = Outlast("memory://", clock=self.time, chance=SeededChance(1))
        self.notes: list[Progress] = []
        self.before: dict[str, Callable[..., Any]] = {}
        """What to call before each call of a worker's store, by method."""
        self.spies: list[Spy] = []

    def spied(self) -> Any:
        """A store for a worker, with a spy before it."""
        self.spies.append(Spy(self.app.open_store(), self.before))
        return self.spies[-1]

    @property
    def store(self) -> Store:
        return self.app.store

    @property
    def ledger(self) -> Ledger:
        assert offers(self.store, Ledger)
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
        run = Current(claim, self.notes.append)
        means = means or Means(clock=self.time, chance=SeededChance(2))
        task = self.app.tasks[claim.job.task or ""]
        return run, asyncio.ensure_future(execute(claim, task, run, means))

    async def failure(self, claim: Claim) -> Failure:
        """Execute a claim that must end with a failure."""
        verdict = await self.run(claim)
        assert verdict is not None
        assert verdict.failure is not None
        return verdict.failure

    def make(self, **options: Any) -> Worker:
        """A worker on the test's own loop, unless told otherwise."""
        options = {"renew_on": "loop", "grace": 0.0, "chance": SeededChance(3), **options}
        open_store = options.pop("open_store", self.app.open_store)
        return Worker(open_store, self.app.tasks, clock=self.time, **options)

    @asynccontextmanager
    async def worker(self, **options: Any) -> AsyncIterator[Worker]:
        """A worker that runs while the block does."""
        worker = self.make(**options)
        running = asyncio.ensure_future(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await self.let_end(running)

    async def drained(self, seconds: float = 60.0) -> None:
        """Return when no job is queued or running any more."""
        never = asyncio.get_running_loop().create_future()
        for _ in range(int(seconds / 0.002)):
            if not (await self.store.depth("default")).live:
                return
            await asyncio.wait((never,), timeout=0.002)
        raise AssertionError("jobs are left")

    async def let_end(self, running: asyncio.Future[None]) -> None:
        """Let time pass until the worker has ended."""
        if self.time is self.clock:
            await self.clock.run(running, 60.0, 0.25)
        await running

    async def pass_time(self, seconds: float, step: float = 0.25) -> None:
        """Let time pass in steps, and everybody notice each."""
        loop: Any = asyncio.get_running_loop()
        never = loop.create_future()
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            await asyncio.wait((never,), timeout=0.001)
            # On a busy machine that is over before the loop has turned often enough.
            for _ in range(1000):
                await asyncio.sleep(0)
                if not loop._ready:
                    break
