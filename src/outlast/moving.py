"""Moves every job of one store into another: nothing lost, nothing doubled, killed anywhere.

First the store that is left gives nothing out any more, and what runs there may end. Then nothing
of it can be added or changed: it is copied in bites, and each bite is written in the other store in
one transaction with the place up to which it has come, so that no job is ever taken in twice, even
if it has been run and deleted there meanwhile. A job can only be claimed where it has arrived. When
all have, the ones left behind are deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from outlast import lifeline
from outlast.access import ledger_of
from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.errors import MoveRefused, StoreError, StoreMoved, Unsupported
from outlast.movable import Departure, Movable
from outlast.store import offers

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.store import Store

__all__ = ["SILENT", "Moved", "left_behind", "move"]

BITE = 1000
"""Jobs in one transaction, at most."""
SILENT = 30.0
"""A worker that was not seen for so many seconds is not counted as alive."""
LOOK = 0.05
"""Seconds between two looks whether what runs has ended."""
PATIENCE = 16.0
"""Seconds that workers get to renew their leases before these are taken for run out."""


class Moved(Struct, kw_only=True):
    """What was moved so far. ``total`` is how many jobs there were when this run began."""

    stage: Literal["draining", "moving", "deleting", "done"] = "draining"
    resumed: bool = False
    """A run before this one had begun."""
    total: int = 0
    running: int = 0
    jobs: int = 0
    keys: int = 0
    events: int = 0
    known: int = 0
    """Jobs that the other store had already; they stayed there as they were."""
    keyless: int = 0
    """Live jobs that came without their idempotency key: another job holds it there."""
    deleted: int = 0


async def move(
    source: Store,
    target: Store,
    *,
    drain: bool = False,
    tell: Callable[[Moved], None] = lambda _: None,
    clock: Clock | None = None,
    chance: Chance | None = None,
    bite: int = BITE,
) -> Moved:
    """Move all jobs of an open store into another one, or go on with that.

    Raises ``MoveRefused`` if workers are alive on ``source``, unless they may ``drain``: then what
    they run is waited for, and they get nothing more. Cancelled while it waits, nothing is changed.
    """
    mover = _Mover(source, target, tell, clock or SystemClock(), bite)
    mark = await mover.begin(chance or SystemChance(), drain=drain)
    if mark.stage == "draining":
        mark = await mover.drain(mark)
    if mark.stage == "sealed":
        mark = await mover.copy(mark)
    await mover.clear(mark)
    return mover.moved


async def left_behind(store: Store) -> int:
    """How many live jobs an open store holds."""
    return sum(line.depth.live for line in await ledger_of(store).lines())


class _Mover:
    """One run of a move."""

    def __init__(
        self,
        source: Store,
        target: Store,
        tell: Callable[[Moved], None],
        clock: Clock,
        bite: int,
    ) -> None:
        for store in (source, target):
            if not offers(store, Movable):
                raise Unsupported(
                    f"jobs can't be moved from or to {store.url}: that goes with sqlite://,"
                    " postgresql:// and redis://"
                )
        self.source, self.target = source, target
        self.out, self.into = cast("Movable", source), cast("Movable", target)
        self.moved = Moved()
        self._tell = tell
        self._clock = clock
        self._bite = bite

    async def begin(self, chance: Chance, *, drain: bool) -> Departure:
        """The mark of the move that has begun, by this run or one before."""
        mark = await self.out.departure()
        lines = await ledger_of(self.source).lines()
        self.moved.total = sum(
            line.depth.live + line.depth.done + line.depth.dead + line.depth.cancelled
            for line in lines
        )
        if mark is not None and mark.stage == "moved":
            self.moved.resumed = True
            return mark
        if mark is not None and await self.into.arrived(mark.id) is None:
            raise MoveRefused(
                f"the jobs of {self.source.url} are on their way to {mark.to} already: finish that"
                f" first, by: outlast move {self.source.url} {mark.to}"
            )
        if mark is None or mark.stage == "draining":
            await self._check_workers(drain=drain)
        if mark is not None:
            self.moved.resumed = True
            return mark
        await self._reopen_target()
        mark = Departure(id=chance.token().hex(), to=self.target.url)
        await self.into.expect(mark.id)
        if await self.out.arrived(mark.id) is not None:
            await self.into.unexpect(mark.id)
            raise MoveRefused(f"{self.source.url} and {self.target.url} are the same store")
        await self.out.depart(mark, None)
        return mark

    async def drain(self, mark: Departure) -> Departure:
        """Wait until nothing runs; then nothing can be added or changed any more."""
        sealed = replace(mark, stage="sealed")
        began = self._clock.monotonic()
        try:
            while running := await self.out.depart(sealed, mark):
                self.moved.running = running
                self._tell(self.moved)
                await self._bury()
                if self._clock.monotonic() - began > PATIENCE:
                    await self.source.recover(self._bite)
                await self._clock.sleep(LOOK)
        except BaseException:
            # Nothing has gone yet: let it be as if nobody had come, if that can be had.
            with contextlib.suppress(StoreError):
                await asyncio.shield(self._give_up(mark))
            raise
        self.moved.running = 0
        return sealed

    async def copy(self, mark: Departure) -> Departure:
        """Copy bite after bite; where the move stands is for the other store to say."""
        self._enter("moving")
        place = await self.into.arrived(mark.id)
        if place is None:
            raise StoreMoved(f"{self.target.url} knows nothing of this move any more")
        while (crate := await self.out.pack(place, self._bite)) is not None:
            arrival = await self.into.unpack(mark.id, crate)
            place = arrival.place
            if place == crate.upto:
                moved = self.moved
                moved.jobs += len(crate.jobs)
                moved.keys += len(crate.keys)
                moved.events += len(crate.events)
                moved.known += arrival.known
                moved.keyless += arrival.keyless
                self._tell(moved)
        gone = replace(mark, stage="moved")
        await self.out.depart(gone, mark)
        return gone

    async def clear(self, mark: Departure) -> None:
        """Everything has arrived: delete what is left, and forget how far it had come."""
        self._enter("deleting")
        while deleted := await self.out.discard(self._bite):
            self.moved.deleted += deleted
            self._tell(self.moved)
        await self.into.unexpect(mark.id)
        self._enter("done")

    def _enter(self, stage: Literal["moving", "deleting", "done"]) -> None:
        self.moved.stage = stage
        self._tell(self.moved)

    async def _give_up(self, mark: Departure) -> None:
        if await self.out.stay(mark):
            await self.into.unexpect(mark.id)

    async def _check_workers(self, *, drain: bool) -> None:
        await self._bury()
        now = self._clock.now()
        workers = await ledger_of(self.source).workers()
        alive = [worker for worker in workers if now - worker.seen_at <= SILENT]
        if alive and not drain:
            names = ", ".join(f"{it.host} pid {it.pid}" for it in alive[:5])
            raise MoveRefused(
                f"{len(alive)} worker{'s are' if len(alive) > 1 else ' is'} alive on"
                f" {self.source.url} ({names}): stop them and try again, or say --drain, which lets"
                " them end what they run and gives them nothing more; nothing was changed"
            )

    async def _bury(self) -> None:
        """What dead workers of this host held goes back at once."""
        folder = self.source.lifelines
        if folder is not None:
            for worker, death in lifeline.dead(folder):
                await self.source.recover_worker(worker, death)
                lifeline.forget(folder, worker)

    async def _reopen_target(self) -> None:
        """A store that everything was once moved out of may take in jobs again."""
        mark = await self.into.departure()
        if mark is None:
            return
        if mark.stage != "moved":
            raise MoveRefused(
                f"the jobs of {self.target.url} are themselves on their way to {mark.to}: finish"
                f" that first, by: outlast move {self.target.url} {mark.to}"
            )
        while await self.into.discard(self._bite):
            pass
        await self.into.stay(mark)
