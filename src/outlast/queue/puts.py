"""Putting: how an item waits for room and gets into the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.errors import QueueFull, QueueShutDown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Job
    from outlast.queue.line import Line
    from outlast.queue.pump import Pump
    from outlast.queue.waiters import Bind, Turn

__all__ = ["Puts"]


class Puts:
    """The way in."""

    def __init__(self, line: Line, pump: Pump) -> None:
        self._line = line
        self._pump = pump

    def full(self) -> bool:
        """Whether there is no room."""
        limit = self._line.capacity
        return limit is not None and not self._pump.ended and self._line.size() >= limit

    async def put(self, job: Job, item: Any, bind: Bind) -> None:
        """Store an item when there is room."""
        line = self._line
        if line.each:
            turn = self._pump.putters.turn()
            while self.full():
                await self._wait(turn, bind)
            self.put_now(job, item)
            return
        self.check_shut()
        if not line.opened:
            await line.open()
        if line.capacity is not None:
            await self._put_in_turn(job, bind)
        else:
            await line.intake.add([job])
        self._added(job, item)

    def put_now(self, job: Job, item: Any) -> None:
        """Store an item at once, or raise ``QueueFull``; blocks."""
        line = self._line
        self.check_shut()
        direct = line.open_now("put_nowait()")
        if self.full():
            raise QueueFull
        direct.add_now([job], self._capacity())
        self._added(job, item)
        if line.each:
            self._pump.getters.wake()

    async def put_many(self, jobs: list[Job], items: list[Any], bind: Bind) -> None:
        """Store items as room comes free: all at once if there is enough."""
        line = self._line
        self.check_shut()
        await line.open()
        turn = self._pump.putters.turn()
        while jobs:
            size = len(jobs)
            if line.capacity is not None:
                while (room := await self._room()) <= 0:
                    await self._wait(turn, bind)
                size = min(size, room)
            try:
                await self._send(jobs[:size])
            except QueueFull:
                continue
            for job, item in zip(jobs[:size], items[:size], strict=True):
                self._added(job, item)
            if line.each:
                self._pump.getters.wake(size)
            del jobs[:size], items[:size]

    def _added(self, job: Job, item: Any) -> None:
        """It is stored. If the queue was drained meanwhile, it is for whoever opens it again."""
        if not self._pump.ended:
            self._line.added(job, item)

    def check_shut(self) -> None:
        """Raise ``QueueShutDown`` once nothing may come in."""
        if self._pump.shut:
            raise QueueShutDown

    async def _put_in_turn(self, job: Job, bind: Bind) -> None:
        turn = self._pump.putters.turn()
        lost = False
        while True:
            while lost or self._crowded():
                await self._wait(turn, bind)
                lost = False
            self.check_shut()
            try:
                await self._send([job])
            except QueueFull:
                lost = self._line.direct is None
            else:
                return

    async def _send(self, jobs: Sequence[Job]) -> None:
        capacity = self._capacity()
        self._line.sending += len(jobs)
        try:
            await self._line.intake.add(jobs, capacity)
        finally:
            self._line.sending -= len(jobs)
            if self._pump.putters.line and not self._crowded():
                self._pump.putters.wake()

    async def _wait(self, turn: Turn, bind: Bind) -> None:
        """Until there may be room."""
        self.check_shut()
        pump = self._pump
        try:
            await pump.putters.wait(turn, bind, pump.putter_waits)
        except BaseException:
            if pump.putters.was_woken(turn) and not self._crowded():
                pump.putters.wake()
            raise

    def _crowded(self) -> bool:
        """Whether there is no room, as far as can be known at once; the store has the last word."""
        direct = self._line.direct
        if direct is None:
            return False
        return self._line.room(direct.depth_now(self._line.name)) <= 0

    async def _room(self) -> int:
        return self._line.room(await self._line.store.depth(self._line.name))

    def _capacity(self) -> int | None:
        """What may wait in the store, given what waits in memory."""
        limit = self._line.capacity
        return None if limit is None else limit - len(self._line.supply.window)
