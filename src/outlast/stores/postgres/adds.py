"""How jobs come in: the usual batch at once, the unusual one with a look at each job first."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any

import asyncpg

from outlast.job import Added
from outlast.stores.news import WORK
from outlast.stores.postgres.faults import Careful, Refused, Repeat
from outlast.stores.postgres.keys import answer, drop_replaced, take_keys, times
from outlast.stores.postgres.rows import opts_of
from outlast.stores.postgres.schema import READY, WAITING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Job
    from outlast.stores.postgres.keys import Answers
    from outlast.stores.postgres.op import Op
    from outlast.stores.postgres.turn import Turn

__all__ = [
    "ALIKE",
    "ALIKE_ENDED",
    "IN_ENDED",
    "LONE",
    "MAYBE_ENDED",
    "add_alike",
    "add_carefully",
    "add_following",
    "add_fresh",
    "in_a_row",
]

ALIKE = (
    "INSERT INTO @jobs (id, payload, line, state, created_at, opts)"
    " SELECT unnest(string_to_array($1::text, ',')), unnest($2::bytea[]), $3::int, 1::smallint,"
    " $4::float8, $5::text"
)
"""It fails where an id is there already: to be ready for that would cost each row a second look.

The ids are one text, since the driver asks of each member of a list whether it is one as well.
"""
LONE = (
    "INSERT INTO @jobs (id, payload, line, state, created_at, opts)"
    " VALUES ($1::text, ($2::bytea[])[1], $3::int, 1::smallint, $4::float8, $5::text)"
)
"""``ALIKE`` for one job, which is most of them: without a list to take apart."""
_ANY = (
    "INSERT INTO @jobs (id, line, state, payload, opts, priority, rank, due, key, lane, expires_at,"
    " created_at) SELECT v.*, $12::float8 FROM unnest($1::text[], $2::int[], $3::smallint[],"
    " $4::bytea[], $5::text[], $6::smallint[], $7::bytea[], $8::float8[], $9::text[], $10::text[],"
    " $11::float8[]) AS v ON CONFLICT (id) DO NOTHING"
)
MAYBE_ENDED = "SELECT EXISTS (SELECT FROM @ended WHERE id BETWEEN $1::text AND $2::text)"
IN_ENDED = "SELECT id FROM @ended WHERE id = ANY($1::text[]) LIMIT 1"
ALIKE_ENDED = "SELECT id FROM @ended WHERE id = ANY(string_to_array($1::text, ',')) LIMIT 1"
_QUEUED = (
    "SELECT coalesce(sum(c.queued), 0)::bigint FROM"
    " (SELECT line, ready + delayed AS queued FROM @counts WHERE line = ANY($1::int[])"
    " UNION ALL SELECT line, ready + delayed FROM @changes WHERE line = ANY($1::int[])) AS c"
)
_INFINITY = float("inf")


async def add_fresh(turn: Turn, jobs: Sequence[Job]) -> None:
    """Store jobs of which none is there. Raises ``Careful`` if that is not so."""
    keyed = [job for job in jobs if job.key is not None]
    if keyed and await take_keys(turn, keyed) != len(keyed):
        raise Careful
    if await _insert(turn, jobs) != len(jobs):
        raise Careful
    await _check_ended(turn, [job.id for job in jobs])


async def add_alike(turn: Turn, model: Job, ids: list[str], payloads: list[bytes]) -> None:
    """``add_fresh`` for jobs that differ in nothing but id and payload, and are due at once."""
    line = turn.lines.ids[model.queue, model.task]
    turn.count(line, READY, len(ids))
    turn.tell(WORK, (model.queue,))
    try:
        await turn.execute(ALIKE, in_a_row(ids), payloads, line, turn.now, opts_of(model))
    except asyncpg.UniqueViolationError:
        raise Careful from None
    await _check_ended(turn, ids)


def in_a_row(ids: Sequence[str]) -> str:
    """Ids as ``ALIKE`` takes them. Raises ``Careful`` if they are of a kind that it can't."""
    text = ",".join(ids)
    if text.count(",") >= len(ids) or not text:
        raise Careful
    return text


async def _check_ended(turn: Turn, ids: list[str]) -> None:
    """In a statement of its own: it sees what ended while the insert was on its way.

    Ids of ours are ordered by time, and nothing that was made just now has ended: one look is
    enough for all of them.
    """
    if await turn.value(MAYBE_ENDED, min(ids), max(ids)) and await turn.fetch(IN_ENDED, ids):
        raise Careful


async def _insert(turn: Turn, jobs: Sequence[Job]) -> int:
    """The rows of any jobs; how many were not there yet."""
    now = turn.now
    rows: list[tuple[Any, ...]] = []
    for job in jobs:
        line = turn.lines.ids[job.queue, job.task]
        due, expires = times(job, now)
        state = WAITING if now < due < _INFINITY else READY
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
                due,
                job.key,
                job.lane,
                expires,
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
    found = await answer(turn, jobs, owners)
    await _check_capacity(turn, jobs, owners, found)
    await _store(turn, found)
    answers = iter(zip(jobs, found.answers, strict=True))
    return [[known or Added(job.id) for job, known in islice(answers, len(op.jobs))] for op in ops]


async def add_following(turn: Turn, jobs: Sequence[Job]) -> None:
    """The ``then`` of verdicts: where a key is taken, the job that holds it stands."""
    await _store(turn, await answer(turn, jobs, None))


async def _store(turn: Turn, found: Answers) -> None:
    fresh = list(found.fresh.values())
    if fresh:
        if await _insert(turn, fresh) != len(fresh):
            raise Repeat
        if await turn.fetch(IN_ENDED, list(found.fresh)):
            raise Repeat
        await drop_replaced(turn, found.replaced)


async def _check_capacity(
    turn: Turn, jobs: Sequence[Job], owners: Sequence[Op[Any]], found: Answers
) -> None:
    if all(op.capacity is None for op in owners):
        return
    queued: dict[str, int] = {}
    wanted: dict[int, dict[str, int]] = {}
    for job, op, known in zip(jobs, owners, found.answers, strict=True):
        if known is None and job.id not in found.replaced:
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
    return found + turn.queued(lines)
