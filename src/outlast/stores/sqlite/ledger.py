"""What people and handles read: on a connection of its own, so that no write waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.errors import JobNotFound
from outlast.job import Depth, Failure, Job, Status
from outlast.store import Line, WorkerInfo
from outlast.stores.sqlite.rows import (
    DAMAGE,
    HEAD,
    TAIL,
    crc,
    dump,
    fetch,
    job_from,
    listed,
    status_of,
    storable,
)
from outlast.stores.sqlite.schema import CANCELLED, DEAD, DONE, HELD, READY, RUNNING, WAITING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

__all__ = ["Reads"]

_JOB = (
    f"SELECT {HEAD.format(payload='payload')}, {TAIL.format(rank='rank')},"
    " worker, started_at, finished_at, result FROM jobs"
)
_SPACE = "SELECT id FROM spaces WHERE name = ?"
_LINES = "SELECT id, queue, task FROM lines WHERE space = ?"
_BY_IDS = _JOB + " WHERE space = ? AND id IN (SELECT value FROM json_each(?))"
_BY_PLACE = _JOB + " WHERE seq IN (SELECT value FROM json_each(?)) ORDER BY seq"
_AFTER = "SELECT seq FROM jobs WHERE id = ? AND space = ?"
_ENDED = "SELECT id, state > 3 FROM jobs WHERE space = ? AND id IN (SELECT value FROM json_each(?))"
_COUNTS = (
    "SELECT id, queue, task, ready, delayed, running, done, dead, cancelled"
    " FROM lines WHERE space = ?"
)
_DUE = "SELECT line, count(*) FROM jobs WHERE state = 0 AND due <= ? GROUP BY line"
_OLDEST = (
    "SELECT created_at FROM jobs WHERE line = ? AND state = 1"
    " ORDER BY priority DESC, rank, due, seq LIMIT 1"
)
_PAUSES = "SELECT queue FROM pauses WHERE space = ?"
_NEXT_DUE = "SELECT min(due) FROM jobs WHERE state = 0"
_OVERDUE = (
    "SELECT EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_running"
    " WHERE state = 3 AND lease <= ? AND space = ?)"
)
_WORKERS = "SELECT info, seen_at FROM workers WHERE space = ? AND seen_at >= ? ORDER BY id"
_IN_STATES = "SELECT count(*) FROM jobs WHERE line IN (%s) AND state IN (%s)"

_NAMESPACES = (
    "SELECT name FROM spaces WHERE id IN (SELECT space FROM lines UNION SELECT space FROM workers)"
    " ORDER BY name"
)
_HOUR = 3600.0

STATES: dict[Status, tuple[int, ...]] = {
    Status.QUEUED: (WAITING, READY, HELD),
    Status.RUNNING: (RUNNING,),
    Status.DONE: (DONE,),
    Status.DEAD: (DEAD,),
    Status.CANCELLED: (CANCELLED,),
}


class Reads:
    """The reading side of one store; used by the reader's thread alone."""

    def __init__(self, connection: apsw.Connection, namespace: str) -> None:
        self.connection = connection
        self._namespace = namespace
        self._space = 0
        self._version: Any = None
        self._names: dict[int, tuple[str, str | None]] = {}

    def space(self) -> int:
        if not self._space:
            self._space = self.connection.execute(_SPACE, (self._namespace,)).get or 0
        return self._space

    def get(self, ids: Sequence[str]) -> list[Job | None]:
        rows = fetch(self.connection, _BY_IDS, self.space(), listed(ids))
        jobs = {job.id: job for job in map(self._job, rows)}
        return [jobs.get(identifier) for identifier in ids]

    def by_place(self, seqs: Sequence[int]) -> list[tuple[Job, bool]]:
        """The jobs of these rows, in their order, and whether the bytes are those once stored."""
        found = []
        for row in fetch(self.connection, _BY_PLACE, dump(seqs).decode()):
            job = self._job(row)
            found.append((job, crc(row[2], row[1], row[3], row[6]) == row[4]))
        return found

    def find(
        self,
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
        if not all(storable(text) for text in (key, after) if text is not None):
            return []
        self._load_names()
        lines = [
            number
            for number, (its_queue, its_task) in self._names.items()
            if queue in (None, its_queue) and task in (None, its_task)
        ]
        states = [state for one in status or STATES for state in STATES[one]]
        where = [
            f"line IN ({','.join(map(str, lines))})",
            f"state IN ({','.join(map(str, states))})",
        ]
        values: list[Any] = []
        for condition, value in (
            ("key = ?", key),
            ("created_at >= ?", since),
            ("created_at <= ?", until),
        ):
            if value is not None:
                where.append(condition)
                values.append(value)
        if after is not None:
            last = self.connection.execute(_AFTER, (after, self.space())).get
            # Its page may be gone; ids of ours are ordered by time, so the next page isn't.
            where.append("id < ?" if last is None else "seq < ?")
            values.append(after if last is None else last)
        text = f"{_JOB} WHERE {' AND '.join(where)} ORDER BY seq DESC LIMIT ?"
        return [self._job(row) for row in fetch(self.connection, text, *values, limit)]

    def ended(self, ids: Sequence[str]) -> list[Job]:
        """Those that have ended. Raises ``JobNotFound`` for what isn't stored."""
        found: dict[str, int] = dict(fetch(self.connection, _ENDED, self.space(), listed(ids)))
        for identifier in ids:
            if identifier not in found:
                raise JobNotFound(f"no job {identifier} is stored: it never was, or it was deleted")
        return [job for job in self.get([i for i in ids if found[i]]) if job is not None]

    def depth(self, queue: str, now: float) -> Depth:
        total = [0] * 6
        for number, its_queue, _, *counts in self._counts(now):
            if its_queue == queue and number:
                total = [a + b for a, b in zip(total, counts, strict=True)]
        return _depth(total)

    def namespaces(self) -> list[str]:
        return [name for (name,) in self.connection.execute(_NAMESPACES)]

    def lines(self, now: float) -> list[Line]:
        paused = {queue for (queue,) in self.connection.execute(_PAUSES, (self.space(),))}
        return [
            Line(
                queue=queue,
                task=task,
                depth=_depth(counts),
                paused=queue in paused,
                oldest=self.connection.execute(_OLDEST, (number,)).get,
            )
            for number, queue, task, *counts in self._counts(now)
        ]

    def _counts(self, now: float) -> list[list[Any]]:
        rows = [list(row) for row in self.connection.execute(_COUNTS, (self.space(),))]
        due: dict[int, int] = dict(fetch(self.connection, _DUE, now))
        for row in rows:
            # What has come due is counted as ready, though only the next claim moves it.
            come = due.get(row[0], 0)
            row[3] += come
            row[4] -= come
        return rows

    def data_changed(self) -> bool:
        """Whether another connection has written since this was last asked."""
        found = self.connection.pragma("data_version")
        changed = bool(found != self._version)
        self._version = found
        return changed

    def next_due(self) -> float | None:
        found: float | None = self.connection.execute(_NEXT_DUE).get
        return found

    def overdue(self, by: float) -> bool:
        """Whether a running job's lease was over at ``by`` already, in the machine's clock."""
        return bool(self.connection.execute(_OVERDUE, (by, self.space())).get)

    def count(self, queue: str, status: Sequence[Status]) -> int:
        """How many jobs ``purge`` would delete. Raises ``JobNotFound`` as it does."""
        self._load_names()
        lines = [number for number, (its_queue, _) in self._names.items() if its_queue == queue]
        if not lines:
            raise JobNotFound(f"no queue {queue!r} was ever used here")
        states = [s for one in status if one is not Status.RUNNING for s in STATES[one]]
        text = _IN_STATES % (",".join(map(str, lines)), ",".join(map(str, states)))
        found: int = self.connection.execute(text).get
        return found

    def workers(self, now: float) -> list[WorkerInfo]:
        import msgspec

        found = []
        for info, seen_at in self.connection.execute(_WORKERS, (self.space(), now - _HOUR)):
            worker = msgspec.json.decode(info, type=WorkerInfo)
            found.append(msgspec.structs.replace(worker, seen_at=seen_at))
        return found

    def _job(self, row: Sequence[Any]) -> Job:
        *main, worker, started_at, finished_at, result = row
        if main[2] not in self._names:
            self._load_names()
        name = self._names.get(main[2], ("", None))
        try:
            return job_from(
                main[:8],
                main[8:],
                name,
                worker=worker,
                started_at=started_at,
                finished_at=finished_at,
                result=result,
            )
        except DAMAGE as error:
            # One damaged row is not to hide all others from those who look for it.
            why = Failure(kind="damaged", message=f"its row can't be read ({error})")
            status = status_of(main[8])
            return Job(id=main[1], queue=name[0], task=name[1], status=status, failure=why)

    def _load_names(self) -> None:
        for number, queue, task in self.connection.execute(_LINES, (self.space(),)):
            self._names[number] = (queue, task)


def _depth(counts: Sequence[int]) -> Depth:
    ready, delayed, running, done, dead, cancelled = counts
    return Depth(
        ready=ready, delayed=delayed, running=running, done=done, dead=dead, cancelled=cancelled
    )
