"""What is to be done for an object that was collected as garbage, in a thread that may wait for it.

The collector runs at any moment in any thread: in one that holds the very lock that is needed, or
in the thread of a store, which would wait for itself.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, ClassVar, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PATIENCE", "when_collected"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE = 5.0
"""Seconds that the thread which lost the object waits. It may be holding what ``act`` needs."""


def when_collected(
    owner: T, act: Callable[[], object], *, here: bool = False
) -> weakref.finalize[..., T]:
    """Call ``act`` once ``owner`` is gone, or at the end of the program; ``detach`` to prevent it.

    ``act`` must not refer to ``owner``. Usually it is done before the statement that lets go of
    the owner has ended; it never runs inside a thread of ours, nor is it waited for there. Any
    other thread that lost the owner does it itself if it must be ``here``, as what belongs to an
    event loop of that thread.
    """
    end = weakref.finalize(owner, _Tidier.tidy, act, here)
    _Tidier.start()
    return end


class _Tidier:
    """One thread a process, begun before there is garbage: a collector must start none."""

    _latest: ClassVar[_Tidier | None] = None

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._ended = False
        # Unlike others it may be put to by a collector that interrupts another put.
        self._acts: SimpleQueue[tuple[Callable[[], object], threading.Event] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="outlast-tidy", daemon=True)
        self._thread.start()
        # Called before those finalizers that are left, which then act by themselves.
        atexit.register(self._end)

    @classmethod
    def start(cls) -> None:
        if cls._latest is None or cls._latest._pid != os.getpid():
            cls._latest = cls()

    @staticmethod
    def tidy(act: Callable[[], object], here: bool) -> None:
        self = _Tidier._latest
        ours = threading.current_thread().name.startswith("outlast")
        if self is None or self._ended or self._pid != os.getpid() or (here and not ours):
            act()
            return
        done = threading.Event()
        self._acts.put((act, done))
        if not ours:
            done.wait(PATIENCE)

    def _work(self) -> None:
        while item := self._acts.get():
            act, done = item
            try:
                act()
            except Exception:
                _log.exception("what an object left behind could not be tidied up")
            finally:
                done.set()

    def _end(self) -> None:
        self._ended = True
        if self._pid == os.getpid():
            self._acts.put(None)
            self._thread.join(PATIENCE)
