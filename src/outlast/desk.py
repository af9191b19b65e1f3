"""The app's desk: stores the calls that tasks hand in, and answers what handles ask."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from outlast.access import ledger_of
from outlast.at_once import at_once
from outlast.bridge import Interrupted
from outlast.errors import ConfigurationError, EnqueueUncertain, KeyConflict, Unsupported
from outlast.handle import Handle
from outlast.job import Alike
from outlast.joining import joined_here
from outlast.limits import check_name, check_timeout
from outlast.options import seconds
from outlast.outbox import pen_of, write
from outlast.store import Feature
from outlast.task import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
    from datetime import timedelta

    from outlast.access import Access
    from outlast.clock import Clock
    from outlast.codec import ItemCodec
    from outlast.job import Added, Job
    from outlast.store import Joining, Ledger, Stepping, Store
    from outlast.task import Task

__all__ = ["AsyncJoined", "Awaited", "Blocking", "Desk", "Joined"]

R = TypeVar("R")
T = TypeVar("T")

log = logging.getLogger(__name__)

WAYS_OUT = {
    Feature.DELAY: "delay=, at= or more than one attempt",
    Feature.PRIORITY: "priority=",
    Feature.KEYS: "key=",
    Feature.REPEATS: 'on_repeat= and keep_key="queued"',
    Feature.LANES: "lane=",
}


class _Commits(Protocol):
    async def commit(self) -> None: ...


class _Fetches(Protocol):
    async def fetchval(self, query: str, *args: Any) -> Any: ...


Awaited = _Commits | _Fetches
"""A connection or session of asyncpg, of psycopg's async half or of SQLAlchemy's."""


class Blocking(Protocol):
    """One of apsw, or of the other half of psycopg or SQLAlchemy."""

    def execute(self, statement: Any, /) -> Any: ...


class Joined:
    """``app.joined(connection)``: what is enqueued here is part of the transaction there."""

    __module__ = "outlast"

    def __init__(
        self,
        add: Callable[[Sequence[Call[Any]]], list[Handle[Any]]],
        confirm: Callable[[], None],
    ) -> None:
        self._add = add
        self._confirm = confirm

    def enqueue(self, call: Call[R]) -> Handle[R]:
        """Store a call. Blocks for a moment; raises as ``Task.enqueue`` does."""
        (handle,) = self._add((call,))
        return handle

    def enqueue_many(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """Store a batch of calls, all of them or none if this raises."""
        return self._add(list(calls))

    def confirm(self) -> None:
        """After your commit: return when it is as durable as the app asks for.

        With ``durability=replica`` alone there is anything to wait for: a commit may return though
        no standby has it. Raises ``StoreUnavailable`` if none can be had, or it can't be told;
        ``ConfigurationError`` if the transaction was not committed.
        """
        self._confirm()


class AsyncJoined:
    """The same on a connection that is awaited: so are these."""

    __module__ = "outlast"

    def __init__(
        self,
        add: Callable[[Sequence[Call[Any]]], Coroutine[Any, Any, list[Handle[Any]]]],
        confirm: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._add = add
        self._confirm = confirm

    async def enqueue(self, call: Call[R]) -> Handle[R]:
        """Store a call. Raises as ``Task.enqueue`` does."""
        (handle,) = await self._add((call,))
        return handle

    async def enqueue_many(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """Store a batch of calls, all of them or none if this raises."""
        return await self._add(list(calls))

    async def confirm(self) -> None:
        """After your commit: return when it is as durable as the app asks for; see ``Joined``."""
        await self._confirm()


class Desk:
    """Serves the tasks (as their ``Outlet``) and the handles (as their ``Reader``) of one app."""

    def __init__(
        self,
        access: Access,
        tasks: Mapping[str, Task[..., Any]],
        new_id: Callable[[], str],
        anything: ItemCodec,
    ) -> None:
        self._access = access
        self._tasks = tasks
        self._anything = anything
        self._unlimited: set[str] = set()
        """Tasks without a timeout of which it was told that here they have one."""
        self.new_id = new_id

    async def submit(self, calls: Sequence[Call[R]]) -> list[Handle[R]]:
        store = self._access.store()
        jobs = self._jobs(calls, store)
        within = joined_here(store)
        if within is not None:
            return self._handles(calls, await within.add(jobs) if jobs else ())
        return self._handles(calls, await store.add(jobs) if jobs else ())

    async def submit_one(self, call: Call[R]) -> Handle[R]:
        store, task = self._access.store(), call.task
        if task.needs is not None:
            _check(task.name, task.needs, store.features)
        jobs = Alike(call.model, (call.id,), (call.payload,))
        within = joined_here(store)
        (answer,) = await (store if within is None else within).add(jobs)
        if answer.conflict:
            raise _conflict(answer)
        return Handle(answer.id, answer.created, self, task.decode_result)

    def submit_sync(self, calls: Sequence[Call[R]]) -> list[Handle[R]]:
        async def add(store: Store) -> Sequence[Added]:
            jobs = self._jobs(calls, store)
            return await store.add(jobs) if jobs else ()

        try:
            added = self._access.bridge.run(add, "await task.enqueue() or app.enqueue_many()")
        except Interrupted as error:
            raise EnqueueUncertain(
                f"{error}: the jobs may or may not be stored; enqueueing the same calls is safe",
                [call.id for call in calls],
            ) from None
        return self._handles(calls, added)

    async def emit(self, name: str, payload: Any, keep: float | timedelta) -> bool:
        store = self._access.store()
        event = self._event(name, payload, keep)
        within = joined_here(store)
        return await (_emit(store, *event) if within is None else within.emit(*event))

    def emit_sync(self, name: str, payload: Any, keep: float | timedelta) -> bool:
        event = self._event(name, payload, keep)
        return self._access.bridge.run(lambda store: _emit(store, *event), "await app.emit()")

    def _event(self, name: str, payload: Any, keep: float | timedelta) -> tuple[str, bytes, float]:
        check_name(name, "event")
        return name, self._anything.encode(payload), seconds("keep", keep)

    def joined(self, connection: Any) -> Joined | AsyncJoined:
        store = self._access.anywhere("open the app first: `async with app:`")
        if Feature.JOIN not in store.features:
            raise Unsupported(
                f"{store.url} has no transactions to join; use sqlite or postgresql,"
                " or RabbitMQ with one of these as records="
            )
        view = cast("Joining", store).joined(connection)

        async def add(calls: Sequence[Call[Any]]) -> list[Handle[Any]]:
            jobs = self._jobs(calls, store)
            return self._handles(calls, await view.add(jobs) if jobs else ())

        if view.plain:
            return Joined(lambda calls: at_once(add(calls)), lambda: at_once(view.confirm()))
        return AsyncJoined(add, view.confirm)

    def outbox(self, connection: Any, namespace: str, clock: Clock) -> Joined | AsyncJoined:
        pen = pen_of(connection)

        async def add(calls: Sequence[Call[Any]]) -> list[Handle[Any]]:
            for call in calls:
                self._ours(call)
            await write(pen, namespace, [call.job for call in calls], clock)
            return [Handle(call.id, True, self, call.task.decode_result) for call in calls]

        async def confirm() -> None:
            raise Unsupported(
                "an outbox is in a database of yours, and how durable a commit there is, is for"
                " that database to say"
            )

        if pen.plain:
            return Joined(lambda calls: at_once(add(calls)), lambda: at_once(confirm()))
        return AsyncJoined(add, confirm)

    def check(self, task: Task[..., Any]) -> None:
        store = self._access.opened
        if store is not None:
            self._check(task, store)

    def check_all(self, store: Store) -> None:
        """Refuse a store that can't do what the registered tasks need."""
        for task in self._tasks.values():
            self._check(task, store)

    def _check(self, task: Task[..., Any], store: Store) -> None:
        if task.needs is not None:
            _check(task.name, task.needs, store.features)
        longest = store.longest
        if longest is None:
            return
        check_timeout(f"task {task.name!r}", task.timeout, longest)
        if task.timeout is None and task.name not in self._unlimited:
            self._unlimited.add(task.name)
            log.warning(
                "task %r has no timeout: on %s each run ends after %g s, before the broker gives"
                " the job to somebody else",
                task.name, store.url, longest, extra={"task": task.name},
            )  # fmt: skip

    def ledger(self) -> Ledger:
        return ledger_of(self._access.store())

    def ask(self, question: Callable[[Ledger], Coroutine[Any, Any, T]], instead: str) -> T:
        return self._access.bridge.run(lambda store: question(ledger_of(store)), instead)

    def decoder(self, task: str | None) -> Callable[[bytes], Any]:
        known = self._tasks.get(task or "")
        return self._anything.decode if known is None else known.decode_result

    def patience(self, timeout: float | timedelta | None) -> float | None:
        return None if timeout is None else seconds("timeout", timeout)

    def _jobs(self, calls: Sequence[Call[Any]], store: Store) -> Sequence[Job]:
        last: Task[..., Any] | None = None
        model = None
        alike = True
        for call in calls:
            # Nearly always the same task a thousand times: it is looked at once.
            if type(call) is not Call or call.task is not last:
                last = self._ours(call)
                if last.needs is not None:
                    _check(last.name, last.needs, store.features)
                model = model or call.model
            alike = alike and call.model is model
        if model is None or not alike:
            return [call.job for call in calls]
        return Alike(model, [call.id for call in calls], [call.payload for call in calls])

    def _ours(self, call: Call[Any]) -> Task[..., Any]:
        if not isinstance(call, Call):
            raise ConfigurationError(
                f"enqueue_many takes calls made with task.call(...), not {type(call).__name__}"
            )
        if call.task.outlet is not self:
            raise ConfigurationError(
                f"task {call.task.name!r} belongs to another Outlast: enqueue its calls there"
            )
        return call.task

    def _handles(self, calls: Sequence[Call[R]], added: Sequence[Added]) -> list[Handle[R]]:
        for answer in added:
            if answer.conflict:
                raise _conflict(answer)
        return [
            Handle(answer.id, answer.created, self, call.task.decode_result)
            for call, answer in zip(calls, added, strict=True)
        ]


async def _emit(store: Store, name: str, payload: bytes, keep: float) -> bool:
    if Feature.STEPS not in store.features:
        raise Unsupported(
            f"{store.url} keeps no events; use a store that does, such as sqlite,"
            " or RabbitMQ with records="
        )
    return await cast("Stepping", store).emit(name, payload, keep)


def _conflict(answer: Added) -> KeyConflict:
    return KeyConflict(
        f"job {answer.id} is stored already, with other arguments; nothing was stored"
    )


def _check(task: str, wanted: Feature, features: Feature) -> None:
    missing = wanted & ~features
    if missing:
        ways = "; ".join(WAYS_OUT[feature] for feature in missing)
        raise Unsupported(
            f"task {task!r} needs what this store can't do: leave out {ways}, "
            "or use a store that can, such as sqlite, or RabbitMQ with records="
        )
