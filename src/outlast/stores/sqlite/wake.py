"""Wakes the one thread that waits: like an event that is cleared by waiting, in far fewer steps."""

from __future__ import annotations

import threading

__all__ = ["Wake"]


class Wake:
    """A lock that is free while there is something to wake up for. Any thread may set it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake who waits, or else keep the next one from waiting."""
        if self._lock.locked():
            try:
                self._lock.release()
            except RuntimeError:
                pass  # another thread was faster, and means the same

    def wait(self) -> None:
        """Return when it has been set since the last time."""
        self._lock.acquire()
