"""Claims jobs as they are needed: for the free slots, and a little ahead of fast ones."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from outlast.errors import StoreUnavailable
from outlast.store import Feature, Prompt
from outlast.worker.side import Complaint

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from outlast.clock import Clock
    from outlast.job import Claim
    from outlast.store import Store
    from outlast.worker.crew import Crew
    from outlast.worker.settle import Settling

__all__ = ["MAX_AHEAD", "MAX_UNSETTLED", "Claims", "Pace"]

log = logging.getLogger(__name__)

AHEAD = 0.15
"""How many seconds of work are claimed ahead, by the measured pace."""
MAX_AHEAD = 700
LATE, EARLY = 4, 2
"""More is claimed when a quarter of what may be ahead is left. Claims made earlier are smaller, and
each costs a transaction, during which the loop often has nothing to do. From a store where claims
don't wait half is left: its server works while that is run, and else they would take turns."""
MAX_UNSETTLED = 4000
"""No more is claimed while so many verdicts wait to be stored."""
POLL, PUSHED_POLL = 1.0, 5.0
"""How long to wait for news at most, in seconds: from stores that don't push, and that do."""


class Pace:
    """Jobs ended a second, as a moving average over about a tenth of a second."""

    __slots__ = ("_at", "_ended", "ahead", "rate")

    def __init__(self, now: float) -> None:
        self.rate = 0.0
        self.ahead = 0
        """How many jobs to claim beyond the free slots: none while jobs are slow."""
        self._at = now
        self._ended = 0

    def measure(self, now: float, ended: int) -> None:
        """``ended`` counts all jobs so far."""
        passed = now - self._at
        if passed < 0.005:
            return
        self.rate += ((ended - self._ended) / passed - self.rate) * min(1.0, passed * 10)
        self.ahead = min(MAX_AHEAD, int(self.rate * AHEAD))
        self._at, self._ended = now, ended


class Claims:
    """The loop that asks the store for work."""

    def __init__(
        self,
        store: Store,
        crew: Crew,
        settling: Settling,
        clock: Clock,
        *,
        queues: Sequence[str],
        tasks: Collection[str],
        lease: float,
        worker: str,
    ) -> None:
        self.pace = Pace(clock.monotonic())
        self.struck: Callable[[StoreUnavailable], object] = _nothing
        """Told when the store can't be reached."""
        self.reached: Callable[[], object] = _nothing
        """Told when it can be reached again."""
        self._complaint = Complaint(clock)
        self._store = store
        self._crew = crew
        self._settling = settling
        self._clock = clock
        self._queues = queues
        self._tasks = tasks
        self._names: Sequence[str] = ()
        self._lease = lease
        self._worker = worker
        self._poll = PUSHED_POLL if store.features & Feature.PUSH else POLL
        self._prompt = cast("Prompt", store) if store.features & Feature.PROMPT else None
        self._late = EARLY if self._prompt is None else LATE
        self._enough: asyncio.Future[None] | None = None
        self._stopped = False
        self._asleep: asyncio.Future[None] | None = None
        self._demand: asyncio.Future[None] | None = None
        self._fruitless = 0
        self._failing = False
        crew.call_claims = self.call

    def call(self) -> None:
        """There may be room for more."""
        if self._demand is not None and not self._demand.done():
            self._demand.set_result(None)

    def stop(self) -> None:
        """End the loop. A claim in flight is waited for, since its jobs would hang otherwise."""
        self._stopped = True
        for waiting in (self._asleep, self._enough):
            if waiting is not None:
                waiting.cancel()

    async def loop(self) -> None:
        """Claim until stopped."""
        pause = 0.02
        while not self._stopped:
            want = self._want()
            if want <= 0:
                self._demand = asyncio.get_running_loop().create_future()
                await self._sleep(self._demand)
                self._demand = None
                continue
            if len(self._names) != len(self._tasks):
                # Also later: a program may import a module of tasks when it first needs it.
                self._names = sorted(self._tasks)
            try:
                claims = await self._claim(want)
                if self._failing:
                    self._failing = False
                    self._complaint.over()
                    self.reached()
                pause = 0.02
            except StoreUnavailable as error:
                self._failing = True
                self.struck(error)
                if self._complaint.is_due(error):
                    log.warning("no claims, the store can't be reached: %s", error)
                await self._sleep(asyncio.ensure_future(self._clock.sleep(pause)))
                pause = min(pause * 2, 1.0)
                continue
            if claims:
                self._fruitless = 0
                self._crew.accept(claims)
                if len(claims) < want:
                    # The next claim is one that waits: what has come starts before it is made.
                    await self._clock.sleep(0)
            if len(claims) < want and self._prompt is None and not self._stopped:
                await self._wait()

    def _is_stopped(self) -> bool:
        return self._stopped

    def _want(self) -> int:
        """How many to claim now. Sets from when on we want to be called again."""
        crew = self._crew
        if crew.exclusive or len(self._settling.waiting) > MAX_UNSETTLED:
            crew.low = MAX_AHEAD
            return 0
        self.pace.measure(self._clock.monotonic(), crew.ended)
        ahead = self.pace.ahead
        free = crew.slots - len(crew.runs) - crew.waiting
        crew.low = ahead // self._late
        if free > 0:
            return free + ahead
        return ahead + free if -free <= crew.low else 0

    async def _claim(self, want: int) -> Sequence[Claim]:
        """What there is, and is still ours when it comes here."""
        began = self._clock.monotonic()
        claims = await self._ask(want)
        late = self._clock.monotonic() - began > self._lease / 2
        return await self._still_ours(claims) if late and claims else claims

    async def _ask(self, want: int) -> Sequence[Claim]:
        """From a store that can, as soon as there is something."""
        wanted = (self._queues, self._names, want, self._lease, self._worker)
        if self._prompt is None or self._failing:
            # One that waits for news would not tell at once that the store is there again.
            return await self._store.claim(*wanted)
        self._enough = asyncio.get_running_loop().create_future()
        began = self._clock.monotonic()
        try:
            claims = await self._prompt.claim_next(*wanted, self._poll, self._enough)
        finally:
            self._enough = None
        if not claims:
            await self._slow_down(began)
        return claims

    async def _still_ours(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Of claims that came late, those that nobody else has taken over meanwhile.

        They may have been made long ago, behind a task that blocked the loop. Nobody renews what
        has not come here yet, and rightly: others can run it sooner.
        """
        try:
            lost = await self._store.renew(claims, self._lease)
        except StoreUnavailable as error:
            log.debug("claims that came late are taken for ours: %s", error)
            return claims
        gone = {id(refused.claim) for refused in lost if refused.reason == "lost"}
        return [claim for claim in claims if id(claim) not in gone]

    async def _wait(self) -> None:
        """Until there is news."""
        began = self._clock.monotonic()
        try:
            await self._sleep(asyncio.ensure_future(self._store.wait(self._queues, self._poll)))
        except StoreUnavailable as error:
            if self._complaint.is_due(error):
                log.warning("no news, the store can't be reached: %s", error)
        await self._slow_down(began)

    async def _slow_down(self, began: float) -> None:
        """A wait that comes back at once with nothing, again and again, is made longer."""
        if self._clock.monotonic() - began > 0.002:
            self._fruitless = 0
            return
        self._fruitless += 1
        if self._fruitless > 2:
            pause = min(0.1, 0.0005 * 2**self._fruitless)
            await self._sleep(asyncio.ensure_future(self._clock.sleep(pause)))

    async def _sleep(self, until: asyncio.Future[None]) -> None:
        """Wait for a future of our own, which ``stop`` may cancel."""
        if self._stopped:
            until.cancel()
            return
        self._asleep = until
        try:
            await until
        except asyncio.CancelledError:
            if not (self._is_stopped() and until.cancelled()):
                raise
        finally:
            self._asleep = None
            until.cancel()


def _nothing(*_: object) -> None:
    """Until someone wants to be told."""
