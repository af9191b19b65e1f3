"""How a call is answered that another thread does: to a coroutine in any loop, or to who blocks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Blocked", "Landing", "Reply", "deliver"]

T = TypeVar("T")


class Blocked(Generic[T]):
    """Where one thread waits for an answer: what a ``Future`` does for it, in far fewer steps."""

    __slots__ = ("_answer", "_error", "_there")

    def __init__(self) -> None:
        self._answer: T | None = None
        self._error: BaseException | None = None
        self._there = threading.Lock()
        self._there.acquire()

    def done(self) -> bool:
        return not self._there.locked()

    def cancelled(self) -> bool:
        return False  # who waits can't do anything else

    def set_result(self, answer: T) -> None:
        self._answer = answer
        self._there.release()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._there.release()

    def result(self) -> T:
        with self._there:
            if self._error is not None:
                raise self._error
            return cast("T", self._answer)


class Reply(Generic[T]):
    """One call: its ``answer`` or its ``error``, and where its caller waits, if anybody does.

    ``undo`` makes the call whose answer nobody received undone.
    """

    __slots__ = ("answer", "error", "reply", "told", "undo")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.answer: T | None = None
        self.undo: Callable[[T], None] | None = None
        self.reply: asyncio.Future[T] | Future[T] | Blocked[T] | None = None
        self.told = False

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for the answer."""
        return self.reply is not None and not self.reply.done()

    def orphan(self, undo: Callable[[T], None]) -> None:
        """In the loop of the caller, which was cancelled: nobody will see the answer."""
        self.undo = undo
        if self.reply is None:  # it had been delivered, and is undone here
            self._take_back()

    def resolve(self) -> None:
        """In the loop of the caller, or in the thread that did it if the caller blocks."""
        reply, self.reply = self.reply, None
        if reply is None:
            return
        if reply.done():
            self._take_back()
        elif self.error is not None:
            reply.set_exception(self.error)
        else:
            reply.set_result(cast("T", self.answer))

    def _take_back(self) -> None:
        if self.undo is not None and self.error is None:
            self.undo(cast("T", self.answer))


class Landing:
    """Where answers come down in one event loop, on Linux: in fewer steps than asyncio's own way.

    That one is a pair of sockets, read until an exception says that nothing is left. Only the
    loop holds it, so it goes when that is closed, and with it the descriptor and what is left.
    """

    __slots__ = ("__weakref__", "_calls", "_fd", "_rung")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rung = False
        self._calls: deque[tuple[Sequence[Reply[Any]], bool]] = deque()

    @classmethod
    def prepare(cls, loop: asyncio.AbstractEventLoop) -> None:
        """In that loop, before anything is delivered there. Does nothing where it can't be."""
        if loop in _landings or not hasattr(os, "eventfd"):
            return
        _landings[loop] = _nowhere
        try:
            fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            return  # no descriptor is left: the other way needs none
        landing = cls(fd)
        try:
            loop.add_reader(fd, landing.land)
        except BaseException as error:
            os.close(fd)
            if not isinstance(error, Exception):
                raise
            return  # this loop watches no descriptors
        weakref.finalize(landing, os.close, fd).atexit = False
        _landings[loop] = weakref.ref(landing)

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Landing | None:
        return _landings.get(loop, _nowhere)()

    def send(
        self, loop: asyncio.AbstractEventLoop, calls: Sequence[Reply[Any]], soon: bool
    ) -> None:
        """From any thread, to that loop, which is the one it was prepared in."""
        self._calls.append((calls, soon))
        if not self._rung:
            self._rung = True
            try:
                os.eventfd_write(self._fd, 1)
            except OSError:
                # Somebody closed it under us. The other way is slower, and there yet.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self.land)

    def land(self) -> None:
        """In the loop."""
        with contextlib.suppress(OSError):  # others were told of already, or it was closed
            os.eventfd_read(self._fd)
        self._rung = False
        while self._calls:
            calls, soon = self._calls.popleft()
            if soon:
                asyncio.get_running_loop().call_soon(_resolve, calls)
            else:
                _resolve(calls)


def _nowhere() -> None:
    """For a loop that has none."""


_landings: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Callable[[], Landing | None]]
_landings = weakref.WeakKeyDictionary()


def deliver(calls: Sequence[Reply[Any]], *, soon: bool = False) -> None:
    """Answer callers: one wake-up for each loop, however many of its calls are done.

    With ``soon``, in the turn of the loop after the next: others that were answered go first.
    """
    loops: dict[asyncio.AbstractEventLoop, list[Reply[Any]]] = {}
    last: asyncio.AbstractEventLoop | None = None
    mine: list[Reply[Any]] = []
    for call in calls:
        call.told = True
        reply = call.reply
        if isinstance(reply, Blocked):
            call.resolve()
        elif isinstance(reply, Future):
            reply.set_running_or_notify_cancel()
            call.resolve()
        elif reply is not None:
            loop = reply.get_loop()
            if loop is not last:
                last, mine = loop, loops.setdefault(loop, [])
            mine.append(call)
    for loop, mine in loops.items():
        landing = Landing.of(loop)
        if landing is not None:
            landing.send(loop, mine, soon)
            continue
        # A caller whose loop is closed has nobody to tell.
        with contextlib.suppress(RuntimeError):
            if soon:
                loop.call_soon_threadsafe(loop.call_soon, _resolve, mine)
            else:
                loop.call_soon_threadsafe(_resolve, mine)


def _resolve(calls: Sequence[Reply[Any]]) -> None:
    for call in calls:
        call.resolve()
