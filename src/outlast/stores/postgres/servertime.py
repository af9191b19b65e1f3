"""The server's clock, reckoned on from its last reading: one for all connections of a store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from outlast.clock import SystemClock

if TYPE_CHECKING:
    from asyncpg import Connection

    from outlast.clock import Clock

__all__ = ["ServerTime"]

FRESH = 1.0
"""Seconds for which the clock is reckoned on from when it was last read."""

_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"


class ServerTime:
    """What time it is at the server, in seconds since the epoch.

    An answer that is long on its way makes a reading late. So that what one connection writes is
    not younger than the next one's present, the connections of a store share their readings, and
    a later reading turns the time back only if the server's clock was set.

    A clock of a test's own is taken as it is, in the server's place.
    """

    def __init__(self, clock: Clock) -> None:
        self._own = None if isinstance(clock, SystemClock) else clock
        self._read_at = -1e9
        self._offset = 0.0
        self._last = 0.0

    async def read(self, connection: Connection) -> tuple[float, float]:
        """The moment, and what leases are measured by: the same, as a server has just one clock."""
        if self._own is not None:
            return self._own.now(), self._own.monotonic()
        here = time.monotonic()
        if here - self._read_at > FRESH:
            server: float = await connection.fetchval(_CLOCK)
            self._read_at = here = time.monotonic()
            self._offset = server - here
        now = here + self._offset
        if 0 < self._last - now < FRESH:
            now = self._last
        self._last = now
        return now, now

    def forget(self) -> None:
        """The connection was lost: the next one may lead to another server."""
        self._read_at = -1e9
