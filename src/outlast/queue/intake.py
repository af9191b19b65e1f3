"""Takes items into the store: what is put in the same moment shares one write."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from typing import TYPE_CHECKING, Any

from outlast.errors import EnqueueUncertain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.job import Job
    from outlast.store import Store

__all__ = ["Intake"]

BATCH = 1000
"""Items in one write, unless one call brings more."""


class _Parcel:
    """The jobs of one call, all stored or none.

    ``sent`` wakes the caller, and is cancelled with it. ``flight`` is there once the jobs are on
    their way, and tells the outcome to a caller that was cancelled.
    """

    __slots__ = ("flight", "jobs", "sent")

    def __init__(self, jobs: Sequence[Job], sent: asyncio.Future[None]) -> None:
        self.jobs = jobs
        self.sent = sent
        self.flight: asyncio.Future[None] | None = None


class Intake:
    """Items on their way into the store."""

    def __init__(self, store: Store, alike: Callable[[Sequence[Job]], Sequence[Job]]) -> None:
        self._store = store
        self._alike = alike
        self._waiting: deque[_Parcel] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._alone: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether a call was begun here whose outcome isn't known yet."""
        sender = self._sender
        return bool(self._waiting or self._alone) or (sender is not None and not sender.done())

    async def add(self, jobs: Sequence[Job], capacity: int | None = None) -> None:
        """Return when the jobs are durable. ``QueueFull`` if the queue would hold too many.

        A cancelled ``put`` must not have happened. Once the jobs are on their way that can't be
        promised, so the first cancellation waits for the outcome: if they are stored this returns,
        and the cancellation strikes when the caller next waits for something. A second one is
        obeyed at once, and leaves the outcome open.
        """
        loop = asyncio.get_running_loop()
        parcel = _Parcel(jobs, loop.create_future())
        if capacity is None:
            self._waiting.append(parcel)
            self._start(loop)
        else:
            self._send_alone(parcel, capacity)
        try:
            await parcel.sent
        except asyncio.CancelledError:
            if parcel.flight is None or parcel.flight.cancelled():
                raise
            await _outcome(parcel.flight)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        sender = self._sender
        if sender is None or sender.done() or sender.get_loop() is not loop:
            # It begins in the next round of the loop, when all puts of this one are waiting.
            self._sender = loop.create_task(self._send_waiting())

    def _send_alone(self, parcel: _Parcel, capacity: int) -> None:
        """A limit may refuse one call and not the next: the store shares the commit instead."""
        task = asyncio.create_task(self._send([parcel], capacity))
        self._alone.add(task)
        task.add_done_callback(self._alone.discard)

    async def _send_waiting(self) -> None:
        while batch := self._take():
            await self._send(batch, None)

    def _take(self) -> list[_Parcel]:
        loop = asyncio.get_running_loop()
        batch: list[_Parcel] = []
        size = 0
        while self._waiting and size < BATCH:
            parcel = self._waiting.popleft()
            # Its caller was cancelled, or went with an earlier loop.
            if not parcel.sent.done() and parcel.sent.get_loop() is loop:
                batch.append(parcel)
                size += len(parcel.jobs)
        return batch

    async def _send(self, parcels: Sequence[_Parcel], capacity: int | None) -> None:
        if parcels[0].sent.done():  # cancelled before it could begin; of several, all are waiting
            return
        flight: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        jobs: list[Job] = []
        for parcel in parcels:
            parcel.flight = flight
            jobs += parcel.jobs
        try:
            await self._store.add(self._alike(jobs), capacity)
        except asyncio.CancelledError:
            flight.cancel()
            for parcel in parcels:
                parcel.sent.cancel()
            raise
        except Exception as error:
            flight.set_exception(error)
            flight.exception()  # nobody need look at it
            _fail(parcels, error)
        else:
            flight.set_result(None)
            for parcel in parcels:
                if not parcel.sent.done():
                    parcel.sent.set_result(None)


def _fail(parcels: Sequence[_Parcel], error: Exception) -> None:
    """Each caller needs an error with a traceback, and ids, of its own."""
    for parcel in parcels:
        own = copy.copy(error)
        if isinstance(own, EnqueueUncertain):
            own.ids = tuple(job.id for job in parcel.jobs)
        if not parcel.sent.done():
            parcel.sent.set_exception(own)


async def _outcome(flight: asyncio.Future[None]) -> None:
    """For a caller that was cancelled: return if its jobs are stored, else be cancelled."""
    task = asyncio.current_task()
    asked = task.cancelling() if task is not None else 0
    try:
        await asyncio.shield(flight)
    except Exception:
        raise asyncio.CancelledError from None
    if task is not None:
        task.get_loop().call_soon(_cancel_again, task, asked)


def _cancel_again(task: asyncio.Task[Any], asked: int) -> None:
    """Deliver a cancellation that was held up, unless it was taken back meanwhile."""
    if not task.done() and task.cancelling() >= asked:
        task.cancel()
        task.uncancel()  # the request was counted when it came
