"""Wakes those who wait for news, in whichever thread and event loop they wait."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Bell", "Topic", "Waiter"]

Topic = tuple[str, str]
"""What somebody waits for: ("news", queue), ("room", queue) or ("job", id)."""


class Waiter:
    """One sleeper. Made, rung and forgotten under the room's lock."""

    __slots__ = ("_loop", "rung", "topics")

    def __init__(self, topics: frozenset[Topic]) -> None:
        self.topics = topics
        self._loop = asyncio.get_running_loop()
        self.rung: asyncio.Future[None] = self._loop.create_future()

    def ring(self) -> None:
        if self._loop is _running_loop():
            self._set()
        else:
            # A loop that was closed has nobody left to wake.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self.rung.done():
            self.rung.set_result(None)


class Bell:
    """Counts the news of each queue, and rings those who listen."""

    __slots__ = ("_counts", "_waiters")

    def __init__(self) -> None:
        self._counts: dict[Topic, int] = {}
        # In the order of their coming, not in that of their addresses: a simulation repeats it.
        self._waiters: dict[Topic, dict[Waiter, None]] = {}

    def count(self, topic: Topic) -> int:
        return self._counts.get(topic, 0)

    def ring(self, topic: Topic) -> None:
        """Tell that something happened to a queue."""
        self._counts[topic] = self._counts.get(topic, 0) + 1
        self.call(topic)

    def call(self, topic: Topic) -> None:
        """Wake who listens, without counting: for topics that are gone afterwards."""
        for waiter in self._waiters.get(topic, ()):
            waiter.ring()

    def listen(self, topics: Iterable[Topic]) -> Waiter:
        waiter = Waiter(frozenset(topics))
        for topic in waiter.topics:
            self._waiters.setdefault(topic, {})[waiter] = None
        return waiter

    def forget(self, waiter: Waiter) -> None:
        for topic in waiter.topics:
            waiters = self._waiters.get(topic)
            if waiters is not None:
                waiters.pop(waiter, None)
                if not waiters:
                    del self._waiters[topic]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
