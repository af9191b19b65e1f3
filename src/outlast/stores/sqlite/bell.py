"""Wakes waiters in this and other processes when something was committed, without polling.

A process that waits keeps a named pipe in the companion folder; whoever commits writes a byte into
each. The byte stays in the pipe until it is read, so a bell that rings between a look and a wait is
heard. Where there are no named pipes (Windows), waiters look at SQLite's change counter instead.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import threading
import time
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING

from outlast.stores.news import ALL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Bell"]

_log = logging.getLogger(__name__)

_SUFFIX = ".bell"
_POLL = 0.02
_PAGE = 4096
"""The least that a pipe holds, in bytes (pipe(7))."""


class Bell:
    """One process's ear and its hand on everyone else's."""

    def __init__(self, folder: Path, name: str, heard: Callable[[int], None]) -> None:
        self._folder = folder
        self._name = f"{name}{_SUFFIX}"
        self._heard = heard
        self._ear: int | None = None
        self._thread: threading.Thread | None = None
        self._stop: tuple[int, int] | None = None
        self._others: dict[str, int] = {}
        self._listed = (0, 0)
        self._lock = threading.Lock()

    # -- hearing

    def listen(self, changed: Callable[[], bool]) -> None:
        """Begin to listen, in a thread of its own; without pipes, poll ``changed``."""
        with self._lock:
            if self._thread is not None:
                return
            self._stop = os.pipe()
            self._ear = self._open_ear()
            run = (
                partial(self._poll, changed)
                if self._ear is None
                else partial(self._hear, self._ear, self._stop[0])
            )
            self._thread = threading.Thread(target=run, name="outlast-bell", daemon=True)
            self._thread.start()

    def _open_ear(self) -> int | None:
        """A pipe of ours, or None where there can be none: not here, or not on this disk."""
        if not hasattr(os, "mkfifo"):
            return None
        # Under its final name there is always a reader behind it, or its process is dead.
        fresh = self._folder / f".{self._name}"
        try:
            os.mkfifo(fresh, 0o600)
            ear = os.open(fresh, os.O_RDWR | os.O_NONBLOCK)
            os.rename(fresh, self._folder / self._name)
        except OSError as error:
            _log.warning("%s: no named pipe (%s); looking for news instead", fresh, error.strerror)
            return None
        return ear

    def _hear(self, ear: int, stop: int) -> None:
        poll = select.poll()
        poll.register(ear, select.POLLIN)
        poll.register(stop, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if stop in ready:
                return
            with contextlib.suppress(BlockingIOError):
                rung = os.read(ear, 65536)
                # Of a pipe that may have been full nobody knows which news did not fit.
                self._heard(ALL if len(rung) >= _PAGE else reduce(or_, rung, 0))

    def _poll(self, changed: Callable[[], bool]) -> None:
        while self._stop is not None:
            time.sleep(_POLL)
            if changed():
                self._heard(ALL)

    # -- ringing

    def ring(self, news: int) -> None:
        """Tell every listening process; never blocks, and costs microseconds if nobody listens."""
        if not hasattr(os, "mkfifo"):
            return
        try:
            self._list()
        except OSError as error:
            # Whoever waits finds the news when its time is over.
            _log.warning("%s: can't wake other processes: %s", self._folder, error.strerror)
            return
        if not self._others:
            return
        message = bytes((news,))
        for name, descriptor in list(self._others.items()):
            try:
                os.write(descriptor, message)
            except BlockingIOError:
                pass  # the pipe is full of news already
            except OSError:
                self._forget(name)

    def _list(self) -> None:
        found = os.stat(self._folder)
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp == self._listed:
            return
        # Two changes within one tick of the file system's clock bear the same stamp.
        settled = time.time_ns() - found.st_mtime_ns > 50_000_000
        self._listed = stamp if settled else (0, 0)
        names = {entry for entry in os.listdir(self._folder) if entry.endswith(_SUFFIX)}
        names = {name for name in names if not name.startswith(".") and name != self._name}
        for name in self._others.keys() - names:
            self._forget(name)
        for name in names - self._others.keys():
            path = self._folder / name
            try:
                self._others[name] = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nobody reads: its process died
                    with contextlib.suppress(OSError):
                        path.unlink()

    def _forget(self, name: str) -> None:
        try:
            os.close(self._others.pop(name))
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            # Other code of this process has closed it. What was committed is to be answered still.
        self._listed = (0, 0)

    def close(self) -> None:
        """Stop listening and take the pipe away."""
        with self._lock:
            stop, self._stop = self._stop, None
            if self._thread is not None and stop is not None:
                os.write(stop[1], b"x")
                if self._thread is not threading.current_thread():
                    self._thread.join()
                os.close(stop[0])
                os.close(stop[1])
            if self._ear is not None:
                with contextlib.suppress(FileNotFoundError):
                    (self._folder / self._name).unlink()
                os.close(self._ear)
                self._ear = None
            self._thread = None
            for name in list(self._others):
                self._forget(name)
