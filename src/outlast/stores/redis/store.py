"""The Redis store: each call is one script on the server, by the server's clock.

The connections live in one thread of the store. Leases run by the server's clock: where that jumps,
they end sooner or later than was said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import redis

from outlast.clock import SystemClock
from outlast.errors import Unsupported
from outlast.limits import check_jobs
from outlast.store import Durability, Feature
from outlast.stores.news import ENDED, ROOM, WORK
from outlast.stores.redis import ledger, opening, upkeep
from outlast.stores.redis.claims import Claiming
from outlast.stores.redis.engine import Engine
from outlast.stores.redis.moving import Moved
from outlast.stores.redis.op import MORE, Op
from outlast.stores.redis.steps import Stepped
from outlast.stores.surface import Served

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from redis.asyncio.connection import AbstractConnection

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.job import Added, Claim, Death, Depth, Job, Lost, Progress, Status, Verdict
    from outlast.store import Cancelled, Line, WorkerInfo
    from outlast.stores.redis.address import Address
    from outlast.stores.redis.op import Arg
    from outlast.stores.redis.safe import Wait

__all__ = ["RedisStore"]

T = TypeVar("T")

POLL = 0.5
"""Seconds between two looks of those who wait while no news can be heard."""
BITE = 500
"""Jobs that one call of the server touches, where the caller could name any number."""


class RedisStore(Stepped, Moved, Served[Engine]):
    """The jobs of one namespace on a server."""

    features = ~(Feature.JOIN | Feature.PROMPT)

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
        self.library = f"Redis (redis-py {redis.__version__})"
        self._address = address
        self._prefix = f"{{outlast:{namespace}}}"
        self._run = self._successor = ""

    # -- opening and closing

    def _make_engine(self) -> Engine:
        return Engine(self._address, self._prefix, self._news, self._times, self._check)

    async def _check(self, connection: AbstractConnection) -> Wait | None:
        """On each new connection: it may lead to another server than the one before."""
        server = await opening.examine(
            connection, self.url, self._prefix, self.required, self._address.wish
        )
        await opening.prepare(connection, self.url, self._prefix, server.run, create=self._create)
        await opening.load(connection)
        self.durability = server.durability
        self.library = f"{server.name} (redis-py {redis.__version__})"
        self._run, self._successor = server.run, server.run if server.took_over else ""
        return server.wait

    def _which_run(self) -> str:
        """Of the server, as of the connection on which calls are sent now."""
        return self._run

    def _which_successor(self) -> str:
        """The same run if the server has taken over from another; else empty."""
        return self._successor

    def _times(self) -> tuple[Arg, Arg]:
        """Nothing, for the server has a clock, unless somebody set another one."""
        if isinstance(self.clock, SystemClock):
            return "", ""
        return repr(self.clock.now()), repr(self.clock.monotonic())

    # -- the protocol

    def _add_op(self, jobs: Sequence[Job], capacity: int | None) -> Op[Sequence[Added]]:
        check_jobs(jobs)
        if capacity is not None:
            # Before the call: what happens while it is on its way is news to it.
            self._running().listen()
            self._news.look(ROOM, self._news.count(ROOM, {job.queue for job in jobs}))
        return Op("add", jobs=jobs, capacity=capacity)

    def _claim_op(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool,
    ) -> Op[Sequence[Claim]]:
        self._running().listen()
        token = self._chance.token()
        seen = self._news.count(WORK, queues)

        claiming = Claiming(
            limit, self._which_run, self._which_successor,
            queues, tasks, lease, worker, newest, token,
        )  # fmt: skip

        def parse(raw: Any) -> Any:
            found = claiming.parse(raw)
            if found is MORE:
                return MORE  # and nothing is known yet
            if len(found) < limit and not claiming.may_be_more:
                self._news.look(WORK, seen)
            else:
                self._news.overlook(WORK, queues)
            return found

        return Op("claim", claiming.args, parse)

    def _settle_op(self, verdicts: Sequence[Verdict]) -> Op[Sequence[Lost]]:
        return Op("settle", verdicts=verdicts)

    async def renew(
        self, claims: Sequence[Claim], lease: float, notes: Sequence[Progress] = ()
    ) -> Sequence[Lost]:
        return await self._do(upkeep.renew(claims, lease, notes))

    async def recover(self, limit: int) -> int:
        total = 0
        while total < limit:
            bite = min(limit - total, BITE)
            many, prolonged = await self._do(upkeep.recover(bite, self._which_run))
            total += many
            if many < bite and not prolonged:
                break
        return total

    async def recover_worker(self, worker: str, cause: Death) -> int:
        many, more = 0, True
        while more:
            found, more = await self._do(upkeep.recover_worker(worker, cause))
            many += found
        return many

    async def prune(self, limit: int) -> int:
        self._running()
        total = 0
        while total < limit:
            bite = min(limit - total, BITE)
            many = await self._do(upkeep.prune(bite))
            total += many
            if many < bite:
                break
        return total

    async def wait(self, queues: Sequence[str], timeout: float, *, space: bool = False) -> None:
        kind = ROOM if space else WORK
        deadline = self.clock.monotonic() + timeout
        self._running().listen()
        waiter = self._news.wait(kind, queues)
        try:
            while True:
                left = deadline - self.clock.monotonic()
                if self._news.is_new(kind, queues) or left <= 0:
                    return
                moved, due = await self._do(upkeep.idle(queues, space))
                engine = self._engine
                if moved or engine is None or self._news.is_new(kind, queues):
                    return
                pause = left if engine.bell.listens else min(left, POLL)
                if due is not None:
                    pause = min(pause, due)
                if not await waiter.sleep(self.clock, pause) and pause < left:
                    return
        finally:
            self._news.drop(waiter)

    async def depth(self, queue: str) -> Depth:
        return await self._do(ledger.depth(queue))

    def depth_now(self, queue: str) -> Depth:
        """``depth`` for callers without an event loop; blocks."""
        return self._hand_over(ledger.depth(queue)).result()

    # -- the ledger

    async def get(self, ids: Sequence[str]) -> Sequence[Job | None]:
        return await self._do_in_bites(ledger.jobs, ids)

    async def _find(self, **asked: Any) -> Sequence[Job]:
        limit: int = asked.pop("limit")
        scan = ledger.Scan(**asked)
        self._running()
        while scan.goes_on and len(scan.found) < limit:
            await self._do(scan.find(limit - len(scan.found)))
        return scan.found[:limit]

    async def cancel(self, ids: Sequence[str]) -> Sequence[Cancelled]:
        return await self._do_in_bites(ledger.cancel, ids)

    async def revive(self, ids: Sequence[str]) -> Sequence[bool]:
        self._running()
        return await self._do(ledger.revive(ids)) if ids else []

    async def purge(self, queue: str, status: Sequence[Status], *, dry_run: bool = False) -> int:
        scan = ledger.Scan(status, queue)
        self._running()
        while scan.goes_on:
            await self._do(scan.purge(dry_run=dry_run))
        return scan.many

    async def finished(self, ids: Sequence[str], timeout: float) -> Sequence[Job]:
        deadline = self.clock.monotonic() + timeout
        self._running().listen()
        waiter = self._news.wait(ENDED, ids)
        try:
            while True:
                left = deadline - self.clock.monotonic()
                found = await self._do(ledger.ended(ids, listen=left > 0))
                if found or left <= 0:
                    return found
                listens = self._running().bell.listens
                rung = await waiter.sleep(self.clock, left if listens else min(left, POLL))
                if listens and not rung:
                    return []  # else it would have been told
        finally:
            self._news.drop(waiter)

    async def namespaces(self) -> Sequence[str]:
        return await self._do(ledger.namespaces())

    async def lines(self) -> Sequence[Line]:
        self._running()
        scan = ledger.Lines(self._which_run)
        while scan.goes_on:
            await self._do(scan.ask())
        return list(scan.found.values())

    async def pause(self, queue: str, paused: bool = True) -> None:
        await self._do(ledger.pause(queue, paused))

    async def beat(self, info: WorkerInfo) -> None:
        await self._do(upkeep.beat(info))

    async def leave(self, worker: str) -> None:
        await self._do(upkeep.leave(worker))

    async def workers(self) -> Sequence[WorkerInfo]:
        return await self._do(upkeep.workers())

    async def backup(self, path: Path) -> dict[str, Any]:
        self._running()
        raise Unsupported(
            f"{self.url} is saved by the means of Redis (BGSAVE, and a copy of its folder), not to"
            f" {path}: that is for sqlite:///FILE"
        )

    # -- handing over

    def _submit(self, op: Op[Any]) -> None:
        self._running().hand_over(op)

    async def _do_in_bites(
        self, make: Callable[[Sequence[str]], Op[Sequence[T]]], ids: Sequence[str]
    ) -> Sequence[T]:
        self._running()
        found: list[T] = []
        for first in range(0, len(ids), BITE):
            bite: Sequence[T] = await self._do(make(ids[first : first + BITE]))
            found += bite
        return found
