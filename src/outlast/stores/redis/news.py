"""What was heard since somebody looked, and the calls that sleep until something is."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from outlast.clock import Clock

__all__ = ["News"]


class News:
    """Counts what is heard by its topic. Any thread may tell it, and ask."""

    def __init__(self) -> None:
        self._everything = 0
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._looked: dict[str, int] = {}
        self._sleepers: set[Sleeper] = set()

    def heard(self, topics: Iterable[str] | None) -> None:
        """There is news of these topics; None: there may be news of everything."""
        if topics is None:
            self._everything += 1
            for sleeper in list(self._sleepers):
                sleeper.ring()
            return
        for topic in topics:
            if not topic.startswith("j"):
                self._counts[topic] += 1
            for sleeper in list(self._sleepers):
                if topic in sleeper.topics:
                    sleeper.ring()

    def count(self, topics: Iterable[str]) -> Mapping[str, int]:
        """How much was heard by now, for ``look``."""
        return {topic: self._count(topic) for topic in topics}

    def look(self, counts: Mapping[str, int]) -> None:
        """The caller knows all that was heard when these were counted."""
        self._looked.update(counts)

    def overlook(self, topics: Iterable[str]) -> None:
        """The caller may not know all that there is, without any more being heard."""
        self._looked.update(dict.fromkeys(topics, -1))

    def is_new(self, topics: Iterable[str]) -> bool:
        """Whether there is news since the last look; asking is the next look.

        Who never looked has missed nothing but what is told of the topic itself.
        """
        counts = self.count(topics)
        unseen = self._everything
        fresh = any(self._looked.get(topic, unseen) != count for topic, count in counts.items())
        self._looked.update(counts)
        return fresh

    def sleeper(self, topics: Sequence[str]) -> Sleeper:
        """One who is rung from now on, until it is dropped."""
        sleeper = Sleeper(frozenset(topics))
        self._sleepers.add(sleeper)
        return sleeper

    def drop(self, sleeper: Sleeper) -> None:
        self._sleepers.discard(sleeper)

    def _count(self, topic: str) -> int:
        return self._counts.get(topic, 0) + self._everything


class Sleeper:
    """One call that sleeps until it is rung, in whatever loop it runs."""

    __slots__ = ("_loop", "_rung", "topics")

    def __init__(self, topics: frozenset[str]) -> None:
        self.topics = topics
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    def ring(self) -> None:
        # A loop that was closed has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._rung.set)

    async def sleep(self, clock: Clock, seconds: float) -> bool:
        """Until it is rung, or for so long; whether it was rung. Each ring is heard once."""
        rung = asyncio.ensure_future(self._rung.wait())
        timer = asyncio.ensure_future(clock.sleep(max(0.0, seconds)))
        try:
            await asyncio.wait((rung, timer), return_when=asyncio.FIRST_COMPLETED)
            if timer.done():
                timer.result()
            return self._rung.is_set()
        finally:
            rung.cancel()
            timer.cancel()
            self._rung.clear()
