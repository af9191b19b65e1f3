"""Sends what is stored, many in one write; and calls of tasks that Celery's workers run."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from msgspec.structs import replace

from outlast.contrib.celery.beside import canvas
from outlast.options import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime, timedelta

    from msgspec import UnsetType

    from outlast.contrib.celery.beside.carrier import Backend, Broker
    from outlast.handle import Handle
    from outlast.task import Call, Task

__all__ = ["Sender", "Sending"]

log = logging.getLogger(__name__)

MOST = 500
"""Ends that share one write."""


class Sending:
    """The way out of one worker process. What waits meanwhile goes with the next write."""

    def __init__(
        self, broker: Broker, backend: Backend | None, route: Callable[[str], str]
    ) -> None:
        self.broker = broker
        self._route = route
        self._backend = backend
        self._waiting: list[tuple[canvas.End, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._notes: list[tuple[canvas.Result, Future[None]]] = []
        self._noting: asyncio.Task[None] | None = None

    def note(self, result: canvas.Result) -> Future[None]:
        """Have a state written that is not the last one. It is news: no more than tried.

        What is returned is done when it is written, or won't be.
        """
        told: Future[None] = Future()
        if self._backend is None:
            told.set_result(None)
            return told
        self._notes.append((result, told))
        if self._noting is None:
            self._noting = asyncio.ensure_future(self._write_notes(self._backend))
        return told

    @property
    def can_be_late(self) -> bool:
        """Whether a state that comes after the end would take its place."""
        return self._backend is not None and not self._backend.keeps_ends

    async def _write_notes(self, backend: Backend) -> None:
        while self._notes:
            batch, self._notes = self._notes[:MOST], self._notes[MOST:]
            try:
                await backend.note([result for result, _ in batch])
            except Exception as error:
                # What has come meanwhile as well: it would be no news when the backend is back.
                batch, self._notes = [*batch, *self._notes], []
                log.warning("%d states were not told to Celery: %s", len(batch), error)
            for _, told in batch:
                told.set_result(None)
        self._noting = None

    async def tell(self, end: canvas.End) -> None:
        """Results are written and messages sent when this returns."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, told))
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())
        await told
        for part in end.parts:
            await self._part(part)

    async def _part(self, part: canvas.Part) -> None:
        if self._backend is None:
            return
        complete = await self._backend.part(part)
        if complete is not None:
            # A repeat finds the same parts, makes the same messages, and sends none twice.
            await self.tell(canvas.joined(part, *complete))
            await self._backend.finish(part.group)

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            errors: list[BaseException | None]
            try:
                errors = await self._write_all([end for end, _ in batch])
            except Exception as error:
                errors = [error] * len(batch)
            for (_, told), wrong in zip(batch, errors, strict=True):
                if told.done():
                    continue
                if wrong is None:
                    told.set_result(None)
                else:
                    told.set_exception(wrong)
        self._writing = None

    async def _write_all(self, ends: list[canvas.End]) -> list[BaseException | None]:
        """What became of each. Raises if that is the same for all."""
        results = [one for end in ends for one in end.results]
        sizes = [one for end in ends for one in end.sizes]
        if self._backend is not None and (results or sizes):
            await self._backend.store(results, sizes)
        calls = [
            one if one.queue else replace(one, queue=self._route(one.task))
            for end in ends
            for one in end.calls
        ]
        outcomes = iter(await self.broker.send(calls) if calls else ())
        return [next(filter(None, [next(outcomes) for _ in end.calls]), None) for end in ends]

    async def close(self) -> None:
        await self.broker.close()
        if self._backend is not None:
            await self._backend.close()


class Sender:
    """``app.celery("name")``: calls of a task that Celery's workers run.

    A call is stored in the app's own store first, as a job that sends it; its id is the id that
    Celery's worker and result backend know it by.
    """

    def __init__(
        self,
        task: Task[..., Any],
        name: str,
        queue: str = "",
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self._task = task
        self._name = name
        self._queue = queue
        self._more = more or {}

    def using(
        self,
        *,
        delay: float | timedelta | UnsetType | None = UNSET,
        at: datetime | UnsetType | None = UNSET,
        expires: float | timedelta | datetime | UnsetType | None = UNSET,
        key: str | UnsetType | None = UNSET,
        queue: str | None = None,
        priority: int | None = None,
        time_limit: float | timedelta | None = None,
        soft_time_limit: float | timedelta | None = None,
        ignore_result: bool | None = None,
    ) -> Sender:
        """Options of the calls. ``delay`` and ``at`` are waited for in our store, not in theirs.

        ``expires`` counts until it is sent. ``queue`` is Celery's, and ``priority`` as the broker
        has it: on RabbitMQ higher is sooner, on Redis lower.
        """
        limits = [
            None if one is None else seconds("time_limit", one)
            for one in (time_limit, soft_time_limit)
        ]
        more = {
            "priority": priority,
            "timelimit": None if limits == [None, None] else limits,
            "ignore": ignore_result,
        }
        return Sender(
            self._task.using(delay=delay, at=at, expires=expires, key=key),
            self._name,
            queue or self._queue,
            {**self._more, **{name: one for name, one in more.items() if one is not None}},
        )

    def call(self, *args: Any, **kwargs: Any) -> Call[None]:
        """A call that is not stored yet: for ``app.enqueue_many`` and ``app.joined``."""
        told = {
            **self._more,
            "task": self._name,
            "queue": self._queue,
            "args": list(args),
            "kwargs": kwargs,
        }
        return self._task.call(told)

    async def enqueue(self, *args: Any, **kwargs: Any) -> Handle[None]:
        """Store the call, to be sent by a worker of ours; durable when this returns.

        Arguments are plain JSON values; ``EncodeError`` otherwise. The handle is of the sending:
        it is done when the broker has the message.
        """
        handle: Handle[None] = await self._task.outlet.submit_one(self.call(*args, **kwargs))
        return handle

    def enqueue_sync(self, *args: Any, **kwargs: Any) -> Handle[None]:
        """The same for synchronous callers."""
        (handle,) = self._task.outlet.submit_sync((self.call(*args, **kwargs),))
        return handle
