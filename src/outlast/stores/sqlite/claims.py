"""Claims: which jobs come next, and handing them out."""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from outlast.errors import StoreDamaged
from outlast.job import Claim, Failure, Status
from outlast.stores.news import ROOM, WORK
from outlast.stores.sqlite.keys import let_go
from outlast.stores.sqlite.rows import (
    DAMAGE,
    HEAD,
    TAIL,
    USUAL,
    JobMaker,
    alike,
    crc,
    dump,
    fetch,
    job_from,
    multiplied,
    opts_of,
    parse_columns,
)
from outlast.stores.sqlite.schema import CANCELLED, DEAD, READY, RUNNING, WAITING
from outlast.stores.sqlite.steps import EPOCH, STARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outlast.chance import Chance
    from outlast.job import Job
    from outlast.stores.sqlite.moves import Moves

__all__ = ["claim", "expire", "sequence", "start"]

_AHEAD = (
    "SELECT EXISTS (SELECT 1 FROM jobs WHERE state = 0 AND due <= ?1),"
    " EXISTS (SELECT 1 FROM jobs WHERE expires_at <= ?1 AND state < 3 AND space = ?2),"
    " EXISTS (SELECT 1 FROM jobs WHERE space = ?2 AND lane IS NOT NULL AND state < 4),"
    " (SELECT json_group_array(id) FROM lines WHERE space = ?2 AND ready > 0),"
    " (SELECT json_group_array(queue) FROM pauses WHERE space = ?2),"
    f" {EPOCH}"
)
_DUE = "SELECT seq, line FROM jobs WHERE state = 0 AND due <= ? ORDER BY due LIMIT ?"
_COME_DUE = (
    "SELECT json_group_array(json_array(line, n))"
    f" FROM (SELECT line, count(*) AS n FROM ({_DUE}) GROUP BY line)"
)
_PROMOTE = f"UPDATE jobs SET state = 1 WHERE seq IN (SELECT seq FROM ({_DUE}))"
_EXPIRED = (
    "SELECT seq, id, line, state, key, lane, opts FROM jobs"
    " WHERE expires_at <= ? AND state < 3 AND space = ? LIMIT ?"
)
_HEAD = "SELECT seq, priority, rank, due FROM jobs WHERE line = %d AND state = 1"
_ORDER = " ORDER BY priority DESC, rank, due, seq LIMIT ?"
_TAKE = (
    "UPDATE jobs SET state = 3, receipt = ?, lease = ?, worker = ?, started_at = ?,"
    " attempt = attempt + 1 WHERE seq IN (%s)"
)
_TEXT_PAYLOAD = (
    "iif(opts IS NULL OR opts ->> '$.codec' IS NULL, CAST(payload AS TEXT), hex(payload))"
)
_COLUMNS = [column.format(payload=_TEXT_PAYLOAD) for column in HEAD.split(", ")] + [
    f"iif({USUAL}, NULL, json_array({TAIL.format(rank='hex(rank)')}))"
]
_TAKEN = (
    f"SELECT json_array({', '.join(f'json_group_array({column})' for column in _COLUMNS)})"
    " FROM jobs WHERE state = 3 AND receipt = ?"
)
_TAKEN_ROWS = (
    f"SELECT {HEAD.format(payload='payload')}, {TAIL.format(rank='rank')} FROM jobs"
    " WHERE state = 3 AND receipt = ?"
)
_LANES = "SELECT seq, lane FROM jobs WHERE seq IN (SELECT value FROM json_each(?))"
_HOLDER = (
    "SELECT EXISTS (SELECT 1 FROM jobs WHERE space = ?1 AND lane = ?2 AND seq <> ?3"
    " AND (state = 3 OR state < 3 AND attempt > 0))"
)
_HOLD = "UPDATE jobs SET state = 2 WHERE seq IN (SELECT value FROM json_each(?))"
_SOME = "SELECT value FROM json_each(?)"
_TOP = (
    "SELECT priority FROM jobs WHERE line = ? AND state = 1 AND priority < ?"
    " ORDER BY priority DESC LIMIT 1"
)
_NEWEST_NOW = (
    "SELECT rank, seq FROM jobs WHERE line = ?1 AND state = 1 AND priority = ?2 AND rank = x''"
    " AND due = 9e999 ORDER BY seq DESC LIMIT ?3"
)
_NEWEST_REST = (
    "SELECT rank, seq FROM jobs WHERE line = ?1 AND state = 1 AND priority = ?2 AND (rank > x'' OR"
    " rank = x'' AND due < 9e999) ORDER BY rank, seq DESC LIMIT ?3"
)
_ABOVE_ALL = 1000

_BITE = 2000
"""Jobs that become due, or expire, in one transaction; more take another claim."""
_MERGED = 400
"""Lines in one compound statement; SQLite allows 500."""
_INFINITY = float("inf")
decode = msgspec.json.decode


def sequence(receipt: bytes) -> int:
    """The row that a receipt of ours points at."""
    return int.from_bytes(receipt[16:], "big")


def claim(
    moves: Moves,
    chance: Chance,
    queues: Sequence[str],
    tasks: Sequence[str | None],
    limit: int,
    lease: float,
    worker: str,
    newest: bool,
) -> list[Claim]:
    """See ``Store.claim``."""
    now = moves.clock.now()
    execute = moves.connection.execute
    due, expired, lanes, ready, paused, epoch = execute(_AHEAD, (now, moves.space)).get
    if not epoch:
        # Bits have flipped in it: fences must never fall, and what it was isn't known.
        raise StoreDamaged(
            f"{moves.connection.filename}: the epoch of the fences is gone from the table meta;"
            " run outlast doctor on it, then restore a backup or move the jobs out (outlast move)"
        )
    if due:
        _promote(moves, now)
    if expired:
        expire(moves, _BITE)
    lines = _lines(moves, ready, paused, queues, tasks)
    if not lines:
        return []
    claims: list[Claim] = []
    damaged = True
    while damaged and len(claims) < limit:
        token = chance.token()
        taken = (token, moves.clock.monotonic() + lease, worker, now)
        left = limit - len(claims)
        if newest or lanes or len(lines) > _MERGED:
            source = partial(_newest if newest else _in_order, moves, lines)
            chosen = _pick(moves, source, left, lanes=bool(lanes))
            execute(_TAKE % _SOME, (*taken, dump(chosen).decode()))
        else:
            execute(_TAKE % _candidates(lines), (*taken, left))
        damaged = _read(moves, token, now, worker, epoch * STARTS, claims)
    moves.tell(ROOM)
    if newest:
        claims.sort(key=lambda c: (-c.job.priority, c.job.rank, -sequence(c.receipt)))
    return claims


def start(
    moves: Moves,
    chance: Chance,
    model: Job,
    ids: Sequence[str],
    payloads: Sequence[bytes],
    queues: Sequence[str],
    tasks: Sequence[str | None],
    limit: int,
    lease: float,
    worker: str,
) -> list[Claim] | None:
    """Add plain jobs as claimed already, by a claim that waits: what ``claim`` would find after.

    That saves writing each row a second time and reading it again. None, and nothing is done, if
    that claim would not get just these: there are too many, or there is more to look at first.
    Raises ``Careful`` if one is there already.
    """
    if len(ids) > limit or model.queue not in queues or model.task not in tasks:
        return None
    now = moves.clock.now()
    ahead = moves.connection.execute(_AHEAD, (now, moves.space)).get
    due, expired, _, ready, paused, epoch = ahead
    if due or expired or not epoch or model.queue in decode(paused):
        return None
    if _lines(moves, ready, paused, queues, tasks):
        return None
    token = chance.token()
    taken = (token, moves.clock.monotonic() + lease, worker)
    seqs = moves.add_started(model, ids, payloads, now, taken)
    more = {"status": Status.RUNNING, "started_at": now, "worker": worker}
    head = (0, ids[0], 0, payloads[0], 0, now, opts_of(model), 1)
    first = job_from(head, None, (model.queue, model.task), **more)
    jobs = multiplied(first, ids, payloads, repeat(now), repeat(1))
    return [
        Claim(job, token + seq.to_bytes(8, "big"), epoch * STARTS + 1)
        for job, seq in zip(jobs, seqs, strict=True)
    ]


def _lines(
    moves: Moves, ready: str, paused: str, queues: Sequence[str], tasks: Sequence[str | None]
) -> list[int]:
    """The lines with something ready that this worker serves; some may have nothing any more."""
    numbers = decode(ready)
    numbers += [line for line in moves.growing() if line not in numbers]
    resting = decode(paused)
    mine = []
    for number in numbers:
        queue, task = moves.name(number)
        if queue in queues and queue not in resting and task in tasks:
            mine.append(number)
    return mine


def _candidates(lines: Sequence[int]) -> str:
    """The next rows of all lines, in claim order. SQLite merges the sorted parts lazily."""
    if len(lines) == 1:
        return _HEAD.replace(", priority, rank, due", "") % lines[0] + _ORDER
    parts = " UNION ALL ".join(_HEAD % number for number in lines)
    return f"SELECT seq FROM ({parts}{_ORDER})"


def _promote(moves: Moves, now: float) -> None:
    """What has become due joins the line."""
    found = moves.connection.execute(_COME_DUE, (now, _BITE)).get
    moves.connection.execute(_PROMOTE, (now, _BITE))
    for line, number in decode(found):
        moves.moved(line, WAITING, READY, number)
    moves.tell(WORK)


def expire(moves: Moves, limit: int) -> int:
    """Cancel queued jobs past their ``expires_at``; how many."""
    rows = fetch(moves.connection, _EXPIRED, moves.clock.now(), moves.space, limit)
    moves.end(rows, CANCELLED, Failure(kind="expired", message="not started before it expired"))
    return len(rows)


def _pick(
    moves: Moves, source: Callable[[int], Sequence[int]], limit: int, *, lanes: bool
) -> list[int]:
    """Choose row by row: one of each lane at most, none of a lane that is held.

    What has to wait for its lane leaves the line (HELD), so that it is passed over only once.
    """
    if not lanes:
        return list(source(limit))
    chosen: dict[int, str | None] = {}
    while True:
        rows = [seq for seq in source(limit) if seq not in chosen]
        of_lane = dict(fetch(moves.connection, _LANES, dump(rows).decode()))
        held = []
        for seq in rows[: limit - len(chosen)]:
            lane = of_lane[seq]
            if lane is None or _free(moves, lane, seq, chosen):
                chosen[seq] = lane
            else:
                held.append(seq)
        if not held:
            return list(chosen)
        moves.connection.execute(_HOLD, (dump(held).decode(),))


def _free(moves: Moves, lane: str, seq: int, chosen: Mapping[int, str | None]) -> bool:
    if lane in chosen.values():
        return False
    return not moves.connection.execute(_HOLDER, (moves.space, lane, seq)).get


def _in_order(moves: Moves, lines: Sequence[int], limit: int) -> list[int]:
    found: list[tuple[int, int, bytes, float]] = []
    for at in range(0, len(lines), _MERGED):
        parts = " UNION ALL ".join(_HEAD % number for number in lines[at : at + _MERGED])
        found += fetch(moves.connection, f"SELECT * FROM ({parts}){_ORDER}", limit)
    found.sort(key=lambda row: (-row[1], row[2], row[3], row[0]))
    return [row[0] for row in found[:limit]]


def _newest(moves: Moves, lines: Sequence[int], limit: int) -> list[int]:
    """Last in, first out: by priority, then rank, then the highest sequence."""
    found: list[int] = []
    below = _ABOVE_ALL
    while len(found) < limit:
        best = [top for line in lines for (top,) in fetch(moves.connection, _TOP, line, below)]
        if not best:
            break
        below = max(best)
        group: list[tuple[bytes, int]] = []
        for line in lines:
            for text in (_NEWEST_NOW, _NEWEST_REST):
                group += fetch(moves.connection, text, line, below, limit)
        group.sort(key=lambda row: (row[0], -row[1]))
        found += [seq for _, seq in group[: limit - len(found)]]
    return found


def _read(
    moves: Moves, token: bytes, now: float, worker: str, epoch: int, claims: list[Claim]
) -> bool:
    """Add what was taken under this token to the claims; whether some of it was damaged."""
    more = {"status": Status.RUNNING, "started_at": now, "worker": worker}
    try:
        columns = parse_columns(moves.connection.execute(_TAKEN, (token,)).get)
        jobs = alike(columns, moves.names, **more)
        if jobs is not None:
            seqs, attempts = columns[0], columns[7]
            receipts = [token + seq.to_bytes(8, "big") for seq in seqs]
            claims += map(Claim, jobs, receipts, [epoch + attempt for attempt in attempts])
            moves.moved(columns[2][0], READY, RUNNING, len(jobs))
            return False
        rows: Sequence[Sequence[Any]] = list(zip(*columns, strict=True))
    except (msgspec.MsgspecError, UnicodeDecodeError, apsw.SQLError):
        # Somewhere in them is text, or JSON, that is none any more.
        rows = [[*row[:8], row[8:]] for row in fetch(moves.connection, _TAKEN_ROWS, token)]
    damaged: list[int] = []
    counts: dict[int, int] = {}
    maker = JobMaker(moves.names, **more)
    usual = True
    for row in rows:
        seq, _, line, _, mark, _, opts, _, tail = row
        counts[line] = counts.get(line, 0) + 1
        try:
            job = maker.job(row, tail)
            if crc(line, job.id, job.payload, opts) != mark:
                raise ValueError
        except DAMAGE:
            damaged.append(seq)
            continue
        usual = usual and tail is None
        claims.append(Claim(job, token + seq.to_bytes(8, "big"), epoch + job.attempt))
        if job.key_queued:
            let_go(moves, claims[-1:])
    for line, number in counts.items():
        moves.moved(line, READY, RUNNING, number)
    if damaged:
        _bury_damaged(moves, damaged)
    if not usual:
        claims.sort(key=_claim_order)
    return bool(damaged)


def _claim_order(claim: Claim) -> tuple[int, bytes, float, int]:
    job = claim.job
    due = _INFINITY if job.run_at is None else job.run_at
    return -job.priority, job.rank, due, sequence(claim.receipt)


_DAMAGED = (
    "SELECT seq, id, line, state, key, lane, NULL FROM jobs"
    " WHERE seq IN (SELECT value FROM json_each(?))"
)


def _bury_damaged(moves: Moves, damaged: Sequence[int]) -> None:
    """The stored bytes are not what was stored: keep them, run nothing, go on with the rest."""
    rows = fetch(moves.connection, _DAMAGED, dump(damaged).decode())
    why = "the stored bytes changed since the job was added (digest mismatch); the job was not run"
    moves.end(rows, DEAD, Failure(kind="damaged", message=why))
    # If it is the line that changed, it was never counted here, and now a good job isn't.
    moves.recount({row[2] for row in rows})
