"""Fairness between processes that write to one file: who waits says so, and is let in."""

from __future__ import annotations

import contextlib
import os
import time
from functools import cache
from typing import TYPE_CHECKING

from outlast.stores.sqlite.files import give_to_owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Turn"]

GLANCE = 0.002
"""Seconds after which a process that goes on writing looks again whether anybody waits."""


class Turn:
    """Waiters hold a shared lock on a file, which is tested by the one that has just committed.

    SQLite's own waiting sleeps up to 100 ms and starves some processes. Nothing depends on this:
    where the lock can't be had, processes are only less fair to each other.
    """

    __slots__ = ("_mine", "_others", "_path", "_until")

    def __init__(self, folder: Path) -> None:
        self._path = folder / "turn"
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        self._mine = os.open(self._path, flags, 0o600)
        give_to_owner(self._path, folder)
        self._others = os.open(self._path, flags, 0o600)
        self._until = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        flock = _flock()
        if flock is None:
            yield
            return
        call, shared, _, unlock = flock
        # Refused for the moment in which someone looks whether anybody waits.
        with contextlib.suppress(OSError):
            call(self._mine, shared)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                call(self._mine, unlock)

    def yield_to_others(self) -> None:
        now = time.monotonic()
        flock = _flock()
        if flock is None or now < self._until:
            return
        self._until = now + GLANCE
        call, _, exclusive, unlock = flock
        try:
            call(self._others, exclusive)
        except BlockingIOError:
            time.sleep(0.0005)
        except OSError:
            return
        else:
            call(self._others, unlock)

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
