"""A clock that only moves when a test says so."""

from __future__ import annotations

import asyncio
import threading
from heapq import heappop, heappush
from typing import Any

__all__ = ["FakeClock"]

START = 1_900_000_000.0
"""Moments are large numbers, as in life, so that a moment mistaken for a duration shows."""
PATIENCE = 30.0
"""Real seconds: only what hangs takes as long."""


class FakeClock:
    """Stands still until ``advance``. Sleepers in any thread's event loop wake in their order.

    ``step`` sets the wall clock alone, forward or back, as an administrator or NTP would.
    """

    def __init__(self, start: float = START) -> None:
        self._lock = threading.Lock()
        self._elapsed = 0.0
        self._offset = start
        self._count = 0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._offset + self._elapsed

    def monotonic(self) -> float:
        return 1000.0 + self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            self._count += 1
            heappush(self._sleepers, (self._elapsed + seconds, self._count, future))
        await future

    @property
    def sleepers(self) -> int:
        """How many wait for this clock."""
        with self._lock:
            return sum(not future.done() for _, _, future in self._sleepers)

    def advance(self, seconds: float) -> None:
        """Let time pass. Who slept until then becomes ready, and runs when the loop gets to it."""
        with self._lock:
            self._elapsed += seconds
            due = []
            while self._sleepers and self._sleepers[0][0] <= self._elapsed + 1e-9:
                due.append(heappop(self._sleepers)[2])
        for future in due:
            if future.done():
                continue  # somebody gave up, and its loop may be closed
            future.get_loop().call_soon_threadsafe(_wake, future)

    def step(self, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        self._offset += seconds

    async def run(self, task: asyncio.Future[Any], limit: float, step: float = 1.0) -> float:
        """Let time pass in steps until ``task`` is done; how much passed.

        Fails when ``limit`` seconds did not do. Between the steps whatever runs in threads and
        loops gets a moment of real time to notice; after the last one, as long as it needs.
        """
        passed = 0.0
        while True:
            await asyncio.wait((task,), timeout=0.01 if passed < limit else PATIENCE)
            if task.done():
                return passed
            assert passed < limit, f"not done after {passed} seconds"
            self.advance(step)
            passed += step


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
