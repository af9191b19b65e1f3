"""Idempotency keys: who holds them, and what becomes of a call whose key another job holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from outlast.errors import KeyConflict, KeyRepeated
from outlast.job import Added, Failure
from outlast.stores.news import WORK
from outlast.stores.postgres.ends import ROW, end, free_lanes
from outlast.stores.postgres.faults import Careful, Refused, Repeat
from outlast.stores.postgres.rows import opts_of
from outlast.stores.postgres.schema import CANCELLED, HELD, READY, WAITING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from outlast.job import Job
    from outlast.stores.postgres.op import Op
    from outlast.stores.postgres.turn import Turn

__all__ = ["Answers", "answer", "drop_replaced", "take_keys", "times"]

_KNOWN = (
    "SELECT id, line, payload FROM @jobs WHERE id = ANY($1::text[])"
    " UNION ALL SELECT id, line, payload FROM @ended WHERE id = ANY($1::text[])"
)
_TAKE_KEYS = (
    "INSERT INTO @keys AS k (task, key, job, digest)"
    " SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[])"
    " ON CONFLICT (task, key) DO UPDATE SET job = excluded.job, digest = excluded.digest,"
    " until = NULL WHERE k.until <= $5::float8"
)
"""Locks each key that it names until the end of the transaction, also those it doesn't get."""
_HOLDERS = (
    "SELECT task, key, job, digest, until FROM @keys"
    " WHERE task = ANY($1::text[]) AND key = ANY($2::text[])"
)
_WAIT = f"SELECT {ROW} FROM @jobs WHERE id = ANY($1::text[]) AND state < 3 AND attempt = 0"
_LOCK = f"{_WAIT} ORDER BY seq FOR UPDATE"
_LOCK_NOW = f"{_WAIT} FOR UPDATE SKIP LOCKED"
_GIVE_KEY = (
    "UPDATE @keys SET job = $1::text, digest = $2::bytea, until = NULL"
    " WHERE task = $3::text AND key = $4::text"
)
_CALL = "UPDATE @jobs SET payload = $1::bytea, opts = $2::text WHERE seq = $3::bigint"
_TIME = (
    "UPDATE @jobs SET state = $1::smallint, due = $2::float8, expires_at = $3::float8"
    " WHERE seq = $4::bigint"
)
_INFINITY = float("inf")
_CHANGING = ("replace", "debounce", "throttle")

Name = tuple[str, str]
"""A task and a key: what is held."""


class Answers:
    """What is to be made of a batch: ``fresh`` is stored, and ``answers`` stand for the others.

    ``replaced`` are ids of fresh ones that a later one of the batch has replaced, and by which.
    Without ``owners`` nothing conflicts: where a key is taken, the job that holds it stands.
    """

    def __init__(self, turn: Turn, owners: Sequence[Op[Any]] | None) -> None:
        self.answers: list[Added | None] = []
        self.fresh: dict[str, Job] = {}
        self.replaced: dict[str, str] = {}
        self.known: dict[str, tuple[Any, ...]] = {}
        self._turn = turn
        self._owners = owners
        self._holders: dict[Name, tuple[str, bytes, float | None]] = {}
        self._waiting: dict[str, list[Any]] = {}

    async def lock(self, names: Iterable[Name]) -> None:
        """Lock the jobs that hold these keys and wait, before any key: claims do so too."""
        turn = self._turn
        await self._read(names)
        held = [job for job, _, until in self._holders.values() if until is None]
        self._waiting = {row[1]: list(row) for row in await turn.fetch(_LOCK, sorted(held))}
        if any(row[5] is not None for row in self._waiting.values()):
            await turn.lock("lanes")

    async def take(self, jobs: Sequence[Job]) -> None:
        """Let the constraint decide who holds each key, then read who does."""
        await take_keys(self._turn, jobs)
        await self._read([_name(job) for job in jobs])

    async def _read(self, names: Iterable[Name]) -> None:
        wanted = set(names)
        tasks, keys = sorted({task for task, _ in wanted}), sorted({key for _, key in wanted})
        for task, key, *holder in await self._turn.fetch(_HOLDERS, tasks, keys):
            if (task, key) in wanted:
                self._holders[task, key] = (holder[0], holder[1], holder[2])

    async def place(self, job: Job) -> None:
        """The next job of the batch: it is stored, or something stands in its place."""
        mark = (job.queue, job.task, job.payload)
        if job.id in self.known:
            answer: Added | None = Added(job.id, False, conflict=self.known[job.id] != mark)
        else:
            answer = None if job.key is None else await self._keyed(job)
        if answer is None:
            self.known[job.id] = mark
            self.fresh[job.id] = job
        self.answers.append(answer)

    async def _keyed(self, job: Job) -> Added | None:
        name = _name(job)
        if name not in self._holders:
            await self.take([job])
        if name not in self._holders:
            raise Repeat  # it was forgotten between the two statements
        holder, digest, until = self._holders[name]
        if holder == job.id and until is None:
            return None
        if self._owners is None:
            return Added(holder, created=False)
        if holder != job.id and job.on_repeat == "raise":
            raise self._refused(
                KeyRepeated(
                    f"key {job.key!r} of task {job.task} is held by job {holder};"
                    " nothing was stored",
                    holder,
                )
            )
        if holder != job.id and job.on_repeat in _CHANGING and until is None:
            keeper = await self._changed(job, holder)
            if keeper is not None:
                await self._turn.execute(_GIVE_KEY, keeper, job.digest, *name)
                self._holders[name] = (keeper, job.digest, None)
                return None if keeper == job.id else Added(keeper, created=False)
        if digest != job.digest:
            raise self._refused(
                KeyConflict(
                    f"key {job.key!r} of task {job.task} belongs to job {holder}, which has other"
                    " arguments; use another key, or the same arguments"
                )
            )
        return Added(holder, created=False)

    def _refused(self, error: Exception) -> Refused:
        assert self._owners is not None
        return Refused(self._owners[len(self.answers)], error)

    async def _changed(self, job: Job, holder: str) -> str | None:
        """Replace or change the holder if it still waits; who holds the key then, or None."""
        pending = self.fresh.get(holder)
        row = await self._still_waits(holder) if pending is None else None
        if pending is None and row is None:
            return None
        if job.on_repeat == "replace":
            if pending is not None:
                self.replaced[holder] = job.id
            else:
                await end(self._turn, [row], CANCELLED, _by(job.id))
            return job.id
        if pending is not None:
            self.fresh[holder] = _renewed(pending, job)
        elif row is not None:
            await self._renew(row, job)
        return holder

    async def _still_waits(self, holder: str) -> list[Any] | None:
        """The row of a job that was never claimed, locked.

        The key is ours by now, and one who claims the job may be waiting for it: so this must not
        wait for him.
        """
        if holder not in self._waiting:
            rows = await self._turn.fetch(_LOCK_NOW, [holder])
            if not rows:
                if await self._turn.fetch(_WAIT, [holder]):
                    raise Repeat  # someone is at it this moment
                return None
            self._waiting[holder] = list(rows[0])
        return self._waiting[holder]

    async def _renew(self, row: list[Any], job: Job) -> None:
        """The holder becomes the call that the new job is; its id and its place stay."""
        turn = self._turn
        seq, _, line, before, _, lane, _ = row
        row[6] = opts_of(job)
        await turn.execute(_CALL, job.payload, row[6], seq)
        # Whoever claims at this very moment may have missed it.
        turn.tell(WORK, ((await turn.name(line))[0],))
        if job.on_repeat == "throttle":
            return
        due, expires = times(job, turn.now)
        state = WAITING if due > turn.now and due < _INFINITY else HELD if before == HELD else READY
        await turn.execute(_TIME, state, due, expires, seq)
        row[3] = state
        turn.moved(line, before, state)
        if lane is not None:
            await free_lanes(turn, [lane])


async def answer(turn: Turn, jobs: Sequence[Job], owners: Sequence[Op[Any]] | None) -> Answers:
    """Take the keys of new jobs, and find out what stands in whose place.

    Raises ``Refused`` for the first call that can't be answered.
    """
    found = Answers(turn, owners)
    for id_, line, payload in await turn.fetch(_KNOWN, [job.id for job in jobs]):
        found.known[id_] = (*await turn.name(line), payload)
    firsts: dict[Name, Job] = {}
    seen = set(found.known)
    changing = False
    for job in jobs:
        if job.id in seen:
            continue
        seen.add(job.id)
        if job.key is not None:
            firsts.setdefault(_name(job), job)
            changing = changing or job.on_repeat in _CHANGING
    if changing and owners is not None:
        await found.lock(firsts)
    if firsts:
        await found.take(list(firsts.values()))
    for job in jobs:
        await found.place(job)
    return found


async def take_keys(turn: Turn, keyed: Sequence[Job]) -> int:
    """Let the constraint decide who holds each key; how many were ours to take."""
    rows = sorted((*_name(job), job.id, job.digest) for job in keyed)
    if len({row[:2] for row in rows}) != len(rows):
        raise Careful
    return await turn.execute(_TAKE_KEYS, *map(list, zip(*rows, strict=True)), turn.now)


async def drop_replaced(turn: Turn, replaced: dict[str, str]) -> None:
    """End those of a batch that a later one has replaced, once all of it is stored."""
    for row in await turn.fetch(_LOCK, sorted(replaced)) if replaced else ():
        await end(turn, [row], CANCELLED, _by(replaced[row[1]]))


def times(job: Job, now: float) -> tuple[float, float | None]:
    """When a job is due (never later than now: infinitely), and when it expires."""
    due = now + job.delay if job.delay else job.run_at
    expires = job.expires_at if job.ttl is None else now + job.ttl
    return _INFINITY if due is None else due, expires


def _renewed(pending: Job, job: Job) -> Job:
    """``pending``, not stored yet, as the call that the new job is."""
    call = {name: getattr(job, name) for name in ("payload", "codec", "headers", "max_attempts",
        "max_crashes", "timeout", "digest", "keep_key", "keep", "key_queued")}  # fmt: skip
    if job.on_repeat == "debounce":
        call |= {name: getattr(job, name) for name in ("run_at", "delay", "expires_at", "ttl")}
    return msgspec.structs.replace(pending, **call)


def _by(job: str) -> Failure:
    return Failure(kind="cancelled", message=f"replaced by job {job}")


def _name(job: Job) -> Name:
    return job.task or "", job.key or ""
