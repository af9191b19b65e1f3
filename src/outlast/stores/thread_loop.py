"""A thread with an event loop of its own, for the stores whose drivers are asyncio's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

__all__ = ["ThreadLoop", "read_sparingly"]

T = TypeVar("T")

READ = 64 * 1024
"""Bytes that a connection reads at once. For the 256 KiB of asyncio the allocator asks the system
each time and gives them back: three calls, and pages to be cleared, for an answer of a few bytes.
"""


class ThreadLoop:
    """``loop`` runs in a thread of this name from ``start`` to ``end``.

    Others hand it calls by a descriptor of ours where the system has them (Linux): asyncio's own
    way is a pair of sockets, read until an exception says that nothing is left, which costs a lone
    call as much again as to wake the thread.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._rung = False
        self._gate = threading.RLock()
        """Whoever writes to the descriptor holds it: a number that was let go of may be another's.

        Entered again where the collector ends something in the middle of it.
        """
        self._fd = -1

    def start(self) -> None:
        if hasattr(os, "eventfd"):
            with contextlib.suppress(OSError):  # none is left, or it can't be watched
                fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                try:
                    self.loop.add_reader(fd, self._land)
                except BaseException:
                    os.close(fd)
                    raise
                self._fd = fd
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether the caller is this thread."""
        return threading.get_ident() == self._thread.ident

    def soon(self, call: Callable[..., object], *args: object) -> None:
        """Have this called there, after what was handed over before; from any thread.

        Raises ``RuntimeError`` once it has ended.
        """
        with self._gate:
            if self._fd < 0:
                self.loop.call_soon_threadsafe(call, *args)
                return
            self._calls.append((call, args))
            if not self._rung:
                self._rung = True
                try:
                    os.eventfd_write(self._fd, 1)
                except BaseException:  # a signal's handler raised: the next one is to ring
                    self._rung = False
                    raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have it done there. Blocks; not for the thread itself."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def end(self) -> None:
        """Stop, whatever is under way. Blocks."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        with self._gate:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                self.loop.remove_reader(fd)
                os.close(fd)
            self.loop.close()

    def _land(self) -> None:
        os.eventfd_read(self._fd)
        self._rung = False
        for _ in range(len(self._calls)):
            call, args = self._calls.popleft()
            try:
                call(*args)
            except Exception as error:
                what = f"{call!r} failed"
                self.loop.call_exception_handler({"message": what, "exception": error})

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


def read_sparingly(transport: object) -> None:
    """Have a driver's connection read ``READ`` bytes at once, if it is one of asyncio's sockets."""
    if hasattr(transport, "max_size"):
        transport.max_size = READ
