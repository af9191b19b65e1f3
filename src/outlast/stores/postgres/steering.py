"""What people do to jobs and queues by hand: cancel, revive, purge, pause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.errors import JobNotFound, KeyConflict
from outlast.job import Failure, Status
from outlast.stores.news import ENDED, ROOM, WORK
from outlast.stores.postgres.ends import ROW, drop_keys, end, free_lanes
from outlast.stores.postgres.faults import Repeat
from outlast.stores.postgres.rows import STATES, load_opts, texts
from outlast.stores.postgres.schema import CANCELLED, READY, RUNNING
from outlast.stores.postgres.steps import forget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlast.store import Cancelled
    from outlast.stores.postgres.turn import Turn

__all__ = ["cancel", "lines_of_queue", "pause", "purge", "revive"]

BITE = 5000

_BY_ID = f"SELECT {ROW} FROM @jobs WHERE id = ANY($1::text[]) ORDER BY seq FOR UPDATE"
_HAVE_ENDED = "SELECT id FROM @ended WHERE id = ANY($1::text[])"
_ASK = "UPDATE @jobs SET cancel = true WHERE seq = ANY($1::bigint[])"
_TO_REVIVE = (
    "SELECT seq, id, line, state, key, lane, opts FROM @ended WHERE id = ANY($1::text[])"
    " AND state > 4 ORDER BY seq FOR UPDATE"
)
_REVIVE = (
    "WITH d AS (DELETE FROM @ended WHERE id = ANY($1::text[]) RETURNING *)"
    " INSERT INTO @jobs (seq, id, line, state, payload, created_at, opts, priority, rank, key,"
    " lane, failure, fence) SELECT seq, id, line, 1::smallint, payload, created_at, opts, priority,"
    " rank, key, lane, failure, fence FROM d ON CONFLICT DO NOTHING"
)
_HOLDERS = (
    "SELECT task, key, job, until FROM @keys WHERE task = ANY($1::text[]) AND key = ANY($2::text[])"
    " ORDER BY task, key FOR UPDATE"
)
_TAKE_KEYS = (
    "INSERT INTO @keys AS k (task, key, job, digest)"
    " SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[])"
    " ON CONFLICT (task, key) DO UPDATE SET job = excluded.job, digest = excluded.digest,"
    " until = NULL WHERE k.job = excluded.job OR k.until <= $5::float8"
)
_QUEUE = "SELECT id FROM @lines WHERE queue = $1::text"
_LIVE_ROWS = (
    f"SELECT {ROW} FROM @jobs WHERE line = ANY($1::int[]) AND state = ANY($2::smallint[])"
    " AND state < 3 ORDER BY seq LIMIT $3::int FOR UPDATE SKIP LOCKED"
)
_DROP_LIVE = "DELETE FROM @jobs WHERE seq = ANY($1::bigint[])"
_DROP_ENDED = (
    "DELETE FROM @ended WHERE id = ANY(ARRAY(SELECT id FROM @ended WHERE line = ANY($1::int[])"
    " AND state = ANY($2::smallint[]) ORDER BY seq LIMIT $3::int FOR UPDATE SKIP LOCKED))"
    f" RETURNING {ROW}"
)
_PAUSE = "INSERT INTO @pauses (queue) VALUES ($1::text) ON CONFLICT DO NOTHING"
_RESUME = "DELETE FROM @pauses WHERE queue = $1::text"


async def cancel(turn: Turn, ids: Sequence[str]) -> list[Cancelled]:
    """See ``Ledger.cancel``."""
    rows = {row[1]: row for row in await turn.fetch(_BY_ID, texts(ids))}
    ended = {id_ for (id_,) in await turn.fetch(_HAVE_ENDED, texts(ids))}
    answers: list[Cancelled] = []
    now: dict[str, Any] = {}
    asked: list[int] = []
    for id_ in ids:
        row = rows.get(id_)
        if id_ in ended or id_ in now:
            answers.append("ended")
        elif row is None:
            answers.append("missing")
        elif row[3] == RUNNING:
            asked.append(row[0])
            answers.append("requested")
        else:
            now[id_] = row
            answers.append("cancelled")
    if asked:
        await turn.execute(_ASK, asked)
    failure = Failure(kind="cancelled", message="cancelled before it started")
    await end(turn, list(now.values()), CANCELLED, failure)
    return answers


async def revive(turn: Turn, ids: Sequence[str]) -> list[bool]:
    """See ``Ledger.revive``: all keys are looked at before anything is written."""
    rows = {row[1]: row for row in await turn.fetch(_TO_REVIVE, texts(ids))}
    seen: set[str] = set()
    answers = []
    for id_ in ids:
        answers.append(id_ in rows and id_ not in seen)
        seen.add(id_)
    if not rows:
        return answers
    keyed = await _check_keys(turn, rows)
    if await turn.execute(_REVIVE, sorted(rows)) != len(rows):
        raise Repeat
    for _, _, line, state, *_ in rows.values():
        turn.moved(line, state, READY)
        turn.tell(WORK, ((await turn.name(line))[0],))
    if keyed:
        taken = [(*name, id_, load_opts(rows[id_][6]).digest) for name, id_ in keyed.items()]
        columns = map(list, zip(*sorted(taken), strict=True))
        if await turn.execute(_TAKE_KEYS, *columns, turn.now) != len(keyed):
            raise Repeat
    return answers


async def _check_keys(turn: Turn, rows: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Which job takes which key. Raises ``KeyConflict`` if one can't have its key again."""
    wanted = [
        (((await turn.name(row[2]))[1] or "", row[4]), id_)
        for id_, row in rows.items()
        if row[4] is not None
    ]
    if not wanted:
        return {}
    tasks, keys = sorted({n[0] for n, _ in wanted}), sorted({n[1] for n, _ in wanted})
    holders: dict[tuple[str, str], str] = {}
    for task, key, job, until in await turn.fetch(_HOLDERS, tasks, keys):
        if until is None or until > turn.now:
            holders[task, key] = job
    found: dict[tuple[str, str], str] = {}
    for name, id_ in wanted:
        holder = found.setdefault(name, holders.get(name, id_))
        if holder != id_:
            raise KeyConflict(
                f"job {id_} can't be revived: its key {name[1]!r} belongs to job {holder}"
            )
    return found


async def lines_of_queue(turn: Turn, queue: str) -> list[int]:
    """The lines of a queue. Raises ``JobNotFound`` if it was never used."""
    lines = [number for (number,) in await turn.fetch(_QUEUE, queue)]
    if not lines:
        raise JobNotFound(f"no queue {queue!r} was ever used here")
    return lines


async def purge(turn: Turn, queue: str, status: Sequence[Status]) -> int:
    """See ``Ledger.purge``. ``BITE`` of them in one transaction: fewer are the last."""
    lines = await lines_of_queue(turn, queue)
    states = [s for one in status if one is not Status.RUNNING for s in STATES[one]]
    rows: list[Any] = []
    if Status.QUEUED in status:
        rows = await turn.fetch(_LIVE_ROWS, lines, [s for s in states if s < RUNNING], BITE)
        await turn.execute(_DROP_LIVE, [row[0] for row in rows])
    if len(rows) < BITE:
        over = [s for s in states if s > RUNNING]
        rows += await turn.fetch(_DROP_ENDED, lines, over, BITE - len(rows)) if over else []
    await forget(turn, [row[1] for row in rows])
    keyed = []
    for _, id_, line, state, key, _, _ in rows:
        turn.count(line, state, -1)
        if key is not None:
            keyed.append(((await turn.name(line))[1] or "", key, id_))
    await drop_keys(turn, keyed)
    await free_lanes(turn, {row[5] for row in rows if row[5] is not None})
    if rows:
        turn.tell(ENDED)
        turn.tell(ROOM, (queue,))
    return len(rows)


async def pause(turn: Turn, queue: str, paused: bool) -> None:
    """See ``Ledger.pause``."""
    await turn.execute(_PAUSE if paused else _RESUME, queue)
    if not paused:
        turn.tell(WORK, (queue,))
