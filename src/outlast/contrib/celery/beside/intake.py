"""Takes messages in: stored here first, acknowledged there afterwards. And tells of silent ends."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from outlast.access import ledger_of
from outlast.contrib.celery.beside.jobs import DELIVERY
from outlast.contrib.celery.beside.revoking import Revoking
from outlast.errors import EnqueueUncertain, OutlastError
from outlast.job import DAY, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.contrib.celery.beside.carrier import Broker, Taken
    from outlast.contrib.celery.beside.road import Road
    from outlast.job import Added, Job
    from outlast.store import Store

__all__ = ["Intake"]

log = logging.getLogger(__name__)

BATCH = 500
AHEAD = 2000
"""Jobs that wait here before more is taken in: what waits there, Celery's workers can have too."""
SOON, LATE = 0.01, 0.1
"""Seconds between two looks at an empty queue, soon after the last message and later."""
LAST = 5.0
"""Seconds that the end of a worker waits for the last messages to be stored and acknowledged."""
SWEEP = 2.0
PAGE = 100
PAGES = 10
WHOLE, SHARE = 30.0, 20
"""Seconds between two looks at all that ended badly; more, so that they take no more than a part in
so many of the time."""
PAST = 25 * DAY


class Intake:
    """The loop beside one worker."""

    def __init__(self, road: Road, broker: Broker) -> None:
        self._road = road
        self._broker = broker
        self._clock = road.app.clock
        self._stopping = self._resting = False
        self._task: asyncio.Task[None] | None = None
        self._looked: float | None = None
        self._counts: dict[str, tuple[int, int]] = {}
        self._changed: set[str] = set()
        self._whole_at = 0.0
        self._revoking = Revoking(road, broker)

    def start(self) -> None:
        self._revoking.start()
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Takes no more; what was taken is stored and acknowledged still."""
        self._stopping = True
        self._revoking.stop()
        if self._resting and self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """Return when that is so, or the broker or the store takes too long over it."""
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=LAST)

    async def _rest(self, seconds: float) -> None:
        """With nothing in our hands."""
        self._resting = True
        try:
            await self._clock.sleep(seconds)
        finally:
            self._resting = False

    async def _run(self) -> None:
        pause, swept = SOON, 0.0
        failures = 0
        while not self._stopping:
            try:
                if self._clock.monotonic() - swept >= SWEEP:
                    swept = self._clock.monotonic()
                    await self._sweep()
                if await self.turn():
                    pause = SOON
                    continue
                failures = 0
                pause = min(pause * 1.2, LATE)
                await self._rest(pause)
            except OutlastError as error:
                failures += 1
                log.warning("nothing comes in from Celery: %s", error)
                await self._rest(min(0.1 * 2.0 ** min(failures, 8), 10.0))
            except Exception:
                # A defect of ours must not end the intake without a word, nor turn at full speed.
                log.exception("nothing comes in from Celery")
                await self._rest(5.0)

    async def turn(self) -> int:
        """Take some messages in; how many."""
        store = self._road.app.store
        if not await self._has_room(store):
            return 0
        taken = await self._broker.take(self._road.queues, BATCH, self._left())
        if not taken:
            return 0
        try:
            await self._store(store, taken)
        except EnqueueUncertain:
            # It stays in our hands to the end, and whoever takes it then knows it by its id.
            raise
        except Exception:
            # Whatever it was: what is left over would be acknowledged along with the next.
            await self._broker.give_back(taken)
            raise
        await self._broker.settle(taken)
        return len(taken)

    def _left(self) -> float | None:
        """How old it must be what others left; None if somebody looked a moment ago."""
        now, limit = self._clock.monotonic(), self._road.take_over
        if self._looked is not None and now - self._looked < limit / 4:
            return None
        self._looked = now
        return limit

    async def _has_room(self, store: Store) -> bool:
        """Whether little enough waits here. What nobody here knows may wait for ever, uncounted."""
        mine = self._road.tasks
        lines = await ledger_of(store).lines()
        return sum(line.depth.ready for line in lines if line.task in mine) < AHEAD

    async def _store(self, store: Store, taken: Sequence[Taken]) -> None:
        jobs = [self._revoking.arriving(self._road.jobs.of(one)) for one in taken]
        added, repeated = await self._add(store, jobs)
        for one, job, answer in zip(taken, jobs, added, strict=True):
            if not answer.created:
                await self._again(store, one, job, repeated and not answer.conflict)

    async def _add(self, store: Store, jobs: Sequence[Job]) -> tuple[Sequence[Added], bool]:
        """Store these, and do it again while nobody knows whether they are. And whether it was."""
        unsure: EnqueueUncertain | None = None
        while True:
            try:
                return await store.add(jobs), unsure is not None
            except EnqueueUncertain as error:
                unsure = error
            except OutlastError:
                if unsure is None:
                    raise
            if self._stopping:
                raise unsure
            await self._clock.sleep(LATE)

    async def _again(self, store: Store, taken: Taken, job: Job, mine: bool) -> None:
        """The id is taken: by this very message, or by another call that was given the same.

        ``mine``: it is what we stored ourselves a moment ago, and were not told.
        """
        if taken.delivery is None:
            if taken.again or mine:
                return
            other = replace(job, id=self._road.other_id(job.id, None))
        else:
            (known,) = await ledger_of(store).get([job.id])
            if known is not None and known.headers.get(DELIVERY) == taken.delivery:
                return
            other = replace(job, id=self._road.other_id(job.id, taken.delivery))
        await self._add(store, [other])

    async def _sweep(self) -> None:
        """Tell of jobs that died with their worker, were cancelled, or expired."""
        store = self._road.app.store
        began = self._clock.monotonic()
        whole = began >= self._whole_at
        for line in self._road.lines:
            depth = await store.depth(line)
            counts = (depth.dead, depth.cancelled)
            if self._counts.get(line, (0, 0)) != counts:
                self._changed.add(line)
            elif not whole:
                continue
            # As many may have been deleted as have ended: the newest ones are looked at anyway.
            await self._look(store, line, whole and line in self._changed)
            self._counts[line] = counts
        if whole:
            now = self._clock.monotonic()
            self._whole_at = now + max(WHOLE, SHARE * (now - began))

    async def _look(self, store: Store, line: str, whole: bool) -> None:
        """The newest ones, which mostly are the news; now and then all, for one that is old."""
        last: str | None = None
        for page in itertools.count(1):
            found = await ledger_of(store).find(
                status=(Status.DEAD, Status.CANCELLED), queue=line, after=last, limit=PAGE
            )
            await self._tell(store, found)
            if len(found) < PAGE:
                self._changed.discard(line)
                return
            if not whole and page >= PAGES:
                return
            last = found[-1].id

    async def _tell(self, store: Store, found: Sequence[Job]) -> None:
        oldest = self._clock.now() - PAST
        ends = [
            end
            for job in found
            if (job.task or "").startswith("celery:") and (job.finished_at or 0.0) > oldest
            for end in self._road.ending_of(job)
        ]
        # Most were told when they ended.
        known = await ledger_of(store).get([end.id for end in ends]) if ends else ()
        news = [end for end, told in zip(ends, known, strict=True) if told is None]
        if news:
            await store.add(news)
