"""What people and handles read, without changing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from outlast.errors import JobNotFound
from outlast.job import Depth, Status
from outlast.store import Line, WorkerInfo
from outlast.stores.postgres.rows import ENDED, LIVE, STATES, shown, texts
from outlast.stores.postgres.schema import RUNNING, Names
from outlast.stores.postgres.steering import lines_of_queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Job
    from outlast.stores.postgres.turn import Turn

__all__ = [
    "HAVE_ENDED",
    "count",
    "depth",
    "ended",
    "find",
    "get",
    "lines",
    "namespaces",
    "workers",
]

_BY_IDS = (
    f"SELECT {LIVE} FROM @jobs WHERE id = ANY($1::text[])"
    f" UNION ALL SELECT {ENDED} FROM @ended WHERE id = ANY($1::text[])"
)
HAVE_ENDED = (
    "SELECT j.id, false FROM @jobs j WHERE j.id = ANY($1::text[])"
    " UNION ALL SELECT e.id, true FROM @ended e WHERE e.id = ANY($1::text[])"
)
_PLACE = (
    "SELECT seq FROM @jobs WHERE id = $1::text UNION ALL SELECT seq FROM @ended WHERE id = $1::text"
)
_COUNTS = (
    "SELECT l.id, l.queue, l.task, coalesce(sum(c.ready), 0)::bigint,"
    " coalesce(sum(c.delayed), 0)::bigint, coalesce(sum(c.running), 0)::bigint,"
    " coalesce(sum(c.done), 0)::bigint, coalesce(sum(c.dead), 0)::bigint,"
    " coalesce(sum(c.cancelled), 0)::bigint FROM @lines l LEFT JOIN"
    " (SELECT * FROM @counts UNION ALL SELECT line, ready, delayed, running, done, dead, cancelled"
    " FROM @changes) AS c ON c.line = l.id WHERE $1::text IS NULL OR l.queue = $1::text"
    " GROUP BY l.id, l.queue, l.task ORDER BY l.id"
)
_DUE = "SELECT line, count(*) FROM @jobs WHERE state = 0 AND due <= $1::float8 GROUP BY line"
_OLDEST = (
    "SELECT created_at FROM @jobs WHERE line = $1::int AND state = 1"
    " ORDER BY priority DESC, rank, due, seq LIMIT 1"
)
_PAUSES = "SELECT queue FROM @pauses"
_WORKERS = "SELECT info, seen_at FROM @workers WHERE seen_at >= $1::float8 ORDER BY id"
_SCHEMAS = (
    "SELECT n.nspname FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid"
    " WHERE c.relname = 'places' AND c.relkind = 'S' AND has_schema_privilege(n.oid, 'USAGE')"
    " AND (n.nspname = $1::text OR starts_with(n.nspname::text, $1::text || '_'))"
)
_USED = (
    "SELECT namespace FROM @meta WHERE EXISTS (SELECT 1 FROM @lines)"
    " OR EXISTS (SELECT 1 FROM @workers)"
)
_COUNT_LIVE = (
    "SELECT count(*) FROM @jobs WHERE line = ANY($1::int[]) AND state = ANY($2::smallint[])"
)
_COUNT_ENDED = (
    "SELECT count(*) FROM @ended WHERE line = ANY($1::int[]) AND state = ANY($2::smallint[])"
)


async def get(turn: Turn, ids: Sequence[str]) -> list[Job | None]:
    """See ``Ledger.get``."""
    rows = await turn.fetch(_BY_IDS, texts(ids))
    jobs = {row[1]: shown(row, await turn.name(row[2])) for row in rows}
    return [jobs.get(id_) for id_ in ids]


async def find(
    turn: Turn,
    *,
    status: Sequence[Status],
    queue: str | None,
    task: str | None,
    key: str | None,
    since: float | None,
    until: float | None,
    after: str | None,
    limit: int,
) -> list[Job]:
    """See ``Ledger.find``."""
    if len(texts([text for text in (key, after) if text is not None])) < len({key, after} - {None}):
        return []
    await turn.lines.load(turn.connection, turn.names)
    mine = [
        number
        for number, (its_queue, its_task) in turn.lines.names.items()
        if queue in (None, its_queue) and task in (None, its_task)
    ]
    states = [state for one in status or STATES for state in STATES[one]]
    values: list[Any] = [mine, states, max(0, limit)]
    where = ["line = ANY($1::int[])", "state = ANY($2::smallint[])"]
    source = "{}"
    if key is not None:
        # Looked up before all else: few rows have it, whatever the planner thinks of the rest.
        values.append(key)
        source = "(SELECT * FROM {} WHERE key = $4::text OFFSET 0) AS keyed"
    for condition, value in (
        ("created_at >= ${}::float8", since),
        ("created_at <= ${}::float8", until),
    ):
        if value is not None:
            values.append(value)
            where.append(condition.format(len(values)))
    if after is not None:
        # Its page may be gone; ids of ours are ordered by time, so the next page isn't.
        last = await turn.value(_PLACE, after)
        values.append(after if last is None else last)
        where.append(
            f"id < ${len(values)}::text" if last is None else f"seq < ${len(values)}::bigint"
        )
    rest = f"WHERE {' AND '.join(where)} ORDER BY seq DESC LIMIT $3::int"
    parts = [
        f"(SELECT {columns} FROM {source.format(table)} {rest})"
        for columns, table, wanted in (
            (LIVE, "@jobs", any(state <= RUNNING for state in states)),
            (ENDED, "@ended", any(state > RUNNING for state in states)),
        )
        if wanted
    ]
    text = f"SELECT * FROM ({' UNION ALL '.join(parts)}) AS p ORDER BY seq DESC LIMIT $3::int"
    return [shown(row, await turn.name(row[2])) for row in await turn.fetch(text, *values)]


async def ended(turn: Turn, ids: Sequence[str]) -> list[Job]:
    """Those that have ended. Raises ``JobNotFound`` for what isn't stored."""
    found: dict[str, bool] = dict(await turn.fetch(HAVE_ENDED, texts(ids)))
    for id_ in ids:
        if id_ not in found:
            raise JobNotFound(f"no job {id_} is stored: it never was, or it was deleted")
    over = [id_ for id_ in ids if found[id_]]
    jobs = await get(turn, over) if over else []
    return [job for job in jobs if job is not None and job.status.ended]


async def depth(turn: Turn, queue: str) -> Depth:
    """See ``Store.depth``."""
    total = [0] * 6
    for _, _, _, *counts in await _counts(turn, queue):
        total = [a + b for a, b in zip(total, counts, strict=True)]
    return _depth(total)


async def lines(turn: Turn) -> list[Line]:
    """See ``Ledger.lines``."""
    paused = {queue for (queue,) in await turn.fetch(_PAUSES)}
    return [
        Line(
            queue=queue,
            task=task,
            depth=_depth(counts),
            paused=queue in paused,
            oldest=await turn.value(_OLDEST, number),
        )
        for number, queue, task, *counts in await _counts(turn, None)
    ]


async def _counts(turn: Turn, queue: str | None) -> list[list[Any]]:
    rows = [list(row) for row in await turn.fetch(_COUNTS, queue)]
    due: dict[int, int] = dict(await turn.fetch(_DUE, turn.now))
    for row in rows:
        # What has come due is counted as ready, though only the next claim moves it.
        come = due.get(row[0], 0)
        row[3] += come
        row[4] -= come
    return rows


async def count(turn: Turn, queue: str, status: Sequence[Status]) -> int:
    """How many jobs ``purge`` would delete. Raises ``JobNotFound`` as it does."""
    mine = await lines_of_queue(turn, queue)
    states = [s for one in status if one is not Status.RUNNING for s in STATES[one]]
    live: int = await turn.value(_COUNT_LIVE, mine, [s for s in states if s < RUNNING])
    over: int = await turn.value(_COUNT_ENDED, mine, [s for s in states if s > RUNNING])
    return live + over


async def workers(turn: Turn, since: float) -> list[WorkerInfo]:
    """See ``Ledger.workers``."""
    found = []
    for info, seen_at in await turn.fetch(_WORKERS, turn.now - since):
        worker = msgspec.json.decode(info, type=WorkerInfo)
        found.append(msgspec.structs.replace(worker, seen_at=seen_at))
    return found


async def namespaces(turn: Turn) -> list[str]:
    """See ``Ledger.namespaces``."""
    prefix = turn.names.prefix
    found = []
    for (schema,) in await turn.fetch(_SCHEMAS, prefix):
        other = Names(prefix, "default")
        other.use(schema)
        for (name,) in await turn.connection.fetch(other[_USED]):
            found.append(name)
    return sorted(found)


def _depth(counts: Sequence[int]) -> Depth:
    ready, delayed, running, done, dead, cancelled = counts
    return Depth(
        ready=ready, delayed=delayed, running=running, done=done, dead=dead, cancelled=cancelled
    )
