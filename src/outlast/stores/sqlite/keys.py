"""Idempotency keys: who holds them, and what becomes of a call whose key another job holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.errors import KeyConflict, KeyRepeated
from outlast.job import Added, Claim, Failure
from outlast.stores.news import WORK
from outlast.stores.sqlite.rows import crc, fetch, opts_of
from outlast.stores.sqlite.schema import CANCELLED, HELD, READY, WAITING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Job
    from outlast.stores.sqlite.moves import Moves

__all__ = ["answer_keyed", "let_go"]

_TAKE_KEYS = "INSERT INTO keys (space, task, key, job, digest) VALUES"
_IF_FREE = (
    " ON CONFLICT (space, task, key) DO UPDATE SET job = excluded.job, digest = excluded.digest,"
    " until = NULL WHERE keys.until <= ?"
)
_KEYS = "WITH v (task, key) AS (VALUES"
_HOLDERS = (
    ") SELECT k.task, k.key, k.job, k.digest, k.until FROM v JOIN keys k"
    " ON k.space = ? AND k.task = +v.task AND k.key = +v.key"
)
_WAITS = (
    "SELECT seq, id, line, state, key, lane, opts FROM jobs"
    " WHERE id = ? AND space = ? AND state < 3 AND attempt = 0"
)
_GIVE_KEY = (
    "UPDATE keys SET job = ?, digest = ?, until = NULL WHERE space = ? AND task = ? AND key = ?"
)
_CALL = "UPDATE jobs SET payload = ?, crc = ?, opts = ? WHERE seq = ?"
_TIME = "UPDATE jobs SET state = ?, due = ?, expires_at = ? WHERE seq = ?"
_LET_GO = "DELETE FROM keys WHERE space = ? AND task = ? AND key = ? AND job = ?"


def answer_keyed(
    moves: Moves, jobs: Sequence[Job], answers: list[Added | None], *, lenient: bool
) -> bool:
    """Take the keys of new jobs and answer for those whose key another job holds.

    False if it can't be done before it is known which of the ids are stored. Raises
    ``KeyConflict`` and ``KeyRepeated``, and leaves nothing written then. All counts are written.
    """
    mine = [i for i, job in enumerate(jobs) if job.key is not None and answers[i] is None]
    if not mine:
        return True
    moves.connection.execute("SAVEPOINT keyed")
    try:
        holders = _take_keys(moves, [jobs[i] for i in mine])
        for i in mine:
            job = jobs[i]
            holder, digest, until = holders[job.task or "", job.key or ""]
            if holder == job.id and until is None:
                continue
            if not moves.careful:
                # It may be stored already, under a key that is another's since: ids come first.
                return False
            if job.on_repeat != "first" and holder != job.id and not lenient:
                answers[i] = _repeated(moves, job, holder, live=until is None)
            if answers[i] is None:
                if digest != job.digest and not lenient:
                    raise KeyConflict(
                        f"key {job.key!r} of task {job.task} belongs to job {holder}, which has"
                        " other arguments; use another key, or the same arguments"
                    )
                answers[i] = Added(holder, False)
    except (KeyConflict, KeyRepeated):
        moves.undo("keyed")
        raise
    finally:
        moves.connection.execute("RELEASE keyed")
    return True


def _take_keys(
    moves: Moves, jobs: Sequence[Job]
) -> dict[tuple[str, str], tuple[str, bytes, float | None]]:
    """Let the constraint decide who holds each key, then read who does.

    With a moment, the holder has ended and is remembered until then; it may be gone itself.
    """
    moves.values(
        _TAKE_KEYS,
        _IF_FREE,
        [(moves.space, job.task or "", job.key, job.id, job.digest) for job in jobs],
        (moves.clock.now(),),
    )
    holders: dict[tuple[str, str], tuple[str, bytes, float | None]] = {}
    for at in range(0, len(jobs), 256):
        pairs = [(job.task or "", job.key) for job in jobs[at : at + 256]]
        text = _KEYS + ",".join(["(?,?)"] * len(pairs)) + _HOLDERS
        flat = [value for pair in pairs for value in pair]
        found = moves.connection.execute(text, [*flat, moves.space])
        holders.update({(task, key): tuple(holder) for task, key, *holder in found})
    return holders


def _repeated(moves: Moves, job: Job, holder: str, *, live: bool) -> Added | None:
    """Treat a repeat as its job says; None if it is to be treated as by ``"first"``.

    Raises ``KeyRepeated`` before anything is written.
    """
    if job.on_repeat == "raise":
        raise KeyRepeated(
            f"key {job.key!r} of task {job.task} is held by job {holder}; nothing was stored",
            holder,
        )
    rows = fetch(moves.connection, _WAITS, holder, moves.space) if live else []
    if not rows or job.on_repeat == "first":
        return None
    (row,) = rows
    replaces = job.on_repeat == "replace"
    if replaces:
        moves.end(rows, CANCELLED, Failure(kind="cancelled", message=f"replaced by job {job.id}"))
    else:
        _renew(moves, row, job)
    keeper = job.id if replaces else holder
    given = (keeper, job.digest, moves.space, job.task or "", job.key)
    moves.connection.execute(_GIVE_KEY, given)
    return Added(keeper, created=replaces)


def _renew(moves: Moves, row: Sequence[Any], job: Job) -> None:
    """The holder becomes the call that the new job is; its id and its place stay."""
    seq, identifier, line, before, _, lane, _ = row
    opts = opts_of(job)
    mark = crc(line, identifier, job.payload, opts)
    moves.connection.execute(_CALL, (job.payload, mark, opts, seq))
    if job.on_repeat == "throttle":
        return
    now = moves.clock.now()
    due = now + job.delay if job.delay else job.run_at
    expires = job.expires_at if job.ttl is None else now + job.ttl
    state = WAITING if due is not None and due > now else HELD if before == HELD else READY
    moves.connection.execute(_TIME, (state, 9e999 if due is None else due, expires, seq))
    moves.moved(line, before, state)
    if lane is not None:
        moves.free_lanes([lane])
    moves.tell(WORK)


def let_go(moves: Moves, claims: Sequence[Claim]) -> None:
    """These jobs were claimed, and held their keys only until then."""
    for claim in claims:
        job = claim.job
        row = (moves.space, job.task or "", job.key, job.id)
        moves.connection.execute(_LET_GO, row)
