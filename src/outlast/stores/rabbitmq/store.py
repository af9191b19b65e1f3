"""The RabbitMQ store: what is accepted is confirmed by the broker, what is done is acknowledged.

A broker keeps messages and not records, so much of what other stores can do it can't; that is
refused before anything is touched. Claims live as long as the connection they came by.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pika

from outlast.errors import DurabilityError, EnqueueUncertain, Unsupported
from outlast.job import Added, Alike, Lost
from outlast.limits import check_jobs
from outlast.store import Durability, Feature
from outlast.stores.news import WORK
from outlast.stores.rabbitmq import depths
from outlast.stores.rabbitmq.claiming import Claiming
from outlast.stores.rabbitmq.engine import Engine
from outlast.stores.rabbitmq.held import claimed, holds
from outlast.stores.rabbitmq.op import Op
from outlast.stores.rabbitmq.outbox import Batch
from outlast.stores.rabbitmq.settling import Settling
from outlast.stores.rabbitmq.work import NEEDS_RECORDS, Work, check, check_delay
from outlast.stores.surface import Served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.job import Claim, Death, Depth, Job, Progress, Verdict
    from outlast.stores.rabbitmq.address import Address

__all__ = ["RabbitStore"]


class RabbitStore(Served[Engine]):
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
        super().__init__(
            address.shown,
            namespace=namespace,
            durability=durability,
            clock=clock,
            chance=chance,
        )
        self.durability = Durability.POWER
        self.library = f"RabbitMQ (pika {pika.__version__})"
        self._address = address
        self.longest = address.longest
        self._work = Work(namespace, self.clock, self._chance, self.longest)
        self._claiming = Claiming(self._work, self._news)
        self._settling = Settling(self._work)

    def open_now(self) -> None:
        if self.required > Durability.POWER:
            raise DurabilityError(
                f"{self.url}: whether a queue has members on other nodes can't be seen over AMQP;"
                " ask for power at most, and `outlast doctor` for the rest"
            )
        if self._pid not in (0, os.getpid()):
            claimed.clear()
        super().open_now()
        self.library = f"{self._running().library} (pika {pika.__version__})"

    def _make_engine(self) -> Engine:
        return Engine(self._address, self.namespace, self._arrived, self._claiming.give_back)

    def _life_signs(self) -> None:
        """None: the broker knows at once that a worker is gone."""

    def _submit(self, op: Op[Any]) -> None:
        self._running().hand_over(op)

    # -- adding

    def _add_op(self, jobs: Sequence[Job], capacity: int | None) -> Op[Sequence[Added]]:
        """Each job is stored or not by itself; who is told of a failure is told which."""
        self._running()
        model = check_jobs(jobs)
        if capacity is not None:
            raise Unsupported(f"{self.url}: a limit for a queue, {NEEDS_RECORDS}")
        check(jobs[:1] if type(jobs) is Alike else jobs, self.longest, self.clock.now())

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

    def _claim_op(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
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

    def _settle_op(self, verdicts: Sequence[Verdict]) -> Op[Sequence[Lost]]:
        self._running()
        for verdict in verdicts:
            check(verdict.then, self.longest, self.clock.now())
            check_delay(verdict.claim.job.id, verdict.delay)
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
                await waiter.sleep(self.clock, timeout)
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

    async def _find(self, **asked: Any) -> Sequence[Job]:
        self._running()
        raise Unsupported(f"{self.url}: looking for jobs, {NEEDS_RECORDS}")
