"""What has happened since somebody looked, and the calls that sleep until something does."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from outlast.stores.sqlite.bell import ENDED, ROOM, WORK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from outlast.clock import Clock

__all__ = ["News", "Waiter"]


class News:
    """Counts what was committed, here or elsewhere, by its kind. Any thread may tell it."""

    def __init__(self) -> None:
        self._counts = {WORK: 0, ENDED: 0, ROOM: 0}
        self._looked: dict[tuple[int, str], int] = {}
        self._waiters: set[Waiter] = set()

    def heard(self, news: int) -> None:
        """Something of these kinds was committed."""
        for kind in self._counts:
            if news & kind:
                self._counts[kind] += 1
        for waiter in list(self._waiters):
            if waiter.kind & news:
                waiter.ring()

    def count(self, kind: int) -> int:
        return self._counts[kind]

    def look(self, kind: int, queues: Iterable[str], count: int) -> None:
        """The caller has seen all that had happened to these queues when ``count`` was read."""
        for queue in queues:
            self._looked[kind, queue] = count

    def is_seen(self, kind: int, queues: Iterable[str]) -> bool:
        """Whether somebody has looked, and nothing was committed since."""
        count = self._counts[kind]
        return all(self._looked.get((kind, queue)) == count for queue in queues)

    def is_new(self, kind: int, queues: Iterable[str]) -> bool:
        """Whether something was committed since the last look; asking is the next look."""
        count = self._counts[kind]
        fresh = False
        for queue in queues:
            fresh = fresh or self._looked.get((kind, queue), 0) != count
            self._looked[kind, queue] = count
        return fresh

    def wait(self, kind: int) -> Waiter:
        """One who is told from now on, until it is dropped."""
        waiter = Waiter(kind)
        self._waiters.add(waiter)
        return waiter

    def drop(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)


class Waiter:
    """One call that sleeps until there is news, in whatever loop it runs."""

    __slots__ = ("_loop", "_rung", "kind")

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self._loop = asyncio.get_running_loop()
        self._rung: asyncio.Future[None] = self._loop.create_future()

    def ring(self) -> None:
        # A loop that was closed has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self._rung.done():
            self._rung.set_result(None)

    async def sleep(self, clock: Clock, seconds: float) -> None:
        sleeper = asyncio.ensure_future(clock.sleep(seconds))
        try:
            await asyncio.wait((self._rung, sleeper), return_when=asyncio.FIRST_COMPLETED)
            if sleeper.done():
                sleeper.result()
        finally:
            sleeper.cancel()
