"""What was heard since somebody looked, and the calls that sleep until there is something.

For every store whose work is done in a thread of its own: that thread, or the one that hears other
processes, says ``heard``; a claim that found too little says ``look``; ``Store.wait`` asks
``is_new``, and sleeps as a ``Waiter``.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from outlast.clock import Clock

__all__ = ["ALL", "ENDED", "EVERYWHERE", "ROOM", "WORK", "News", "Rung", "Waiter"]

WORK, ENDED, ROOM = 1, 2, 4
"""Kinds of news: jobs may have become claimable; jobs have ended; fewer jobs may be queued."""
ALL = WORK | ENDED | ROOM
EVERYWHERE = ""
"""Stands for every queue: no queue has an empty name."""
_KINDS = (WORK, ENDED, ROOM)
MOST = 10_000
"""Names that are counted apart: whoever may ring at a server may ring for queues that are not."""


class News:
    """Counts what is heard, by its kind and queue. Any thread may tell it, and ask."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, str], int] = {}
        self._looked: dict[tuple[int, str], int] = {}
        self._missed = 0
        self._waiters: set[Rung] = set()

    def heard(self, kinds: int, queues: Collection[str] = (EVERYWHERE,)) -> None:
        """Something of these kinds has happened in these queues."""
        for kind in _KINDS:
            if kinds & kind:
                for queue in queues:
                    self._counts[kind, queue] = self._counts.get((kind, queue), 0) + 1
        if len(self._counts) > MOST:
            # One number for all of them, that is higher than any that somebody has seen.
            self._missed += sum(self._counts.values())
            self._counts.clear()
        self.wake(kinds, queues)

    def missed(self) -> None:
        """Anything may have happened, unheard."""
        self._missed += 1
        self.wake(ALL, (EVERYWHERE,))

    def wake(self, kinds: int, queues: Collection[str]) -> None:
        """Wake those who sleep, and count nothing: for what nobody looks for later."""
        everywhere = EVERYWHERE in queues
        for waiter in list(self._waiters):
            if waiter.kind & kinds and (
                everywhere or not waiter.queues or not waiter.queues.isdisjoint(queues)
            ):
                waiter.ring()

    def count(self, kind: int, queues: Iterable[str]) -> Mapping[str, int]:
        """How much was heard of each queue by now, for ``look``."""
        counts = self._counts
        all_ = counts.get((kind, EVERYWHERE), 0) + self._missed
        return {queue: counts.get((kind, queue), 0) + all_ for queue in queues}

    def look(self, kind: int, seen: Mapping[str, int], more: int = 0) -> None:
        """The caller knows all that was heard when ``seen`` was counted, and so many more."""
        for queue, count in seen.items():
            self._looked[kind, queue] = count + more

    def overlook(self, kind: int, queues: Iterable[str]) -> None:
        """The caller may not know all that there is, without any more being heard."""
        for queue in queues:
            self._looked[kind, queue] = -1

    def is_seen(self, kind: int, queues: Iterable[str]) -> bool:
        """Whether somebody has looked, and nothing was heard since."""
        counts = self.count(kind, queues)
        return all(self._looked.get((kind, queue)) == n for queue, n in counts.items())

    def is_new(self, kind: int, queues: Iterable[str]) -> bool:
        """Whether something was heard since the last look; asking is the next look.

        Who never looked has missed nothing but what is told of the queue itself.
        """
        counts, unseen = self.count(kind, queues), self._missed
        fresh = any(self._looked.get((kind, queue), unseen) != n for queue, n in counts.items())
        self.look(kind, counts)
        return fresh

    def wait(self, kind: int, queues: Iterable[str] = ()) -> Waiter:
        """One who is rung from now on, until it is dropped; without queues, for all of them."""
        waiter = Waiter(kind, frozenset(queues))
        self.join(waiter)
        return waiter

    def join(self, waiter: Rung) -> None:
        """Ring this one from now on, until it is dropped."""
        self._waiters.add(waiter)

    def drop(self, waiter: Rung) -> None:
        self._waiters.discard(waiter)


class Rung(Protocol):
    """Who wants to be told: of these kinds of news, in these queues; without any, in all."""

    kind: int
    queues: frozenset[str]

    def ring(self) -> None:
        """In the thread of whoever tells it."""
        ...


class Waiter:
    """One call that sleeps until it is rung, in whatever loop it runs."""

    __slots__ = ("_loop", "_rung", "kind", "queues")

    def __init__(self, kind: int, queues: frozenset[str]) -> None:
        self.kind = kind
        self.queues = queues
        self._loop = asyncio.get_running_loop()
        self._rung: asyncio.Future[None] = self._loop.create_future()

    def ring(self) -> None:
        # A loop that was closed has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self._rung.done():
            self._rung.set_result(None)

    async def sleep(self, clock: Clock, seconds: float) -> bool:
        """Until it is rung, or for so long; whether it was rung. Each ring is heard once."""
        sleeper = asyncio.ensure_future(clock.sleep(max(0.0, seconds)))
        try:
            await asyncio.wait((self._rung, sleeper), return_when=asyncio.FIRST_COMPLETED)
            if sleeper.done():
                sleeper.result()
            return self._rung.done()
        finally:
            sleeper.cancel()
            if self._rung.done():
                self._rung = self._loop.create_future()
