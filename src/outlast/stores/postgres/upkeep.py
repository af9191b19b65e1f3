"""What keeps the store in order: leases, crashes, pruning, and the sums of what was counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.job import Failure, Lost
from outlast.stores.news import WORK
from outlast.stores.postgres.ends import ROW, end, expire, free_lanes
from outlast.stores.postgres.rows import dump, load_opts, plus, sequence
from outlast.stores.postgres.schema import CANCELLED, DEAD, READY, RUNNING, lock_number
from outlast.stores.postgres.steps import forget, forget_events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Claim, Death, Progress
    from outlast.store import WorkerInfo
    from outlast.stores.postgres.turn import Turn

__all__ = ["beat", "compact", "leave", "prune", "recover", "recover_worker", "renew"]

KEPT = 1_000_000
"""Done jobs kept at most, whatever their time."""
_WORKER_MEMORY = 3600.0
_COMPACTED = 20_000

# A lease that still has most of its time is left alone: a write a third as often.
_RENEW = (
    "UPDATE @jobs j SET lease = $3::float8"
    " FROM unnest($1::bigint[], $2::bytea[]) AS v(place, token)"
    " WHERE j.seq = ANY($1::bigint[]) AND j.seq = v.place AND j.receipt = v.token"
    " AND (j.lease > $3::float8 OR j.lease < $4::float8)"
)
_HOLDS = "SELECT seq, receipt, cancel FROM @jobs WHERE seq = ANY($1::bigint[]) AND state = 3"
_NOTE = (
    "UPDATE @jobs j SET progress = v.note FROM unnest($1::bigint[], $2::bytea[], $3::text[])"
    " AS v(place, token, note)"
    " WHERE j.seq = ANY($1::bigint[]) AND j.seq = v.place AND j.receipt = v.token"
)
_MARKS = "suspect, crashes, cancel"
# One of no time at all, or of no end, was written by hand: it would never run out.
_OVERDUE = (
    f"SELECT {ROW}, {_MARKS} FROM @jobs WHERE state = 3"
    " AND (lease > $1::float8 AND lease < 'Infinity') IS NOT TRUE"
    " ORDER BY seq LIMIT $2::int FOR UPDATE SKIP LOCKED"
)
_OF_WORKER = (
    f"SELECT {ROW}, {_MARKS} FROM @jobs WHERE state = 3 AND worker = $1::text"
    " ORDER BY seq FOR UPDATE"
)
_PUT_BACK = (
    "UPDATE @jobs j SET state = 1, suspect = v.marked,"
    f" crashes = {plus('j.crashes', 'v.crashed')},"
    " attempt = j.attempt - v.unstarted, failure = coalesce(v.why, j.failure), receipt = NULL,"
    " lease = NULL, worker = NULL FROM unnest($1::bigint[], $2::boolean[], $3::int[], $4::int[],"
    " $5::text[]) AS v(place, marked, crashed, unstarted, why)"
    " WHERE j.seq = ANY($1::bigint[]) AND j.seq = v.place"
)
_GONE = (
    "DELETE FROM @ended WHERE id = ANY(ARRAY(SELECT id FROM @ended WHERE gone_at <= $1::float8"
    " AND gone_at IS NOT NULL ORDER BY gone_at LIMIT $2::int FOR UPDATE SKIP LOCKED))"
    " RETURNING line, state, id"
)
_OLDEST = (
    "DELETE FROM @ended WHERE id = ANY(ARRAY(SELECT id FROM @ended WHERE gone_at IS NOT NULL"
    " AND state = 4 ORDER BY gone_at LIMIT $1::int FOR UPDATE SKIP LOCKED))"
    " RETURNING line, state, id"
)
_DONE = (
    "SELECT coalesce(sum(c.done), 0)::bigint FROM (SELECT done FROM @counts"
    " UNION ALL SELECT done FROM @changes) AS c"
)
_OLD_KEYS = (
    "DELETE FROM @keys WHERE ctid = ANY(ARRAY(SELECT ctid FROM @keys WHERE until <= $1::float8"
    " AND until IS NOT NULL ORDER BY until LIMIT $2::int FOR UPDATE SKIP LOCKED))"
)
_COMPACT = (
    "WITH c AS (DELETE FROM @changes WHERE n = ANY(ARRAY(SELECT n FROM @changes ORDER BY n"
    " LIMIT $1::int FOR UPDATE SKIP LOCKED)) RETURNING *)"
    " INSERT INTO @counts AS t (line, ready, delayed, running, done, dead, cancelled)"
    " SELECT line, sum(ready), sum(delayed), sum(running), sum(done), sum(dead), sum(cancelled)"
    " FROM c GROUP BY line ORDER BY line ON CONFLICT (line) DO UPDATE SET"
    " ready = t.ready + excluded.ready, delayed = t.delayed + excluded.delayed,"
    " running = t.running + excluded.running, done = t.done + excluded.done,"
    " dead = t.dead + excluded.dead, cancelled = t.cancelled + excluded.cancelled"
)
_BEAT = (
    "INSERT INTO @workers (id, seen_at, info) VALUES ($1::text, $2::float8, $3::text)"
    " ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, info = excluded.info"
)
_LEAVE = "DELETE FROM @workers WHERE id = $1::text"
_FORGET = "DELETE FROM @workers WHERE seen_at < $1::float8"


async def renew(
    turn: Turn, claims: Sequence[Claim], lease: float, notes: Sequence[Progress]
) -> list[Lost]:
    """See ``Store.renew``."""
    if not claims:
        return []
    by_id = {claim.job.id: (sequence(claim.receipt), claim.receipt[:16]) for claim in claims}
    places = {(sequence(claim.receipt), claim.receipt[:16]) for claim in claims}
    numbers, tokens = map(list, zip(*sorted(places), strict=True))
    until = turn.mono + lease
    await turn.execute(_RENEW, numbers, tokens, until, turn.mono + lease * 0.8)
    held = {(seq, token): cancel for seq, token, cancel in await turn.fetch(_HOLDS, numbers)}
    lost: list[Lost] = []
    for claim in claims:
        cancel = held.get((sequence(claim.receipt), claim.receipt[:16]))
        if cancel is None or cancel:
            lost.append(Lost(claim, "lost" if cancel is None else "cancelled"))
    rows = [(*by_id[note.id], dump(note).decode()) for note in notes if note.id in by_id]
    if rows:
        await turn.execute(_NOTE, *map(list, zip(*sorted(rows), strict=True)))
    return lost


# -- crashes


async def recover(turn: Turn, limit: int) -> int:
    """See ``Store.recover``: nobody knows what became of these workers."""
    if limit <= 0:
        return 0
    rows = await turn.fetch(_OVERDUE, turn.mono, limit)
    failure = Failure(kind="crash", message="the lease ran out: the worker died or was cut off")
    await _return(turn, [(row, "crash" if row[7] else "suspect") for row in rows], failure)
    return len(rows)


async def recover_worker(turn: Turn, worker: str, cause: Death) -> int:
    """See ``Store.recover_worker``."""
    await leave(turn, worker)
    rows = await turn.fetch(_OF_WORKER, worker)
    started = {row[1] for row in rows if cause.started is None or row[1] in cause.started}
    blamed = started if cause.blamed is None else started & cause.blamed
    fate = "crash" if cause.sole else "suspect"
    fates = [
        (row, fate if row[1] in blamed else "interrupted" if row[1] in started else "untouched")
        for row in rows
    ]
    failure = Failure(
        kind="crash", message=_how(cause), signal=cause.signal, exit_code=cause.exit_code
    )
    await _return(turn, fates, failure)
    return len(rows)


async def _return(turn: Turn, fates: Sequence[tuple[Any, str]], failure: Failure) -> None:
    """Put jobs of a dead worker back into their place, or bury those whose crashes are spent."""
    back: list[tuple[int, bool, int, int, str | None]] = []
    dead: list[Any] = []
    cancelled: dict[bool, list[Any]] = {False: [], True: []}
    untouched: list[int] = []
    lanes: set[str] = set()
    why = dump(failure).decode()
    for row, fate in fates:
        seq, _, line, _, _, lane, opts, suspect, crashes, cancel = row
        crashed = fate == "crash"
        limit = load_opts(opts).max_crashes
        if crashed and limit is not None and crashes + 1 >= limit:
            dead.append(row)
        elif cancel:
            cancelled[crashed].append(row)
            if fate == "untouched":
                untouched.append(seq)
        else:
            marked = crashed or fate == "suspect" or (fate == "untouched" and suspect)
            unstarted = fate == "untouched"
            back.append((seq, marked, int(crashed), int(unstarted), why if crashed else None))
            turn.moved(line, RUNNING, READY)
            turn.tell(WORK, ((await turn.name(line))[0],))
            if unstarted and lane is not None:
                lanes.add(lane)
    if back:
        await turn.execute(_PUT_BACK, *map(list, zip(*back, strict=True)))
        await free_lanes(turn, lanes)
    await end(turn, dead, DEAD, failure, crashed=1)
    asked = Failure(kind="cancelled", message="cancelled while it ran")
    for crashed, rows in cancelled.items():
        await end(turn, rows, CANCELLED, asked, int(crashed), untouched)


def _how(cause: Death) -> str:
    how = "the worker died"
    if cause.signal is not None:
        how += f" by signal {cause.signal}"
    elif cause.exit_code is not None:
        how += f" with exit code {cause.exit_code}"
    return f"{how}: {cause.message}" if cause.message else how


# -- time passes


async def prune(turn: Turn, limit: int) -> int:
    """See ``Store.prune``."""
    done = await expire(turn, limit)
    if done < limit:
        done += await _dropped(turn, await turn.fetch(_GONE, turn.now, limit - done))
    if done < limit:
        over = await turn.value(_DONE) - KEPT
        if over > 0:
            rows = await turn.fetch(_OLDEST, min(over, limit - done))
            done += await _dropped(turn, rows)
    if done < limit:
        done += await turn.execute(_OLD_KEYS, turn.now, limit - done)
    if done < limit:
        done += await forget_events(turn, limit - done)
    await turn.execute(_FORGET, turn.now - _WORKER_MEMORY)
    await compact(turn)
    return done


async def _dropped(turn: Turn, rows: Sequence[tuple[int, int, str]]) -> int:
    for line, state, _ in rows:
        turn.count(line, state, -1)
    await forget(turn, [id_ for _, _, id_ in rows])
    return len(rows)


async def compact(turn: Turn) -> None:
    """Sum up the log of changes. One at a time does: who comes second goes on without."""
    number = lock_number(turn.names.schema, "compact")
    if await turn.value("SELECT pg_try_advisory_xact_lock($1::bigint)", number):
        await turn.execute(_COMPACT, _COMPACTED)


async def beat(turn: Turn, info: WorkerInfo) -> None:
    """See ``Ledger.beat``."""
    await turn.execute(_BEAT, info.id, turn.now, dump(info).decode())


async def leave(turn: Turn, worker: str) -> None:
    """See ``Ledger.leave``."""
    await turn.execute(_LEAVE, worker)
