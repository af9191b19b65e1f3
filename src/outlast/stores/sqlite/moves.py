"""What one transaction knows: its lines, their counts, and how jobs come in and end."""

from __future__ import annotations

import asyncio
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from outlast.errors import SchemaMismatch
from outlast.job import DAY, Added, Failure
from outlast.stores.news import ENDED, ROOM, WORK
from outlast.stores.sqlite import schema
from outlast.stores.sqlite.keys import answer_keyed
from outlast.stores.sqlite.rows import crc, crcs, dump, fetch, option, opts_of
from outlast.stores.sqlite.schema import CANCELLED, DEAD, DONE, HELD, READY, RUNNING, WAITING
from outlast.stores.sqlite.steps import forget

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import apsw

    from outlast.clock import Clock
    from outlast.job import Job

__all__ = ["Careful", "Moves"]

_VERSION = "PRAGMA user_version"
_ADD_LINE = "INSERT OR IGNORE INTO lines (space, queue, task) VALUES (?, ?, ?)"
_LINES = "SELECT id, queue, task FROM lines WHERE space = ?"
_LINE = f"{_LINES} AND queue = ? AND ifnull(task, '') = ?"
_NAMED = f"{_LINES} AND id = ?"
_COUNT = (
    "UPDATE lines SET ready = ready + ?, delayed = delayed + ?, running = running + ?,"
    " done = done + ?, dead = dead + ?, cancelled = cancelled + ? WHERE id = ?"
)
_RECOUNT = (
    "UPDATE lines SET ready = (SELECT count(*) FROM jobs WHERE line = ?1 AND state = 1)"
    " + (SELECT count(*) FROM jobs WHERE lane IS NOT NULL AND line = ?1 AND state = 2)"
    " WHERE id = ?1"
)
_QUEUED = "SELECT ifnull(sum(ready + delayed), 0) FROM lines WHERE space = ? AND queue = ?"
_KNOWN_IDS = "SELECT id, crc FROM jobs WHERE space = ? AND id IN (SELECT value FROM json_each(?))"
_ALIKE = "INSERT INTO jobs (id, payload, crc, space, line, created_at, opts, state) VALUES"
_STARTED = (
    "INSERT INTO jobs (id, payload, crc, space, line, created_at, opts, state,"
    " started_at, attempt, receipt, lease, worker) VALUES"
)
_ANY = (
    "INSERT INTO jobs (id, space, line, state, payload, crc, created_at, opts,"
    " priority, rank, due, key, lane, expires_at) VALUES"
)
_ONCE = " ON CONFLICT (id, space) DO NOTHING"
_FREE_KEYS = "WITH v (task, key, job, until) AS (VALUES"
_AT_THEIR_END = (
    ") UPDATE keys SET until = v.until FROM v WHERE keys.space = ? AND keys.task = +v.task"
    " AND keys.key = +v.key AND keys.job = +v.job"
)
_NEXT_IN_LANE = (
    "UPDATE jobs SET state = 1 WHERE seq IN (SELECT seq FROM (SELECT seq, row_number() OVER"
    " (PARTITION BY line ORDER BY priority DESC, rank, due, seq) AS n FROM jobs"
    " WHERE space = ? AND lane = ? AND state = 2) WHERE n = 1)"
)
"""The first of each line: the first of all may be in a paused queue, or of a task nobody knows.

Whether the lane is still held, a claim looks anyway: it holds back again what came too soon.
"""
_ENDING = "WITH v (s, g) AS (VALUES"
_IS_ENDED = (
    ") UPDATE jobs SET state = ?, failure = ifnull(?, failure), finished_at = ?, receipt = NULL,"
    " lease = NULL, gone_at = v.g FROM v WHERE jobs.seq = +v.s"
)
_DROP = "DELETE FROM jobs WHERE seq IN (SELECT value FROM json_each(?))"

_COLUMN = {WAITING: 1, READY: 0, HELD: 0, RUNNING: 2, DONE: 3, DEAD: 4, CANCELLED: 5}
_SAME_JOB = 0xFFFFFFFF
"""The part of the checksum that does not change with a job's options."""
_CHUNKS = (250, 50, 10, 3, 1)


class Careful(Exception):
    """Something in the batch was there already or is gone: do it again, looking at each first."""


class Moves:
    """The state of the current transaction; used by the writer's thread alone."""

    def __init__(self, namespace: str, clock: Clock) -> None:
        self.namespace = namespace
        self.clock = clock
        self.space = 0
        self.careful = False
        self.names: dict[int, tuple[str, str | None]] = {}
        self._ids: dict[tuple[str, str | None], int] = {}
        self._deltas: dict[int, list[int]] = {}
        self._fresh_lines = False
        self._news = 0
        self._texts: dict[tuple[str, str, int, int], str] = {}
        self._version = 0
        self.connection: apsw.Connection

    # -- the transaction

    def attach(self, connection: apsw.Connection) -> None:
        """Work on this connection from now on."""
        self.connection = connection
        self._version = len(schema.MIGRATIONS)
        self._forget_lines()
        self.space = 0

    def begin(self, *, careful: bool) -> None:
        """In the transaction: ``SchemaMismatch`` if a newer outlast has changed the tables."""
        version = self.connection.execute(_VERSION).get
        if version != self._version:
            raise SchemaMismatch(
                f"{self.connection.filename} was brought to schema {version} by a newer outlast"
                f" while it was in use; this one knows up to {self._version}. Upgrade outlast here"
                " and start it again; nothing was changed"
            )
        self.careful = careful
        self._news = 0
        if not self.space:
            execute = self.connection.execute
            execute("INSERT OR IGNORE INTO spaces (name) VALUES (?)", (self.namespace,))
            self.space = execute("SELECT id FROM spaces WHERE name = ?", (self.namespace,)).get
            self._fresh_lines = True

    def finish(self) -> None:
        """Write down what was counted; the last thing before COMMIT."""
        self.flush()
        self._fresh_lines = False

    def abandon(self) -> None:
        """The transaction was rolled back: forget what it believed."""
        self._deltas.clear()
        if self._fresh_lines:
            self._forget_lines()
            self.space = 0
            self._fresh_lines = False

    def _forget_lines(self) -> None:
        self.names.clear()
        self._ids.clear()

    def tell(self, news: int) -> None:
        """The commit will be news of this kind to those who wait."""
        self._news |= news

    def take_news(self) -> int:
        news, self._news = self._news, 0
        return news

    def values(
        self,
        head: str,
        tail: str,
        rows: Sequence[Sequence[Any]],
        more: Sequence[Any] = (),
    ) -> int:
        """Run one statement over many rows; how many were changed.

        A thousand rows are a few statements, not a thousand: each gives the GIL up, and a busy
        event loop takes its time to hand it back.
        """
        changed, at, width = 0, 0, len(rows[0])
        for size in _CHUNKS:
            while len(rows) - at >= size:
                key = (head, tail, width, size)
                text = self._texts.get(key)
                if text is None:
                    row = "(" + ",".join("?" * width) + ")"
                    text = self._texts[key] = head + ",".join([row] * size) + tail
                flat = [value for row in rows[at : at + size] for value in row]
                flat.extend(more)
                self.connection.execute(text, flat)
                changed += self.connection.changes()
                at += size
        return changed

    # -- lines and their counts

    def line(self, queue: str, task: str | None) -> int:
        """The line's number, made if it is new."""
        found = self._ids.get((queue, task))
        if found is None:
            self._learn(_LINE, queue, task or "")
            if (queue, task) not in self._ids:
                self.connection.execute(_ADD_LINE, (self.space, queue, task))
                self._fresh_lines = True
                self._learn(_LINE, queue, task or "")
            found = self._ids[queue, task]
        return found

    def _learn(self, text: str, *which: object) -> None:
        """Only what is asked for: with a queue for each customer, all of them are thousands."""
        for number, queue, task in fetch(self.connection, text, self.space, *which):
            self.names[number] = (queue, task)
            self._ids[queue, task] = number

    def name(self, line: int) -> tuple[str, str | None]:
        if line not in self.names:
            if self.names:
                self._learn(_NAMED, line)
            else:
                self._learn(_LINES)  # a worker that starts needs all that wait
        return self.names[line]

    def count(self, line: int, state: int, by: int) -> None:
        delta = self._deltas.get(line)
        if delta is None:
            delta = self._deltas[line] = [0] * 6
        delta[_COLUMN[state]] += by

    def growing(self) -> list[int]:
        """Lines in which more is ready than was counted when last written down.

        Without those that there aren't: a job whose bits have flipped may name any.
        """
        grown = [line for line, delta in self._deltas.items() if delta[0] > 0]
        for line in grown:
            if line not in self.names:
                self._learn(_NAMED, line)
        return [line for line in grown if line in self.names]

    def moved(self, line: int, before: int, after: int, by: int = 1) -> None:
        self.count(line, before, -by)
        self.count(line, after, by)

    def flush(self) -> None:
        for line, delta in self._deltas.items():
            if any(delta):
                self.connection.execute(_COUNT, (*delta, line))
        self._deltas.clear()

    def recount(self, lines: Iterable[int]) -> None:
        """Count anew what is ready in these lines: what is not counted is never claimed."""
        self.flush()
        for line in lines:
            self.connection.execute(_RECOUNT, (line,))

    # -- coming in

    def add(self, jobs: Sequence[Job], capacity: int | None = None) -> list[Added]:
        """See ``Store.add``. Raises before anything is written, or leaves nothing written."""
        if capacity is None or self._overflow(jobs, capacity) is None:
            return self._add(jobs)
        # Full, unless what makes it too many is there already.
        self.connection.execute("SAVEPOINT room")
        try:
            return self._add(jobs, capacity=capacity)
        except BaseException:
            self.connection.execute("ROLLBACK TO room")
            # A line that was new to the file is gone again.
            self._forget_lines()
            raise
        finally:
            self.connection.execute("RELEASE room")

    def add_alike(self, model: Job, ids: Sequence[str], payloads: Sequence[bytes]) -> list[Added]:
        """The usual batch, with nothing to look up first: see ``Op.model``."""
        self._insert_alike(model, ids, payloads, self.clock.now())
        self.tell(WORK)
        return list(map(Added, ids))

    def add_started(
        self,
        model: Job,
        ids: Sequence[str],
        payloads: Sequence[bytes],
        now: float,
        taken: tuple[bytes, float, str],
    ) -> Sequence[int]:
        """The same for jobs in a worker's hands: see ``claims.start``. The numbers of the rows.

        It is no news to anybody: nothing is left to be claimed.
        """
        self._insert_alike(model, ids, payloads, now, taken)
        last = self.connection.last_insert_rowid()
        return range(last - len(ids) + 1, last + 1)

    def add_following(self, jobs: Sequence[Job]) -> None:
        """The ``then`` of verdicts: where a key is taken, the job that holds it stands."""
        self._add(jobs, lenient=True)

    def _overflow(self, jobs: Sequence[Job], capacity: int) -> str | None:
        """What is too full for these jobs, if anything is."""
        self.flush()
        wanted: dict[str, int] = {}
        for job in jobs:
            wanted[job.queue] = wanted.get(job.queue, 0) + 1
        for queue, more in wanted.items():
            queued = self.connection.execute(_QUEUED, (self.space, queue)).get
            if queued + more > capacity:
                return f"queue {queue!r} holds {queued} of {capacity} jobs"
        return None

    def _add(
        self, jobs: Sequence[Job], *, capacity: int | None = None, lenient: bool = False
    ) -> list[Added]:
        if len(jobs) > 1 and any(job.on_repeat != "first" for job in jobs):
            return self._one_by_one(jobs, capacity, lenient=lenient)
        answers: list[Added | None] = [None] * len(jobs)
        if self.careful or capacity is not None:
            self._answer_known(jobs, answers)
        if any(job.key is not None for job in jobs):
            self.flush()
            if not answer_keyed(self, jobs, answers, lenient=lenient):
                raise Careful
        pairs = zip(jobs, answers, strict=True)
        fresh = [job for job, answer in pairs if answer is None or answer.created]
        full = None if capacity is None else self._overflow(fresh, capacity)
        if full:
            raise asyncio.QueueFull(full)
        if fresh and self._insert(fresh) != len(fresh):
            raise Careful
        if fresh:
            self.tell(WORK)
        return [answer or Added(job.id) for job, answer in zip(jobs, answers, strict=True)]

    def _one_by_one(
        self, jobs: Sequence[Job], capacity: int | None, *, lenient: bool
    ) -> list[Added]:
        """Each may find what the one before it has left; all or none of them."""
        self.flush()
        self.connection.execute("SAVEPOINT repeats")
        try:
            return [
                answer
                for job in jobs
                for answer in self._add([job], capacity=capacity, lenient=lenient)
            ]
        except BaseException:
            self.undo("repeats")
            raise
        finally:
            self.connection.execute("RELEASE repeats")

    def undo(self, name: str) -> None:
        """Back to a savepoint, at which all counts were written; a line new since is gone."""
        self.connection.execute(f"ROLLBACK TO {name}")
        self._deltas.clear()
        self._forget_lines()

    def _answer_known(self, jobs: Sequence[Job], answers: list[Added | None]) -> None:
        wanted = dump([job.id for job in jobs]).decode()
        known: dict[str, int] = dict(fetch(self.connection, _KNOWN_IDS, self.space, wanted))
        for index, job in enumerate(jobs):
            mark = crc(self.line(job.queue, job.task), job.id, job.payload, None)
            if job.id in known:
                answers[index] = Added(job.id, False, known[job.id] & _SAME_JOB != mark)
            else:
                known[job.id] = mark

    def _insert_alike(
        self,
        model: Job,
        ids: Sequence[str],
        payloads: Sequence[bytes],
        now: float,
        taken: tuple[bytes, float, str] | tuple[()] = (),
    ) -> None:
        """The rows of jobs that differ in nothing but id and payload. ``Careful`` if one is known.

        ``taken``: receipt, lease and worker, if they are claimed already.
        """
        opts = opts_of(model)
        line = self.line(model.queue, model.task)
        started = bool(taken)
        self.count(line, RUNNING if started else READY, len(ids))
        shared = [self.space, line, now, opts, *taken]
        if len(ids) == 1:
            alone = (ids[0], payloads[0], crc(line, ids[0], payloads[0], opts))
            self.connection.execute(_alike(1, started), (*shared, *alone))
            inserted = self.connection.changes()
        else:
            rows = zip(ids, payloads, crcs(line, ids, payloads, opts), strict=True)
            flat: list[Any] = list(chain.from_iterable(rows))
            inserted, at = 0, 0
            for size in _CHUNKS:
                while len(ids) - at >= size:
                    values = shared + flat[3 * at : 3 * (at + size)]
                    self.connection.execute(_alike(size, started), values)
                    inserted += self.connection.changes()
                    at += size
        if inserted != len(ids):
            raise Careful

    def _insert(self, jobs: Sequence[Job]) -> int:
        """Write the rows; how many were not there yet."""
        now, space = self.clock.now(), self.space
        rows: list[tuple[Any, ...]] = []
        for job in jobs:
            line = self.line(job.queue, job.task)
            due = job.run_at
            if job.delay is not None and job.delay > 0:
                due = now + job.delay
            state = WAITING if due is not None and due > now else READY
            self.count(line, state, 1)
            opts = opts_of(job)
            rows.append(
                (
                    job.id,
                    space,
                    line,
                    state,
                    job.payload,
                    crc(line, job.id, job.payload, opts),
                    now,
                    opts,
                    job.priority,
                    job.rank,
                    _INFINITY if due is None else due,
                    job.key,
                    job.lane,
                    job.expires_at if job.ttl is None else now + job.ttl,
                )
            )
        return self.values(_ANY, _ONCE, rows)

    # -- ending

    def end(
        self,
        rows: Sequence[tuple[int, str, int, int, str | None, str | None, str | None]],
        state: int,
        failure: Failure | None,
    ) -> None:
        """End jobs outside of a verdict. Rows are (seq, id, line, state, key, lane, opts)."""
        if not rows:
            return
        now = self.clock.now()
        why = None if failure is None else dump(failure).decode()
        keeps = {seq: option(opts, "keep", DAY) for seq, *_, opts in rows}
        gone = [seq for seq, keep in keeps.items() if keep == 0 and state != DEAD]
        ends = [
            (seq, None if keep is None or state == DEAD else now + keep)
            for seq, keep in keeps.items()
        ]
        self.values(_ENDING, _IS_ENDED, ends, (state, why, now))
        for _, _, line, before, *_ in rows:
            self.moved(line, before, state)
        for seq, _, line, *_ in rows:
            if keeps[seq] == 0 and state != DEAD:
                self.count(line, state, -1)
        if gone:
            forget(self, gone)
            self.connection.execute(_DROP, (dump(gone).decode(),))
        keyed = [
            (self.name(line)[1] or "", key, identifier, now + (option(opts, "keep_key", DAY) or 0))
            for _, identifier, line, _, key, _, opts in rows
            if key is not None
        ]
        self.free_keys(keyed)
        self.free_lanes(lane for *_, lane, _ in rows if lane is not None)
        self.tell(ENDED | ROOM)

    def free_keys(self, keyed: Sequence[tuple[str, str, str, float]]) -> None:
        """(task, key, id, until): remember the keys of ended jobs until then."""
        if keyed:
            self.values(_FREE_KEYS, _AT_THEIR_END, keyed, (self.space,))

    def free_lanes(self, lanes: Iterable[str]) -> None:
        """A job of each lane has ended: let the next one come."""
        for lane in set(lanes):
            self.connection.execute(_NEXT_IN_LANE, (self.space, lane))
            self.tell(WORK)


@cache
def _alike(size: int, started: bool) -> str:
    """Rows that share all but id, payload and checksum: fewer values to bind."""
    head, shared, first = _ALIKE, "?1,?2,?3,?4,1", 5
    if started:
        head, shared, first = _STARTED, "?1,?2,?3,?4,3,?3,1,?5,?6,?7", 8
    rows = (
        f"(?{first + 3 * n},?{first + 1 + 3 * n},?{first + 2 + 3 * n},{shared})"
        for n in range(size)
    )
    return f"{head}{','.join(rows)}{_ONCE}"


_INFINITY = float("inf")
