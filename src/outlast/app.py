"""The app: where tasks are registered, calls are stored, and the store's URL is known."""

from __future__ import annotations

import logging
import threading
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, cast, overload

from msgspec import UNSET, UnsetType

from outlast.access import Access
from outlast.boxes import Boxes
from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.codec import ItemCodec, Signature
from outlast.desk import Desk
from outlast.errors import ConfigurationError, DuplicateTask
from outlast.handle import Handle
from outlast.job import DAY
from outlast.limits import MAX_PAYLOAD, check_count, check_name
from outlast.location import find_url, pin
from outlast.options import task_options
from outlast.store import Durability
from outlast.stores import connect, redact
from outlast.stores.urls import with_records
from outlast.task import (
    AsyncTask,
    SyncTask,
    Task,
    default_name,
    kind_of,
    place_of,
    same_place,
)

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Callable,
        Coroutine,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from datetime import timedelta
    from types import TracebackType

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.desk import AsyncJoined, Awaited, Blocking, Joined
    from outlast.hooks import Hooks
    from outlast.job import OnRepeat
    from outlast.options import KeepKey, KeyOf, Lane, TaskOptions
    from outlast.retry import RetryPolicy
    from outlast.sealing import Keys
    from outlast.store import Store
    from outlast.task import Call
    from outlast.worker import Worker

__all__ = ["Outlast"]

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)

CELERY = "outlast.contrib.celery.beside"
"""Loaded when it is asked for: it knows the app, and the app only its name."""


class Decorator(Protocol):
    """What ``@app.task(...)`` with options gives: it makes a task of a function."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...


class Outlast(Boxes):
    """Holds the tasks of a program and the URL of the store where their jobs live.

    The URL is the argument, else the environment variable ``OUTLAST_URL``, else the content of
    the file that ``OUTLAST_URL_FILE`` names. ``records``, for a URL of RabbitMQ, is that of the
    store where the jobs themselves stand (docs/rabbitmq.md). ``durability`` is what the store must
    guarantee (default: that accepted jobs survive a power cut, where the store can).
    ``max_payload`` is in bytes, for arguments and results alike; ``max_depth`` counts nested
    containers. With ``keys``, jobs are signed or sealed, and what no key has written is not run.

    Raises ``ConfigurationError`` if the URL or an option is wrong.

    >>> app = Outlast("sqlite:///shop.db")
    >>> async with app:
    ...     handle = await send_receipt.enqueue(42, to="a@b.example")
    """

    __module__ = "outlast"

    def __init__(
        self,
        url: str | None = None,
        *,
        records: str | None = None,
        namespace: str = "default",
        durability: Durability | None = None,
        create: bool = True,
        max_payload: int = 1 << 20,
        max_depth: int = 64,
        keys: Keys | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
    ) -> None:
        check_name(namespace, "namespace")
        self.namespace = namespace
        self._durability = _class(durability)
        self._create = create
        self._keys = keys
        self._max_bytes = check_count("max_payload", max_payload, MAX_PAYLOAD)
        self._max_depth = check_count("max_depth", max_depth)
        self._clock = SystemClock() if clock is None else clock
        self._chance = SystemChance() if chance is None else chance
        self.hooks: list[Hooks] = []
        """What watches every worker of this app, also those of the command line."""
        self._tasks: dict[str, Task[..., Any]] = {}
        self._access = Access(self.open_store)
        anything = ItemCodec(Any, max_bytes=self._max_bytes, max_depth=self._max_depth)
        self._desk = Desk(self._access, self._tasks, self._chance.uuid7, anything)
        self._given = url
        self._records = records
        self._anchor: Store | None = None
        self._locating = threading.Lock()
        self._url = self._locate()

    def __repr__(self) -> str:
        return f"<Outlast {self.url or 'without a URL'}, namespace {self.namespace!r}>"

    @property
    def url(self) -> str | None:
        """Where the jobs live, without any secret; None while nothing says where."""
        return None if self._url is None else redact(self._url)

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The registered tasks by name; a live view that can't be written to."""
        return MappingProxyType(self._tasks)

    @property
    def store(self) -> Store:
        """The open store. Raises ``StoreClosed`` outside of ``async with app``."""
        return self._access.store()

    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(
        self,
        fn: None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        retry: RetryPolicy | int = 1,
        timeout: float | timedelta | None = None,
        priority: int = 0,
        keep: float | timedelta | None = DAY,
        key: KeyOf | None = None,
        keep_key: KeepKey | UnsetType = UNSET,
        on_repeat: OnRepeat = "first",
        max_crashes: int | None = 3,
        processes: bool = False,
        lane: Lane = None,
        headers: Mapping[str, str] | None = None,
    ) -> Decorator: ...

    def task(
        self,
        fn: Any = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        retry: RetryPolicy | int = 1,
        timeout: float | timedelta | None = None,
        priority: int = 0,
        keep: float | timedelta | None = DAY,
        key: KeyOf | None = None,
        keep_key: KeepKey | UnsetType = UNSET,
        on_repeat: OnRepeat = "first",
        max_crashes: int | None = 3,
        processes: bool = False,
        lane: Lane = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Register a function as a task, with or without options.

        ``async def`` runs in the worker's event loop, a plain function in a thread, or in a
        process of its own with ``processes=True``. ``retry`` is a ``RetryPolicy`` or the number
        of attempts; ``timeout`` is seconds for one run; ``keep`` is how long the job and its
        result are kept after a good end (at least an hour; None: for ever). ``max_crashes`` is how
        many workers it may take with it. ``lane`` is a text, or a function of the arguments: jobs
        of one lane run one at a time.

        ``key``, a function of the arguments, says which calls are the same job: for as long as
        ``keep_key`` says, that is while it is ``"queued"`` or ``"live"``, seconds after its end, or
        None, for ever. A repeat gets the ``"first"`` job with its outcome, or ``on_repeat`` is to
        ``"raise"``, ``"replace"``, ``"debounce"`` or ``"throttle"`` (docs/running-twice.md).

        Raises ``ConfigurationError`` naming the option, ``DuplicateTask`` if another function
        has that name, and ``Unsupported`` if the open store can't do what an option needs.

        >>> @app.task(retry=RetryPolicy(attempts=5), timeout=30)
        ... async def send_receipt(order: int, to: str) -> str: ...
        """
        options = task_options(
            queue=queue,
            retry=retry,
            timeout=timeout,
            priority=priority,
            keep=keep,
            key=key,
            keep_key=keep_key,
            on_repeat=on_repeat,
            max_crashes=max_crashes,
            processes=processes,
            lane=lane,
            headers=headers,
        )

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            return self._register(function, name, options)

        return register if fn is None else register(fn)

    async def enqueue_many(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """Store a batch of calls in one write: all of them, or none if this raises.

        The handles are aligned with the calls. The errors are those of ``Task.enqueue``.

        >>> await app.enqueue_many([resize.call(path) for path in paths])
        """
        return await self._desk.submit(list(calls))

    def enqueue_many_sync(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """The same for synchronous callers, from any thread, with no app to open first."""
        return self._desk.submit_sync(list(calls))

    async def emit(
        self, name: str, payload: Any = None, *, keep: float | timedelta = 7 * DAY
    ) -> bool:
        """Send an event to the jobs that wait for it, and to those that will; durable.

        The first one counts: False, and nothing happens, if one of that name was sent less than
        ``keep`` seconds ago. Raises ``EncodeError`` if the payload is not plain JSON.

        >>> await app.emit(f"approved-{order}", {"by": "ann"})
        """
        return await self._desk.emit(name, payload, keep)

    def emit_sync(
        self, name: str, payload: Any = None, *, keep: float | timedelta = 7 * DAY
    ) -> bool:
        """The same for synchronous callers, from any thread, with no app to open first."""
        return self._desk.emit_sync(name, payload, keep)

    def handle(self, id: str) -> Handle[Any]:
        """The handle of a job whose id was kept somewhere. Nothing is looked up yet."""
        return Handle(_text(id), False, self._desk)

    @property
    def clock(self) -> Clock:
        """Where the app's times come from."""
        return self._clock

    @contextmanager
    def stand_in(self, url: str, clock: Clock | None = None) -> Iterator[None]:
        """For tests: another store, and perhaps another clock, for a while.

        Raises ``ConfigurationError`` if the app is open.
        """
        if self._access.in_use:
            raise ConfigurationError("the app is open: leave `async with app` first")
        before = self._url, self._clock, self._durability
        self._url, self._clock, self._durability = url, clock or self._clock, None
        try:
            yield
        finally:
            self._url, self._clock, self._durability = before

    @overload
    def joined(self, connection: Awaited) -> AsyncJoined: ...
    @overload
    def joined(self, connection: Blocking) -> Joined: ...
    def joined(self, connection: Any) -> Joined | AsyncJoined:
        """Enqueue in a transaction of your own: stored if, and only if, that one commits.

        ``connection`` is one on which a transaction is open: on SQLite an ``apsw.Connection`` to
        the store's own file, with nothing attached to it, after ``BEGIN IMMEDIATE``; on PostgreSQL
        one of asyncpg, psycopg or SQLAlchemy to the store's own database. Calls run on it, in the
        caller's thread, and are awaited where the connection's are. Raises ``Unsupported`` for any
        other, saying why.

        >>> jobs = app.joined(connection)
        >>> handle = jobs.enqueue(send_receipt.call(42, to="a@b.example"))
        """
        return self._desk.joined(connection)

    async def open(self) -> None:
        """Open the store for this event loop, as ``async with app`` does.

        May be called several times: the store closes with the last ``close``. Raises
        ``ConfigurationError`` if no URL was given, ``Unsupported`` if the store can't do what a
        task needs, and what ``Store.open`` raises.
        """
        await self._access.open(self._desk.check_all)

    async def close(self) -> None:
        """Undo one ``open``; the last one closes the store and stops the background loop.

        It does nothing if the app is not open. Raises ``StoreClosed`` in another event loop, or
        process, than the app was opened in.
        """
        await self._access.close()
        if not self._access.in_use:
            for hook in self.hooks:
                await hook.app_closed()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def open_store(self, *, create: bool | None = None) -> Store:
        """Another handle on the store, not opened yet: for a worker, or for another event loop.

        Raises ``ConfigurationError`` if there is no URL, or a wrong one.
        """
        with self._locating:
            if self._url is None:
                self._url = self._locate()
            url = self._url
        if url is None:
            raise ConfigurationError(
                "no URL: give one to Outlast(...), set OUTLAST_URL, or let OUTLAST_URL_FILE name "
                "a file that holds one"
            )
        return self._connect(url, self._create if create is None else create)

    @asynccontextmanager
    async def opened_on(self, store: Store) -> AsyncIterator[Self]:
        """The app open on a store that is open here for a worker: one for both."""
        await self._access.open(self._desk.check_all, store)
        try:
            yield self
        finally:
            await self.close()

    @asynccontextmanager
    async def worker(
        self,
        *,
        queues: Sequence[str] = ("default",),
        concurrency: int = 10,
        lease: float = 15.0,
        grace: float = 30.0,
        hooks: Sequence[Hooks] = (),
    ) -> AsyncIterator[Worker]:
        """Run a worker in this program while the block runs; opens the app too.

        At the end it takes no more jobs, lets those that run finish for ``grace`` seconds and
        gives the rest back, at no cost to them. If the worker fails, the block is cancelled and
        what the worker raised comes out of it.

        >>> async with app.worker(concurrency=20):
        ...     await serve()
        """
        from outlast.worker import Worker
        from outlast.worker.beside import running

        async with self, self._access.lend() as store:
            worker = Worker(
                self.open_store,
                self.tasks,
                queues=queues,
                concurrency=concurrency,
                lease=lease,
                grace=grace,
                hooks=(*self.hooks, *hooks),
                clock=self._clock, chance=self._chance, store=store,
            )  # fmt: skip
            async with running(worker):
                yield worker

    def celery_tasks(
        self, tasks: Mapping[str, Task[..., Any]], *, broker: str, **options: Any
    ) -> None:
        """Run, in this app's workers, what an untouched Celery app sends (docs/celery.md).

        ``tasks`` maps Celery's names to tasks of this app; ``broker`` is the URL that Celery has.
        ``backend`` is that of its results, ``queues`` are those of its queues that are taken from.

        >>> app.celery_tasks({"shop.send_receipt": send_receipt}, broker="redis://localhost")
        """
        import_module(CELERY).celery_tasks(self, tasks, broker=broker, **options)

    def celery(self, name: str, **options: Any) -> Any:
        """A task that Celery's workers run, to be enqueued from here (docs/celery.md).

        ``celery_tasks`` says where they are, also if it is given no tasks.

        >>> await app.celery("shop.send_receipt").enqueue(42)
        """
        return import_module(CELERY).sender(self, name, **options)

    @asynccontextmanager
    async def lifespan(self, asgi: object = None) -> AsyncIterator[None]:
        """Keeps the app open while an ASGI program runs: ``Starlette(lifespan=app.lifespan)``."""
        async with self:
            yield

    def _locate(self) -> str | None:
        url = find_url() if self._given is None else self._given
        if url is None:
            return None
        if self._records is not None:
            url = with_records(url, self._records)
        url = pin(url, self._durability)
        if url.partition("?")[0].rstrip("/").lower() == "memory:":
            # Each connect() to it would be a new, empty store. This one gave itself a name by
            # which the worker and the bridge find it too, for as long as the app holds it.
            self._anchor = self._connect(url, create=True)
            return self._anchor.url
        return url

    def _connect(self, url: str, create: bool) -> Store:
        store = connect(
            url,
            namespace=self.namespace,
            durability=self._durability,
            create=create,
            clock=self._clock,
            chance=self._chance,
        )
        if self._keys is None:
            return store
        from outlast.sealing import Vault

        return cast("Store", Vault(store, self._keys, self.namespace))

    def _register(
        self, fn: Callable[..., Any], name: str | None, options: TaskOptions
    ) -> Task[..., Any]:
        kind = kind_of(fn, options.processes)
        if name is None:
            name = default_name(fn)
        known = self._tasks.get(name)
        if known is not None and not same_place(known.fn, fn):
            raise DuplicateTask(
                f"two functions want to be task {name!r}: {place_of(known.fn)} and {place_of(fn)}; "
                "give one of them another name="
            )
        make = AsyncTask[..., Any] if kind == "async" else SyncTask[..., Any]
        signature = Signature(fn, name=name, max_bytes=self._max_bytes, max_depth=self._max_depth)
        task = make(
            fn,
            name=name,
            kind=kind,
            signature=signature,
            options=options,
            outlet=self._desk,
        )
        self._tasks[name] = task
        return task


def _class(durability: object) -> Durability | None:
    if durability is None or isinstance(durability, Durability):
        return durability
    raise ConfigurationError(
        f"durability={durability!r}: use one of"
        f" {', '.join(f'Durability.{name}' for name in Durability.__members__)}"
    )


def _text(id: object) -> str:
    if isinstance(id, str) and id:
        return id
    raise ConfigurationError(f"job id {id!r}: use the text that handle.id gave")
