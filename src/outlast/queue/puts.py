"""Putting: how an item waits for room and gets into the store."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from outlast.errors import QueueFull, QueueShutDown
from outlast.queue.pump import wake_next

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from outlast.job import Job
    from outlast.queue.line import Line
    from outlast.queue.pump import Pump

    Bind = Callable[[], asyncio.AbstractEventLoop]
    """Gives the running loop, and binds the queue to it, as asyncio's does when it has to wait."""

__all__ = ["Puts"]


class Puts:
    """The way in. ``maxsize`` limits what waits in the store and in this process's memory."""

    def __init__(self, line: Line, pump: Pump, maxsize: int) -> None:
        self._line = line
        self._pump = pump
        self.maxsize = maxsize

    def full(self) -> bool:
        """Whether there is no room."""
        return self.maxsize > 0 and not self._pump.ended and self._line.size() >= self.maxsize

    async def put(self, job: Job, item: Any, bind: Bind) -> None:
        """Store an item when there is room."""
        line = self._line
        if line.each:
            while self.full():
                await self._wait(bind)
            self.put_now(job, item)
            return
        self.check_shut()
        if not line.opened:
            await line.open()
        if self.maxsize > 0:
            await self._put_in_turn(job, bind)
        else:
            await line.intake.add([job])
        line.added(job, item)

    def put_now(self, job: Job, item: Any) -> None:
        """Store an item at once, or raise ``QueueFull``; blocks."""
        line = self._line
        self.check_shut()
        direct = line.open_now("put_nowait()")
        if self.full():
            raise QueueFull
        direct.add_now([job], self._capacity())
        line.added(job, item)
        if line.each:
            self._pump.wake_getter()

    async def put_many(self, jobs: list[Job], items: list[Any], bind: Bind) -> None:
        """Store items as room comes free: all at once if there is enough."""
        line = self._line
        self.check_shut()
        await line.open()
        while jobs:
            size = len(jobs)
            if self.maxsize > 0:
                while (room := ceil(self.maxsize) - await self._waiting()) <= 0:
                    await self._wait(bind)
                size = min(size, room)
            try:
                await line.intake.add(jobs[:size], self._capacity())
            except QueueFull:
                continue
            for job, item in zip(jobs[:size], items[:size], strict=True):
                line.added(job, item)
            if line.each:
                self._pump.wake_getters(size)
            del jobs[:size], items[:size]

    def check_shut(self) -> None:
        """Raise ``QueueShutDown`` once nothing may come in."""
        if self._pump.shut:
            raise QueueShutDown

    async def _put_in_turn(self, job: Job, bind: Bind) -> None:
        first = lost = False
        while True:
            while lost or self._crowded():
                await self._wait(bind, first=first)
                first, lost = True, False
            self.check_shut()
            try:
                await self._line.intake.add([job], self._capacity())
            except QueueFull:
                lost = self._line.direct is None
            else:
                return

    async def _wait(self, bind: Bind, *, first: bool = False) -> None:
        """Until there may be room. Who was woken and came too late keeps the ``first`` place."""
        self.check_shut()
        putter = bind().create_future()
        putters = self._pump.putters
        (putters.appendleft if first else putters.append)(putter)
        self._pump.putter_waits()
        try:
            await putter
        except BaseException:
            putter.cancel()
            if putter in putters:
                putters.remove(putter)
            elif not putter.cancelled() and not self._crowded():
                wake_next(putters)
            raise

    def _crowded(self) -> bool:
        """Whether there is no room, as far as can be known at once; the store has the last word."""
        direct = self._line.direct
        if direct is None:
            return False
        queued = direct.depth_now(self._line.name).queued
        return queued + len(self._line.supply.window) >= self.maxsize

    async def _waiting(self) -> int:
        depth = await self._line.store.depth(self._line.name)
        return depth.queued + len(self._line.supply.window)

    def _capacity(self) -> int | None:
        """What may wait in the store, given what waits in memory."""
        if self.maxsize <= 0:
            return None
        return ceil(self.maxsize) - len(self._line.supply.window)
