"""What a store must do, written as plainly as possible: everything is looked at every time.

It has no locks, no indexes, no awaits and no cleverness, so that reading it is checking it.
Receipts are numbers here: `claim` tells which job was started as which number, and whoever compares
a store with the model keeps the store's own receipt beside it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outlast.errors import KeyConflict, QueueFull
from outlast.job import Added, Failure, Job, Progress, Status

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from outlast.job import Death, Verdict

__all__ = ["Held", "Model", "Stored"]

LIVE = (Status.QUEUED, Status.RUNNING)


@dataclass
class Stored:
    """A job as the model keeps it: what was added, and what became of it."""

    job: Job
    seq: int
    run_at: float | None
    expires_at: float | None
    status: Status = Status.QUEUED
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    suspect: bool = False
    worker: str | None = None
    receipt: int | None = None
    lease: float = 0.0
    asked: bool = False
    finished_at: float | None = None
    failure: Failure | None = None
    result: bytes | None = None
    progress: Progress | None = None

    def order(self) -> tuple[object, ...]:
        first = (-self.job.priority, self.job.rank)
        return (*first, self.run_at is None, self.run_at or 0.0, self.seq)

    def newest(self) -> tuple[object, ...]:
        return (-self.job.priority, self.job.rank, -self.seq)


@dataclass
class Key:
    """Who holds a key, and until when; None while its job lives."""

    id: str
    digest: bytes
    until: float | None = None


@dataclass(frozen=True)
class Held:
    """A claim: the job's id and the number that stands for the receipt."""

    id: str
    receipt: int


@dataclass
class Model:
    """The jobs of one namespace. ``now`` is the only clock; whoever uses it moves it."""

    now: float
    jobs: dict[str, Stored] = field(default_factory=dict)
    keys: dict[tuple[str | None, str], Key] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    count: int = 0

    # -- coming in

    def add(self, jobs: Sequence[Job], capacity: int | None = None) -> list[Added]:
        before = (dict(self.jobs), dict(self.keys), set(self.used))
        try:
            answers = [self._add(job) for job in jobs]
            if capacity is not None:
                self._check(jobs, answers, capacity)
        except (KeyConflict, QueueFull):
            self.jobs, self.keys, self.used = before
            raise
        return answers

    def _add(self, job: Job) -> Added:
        twin = self.jobs.get(job.id)
        if twin is not None:
            same = (twin.job.queue, twin.job.task, twin.job.payload)
            return Added(job.id, False, same != (job.queue, job.task, job.payload))
        if job.key is not None:
            key = self._key(job)
            if key is not None:
                if key.digest != job.digest:
                    raise KeyConflict(job.key)
                return Added(key.id, False)
            self.keys[job.task, job.key] = Key(job.id, job.digest)
        self.count += 1
        run_at = self.now + job.delay if job.delay else job.run_at
        expires_at = job.expires_at if job.ttl is None else self.now + job.ttl
        self.jobs[job.id] = Stored(job, self.count, run_at, expires_at)
        self.used.add(job.queue)
        return Added(job.id)

    def _key(self, job: Job) -> Key | None:
        key = self.keys.get((job.task, job.key or ""))
        return key if key and (key.until is None or key.until > self.now) else None

    def _check(self, jobs: Sequence[Job], answers: Sequence[Added], capacity: int) -> None:
        new = Counter(job.queue for job, it in zip(jobs, answers, strict=True) if it.created)
        for queue in new:
            queued = [it for it in self.jobs.values() if it.job.queue == queue]
            if sum(it.status is Status.QUEUED for it in queued) > capacity:
                raise QueueFull(queue)

    # -- going out

    def claim(
        self,
        queues: Collection[str],
        tasks: Collection[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool = False,
    ) -> list[Held]:
        if limit <= 0:
            return []
        self.expire()
        due = [
            it
            for it in self.jobs.values()
            if it.status is Status.QUEUED
            and it.job.queue in queues
            and it.job.task in tasks
            and it.job.queue not in self.paused
            and (it.run_at is None or it.run_at <= self.now)
        ]
        due.sort(key=Stored.newest if newest else Stored.order)
        claims: list[Held] = []
        for it in due:
            if len(claims) >= limit:
                break
            if not self._lane_is_held(it):
                self.count += 1
                it.status, it.attempt, it.worker = Status.RUNNING, it.attempt + 1, worker
                it.receipt, it.lease = self.count, self.now + lease
                claims.append(Held(it.job.id, self.count))
        return claims

    def _lane_is_held(self, it: Stored) -> bool:
        return it.job.lane is not None and any(
            other is not it
            and other.job.lane == it.job.lane
            and other.status in LIVE
            and (other.status is Status.RUNNING or other.attempt > 0)
            for other in self.jobs.values()
        )

    # -- what became of it

    def held(self, claim: Held) -> Stored | None:
        it = self.jobs.get(claim.id)
        if it is None or it.status is not Status.RUNNING or it.receipt != claim.receipt:
            return None
        return it

    def settle(self, claim: Held, verdict: Verdict) -> bool:
        """Apply one verdict; whether the claim still held the job."""
        it = self.held(claim)
        if it is None:
            return False
        it.attempt -= not verdict.started
        if verdict.kind in ("retry", "dead") and verdict.started:
            if verdict.failure is not None and verdict.failure.kind == "crash":
                it.crashes += 1
            else:
                it.failures += 1
        if verdict.kind == "done":
            self._end(it, Status.DONE, None, verdict.result)
        elif verdict.kind == "dead":
            self._end(it, Status.DEAD, verdict.failure)
        elif verdict.kind == "cancelled":
            self._end(it, Status.CANCELLED, verdict.failure or Failure(kind="cancelled"))
        else:
            it.failure = verdict.failure or it.failure
            it.suspect = it.suspect and not verdict.started
            if verdict.delay > 0:
                it.run_at = self.now + verdict.delay
            self._back(it)
        for job in verdict.then:
            if job.id not in self.jobs and (job.key is None or self._key(job) is None):
                self._add(job)
        return True

    def _back(self, it: Stored) -> None:
        it.receipt = it.worker = None
        it.status = Status.QUEUED
        if it.asked:
            self._end(it, Status.CANCELLED, Failure(kind="cancelled"))

    def _end(
        self, it: Stored, status: Status, failure: Failure | None, result: bytes | None = None
    ) -> None:
        it.status, it.failure, it.result = status, failure, result
        it.receipt, it.finished_at = None, self.now
        key = self.keys.get((it.job.task, it.job.key or ""))
        if it.job.key is not None and key is not None and key.id == it.job.id:
            key.until = self.now + it.job.keep_key
        if it.job.keep == 0 and status is not Status.DEAD:
            del self.jobs[it.job.id]

    def renew(self, claim: Held, lease: float, note: Progress | None = None) -> str | None:
        """Prolong one claim; None if all is well, else why not."""
        it = self.held(claim)
        if it is None:
            return "lost"
        it.lease = self.now + lease
        it.progress = note or it.progress
        return "cancelled" if it.asked else None

    # -- workers die

    def recover(self) -> int:
        overdue = [it for it in self._running() if it.lease <= self.now]
        for it in overdue:
            if it.suspect:
                self._crash(it)
            else:
                it.suspect = True
                self._back(it)
        return len(overdue)

    def recover_worker(self, worker: str, cause: Death) -> int:
        mine = [it for it in self._running() if it.worker == worker]
        started = [it for it in mine if cause.started is None or it.job.id in cause.started]
        blamed = [it for it in started if cause.blamed is None or it.job.id in cause.blamed]
        for it in mine:
            if it not in started:
                it.attempt -= 1
                self._back(it)
            elif it not in blamed:
                it.suspect = False
                self._back(it)
            elif cause.sole:
                self._crash(it)
            else:
                it.suspect = True
                self._back(it)
        return len(mine)

    def _running(self) -> list[Stored]:
        return [it for it in self.jobs.values() if it.status is Status.RUNNING]

    def _crash(self, it: Stored) -> None:
        it.crashes += 1
        it.suspect = True
        it.failure = Failure(kind="crash")
        limit = it.job.max_crashes
        if limit is not None and it.crashes >= limit:
            self._end(it, Status.DEAD, Failure(kind="crash"))
        else:
            self._back(it)

    # -- time passes

    def overdue(self) -> list[Stored]:
        """The queued jobs that are past their time."""
        return [
            it
            for it in self.jobs.values()
            if it.status is Status.QUEUED
            and it.expires_at is not None
            and it.expires_at <= self.now
        ]

    def expire(self) -> None:
        for it in self.overdue():
            self._end(it, Status.CANCELLED, Failure(kind="expired"))

    def prune(self) -> None:
        self.expire()
        for it in list(self.jobs.values()):
            if it.status in (Status.DONE, Status.CANCELLED) and it.job.keep is not None:
                assert it.finished_at is not None
                if it.finished_at + it.job.keep <= self.now:
                    del self.jobs[it.job.id]
        self.keys = {
            name: key
            for name, key in self.keys.items()
            if key.until is None or key.until > self.now
        }

    # -- people

    def cancel(self, id_: str) -> str:
        it = self.jobs.get(id_)
        if it is None:
            return "missing"
        if it.status is Status.QUEUED:
            self._end(it, Status.CANCELLED, Failure(kind="cancelled"))
            return "cancelled"
        if it.status is Status.RUNNING:
            it.asked = True
            return "requested"
        return "ended"

    def revive(self, ids: Sequence[str]) -> list[bool]:
        fit = [
            (it := self.jobs.get(id_)) is not None
            and it.status in (Status.DEAD, Status.CANCELLED)
            and id_ not in ids[:n]
            for n, id_ in enumerate(ids)
        ]
        chosen = [self.jobs[id_] for id_, fits in zip(ids, fit, strict=True) if fits]
        takers: dict[tuple[str | None, str], str] = {}
        for it in chosen:
            if it.job.key is not None:
                key = self._key(it.job)
                holder = key.id if key is not None else it.job.id
                if takers.setdefault((it.job.task, it.job.key), holder) != it.job.id:
                    raise KeyConflict(it.job.key)
        for it in chosen:
            fresh = Stored(it.job, it.seq, None, None, failure=it.failure)
            self.jobs[it.job.id] = fresh
            if it.job.key is not None:
                self.keys[it.job.task, it.job.key] = Key(it.job.id, it.job.digest)
        return fit

    def purge(self, queue: str, status: Collection[Status], *, dry_run: bool) -> int | None:
        """How many went; None for a queue that never was."""
        if queue not in self.used:
            return None
        gone = [
            it
            for it in self.jobs.values()
            if it.job.queue == queue and it.status in status and it.status is not Status.RUNNING
        ]
        if not dry_run:
            for it in gone:
                del self.jobs[it.job.id]
                name = (it.job.task, it.job.key or "")
                if name in self.keys and self.keys[name].id == it.job.id:
                    del self.keys[name]
        return len(gone)

    def depth(self, queue: str) -> dict[str, int]:
        mine = [it for it in self.jobs.values() if it.job.queue == queue]
        counts = Counter(it.status.value for it in mine)
        delayed = sum(
            it.status is Status.QUEUED and it.run_at is not None and it.run_at > self.now
            for it in mine
        )
        return {
            "ready": counts["queued"] - delayed,
            "delayed": delayed,
            "running": counts["running"],
            "done": counts["done"],
            "dead": counts["dead"],
            "cancelled": counts["cancelled"],
        }
