"""Looking at the jobs of one namespace and steering them by hand: what `Ledger` promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.errors import JobNotFound, KeyConflict
from outlast.job import Depth, Failure, Job, Status
from outlast.store import Line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outlast.store import Cancelled
    from outlast.stores.memory.order import Line as OrderedLine
    from outlast.stores.memory.order import Row
    from outlast.stores.memory.table import Table

__all__ = ["cancel", "ended", "find", "lines", "pause", "purge", "revive"]


def find(
    table: Table,
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
    """The jobs that fit, last added first; a full look over everything that is stored."""
    found: list[Job] = []
    for row in _newest_first(table, after):
        if len(found) >= limit:
            break
        job = row.job
        created = job.created_at or 0.0
        if (
            (not status or job.status in status)
            and (queue is None or job.queue == queue)
            and (task is None or job.task == task)
            and (key is None or job.key == key)
            and (since is None or created >= since)
            and (until is None or created <= until)
        ):
            found.append(job)
    return found


def cancel(table: Table, ids: Sequence[str], now: float) -> list[Cancelled]:
    answers: list[Cancelled] = []
    for id_ in ids:
        row = table.rows.get(id_)
        if row is None:
            answers.append("missing")
        elif row.job.status is Status.QUEUED:
            table.end(row, Status.CANCELLED, now, Failure(kind="cancelled"))
            answers.append("cancelled")
        elif row.job.status is Status.RUNNING:
            row.asked = True
            answers.append("requested")
        else:
            answers.append("ended")
    return answers


def revive(table: Table, ids: Sequence[str], now: float) -> list[bool]:
    """Queue them again, all or none where a key stands against it."""
    answers: list[bool] = []
    rows: dict[str, Row] = {}
    keys: dict[tuple[str | None, str], str] = {}
    for id_ in ids:
        row = table.rows.get(id_)
        fits = row is not None and row.job.status in (Status.DEAD, Status.CANCELLED)
        answers.append(fits and id_ not in rows)
        if row is None or not answers[-1]:
            continue
        rows[id_] = row
        if row.job.key is not None:
            entry = table.key(row.job.task, row.job.key, now)
            holder = entry.id if entry is not None else id_
            holder = keys.setdefault((row.job.task, row.job.key), holder)
            if holder != id_:
                raise KeyConflict(
                    f"job {id_} can't be revived: its key {row.job.key!r} belongs to job {holder}"
                )
    for row in rows.values():
        table.revive(row, now)
    return answers


def purge(table: Table, queue: str, status: Sequence[Status], *, dry_run: bool) -> int:
    if queue not in table.queues:
        raise JobNotFound(f"no job was ever added to a queue {queue!r}")
    wanted = set(status) - {Status.RUNNING}
    rows = [
        row for row in table.rows.values() if row.job.queue == queue and row.job.status in wanted
    ]
    if not dry_run:
        for row in rows:
            table.remove(row)
            table.drop_key(row.job)
    return len(rows)


def ended(table: Table, ids: Sequence[str]) -> list[Job]:
    """Those that have ended; raises ``JobNotFound`` for what isn't stored."""
    found: list[Job] = []
    for id_ in ids:
        row = table.rows.get(id_)
        if row is None:
            raise JobNotFound(f"no job {id_} is stored: it never was, or it was deleted")
        if row.job.status.ended:
            found.append(row.job)
    return found


def lines(table: Table, now: float) -> list[Line]:
    for queue in list(table.queues):
        table.promote(queue, now)
    return [
        Line(
            queue=line.queue,
            task=line.task,
            depth=_depth(line),
            paused=line.queue in table.paused,
            oldest=_oldest(table, line),
        )
        for line in table.lines.values()
    ]


def pause(table: Table, queue: str, paused: bool) -> None:
    if paused:
        table.paused.add(queue)
    else:
        table.paused.discard(queue)
        table.bell.ring(("news", queue))


def _newest_first(table: Table, after: str | None) -> Iterator[Row]:
    rows = reversed(table.rows.values())
    if after is None:
        return rows
    last = table.rows.get(after)
    if last is None:
        # Its page is gone meanwhile; ids of ours are ordered by time, so the next page isn't.
        return (row for row in rows if row.job.id < after)
    return (row for row in rows if row.seq < last.seq)


def _oldest(table: Table, line: OrderedLine) -> float | None:
    if not line.counts[Status.QUEUED]:
        return None
    top = line.pile(newest=False).top() or line.later.top()
    if top is not None:
        return top[1].job.created_at
    # All of them wait for a lane.
    waiting = (
        row.job.created_at or 0.0
        for row in table.rows.values()
        if row.line is line and row.job.status is Status.QUEUED
    )
    return min(waiting, default=None)


def _depth(line: OrderedLine) -> Depth:
    counts = line.counts
    return Depth(
        ready=counts[Status.QUEUED] - line.delayed,
        delayed=line.delayed,
        running=counts[Status.RUNNING],
        done=counts[Status.DONE],
        dead=counts[Status.DEAD],
        cancelled=counts[Status.CANCELLED],
    )
