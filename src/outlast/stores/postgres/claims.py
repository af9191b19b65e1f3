"""Claims: which jobs come next, and handing them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.job import Claim, Failure
from outlast.stores.news import ROOM, WORK
from outlast.stores.postgres.ends import ROW, drop_keys, end, expire
from outlast.stores.postgres.rows import DAMAGE, LIVE, job_from, plus
from outlast.stores.postgres.schema import DEAD, READY, RUNNING, WAITING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from outlast.job import Job
    from outlast.stores.postgres.turn import Turn

__all__ = [
    "DUE",
    "EXPIRED",
    "LANED",
    "LINES",
    "TAKE_MERGED",
    "TAKE_ONE_LINE",
    "Wanted",
    "bury",
    "claim",
    "lines_of",
    "marks",
    "next_due",
    "read",
]

DUE = "EXISTS (SELECT 1 FROM @jobs WHERE state = 0 AND due <= {now}::float8)"
EXPIRED = (
    "EXISTS (SELECT 1 FROM @jobs WHERE expires_at <= {now}::float8 AND state < 3"
    " AND expires_at IS NOT NULL)"
)
LANED = "EXISTS (SELECT 1 FROM @jobs WHERE lane IS NOT NULL AND state < 2)"
LINES = "(SELECT count(*) FROM @lines)"
_AHEAD = (
    f"SELECT {DUE}, {EXPIRED}, {LANED}, {LINES},".format(now="$1")
    + " ARRAY(SELECT queue FROM @pauses), ARRAY(SELECT queue FROM @bounded)"
)
# "state + 0": where rows are named by their numbers, a planner whose statistics are from before
# the backlog came would else walk through all of the index of that state to find them.
_PROMOTE = (
    "WITH p AS (UPDATE @jobs SET state = 1 WHERE state + 0 = 0 AND seq = ANY(ARRAY("
    "SELECT seq FROM @jobs WHERE state = 0 AND due <= $1::float8 ORDER BY due LIMIT $2::int"
    " FOR UPDATE SKIP LOCKED)) RETURNING line) SELECT line, count(*) FROM p GROUP BY line"
)
_ORDER = "priority DESC, rank, due, seq"
# Rows that are locked here are found again by where they lie: they can't move meanwhile. One that
# somebody has changed just now lies elsewhere, and whoever changes one of these says so.
_ONE_LINE = (
    f"SELECT ctid FROM @jobs WHERE line = $1::int AND state = 1 AND lane IS NULL ORDER BY {_ORDER}"
    " LIMIT $2::int FOR UPDATE SKIP LOCKED"
)
# Each line gives as many as it has among the first of all; then only those are locked.
_MERGED = (
    "SELECT p.at FROM (SELECT t.line, count(*) AS n FROM (SELECT l.line, j.* FROM"
    " unnest($1::int[]) AS l(line), LATERAL (SELECT priority, rank, due, seq FROM @jobs"
    f" WHERE line = l.line AND state = 1 AND lane IS NULL ORDER BY {_ORDER} LIMIT $2::int) AS j"
    f" ORDER BY {_ORDER} LIMIT $2::int) AS t GROUP BY t.line) AS q, LATERAL (SELECT ctid AS at"
    f" FROM @jobs WHERE line = q.line AND state = 1 AND lane IS NULL ORDER BY {_ORDER} LIMIT q.n"
    " FOR UPDATE SKIP LOCKED) AS p"
)
_CHOSEN = (
    "SELECT ctid FROM @jobs WHERE seq = ANY($1::bigint[]) AND state + 0 = 1 LIMIT $2::int"
    " FOR UPDATE SKIP LOCKED"
)
_FENCES = 2**63 - 2
_TAKE = (
    "UPDATE @jobs SET state = 3, receipt = $3::bytea, lease = $4::float8, worker = $5::text,"
    f" started_at = $6::float8, attempt = {plus('attempt', 1)},"
    f" fence = greatest(least(fence, {_FENCES}) + 1, $7::bigint)"
    " WHERE ctid = ANY(ARRAY({})) AND state + 0 = 1"
    f" RETURNING {LIVE}"
)
TAKE_ONE_LINE, TAKE_MERGED, _TAKE_CHOSEN = map(_TAKE.format, (_ONE_LINE, _MERGED, _CHOSEN))
_IN_ORDER = (
    "SELECT j.seq, j.lane FROM unnest($1::int[]) AS l(line), LATERAL (SELECT seq, lane, priority,"
    f" rank, due FROM @jobs WHERE line = l.line AND state = 1 ORDER BY {_ORDER} LIMIT $2::int)"
    f" AS j ORDER BY {_ORDER} LIMIT $2::int"
)
_HOLDERS = (
    "SELECT lane, seq FROM @jobs WHERE lane = ANY($1::text[]) AND lane IS NOT NULL"
    " AND (state = 3 OR state < 3 AND attempt > 0)"
)
_HOLD = (
    "UPDATE @jobs SET state = 2 WHERE state + 0 = 1 AND seq = ANY(ARRAY(SELECT seq FROM @jobs"
    " WHERE seq = ANY($1::bigint[]) AND state + 0 = 1 FOR UPDATE SKIP LOCKED))"
)
_TOPS = (
    "SELECT max(t.priority) FROM unnest($1::int[]) AS l(line), LATERAL (SELECT priority FROM @jobs"
    " WHERE line = l.line AND state = 1 AND priority < $2::smallint ORDER BY priority DESC LIMIT 1)"
    " AS t"
)
_NEWEST = (
    "SELECT j.seq, j.lane FROM unnest($1::int[]) AS l(line), LATERAL ((SELECT seq, lane, rank"
    " FROM @jobs WHERE line = l.line AND state = 1 AND priority = $2::smallint AND rank = ''"
    " AND due = 'Infinity' ORDER BY seq DESC LIMIT $3::int) UNION ALL (SELECT seq, lane, rank"
    " FROM @jobs WHERE line = l.line AND state = 1 AND priority = $2::smallint AND (rank > ''"
    " OR due < 'Infinity') ORDER BY rank, seq DESC LIMIT $3::int)) AS j"
    " ORDER BY j.rank, j.seq DESC LIMIT $3::int"
)
_NEXT_DUE = (
    "SELECT min(due) FROM @jobs WHERE state = 0 AND line <> ALL(ARRAY(SELECT l.id FROM @lines l"
    " JOIN @pauses p USING (queue)))"
)
_DAMAGED = (
    f"SELECT {ROW} FROM @jobs WHERE seq = ANY($1::bigint[]) AND receipt = $2::bytea"
    " ORDER BY seq FOR UPDATE"
)
_ABOVE_ALL = 1000
STARTS = 1 << 32
"""How many starts of a job fit below the next epoch in a fence."""
BITE = 2000
"""Jobs that become due, or expire, in one claim; more take another."""


class Wanted(NamedTuple):
    """What ``Store.claim`` is asked for."""

    queues: Collection[str]
    tasks: Collection[str | None]
    limit: int
    lease: float
    worker: str
    newest: bool = False
    patient: bool = False
    """Whether it wants to know, of a claim that finds too little, when the next job comes due."""


async def claim(turn: Turn, token: bytes, wanted: Wanted) -> list[Claim]:
    """See ``Store.claim``."""
    limit, newest = wanted.limit, wanted.newest
    [ahead] = await turn.fetch(_AHEAD, turn.now)
    due, expired, lanes, count, paused, bounded = ahead
    if due:
        await _promote(turn)
    if expired:
        await expire(turn, BITE)
    if count != len(turn.lines.names):
        await turn.lines.load(turn.connection, turn.names)
    lines = lines_of(turn, set(wanted.queues) - set(paused), wanted.tasks)
    if not lines:
        return await _short(turn, wanted, [])
    taken = marks(turn, token, wanted)
    if newest or lanes:
        chosen = await _pick(turn, lines, limit, newest)
        rows = await turn.fetch(_TAKE_CHOSEN, chosen, limit, *taken) if chosen else []
    elif len(lines) == 1:
        rows = await turn.fetch(TAKE_ONE_LINE, lines[0], limit, *taken)
    else:
        rows = await turn.fetch(TAKE_MERGED, lines, limit, *taken)
    claims = read(turn, rows, token, newest)
    await drop_keys(turn, [_key_of(each.job) for each in claims if each.job.key_queued])
    if bounded:
        turn.tell(ROOM, {claim.job.queue for claim in claims if claim.job.queue in bounded})
    return await _short(turn, wanted, claims)


async def _short(turn: Turn, wanted: Wanted, claims: list[Claim]) -> list[Claim]:
    if wanted.patient and len(claims) < wanted.limit:
        turn.due = await turn.value(_NEXT_DUE)
    return claims


def lines_of(turn: Turn, queues: Collection[str], tasks: Collection[str | None]) -> list[int]:
    """The known lines of these tasks in these queues."""
    return [
        number
        for (queue, task), number in turn.lines.ids.items()
        if queue in queues and task in tasks
    ]


def marks(turn: Turn, token: bytes, wanted: Wanted) -> tuple[Any, ...]:
    """What is written into the rows that are taken: $3 to $7."""
    return token, turn.mono + wanted.lease, wanted.worker, turn.now, turn.epoch * STARTS


async def next_due(turn: Turn) -> float | None:
    """In how many seconds the next delayed job comes due, if there is one."""
    due: float | None = await turn.value(_NEXT_DUE)
    return None if due is None else due - turn.now


async def _promote(turn: Turn) -> None:
    """What has become due joins its line."""
    for line, number in await turn.fetch(_PROMOTE, turn.now, BITE):
        turn.moved(line, WAITING, READY, number)
        turn.tell(WORK, ((await turn.name(line))[0],))


async def _pick(turn: Turn, lines: Sequence[int], limit: int, newest: bool) -> list[int]:
    """Choose row by row: one of each lane at most, none of a lane that is held.

    What has to wait for its lane leaves the line (HELD), so that it is passed over only once. One
    lock is held until the commit, so that no two claims look at the lanes at once.
    """
    await turn.lock("lanes")
    chosen: dict[int, str | None] = {}
    while True:
        found = await _newest(turn, lines, limit) if newest else await _in_order(turn, lines, limit)
        rows = [(seq, lane) for seq, lane in found if seq not in chosen]
        holders = await _holders(turn, {lane for _, lane in rows if lane is not None})
        held = []
        for seq, lane in rows[: limit - len(chosen)]:
            if lane is None or (lane not in chosen.values() and holders.get(lane, set()) <= {seq}):
                chosen[seq] = lane
            else:
                held.append(seq)
        if not held or not await turn.execute(_HOLD, held):
            return list(chosen)


async def _holders(turn: Turn, lanes: Collection[str]) -> Mapping[str, set[int]]:
    found: dict[str, set[int]] = {}
    if lanes:
        for lane, seq in await turn.fetch(_HOLDERS, sorted(lanes)):
            found.setdefault(lane, set()).add(seq)
    return found


async def _in_order(turn: Turn, lines: Sequence[int], limit: int) -> list[Any]:
    return await turn.fetch(_IN_ORDER, lines, limit)


async def _newest(turn: Turn, lines: Sequence[int], limit: int) -> list[Any]:
    """Last in, first out: by priority, then rank, then the highest sequence."""
    found: list[Any] = []
    below = _ABOVE_ALL
    while len(found) < limit:
        below = await turn.value(_TOPS, lines, below)
        if below is None:
            break
        found += (await turn.fetch(_NEWEST, lines, below, limit))[: limit - len(found)]
    return found


def _key_of(job: Job) -> tuple[str, str, str]:
    return job.task or "", job.key or "", job.id


def read(turn: Turn, rows: Sequence[Any], token: bytes, newest: bool) -> list[Claim]:
    found: list[tuple[Any, Claim]] = []
    counts: dict[int, int] = {}
    names = turn.lines.names
    for row in rows:
        seq, line = row[0], row[2]
        counts[line] = counts.get(line, 0) + 1
        try:
            job = job_from(row, names[line])
        except DAMAGE:
            turn.damaged.append(seq)
            continue
        due = row[10]
        key = (-job.priority, job.rank, -seq) if newest else (-job.priority, job.rank, due, seq)
        receipt = token + seq.to_bytes(8, "big", signed=True)
        found.append((key, Claim(job, receipt, row[21])))
    for line, number in counts.items():
        turn.moved(line, READY, RUNNING, number)
    found.sort(key=lambda pair: pair[0])
    return [claim for _, claim in found]


async def bury(turn: Turn, seqs: Sequence[int], token: bytes) -> None:
    """What was claimed and can't be read is kept, and not run; the rest goes on.

    Somebody else has written into the row, or a newer outlast that does not serve this one.
    """
    rows = await turn.fetch(_DAMAGED, list(seqs), token)
    why = "its row in the table jobs can't be read; the job was not run"
    await end(turn, rows, DEAD, Failure(kind="damaged", message=why))
    # Those who found too little because of them may find more.
    turn.tell(WORK, {(await turn.name(row[2]))[0] for row in rows})
