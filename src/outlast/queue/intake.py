"""Takes items into the store: what is put in the same moment shares one write."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any

from outlast.errors import EnqueueUncertain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Job
    from outlast.store import Store

__all__ = ["Intake"]

BATCH = 1000
"""Items in one write, unless one call brings more."""


class _Parcel:
    """The jobs of one call, all stored or none; ``sent`` tells the outcome."""

    __slots__ = ("jobs", "sent")

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Intake:
    """Items on their way into the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[int, _Parcel] = {}
        self._sender: asyncio.Task[None] | None = None

    async def add(self, jobs: Sequence[Job], capacity: int | None = None) -> None:
        """Return when the jobs are durable. ``QueueFull`` if the queue would hold too many.

        A cancelled ``put`` must not have happened. Once the jobs are on their way that can't be
        promised, so the first cancellation waits for the outcome: if they are stored this returns,
        and the cancellation strikes when the caller next waits for something. A second one is
        obeyed at once, and leaves the outcome open.
        """
        parcel = _Parcel(jobs)
        self._waiting[id(parcel)] = parcel
        if capacity is None:
            self._start()
        else:
            self._send_alone(parcel, capacity)
        try:
            await asyncio.shield(parcel.sent)
        except asyncio.CancelledError:
            if self._waiting.pop(id(parcel), None) is not None or parcel.sent.cancelled():
                raise
            await self._outcome(parcel)

    async def _outcome(self, parcel: _Parcel) -> None:
        task = asyncio.current_task()
        asked = task.cancelling() if task is not None else 0
        try:
            await asyncio.shield(parcel.sent)
        except Exception:
            raise asyncio.CancelledError from None
        if task is not None:
            task.get_loop().call_soon(_cancel_again, task, asked)

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        sender = self._sender
        if sender is None or sender.done() or sender.get_loop() is not loop:
            # It begins in the next round of the loop, when all puts of this one are waiting.
            self._sender = loop.create_task(self._send_waiting())

    def _send_alone(self, parcel: _Parcel, capacity: int) -> None:
        """A limit may refuse one call and not the next: the store shares the commit instead."""
        del self._waiting[id(parcel)]
        task = asyncio.ensure_future(self._send([parcel], capacity))
        parcel.sent.add_done_callback(lambda _: task)  # a task nobody refers to may vanish

    async def _send_waiting(self) -> None:
        while batch := self._take():
            await self._send(batch, None)

    def _take(self) -> list[_Parcel]:
        loop = asyncio.get_running_loop()
        batch: list[_Parcel] = []
        size = 0
        while self._waiting and size < BATCH:
            parcel = self._waiting.pop(next(iter(self._waiting)))
            if parcel.sent.get_loop() is loop:  # else its caller went with an earlier loop
                batch.append(parcel)
                size += len(parcel.jobs)
        return batch

    async def _send(self, parcels: Sequence[_Parcel], capacity: int | None) -> None:
        jobs = [job for parcel in parcels for job in parcel.jobs]
        try:
            await self._store.add(jobs, capacity)
        except asyncio.CancelledError:
            for parcel in parcels:
                parcel.sent.cancel()
            raise
        except Exception as error:
            for parcel in parcels:
                if not parcel.sent.done():
                    parcel.sent.set_exception(_own(error, parcel))
                    parcel.sent.exception()  # a caller that is gone need not see it
        else:
            for parcel in parcels:
                if not parcel.sent.done():
                    parcel.sent.set_result(None)


def _own(error: Exception, parcel: _Parcel) -> Exception:
    """The error for one caller among several: each needs a traceback, and ids, of its own."""
    if isinstance(error, EnqueueUncertain):
        return EnqueueUncertain(str(error), [job.id for job in parcel.jobs])
    return copy.copy(error)


def _cancel_again(task: asyncio.Task[Any], asked: int) -> None:
    """Deliver a cancellation that was held up, unless it was taken back meanwhile."""
    if not task.done() and task.cancelling() >= asked:
        task.cancel()
        task.uncancel()  # the request was counted when it came
