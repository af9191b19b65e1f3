"""Fairness between processes that write to one file: who waits says so, and is let in."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from functools import cache
from typing import TYPE_CHECKING

from outlast.stores.sqlite.files import give_to_owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["YIELD", "Turn"]

GLANCE = 0.002
"""Seconds after which a process that goes on writing looks again whether anybody waits."""
YIELD = 0.0005
"""Seconds in which who waits finds the file free."""


class Turn:
    """Waiters hold a shared lock on a file, which is tested by the one that has just committed.

    SQLite's own waiting sleeps up to 100 ms and starves some processes. Nothing depends on this:
    where the lock can't be had, processes are only less fair to each other.
    """

    __slots__ = ("_mine", "_one", "_others", "_path", "_until", "_waiters")

    def __init__(self, folder: Path) -> None:
        self._path = folder / "turn"
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        self._mine = os.open(self._path, flags, 0o600)
        give_to_owner(self._path, folder)
        self._others = os.open(self._path, flags, 0o600)
        self._until = 0.0
        self._waiters = 0
        self._one = threading.Lock()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        flock = _flock()
        if flock is None:
            yield
            return
        call, shared, _, unlock = flock
        with self._one, contextlib.suppress(OSError):
            self._waiters += 1
            # Refused for the moment in which someone looks whether anybody waits.
            call(self._mine, shared)
        try:
            yield
        finally:
            with self._one, contextlib.suppress(OSError):
                self._waiters -= 1
                if not self._waiters:
                    call(self._mine, unlock)

    def yield_to_others(self) -> None:
        """After a commit; now and then it takes ``YIELD`` seconds."""
        now = time.monotonic()
        if now >= self._until:
            self._until = now + GLANCE
            if self.others_wait():
                time.sleep(YIELD)

    def others_wait(self) -> bool:
        """Whether anybody does, in this process or another."""
        flock = _flock()
        if flock is None:
            return False
        call, _, exclusive, unlock = flock
        try:
            call(self._others, exclusive)
        except BlockingIOError:
            return True
        except OSError:
            return False
        call(self._others, unlock)
        return False

    def close(self) -> None:
        os.close(self._mine)
        os.close(self._others)


@cache
def _flock() -> tuple[Callable[[int, int], None], int, int, int] | None:
    try:
        import fcntl
    except ImportError:
        return None
    # Two processes that wait at once share it; only the test after a commit asks for it alone.
    now = fcntl.LOCK_NB
    return fcntl.flock, fcntl.LOCK_SH | now, fcntl.LOCK_EX | now, fcntl.LOCK_UN
