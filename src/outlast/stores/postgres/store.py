"""The PostgreSQL store: every call becomes part of a transaction in the store's own thread.

Any number of hosts share one schema. Leases, delays and all other moments are measured by the
server's clock. A lost connection is made anew; what was promised is committed with
``synchronous_commit=on``, whatever role and database say, and a claim is not, since one that is
lost leaves its job queued.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from outlast.chance import made_at
from outlast.errors import StoreError, Unsupported
from outlast.job import give_back
from outlast.limits import check_jobs
from outlast.store import Durability, Feature
from outlast.stores.news import ENDED, ROOM, WORK
from outlast.stores.postgres import ledger, opening, steering, upkeep
from outlast.stores.postgres.claims import Wanted, bury, claim, next_due
from outlast.stores.postgres.engine import Engine
from outlast.stores.postgres.faults import mapped
from outlast.stores.postgres.joined import Joinable
from outlast.stores.postgres.link import CONNECT, Link
from outlast.stores.postgres.moving import Moved
from outlast.stores.postgres.op import Op, reading
from outlast.stores.postgres.schema import MIGRATIONS, Names, migrate, schema_name, version_of
from outlast.stores.postgres.servertime import ServerTime
from outlast.stores.postgres.steps import Stepped
from outlast.stores.postgres.swift import claim_swiftly, ended_swiftly, make
from outlast.stores.postgres.turn import Lines
from outlast.stores.postgres.verdicts import settle
from outlast.stores.surface import Served, awaited
from outlast.stores.versions import Versions

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


class PostgresStore(Stepped, Joinable, Moved, Served[Engine]):
    """Jobs in one schema of a PostgreSQL database."""

    features = (
        Feature.DELAY
        | Feature.PRIORITY
        | Feature.ORDER
        | Feature.KEYS
        | Feature.REPEATS
        | Feature.RESULTS
        | Feature.INSPECT
        | Feature.LANES
        | Feature.CAPACITY
        | Feature.STEPS
        | Feature.JOIN
        | Feature.PUSH
        | Feature.PROMPT
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
        super().__init__(
            address.shown,
            namespace=namespace,
            durability=durability,
            create=create,
            clock=clock,
            chance=chance,
        )
        self.schema = schema_name(address.schema, namespace)
        self.names = Names(address.schema, namespace)
        self.library = f"PostgreSQL (asyncpg {asyncpg.__version__})"
        self.address = address
        self._seen: tuple[Any, ...] = ()
        """The terms of the last patient claim that found too little, and what was heard before."""
        self._line: opening.Line = ("", 0)
        self._come = float("inf")
        """When, by the clock of the one who waits, the next delayed job comes due."""

    # -- opening and closing

    def _make_engine(self) -> Engine:
        return Engine(
            self.address,
            self.names,
            self.clock,
            self._news,
            self._chance.token().hex(),
            opening.commit_mode(self.required),
            self.required >= Durability.REPLICA,
            self._check,
        )

    async def _check(self, connection: Connection) -> None:
        """On each new connection: it may lead to another server than the one before."""
        async with asyncio.timeout(CONNECT) as limit:
            self.place = await connection.fetchval(f"SELECT {opening.PLACE}")
            self.durability = await opening.examine(connection, self.url, self.required)
            self._line = await opening.same_line(connection, self.url, self._line)
            await migrate(connection, self.names, create=self._create, limit=limit)
            await make(connection, self.names)
        version = connection.get_server_version()
        self.library = f"PostgreSQL {version.major}.{version.minor} (asyncpg {asyncpg.__version__})"

    async def versions(self) -> Versions:
        """See ``Versioned``."""
        link = Link(self.address, self.names, Lines(), ServerTime(self.clock), "versions")
        try:
            connection = await link.hold()
            found = await version_of(connection, self.names, len(MIGRATIONS))
            await link.let_go()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise mapped(error, self.url) from error
        finally:
            await link.close()
        return Versions(found, len(MIGRATIONS))

    # -- the protocol

    def _add_op(self, jobs: Sequence[Job], capacity: int | None) -> Op[Sequence[Added]]:
        model = check_jobs(jobs)
        if capacity is not None:
            # Before the call: what happens while it is on its way is news to it.
            self._look(ROOM, sorted({job.queue for job in jobs}))
        return Op(jobs=jobs, model=model, capacity=capacity)

    def _claim_op(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool,
    ) -> Op[Sequence[Claim]]:
        return self._asking(Wanted(queues, tasks, limit, lease, worker, newest))

    def _asking(self, wanted: Wanted) -> Op[Sequence[Claim]]:
        self._running().listen()
        work = partial(self._claiming, wanted=wanted, how=claim)
        op: Op[Sequence[Claim]] = Op(work, promised=False, reads=True)
        op.swift = None
        if not wanted.newest:
            op.swift = partial(self._claiming, wanted=wanted, how=claim_swiftly)
        op.revert = _give_back
        op.fenced = True
        return op

    async def _claiming(
        self, turn: Turn, wanted: Wanted, how: Callable[[Turn, bytes, Wanted], Awaitable[Any]]
    ) -> Any:
        """Whoever got less than he asked for has seen all that there is, unless rows are spoilt."""
        seen = self._news.count(WORK, wanted.queues)
        token = self._chance.token()
        if wanted.patient:
            self._seen = ()
        found = await how(turn, token, wanted)
        if turn.damaged:
            work = partial(bury, seqs=turn.damaged, token=token)
            # Should it fail, they are found again when the lease has run out.
            with contextlib.suppress(StoreError):
                self._submit(Op(work, after_reads=True))
        elif found is not None and len(found) < wanted.limit:
            if wanted.patient:
                left = float("inf") if turn.due is None else turn.due - turn.now
                self._come = self.clock.monotonic() + left
                self._seen = wanted.queues, wanted.tasks, seen
            else:
                self._news.look(WORK, seen)
        return found

    async def claim_next(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        timeout: float,
        enough: asyncio.Future[None],
    ) -> Sequence[Claim]:
        if limit <= 0:
            return []
        engine = self._running()
        op = self._asking(Wanted(queues, tasks, limit, lease, worker, patient=True))
        reply = awaited(op)
        left = min(timeout, self._come - self.clock.monotonic())
        if not engine.bell.listens:
            left = min(left, POLL)

        def idle() -> bool:
            return self._seen == (queues, tasks, self._news.count(WORK, queues))

        patient = engine.park(op, queues, idle)
        alarm = asyncio.ensure_future(self.clock.sleep(max(0.0, left)))
        for other in (alarm, enough):
            other.add_done_callback(patient.ring)
        try:
            return await reply
        except asyncio.CancelledError:
            op.orphan(self._unclaim)
            patient.ring()
            raise
        finally:
            for other in (alarm, enough):
                other.remove_done_callback(patient.ring)
            alarm.cancel()

    def _settle_op(self, verdicts: Sequence[Verdict]) -> Op[Sequence[Lost]]:
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
        return self._hand_over(reading(partial(ledger.depth, queue=queue))).result()

    # -- the ledger

    async def get(self, ids: Sequence[str]) -> Sequence[Job | None]:
        return await self._read(partial(ledger.get, ids=ids))

    async def _find(self, **asked: Any) -> Sequence[Job]:
        return await self._read(partial(ledger.find, **asked))

    async def cancel(self, ids: Sequence[str]) -> Sequence[Cancelled]:
        return await self._do(Op(partial(steering.cancel, ids=ids)))

    async def revive(self, ids: Sequence[str]) -> Sequence[bool]:
        return await self._do(Op(partial(steering.revive, ids=ids)))

    async def purge(self, queue: str, status: Sequence[Status], *, dry_run: bool = False) -> int:
        if dry_run:
            return await self._read(partial(ledger.count, queue=queue, status=status))
        total = 0
        while True:
            gone = await self._do(Op(partial(steering.purge, queue=queue, status=status)))
            total += gone
            if gone < steering.BITE:
                return total  # what is added meanwhile stays, and can't keep it from ending

    async def finished(self, ids: Sequence[str], timeout: float) -> Sequence[Job]:
        deadline = self.clock.monotonic() + timeout
        pause = FIRST_LOOK
        young = timeout > FIRST_LOOK and all(map(self._is_young, ids))
        while True:
            waiter = self._news.wait(ENDED)
            try:
                if young:
                    # The look would find nothing, and be in the way of those who run the job.
                    young = False
                    await waiter.sleep(self.clock, FIRST_LOOK)
                op = reading(partial(ledger.ended, ids=ids))
                op.swift = partial(ended_swiftly, ids=ids)
                found = await self._do(op)
                left = deadline - self.clock.monotonic()
                if found or left <= 0:
                    return found
                await waiter.sleep(self.clock, min(left, pause))
                pause = min(pause * 1.5, LONGEST_LOOK)
            finally:
                self._news.drop(waiter)

    def _is_young(self, id_: str) -> bool:
        made = made_at(id_)
        return made is not None and 0 <= self.clock.now() - made < FIRST_LOOK

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

    def _submit(self, op: Op[Any]) -> None:
        engine = self._running()
        (engine.read if op.reads else engine.write)(op)

    async def _read(self, work: Callable[[Turn], Awaitable[T]]) -> T:
        return await self._do(reading(work))

    def _unclaim(self, claimed: Sequence[Claim]) -> None:
        """Nobody received these claims: they go back as if they had never been made."""
        if claimed:
            with contextlib.suppress(StoreError):
                self._submit(reading(_give_back(claimed)))

    def _look(self, kind: int, queues: Sequence[str]) -> None:
        self._news.look(kind, self._news.count(kind, queues))


def _give_back(claimed: Sequence[Claim]) -> Callable[[Turn], Awaitable[Sequence[Lost]]]:
    back = [give_back(claim, started=False) for claim in claimed]
    return partial(settle, verdicts=back, careful=True)
