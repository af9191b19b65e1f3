"""Stores the verdicts: whatever waits goes in one write, and the next batch gathers meanwhile."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from outlast.errors import StoreError, StoreUnavailable
from outlast.hooks import tell
from outlast.job import Failure, dead
from outlast.worker.side import Complaint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.clock import Clock
    from outlast.hooks import Hooks
    from outlast.job import Job, Lost, Verdict
    from outlast.store import Store

__all__ = ["Settling"]

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.02
BATCH = 1000
"""At most this many verdicts in one write, so that no write holds the others up for long."""


class Settling:
    """One write is in flight at a time. While the store can't be reached, it is tried again.

    That goes on as long as the worker does: receipts keep a late verdict from doing harm, and if
    nobody took the job meanwhile it still counts. What the store refuses is logged, no more.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        hooks: Sequence[Hooks],
    ) -> None:
        self.waiting: list[Verdict] = []
        self.settled: Callable[[Sequence[Verdict]], None] = _nothing
        """Told of each batch that is stored, refused verdicts included."""
        self.struck: Callable[[StoreUnavailable], object] = _nothing
        """Told when the store can't be reached."""
        self.reached: Callable[[], object] = _nothing
        """Told when it can be reached again."""
        self._complaint = Complaint(clock)
        self._store = store
        self._clock = clock
        self._hooks = hooks
        self._idle: asyncio.Future[None] | None = None
        self._closed = False

    def put(self, verdict: Verdict) -> None:
        """Have a verdict stored soon."""
        if verdict.kind == "dead":
            _warn(verdict)
        self.waiting.append(verdict)
        self._wake()

    def close(self) -> None:
        """Let :meth:`loop` end once everything is stored."""
        self._closed = True
        self._wake()

    async def loop(self) -> None:
        """Store verdicts until closed. Cancelled, the batch in flight is stored or it is not."""
        while True:
            if self.waiting:
                batch, self.waiting = self.waiting[:BATCH], self.waiting[BATCH:]
                await self._apply(batch)
            elif self._closed:
                return
            else:
                self._idle = asyncio.get_running_loop().create_future()
                await self._idle

    def _wake(self) -> None:
        idle = self._idle
        if idle is not None and not idle.done():
            idle.set_result(None)

    async def _apply(self, batch: Sequence[Verdict]) -> None:
        pause = FIRST_PAUSE
        lost: Sequence[Lost] = ()
        while True:
            try:
                lost = await self._store.settle(batch)
                break
            except StoreUnavailable as error:
                self.struck(error)
                if self._complaint.is_due(error):
                    log.warning(
                        "%d verdicts wait, the store can't be reached: %s", len(batch), error
                    )
                await self._clock.sleep(pause)
                pause = min(pause * 2, 1.0)
            except StoreError:
                raise
            except Exception as error:
                await self._one_by_one(batch, error)
                return
        if pause > FIRST_PAUSE:
            self._complaint.over()
            self.reached()
        self.settled(batch)
        for refused in lost:
            self._tell_lost(refused.claim.job, again=pause > FIRST_PAUSE)

    def _tell_lost(self, job: Job, *, again: bool) -> None:
        if again:
            # The first try may have reached the store though its answer did not reach us.
            log.info("job %s of task %s was settled before, or by another worker", job.id, job.task)
            return
        log.warning(
            "job %s of task %s belongs to another worker by now: what this run did is not recorded",
            job.id, job.task, extra={"job": job.id, "task": job.task},
        )  # fmt: skip
        if self._hooks:
            tell(self._hooks, "job_lost", job)

    async def _one_by_one(self, batch: Sequence[Verdict], error: Exception) -> None:
        """One verdict spoils the batch: find it, and bury its job rather than loop for ever."""
        if len(batch) > 1:
            for verdict in batch:
                await self._apply([verdict])
            return
        (verdict,) = batch
        job = verdict.claim.job
        if verdict.failure is not None and verdict.failure.type == _UNSTORABLE:
            raise error
        log.error("job %s of task %s: the store can't take its outcome", job.id, job.task,
                  exc_info=error)  # fmt: skip
        message = f"the run ended as {verdict.kind}, which could not be stored: {error!r:.500}"
        await self._apply(
            [dead(verdict.claim, Failure(kind="error", type=_UNSTORABLE, message=message))]
        )


_UNSTORABLE = "UnstorableOutcome"


def _nothing(*_: object) -> None:
    """Until someone wants to be told."""


def _warn(verdict: Verdict) -> None:
    """A job that is dead waits for somebody, who should hear of it."""
    job, failure = verdict.claim.job, verdict.failure
    why = "" if failure is None else failure.line
    log.warning(
        "job %s of task %s is dead (%.300s)",
        job.id,
        job.task,
        why,
        extra={"job": job.id, "task": job.task, "queue": job.queue, "attempt": job.attempt},
    )
