"""``Queue``: ``asyncio.Queue`` that survives."""

from __future__ import annotations

import asyncio
from asyncio import current_task
from math import inf
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.collected import when_collected
from outlast.errors import ConfigurationError, JobNotFound, Unsupported
from outlast.job import Status
from outlast.limits import check_name
from outlast.queue.gets import Gets
from outlast.queue.items import check_codec, codec_for
from outlast.queue.line import SHOWN, Line
from outlast.queue.pump import Pump
from outlast.queue.puts import Puts
from outlast.queue.using import Item, Items
from outlast.queue.window import Fifo
from outlast.store import Direct, Feature, Ledger, offers
from outlast.stores import connect

if TYPE_CHECKING:
    import builtins
    from collections import deque
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType, UnionType
    from typing import Self

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.job import Depth, Job
    from outlast.queue.items import Codec
    from outlast.queue.window import Window
    from outlast.store import Durability

__all__ = ["DEFAULT_URL", "Queue"]

T = TypeVar("T")

DEFAULT_URL = "sqlite:///outlast.db"
"""A file in the current folder."""
_ANY: Any = object()
"""Stands for the item that ``task_done()`` isn't told."""


class Queue(asyncio.Queue[T]):
    """A queue for coroutines, as ``asyncio.Queue``, whose items survive the program.

    It has the methods, the exceptions and the waiting order of ``asyncio.Queue`` in Python 3.13.
    ``name`` says which line of items this is: all queues of that name on the same ``url`` and
    ``namespace`` share it, in this process or another, and each item goes to one of them.

    >>> jobs: Queue[str] = Queue(name="jobs")           # outlast.db in the current folder
    >>> await jobs.put("one")                           # durable when this returns
    >>> await jobs.get()
    'one'
    >>> jobs.task_done()                                # only now it leaves the store

    ``ack`` says when an item leaves the store: ``"done"``, at ``task_done()``, so that it comes
    again after a crash; or ``"get"``, before ``get()`` returns it, for consumers that never call
    that.
    ``commit="group"`` lets the puts of a moment share one write, and waits for it;
    ``commit="each"`` writes inside each call and blocks the event loop meanwhile.

    ``type`` is the annotation of the items, which come back as such; without it, they may be what
    JSON knows, and tuples, sets, bytes, dates and decimals. ``codec`` replaces both. With
    ``max_crashes``, an item that so many processes died with is buried instead of coming again.

    Raises ``ConfigurationError`` for a bad name, URL or option, and ``Unsupported`` for what the
    store can't do. The store itself is opened when it is first used.
    """

    _window: Callable[[], Window] = Fifo
    _needs = Feature.ORDER

    def __init__(
        self,
        maxsize: int = 0,
        *,
        name: str,
        url: str = DEFAULT_URL,
        type: builtins.type[T] | UnionType | None = None,
        codec: Codec | None = None,
        ack: Literal["done", "get"] = "done",
        commit: Literal["group", "each"] = "group",
        namespace: str = "default",
        durability: Durability | None = None,
        max_crashes: int | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
    ) -> None:
        check_name(name, "queue name")
        _check_options(maxsize, ack, commit, max_crashes)
        if codec is not None:
            check_codec(codec)
        clock, chance = clock or SystemClock(), chance or SystemChance()
        store = connect(url, namespace=namespace, durability=durability, clock=clock, chance=chance)
        if commit == "each" and not offers(store, Direct):
            raise Unsupported(f"{store.url} can only be awaited: use commit='group'")
        needs = self._needs | (Feature.CAPACITY if 0 < maxsize < inf else Feature(0))
        if missing := needs & ~store.features:
            raise Unsupported(
                f"{store.url} has no {missing.name}, which this queue needs;"
                " RabbitMQ has it with records="
            )
        self._line = Line(
            store, name, window=self._window, codec=codec or codec_for(type), ack=ack,
            commit=commit, maxsize=maxsize, max_crashes=max_crashes, clock=clock, chance=chance,
        )  # fmt: skip
        self._pump = Pump(self._line, clock)
        self._puts = Puts(self._line, self._pump)
        self._gets = Gets(self._line, self._pump)
        self._bound: asyncio.AbstractEventLoop | None = None
        # It holds the line and not the queue: what this one leaves behind is tidied up after it.
        when_collected(self, self._line.close_now)

    # -- what it is

    @property
    def name(self) -> str:
        """Which line of items this is."""
        return self._line.name

    @property
    def url(self) -> str:
        """Where the items are: absolute, and without a password."""
        return self._line.store.url

    @property
    def maxsize(self) -> int:
        """Number of items that may wait at once, over all processes; 0 or less: any number."""
        return self._maxsize

    @property
    def _maxsize(self) -> int:
        return self._line.maxsize

    def qsize(self) -> int:
        """Number of items that wait: in the store, and in this process's memory.

        Not those that another process has taken out, be it ahead of its consumers. It reads the
        store, which takes a fraction of a millisecond. Where that can only be awaited it raises
        ``Unsupported``: use ``depth``.
        """
        return 0 if self._pump.ended else self._line.size()

    def empty(self) -> bool:
        """Whether no item waits."""
        return self._gets.empty()

    def full(self) -> bool:
        """Whether ``maxsize`` items wait, over all processes."""
        return self._puts.full()

    async def depth(self) -> Depth:
        """The line's items by state, over all processes: what waits, what is in someone's hands."""
        await self._line.open()
        return await self._line.store.depth(self.name)

    # -- putting

    async def put(self, item: T) -> None:
        """Put an item; it is durable when this returns. Waits while the queue is full.

        Raises ``QueueShutDown``, ``EncodeError`` (a ``TypeError``) for an item that would not come
        back as it is, and ``EnqueueUncertain`` if it may or may not be stored. Cancelled while it
        waits for room, nothing was put. Cancelled while the item is being written, it waits for
        the outcome: the item is stored and this returns, and the cancellation strikes when the
        caller next waits for something; or it isn't, and this is cancelled.
        """
        await self._puts.put(self._job(item), item, self._bind)

    def put_nowait(self, item: T) -> None:
        """Put an item without waiting for room; it is durable when this returns.

        That takes a write to the disk, 0.4 to 10 ms, and the event loop stands still meanwhile:
        for many, prefer ``put`` or ``put_many``. Raises ``QueueFull``, ``QueueShutDown``, and
        ``Unsupported`` where a store can only be awaited.
        """
        self._puts.check_shut()
        self._puts.put_now(self._job(item), item)

    async def put_many(self, items: Iterable[T]) -> None:
        """Put several items in one write: all or none. Raises and is cancelled as ``put`` is.

        With ``maxsize`` they go in as room comes free, as many at once as there is room for, so
        that a cancellation may leave the first of them in the queue.
        """
        listed = list(items)
        await self._puts.put_many([self._job(item) for item in listed], listed, self._bind)

    def _job(self, item: T) -> Job:
        return self._line.job(item, b"")

    # -- getting

    def get(self) -> Coroutine[Any, Any, T]:
        """Take out the next item; wait for one if there is none.

        The asyncio task that calls this holds the item until it calls ``task_done()``: not the one
        that awaits what this returns, such as ``asyncio.wait_for``. Raises ``QueueShutDown`` once
        the queue is shut down and has nothing left. Cancelled, it took nothing.
        """
        return self._get_for(self._caller())

    async def _get_for(self, owner: object) -> T:
        gets = self._gets
        if gets.must_wait():
            await gets.wait(self._bind)
        item: T = gets.hand_out(owner).item
        return item

    def get_nowait(self) -> T:
        """Take out the next item at once, or raise ``QueueEmpty`` or ``QueueShutDown``.

        It looks into the store when nothing is in memory, which blocks for about a millisecond.
        """
        item: T = self._gets.get_now(self._caller()).item
        return item

    def get_many(self, limit: int) -> Coroutine[Any, Any, list[T]]:
        """Take out up to ``limit`` items that are there; wait for one if there is none.

        As with ``get``, the asyncio task that calls this holds them. ``task_done()`` once for each
        settles them when it was called for all; ``task_done(item)`` settles one.
        """
        if limit < 1:
            raise ValueError(f"limit {limit!r}: use at least 1")
        return self._get_many_for(limit, self._caller())

    async def _get_many_for(self, limit: int, owner: object) -> list[T]:
        entries = await self._gets.get_many(limit, owner, self._bind)
        return [entry.item for entry in entries]

    # -- settling

    def task_done(self, item: T = _ANY) -> None:
        """Say that an item is done: it leaves the store soon, and ``join`` waits until it has.

        It is the item that the calling asyncio task holds, if it holds exactly one. A caller that
        holds none, or several, may name the ``item``; else its call is counted, and all that is
        held leaves the store once there were as many calls: never the wrong one.

        Raises ``ValueError`` if it is called more often than items were put, or for an item that
        nobody holds here.
        """
        line = self._line
        if item is not _ANY:
            entry = line.holds.find(self._caller(), item)
            if entry is None:
                raise ValueError(f"task_done() for an item that nobody holds: {item!r}")
            self._gets.done(line.holds.done_with(entry))
        elif line.unfinished <= 0:
            raise ValueError("task_done() called too many times")
        else:
            self._gets.done(line.holds.only() or line.holds.done(self._caller()))

    async def join(self) -> None:
        """Wait until every item was taken out and is done, in all processes, and durably so."""
        line, pump = self._line, self._pump
        if line.unfinished <= 0 and not line.settling:
            if line.each and not pump.ended:
                depth = line.open_now("join()").depth_now(self.name)
                line.unfinished = depth.live - line.holds.counted
            if (line.each or pump.ended) and line.unfinished <= 0:
                return
        await pump.joiners.wait(pump.joiners.turn(), self._bind, pump.joiner_waits)

    def item(self) -> AbstractAsyncContextManager[T]:
        """The next item for the length of a block: done if it ends well, given back if it raises.

        >>> async with jobs.item() as job:
        ...     await handle(job)
        """
        return Item(self._line, self._gets, self._caller(), self._bind)

    def __aiter__(self) -> AsyncIterator[T]:
        """The items, one by one, until the queue is shut down and empty.

        Each is done when the next one is asked for. One that the loop is left with, by ``break`` or
        an error, is not: say ``task_done()``, or it comes again.
        """
        return Items(self._line, self._gets, self._caller(), self._bind)

    # -- its life

    def shutdown(self, immediate: bool = False) -> None:
        """Let no more items into this object, and none out once the queue is empty.

        ``put`` raises ``QueueShutDown`` from now on, ``get`` when nothing is left; with
        ``immediate`` at once: this object then looks empty, while the items stay in the store and
        come when the queue is opened again. Other objects and processes aren't concerned, and
        nothing is stored. To delete the items, use ``purge``.
        """
        pump, line = self._pump, self._line
        pump.shut = True
        if immediate and not pump.drained:
            pump.drained = True
            line.drop()
            if line.unfinished <= 0 and not line.settling:
                pump.joiners.wake_all()
        pump.wake_all()

    async def purge(self) -> int:
        """Delete all items that wait, for all processes; how many. What somebody holds stays."""
        line = self._line
        await line.open()
        if not offers(line.store, Ledger):
            raise Unsupported(f"{line.store.url} can't delete items: take them out by get()")
        await line.supply.land()
        line.supply.give_back()
        await line.settling.flush()
        try:
            count = await line.store.purge(self.name, [Status.QUEUED])
        except JobNotFound:
            count = 0
        line.unfinished -= min(count, line.unfinished)
        line.recent.clear()
        self._pump.putters.wake_all()
        return count

    async def close(self) -> None:
        """Settle what is done, give everything else back, and close the file.

        Items that were taken out and aren't done come again. A queue that is used after this opens
        anew. One that nobody closes is closed when the object, or the program, is gone.
        """
        self._pump.stop()
        if self._gets.never_done and self._line.holds.piled:
            self._gets.warn_of_growth()
        await self._line.close()

    async def __aenter__(self) -> Self:
        await self._line.open()
        return self

    async def __aexit__(
        self,
        kind: builtins.type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # -- what debuggers, and asyncio's own tests, look at

    @property
    def _getters(self) -> deque[asyncio.Future[None]]:
        return self._pump.getters.line

    @property
    def _putters(self) -> deque[asyncio.Future[None]]:
        return self._pump.putters.line

    @property
    def _unfinished_tasks(self) -> int:
        return self._line.unfinished

    @_unfinished_tasks.setter
    def _unfinished_tasks(self, count: int) -> None:
        self._line.unfinished = count

    def _format(self) -> str:
        items = self._line.shown()
        text = f"maxsize={self._maxsize!r}"
        if items:
            more = ", ..." if len(items) >= SHOWN else ""
            text += f" _queue=[{', '.join(map(repr, items))}{more}]"
        for label, waiters in (("_getters", self._getters), ("_putters", self._putters)):
            if waiters:
                text += f" {label}[{len(waiters)}]"
        if self._unfinished_tasks:
            text += f" tasks={self._unfinished_tasks}"
        return text + (" shutdown" if self._pump.shut else "")

    def _caller(self) -> asyncio.Task[Any] | None:
        """The asyncio task that runs, or None outside of any.

        The loop that is bound is asked first, in its thread: finding out which one runs is a call
        of the system each time (Python 3.11).
        """
        if self._bound is not None and self._line.thread == get_ident():
            task = current_task(self._bound)
            if task is not None:
                return task
        try:
            return current_task()
        except RuntimeError:
            return None

    def _bind(self) -> asyncio.AbstractEventLoop:
        """The running loop. Who has waited in one loop can't wait in another."""
        loop = asyncio.get_running_loop()
        if self._bound is None:
            self._bound = loop
        if self._bound is not loop:
            raise RuntimeError(f"{self!r} is bound to a different event loop")
        self._line.thread = get_ident()
        return loop


def _check_options(maxsize: object, ack: str, commit: str, max_crashes: object) -> None:
    if not isinstance(maxsize, (int, float)):
        raise ConfigurationError(f"maxsize {maxsize!r}: use a number, 0 for no limit")
    if ack not in ("done", "get"):
        raise ConfigurationError(f"ack {ack!r}: use 'done' or 'get'")
    if commit not in ("group", "each"):
        raise ConfigurationError(f"commit {commit!r}: use 'group' or 'each'")
    if max_crashes is not None and not (isinstance(max_crashes, int) and max_crashes >= 1):
        raise ConfigurationError(f"max_crashes {max_crashes!r}: use at least 1, or None")
