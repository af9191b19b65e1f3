"""What has happened since somebody looked, and the calls that sleep until something does."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from outlast.clock import Clock

__all__ = ["EVERYWHERE", "News", "Waiter"]

EVERYWHERE = ""
"""Stands for every queue: no queue has an empty name."""


class News:
    """Counts what was committed, here or elsewhere, by its kind and queue. Any thread may tell."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._looked: dict[tuple[str, str], int] = {}
        self._waiters: set[Waiter] = set()

    def heard(self, kind: str, queues: Collection[str]) -> None:
        """Something of this kind was committed that concerns these queues, or ``EVERYWHERE``."""
        for queue in queues:
            topic = (kind, queue)
            self._counts[topic] = self._counts.get(topic, 0) + 1
        everywhere = EVERYWHERE in queues
        for waiter in list(self._waiters):
            if waiter.kind == kind and (
                everywhere or not waiter.queues or not waiter.queues.isdisjoint(queues)
            ):
                waiter.ring()

    def count(self, kind: str, queues: Iterable[str]) -> dict[str, int]:
        """How much has happened to these queues by now."""
        all_ = self._counts.get((kind, EVERYWHERE), 0)
        return {queue: self._counts.get((kind, queue), 0) + all_ for queue in queues}

    def look(self, kind: str, seen: dict[str, int]) -> None:
        """The caller has seen all that had happened when ``seen`` was counted."""
        for queue, count in seen.items():
            self._looked[kind, queue] = count

    def is_new(self, kind: str, queues: Iterable[str]) -> bool:
        """Whether something was committed since the last look; asking is the next look."""
        counts = self.count(kind, queues)
        fresh = any(self._looked.get((kind, queue), 0) != n for queue, n in counts.items())
        self.look(kind, counts)
        return fresh

    def wait(self, kind: str, queues: Iterable[str] = ()) -> Waiter:
        """One who is told from now on, until it is dropped; without queues, of all of them."""
        waiter = Waiter(kind, frozenset(queues))
        self._waiters.add(waiter)
        return waiter

    def drop(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)


class Waiter:
    """One call that sleeps until there is news, in whatever loop it runs."""

    __slots__ = ("_loop", "_rung", "kind", "queues")

    def __init__(self, kind: str, queues: frozenset[str]) -> None:
        self.kind = kind
        self.queues = queues
        self._loop = asyncio.get_running_loop()
        self._rung: asyncio.Future[None] = self._loop.create_future()

    @property
    def rung(self) -> bool:
        return self._rung.done()

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
