"""The RabbitMQ store: what is accepted is confirmed by the broker, what is done is acknowledged.

A broker keeps messages and not records, so much of what other stores can do it can't; that is
refused before anything is touched. Claims live as long as the connection they came by.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

import pika

from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.errors import DurabilityError, EnqueueUncertain, StoreClosed, StoreError, Unsupported
from outlast.job import Added, Alike, Lost, give_back
from outlast.limits import check_job, check_jobs
from outlast.store import Durability, Feature
from outlast.stores.news import WORK, News
from outlast.stores.rabbitmq import depths
from outlast.stores.rabbitmq.claiming import Claiming
from outlast.stores.rabbitmq.engine import Engine
from outlast.stores.rabbitmq.held import claimed, holds
from outlast.stores.rabbitmq.op import Op
from outlast.stores.rabbitmq.outbox import Batch
from outlast.stores.rabbitmq.settling import Settling
from outlast.stores.rabbitmq.work import NEEDS_RECORDS, Work, check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.job import Claim, Death, Depth, Job, Progress, Verdict
    from outlast.stores.rabbitmq.address import Address

__all__ = ["RabbitStore"]

T = TypeVar("T")

_left: list[Engine] = []
"""Inherited over a fork: its connections are the parent's, and must not even be finalized here."""


class RabbitStore:
    """The jobs of one namespace in a virtual host."""

    features = Feature.DELAY | Feature.PRIORITY | Feature.PUSH

    def __init__(
        self,
        address: Address,
        *,
        namespace: str = "default",
        durability: Durability | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
    ) -> None:
        self.url = address.shown
        self.namespace = namespace
        self.library = f"RabbitMQ (pika {pika.__version__})"
        self.durability = Durability.POWER
        self.lifelines: Path | None = None
        """None: the broker knows at once that a worker is gone."""
        self._required = durability
        self._address = address
        self._clock = clock or SystemClock()
        self._chance = chance or SystemChance()
        self._longest = address.consumer_timeout
        self._work = Work(namespace, self._clock, self._chance, self._longest)
        self._news = News()
        self._claiming = Claiming(self._work, self._news)
        self._settling = Settling(self._work)
        self._lock = threading.Lock()
        self._pid = 0
        self._engine: Engine | None = None

    def __repr__(self) -> str:
        return f"RabbitStore({self.url!r}, namespace={self.namespace!r})"

    # -- opening and closing

    async def open(self) -> None:
        await asyncio.to_thread(self.open_now)

    def open_now(self) -> None:
        """``open`` for callers without an event loop; blocks."""
        if self._required is not None and self._required > Durability.POWER:
            raise DurabilityError(
                f"{self.url}: whether a queue has members on other nodes can't be seen over AMQP;"
                " ask for power at most, and `outlast doctor` for the rest"
            )
        if self._pid not in (0, os.getpid()):
            self._leave_to_parent()
        with self._lock:
            if self._engine is not None:
                return
            engine = Engine(self._address, self.namespace, self._arrived, self._claiming.give_back)
            engine.start()
            self._engine = engine
            self._pid = os.getpid()
            self.library = f"{engine.library} (pika {pika.__version__})"

    def _leave_to_parent(self) -> None:
        """In a forked child: what was open is the parent's."""
        engine, self._engine, self._pid = self._engine, None, 0
        self._lock = threading.Lock()  # a thread of the parent may have held the old one
        claimed.clear()
        if engine is not None:
            _left.append(engine)

    async def close(self) -> None:
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """``close`` for callers without an event loop; blocks."""
        with self._lock:
            engine, self._engine = self._engine, None
            if engine is not None and self._pid == os.getpid():
                engine.close()
        self._news.missed()

    # -- adding

    async def add(self, jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        return await self._do(self._add_op(jobs, capacity)) if jobs else []

    def add_now(self, jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        """``add`` for callers without an event loop; blocks until it is confirmed."""
        return self._hand_over(self._add_op(jobs, capacity)).result() if jobs else []

    def _add_op(self, jobs: Sequence[Job], capacity: int | None) -> Op[Sequence[Added]]:
        """Each job is stored or not by itself; who is told of a failure is told which."""
        self._running()
        model = check_jobs(jobs)
        if capacity is not None:
            raise Unsupported(f"{self.url}: a limit for a queue, {NEEDS_RECORDS}")
        check(jobs[:1] if type(jobs) is Alike else jobs, self._longest)

        def begin(engine: Engine, op: Op[Sequence[Added]]) -> None:
            first: dict[str, Job] = {}
            answers = []
            for job in jobs:
                twin = first.setdefault(job.id, job)
                same = (job.queue, job.task, job.payload) == (twin.queue, twin.task, twin.payload)
                answers.append(Added(job.id, created=twin is job, conflict=not same))

            def ended(batch: Batch) -> None:
                if batch.failures:
                    op.error = self._failure(batch, len(first))
                else:
                    op.answer = answers
                engine.answer(op)

            batch = Batch(len(first), ended)
            for posting in [self._work.posting(job, batch, model) for job in first.values()]:
                engine.outbox.send(posting)

        return Op(begin)

    def _failure(self, batch: Batch, many: int) -> Exception:
        """One error for those that were not confirmed; nothing stored at all has a plainer one."""
        posting, error, _ = batch.failures[0]
        if len(batch.failures) == many and not any(unsure for _, _, unsure in batch.failures):
            return error
        ids = [posting.id for posting, _, _ in batch.failures]
        return EnqueueUncertain(
            f"{len(ids)} of {many} jobs may or may not be stored ({posting.id} is the first):"
            f" {error}. Adding them again may have them run twice",
            ids,
        )

    # -- claiming

    async def claim(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool = False,
    ) -> Sequence[Claim]:
        op = self._claim_op(queues, tasks, limit, worker, newest)
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
        """``claim`` for callers without an event loop; the future is set by the store's thread."""
        op = self._claim_op(queues, tasks, max(0, limit), worker, newest)
        op.undo = self._unclaim
        return self._hand_over(op)

    def _claim_op(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        worker: str,
        newest: bool,
    ) -> Op[Sequence[Claim]]:
        self._running()
        if newest:
            raise Unsupported(f"{self.url}: the newest first, {NEEDS_RECORDS}")

        return Op(lambda engine, op: self._claiming.begin(engine, op, queues, tasks, limit, worker))

    def _arrived(self, queues: set[str]) -> None:
        self._news.heard(WORK, queues)

    async def catch_up(self, queues: Sequence[str], tasks: Sequence[str | None]) -> None:
        """Return when what was confirmed before this call can be claimed here.

        ``claim`` does it the first time; later on the broker tells by itself, a moment later.
        """

        async def wait(engine: Engine, op: Op[None]) -> None:
            try:
                engine.consume()
                await engine.consuming()
                await engine.intake.catch_up(queues, tasks)
            except Exception as error:
                op.error = error
            engine.answer(op)

        await self._do(Op(lambda engine, op: engine.spawn(wait(engine, op))))

    # -- settling

    async def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        return await self._do(self._settle_op(verdicts)) if verdicts else []

    def settle_now(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        """``settle`` for callers without an event loop; blocks."""
        return self._hand_over(self._settle_op(verdicts)).result() if verdicts else []

    def _settle_op(self, verdicts: Sequence[Verdict]) -> Op[Sequence[Lost]]:
        self._running()
        for verdict in verdicts:
            for job in verdict.then:
                check_job(job)
            check(verdict.then, self._longest)
            if verdict.event is not None:
                raise Unsupported(f"{self.url}: a wait for an event, {NEEDS_RECORDS}")
        return Op(lambda engine, op: self._settling.begin(engine, op, verdicts))

    async def renew(
        self, claims: Sequence[Claim], lease: float, notes: Sequence[Progress] = ()
    ) -> Sequence[Lost]:
        """A claim is ours as long as its connection, in whichever store of this process."""
        self._running()
        return [Lost(claim, "lost") for claim in claims if not holds(claim.receipt)]

    async def recover(self, limit: int) -> int:
        """Nothing: the broker gives out again what a lost connection held, at once."""
        self._running()
        return 0

    async def recover_worker(self, worker: str, cause: Death) -> int:
        self._running()
        return 0

    async def prune(self, limit: int) -> int:
        """Nothing: what expired is dropped when it is claimed, and nothing that ended is kept."""
        self._running()
        return 0

    async def wait(self, queues: Sequence[str], timeout: float, *, space: bool = False) -> None:
        self._running()
        if space:
            raise Unsupported(f"{self.url}: a limit for a queue, {NEEDS_RECORDS}")
        waiter = self._news.wait(WORK, queues)
        try:
            if not self._news.is_new(WORK, queues) and timeout > 0:
                await waiter.sleep(self._clock, timeout)
        finally:
            self._news.drop(waiter)

    async def depth(self, queue: str) -> Depth:
        return await self._do(self._depth_op(queue))

    def depth_now(self, queue: str) -> Depth:
        """``depth`` for callers without an event loop; blocks."""
        return self._hand_over(self._depth_op(queue)).result()

    def _depth_op(self, queue: str) -> Op[Depth]:
        self._running()
        return Op(lambda engine, op: engine.spawn(depths.count(engine, op, self.namespace, queue)))

    # -- handing over

    def _running(self) -> Engine:
        engine = self._engine
        if engine is None:
            raise StoreClosed(f"{self.url} is not open: use it between open() and close()")
        if self._pid != os.getpid():
            raise StoreClosed(f"{self.url} was opened by process {self._pid}; open it here too")
        return engine

    async def _do(self, op: Op[T], undo: Callable[[T], None] | None = None) -> T:
        """Cancelled in mid-call, the step is done or it is not; what it answered is undone."""
        engine = self._running()
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        op.reply = reply
        engine.hand_over(op)
        try:
            return await reply
        except asyncio.CancelledError:
            if undo is not None:
                op.orphan(undo)
            raise

    def _hand_over(self, op: Op[T]) -> Future[T]:
        """For callers without an event loop: answered whether anybody waits or not."""
        engine = self._running()
        reply: Future[T] = Future()
        op.reply = reply
        engine.hand_over(op)
        return reply

    def _unclaim(self, claims: Sequence[Claim]) -> None:
        """Nobody received these claims: they go back as if they had never been made."""
        engine = self._engine
        if claims and engine is not None:
            back = [give_back(claim, started=False) for claim in claims]
            with contextlib.suppress(StoreError):
                engine.hand_over(self._settle_op(back))
