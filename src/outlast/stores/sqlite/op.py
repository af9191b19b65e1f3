"""One call on its way through the writer's thread, and how its caller is answered."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from outlast.job import Job
    from outlast.stores.sqlite.moves import Moves

__all__ = ["Op", "deliver"]

T = TypeVar("T")


class Op(Generic[T]):
    """One call waiting for the writer. ``synced``: its answer promises that it is on disk.

    ``jobs`` are those of an ``add``. They are ``alike`` too if they differ in nothing but id and
    payload and can't be refused: then they may be written with those of other calls. ``reply`` is
    where the caller waits, if anybody does.
    """

    __slots__ = (
        "alike",
        "answer",
        "error",
        "jobs",
        "reply",
        "run",
        "size",
        "synced",
        "told",
        "undo",
    )

    def __init__(
        self,
        run: Callable[[Moves], T],
        synced: bool,
        size: int = 1,
        jobs: Sequence[Job] | None = None,
        alike: Sequence[Job] = (),
    ) -> None:
        self.run = run
        self.synced = synced
        self.size = size
        self.jobs = jobs
        self.alike = alike
        self.error: BaseException | None = None
        self.answer: T | None = None
        self.undo: Callable[[T], None] | None = None
        self.reply: asyncio.Future[T] | Future[T] | None = None
        self.told = False

    def orphan(self, undo: Callable[[T], None]) -> None:
        """In the loop of the caller, which was cancelled: nobody will see the answer."""
        self.undo = undo
        if self.reply is None:  # it had been delivered, and is undone here
            self._take_back()

    def _take_back(self) -> None:
        if self.undo is not None and self.error is None:
            self.undo(cast("T", self.answer))

    def resolve(self) -> None:
        """In the loop of the caller, or in the writer's thread if the caller blocks."""
        reply, self.reply = self.reply, None
        if reply is None:
            return
        if reply.cancelled():
            self._take_back()
        elif self.error is not None:
            reply.set_exception(self.error)
        else:
            reply.set_result(cast("T", self.answer))


def deliver(ops: Sequence[Op[Any]]) -> None:
    """Answer callers: one wake-up for each loop, however many of its calls are done."""
    loops: dict[asyncio.AbstractEventLoop, list[Op[Any]]] = {}
    for op in ops:
        op.told = True
        if isinstance(op.reply, Future):
            op.reply.set_running_or_notify_cancel()
            op.resolve()
        elif op.reply is not None:
            loops.setdefault(op.reply.get_loop(), []).append(op)
    for loop, mine in loops.items():
        # A caller whose loop is closed has nobody to tell.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, mine)


def _resolve(ops: Sequence[Op[Any]]) -> None:
    for op in ops:
        op.resolve()
