"""Notices at little cost that one of the processes that use a store on this host came or went."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Lookout", "Neighbours"]

_SETTLED = 50_000_000
"""Nanoseconds after which a change of the folder gets another stamp than the one before."""


class Neighbours:
    """The lifelines in a folder, held open, so that a look at each is one question to the system.

    Nobody need read the folder and its files anew while it is the same folder with the same names,
    and all locks are held.
    """

    __slots__ = ("_files", "_stamp")

    def __init__(self) -> None:
        self._files: list[int] = []
        self._stamp = (0, 0)

    def same(self, folder: Path) -> bool:
        """Whether all those who were here at the last call live, and nobody has come or gone."""
        if sys.platform == "win32":
            return False  # there, what is open can't be deleted
        try:
            found = os.stat(folder)
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp == self._stamp:
                return all(map(_is_held, self._files))
            self.close()
            self._open(folder)
        except OSError:
            self.close()
            return False
        self._stamp = stamp if time.time_ns() - found.st_mtime_ns > _SETTLED else (0, 0)
        return False

    def _open(self, folder: Path) -> None:
        for name in os.listdir(folder):
            if name.endswith((".life", ".super")):
                self._files.append(os.open(folder / name, os.O_RDONLY))

    def close(self) -> None:
        """Look at nobody any more."""
        self._stamp = (0, 0)
        while self._files:
            os.close(self._files.pop())


if sys.platform != "win32":

    def _is_held(fd: int) -> bool:
        """Whether somebody else holds the lock of this open file."""
        import fcntl

        try:
            # Shared, so that others who look meanwhile do not take it for held.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(fd, fcntl.LOCK_UN)
        return False


class Lookout:
    """Looks at the neighbours again and again, in a thread of its own.

    An event loop takes several times as long to wake up from a sleep as a thread that only looks.
    """

    def __init__(self, folder: Path, pause: float) -> None:
        self._folder = folder
        self._pause = pause
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._stop = threading.Lock()
        self._stop.acquire()
        self._thread = threading.Thread(target=self._look, name="outlast-lookout", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        neighbours = Neighbours()
        while not self._stop.acquire(timeout=self._pause):
            if not neighbours.same(self._folder):
                self._loop.call_soon_threadsafe(self._changed.set)
        neighbours.close()

    async def change(self) -> None:
        """Until they may not be the same as at the last call."""
        await self._changed.wait()
        self._changed.clear()

    def stop(self) -> None:
        """End the thread; in the loop that it was made in."""
        self._stop.release()
        self._thread.join()
