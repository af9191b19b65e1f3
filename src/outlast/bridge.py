"""The one background event loop that serves callers who have none: scripts, threads, views."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from outlast.collected import when_collected
from outlast.errors import StoreClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from outlast.store import Store

__all__ = ["Bridge", "Interrupted"]

T = TypeVar("T")

LAST_WORDS = 10.0
"""Seconds that stopping waits for the store to close."""


class Interrupted(StoreClosed):
    """The app was closed while the call was on its way: it may or may not have happened."""


class Bridge:
    """Runs coroutines for synchronous callers, on a store of its own.

    The thread and its loop start with the first call, stop with ``stop`` or at the end of the
    program, and start anew in a forked child.
    """

    def __init__(self, connect: Callable[[], Store]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._line: _Line | None = None
        self._end: weakref.finalize[..., Bridge] | None = None
        self._watched = False

    def run(self, work: Callable[[Store], Coroutine[Any, Any, T]], instead: str) -> T:
        """Do ``work`` in the background loop and wait for it; many threads may do so at once.

        Raises ``RuntimeError`` if this thread's own event loop is running, since waiting would
        stop it; ``Interrupted`` if the bridge is stopped meanwhile. A keyboard interrupt cancels
        the work.
        """
        if _in_a_loop():
            raise RuntimeError(
                f"an event loop is running in this thread and waiting here would stop it: {instead}"
            )
        future = self._reach().submit(work)
        try:
            return future.result()
        except CancelledError:
            raise Interrupted("the app was closed while this call was on its way") from None
        except BaseException:
            future.cancel()
            raise

    @property
    def running(self) -> bool:
        return self._line is not None

    def stop(self) -> None:
        """End the background loop, if there is one; the next call starts another."""
        with self._lock:
            line = self._forget(self._line)
        if line is not None:
            line.stop()

    def _reach(self) -> _Line:
        with self._lock:
            line = self._line
            if line is None:
                if not self._watched and hasattr(os, "register_at_fork"):
                    forget = weakref.WeakMethod(self._after_fork)
                    os.register_at_fork(after_in_child=lambda: (forget() or _nothing)())
                    self._watched = True
                line = self._line = _Line(self._connect())
                # Holds the line and not the bridge, so that a forgotten app can go.
                self._end = when_collected(self, line.stop)
        try:
            line.opened.result()
        except BaseException:
            with self._lock:
                if self._line is line and line.opened.done():
                    self._forget(line)
            raise
        return line

    def _forget(self, line: _Line | None) -> _Line | None:
        """Make room for another line. The lock is held."""
        self._line = None
        if self._end is not None:
            self._end.detach()
            self._end = None
        return line

    def _after_fork(self) -> None:
        # Another thread may have held the lock. The old line stays alive in its finalizer: its
        # store and its loop belong to the parent, and closing them here would disturb it.
        self._lock = threading.Lock()
        self._line = None


class _Line:
    """A thread, its event loop and its store, from the start to the end."""

    def __init__(self, store: Store) -> None:
        self.opened: Future[None] = Future()
        self._store = store
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._halt = asyncio.Event()
        self._calls: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._serve, name="outlast-bridge", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Store], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:
            if self._stopping or self._loop is None:
                raise StoreClosed("the app was closed by another thread; nothing was sent")
            return asyncio.run_coroutine_threadsafe(self._tracked(work), self._loop)

    def stop(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._stopping = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._halt.set)
        if threading.current_thread() is not self._thread:
            self._thread.join(LAST_WORDS)

    async def _tracked(self, work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await work(self._store)
        finally:
            self._calls.discard(task)

    def _serve(self) -> None:
        # Not by asyncio.run, which wants a new thread to end its executor.
        loop = asyncio.new_event_loop()
        loop.set_default_executor(_Threads())
        try:
            loop.run_until_complete(self._live())
            loop.run_until_complete(loop.shutdown_asyncgens())
        except BaseException as error:
            if self.opened.done():
                raise
            self.opened.set_exception(error)
        finally:
            loop.close()

    async def _live(self) -> None:
        with self._lock:
            if self._stopping:
                raise StoreClosed("the app was closed by another thread; nothing was sent")
            self._loop = asyncio.get_running_loop()
        try:
            await self._store.open()
            self.opened.set_result(None)
            await self._halt.wait()
            # Whatever was submitted before the halt has had its first step by now, so this is
            # everything that waits for us; the store's own tasks are not among them.
            for call in self._calls:
                call.cancel()
            if self._calls:
                await asyncio.wait(self._calls)
        finally:
            with self._lock:
                self._stopping, self._loop = True, None
            await self._store.close()


class _Threads(ThreadPoolExecutor):
    """A thread for each call, since a pool refuses calls once the program has begun to end.

    That is when the bridge closes its store, and when threads that outlive the main one still
    enqueue. Stores ask for it to open and to close, so there is nothing to keep for the next call.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        try:
            threading.Thread(target=run, name="outlast-bridge-call", daemon=True).start()
        except RuntimeError:
            # Python 3.12 starts no thread any more when a program ends: then it is done here,
            # where nothing else is left to do.
            run()
        return future


def _in_a_loop() -> bool:
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        return True
    return False


def _nothing() -> None:
    """Stands in for a bridge that is gone."""
