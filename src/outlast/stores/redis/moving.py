"""Moving out and moving in: the mark on a namespace that is left, and bites between stores."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.errors import StoreMoved
from outlast.movable import BYTES, Arrival, Crate, Departure, HeldKey, Parcel, SentEvent
from outlast.stores.redis.op import Op, listed_jobs
from outlast.stores.redis.rows import STATES, body_of, dump, job_from
from outlast.stores.redis.steps import own_of, step_from
from outlast.stores.surface import Surface

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Job, Step
    from outlast.stores.redis.op import Arg

__all__ = ["Moved"]

_LETTERS = {status: letter for letter, status in STATES.items()}
_MOMENT = Struct(">d")
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


class Moved(Surface):
    """The ``Movable`` part of the store."""

    async def departure(self) -> Departure | None:
        return await self._do(Op("moving", ["mark"], _mark_from))

    async def depart(self, mark: Departure, before: Departure | None) -> int:
        stood = b"" if before is None else dump(before)
        return await self._do(Op("moving", ["depart", mark.stage, stood, dump(mark)], _running))

    async def stay(self, mark: Departure) -> bool:
        return await self._do(Op("moving", ["stay", dump(mark)], bool))

    async def pack(self, after: str, limit: int) -> Crate | None:
        kind, place = ("all", "") if not after else after.split()
        args: list[Arg] = ["pack", kind, place, limit, BYTES]
        return await self._do(Op("moving", args, lambda raw: _crate(after, kind, raw)))

    async def discard(self, limit: int) -> int:
        many, more = 0, True
        while more and not many:
            op: Op[tuple[int, bool]] = Op(
                "moving", ["discard", limit], lambda raw: (raw[0], raw[1] == 1)
            )
            many, more = await self._do(op)
        return many

    async def expect(self, move: str) -> None:
        done: Op[None] = Op("moving", ["expect", move])
        await self._do(done)

    async def arrived(self, move: str) -> str | None:
        place: Op[str | None] = Op(
            "moving", ["arrived", move], lambda raw: None if raw is None else raw.decode()
        )
        return await self._do(place)

    async def unpack(self, move: str, crate: Crate) -> Arrival:
        return await self._do(Op("moving", _unpack_args(move, crate), _arrival))

    async def unexpect(self, move: str) -> None:
        done: Op[None] = Op("moving", ["unexpect", move])
        await self._do(done)


def _mark_from(raw: bytes | None) -> Departure | None:
    return None if raw is None else msgspec.json.decode(raw, type=Departure)


def _running(raw: Any) -> int:
    if raw == b"!":
        raise StoreMoved("somebody else moves the jobs of this store: look again")
    return int(raw)


def _arrival(raw: Sequence[Any]) -> Arrival:
    if raw[0] == b"!":
        raise StoreMoved("this move has ended, or was given up; nothing was stored")
    return Arrival(place=raw[0].decode(), known=raw[1], keyless=raw[2])


# -- out


def _crate(after: str, kind: str, raw: Sequence[Any]) -> Crate | None:
    """First what holds for the whole store, then events, then keys, then jobs by their place."""
    if kind == "all":
        return Crate(after=after, upto="events 0", pauses=sorted(each.decode() for each in raw))
    if kind == "jobs":
        return _crate_of_jobs(after, raw)
    cursor, flat = raw[0].decode(), raw[1]
    pairs = [(flat[n].decode(), flat[n + 1]) for n in range(0, len(flat), 2)]
    if kind == "events":
        upto = "keys 0" if cursor == "0" else f"events {cursor}"
        return Crate(after=after, upto=upto, events=[_event(*pair) for pair in pairs])
    upto = "jobs 0" if cursor == "0" else f"keys {cursor}"
    return Crate(after=after, upto=upto, keys=[_key(*pair) for pair in pairs])


def _event(name: str, stored: bytes) -> SentEvent:
    [until] = _MOMENT.unpack_from(stored)
    return SentEvent(name, stored[24:], until)


def _key(field: str, stored: bytes) -> HeldKey:
    task, _, key = field.partition("\0")
    entry = _unpack(stored)
    until = entry.get("u")
    return HeldKey(
        task or None,
        key,
        entry["i"],
        bytes.fromhex(entry["d"]),
        None if until is None else float(until),
    )


def _crate_of_jobs(after: str, raw: Sequence[Any]) -> Crate | None:
    if len(raw) == 2:
        return None
    now, fence = float(raw[0]), int(raw[1])
    parcels: list[Parcel] = []
    for n in range(2, len(raw), 5):
        _, id_, stored, state, steps = raw[n : n + 5]
        parcels.append(Parcel(job_from(id_, stored, state), _steps(steps, now)))
    return Crate(after=after, upto=f"jobs {raw[-5].decode()}", jobs=parcels, fence=fence)


def _steps(raw: Sequence[Any], now: float) -> list[Step]:
    return [step_from(raw[n].decode(), raw[n + 1], now) for n in range(0, len(raw), 2)]


# -- in


def _unpack_args(move: str, crate: Crate) -> list[Arg]:
    args: list[Arg] = ["unpack", move, crate.after, crate.upto, crate.fence]
    args += (len(crate.pauses), *crate.pauses, len(crate.events))
    for event in crate.events:
        args += (event.name, repr(event.until), event.payload)
    args.append(len(crate.keys))
    for held in crate.keys:
        until = "" if held.until is None else repr(held.until)
        args += (f"{held.task or ''}\0{held.key}", held.job, held.digest.hex(), until)
    args.append(len(crate.jobs))
    for parcel in crate.jobs:
        args += _parcel_args(parcel)
    return [*args, *listed_jobs(crate.adds)]


def _parcel_args(parcel: Parcel) -> list[Arg]:
    job = parcel.job
    args: list[Arg] = [job.id, _pack(_header(job)), _pack(_state(job)), body_of(job)]
    args += (job.result or b"", len(parcel.steps))
    for step in parcel.steps:
        waits = (step.event or "") if step.result is None else ""
        left = "" if step.left is None else repr(step.left)
        args += (step.name, left, waits, own_of(step))
    return args


def _header(job: Job) -> Sequence[Any]:
    return (
        0,
        job.queue if job.task is None else f"{job.queue}/{job.task}",
        job.created_at or 0.0,
        -1 if job.keep is None else job.keep,
        -1 if job.max_crashes is None else job.max_crashes,
        job.priority,
        job.rank.hex(),
        False if job.run_at is None else job.run_at,
        False if job.expires_at is None else job.expires_at,
        job.lane or False,
        job.key or False,
        job.keep_key,
        job.key_queued,
        job.digest.hex(),
    )


def _state(job: Job) -> dict[str, Any]:
    """What ``base.lua`` calls the state of a job that isn't running."""
    others = {
        "e": job.finished_at or job.created_at if job.status.ended else None,
        "f": job.failures,
        "c": job.crashes,
        "u": job.suspect,
        "w": job.worker,
        "b": job.started_at,
        "F": None if job.failure is None else dump(job.failure).decode(),
        "G": None if job.progress is None else dump(job.progress).decode(),
        "R": job.result is not None,
    }
    known = {letter: value for letter, value in others.items() if value}
    return {"st": _LETTERS[job.status], "a": job.attempt, **known}
