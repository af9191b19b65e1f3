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


def when_collected(owner: T, act: Callable[[], object]) -> weakref.finalize[..., T]:
    """Call ``act`` once ``owner`` is gone, or at the end of the program; ``detach`` to prevent it.

    ``act`` must not refer to ``owner``, and is done in a thread of its own, whoever lost the owner.
    Usually that is before the statement that lets go of the owner has ended; a thread of ours does
    not wait for it.
    """
    end = weakref.finalize(owner, _Tidier.tidy, act)
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
    def tidy(act: Callable[[], object]) -> None:
        self = _Tidier._latest
        if self is None or self._ended or self._pid != os.getpid():
            act()
            return
        done = threading.Event()
        self._acts.put((act, done))
        if not threading.current_thread().name.startswith("outlast"):
            done.wait(PATIENCE)

    def _work(self) -> None:
        while item := self._acts.get():
            act, done = item
            try:
                act()
            except Exception:
                _log.exception("what an object left behind could not be tidied up")
            finally:
                # What it holds is to go where it was lost, not here when there is more to tidy.
                del act, item
                done.set()

    def _end(self) -> None:
        self._ended = True
        if self._pid == os.getpid():
            self._acts.put(None)
            self._thread.join(PATIENCE)
