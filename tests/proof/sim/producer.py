"""Whoever sends jobs: repeats what is uncertain, gives up in the middle, cancels, waits."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from tests.proof.sim.loop import inside
from tests.proof.sim.tasks import make_calls

from outlast.errors import (
    EnqueueUncertain,
    JobError,
    KeyConflict,
    StoreError,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from tests.proof.sim.hosts import Process
    from tests.proof.sim.world import World

    from outlast.task import Call

__all__ = ["Producer"]


class Producer:
    """One program that uses the app. All of them share it, as coroutines of a web server do."""

    def __init__(self, world: World, process: Process, seed: str) -> None:
        self._world = world
        self.process = process
        self._dice = random.Random(seed)
        self._known: list[str] = []

    async def live(self) -> None:
        """Send so many jobs over the time there is."""
        await self._inside(self._live())

    async def probe(self) -> list[str]:
        """Send one plain job, and be sure of it."""
        ids: list[str] = await self._inside(self._probe())
        return ids

    async def _inside(self, life: Coroutine[Any, Any, Any]) -> Any:
        context = inside(self.process)
        return await self._world.loop.create_task(life, context=context)

    async def flood(self) -> None:
        """Send many, the quick ones first: workers then claim the slow ones ahead."""
        slow = self._world.tasks.by_name["slow"]
        times = [0.01] * 40 + [3.0] * 12
        calls = [slow.call(number, seconds) for number, seconds in enumerate(times)]
        await self._inside(self._surely(calls))

    async def _probe(self) -> list[str]:
        call = self._world.tasks.by_name["quick"].call(1)
        await self._surely([call])
        return [call.job.id]

    async def _surely(self, calls: Sequence[Call[Any]]) -> None:
        await self._world.app.open()
        try:
            assert await self._send(calls, None), "an add failed on a fine day"
        finally:
            await self._world.app.close()

    async def _live(self) -> None:
        world, dice = self._world, self._dice
        profile = world.profile
        seconds = profile.seconds * max(1, profile.seasons) * 0.9
        moment = 0.0
        while True:
            try:
                await world.app.open()
                break
            except StoreError:
                await world.loop.sleep(0.5)
        for number in range(profile.jobs):
            moment += dice.expovariate(profile.jobs / seconds)
            await world.nemesis.sleep_until(moment)
            calls = make_calls(world.tasks, dice, number)
            await self._insist(calls)
            if self._known and dice.random() < 0.12:
                await self._cancel(dice.choice(self._known))
            if self._known and dice.random() < 0.1:
                await self._await(dice.choice(self._known))
        await world.app.close()

    async def _insist(self, calls: Sequence[Call[Any]]) -> None:
        """Repeat the same calls until they are accepted, or give up in doubt."""
        for _ in range(self._dice.choice((1, 3, 12))):
            if await self._send(calls, self._dice.choice((None, None, None, 0.001, 1.0))):
                return
            await self._world.loop.sleep(self._dice.uniform(0.05, 3.0))

    async def _send(self, calls: Sequence[Call[Any]], limit: float | None) -> bool:
        """Once, for so many seconds; whether there is an answer to live with."""
        world, jobs = self._world, [call.job for call in calls]
        for job in jobs:
            self._tell("invoke", job.id, job.lane)
        try:
            async with asyncio.timeout(limit):
                handles = await world.app.enqueue_many(calls)
        except (EnqueueUncertain, TimeoutError):
            for job in jobs:
                self._tell("info", job.id, job.lane)
            return False
        except (KeyConflict, StoreUnavailable) as error:
            for job in jobs:
                self._tell("fail", job.id, job.lane)
            return isinstance(error, KeyConflict)
        for job, handle in zip(jobs, handles, strict=True):
            mine = handle.id == job.id
            self._tell("ok" if mine else "fail", job.id, job.lane)
            if mine:
                self._known.append(job.id)
        return True

    async def _cancel(self, id: str) -> None:
        self._tell("cancel", id, None)
        try:
            await self._world.app.handle(id).cancel()
        except StoreUnavailable:
            return  # it may have come to pass, or not

    async def _await(self, id: str) -> None:
        try:
            await self._world.app.handle(id).result(timeout=self._dice.choice((0.5, 10.0)))
        except (TimeoutError, JobError, StoreUnavailable):
            return  # the judge reads the outcome elsewhere

    def _tell(self, kind: Any, id: str, lane: str | None) -> None:
        self._world.tell(self.process, kind, id, lane=lane or "")
