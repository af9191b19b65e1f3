"""What goes on while somebody waits at a queue: items are claimed, room and ends are watched for.

Each of the three tasks here lives only as long as somebody waits (and the first a moment longer).
None of them knows the queue object, so that it can go when nobody uses it any more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from outlast.errors import StoreClosed
from outlast.queue.waiters import Waiters

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from outlast.clock import Clock
    from outlast.queue.line import Line

__all__ = ["Pump"]

NEWS = 0.5
"""Seconds of waiting for items after which we look for dead processes again."""
ROOM = (0.02, 0.25)
"""Seconds between looks for room that other processes made: from the first to the last."""
FOLLOW = 2
"""Getters that each of those who got an item lets go on, as long as there are items."""
IDLE = 1.0
"""Seconds without a ``get`` after which the items in memory go back."""


class Pump:
    """Serves those who wait: ``getters`` for an item, ``putters`` for room, others for the end."""

    def __init__(self, line: Line, clock: Clock) -> None:
        # With "group" a caller is woken too soon more often, and is not to suffer for it.
        self.getters = Waiters(strict=line.each)
        self.putters = Waiters(strict=line.each)
        self.joiners = Waiters(strict=line.each)
        self.shut = False
        self.drained = False
        """Whether nothing is left for anybody here: so it was found, or so it was decided."""
        self._line = line
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stir = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._moved = 0
        self._rests = 0.0
        """Since when no item has come in or gone out, as far as was looked."""

    # -- for the queue

    @property
    def ended(self) -> bool:
        """Whether nobody will get an item here any more."""
        return self.shut and self.drained

    def getter_waits(self) -> None:
        """Somebody was added to ``getters``."""
        if not self._run("get", self._serve):
            self._stir.set()

    def holds_stock(self) -> None:
        """Items are in memory; somebody has to give them back if nobody asks for them."""
        if _in_a_loop():
            self._run("get", self._serve)

    def holds_claims(self) -> None:
        """Items were claimed by a call that blocks; where there is a loop, it keeps them ours."""
        if _in_a_loop():
            self._line.start_renewing()

    def getter_served(self) -> None:
        """A getter that had waited is about to take an item: others may follow.

        Were all of them woken at once, a few that never wait for anything else might take all the
        items, and the others come for nothing.
        """
        if self.getters.line and not self._line.each and len(self._line.supply.window) > 1:
            self.getters.wake(FOLLOW)

    def getter_left(self) -> None:
        """A getter goes on: because it was woken, cancelled, or failed."""
        self._stir.set()

    def putter_waits(self) -> None:
        """Somebody was added to ``putters``."""
        self._run("put", self._watch_room)

    def joiner_waits(self) -> None:
        """Somebody was added to ``joiners``."""
        self._run("join", self._watch_end)

    def wake_all(self) -> None:
        """The queue was shut down: everybody has to look again."""
        self.getters.wake_all()
        self.putters.wake_all()
        self._stir.set()

    def fail(self, error: Exception) -> None:
        """Let everybody who waits see what went wrong."""
        for waiters in (self.getters, self.putters, self.joiners):
            waiters.fail(error)

    def stop(self) -> None:
        """The queue was closed."""
        for task in self._tasks.values():
            if not task.get_loop().is_closed():
                task.cancel()
        self._tasks.clear()
        self.fail(StoreClosed(f"queue {self._line.name!r} was closed"))

    def _run(self, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Start a task, unless it runs already in this loop."""
        loop = asyncio.get_running_loop()
        task = self._tasks.get(what)
        if task is not None and not task.done() and task.get_loop() is loop:
            return False
        if self._loop is not loop:
            self._loop, self._stir = loop, asyncio.Event()
        self._tasks[what] = loop.create_task(self._guarded(work))
        return True

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception as error:
            self.fail(error)

    # -- items

    async def _serve(self) -> None:
        line, supply = self._line, self._line.supply
        await line.open()
        if len(self.getters):
            line.start_renewing()
        while True:
            self._stir.clear()
            if self.ended:
                supply.give_back()
                return
            if self.getters.called:
                await self._stir.wait()
            elif not len(self.getters):
                if not await self._stays():
                    return
            elif supply.sure():
                # With "each" all at once, as asyncio's: there each round of the loop counts.
                self.getters.wake(supply.window.ready() if line.each else FOLLOW)
            else:
                await self._fetch()

    async def _fetch(self) -> None:
        line = self._line
        wanted = len(self.getters)
        shut = self.shut
        if line.each:
            line.supply.fetch_now(wanted)
        else:
            await line.supply.fetch(wanted)
        if line.supply.sure():
            return
        if shut and not line.intake.busy:
            self.drained = True
            self.wake_all()
            return
        await line.store.wait([line.name], NEWS)
        await line.recover_dead()

    async def _stays(self) -> bool:
        """Whether somebody asked for an item in time; else those in memory go back."""
        supply = self._line.supply
        if not len(supply.window):
            return False
        now = self._clock.monotonic()
        if supply.moved != self._moved:
            self._moved, self._rests = supply.moved, now
        left = self._rests + IDLE - now
        if left > 0:
            try:
                async with asyncio.timeout(left):
                    await self._stir.wait()
            except TimeoutError:
                pass  # gets that need not wait don't stir: look again
            return True
        supply.give_back()
        await self._line.settling.flush()
        return len(self.getters) > 0

    # -- room

    async def _watch_room(self) -> None:
        line = self._line
        pause = ROOM[0]
        while len(self.putters):
            await line.store.wait([line.name], pause, space=True)
            pause = min(pause * 1.5, ROOM[1])
            room = line.room(await line.store.depth(line.name)) - self.putters.called
            if room > 0:
                pause = ROOM[0]
                self.putters.wake(room)

    # -- the end

    async def _watch_end(self) -> None:
        line = self._line
        await line.open()
        while len(self.joiners):
            await line.settling.flush()
            if self.ended:
                line.forget_others()
            else:
                await line.recount()
            if line.unfinished <= 0 and not line.settling:
                self.joiners.wake_all()
                return
            await line.store.wait([line.name], NEWS, space=True)
            await line.recover_dead()


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
