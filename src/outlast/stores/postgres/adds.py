"""How jobs come in: the usual batch at once, the unusual one with a look at each job first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from outlast.errors import KeyConflict
from outlast.job import Added
from outlast.stores.news import WORK
from outlast.stores.postgres.faults import Repeat
from outlast.stores.postgres.rows import opts_of
from outlast.stores.postgres.schema import READY, WAITING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Job
    from outlast.stores.postgres.op import Op
    from outlast.stores.postgres.turn import Turn

__all__ = ["Careful", "Refused", "add_carefully", "add_following", "add_fresh"]

_ALIKE = (
    "INSERT INTO @jobs (id, payload, line, state, created_at, opts)"
    " SELECT v.id, v.payload, $3::int, 1::smallint, $4::float8, $5::text"
    " FROM unnest($1::text[], $2::bytea[]) AS v(id, payload) ON CONFLICT (id) DO NOTHING"
)
_ANY = (
    "INSERT INTO @jobs (id, line, state, payload, opts, priority, rank, due, key, lane, expires_at,"
    " created_at) SELECT v.*, $12::float8 FROM unnest($1::text[], $2::int[], $3::smallint[],"
    " $4::bytea[], $5::text[], $6::smallint[], $7::bytea[], $8::float8[], $9::text[], $10::text[],"
    " $11::float8[]) AS v ON CONFLICT (id) DO NOTHING"
)
_IN_ENDED = "SELECT id FROM @ended WHERE id = ANY($1::text[]) LIMIT 1"
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
_HOLDERS = (
    "SELECT task, key, job, digest, until FROM @keys"
    " WHERE task = ANY($1::text[]) AND key = ANY($2::text[])"
)
_QUEUED = (
    "SELECT coalesce(sum(c.queued), 0)::bigint FROM"
    " (SELECT line, ready + delayed AS queued FROM @counts WHERE line = ANY($1::int[])"
    " UNION ALL SELECT line, ready + delayed FROM @changes WHERE line = ANY($1::int[])) AS c"
)
_INFINITY = float("inf")


class Careful(Exception):
    """Something in the batch is there already or is gone: do it again, looking at each first."""


class Refused(Exception):
    """One call of a group can't be done; the others are to be done without it."""

    def __init__(self, op: Op[Any], error: Exception) -> None:
        super().__init__(str(error))
        self.op = op
        self.error = error


async def add_fresh(turn: Turn, jobs: Sequence[Job], alike: bool) -> None:
    """Store jobs of which none is there. Raises ``Careful`` if that is not so."""
    keyed = [job for job in jobs if job.key is not None]
    if keyed and await _take_keys(turn, keyed) != len(keyed):
        raise Careful
    if await (_insert_alike if alike else _insert)(turn, jobs) != len(jobs):
        raise Careful
    # In a statement of its own: it sees what ended while the insert was on its way.
    if await turn.fetch(_IN_ENDED, [job.id for job in jobs]):
        raise Careful


async def _take_keys(turn: Turn, keyed: Sequence[Job]) -> int:
    """Let the constraint decide who holds each key; how many were ours to take."""
    rows = sorted((job.task or "", job.key or "", job.id, job.digest) for job in keyed)
    if len({row[:2] for row in rows}) != len(rows):
        raise Careful
    return await turn.execute(_TAKE_KEYS, *map(list, zip(*rows, strict=True)), turn.now)


async def _insert_alike(turn: Turn, jobs: Sequence[Job]) -> int:
    """The rows of jobs that differ in nothing but id and payload."""
    first = jobs[0]
    line = turn.lines.ids[first.queue, first.task]
    turn.count(line, READY, len(jobs))
    turn.tell(WORK, (first.queue,))
    return await turn.execute(
        _ALIKE,
        [job.id for job in jobs],
        [job.payload for job in jobs],
        line,
        turn.now,
        opts_of(first),
    )


async def _insert(turn: Turn, jobs: Sequence[Job]) -> int:
    """The rows of any jobs; how many were not there yet."""
    now = turn.now
    rows: list[tuple[Any, ...]] = []
    for job in jobs:
        line = turn.lines.ids[job.queue, job.task]
        due = job.run_at
        if job.delay is not None and job.delay > 0:
            due = now + job.delay
        state = WAITING if due is not None and due > now else READY
        turn.count(line, state, 1)
        rows.append(
            (
                job.id,
                line,
                state,
                job.payload,
                opts_of(job),
                job.priority,
                job.rank,
                _INFINITY if due is None else due,
                job.key,
                job.lane,
                job.expires_at if job.ttl is None else now + job.ttl,
            )
        )
    turn.tell(WORK, {job.queue for job in jobs})
    return await turn.execute(_ANY, *map(list, zip(*rows, strict=True)), now)


async def add_carefully(turn: Turn, ops: Sequence[Op[Any]]) -> list[list[Added]]:
    """What ``add`` answers to each of these calls. Raises ``Refused`` for the first that can't be.

    Each call's ``capacity`` counts what the calls before it add.
    """
    for queue in sorted({job.queue for op in ops if op.capacity is not None for job in op.jobs}):
        await turn.lock(f"room {queue}")
    jobs = [job for op in ops for job in op.jobs]
    owners = [op for op in ops for _ in op.jobs]
    answers = await _answers(turn, jobs, owners)
    await _check_capacity(turn, jobs, owners, answers)
    await _store(turn, jobs, answers)
    found: list[list[Added]] = []
    at = 0
    for op in ops:
        mine = range(at, at + len(op.jobs))
        found.append([answers[i] or Added(jobs[i].id) for i in mine])
        at += len(op.jobs)
    return found


async def add_following(turn: Turn, jobs: Sequence[Job]) -> None:
    """The ``then`` of verdicts: where a key is taken, the job that holds it stands."""
    await _store(turn, jobs, await _answers(turn, jobs, None))


async def _store(turn: Turn, jobs: Sequence[Job], answers: Sequence[Added | None]) -> None:
    fresh = [job for job, answer in zip(jobs, answers, strict=True) if answer is None]
    if fresh:
        if await _insert(turn, fresh) != len(fresh):
            raise Repeat
        if await turn.fetch(_IN_ENDED, [job.id for job in fresh]):
            raise Repeat


async def _answers(
    turn: Turn, jobs: Sequence[Job], owners: Sequence[Op[Any]] | None
) -> list[Added | None]:
    """For each job what stands in its place already, or None; without owners nothing conflicts."""
    answers: list[Added | None] = [None] * len(jobs)
    known: dict[str, tuple[Any, ...]] = {}
    for id_, line, payload in await turn.fetch(_KNOWN, [job.id for job in jobs]):
        known[id_] = (*await turn.name(line), payload)
    fresh: set[tuple[str, str]] = set()
    keyed: list[int] = []
    for i, job in enumerate(jobs):
        mark = (job.queue, job.task, job.payload)
        if job.id in known:
            answers[i] = Added(job.id, created=False, conflict=known[job.id] != mark)
            continue
        name = (job.task or "", job.key or "")
        # A job that gives way to the holder of its key is not stored, so its id stays free.
        if job.key is None or name not in fresh:
            known[job.id] = mark
        if job.key is not None:
            fresh.add(name)
            keyed.append(i)
    if keyed:
        await _answer_keyed(turn, jobs, keyed, answers, owners)
    return answers


async def _answer_keyed(
    turn: Turn,
    jobs: Sequence[Job],
    keyed: Sequence[int],
    answers: list[Added | None],
    owners: Sequence[Op[Any]] | None,
) -> None:
    first: dict[tuple[str, str], Job] = {}
    for i in keyed:
        first.setdefault((jobs[i].task or "", jobs[i].key or ""), jobs[i])
    await _take_keys(turn, list(first.values()))
    tasks, keys = sorted({task for task, _ in first}), sorted({key for _, key in first})
    holders = {(row[0], row[1]): row for row in await turn.fetch(_HOLDERS, tasks, keys)}
    for i in keyed:
        job = jobs[i]
        row = holders.get((job.task or "", job.key or ""))
        if row is None:
            raise Repeat  # it was forgotten between the two statements
        _, _, holder, digest, until = row
        if holder == job.id and until is None:
            continue
        if digest != job.digest and owners is not None:
            raise Refused(
                owners[i],
                KeyConflict(
                    f"key {job.key!r} of task {job.task} belongs to job {holder}, which has other"
                    " arguments; use another key, or the same arguments"
                ),
            )
        answers[i] = Added(holder, created=False)


async def _check_capacity(
    turn: Turn, jobs: Sequence[Job], owners: Sequence[Op[Any]], answers: Sequence[Added | None]
) -> None:
    if all(op.capacity is None for op in owners):
        return
    queued: dict[str, int] = {}
    wanted: dict[int, dict[str, int]] = {}
    for job, op, answer in zip(jobs, owners, answers, strict=True):
        if answer is None:
            more = wanted.setdefault(id(op), {})
            more[job.queue] = more.get(job.queue, 0) + 1
    for op in dict.fromkeys(owners):
        asked = wanted.get(id(op), {})
        for queue, number in asked.items():
            if queue not in queued:
                queued[queue] = await _queued(turn, queue)
            if op.capacity is not None and queued[queue] + number > op.capacity:
                full = f"queue {queue!r} holds {queued[queue]} of {op.capacity} jobs"
                raise Refused(op, asyncio.QueueFull(full))
        for queue, number in asked.items():
            queued[queue] += number


async def _queued(turn: Turn, queue: str) -> int:
    await turn.lines.load(turn.connection, turn.names)
    lines = [number for (name, _), number in turn.lines.ids.items() if name == queue]
    found: int = await turn.value(_QUEUED, lines)
    return found
