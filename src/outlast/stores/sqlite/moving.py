"""Moving out and moving in: the mark on a file that is left, and bites of jobs between stores.

The mark is a row and, so that no process of any version can get round it, triggers: they cost
nothing in a file that nobody moves.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from outlast.errors import StoreMoved
from outlast.job import Job, Status, Step
from outlast.movable import BYTES, DAMAGED, Arrival, Crate, Departure, HeldKey, Parcel, SentEvent
from outlast.stores.news import WORK
from outlast.stores.sqlite.faults import MOVED
from outlast.stores.sqlite.op import Op
from outlast.stores.sqlite.rows import crc, dump, fetch, opts_of
from outlast.stores.sqlite.schema import CANCELLED, DEAD, DONE, READY, WAITING
from outlast.stores.sqlite.steps import EPOCH, STARTS, forget, sent
from outlast.stores.surface import Surface

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.stores.sqlite.ledger import Reads
    from outlast.stores.sqlite.moves import Moves

__all__ = ["Moved"]

T = TypeVar("T")

_RUNNING = "SELECT count(*) FROM jobs INDEXED BY jobs_running WHERE state = 3 AND space = ?"
_META = "SELECT value FROM meta WHERE name = ?"
_NOTE = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"
_STRIKE = "DELETE FROM meta WHERE name = ?"
_EXPECT = "INSERT OR IGNORE INTO meta (name, value) VALUES (?, '')"
_IS_CLAIM = "NEW.state = 3 AND OLD.state <> 3"
_NO_CLAIM = ("UPDATE OF state ON jobs", f"{_IS_CLAIM} AND OLD", "IGNORE")
"""A claim that changes no row gives none: whoever claims has to know nothing of the mark."""
_NO_CHANGE = (
    ("INSERT ON jobs", "NEW", "ABORT"),
    ("UPDATE ON jobs", f"NOT ({_IS_CLAIM}) AND OLD", "ABORT"),
    ("INSERT ON events", "NEW", "ABORT"),
)
_REFUSALS = {
    "draining": (_NO_CLAIM,),
    "sealed": (_NO_CLAIM, *_NO_CHANGE, ("DELETE ON jobs", "OLD", "ABORT")),
    "moved": (_NO_CLAIM, *_NO_CHANGE),
}
_TRIGGERS = (
    "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND substr(name, 1, length(?1)) = ?1"
)
_EVENTS = (
    "SELECT name, payload, until FROM events WHERE space = ? AND name > ? ORDER BY name LIMIT ?"
)
_KEYS = (
    "SELECT task, key, job, digest, until FROM keys"
    " WHERE space = ? AND (task, key) > (?, ?) ORDER BY task, key LIMIT ?"
)
_PAUSES = "SELECT queue FROM pauses WHERE space = ? ORDER BY queue"
_SIZES = (
    "SELECT seq, length(payload) + ifnull(length(result), 0) FROM jobs"
    " WHERE space = ? AND seq > ? ORDER BY seq LIMIT ?"
)
_STEPS = (
    "SELECT job, name, digest, result, until, event FROM steps"
    " WHERE space = ? AND job IN (SELECT value FROM json_each(?))"
)
_KNOWN = "SELECT id FROM jobs WHERE space = ? AND id IN (SELECT value FROM json_each(?))"
_PUT = (
    "INSERT INTO jobs (id, space, line, state, payload, crc, created_at, opts, priority, rank, due,"
    " key, lane, expires_at, attempt, failures, crashes, suspect, worker, started_at, finished_at,"
    " gone_at, failure, result, progress) VALUES"
)
_PUT_STEPS = "INSERT OR IGNORE INTO steps (space, job, name, digest, result, until, event) VALUES"
_PUT_KEYS = "INSERT INTO keys (space, task, key, job, digest, until) VALUES"
_WHERE_FREE = (
    " ON CONFLICT (space, task, key) DO UPDATE SET job = excluded.job, digest = excluded.digest,"
    " until = excluded.until WHERE keys.until <= ?"
)
_PUT_EVENTS = "INSERT OR IGNORE INTO events (space, name, payload, until) VALUES"
_PUT_PAUSES = "INSERT OR IGNORE INTO pauses (space, queue) VALUES"
_HOLDER = "SELECT job FROM keys WHERE space = ? AND task = ? AND key = ?"
_RAISE_EPOCH = (
    "INSERT INTO meta (name, value) VALUES ('epoch', ?1) ON CONFLICT DO UPDATE"
    " SET value = CAST(max(CAST(value AS INTEGER), CAST(?1 AS INTEGER)) AS TEXT)"
)
_SOME = "SELECT seq, line, state FROM jobs WHERE space = ? LIMIT ?"
_DROP = "DELETE FROM jobs WHERE seq IN (SELECT value FROM json_each(?))"
_REST = ("keys", "steps", "events")

_STATES = {Status.DONE: DONE, Status.DEAD: DEAD, Status.CANCELLED: CANCELLED}
_INFINITY = float("inf")


class Moved(Surface):
    """The ``Movable`` part of the store."""

    if TYPE_CHECKING:

        async def _read(self, run: Callable[[Reads], T]) -> T: ...

    async def departure(self) -> Departure | None:
        text = await self._read(partial(_meta, name=self._departure))
        return None if text is None else msgspec.json.decode(text, type=Departure)

    async def depart(self, mark: Departure, before: Departure | None) -> int:
        run = partial(_depart, name=self._departure, mark=mark, before=before)
        return await self._do(Op(run, True))

    async def stay(self, mark: Departure) -> bool:
        return await self._do(Op(partial(_stay, name=self._departure, mark=mark), True))

    async def pack(self, after: str, limit: int) -> Crate | None:
        return await self._read(partial(_pack, after=after, limit=limit, now=self.clock.now()))

    async def discard(self, limit: int) -> int:
        return await self._do(Op(partial(_discard, limit=limit), True, limit))

    async def expect(self, move: str) -> None:
        await self._do(Op(partial(_write, text=_EXPECT, values=(self._arrival(move),)), True))

    async def arrived(self, move: str) -> str | None:
        return await self._read(partial(_meta, name=self._arrival(move)))

    async def unpack(self, move: str, crate: Crate) -> Arrival:
        run = partial(_unpack, name=self._arrival(move), crate=crate)
        return await self._do(Op(run, True, len(crate.jobs)))

    async def unexpect(self, move: str) -> None:
        await self._do(Op(partial(_write, text=_STRIKE, values=(self._arrival(move),)), True))

    @property
    def _departure(self) -> str:
        return f"departure {self.namespace}"

    def _arrival(self, move: str) -> str:
        return f"arrival {self.namespace} {move}"


def _meta(reads: Reads, name: str) -> str | None:
    found: str | None = reads.connection.execute(_META, (name,)).get
    return found


def _write(moves: Moves, text: str, values: Sequence[Any]) -> None:
    moves.connection.execute(text, values)


# -- out


def _depart(moves: Moves, name: str, mark: Departure, before: Departure | None) -> int:
    found = moves.connection.execute(_META, (name,)).get
    if found not in (None if before is None else _text(before), _text(mark)):
        raise StoreMoved("somebody else moves the jobs of this store: look again")
    running: int = moves.connection.execute(_RUNNING, (moves.space,)).get
    if running and mark.stage != "draining":
        return running
    _drop_triggers(moves)
    moves.connection.execute(_NOTE, (name, _text(mark)))
    why = f"{MOVED}{mark.to}".replace("'", "''")
    for number, (event, rows, how) in enumerate(_REFUSALS[mark.stage]):
        action = f"RAISE({how})" if how == "IGNORE" else f"RAISE({how}, '{why}')"
        moves.connection.execute(
            f"CREATE TRIGGER {_trigger(moves)}{number} BEFORE {event}"
            f" WHEN {rows}.space = {moves.space} BEGIN SELECT {action}; END"
        )
    return running


def _stay(moves: Moves, name: str, mark: Departure) -> bool:
    if moves.connection.execute(_META, (name,)).get != _text(mark):
        return False
    _drop_triggers(moves)
    moves.connection.execute(_STRIKE, (name,))
    moves.tell(WORK)
    return True


def _text(mark: Departure) -> str:
    return dump(mark).decode()


def _trigger(moves: Moves) -> str:
    return f"departure_{moves.space}_"


def _drop_triggers(moves: Moves) -> None:
    for (name,) in fetch(moves.connection, _TRIGGERS, _trigger(moves)):
        moves.connection.execute(f"DROP TRIGGER {name}")


def _pack(reads: Reads, after: str, limit: int, now: float) -> Crate | None:
    """First what holds for the whole store, then events, then keys, then jobs by their place."""
    space = reads.space()
    kind, *place = ["all"] if not after else msgspec.json.decode(after)
    if kind == "all":
        pauses = [queue for (queue,) in reads.connection.execute(_PAUSES, (space,))]
        return _crate(after, ["events", ""], pauses=pauses)
    if kind == "events":
        rows = fetch(reads.connection, _EVENTS, space, *place, limit)
        upto = ["events", rows[-1][0]] if rows else ["keys", "", ""]
        return _crate(after, upto, events=[SentEvent(*row) for row in rows])
    if kind == "keys":
        rows = fetch(reads.connection, _KEYS, space, *place, limit)
        upto = ["keys", *rows[-1][:2]] if rows else ["jobs", 0]
        keys = [HeldKey(task or None, *rest) for task, *rest in rows]
        return _crate(after, upto, keys=keys)
    seqs: list[int] = []
    size = 0
    for seq, more in fetch(reads.connection, _SIZES, space, *place, limit):
        seqs.append(seq)
        size += more
        if size > BYTES:
            break
    if not seqs:
        return None
    fence = (reads.connection.execute(f"SELECT {EPOCH}").get + 1) * STARTS
    return _crate(after, ["jobs", seqs[-1]], jobs=_parcels(reads, seqs, now), fence=fence)


def _crate(after: str, upto: Sequence[Any], **goods: Any) -> Crate:
    return Crate(after=after, upto=dump(upto).decode(), **goods)


def _parcels(reads: Reads, seqs: Sequence[int], now: float) -> list[Parcel]:
    jobs = reads.by_place(seqs)
    steps: dict[str, list[Step]] = {}
    ids = dump([job.id for job, _ in jobs]).decode()
    for job_id, name, digest, result, until, event in fetch(
        reads.connection, _STEPS, reads.space(), ids
    ):
        left = None if until is None else until - now
        step = Step(name=name, digest=digest, result=result, left=left, event=event)
        steps.setdefault(job_id, []).append(step)
    return [
        Parcel(job if sound else _buried(job, now), steps.get(job.id, ())) for job, sound in jobs
    ]


def _buried(job: Job, now: float) -> Job:
    """What was damaged is not to come out as sound at the other end."""
    ended = job.finished_at or now
    return msgspec.structs.replace(
        job, status=Status.DEAD, failure=DAMAGED, finished_at=ended, result=None
    )


def _discard(moves: Moves, limit: int) -> int:
    rows = fetch(moves.connection, _SOME, moves.space, limit)
    seqs = [seq for seq, _, _ in rows]
    if seqs:
        forget(moves, seqs)
        moves.connection.execute(_DROP, (dump(seqs).decode(),))
        for _, line, state in rows:
            moves.count(line, state, -1)
    else:
        for table in _REST:
            moves.connection.execute(f"DELETE FROM {table} WHERE space = ?", (moves.space,))
    return len(seqs)


# -- in


def _unpack(moves: Moves, name: str, crate: Crate) -> Arrival:
    place = moves.connection.execute(_META, (name,)).get
    if place is None:
        raise StoreMoved("this move has ended, or was given up; nothing was stored")
    if place != crate.after:
        return Arrival(place=place)
    now, space = moves.clock.now(), moves.space
    if crate.fence:
        moves.connection.execute(_RAISE_EPOCH, (str(crate.fence // STARTS + 1),))
    if crate.pauses:
        moves.values(_PUT_PAUSES, "", [(space, queue) for queue in crate.pauses])
    if crate.events:
        moves.values(
            _PUT_EVENTS, "", [(space, it.name, it.payload, it.until) for it in crate.events]
        )
    if crate.keys:
        rows = [(space, it.task or "", it.key, it.job, it.digest, it.until) for it in crate.keys]
        moves.values(_PUT_KEYS, _WHERE_FREE, rows, (now,))
    if crate.adds:
        moves.add_following(crate.adds)
    fresh, keyless = _put(moves, crate.jobs, now)
    moves.connection.execute(_NOTE, (name, crate.upto))
    return Arrival(place=crate.upto, known=len(crate.jobs) - fresh, keyless=keyless)


def _put(moves: Moves, parcels: Sequence[Parcel], now: float) -> tuple[int, int]:
    """Store jobs as they are; how many were new, and how many of those lost their key."""
    ids = dump([parcel.job.id for parcel in parcels]).decode()
    known = {id_ for (id_,) in fetch(moves.connection, _KNOWN, moves.space, ids)}
    rows: list[tuple[Any, ...]] = []
    steps: list[tuple[Any, ...]] = []
    keyless = 0
    for parcel in parcels:
        job = parcel.job
        if job.id in known:
            continue
        known.add(job.id)
        if not _has_its_key(moves, job):
            job = msgspec.structs.replace(job, key=None)
            keyless += 1
        waits = [s.event for s in parcel.steps if s.event is not None and s.result is None]
        if any(sent(moves, event) for event in waits):
            job = msgspec.structs.replace(job, run_at=None)
        rows.append(_row(moves, job, now))
        for step in parcel.steps:
            until = None if step.left is None else now + step.left
            steps.append(
                (moves.space, job.id, step.name, step.digest, step.result, until, step.event)
            )
    if rows:
        moves.values(_PUT, "", rows)
        moves.tell(WORK)
    if steps:
        moves.values(_PUT_STEPS, "", steps)
    return len(rows), keyless


def _has_its_key(moves: Moves, job: Job) -> bool:
    """Whether a job may keep its key: the jobs here that are live hold theirs, but for some."""
    if job.key is None or job.status.ended or (job.key_queued and job.attempt):
        return True
    found: str | None = moves.connection.execute(
        _HOLDER, (moves.space, job.task or "", job.key)
    ).get
    return found == job.id


def _row(moves: Moves, job: Job, now: float) -> tuple[Any, ...]:
    line = moves.line(job.queue, job.task)
    due = _INFINITY if job.run_at is None else job.run_at
    state = _STATES.get(job.status, WAITING if job.run_at is not None and due > now else READY)
    moves.count(line, state, 1)
    opts = opts_of(job)
    ended, gone = job.finished_at, None
    if state in (DONE, CANCELLED) and job.keep is not None:
        gone = (now if ended is None else ended) + job.keep
    return (
        job.id,
        moves.space,
        line,
        state,
        job.payload,
        crc(line, job.id, job.payload, opts),
        job.created_at or now,
        opts,
        job.priority,
        job.rank,
        due,
        job.key,
        job.lane,
        job.expires_at,
        job.attempt,
        job.failures,
        job.crashes,
        int(job.suspect),
        job.worker,
        job.started_at,
        ended,
        gone,
        None if job.failure is None else dump(job.failure).decode(),
        job.result,
        None if job.progress is None else dump(job.progress).decode(),
    )
