"""The jobs of one namespace and every legal step of their states, without locks or awaits."""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from outlast.job import Failure, Job, Status
from outlast.stores.memory.order import Lane, Line, Pile, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outlast.stores.memory.bell import Bell

__all__ = ["Key", "KeyEntry", "Table"]

Key = tuple[str | None, str]
"""The task, and the key given for it."""


class KeyEntry(Struct):
    """Which job holds a key; ``until`` is None while that job is live."""

    id: str
    digest: bytes
    until: float | None = None


class Table:
    """All rows, indexed by everything that the store looks for."""

    def __init__(self, bell: Bell) -> None:
        self.rows: dict[str, Row] = {}
        self.lines: dict[tuple[str, str | None], Line] = {}
        self.queues: defaultdict[str, list[Line]] = defaultdict(list)
        self.paused: set[str] = set()
        self.lanes: dict[str, Lane] = {}
        self.keys: dict[Key, KeyEntry] = {}
        self.running: defaultdict[str, dict[str, Row]] = defaultdict(dict)
        self.leases = Pile()
        self.bell = bell
        self._expiries = Pile()
        self._endings = Pile()
        self._fading: list[tuple[float, int, Key, KeyEntry]] = []
        self._sequence = 0
        self.forget: Callable[[str, object], object] = _nothing
        """Told of the id of each job that is deleted."""
        self.epoch = 1
        """Part of every fence; raised when a job's starts are counted anew."""

    def insert(self, job: Job, now: float) -> None:
        """A new job; its id and key are known to be free."""
        run_at = now + job.delay if job.delay else job.run_at
        expires_at = job.expires_at if job.ttl is None else now + job.ttl
        job = Job(
            id=job.id,
            queue=job.queue,
            task=job.task,
            payload=job.payload,
            codec=job.codec,
            headers=job.headers,
            priority=job.priority,
            rank=job.rank,
            run_at=run_at,
            expires_at=expires_at,
            max_attempts=job.max_attempts,
            max_crashes=job.max_crashes,
            timeout=job.timeout,
            key=job.key,
            digest=job.digest,
            keep_key=job.keep_key,
            key_queued=job.key_queued,
            keep=job.keep,
            lane=job.lane,
            created_at=now,
        )
        lane = None
        if job.lane is not None:
            lane = self.lanes.setdefault(job.lane, Lane())
            lane.live += 1
        row = Row(job, self._next(), self._line(job), lane)
        self.rows[job.id] = row
        if job.key is not None:
            self.keys[job.task, job.key] = KeyEntry(job.id, job.digest)
        row.line.counts[Status.QUEUED] += 1
        self._put(row, now)

    def take_in(self, job: Job, now: float) -> None:
        """A job of another store, as it stands; it isn't running. Keys come apart from jobs."""
        lane = None
        if job.lane is not None and not job.status.ended:
            lane = self.lanes.setdefault(job.lane, Lane())
            lane.live += 1
        row = Row(job, self._next(), self._line(job), lane)
        self.rows[job.id] = row
        row.line.counts[job.status] += 1
        if not job.status.ended:
            if lane is not None and job.attempt and lane.holder is None:
                lane.holder = row
            self._put(row, now)
        elif job.status is not Status.DEAD and job.keep is not None:
            self._endings.push(((job.finished_at or now) + job.keep, row.seq), row)

    def hold_key(self, key: Key, id: str, digest: bytes, until: float | None) -> None:
        """Let a job hold a key that is free, or be remembered for it."""
        entry = self.keys[key] = KeyEntry(id, digest, until)
        if until is not None:
            heappush(self._fading, (until, self._next(), key, entry))

    def key(self, task: str | None, key: str, now: float) -> KeyEntry | None:
        """Who holds a key, if anybody does or is still remembered for it."""
        entry = self.keys.get((task, key))
        if entry is not None and entry.until is not None and entry.until <= now:
            del self.keys[task, key]
            return None
        return entry

    def start(self, row: Row, worker: str, receipt: bytes, lease: float, now: float) -> Job:
        """A queued job goes into a worker's hands; ``lease`` is the moment when that ends."""
        row.line.take_out(row)
        self._change(row, Status.RUNNING)
        row.job = job = replace(
            row.job,
            status=Status.RUNNING,
            attempt=row.job.attempt + 1,
            started_at=now,
            worker=worker,
        )
        row.receipt = receipt
        row.lease = lease
        if job.key_queued:
            self.drop_key(job)
        self.leases.push((lease, row.seq), row)
        self.running[worker][job.id] = row
        if row.lane is not None:
            row.lane.holder = row
        self.bell.ring(("room", row.line.queue))
        return job

    def requeue(self, row: Row, job: Job, now: float) -> None:
        """What was running comes back, as ``job``; or is cancelled, if that was asked."""
        self._release(row)
        row.job = job
        if row.asked:
            self._finish(row, Status.CANCELLED, Failure(kind="cancelled"), now)
            return
        self._change(row, Status.QUEUED)
        row.job = replace(job, status=Status.QUEUED, worker=None)
        if row.lane is not None and job.attempt == 0:
            row.lane.holder = None
            self._free(row.lane)
        self._put(row, now)
        self.bell.ring(("room", row.line.queue))

    def end(
        self,
        row: Row,
        status: Status,
        now: float,
        failure: Failure | None = None,
        result: bytes | None = None,
    ) -> None:
        """A live job ends; what is kept no longer than that is deleted."""
        if row.job.status is Status.RUNNING:
            self._release(row)
        else:
            row.line.take_out(row)
        self._finish(row, status, failure, now, result)

    def revive(self, row: Row, now: float) -> None:
        """An ended job is queued again, in its old place. Its key is known to be free for it."""
        row.stamp += 1
        row.asked = False
        self.epoch += 1
        self._change(row, Status.QUEUED)
        row.job = job = replace(
            row.job,
            status=Status.QUEUED,
            attempt=0,
            failures=0,
            crashes=0,
            suspect=False,
            run_at=None,
            expires_at=None,
            started_at=None,
            finished_at=None,
            result=None,
            progress=None,
            worker=None,
        )
        if job.lane is not None:
            row.lane = self.lanes.setdefault(job.lane, Lane())
            row.lane.live += 1
        if job.key is not None:
            self.keys[job.task, job.key] = KeyEntry(job.id, job.digest)
        self._put(row, now)

    def renew_call(self, row: Row, job: Job, now: float, *, due: bool) -> None:
        """A queued job that was never started becomes the call that ``job`` is; with its time?"""
        row.line.take_out(row)
        fields: dict[str, Any] = {name: getattr(job, name) for name in _OF_CALL}
        if due:
            fields["run_at"] = now + job.delay if job.delay else job.run_at
            fields["expires_at"] = job.expires_at if job.ttl is None else now + job.ttl
        row.job = replace(row.job, **fields)
        if job.key is not None:
            self.keys[job.task, job.key] = KeyEntry(row.job.id, job.digest)
        self._put(row, now)

    def hasten(self, row: Row, now: float) -> None:
        """A delayed job is due at once."""
        row.line.take_out(row)
        row.job = replace(row.job, run_at=None)
        self._put(row, now)

    def remove(self, row: Row) -> None:
        """Forget a job that isn't running. Its key stays as it is."""
        if row.job.status is Status.QUEUED:
            row.line.take_out(row)
            self._leave_lane(row)
        row.stamp += 1
        row.line.counts[row.job.status] -= 1
        del self.rows[row.job.id]
        self.forget(row.job.id, None)
        self.bell.ring(("room", row.line.queue))
        self.bell.call(("job", row.job.id))

    def drop_key(self, job: Job) -> None:
        """Forget the key of a job, if it is that job's still."""
        if job.key is not None:
            entry = self.keys.get((job.task, job.key))
            if entry is not None and entry.id == job.id:
                del self.keys[job.task, job.key]

    def promote(self, queue: str, now: float) -> None:
        """Let the delayed jobs of a queue that have come due be seen."""
        moved = [line.promote(now) for line in self.queues.get(queue, ())]
        if any(moved):
            self.bell.ring(("news", queue))

    def expire(self, now: float, limit: int | None = None) -> int:
        """End the queued jobs that are past their time; how many."""
        count = 0
        while (limit is None or count < limit) and (row := _due(self._expiries, now)) is not None:
            self.end(row, Status.CANCELLED, now, Failure(kind="expired", message="never started"))
            count += 1
        return count

    def outlived(self, now: float) -> Iterator[Row]:
        """The ended jobs that nobody wants any longer; take each away before the next."""
        while (row := _due(self._endings, now)) is not None:
            yield row

    def fade(self, now: float, limit: int) -> int:
        """Forget at most ``limit`` keys that are past their time; how many."""
        count = 0
        while count < limit and self._fading and self._fading[0][0] <= now:
            until, _, key, entry = heappop(self._fading)
            if self.keys.get(key) is entry and entry.until == until:
                del self.keys[key]
                count += 1
        return count

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _line(self, job: Job) -> Line:
        line = self.lines.get((job.queue, job.task))
        if line is None:
            line = self.lines[job.queue, job.task] = Line(job.queue, job.task)
            self.queues[job.queue].append(line)
        return line

    def _put(self, row: Row, now: float) -> None:
        row.line.put(row, now)
        if row.job.expires_at is not None:
            self._expiries.push((row.job.expires_at, row.seq), row)
        self.bell.ring(("news", row.line.queue))

    def _change(self, row: Row, status: Status) -> None:
        counts = row.line.counts
        counts[row.job.status] -= 1
        counts[status] += 1

    def _release(self, row: Row) -> None:
        """Take a running job out of its worker's hands."""
        row.stamp += 1
        row.receipt = b""
        worker = row.job.worker or ""
        mine = self.running[worker]
        del mine[row.job.id]
        if not mine:
            del self.running[worker]

    def _finish(
        self,
        row: Row,
        status: Status,
        failure: Failure | None,
        now: float,
        result: bytes | None = None,
    ) -> None:
        self._change(row, status)
        row.job = job = replace(
            row.job, status=status, finished_at=now, failure=failure, result=result
        )
        self._leave_lane(row)
        self._remember_key(job, now)
        self.bell.ring(("room", row.line.queue))
        self.bell.call(("job", job.id))
        if status is Status.DEAD or job.keep is None:
            return
        if job.keep == 0:
            self.remove(row)
        else:
            self._endings.push((now + job.keep, row.seq), row)

    def _remember_key(self, job: Job, now: float) -> None:
        if job.key is None:
            return
        entry = self.keys.get((job.task, job.key))
        if entry is None or entry.id != job.id:
            return
        if job.keep_key <= 0:
            del self.keys[job.task, job.key]
            return
        entry.until = now + job.keep_key
        heappush(self._fading, (entry.until, self._next(), (job.task, job.key), entry))

    def _leave_lane(self, row: Row) -> None:
        lane = row.lane
        if lane is None:
            return
        row.lane = None
        if lane.holder is row:
            lane.holder = None
        lane.live -= 1
        if lane.live:
            self._free(lane)
        elif row.job.lane is not None:
            del self.lanes[row.job.lane]

    def _free(self, lane: Lane) -> None:
        for queue in lane.let_go():
            self.bell.ring(("news", queue))


def _nothing(*_: object) -> None:
    """Until someone wants to be told."""


_OF_CALL = (
    "payload", "codec", "headers", "digest", "timeout", "max_attempts", "max_crashes", "keep",
    "keep_key", "key_queued",
)  # fmt: skip
"""What a call brings with it, but for its time, its place and its id."""


def _due(pile: Pile, now: float) -> Row | None:
    top = pile.top()
    return pile.pop() if top is not None and top[0][0] <= now else None
