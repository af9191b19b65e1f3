"""What keeps the store in order: leases, crashes, expiry, pruning, and what people ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.errors import JobNotFound, KeyConflict
from outlast.job import Failure, Lost, Status
from outlast.stores.news import ENDED, ROOM, WORK
from outlast.stores.sqlite.claims import expire, sequence
from outlast.stores.sqlite.rows import dump, fetch, option, storable
from outlast.stores.sqlite.schema import (
    CANCELLED,
    DEAD,
    DONE,
    HELD,
    READY,
    RUNNING,
    WAITING,
)
from outlast.stores.sqlite.steps import forget, fresh_epoch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlast.job import Claim, Death, Progress
    from outlast.store import Cancelled, WorkerInfo
    from outlast.stores.sqlite.moves import Moves

__all__ = [
    "beat",
    "cancel",
    "leave",
    "note_backup",
    "pause",
    "prune",
    "purge",
    "recover",
    "recover_stranded",
    "recover_worker",
    "renew",
    "revive",
]

PURGED = 5000
"""Jobs that a purge deletes in one transaction."""
STRANDED = -1.0
"""The lease of a claim that was made before the machine restarted."""
HELD_UP = 1.0
"""Seconds that a look at the leases may wait for the lock; after more it looks another time."""
KEPT = 1_000_000
"""Done jobs kept at most, whatever their time."""
_WORKER_MEMORY = 3600.0

_UNCOUNTED = (
    "SELECT id FROM lines WHERE space = ? AND ready <= 0"
    " AND EXISTS (SELECT 1 FROM jobs WHERE line = lines.id AND state = 1)"
)
"""Lines that would be passed over though something is ready in them: a count was damaged."""

_ROW = "seq, id, line, state, key, lane, opts"
_RENEW = "WITH v (s, r) AS (VALUES"
_RENEWED = (
    ") UPDATE jobs SET lease = ? FROM v"
    " WHERE jobs.seq = +v.s AND jobs.receipt = +v.r AND jobs.state = 3"
)
_CHECK = (
    ") SELECT v.s, v.r, j.cancel FROM v LEFT JOIN jobs j ON j.seq = +v.s AND j.receipt = +v.r"
    " AND j.state = 3 WHERE j.seq IS NULL OR j.cancel"
)
_NOTE = "UPDATE jobs SET progress = ? WHERE seq = ? AND receipt = ? AND state = 3"
_OVERDUE = (
    f"SELECT {_ROW}, suspect, crashes, cancel FROM jobs INDEXED BY jobs_running"
    " WHERE state = 3 AND lease <= ? AND space = ? LIMIT ?"
)
_OF_WORKER = (
    f"SELECT {_ROW}, suspect, crashes, cancel FROM jobs INDEXED BY jobs_running"
    " WHERE state = 3 AND worker = ? AND space = ?"
)
_PUT_BACK = "WITH v (s, suspect, crashes, unstarted, failure) AS (VALUES"
_IS_PUT_BACK = (
    ") UPDATE jobs SET state = 1, suspect = v.suspect, crashes = v.crashes,"
    " attempt = attempt - v.unstarted, failure = ifnull(v.failure, jobs.failure), receipt = NULL,"
    " lease = NULL, worker = NULL FROM v WHERE jobs.seq = +v.s"
)
_COUNT_RUN = "UPDATE jobs SET crashes = ?, attempt = attempt - ? WHERE seq = ?"
_GONE = "SELECT seq, line, state FROM jobs WHERE gone_at <= ? AND space = ? LIMIT ?"
_DONE = "SELECT ifnull(sum(done), 0) FROM lines WHERE space = ?"
_OLDEST = (
    "SELECT seq, line, state FROM jobs WHERE gone_at IS NOT NULL AND state = 4 AND space = ?"
    " ORDER BY gone_at LIMIT ?"
)
_DROP = "DELETE FROM jobs WHERE seq IN (SELECT value FROM json_each(?))"
_OLD_KEYS = (
    "DELETE FROM keys WHERE (space, task, key) IN"
    " (SELECT space, task, key FROM keys WHERE until <= ? AND space = ? LIMIT ?)"
)
_OLD_EVENTS = (
    "DELETE FROM events WHERE (space, name) IN"
    " (SELECT space, name FROM events WHERE until <= ? AND space = ? LIMIT ?)"
)
_BY_ID = f"SELECT {_ROW} FROM jobs WHERE id = ? AND space = ?"
_ASK = "UPDATE jobs SET cancel = 1 WHERE seq = ?"
_REVIVE = (
    "UPDATE jobs SET state = 1, attempt = 0, failures = 0, crashes = 0, suspect = 0, cancel = 0,"
    " due = 9e999, expires_at = NULL, started_at = NULL, finished_at = NULL, gone_at = NULL,"
    " result = NULL, progress = NULL, worker = NULL WHERE seq = ?"
)
_HOLDER = "SELECT job, until FROM keys WHERE space = ? AND task = ? AND key = ?"
_TAKE_KEY = (
    "INSERT INTO keys (space, task, key, job, digest) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET job = excluded.job, digest = excluded.digest, until = NULL"
)
_QUEUE = "SELECT id FROM lines WHERE space = ? AND queue = ?"
_IN_STATES = f"SELECT {_ROW} FROM jobs WHERE line IN (%s) AND state IN (%s) LIMIT {PURGED}"
_DROP_KEYS = "DELETE FROM keys WHERE space = ? AND job = ? AND task = ? AND key = ?"
_PAUSE = "INSERT OR IGNORE INTO pauses (space, queue) VALUES (?, ?)"
_RESUME = "DELETE FROM pauses WHERE space = ? AND queue = ?"
_BEAT = (
    "INSERT INTO workers (space, id, seen_at, info) VALUES (?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET seen_at = excluded.seen_at, info = excluded.info"
)
_BACKUP = "INSERT OR REPLACE INTO meta (name, value) VALUES ('backup', ?)"
_LEAVE = "DELETE FROM workers WHERE space = ? AND id = ?"
_FORGET = "DELETE FROM workers WHERE space = ? AND seen_at < ?"

_STATES: dict[Status, tuple[int, ...]] = {
    Status.QUEUED: (WAITING, READY, HELD),
    Status.RUNNING: (),
    Status.DONE: (DONE,),
    Status.DEAD: (DEAD,),
    Status.CANCELLED: (CANCELLED,),
}


def renew(
    moves: Moves, claims: Sequence[Claim], lease: float, notes: Sequence[Progress]
) -> list[Lost]:
    """See ``Store.renew``."""
    if not claims:
        return []
    by_place = {(sequence(c.receipt), c.receipt[:16]): c for c in claims}
    places = list(by_place)
    moves.values(_RENEW, _RENEWED, places, (moves.clock.monotonic() + lease,))
    lost: list[Lost] = []
    for at in range(0, len(places), 256):
        some = places[at : at + 256]
        text = _RENEW + ",".join(["(?,?)"] * len(some)) + _CHECK
        flat = [value for place in some for value in place]
        for seq, token, asked in moves.connection.execute(text, flat):
            lost.append(Lost(by_place[seq, token], "cancelled" if asked else "lost"))
    by_id = {claim.job.id: place for place, claim in by_place.items()}
    for note in notes:
        place = by_id.get(note.id)
        if place is not None:
            moves.connection.execute(_NOTE, (dump(note).decode(), *place))
    return lost


# -- crashes


def recover(moves: Moves, limit: int, asked: float) -> int:
    """See ``Store.recover``: nobody knows what became of these workers.

    A lease has to be over when that was ``asked``, by the monotonic clock. While the call waited
    for the lock nobody could renew, and those who wanted to are waiting beside it. Nor could they
    before, perhaps: of a call that had to wait for long nobody knows how long the others have.
    """
    if moves.clock.monotonic() - asked > HELD_UP:
        return 0
    rows = fetch(moves.connection, _OVERDUE, asked, moves.space, limit)
    failure = Failure(kind="crash", message="the lease ran out: the worker died or was cut off")
    _return(moves, [(row, "crash" if row[7] else "suspect") for row in rows], failure)
    return len(rows)


def recover_stranded(moves: Moves) -> int:
    """Put back what was claimed before the machine restarted; nobody is to blame for that."""
    rows = fetch(moves.connection, _OVERDUE, STRANDED, moves.space, 10_000)
    _return(moves, [(row, "interrupted") for row in rows], Failure(kind="crash"))
    return len(rows)


def recover_worker(moves: Moves, worker: str, cause: Death) -> int:
    """See ``Store.recover_worker``."""
    leave(moves, worker)
    rows = fetch(moves.connection, _OF_WORKER, worker, moves.space)
    if cause.started is None:
        started = {row[1] for row in rows}
    else:
        started = {row[1] for row in rows if row[1] in cause.started}
    blamed = started if cause.blamed is None else started & cause.blamed
    fate = "crash" if cause.sole else "suspect"
    fates = [
        (row, fate if row[1] in blamed else "interrupted" if row[1] in started else "untouched")
        for row in rows
    ]
    failure = Failure(
        kind="crash", message=_how(cause), signal=cause.signal, exit_code=cause.exit_code
    )
    _return(moves, fates, failure)
    return len(rows)


def _return(moves: Moves, fates: Sequence[tuple[Any, str]], failure: Failure) -> None:
    """Put jobs of a dead worker back into their place, or bury those whose crashes are spent."""
    back, dead, cancelled = [], [], []
    why = dump(failure).decode()
    for row, fate in fates:
        seq, _, line, state, _, _, opts, suspect, crashes, cancel = row
        crashes += fate == "crash"
        limit = option(opts, "max_crashes", 3)
        if fate == "crash" and limit is not None and crashes >= limit:
            moves.connection.execute(_COUNT_RUN, (crashes, 0, seq))
            dead.append(row[:7])
        elif cancel:
            moves.connection.execute(_COUNT_RUN, (crashes, fate == "untouched", seq))
            cancelled.append(row[:7])
        else:
            marked = fate in ("crash", "suspect") or (fate == "untouched" and suspect)
            note = why if fate == "crash" else None
            back.append((seq, int(marked), crashes, int(fate == "untouched"), note))
            moves.moved(line, state, READY)
    if back:
        moves.values(_PUT_BACK, _IS_PUT_BACK, back)
        moves.tell(WORK)
        moves.free_lanes(row[5] for row, fate in fates if row[5] and fate == "untouched")
    moves.end(dead, DEAD, failure)
    moves.end(cancelled, CANCELLED, Failure(kind="cancelled", message="cancelled while it ran"))


def _how(cause: Death) -> str:
    how = "the worker died"
    if cause.signal is not None:
        how += f" by signal {cause.signal}"
    elif cause.exit_code is not None:
        how += f" with exit code {cause.exit_code}"
    return f"{how}: {cause.message}" if cause.message else how


# -- time passes


def prune(moves: Moves, limit: int) -> int:
    """See ``Store.prune``."""
    now = moves.clock.now()
    done = expire(moves, limit)
    execute = moves.connection.execute
    if done < limit:
        done += _drop(moves, fetch(moves.connection, _GONE, now, moves.space, limit - done))
    if done < limit:
        moves.flush()
        over = execute(_DONE, (moves.space,)).get - KEPT
        if over > 0:
            done += _drop(
                moves, fetch(moves.connection, _OLDEST, moves.space, min(over, limit - done))
            )
    if done < limit:
        execute(_OLD_KEYS, (now, moves.space, limit - done))
        done += moves.connection.changes()
    if done < limit:
        execute(_OLD_EVENTS, (now, moves.space, limit - done))
        done += moves.connection.changes()
    execute(_FORGET, (moves.space, now - _WORKER_MEMORY))
    moves.flush()
    moves.recount(line for (line,) in fetch(moves.connection, _UNCOUNTED, moves.space))
    return done


def _drop(moves: Moves, rows: Sequence[tuple[int, int, int]]) -> int:
    if rows:
        forget(moves, [seq for seq, _, _ in rows])
        moves.connection.execute(_DROP, (dump([seq for seq, _, _ in rows]).decode(),))
        for _, line, state in rows:
            moves.count(line, state, -1)
    return len(rows)


# -- what people ask for


def cancel(moves: Moves, ids: Sequence[str]) -> list[Cancelled]:
    """See ``Ledger.cancel``."""
    answers: list[Cancelled] = []
    failure = Failure(kind="cancelled", message="cancelled before it started")
    for identifier in ids:
        row = _by_id(moves, identifier)
        if row is None:
            answers.append("missing")
        elif row[3] == RUNNING:
            moves.connection.execute(_ASK, (row[0],))
            # Whoever runs it hears of it at its next renewal.
            moves.tell(WORK)
            answers.append("requested")
        elif row[3] > RUNNING:
            answers.append("ended")
        else:
            moves.end([row], CANCELLED, failure)
            answers.append("cancelled")
    return answers


def _by_id(moves: Moves, identifier: str) -> Any:
    rows = fetch(moves.connection, _BY_ID, identifier, moves.space) if storable(identifier) else []
    return rows[0] if rows else None


def revive(moves: Moves, ids: Sequence[str]) -> list[bool]:
    """See ``Ledger.revive``: all keys are looked at before anything is written."""
    execute = moves.connection.execute
    rows: dict[str, Any] = {}
    answers: list[bool] = []
    for identifier in ids:
        row = _by_id(moves, identifier)
        fits = row is not None and row[3] in (DEAD, CANCELLED) and identifier not in rows
        answers.append(fits)
        if fits:
            rows[identifier] = row
    _check_keys(moves, rows)
    for seq, identifier, line, state, key, _, opts in rows.values():
        execute(_REVIVE, (seq,))
        moves.moved(line, state, READY)
        if key is not None:
            digest = option(opts, "digest", b"")
            execute(_TAKE_KEY, (moves.space, moves.name(line)[1] or "", key, identifier, digest))
    if rows:
        fresh_epoch(moves)
        moves.tell(WORK)
    return answers


def _check_keys(moves: Moves, rows: Mapping[str, Any]) -> None:
    """Raise ``KeyConflict`` if a job to be revived can't have its key again."""
    now = moves.clock.now()
    wanted: dict[tuple[str, str], str] = {}
    for identifier, row in rows.items():
        if row[4] is None:
            continue
        task = moves.name(row[2])[1] or ""
        found = moves.connection.execute(_HOLDER, (moves.space, task, row[4])).get
        held = found is not None and (found[1] is None or found[1] > now)
        holder = found[0] if held else identifier
        if wanted.setdefault((task, row[4]), holder) != identifier:
            raise KeyConflict(
                f"job {identifier} can't be revived: its key {row[4]!r} belongs to job {holder}"
            )


def purge(moves: Moves, queue: str, status: Sequence[Status]) -> int:
    """See ``Ledger.purge``. ``PURGED`` in one transaction: fewer are the last."""
    lines = [number for (number,) in moves.connection.execute(_QUEUE, (moves.space, queue))]
    if not lines:
        raise JobNotFound(f"no queue {queue!r} was ever used here")
    states = [state for one in status for state in _STATES[one]]
    text = _IN_STATES % (",".join(map(str, lines)), ",".join(map(str, states)))
    rows = fetch(moves.connection, text)
    for _, identifier, line, _, key, _, _ in rows:
        if key is not None:
            task = moves.name(line)[1] or ""
            moves.connection.execute(_DROP_KEYS, (moves.space, identifier, task, key))
    _drop(moves, [(row[0], row[2], row[3]) for row in rows])
    moves.free_lanes(row[5] for row in rows if row[5] is not None)
    if rows:
        moves.tell(ENDED | ROOM)
    return len(rows)


def pause(moves: Moves, queue: str, paused: bool) -> None:
    """See ``Ledger.pause``."""
    moves.connection.execute(_PAUSE if paused else _RESUME, (moves.space, queue))
    if not paused:
        moves.tell(WORK)


def beat(moves: Moves, info: WorkerInfo) -> None:
    """See ``Ledger.beat``."""
    moves.connection.execute(_BEAT, (moves.space, info.id, moves.clock.now(), dump(info).decode()))


def note_backup(moves: Moves) -> None:
    """Write down that a backup was made just now."""
    moves.connection.execute(_BACKUP, (str(moves.clock.now()),))


def leave(moves: Moves, worker: str) -> None:
    """See ``Ledger.leave``."""
    moves.connection.execute(_LEAVE, (moves.space, worker))
