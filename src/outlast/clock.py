"""Time as the engine sees it: the only module that reads a clock or sleeps."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Where the time comes from. Stores on a server use the server's clock instead."""

    def now(self) -> float:
        """Seconds since the epoch. May jump; used only for moments that people or stores see."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for measuring durations."""
        ...

    async def sleep(self, seconds: float, /) -> None:
        """Wait. Cancelling it is immediate."""
        ...


class SystemClock:
    """The machine's own clock."""

    __slots__ = ()

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)

    def __repr__(self) -> str:
        return "SystemClock()"
