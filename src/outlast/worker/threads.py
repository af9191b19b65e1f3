"""Runs plain functions in threads, and can say where each of them stands."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ThreadCall", "WorkerThreads", "stack_of"]

log = logging.getLogger(__name__)


class WorkerThreads:
    """As many threads as the worker has slots, started when they are needed."""

    def __init__(self, slots: int) -> None:
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="outlast-task")

    def start(self, call: Callable[[], Any]) -> ThreadCall:
        """Have a function called in a thread, at once."""
        run = ThreadCall()
        self._pool.submit(run.work, call)
        return run

    def close(self) -> None:
        """Let the threads end; does not wait for one that is busy."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class ThreadCall:
    """One call in a thread. ``ended`` gives what it returned, or what it raised."""

    __slots__ = ("_ident", "_loop", "ended")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ident = 0
        self.ended: asyncio.Future[tuple[Any, BaseException | None]] = self._loop.create_future()

    def work(self, call: Callable[[], Any]) -> None:
        """The thread's part. What is raised is handed over, whatever it is."""
        self._ident = threading.get_ident()
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = call(), None
        except BaseException as error:
            # Without our own frame, which tells nobody anything.
            trace = error.__traceback__
            outcome = None, error.with_traceback(trace and trace.tb_next)
        self._ident = 0
        try:
            self._loop.call_soon_threadsafe(self._end, outcome)
        except RuntimeError:
            log.warning("a thread ended after its worker; what it did is not recorded")

    def stack(self) -> str:
        """Where the thread stands."""
        return stack_of(self._ident)

    def _end(self, outcome: tuple[Any, BaseException | None]) -> None:
        if not self.ended.done():
            self.ended.set_result(outcome)


def stack_of(ident: int) -> str:
    """The stack of a thread, its last 40 frames; it may have moved on by the time one reads it."""
    frame = sys._current_frames().get(ident)
    if frame is None:
        return "(the thread has ended)"
    return "".join(traceback.format_stack(frame)[-40:]).rstrip()
