"""Settles a batch of verdicts: first every publish is confirmed, then everything is acknowledged.

A crash in between repeats a job, and never loses one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.errors import OutlastError, StoreUnavailable
from outlast.job import Lost
from outlast.stores.rabbitmq.held import claimed
from outlast.stores.rabbitmq.outbox import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Verdict
    from outlast.stores.rabbitmq.engine import Engine
    from outlast.stores.rabbitmq.held import Held
    from outlast.stores.rabbitmq.op import Op
    from outlast.stores.rabbitmq.outbox import Posting
    from outlast.stores.rabbitmq.work import Work

__all__ = ["Settling"]


class Settling:
    """Lives in the engine's thread."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._halfway: set[bytes] = set()
        """Receipts of verdicts that are done, in batches whose callers heard that they failed."""

    def begin(self, engine: Engine, op: Op[Sequence[Lost]], verdicts: Sequence[Verdict]) -> None:
        lost: list[Lost] = []
        mine: list[tuple[Verdict, Held]] = []
        seen: set[bytes] = set()
        many = 0
        for verdict in verdicts:
            receipt = verdict.claim.receipt
            if receipt in self._halfway:
                self._halfway.discard(receipt)
                continue
            held = claimed.get(receipt)
            known = held is not None and held.claim is not None and not held.settled
            if not known or held is None or receipt in seen:
                lost.append(Lost(verdict.claim, "lost"))
                continue
            seen.add(receipt)
            mine.append((verdict, held))
            many += len(verdict.then) + (verdict.kind not in ("done", "cancelled"))

        def confirmed(batch: Batch) -> None:
            engine.spawn(self._acknowledge(engine, op, mine, lost, batch))

        batch = Batch(many, confirmed)
        if not many:
            confirmed(batch)
            return
        postings: list[Posting] = []
        for verdict, held in mine:
            for job in verdict.then:
                posting = self._work.posting(job, batch)
                posting.mark = held
                postings.append(posting)
            if verdict.kind not in ("done", "cancelled"):
                postings.append(self._work.again(held, batch, verdict))
        for posting in postings:
            engine.outbox.send(posting)

    async def _acknowledge(
        self,
        engine: Engine,
        op: Op[Sequence[Lost]],
        mine: Sequence[tuple[Verdict, Held]],
        lost: list[Lost],
        batch: Batch,
    ) -> None:
        failed = {id(posting.mark) for posting, _, _ in batch.failures}
        done = [(verdict, held) for verdict, held in mine if id(held) not in failed]
        for verdict, held in done:
            if held.settled:  # the connection was lost meanwhile: somebody else has it
                lost.append(Lost(verdict.claim, "lost"))
        ours = [held for _, held in done if not held.settled]
        receipts = [held.claim.receipt for held in ours if held.claim is not None]
        engine.intake.acknowledge(ours)
        try:
            if batch.failures:
                error = batch.failures[0][1]
                raise (
                    StoreUnavailable(*error.args) if isinstance(error, StoreUnavailable) else error
                )
            if ours:
                await engine.intake.settled(ours)
            op.answer = lost
        except OutlastError as error:
            if batch.failures:
                self._halfway.update(receipts)
            op.error = error
        engine.answer(op)
