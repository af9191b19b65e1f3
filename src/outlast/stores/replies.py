"""How a call is answered that another thread does: to a coroutine in any loop, or to who blocks."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

__all__ = ["Blocked", "Reply", "deliver"]

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


def deliver(calls: Sequence[Reply[Any]]) -> None:
    """Answer callers: one wake-up for each loop, however many of its calls are done."""
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
        # A caller whose loop is closed has nobody to tell.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, mine)


def _resolve(calls: Sequence[Reply[Any]]) -> None:
    for call in calls:
        call.resolve()
