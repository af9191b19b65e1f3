"""How live jobs end outside of a verdict, and what an end sets free: keys and lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.job import Failure
from outlast.stores.news import ENDED, ROOM, WORK
from outlast.stores.postgres.rows import dump, load_opts, plus
from outlast.stores.postgres.schema import CANCELLED, DEAD
from outlast.stores.postgres.steps import forget

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from outlast.stores.postgres.turn import Turn

__all__ = ["MOVED", "ROW", "drop_keys", "end", "expire", "free_keys", "free_lanes"]

ROW = "seq, id, line, state, key, lane, opts"
"""What ``end`` needs of a job; the rows must be locked."""
MOVED = (
    "seq, id, line, payload, created_at, opts, {attempt}, priority, rank, due, key, lane,"
    " expires_at, {failures}, {crashes}, suspect, progress, worker, started_at, fence"
)
"""What goes with a job from the live ones to the ended ones, besides how it ended."""

_EXPIRED = (
    f"SELECT {ROW} FROM @jobs WHERE expires_at <= $1::float8 AND expires_at IS NOT NULL"
    " AND state < 3 ORDER BY expires_at LIMIT $2::int FOR UPDATE SKIP LOCKED"
)
_COLUMNS = MOVED.format(attempt="attempt", failures="failures", crashes="crashes")
_END = (
    "WITH d AS (DELETE FROM @jobs j USING unnest($1::bigint[], $2::float8[], $3::int[], $4::int[])"
    " AS v(place, gone, crashed, unstarted)"
    " WHERE j.seq = ANY($1::bigint[]) AND j.seq = v.place RETURNING j.*, v.*)"
    f" INSERT INTO @ended ({_COLUMNS}, state, failure, finished_at, gone_at) SELECT "
    + MOVED.format(
        attempt="attempt - unstarted", failures="failures", crashes=plus("crashes", "crashed")
    )
    + ", $5::smallint, coalesce($6::text, failure), $7::float8, gone FROM d"
)
_DROP = "DELETE FROM @jobs WHERE seq = ANY($1::bigint[])"
_FREE_KEYS = (
    "UPDATE @keys k SET until = v.until FROM unnest($1::text[], $2::text[], $3::text[],"
    " $4::float8[]) AS v(task, key, job, until) WHERE k.task = ANY($5::text[])"
    " AND k.key = ANY($2::text[]) AND k.task = v.task AND k.key = v.key AND k.job = v.job"
)
_DROP_KEYS = (
    "DELETE FROM @keys WHERE task = ANY($1::text[]) AND key = ANY($2::text[])"
    " AND job = ANY($3::text[])"
)
_NEXT_IN_LANE = (
    "UPDATE @jobs SET state = 1 WHERE seq = ANY(ARRAY(SELECT DISTINCT ON (line) seq FROM @jobs"
    " WHERE lane = $1::text AND lane IS NOT NULL AND state = 2"
    " ORDER BY line, priority DESC, rank, due, seq))"
    " AND NOT EXISTS (SELECT 1 FROM @jobs WHERE lane = $1::text AND lane IS NOT NULL"
    " AND (state = 3 OR state < 3 AND attempt > 0)) RETURNING line"
)
"""The first of each line: the first of all may be in a paused queue, or of a task nobody knows."""


async def end(
    turn: Turn,
    rows: Sequence[Any],
    state: int,
    failure: Failure | None,
    crashed: int = 0,
    unstarted: Iterable[int] = (),
) -> None:
    """End these jobs. ``crashed`` is added to their crashes; ``unstarted`` lose their attempt."""
    if not rows:
        return
    keeps = {row[0]: load_opts(row[6]).keep for row in rows}
    gone = [seq for seq, keep in keeps.items() if keep == 0 and state != DEAD]
    kept = [seq for seq in keeps if seq not in set(gone)]
    if gone:
        await turn.execute(_DROP, gone)
        await forget(turn, [row[1] for row in rows if row[0] in set(gone)])
    if kept:
        moments = [_gone_at(keeps[seq], state, turn.now) for seq in kept]
        takes = [int(seq in set(unstarted)) for seq in kept]
        why = None if failure is None else dump(failure).decode()
        crashes = [crashed] * len(kept)
        await turn.execute(_END, kept, moments, crashes, takes, state, why, turn.now)
    keyed: list[tuple[str, str, str, float]] = []
    for seq, id_, line, before, key, _, opts, *_ in rows:
        queue, task = await turn.name(line)
        turn.count(line, before, -1)
        if keeps[seq] != 0 or state == DEAD:
            turn.count(line, state, 1)
        turn.tell(ROOM, (queue,))
        if key is not None:
            keyed.append((task or "", key, id_, turn.now + load_opts(opts).keep_key))
    turn.tell(ENDED)
    await free_keys(turn, keyed)
    await free_lanes(turn, {row[5] for row in rows if row[5] is not None})


def _gone_at(keep: float | None, state: int, now: float) -> float | None:
    return None if keep is None or state == DEAD else now + keep


async def expire(turn: Turn, limit: int) -> int:
    """Cancel queued jobs past their ``expires_at``; how many."""
    rows = await turn.fetch(_EXPIRED, turn.now, limit)
    await end(turn, rows, CANCELLED, Failure(kind="expired", message="not started in time"))
    return len(rows)


async def free_keys(turn: Turn, keyed: Sequence[tuple[str, str, str, float]]) -> None:
    """(task, key, id, until): remember the keys of ended jobs until then."""
    if keyed:
        columns = [list(column) for column in zip(*sorted(keyed), strict=True)]
        await turn.execute(_FREE_KEYS, *columns, sorted({task for task, *_ in keyed}))


async def drop_keys(turn: Turn, keyed: Sequence[tuple[str, str, str]]) -> None:
    """(task, key, id): let go of the keys of these jobs, as far as they hold them."""
    if keyed:
        tasks, keys, jobs = (sorted(set(column)) for column in zip(*keyed, strict=True))
        await turn.execute(_DROP_KEYS, tasks, keys, jobs)


async def free_lanes(turn: Turn, lanes: Iterable[str]) -> None:
    """A job of each lane has ended: let the next one come.

    Under the lock of the claims, and so after whatever a claim has put aside.
    """
    wanted = sorted(lanes)
    if wanted:
        await turn.lock("lanes")
    for lane in wanted:
        for (line,) in await turn.fetch(_NEXT_IN_LANE, lane):
            turn.tell(WORK, ((await turn.name(line))[0],))
