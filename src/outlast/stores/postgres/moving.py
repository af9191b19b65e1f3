"""Moving out and moving in: the mark on a schema that is left, and bites of jobs between stores.

The mark is a row and, so that no process of any version can get round it, triggers: they cost
nothing in a schema that nobody moves.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from outlast.errors import StoreMoved
from outlast.job import Job, Status, Step
from outlast.movable import BYTES, DAMAGED, Arrival, Crate, Departure, HeldKey, Parcel, SentEvent
from outlast.stores.news import WORK
from outlast.stores.postgres.adds import add_following
from outlast.stores.postgres.claims import STARTS
from outlast.stores.postgres.faults import MOVED
from outlast.stores.postgres.op import Op
from outlast.stores.postgres.rows import DAMAGE, ENDED, LIVE, dump, job_from, opts_of, shown
from outlast.stores.postgres.schema import CANCELLED, DEAD, DONE, READY, WAITING
from outlast.stores.postgres.steps import forget, sent
from outlast.stores.surface import Surface

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from outlast.stores.postgres.turn import Turn

__all__ = ["Moved"]

T = TypeVar("T")

_DEPARTURE = "departure"
_RUNNING = "SELECT count(*) FROM @jobs WHERE state = 3"
_NOTED = "SELECT value FROM @moves WHERE name = $1::text"
_LOCKED = f"{_NOTED} FOR UPDATE"
_NOTE = (
    "INSERT INTO @moves (name, value) VALUES ($1::text, $2::text)"
    " ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
_EXPECT = "INSERT INTO @moves (name, value) VALUES ($1::text, '') ON CONFLICT (name) DO NOTHING"
_STRIKE = "DELETE FROM @moves WHERE name = $1::text"
_FUNCTION = f"""
CREATE OR REPLACE FUNCTION @departed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_ARGV[0] = '' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '{MOVED}', MESSAGE = TG_ARGV[0];
END $$
"""
_NO_FUNCTION = "DROP FUNCTION IF EXISTS @departed() CASCADE"
_TRIGGER = (
    "CREATE TRIGGER departure_{number} BEFORE {event} ON @{table} FOR EACH ROW {condition}"
    " EXECUTE FUNCTION @departed({argument})"
)
_IS_CLAIM = "NEW.state = 3 AND OLD.state <> 3"
_NO_CLAIM = ("UPDATE", "jobs", f"WHEN ({_IS_CLAIM})", False)
"""A claim that changes no row gives none: whoever claims has to know nothing of the mark."""
_NO_CHANGE = (
    ("INSERT", "jobs", "", True),
    ("UPDATE", "jobs", f"WHEN (NOT ({_IS_CLAIM}))", True),
    ("INSERT OR UPDATE", "ended", "", True),
    ("INSERT OR UPDATE", "events", "", True),
)
_NO_END = (("DELETE", "jobs", "", True), ("DELETE", "ended", "", True))
_REFUSALS = {
    "draining": (_NO_CLAIM,),
    "sealed": (_NO_CLAIM, *_NO_CHANGE, *_NO_END),
    "moved": (_NO_CLAIM, *_NO_CHANGE),
}
_EPOCH = "SELECT epoch FROM @meta"
_PAUSES = "SELECT queue FROM @pauses ORDER BY queue"
_EVENTS = (
    "SELECT name, payload, until FROM @events WHERE name > $1::text ORDER BY name LIMIT $2::int"
)
_KEYS = (
    "SELECT task, key, job, digest, until FROM @keys WHERE (task, key) > ($1::text, $2::text)"
    " ORDER BY task, key LIMIT $3::int"
)
_SIZES = (
    "SELECT seq, size FROM ("
    "(SELECT seq, length(payload) AS size FROM @jobs WHERE seq > $1::bigint ORDER BY seq"
    " LIMIT $2::int) UNION ALL"
    " (SELECT seq, length(payload) + coalesce(length(result), 0) FROM @ended"
    " WHERE seq > $1::bigint ORDER BY seq LIMIT $2::int)) AS p ORDER BY seq LIMIT $2::int"
)
_ROWS = (
    f"SELECT * FROM (SELECT {LIVE} FROM @jobs WHERE seq = ANY($1::bigint[]) UNION ALL"
    f" SELECT {ENDED} FROM @ended WHERE seq = ANY($1::bigint[])) AS p ORDER BY seq"
)
_STEPS = "SELECT job, name, digest, result, until, event FROM @steps WHERE job = ANY($1::text[])"
_KNOWN = (
    "SELECT id FROM @jobs WHERE id = ANY($1::text[])"
    " UNION ALL SELECT id FROM @ended WHERE id = ANY($1::text[])"
)
_ADD_LINE = (
    "INSERT INTO @lines (queue, task) VALUES ($1::text, $2::text)"
    " ON CONFLICT (queue, coalesce(task, '')) DO NOTHING"
)
_LINES = "SELECT id, queue, task FROM @lines"
_PLACES = "SELECT nextval('@places') FROM generate_series(1, $1::int)"
_COLUMNS = {
    "seq": "bigint",
    "id": "text",
    "line": "int",
    "state": "smallint",
    "payload": "bytea",
    "created_at": "float8",
    "opts": "text",
    "attempt": "int",
    "priority": "smallint",
    "rank": "bytea",
    "due": "float8",
    "key": "text",
    "lane": "text",
    "expires_at": "float8",
    "failures": "int",
    "crashes": "int",
    "suspect": "boolean",
    "failure": "text",
    "progress": "text",
    "worker": "text",
    "started_at": "float8",
    "fence": "bigint",
}
_OF_ENDED = {**_COLUMNS, "finished_at": "float8", "gone_at": "float8", "result": "bytea"}
_PUT_STEPS = (
    "INSERT INTO @steps (job, name, digest, result, until, event) SELECT * FROM unnest($1::text[],"
    " $2::text[], $3::bytea[], $4::bytea[], $5::float8[], $6::text[]) ON CONFLICT DO NOTHING"
)
_PUT_KEYS = (
    "INSERT INTO @keys AS k (task, key, job, digest, until) SELECT * FROM unnest($1::text[],"
    " $2::text[], $3::text[], $4::bytea[], $5::float8[]) ON CONFLICT (task, key) DO UPDATE SET"
    " job = excluded.job, digest = excluded.digest, until = excluded.until"
    " WHERE k.until <= $6::float8"
)
_PUT_EVENTS = (
    "INSERT INTO @events (name, payload, until) SELECT * FROM unnest($1::text[], $2::bytea[],"
    " $3::float8[]) ON CONFLICT DO NOTHING"
)
_PUT_PAUSES = "INSERT INTO @pauses (queue) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING"
_HOLDERS = "SELECT task, key, job FROM @keys WHERE task = ANY($1::text[]) AND key = ANY($2::text[])"
_SOME = {
    "jobs": "SELECT seq, id, line, state FROM @jobs LIMIT $1::int",
    "ended": "SELECT seq, id, line, state FROM @ended LIMIT $1::int",
}
_DROP = {
    "jobs": "DELETE FROM @jobs WHERE seq = ANY($1::bigint[])",
    "ended": "DELETE FROM @ended WHERE id = ANY($1::text[])",
}
_REST = ("DELETE FROM @keys", "DELETE FROM @steps", "DELETE FROM @events")

_STATES = {Status.DONE: DONE, Status.DEAD: DEAD, Status.CANCELLED: CANCELLED}
_INFINITY = float("inf")


class Moved(Surface):
    """The ``Movable`` part of the store."""

    if TYPE_CHECKING:

        async def _read(self, work: Callable[[Turn], Awaitable[T]]) -> T: ...

    async def departure(self) -> Departure | None:
        # Not a read: the store beside a worker's has one connection, and asks this now and then.
        text = await self._do(Op(partial(_noted, name=_DEPARTURE), promised=False))
        return None if text is None else msgspec.json.decode(text, type=Departure)

    async def depart(self, mark: Departure, before: Departure | None) -> int:
        return await self._do(Op(partial(_depart, mark=mark, before=before)))

    async def stay(self, mark: Departure) -> bool:
        return await self._do(Op(partial(_stay, mark=mark)))

    async def pack(self, after: str, limit: int) -> Crate | None:
        return await self._read(partial(_pack, after=after, limit=limit))

    async def discard(self, limit: int) -> int:
        return await self._do(Op(partial(_discard, limit=limit)))

    async def expect(self, move: str) -> None:
        await self._do(Op(partial(_execute, text=_EXPECT, name=_arrival(move))))

    async def arrived(self, move: str) -> str | None:
        return await self._read(partial(_noted, name=_arrival(move)))

    async def unpack(self, move: str, crate: Crate) -> Arrival:
        if crate.adds:
            wanted = {(job.queue, job.task) for job in crate.adds}
            # First, and in a transaction of their own: new lines are not to be rolled back.
            await self._do(Op(partial(_lines, wanted=wanted)))
        return await self._do(Op(partial(_unpack, name=_arrival(move), crate=crate)))

    async def unexpect(self, move: str) -> None:
        await self._do(Op(partial(_execute, text=_STRIKE, name=_arrival(move))))


def _arrival(move: str) -> str:
    return f"arrival {move}"


async def _noted(turn: Turn, name: str) -> str | None:
    found: str | None = await turn.value(_NOTED, name)
    return found


async def _execute(turn: Turn, text: str, name: str) -> None:
    await turn.execute(text, name)


# -- out


async def _depart(turn: Turn, mark: Departure, before: Departure | None) -> int:
    await turn.lock(_DEPARTURE)
    found = await _noted(turn, _DEPARTURE)
    if found not in (None if before is None else _text(before), _text(mark)):
        raise StoreMoved("somebody else moves the jobs of this store: look again")
    running: int = await turn.value(_RUNNING)
    if running and mark.stage != "draining":
        return running
    run = turn.connection.execute
    await run(turn.names[_NO_FUNCTION])
    await run(turn.names[_FUNCTION])
    to = "'" + mark.to.replace("'", "''") + "'"
    for number, (event, table, condition, refused) in enumerate(_REFUSALS[mark.stage]):
        text = _TRIGGER.format(
            number=number,
            event=event,
            table=table,
            condition=condition,
            argument=to if refused else "''",
        )
        # A URL may hold what stands for the schema in our statements.
        head, _, arguments = text.rpartition("(")
        await run(f"{turn.names[head]}({arguments}")
    await turn.execute(_NOTE, _DEPARTURE, _text(mark))
    return running


async def _stay(turn: Turn, mark: Departure) -> bool:
    await turn.lock(_DEPARTURE)
    if await _noted(turn, _DEPARTURE) != _text(mark):
        return False
    await turn.connection.execute(turn.names[_NO_FUNCTION])
    await turn.execute(_STRIKE, _DEPARTURE)
    turn.tell(WORK, {queue for queue, _ in turn.lines.ids})
    return True


def _text(mark: Departure) -> str:
    return dump(mark).decode()


async def _pack(turn: Turn, after: str, limit: int) -> Crate | None:
    """First what holds for the whole store, then events, then keys, then jobs by their place."""
    kind, *place = ["all"] if not after else msgspec.json.decode(after)
    if kind == "all":
        pauses = [queue for (queue,) in await turn.fetch(_PAUSES)]
        return _crate(after, ["events", ""], pauses=pauses)
    if kind == "events":
        rows = await turn.fetch(_EVENTS, *place, limit)
        upto = ["events", rows[-1][0]] if rows else ["keys", "", ""]
        return _crate(after, upto, events=[SentEvent(*row) for row in rows])
    if kind == "keys":
        rows = await turn.fetch(_KEYS, *place, limit)
        upto = ["keys", *rows[-1][:2]] if rows else ["jobs", 0]
        return _crate(after, upto, keys=[HeldKey(task or None, *rest) for task, *rest in rows])
    seqs: list[int] = []
    size = 0
    for seq, more in await turn.fetch(_SIZES, *place, limit):
        seqs.append(seq)
        size += more
        if size > BYTES:
            break
    if not seqs:
        return None
    rows = await turn.fetch(_ROWS, seqs)
    fence = max((await turn.value(_EPOCH) + 1) * STARTS, *(row[21] for row in rows))
    return _crate(after, ["jobs", seqs[-1]], jobs=await _parcels(turn, rows), fence=fence)


def _crate(after: str, upto: Sequence[Any], **goods: Any) -> Crate:
    return Crate(after=after, upto=dump(upto).decode(), **goods)


async def _parcels(turn: Turn, rows: Sequence[Any]) -> list[Parcel]:
    jobs = [_sound(row, await turn.name(row[2]), turn.now) for row in rows]
    steps: dict[str, list[Step]] = {}
    for job_id, name, digest, result, until, event in await turn.fetch(
        _STEPS, [job.id for job in jobs]
    ):
        left = None if until is None else until - turn.now
        step = Step(name=name, digest=digest, result=result, left=left, event=event)
        steps.setdefault(job_id, []).append(step)
    return [Parcel(job, steps.get(job.id, ())) for job in jobs]


def _sound(row: Any, name: tuple[str, str | None], now: float) -> Job:
    """What was damaged is not to come out as sound at the other end."""
    try:
        return job_from(row, name)
    except DAMAGE:
        ended = row[22] or now
        return msgspec.structs.replace(
            shown(row, name), status=Status.DEAD, failure=DAMAGED, finished_at=ended
        )


async def _discard(turn: Turn, limit: int) -> int:
    for table in ("jobs", "ended"):
        rows = await turn.fetch(_SOME[table], limit)
        if rows:
            await forget(turn, [row[1] for row in rows])
            await turn.execute(_DROP[table], [row[0 if table == "jobs" else 1] for row in rows])
            for _, _, line, state in rows:
                turn.count(line, state, -1)
            return len(rows)
    for text in _REST:
        await turn.execute(text)
    return 0


# -- in


async def _unpack(turn: Turn, name: str, crate: Crate) -> Arrival:
    place = await turn.value(_LOCKED, name)
    if place is None:
        raise StoreMoved("this move has ended, or was given up; nothing was stored")
    if place != crate.after:
        return Arrival(place=place)
    if crate.pauses:
        await turn.execute(_PUT_PAUSES, list(crate.pauses))
    if crate.events:
        rows = [(it.name, it.payload, it.until) for it in crate.events]
        await turn.execute(_PUT_EVENTS, *_turned(rows))
    if crate.keys:
        keys = sorted((it.task or "", it.key, it.job, it.digest, it.until) for it in crate.keys)
        await turn.execute(_PUT_KEYS, *_turned(keys), turn.now)
    if crate.adds:
        await turn.lines.load(turn.connection, turn.names)
        await add_following(turn, crate.adds)
    fresh, keyless = await _put(turn, crate) if crate.jobs else (0, 0)
    await turn.execute(_NOTE, name, crate.upto)
    return Arrival(place=crate.upto, known=len(crate.jobs) - fresh, keyless=keyless)


async def _put(turn: Turn, crate: Crate) -> tuple[int, int]:
    """Store jobs as they are; how many were new, and how many of those lost their key."""
    ids = [parcel.job.id for parcel in crate.jobs]
    known = {id_ for (id_,) in await turn.fetch(_KNOWN, ids)}
    parcels = [parcel for parcel in crate.jobs if parcel.job.id not in known]
    if not parcels:
        return 0, 0
    keyless = await _without_key(turn, [parcel.job for parcel in parcels])
    waits = {s.event for p in parcels for s in p.steps if s.event is not None and s.result is None}
    there = await sent(turn, waits)
    lines = await _lines(turn, {(p.job.queue, p.job.task) for p in parcels})
    places = [seq for (seq,) in await turn.fetch(_PLACES, len(parcels))]
    live: list[tuple[Any, ...]] = []
    ended: list[tuple[Any, ...]] = []
    steps: list[tuple[Any, ...]] = []
    for seq, parcel in zip(places, parcels, strict=True):
        job = parcel.job
        if job.id in keyless:
            job = msgspec.structs.replace(job, key=None)
        if any(s.event in there for s in parcel.steps if s.result is None):
            job = msgspec.structs.replace(job, run_at=None)
        line = lines[job.queue, job.task]
        row = _row(turn, job, seq, line, crate.fence)
        turn.count(line, row[3], 1)
        if job.status.ended:
            ended.append((*row, *_end(turn, job)))
        else:
            live.append(row)
        for step in parcel.steps:
            until = None if step.left is None else turn.now + step.left
            steps.append((job.id, step.name, step.digest, step.result, until, step.event))
    await _insert(turn, "jobs", _COLUMNS, live)
    await _insert(turn, "ended", _OF_ENDED, ended)
    if steps:
        await turn.execute(_PUT_STEPS, *_turned(steps))
    turn.tell(WORK, {parcel.job.queue for parcel in parcels})
    return len(parcels), len(keyless)


async def _insert(
    turn: Turn, table: str, columns: dict[str, str], rows: Sequence[tuple[Any, ...]]
) -> None:
    if rows:
        kinds = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(columns.values(), 1))
        text = f"INSERT INTO @{table} ({', '.join(columns)}) SELECT * FROM unnest({kinds})"
        await turn.execute(text, *_turned(rows))


def _turned(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


async def _lines(
    turn: Turn, wanted: set[tuple[str, str | None]]
) -> dict[tuple[str, str | None], int]:
    """The numbers of these lines. What is known of lines outside must not learn of new ones yet."""
    for queue, task in sorted(wanted - turn.lines.ids.keys(), key=str):
        await turn.execute(_ADD_LINE, queue, task)
    if wanted <= turn.lines.ids.keys():
        return turn.lines.ids
    return {(queue, task): number for number, queue, task in await turn.fetch(_LINES)}


async def _without_key(turn: Turn, jobs: Sequence[Job]) -> set[str]:
    """Those that can't keep their key: the jobs here that are live hold theirs, but for some."""
    keyed = [
        job
        for job in jobs
        if job.key is not None and not job.status.ended and not (job.key_queued and job.attempt)
    ]
    if not keyed:
        return set()
    tasks, keys = _turned((job.task or "", job.key) for job in keyed)
    holders = {(task, key): id_ for task, key, id_ in await turn.fetch(_HOLDERS, tasks, keys)}
    return {job.id for job in keyed if holders.get((job.task or "", job.key)) != job.id}


def _row(turn: Turn, job: Job, seq: int, line: int, fence: int) -> tuple[Any, ...]:
    waits = job.run_at is not None and job.run_at > turn.now
    return (
        seq,
        job.id,
        line,
        _STATES.get(job.status, WAITING if waits else READY),
        job.payload,
        turn.now if job.created_at is None else job.created_at,
        opts_of(job),
        job.attempt,
        job.priority,
        job.rank,
        _INFINITY if job.run_at is None else job.run_at,
        job.key,
        job.lane,
        job.expires_at,
        job.failures,
        job.crashes,
        job.suspect,
        None if job.failure is None else dump(job.failure).decode(),
        None if job.progress is None else dump(job.progress).decode(),
        job.worker,
        job.started_at,
        fence,
    )


def _end(turn: Turn, job: Job) -> tuple[float, float | None, bytes | None]:
    at = turn.now if job.finished_at is None else job.finished_at
    stays = job.keep is None or job.status is Status.DEAD
    return at, None if stays else at + (job.keep or 0.0), job.result
