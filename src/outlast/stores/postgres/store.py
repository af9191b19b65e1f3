"""The PostgreSQL store: every call becomes part of a transaction in the store's own thread.

Any number of hosts share one schema. Leases, delays and all other moments are measured by the
server's clock. A lost connection is made anew; what was promised is committed with
``synchronous_commit=on``, whatever role and database say, and a claim is not, since one that is
lost leaves its job queued.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.errors import StoreClosed, StoreError, Unsupported
from outlast.job import give_back
from outlast.limits import check_job, check_jobs
from outlast.store import Durability, Feature
from outlast.stores.lifelines import private_folder
from outlast.stores.news import ENDED, ROOM, WORK, News
from outlast.stores.postgres import ledger, opening, steering, upkeep
from outlast.stores.postgres.claims import claim, next_due
from outlast.stores.postgres.engine import Engine
from outlast.stores.postgres.joined import Joinable
from outlast.stores.postgres.moving import Moved
from outlast.stores.postgres.op import Op
from outlast.stores.postgres.schema import Names, migrate, schema_name
from outlast.stores.postgres.steps import Stepped
from outlast.stores.postgres.verdicts import settle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from asyncpg import Connection

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.job import Added, Claim, Death, Depth, Job, Lost, Progress, Status, Verdict
    from outlast.store import Cancelled, Line, WorkerInfo
    from outlast.stores.postgres.address import Address
    from outlast.stores.postgres.turn import Turn

__all__ = ["PostgresStore"]

T = TypeVar("T")

_HOUR = 3600.0
POLL = 0.5
"""Seconds between two looks where news are not pushed."""
SPACE_POLL = 2.0
FIRST_LOOK, LONGEST_LOOK = 0.01, 1.0
"""How often the ends of jobs are looked for that others may have settled."""

_left: list[Engine] = []
"""Inherited over a fork: its connections are the parent's, and must not even be finalized here."""


class PostgresStore(Stepped, Joinable, Moved):
    """Jobs in one schema of a PostgreSQL database."""

    features = (
        Feature.DELAY
        | Feature.PRIORITY
        | Feature.KEYS
        | Feature.REPEATS
        | Feature.RESULTS
        | Feature.INSPECT
        | Feature.LANES
        | Feature.CAPACITY
        | Feature.STEPS
        | Feature.JOIN
        | Feature.PUSH
    )

    def __init__(
        self,
        address: Address,
        *,
        namespace: str = "default",
        durability: Durability | None = None,
        create: bool = True,
        clock: Clock | None = None,
        chance: Chance | None = None,
    ) -> None:
        self.url = address.shown
        self.namespace = namespace
        self.schema = schema_name(address.schema, namespace)
        self.names = Names(address.schema, namespace)
        self.library = f"PostgreSQL (asyncpg {asyncpg.__version__})"
        self.durability = Durability.POWER if durability is None else durability
        self.lifelines: Path | None = None
        self.required = self.durability
        self.address = address
        self._create = create
        self.clock = clock or SystemClock()
        self._chance = chance or SystemChance()
        self._lock = threading.Lock()
        self._pid = 0
        self._engine: Engine | None = None
        self._news = News()

    def __repr__(self) -> str:
        return f"PostgresStore({self.url!r}, namespace={self.namespace!r})"

    # -- opening and closing

    async def open(self) -> None:
        await asyncio.to_thread(self.open_now)

    def open_now(self) -> None:
        """``open`` for callers without an event loop; blocks."""
        if self._pid not in (0, os.getpid()):
            self._lock = threading.Lock()  # a thread of the parent may have held it
            if self._engine is not None:
                _left.append(self._engine)
                self._engine = None
        with self._lock:
            if self._engine is not None:
                return
            engine = Engine(
                self.address,
                self.names,
                self.clock,
                self._news,
                self._chance.token().hex(),
                opening.commit_mode(self.required),
                self._check,
            )
            engine.start()
            self._engine = engine
            self._pid = os.getpid()
            self.lifelines = private_folder(self.url, self.schema)

    async def _check(self, connection: Connection) -> None:
        """On each new connection: it may lead to another server than the one before."""
        self.place = await connection.fetchval(f"SELECT {opening.PLACE}")
        self.durability = await opening.examine(connection, self.url, self.required)
        await migrate(connection, self.names, create=self._create)
        version = connection.get_server_version()
        self.library = f"PostgreSQL {version.major}.{version.minor} (asyncpg {asyncpg.__version__})"

    async def close(self) -> None:
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """``close`` for callers without an event loop; blocks."""
        with self._lock:
            engine, self._engine = self._engine, None
            if engine is not None and self._pid == os.getpid():
                engine.close()
        self._news.missed()

    # -- the protocol

    async def add(self, jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        return await self._do(self._add_op(jobs, capacity)) if jobs else []

    def add_now(self, jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        """``add`` for callers without an event loop; blocks until it is durable."""
        return self._hand_over(self._add_op(jobs, capacity)).result() if jobs else []

    def _add_op(self, jobs: Sequence[Job], capacity: int | None) -> Op[Sequence[Added]]:
        check_jobs(jobs)
        if capacity is not None:
            # Before the call: what happens while it is on its way is news to it.
            self._look(ROOM, sorted({job.queue for job in jobs}))
        return Op(jobs=jobs, capacity=capacity)

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
        return [] if op is None else await self._do(op, self._unclaim, writing=False)

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
        if op is None:
            nothing: Future[Sequence[Claim]] = Future()
            nothing.set_result([])
            return nothing
        op.undo = self._unclaim
        return self._hand_over(op, writing=False)

    def _claim_op(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool,
    ) -> Op[Sequence[Claim]] | None:
        engine = self._running()
        if limit <= 0:
            return None
        engine.listen()

        async def work(turn: Turn) -> Sequence[Claim]:
            seen = self._news.count(WORK, queues)
            token = self._chance.token()
            found = await claim(turn, token, queues, tasks, limit, lease, worker, newest)
            if len(found) < limit:
                self._news.look(WORK, seen)
            return found

        op: Op[Sequence[Claim]] = Op(work, promised=False)
        op.revert = _give_back
        op.fenced = True
        return op

    async def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        return await self._do(self._settle_op(verdicts)) if verdicts else []

    def settle_now(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        """``settle`` for callers without an event loop; blocks until it is durable."""
        return self._hand_over(self._settle_op(verdicts)).result() if verdicts else []

    def _settle_op(self, verdicts: Sequence[Verdict]) -> Op[Sequence[Lost]]:
        for verdict in verdicts:
            for job in verdict.then:
                check_job(job)
        return Op(verdicts=verdicts)

    async def renew(
        self, claims: Sequence[Claim], lease: float, notes: Sequence[Progress] = ()
    ) -> Sequence[Lost]:
        work = partial(upkeep.renew, claims=claims, lease=lease, notes=notes)
        return await self._do(Op(work, promised=False))

    async def recover(self, limit: int) -> int:
        return await self._do(Op(partial(upkeep.recover, limit=limit), after_reads=True))

    async def recover_worker(self, worker: str, cause: Death) -> int:
        work = partial(upkeep.recover_worker, worker=worker, cause=cause)
        return await self._do(Op(work, after_reads=True))

    async def prune(self, limit: int) -> int:
        return await self._do(Op(partial(upkeep.prune, limit=limit), promised=False))

    async def wait(self, queues: Sequence[str], timeout: float, *, space: bool = False) -> None:
        kind = ROOM if space else WORK
        deadline = self.clock.monotonic() + timeout
        come = float("inf")
        """When a job comes due, by the clock of the one who waits."""
        slept = False
        while True:
            engine = self._running()
            engine.listen()
            waiter = self._news.wait(kind, queues)
            try:
                if self._news.is_new(kind, queues):
                    return
                asked = self.clock.monotonic()
                if asked >= min(deadline, come) or (slept and (space or not engine.bell.listens)):
                    return
                due = None if space else await self._read(next_due)
                come = asked + due if due is not None else float("inf")
                left = min(deadline, come) - self.clock.monotonic()
                if left <= 0:
                    return
                if space:
                    left = min(left, SPACE_POLL)
                if not engine.bell.listens:
                    left = min(left, POLL)
                if self._engine is not None:
                    await waiter.sleep(self.clock, left)
                    slept = True
            finally:
                self._news.drop(waiter)

    async def depth(self, queue: str) -> Depth:
        return await self._read(partial(ledger.depth, queue=queue))

    def depth_now(self, queue: str) -> Depth:
        """``depth`` for callers without an event loop; blocks."""
        op = Op(partial(ledger.depth, queue=queue), promised=False)
        return self._hand_over(op, writing=False).result()

    # -- the ledger

    async def get(self, ids: Sequence[str]) -> Sequence[Job | None]:
        return await self._read(partial(ledger.get, ids=ids))

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
        return await self._read(
            partial(
                ledger.find,
                status=status,
                queue=queue,
                task=task,
                key=key,
                since=since,
                until=until,
                after=after,
                limit=limit,
            )
        )

    async def cancel(self, ids: Sequence[str]) -> Sequence[Cancelled]:
        return await self._do(Op(partial(steering.cancel, ids=ids)))

    async def revive(self, ids: Sequence[str]) -> Sequence[bool]:
        return await self._do(Op(partial(steering.revive, ids=ids)))

    async def purge(self, queue: str, status: Sequence[Status], *, dry_run: bool = False) -> int:
        if dry_run:
            return await self._read(partial(ledger.count, queue=queue, status=status))
        total = 0
        while gone := await self._do(Op(partial(steering.purge, queue=queue, status=status))):
            total += gone
        return total

    async def finished(self, ids: Sequence[str], timeout: float) -> Sequence[Job]:
        deadline = self.clock.monotonic() + timeout
        pause = FIRST_LOOK
        while True:
            waiter = self._news.wait(ENDED)
            try:
                found = await self._read(partial(ledger.ended, ids=ids))
                left = deadline - self.clock.monotonic()
                if found or left <= 0:
                    return found
                await waiter.sleep(self.clock, min(left, pause))
                pause = min(pause * 1.5, LONGEST_LOOK)
            finally:
                self._news.drop(waiter)

    async def lines(self) -> Sequence[Line]:
        return await self._do(Op(ledger.lines, promised=False))

    async def namespaces(self) -> Sequence[str]:
        return await self._read(ledger.namespaces)

    async def pause(self, queue: str, paused: bool = True) -> None:
        await self._do(Op(partial(steering.pause, queue=queue, paused=paused)))

    async def beat(self, info: WorkerInfo) -> None:
        await self._do(Op(partial(upkeep.beat, info=info), promised=False))

    async def leave(self, worker: str) -> None:
        await self._do(Op(partial(upkeep.leave, worker=worker), promised=False))

    async def workers(self) -> Sequence[WorkerInfo]:
        return await self._read(partial(ledger.workers, since=_HOUR))

    async def backup(self, path: Path) -> dict[str, Any]:
        self._running()
        raise Unsupported(
            f"{self.url} is saved by the tools of PostgreSQL (pg_dump --schema={self.schema}, or"
            f" pg_basebackup), not to {path}: that is for sqlite:///FILE"
        )

    # -- handing over

    def _running(self) -> Engine:
        engine = self._engine
        if engine is None:
            raise StoreClosed(f"{self.url} is not open: use it between open() and close()")
        if self._pid != os.getpid():
            raise StoreClosed(f"{self.url} was opened by process {self._pid}; open it here too")
        return engine

    async def _do(
        self, op: Op[T], undo: Callable[[T], None] | None = None, *, writing: bool = True
    ) -> T:
        """Cancelled in mid-call, the step is done or it is not; what it answered is undone."""
        engine = self._running()
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        op.reply = reply
        (engine.write if writing else engine.read)(op)
        try:
            return await reply
        except asyncio.CancelledError:
            if undo is not None:
                op.orphan(undo)
            raise

    async def _read(self, work: Callable[[Turn], Awaitable[T]]) -> T:
        return await self._do(Op(work, promised=False), writing=False)

    def _hand_over(self, op: Op[T], *, writing: bool = True) -> Future[T]:
        """For callers without an event loop: answered whether anybody waits or not."""
        engine = self._running()
        reply: Future[T] = Future()
        op.reply = reply
        (engine.write if writing else engine.read)(op)
        return reply

    def _unclaim(self, claimed: Sequence[Claim]) -> None:
        """Nobody received these claims: they go back as if they had never been made."""
        engine = self._engine
        if claimed and engine is not None:
            with contextlib.suppress(StoreError):
                engine.read(Op(_give_back(claimed), promised=False))

    def _look(self, kind: int, queues: Sequence[str]) -> None:
        self._news.look(kind, self._news.count(kind, queues))


def _give_back(claimed: Sequence[Claim]) -> Callable[[Turn], Awaitable[Sequence[Lost]]]:
    back = [give_back(claim, started=False) for claim in claimed]
    return partial(settle, verdicts=back, careful=True)
