"""What all stores repeat whose work is done in a thread of their own: callers, and how they wait.

A call is a ``Reply``, which a store makes (``_add_op`` and the like) and hands to its thread
(``_submit``). ``Surface`` has what follows from that alone; ``Served`` adds the life of a store on
a server, whose thread is an engine with connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.errors import StoreClosed, StoreError
from outlast.job import give_back
from outlast.limits import check_job
from outlast.store import Durability
from outlast.stores.lifelines import private_folder
from outlast.stores.news import News
from outlast.stores.replies import Blocked, Landing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.job import Added, Claim, Job, Lost, Status, Verdict
    from outlast.stores.replies import Reply

__all__ = ["Served", "Surface", "awaited"]

T = TypeVar("T")


class Surface(ABC):
    """The calls of a store, as far as they do not depend on which it is."""

    lifelines: Path | None = None
    longest: float | None = None

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        durability: Durability | None = None,
        create: bool = True,
        clock: Clock | None = None,
        chance: Chance | None = None,
    ) -> None:
        self.url = url
        self.namespace = namespace
        self.durability = Durability.POWER if durability is None else durability
        self.required = self.durability
        self._create = create
        self.clock = clock or SystemClock()
        self._chance = chance or SystemChance()
        self._lock = threading.Lock()
        self._pid = 0
        self._news = News()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, namespace={self.namespace!r})"

    # -- what a store says of itself

    @abstractmethod
    def open_now(self) -> None:
        """``open`` for callers without an event loop; blocks."""

    @abstractmethod
    def close_now(self) -> None:
        """``close`` for callers without an event loop; blocks."""

    @abstractmethod
    def _submit(self, op: Any) -> None:
        """Hand a call to the thread that does it. Raises ``StoreClosed``."""

    @abstractmethod
    def _add_op(self, jobs: Sequence[Job], capacity: int | None) -> Reply[Sequence[Added]]: ...

    @abstractmethod
    def _claim_op(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool,
    ) -> Reply[Sequence[Claim]]: ...

    @abstractmethod
    def _settle_op(self, verdicts: Sequence[Verdict]) -> Reply[Sequence[Lost]]: ...

    @abstractmethod
    async def _find(self, **asked: Any) -> Sequence[Job]: ...

    # -- the protocol

    async def open(self) -> None:
        await asyncio.to_thread(self.open_now)

    async def close(self) -> None:
        await asyncio.to_thread(self.close_now)

    async def add(self, jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        return await self._do(self._add_op(jobs, capacity)) if jobs else []

    def add_now(self, jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        """``add`` for callers without an event loop; blocks until it is durable."""
        return self._wait_for(self._add_op(jobs, capacity)) if jobs else []

    async def claim(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool = False,
    ) -> Sequence[Claim]:
        op = self._claim_op(queues, tasks, limit, lease, worker, newest)
        return await self._do(op, self._unclaim) if limit > 0 else []

    def claim_soon(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool = False,
    ) -> Future[Sequence[Claim]]:
        """``claim`` for callers without an event loop; the future is set by the store's thread.

        Cancelled before that, the claims go back at once.
        """
        op = self._claim_op(queues, tasks, limit, lease, worker, newest)
        if limit <= 0:
            nothing: Future[Sequence[Claim]] = Future()
            nothing.set_result([])
            return nothing
        op.undo = self._unclaim
        return self._hand_over(op)

    def claim_now(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool = False,
    ) -> Sequence[Claim]:
        """``claim`` for callers without an event loop; blocks."""
        return self.claim_soon(queues, tasks, limit, lease, worker, newest).result()

    async def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        return await self._do(self._checked(verdicts)) if verdicts else []

    def settle_now(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        """``settle`` for callers without an event loop; blocks until it is durable."""
        return self._wait_for(self._checked(verdicts)) if verdicts else []

    def _checked(self, verdicts: Sequence[Verdict]) -> Reply[Sequence[Lost]]:
        for verdict in verdicts:
            for job in verdict.then:
                check_job(job)
        return self._settle_op(verdicts)

    async def find(
        self,
        *,
        status: Sequence[Status] = (),
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        since: float | None = None,
        until: float | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Job]:
        return await self._find(
            status=status, queue=queue, task=task, key=key, since=since, until=until, after=after,
            limit=limit,
        )  # fmt: skip

    # -- handing over

    def _used(self, part: T | None) -> T:
        """A part of the store that is there while it is open in this process."""
        if part is None:
            raise StoreClosed(f"{self.url} is not open: use it between open() and close()")
        if self._pid != os.getpid():
            raise StoreClosed(f"{self.url} was opened by process {self._pid}; open it here too")
        return part

    async def _do(self, op: Reply[T], undo: Callable[[T], None] | None = None) -> T:
        """Cancelled in mid-call, the step is done or it is not; what it answered is undone."""
        reply: asyncio.Future[T] = awaited(op)
        self._submit(op)
        try:
            return await reply
        except asyncio.CancelledError:
            if undo is not None:
                op.orphan(undo)
            raise

    def _hand_over(self, op: Reply[T]) -> Future[T]:
        """For callers without an event loop: answered whether anybody waits or not."""
        reply: Future[T] = Future()
        op.reply = reply
        self._submit(op)
        return reply

    def _wait_for(self, op: Reply[T]) -> T:
        reply: Blocked[T] = Blocked()
        op.reply = reply
        self._submit(op)
        return reply.result()

    def _unclaim(self, claimed: Sequence[Claim]) -> None:
        """Nobody received these claims: they go back as if they had never been made."""
        if claimed:
            back = [give_back(claim, started=False) for claim in claimed]
            with contextlib.suppress(StoreError):
                self._submit(self._settle_op(back))


class Engine(Protocol):
    """The thread of a store on a server, and its connections."""

    def start(self) -> None:
        """Raises what keeps it from its work; then it is closed again."""
        ...

    def close(self) -> None:
        """Finish what was handed over, then let go of everything. Blocks."""
        ...


def awaited(op: Reply[T]) -> asyncio.Future[T]:
    """Where the running loop waits for the answer to this call."""
    loop = asyncio.get_running_loop()
    Landing.prepare(loop)
    op.reply = reply = loop.create_future()
    return reply


E = TypeVar("E", bound=Engine)
_left: list[Engine] = []
"""Inherited over a fork: its connections are the parent's, and must not even be finalized here."""


class Served(Surface, Generic[E]):
    """A store on a server."""

    _engine: E | None = None

    @abstractmethod
    def _make_engine(self) -> E: ...

    def _life_signs(self) -> Path | None:
        """Where worker processes of this host keep their locks."""
        return private_folder(self.url, self.namespace)

    def open_now(self) -> None:
        if self._pid not in (0, os.getpid()):
            self._lock = threading.Lock()  # a thread of the parent may have held it
            if self._engine is not None:
                _left.append(self._engine)
                self._engine = None
        with self._lock:
            if self._engine is None:
                engine = self._make_engine()
                engine.start()
                self._engine = engine
                self._pid = os.getpid()
                self.lifelines = self._life_signs()

    def close_now(self) -> None:
        with self._lock:
            engine, self._engine = self._engine, None
            if engine is not None and self._pid == os.getpid():
                engine.close()
        self._news.missed()

    def _running(self) -> E:
        return self._used(self._engine)
