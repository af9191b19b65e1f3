"""The upkeep every worker does for all: recovers, prunes, counts what nobody can run, signs in."""

from __future__ import annotations

import logging
import os
import socket
from functools import cache
from typing import TYPE_CHECKING, cast

from outlast.lifeline import dead, forget
from outlast.movable import Movable
from outlast.store import Feature, Ledger, WorkerInfo, offers

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from outlast.clock import Clock
    from outlast.job import Death
    from outlast.store import Store
    from outlast.worker.crew import Crew
    from outlast.worker.side import Outage

__all__ = ["Upkeep"]

log = logging.getLogger(__name__)

SCAN = 0.5
"""Seconds between two looks for dead workers on this host."""
PRUNE, PRUNE_MORE, BITE = 5.0, 0.05, 200
CENSUS = 60.0
SIGN_IN, SIGN_AGAIN = 10.0, 1.0
"""Seconds between two signs of a worker that does what it did, and of one that doesn't."""
RECOVER = 200
"""At most so many expired leases in one go."""


class Upkeep:
    """Rounds for the side loop. All of them may be done by many workers at once."""

    def __init__(
        self,
        crew: Crew,
        clock: Clock,
        outage: Outage,
        *,
        worker: str,
        queues: Sequence[str],
        tasks: Collection[str],
        lease: float,
    ) -> None:
        self._crew = crew
        self._clock = clock
        self._outage = outage
        self._worker = worker
        self._queues = queues
        self._tasks = tasks
        self._recover_every = max(0.05, min(1.0, lease / 15))
        self._started_at = clock.now()
        self._signed: tuple[int, int] | None = None
        self._sign_at = clock.monotonic()

    async def bury(self, store: Store) -> float:
        """Take over at once what dead workers of this host held."""
        if store.lifelines is not None:
            for worker, death in dead(store.lifelines):
                count = await store.recover_worker(worker, death)
                forget(store.lifelines, worker)
                log.log(
                    logging.WARNING if count else logging.INFO,
                    "worker %s died (%s): %s",
                    worker, _how(death), f"{count} of its jobs are taken over" if count
                    else "what it held is taken over already",
                )  # fmt: skip
        return SCAN

    async def recover(self, store: Store) -> float:
        """Put back claims whose lease ran out, unless the store itself was away.

        It is asked when no lease is judged as well: calls that hang, at a lock say, tell no one of
        an outage until they fail, but when this one comes back late, nobody could renew meanwhile.
        """
        judged = self._outage.over(self._recover_every)
        count = await store.recover(RECOVER if judged else 0)
        if count:
            log.warning("%d leases ran out: their jobs are queued again, or buried", count)
        return self._recover_every

    async def prune(self, store: Store) -> float:
        """Delete what is past its time, in small bites."""
        count = await store.prune(BITE)
        return PRUNE_MORE if count >= BITE else PRUNE

    async def census(self, store: Store) -> float:
        """Tell once a minute which jobs wait for code that this worker doesn't have.

        And if it is at the wrong place, since all jobs were moved to another.
        """
        if offers(store, Movable) and (mark := await store.departure()) is not None:
            log.warning(
                "the jobs of %s are on their way to %s: this worker gets nothing more; stop it, "
                "and start it there", store.url, mark.to,
            )  # fmt: skip
        if store.features & Feature.INSPECT:
            for line in await cast("Ledger", store).lines():
                if line.queue in self._queues and line.task not in self._tasks:
                    self._tell(line.queue, line.task, line.depth.queued)
        return CENSUS

    async def sign_in(self, store: Store) -> float:
        """Say that this worker is here and what it does."""
        does = (len(self._crew.runs), len(self._tasks))
        now = self._clock.monotonic()
        if store.features & Feature.INSPECT and (does != self._signed or now >= self._sign_at):
            await cast("Ledger", store).beat(
                WorkerInfo(
                    id=self._worker,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    queues=tuple(self._queues),
                    tasks=tuple(self._tasks),
                    concurrency=self._crew.slots,
                    running=does[0],
                    started_at=self._started_at,
                    seen_at=self._clock.now(),
                    version=_version(),
                    library=getattr(store, "library", ""),
                )
            )
            self._signed, self._sign_at = does, now + SIGN_IN
        return SIGN_AGAIN

    async def leave(self, store: Store) -> None:
        """Say that this worker is gone, in order."""
        if store.features & Feature.INSPECT:
            await cast("Ledger", store).leave(self._worker)

    def _tell(self, queue: str, task: str | None, count: int) -> None:
        if task is not None and count:
            log.warning(
                "%d %s in queue %s: this worker doesn't have that task, and leaves %s to one "
                "that does",
                count, f"job of task {task} waits" if count == 1 else f"jobs of task {task} wait",
                queue, "it" if count == 1 else "them",
            )  # fmt: skip


def _how(death: Death) -> str:
    """What is known of it, in a few words."""
    said = [
        f"signal {death.signal}" if death.signal is not None else "",
        f"exit code {death.exit_code}" if death.exit_code is not None else "",
        death.message,
    ]
    return ", ".join(word for word in said if word) or "nobody knows how"


@cache
def _version() -> str:
    from importlib.metadata import version

    return version("outlast")
