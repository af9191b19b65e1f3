"""Carries out the planned faults, puts everything right again, and skips idle time."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.proof.sim.hosts import Process
    from tests.proof.sim.plan import Fault
    from tests.proof.sim.world import Place, World

__all__ = ["Nemesis"]

DAY = 86400.0


class Nemesis:
    """What happens to a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._loop = world.loop
        self._dice = random.Random(f"nemesis {world.seed}")
        self._began = self._loop.time()
        self._pending = list(world.faults)
        self._doing: set[asyncio.Task[None]] = set()
        self._outages = 0
        self.skipped = 0.0
        """Seconds of idle time that nobody lived through."""
        self.asleep: asyncio.Future[None] | None = None
        """Done at the end of the idle time that is being skipped."""

    async def strike(self) -> None:
        """Every fault at its moment, for as long as the profile has it."""
        await self._until(self._world.profile.seconds)

    async def seasons(self) -> None:
        """Busy spells with idle days between them, in which everything sleeps, or is away."""
        profile = self._world.profile
        for season in range(1, profile.seasons + 1):
            await self._until(profile.seconds * season)
            await self.skip(self._dice.uniform(0.2, 2 * DAY))

    async def _until(self, moment: float) -> None:
        while self._pending and self._pending[0].at <= moment:
            fault = self._pending.pop(0)
            await self.sleep_until(fault.at)
            task = asyncio.ensure_future(self._do(fault))
            self._doing.add(task)
            task.add_done_callback(self._doing.discard)
        await self.sleep_until(moment)

    async def sleep_until(self, moment: float) -> None:
        """Until so many seconds have passed since the beginning, not counting what was skipped."""
        while (left := moment - self._elapsed) > 1e-6:
            await self._loop.sleep(left)

    @property
    def _elapsed(self) -> float:
        return self._loop.time() - self._began - self.skipped

    async def _pass(self, seconds: float) -> None:
        await self.sleep_until(self._elapsed + seconds)

    async def skip(self, seconds: float) -> None:
        """Let time pass while all workers are frozen, as on a machine that is suspended."""
        frozen = []
        for place in self._world.places:
            process = place.process
            if process is not None and not process.frozen and not process.dead:
                self._world.harm(process, "skip")
                process.frozen = True
                frozen.append(process)
        self.skipped += seconds
        self.asleep = self._loop.create_future()
        await self._loop.sleep(seconds)
        self.asleep.set_result(None)
        self.asleep = None
        for process in frozen:
            self._world.harm(process, "skipped")
            self._loop.thaw(process)

    def heal(self) -> None:
        """Nothing is wrong any more, and nothing will be."""
        world = self._world
        for task in self._doing:
            task.cancel()
        world.server.down = False
        world.server.cut_armed = ""
        world.referee.clock_is_set()
        world.server.clock.offset = 0.0
        world.server.weather.rates = dict.fromkeys(world.server.weather.rates, 0.0)
        for process in self._processes():
            process.cut_off = ""
            if process.frozen:
                world.harm(process, "thaw")
                self._loop.thaw(process)

    def cut(self) -> None:
        """The store's power goes, and comes back after a moment."""
        self._world.tell(None, "cut")
        self._world.server.cut()
        for process in self._processes():
            self._world.harm(process, "cut")
        self._spawn(self._outage(self._dice.uniform(0.0, 2.0)))

    def _spawn(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        task = self._loop.create_task(work, context=self._loop.outside)
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)

    def _processes(self) -> list[Process]:
        workers = [place.process for place in self._world.places if place.process is not None]
        return workers + [producer.process for producer in self._world.producers]

    async def _do(self, fault: Fault) -> None:
        world = self._world
        match fault.kind:
            case "cut":
                world.server.cut_armed = fault.note
            case "bounce":
                await self._outage(fault.length)
            case "weather":
                world.server.weather.rates[fault.note] = fault.size
                await self._pass(fault.length)
                world.server.weather.rates[fault.note] = 0.0
            case "wall":
                world.referee.clock_is_set()
                world.server.clock.offset = fault.size
            case "step":
                world.places[fault.target].clock.offset = fault.size
            case "refuse" | "silence" | "deafen":
                await self._block(self._process(fault.target), fault)
            case "kill" | "term" | "freeze":
                await self._hit(world.places[fault.target], fault)

    def _process(self, target: int) -> Process | None:
        places = self._world.places
        if target < len(places):
            return places[target].process
        return self._world.producers[target - len(places)].process

    async def _outage(self, seconds: float) -> None:
        """The store is away; everybody notices, or will."""
        server = self._world.server
        self._outages += 1
        server.down = True
        for process in self._processes():
            self._world.harm(process, "outage")
        await self._pass(seconds)
        self._outages -= 1
        if not self._outages:
            server.down = False
            for process in self._processes():
                self._world.harm(process, "outage over")

    async def _block(self, process: Process | None, fault: Fault) -> None:
        ways = {"refuse": "refused", "silence": "silent", "deafen": "deaf"}
        if process is None or process.dead:
            return
        self._world.harm(process, fault.kind)
        process.cut_off = ways[fault.kind]
        await self._pass(fault.length)
        process.cut_off = ""
        self._world.harm(process, f"{fault.kind} over")

    async def _hit(self, place: Place, fault: Fault) -> None:
        process, worker = place.process, place.worker
        if process is None or process.dead:
            return
        place.rest = fault.length
        if fault.kind == "kill":
            self._world.kill(process)
        elif fault.kind == "term":
            if worker is not None:
                self._world.tell(None, "term", target=process.pid)
                worker.stop()
        elif not process.frozen:
            self._world.harm(process, "freeze")
            process.frozen = True
            await self._pass(fault.length)
            if process.frozen:
                self._world.harm(process, "thaw")
                self._loop.thaw(process)
