"""Moving out and moving in: the mark on a room that is left, and bites of jobs between stores."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from outlast.errors import StoreMoved
from outlast.movable import BYTES, Arrival, Crate, Departure, HeldKey, Parcel
from outlast.stores.memory.room import STARTS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from outlast.clock import Clock
    from outlast.job import Job
    from outlast.stores.memory.order import Row
    from outlast.stores.memory.room import Room

__all__ = ["Moved"]


class Moved:
    """The ``Movable`` part of the store. Places are counts of jobs that have gone before."""

    _clock: Clock

    if TYPE_CHECKING:

        def _entered(self, *, changing: bool = False) -> AbstractContextManager[Room]: ...

    async def departure(self) -> Departure | None:
        with self._entered() as room:
            return room.departure

    async def depart(self, mark: Departure, before: Departure | None) -> int:
        with self._entered() as room:
            if room.departure not in (before, mark):
                raise StoreMoved("somebody else moves the jobs of this store: look again")
            running = sum(map(len, room.table.running.values()))
            if not running or mark.stage == "draining":
                room.departure = mark
                room.leaving = list(room.table.rows.values())
            return running

    async def stay(self, mark: Departure) -> bool:
        with self._entered() as room:
            if room.departure != mark:
                return False
            room.departure = None
            for queue in room.table.queues:
                room.bell.ring(("news", queue))
            return True

    async def pack(self, after: str, limit: int) -> Crate | None:
        with self._entered() as room:
            if not after:
                return Crate(
                    after=after,
                    upto="0",
                    keys=_keys(room),
                    events=room.deeds.sent(),
                    pauses=sorted(room.table.paused),
                )
            now, first = self._clock.now(), int(after)
            parcels: list[Parcel] = []
            size = 0
            for row in islice(room.leaving, first, first + limit):
                parcels.append(Parcel(row.job, room.deeds.recall(row.job.id, now)))
                size += len(row.job.payload) + len(row.job.result or b"")
                if size > BYTES:
                    break
            if not parcels:
                return None
            fence = (room.table.epoch + 1) * STARTS
            return Crate(after=after, upto=str(first + len(parcels)), jobs=parcels, fence=fence)

    async def discard(self, limit: int) -> int:
        with self._entered() as room:
            room.leaving = []
            rows: list[Row] = list(islice(room.table.rows.values(), limit))
            for row in rows:
                room.table.remove(row)
            if not rows:
                room.table.keys.clear()
                room.deeds.clear()
            return len(rows)

    async def expect(self, move: str) -> None:
        with self._entered() as room:
            room.arriving.setdefault(move, "")

    async def arrived(self, move: str) -> str | None:
        with self._entered() as room:
            return room.arriving.get(move)

    async def unpack(self, move: str, crate: Crate) -> Arrival:
        with self._entered() as room:
            place = room.arriving.get(move)
            if place is None:
                raise StoreMoved("this move has ended, or was given up; nothing was stored")
            if place != crate.after:
                return Arrival(place=place)
            room.arriving[move] = crate.upto
            return _unpack(room, crate, self._clock.now())

    async def unexpect(self, move: str) -> None:
        with self._entered() as room:
            room.arriving.pop(move, None)


def _keys(room: Room) -> list[HeldKey]:
    return [
        HeldKey(task, key, entry.id, entry.digest, entry.until)
        for (task, key), entry in room.table.keys.items()
    ]


def _unpack(room: Room, crate: Crate, now: float) -> Arrival:
    table, deeds = room.table, room.deeds
    known = keyless = 0
    table.epoch = max(table.epoch, crate.fence // STARTS + 1 if crate.fence else 0)
    table.paused.update(crate.pauses)
    for held in crate.keys:
        if table.key(held.task, held.key, now) is None:
            table.hold_key((held.task, held.key), held.job, held.digest, held.until)
    for event in crate.events:
        deeds.take_in(event)
    room.follow(crate.adds, now)
    for parcel in crate.jobs:
        job = parcel.job
        if job.id in table.rows:
            known += 1
            continue
        if not _has_its_key(room, job, now):
            job = replace(job, key=None)
            keyless += 1
        waits = [s.event for s in parcel.steps if s.event is not None and s.result is None]
        if any(deeds.event(event, now) is not None for event in waits):
            job = replace(job, run_at=None)
        table.take_in(job, now)
        for step in parcel.steps:
            deeds.remember(job.id, replace(step, delay=step.left), now)
    return Arrival(place=crate.upto, known=known, keyless=keyless)


def _has_its_key(room: Room, job: Job, now: float) -> bool:
    """Whether a job may keep its key: the jobs here that are live hold theirs, but for some."""
    if job.key is None or job.status.ended or (job.key_queued and job.attempt):
        return True
    entry = room.table.key(job.task, job.key, now)
    return entry is not None and entry.id == job.id
