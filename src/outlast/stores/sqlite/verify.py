"""Looks through a whole file for what should not be: damage, wrong counts, loose ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw

from outlast.stores.sqlite import schema
from outlast.stores.sqlite.rows import crc, fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["verify"]

_SHOWN = 5
"""Ids that a finding names; of the rest it gives the number."""

_OBJECTS = "SELECT type, name, sql, tbl_name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'"
_ROWS = (
    "SELECT seq, CAST(id AS BLOB), line, payload, crc, CAST(opts AS BLOB), state,"
    " CAST(failure AS BLOB) FROM jobs"
)
_BURIED = b'"kind":"damaged"'
_COUNTS = """
SELECT l.queue, l.task,
    l.ready - ifnull(j.ready, 0), l.delayed - ifnull(j.delayed, 0),
    l.running - ifnull(j.running, 0), l.done - ifnull(j.done, 0),
    l.dead - ifnull(j.dead, 0), l.cancelled - ifnull(j.cancelled, 0)
FROM lines l LEFT JOIN (
    SELECT line, sum(state IN (1, 2)) AS ready, sum(state = 0) AS delayed,
        sum(state = 3) AS running, sum(state = 4) AS done, sum(state = 5) AS dead,
        sum(state = 6) AS cancelled
    FROM jobs NOT INDEXED GROUP BY line
) j ON j.line = l.id
"""
_COLUMNS = ("ready", "delayed", "running", "done", "dead", "cancelled")
_QUESTIONS = (
    (
        "SELECT 'epoch' WHERE ifnull((SELECT CAST(value AS INTEGER) FROM meta"
        " WHERE name = 'epoch'), 0) < 1",
        "is gone from the table meta: no job can be claimed without it",
    ),
    (
        "SELECT j.seq FROM jobs j LEFT JOIN lines l ON l.id = j.line AND l.space = j.space"
        " WHERE l.id IS NULL",
        "belong to a line that doesn't exist",
    ),
    (
        "SELECT l.id FROM lines l LEFT JOIN spaces s ON s.id = l.space WHERE s.id IS NULL",
        "are lines of a namespace that doesn't exist",
    ),
    (
        "SELECT seq FROM jobs WHERE (state = 3) <> (receipt IS NOT NULL AND lease IS NOT NULL)",
        "are running without a receipt, or have one without running",
    ),
    (
        "SELECT seq FROM jobs WHERE (state > 3) <> (finished_at IS NOT NULL)",
        "have ended without a moment of their end, or have one without having ended",
    ),
    (
        "SELECT seq FROM jobs WHERE state < 4 AND gone_at IS NOT NULL",
        "are to be deleted though they haven't ended",
    ),
    (
        "SELECT seq FROM jobs WHERE state = 0 AND due = 9e999",
        "are delayed without a moment at which they are due",
    ),
    (
        "SELECT k.job FROM keys k LEFT JOIN jobs j ON j.id = k.job AND j.space = k.space"
        " WHERE k.until IS NULL AND (j.state IS NULL OR j.state > 3)"
        # Keys that move in come before their jobs.
        " AND NOT EXISTS (SELECT 1 FROM meta WHERE name LIKE 'arrival %')",
        "hold a key that is never given back, and aren't live",
    ),
    (
        "SELECT j.seq FROM jobs j JOIN lines l ON l.id = j.line LEFT JOIN keys k"
        " ON k.space = j.space AND k.task = ifnull(l.task, '') AND k.key = j.key"
        " WHERE j.key IS NOT NULL AND j.state < 4 AND k.job IS NOT j.id"
        """ AND j.opts NOT LIKE '%"key_queued":true%'""",
        "are live and don't hold their key",
    ),
    (
        "SELECT DISTINCT s.job FROM steps s LEFT JOIN jobs j ON j.id = s.job AND j.space = s.space"
        " WHERE j.seq IS NULL",
        "have steps and aren't there",
    ),
    (
        "SELECT min(seq) FROM jobs WHERE lane IS NOT NULL AND state = 3"
        " GROUP BY space, lane HAVING count(*) > 1",
        "share a lane with another job that is running",
    ),
    (
        "SELECT min(seq) FROM jobs WHERE lane IS NOT NULL AND state < 4 GROUP BY space, lane"
        " HAVING sum(state = 2) > 0 AND sum(state IN (1, 3)) = 0"
        " AND sum(state = 0 AND attempt > 0) = 0",
        "wait for their lane, in which nothing is ahead",
    ),
)


def verify(connection: apsw.Connection) -> list[str]:
    """What is wrong with the store, a sentence each; nothing if all is well.

    It reads every page and every job, as of one moment: others may go on writing. A job that was
    buried as damaged is named as well. Raises nothing for what it finds, however bad.
    """
    connection.execute("BEGIN")
    try:
        found: list[str] = []
        for check in (_pages, _objects, _rows, _counts, _loose_ends):
            found += _carefully(check, connection)
        return found
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _carefully(
    check: Callable[[apsw.Connection], Iterable[str]], connection: apsw.Connection
) -> Iterator[str]:
    try:
        yield from check(connection)
    except (apsw.Error, UnicodeDecodeError) as error:
        yield f"can't look at all of it: {error}"


def _pages(connection: apsw.Connection) -> Iterator[str]:
    """SQLite's own check: pages, indexes, constraints."""
    for (line,) in connection.execute("PRAGMA integrity_check(20)"):
        if line != "ok":
            yield f"SQLite finds: {line}"


def _objects(connection: apsw.Connection) -> Iterator[str]:
    """Tables and indexes as they are made, against those that are there."""
    version = connection.pragma("user_version")
    model = apsw.Connection(":memory:")
    for script in schema.MIGRATIONS[:version]:
        model.execute(script).fetchall()
    wanted, there = set(model.execute(_OBJECTS)), set(connection.execute(_OBJECTS))
    model.close()
    for kind, name, *_ in sorted(wanted - there):
        yield f"{kind} {name} is missing, or was changed"
    known = {(kind, name) for kind, name, *_ in wanted}
    ours = {name for kind, name in known if kind == "table"}
    for kind, name, _, table in sorted(there - wanted):
        # Tables of the user's own may stand beside ours, for transactions over both.
        if kind == "trigger" and name.startswith("departure_"):
            continue  # jobs are being moved out, or were
        if (kind, name) not in known and table in ours:
            yield f"{kind} {name} is not of outlast's making"


def _rows(connection: apsw.Connection) -> Iterator[str]:
    """The checksum of each job over what it was added with."""
    damaged: list[str] = []
    buried: list[str] = []
    for seq, id, line, payload, check, opts, state, failure in connection.execute(_ROWS):
        if not _is_whole(id, line, payload, check, opts):
            known = state == schema.DEAD and failure is not None and _BURIED in failure
            (buried if known else damaged).append(_shown(seq, id))
    yield from _sentence(damaged, "have changed since they were added (checksum)")
    yield from _sentence(buried, "had changed since they were added, and were buried for it")


def _is_whole(id: bytes, line: int, payload: bytes, check: int, opts: bytes | None) -> bool:
    try:
        return crc(line, id.decode(), payload, None if opts is None else opts.decode()) == check
    except UnicodeDecodeError:
        return False


def _counts(connection: apsw.Connection) -> Iterator[str]:
    """The counts of each line against its jobs."""
    for queue, task, *differences in connection.execute(_COUNTS):
        for column, difference in zip(_COLUMNS, differences, strict=True):
            if difference:
                yield f"queue {queue} task {task}: counts {difference:+d} {column} jobs too many"


def _loose_ends(connection: apsw.Connection) -> Iterator[str]:
    for question, what in _QUESTIONS:
        yield from _sentence([str(row[0]) for row in fetch(connection, question)], what)


def _sentence(names: list[str], what: str) -> Iterator[str]:
    if names:
        shown = ", ".join(names[:_SHOWN])
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        yield f"{shown}{more}: {what}"


def _shown(seq: int, id: Any) -> str:
    return f"{seq} ({id.decode(errors='replace')!a})" if isinstance(id, bytes) else str(seq)
