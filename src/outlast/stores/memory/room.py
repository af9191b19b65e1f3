"""What a store does, on the table of one namespace: plain calls, each of them one step."""

from __future__ import annotations

import threading
from collections import Counter
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from outlast.errors import KeyConflict, KeyRepeated, QueueFull
from outlast.job import (
    Added,
    Claim,
    Death,
    Depth,
    Failure,
    Job,
    Lost,
    Progress,
    Status,
    Step,
    Verdict,
)
from outlast.limits import check_job
from outlast.stores.memory.bell import Bell
from outlast.stores.memory.steps import Deeds
from outlast.stores.memory.table import KeyEntry, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.movable import Departure
    from outlast.store import WorkerInfo
    from outlast.stores.memory.order import Line, Row

__all__ = ["Room"]


STARTS = 1 << 32
"""How many starts of a job fit below the epoch in a fence."""


class _Plan:
    """What one ``add`` is going to do: nothing is changed before all of it is known to be right."""

    def __init__(self) -> None:
        self.fresh: dict[str, Job] = {}
        self.keys: dict[tuple[str | None, str], KeyEntry] = {}
        self.replaced: list[str] = []
        self.steps: list[tuple[Job, str | None]] = []
        """In order: jobs to be stored, each with the holder of its key that it takes over from."""


class Room:
    """The jobs of one namespace, shared by every store that was opened on it.

    Callers hold ``lock`` around each call. ``now`` is a moment; ``monotonic`` measures leases, so
    that a clock which is set back or forward neither prolongs nor ends one.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.bell = Bell()
        self.table = Table(self.bell)
        self.deeds = Deeds(self.table)
        self.workers: dict[str, WorkerInfo] = {}
        self.departure: Departure | None = None
        self.leaving: list[Row] = []
        self.arriving: dict[str, str] = {}

    def add(self, jobs: Sequence[Job], capacity: int | None, now: float) -> list[Added]:
        """Store all of them, or raise and store none."""
        plan = _Plan()
        answers: list[Added] = []
        for job in jobs:
            check_job(job)
            answers.append(self._standing(job, plan, now))
        if capacity is not None:
            self._check_capacity(plan, capacity)
        for job, holder in plan.steps:
            if holder is None:
                self.table.insert(job, now)
            elif job.on_repeat == "replace":
                failure = Failure(kind="cancelled", message=f"replaced by job {job.id}")
                self.table.end(self.table.rows[holder], Status.CANCELLED, now, failure)
                self.table.insert(job, now)
            else:
                row = self.table.rows[holder]
                self.table.renew_call(row, job, now, due=job.on_repeat == "debounce")
        return answers

    def claim(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool,
        now: float,
        receipt: Callable[[], bytes],
    ) -> list[Claim]:
        """Start up to ``limit`` jobs, the first in order over all lines asked for."""
        table = self.table
        table.expire(now)
        lines = self._claimable(queues, tasks, newest, now)
        heads: list[tuple[Any, int]] = []
        for index, line in enumerate(lines):
            if (top := line.pile(newest).top()) is not None:
                heads.append((top[0], index))
        heapify(heads)
        claims: list[Claim] = []
        while heads and len(claims) < limit:
            key, index = heappop(heads)
            pile = lines[index].pile(newest)
            row = pile.pop()
            if row.lane is not None and row.blocked:
                row.lane.park(key, row, newest)
            else:
                token = receipt()
                job = table.start(row, worker, token, lease, now)
                claims.append(Claim(job, token, table.epoch * STARTS + job.attempt))
            if (top := pile.top()) is not None:
                heappush(heads, (top[0], index))
        return claims

    def settle(self, verdicts: Sequence[Verdict], now: float) -> list[Lost]:
        """Apply what still holds, in order; return the rest."""
        for verdict in verdicts:
            for job in verdict.then:
                check_job(job)
        lost: list[Lost] = []
        for verdict in verdicts:
            row = self._held(verdict.claim)
            if row is None:
                lost.append(Lost(verdict.claim, "lost"))
                continue
            self._apply(row, verdict, now)
            self.follow(verdict.then, now)
        return lost

    def follow(self, jobs: Sequence[Job], now: float) -> None:
        """Add jobs; where a key is taken, the job that holds it stands."""
        for job in jobs:
            if self._is_new(job, now):
                self.table.insert(job, now)

    def renew(self, claims: Sequence[Claim], until: float, notes: Sequence[Progress]) -> list[Lost]:
        """Extend what is still held, note its progress, and tell what is lost or unwanted."""
        lost: list[Lost] = []
        by_id = {note.id: note for note in notes}
        for claim in claims:
            row = self._held(claim)
            if row is None:
                lost.append(Lost(claim, "lost"))
                continue
            if until < row.lease:
                self.table.leases.push((until, row.seq), row)
            row.lease = until
            note = by_id.get(claim.job.id)
            if note is not None:
                row.job = replace(row.job, progress=note)
            if row.asked:
                lost.append(Lost(claim, "cancelled"))
        return lost

    def recover(self, limit: int, now: float, monotonic: float) -> int:
        """Take back what nobody renewed; a first time is suspicious, the next a crash."""
        leases = self.table.leases
        count = 0
        while count < limit and (top := leases.top()) is not None and top[0][0] <= monotonic:
            row = leases.pop()
            if row.lease > monotonic:
                leases.push((row.lease, row.seq), row)
                continue
            if row.job.suspect:
                self._crash(row, Failure(kind="crash", message="the lease ran out"), now)
            else:
                self.table.requeue(row, replace(row.job, suspect=True), now)
            count += 1
        return count

    def recover_worker(self, worker: str, cause: Death, now: float) -> int:
        """Take back all that a dead worker held, and blame what can only have been the one."""
        rows = list(self.table.running.get(worker, {}).values())
        started = [row for row in rows if cause.started is None or row.job.id in cause.started]
        blamed = [row for row in started if cause.blamed is None or row.job.id in cause.blamed]
        for row in rows:
            job = row.job
            if row not in started:
                self.table.requeue(row, replace(job, attempt=job.attempt - 1), now)
            elif row not in blamed:
                self.table.requeue(row, replace(job, suspect=False), now)
            elif cause.sole:
                self._crash(row, cause.failure, now)
            else:
                self.table.requeue(row, replace(job, suspect=True), now)
        return len(rows)

    def prune(self, limit: int, now: float) -> int:
        """Expire, then forget jobs, then keys: ``limit`` in all."""
        count = self.table.expire(now, limit)
        if count < limit:
            for row in self.table.outlived(now):
                self.table.remove(row)
                count += 1
                if count == limit:
                    break
        count += self.table.fade(now, limit - count)
        return count + self.deeds.prune(limit - count, now)

    def depth(self, queue: str, now: float) -> Depth:
        self.table.promote(queue, now)
        total: Counter[Status] = Counter()
        delayed = 0
        for line in self.table.queues.get(queue, ()):
            total.update(line.counts)
            delayed += line.delayed
        return _depth(total, delayed)

    def next_due(self, queues: Sequence[str], now: float) -> float | None:
        """When the first delayed job of these queues comes due; those due by now are let in."""
        moments: list[float] = []
        for queue in queues:
            self.table.promote(queue, now)
            if queue not in self.table.paused:
                tops = (line.later.top() for line in self.table.queues.get(queue, ()))
                moments += [top[0][0] for top in tops if top is not None]
        return min(moments, default=None)

    def _standing(self, job: Job, plan: _Plan, now: float) -> Added:
        """What stands in a new job's place already: in the store, or earlier in its batch."""
        row = self.table.rows.get(job.id)
        twin = plan.fresh.get(job.id) if row is None else row.job
        if twin is not None:
            same = (job.queue, job.task, job.payload) == (twin.queue, twin.task, twin.payload)
            return Added(job.id, created=False, conflict=not same)
        if job.key is not None:
            entry = plan.keys.get((job.task, job.key)) or self.table.key(job.task, job.key, now)
            if entry is not None:
                return self._repeated(job, entry, plan)
            plan.keys[job.task, job.key] = KeyEntry(job.id, job.digest)
        plan.fresh[job.id] = job
        plan.steps.append((job, None))
        return Added(job.id)

    def _repeated(self, job: Job, entry: KeyEntry, plan: _Plan) -> Added:
        """What becomes of a job whose key another one holds. Changes the plan alone."""
        assert job.key is not None
        if job.on_repeat == "raise" and entry.id != job.id:
            raise KeyRepeated(
                f"key {job.key!r} of task {job.task!r} is held by job {entry.id}; nothing was "
                "stored",
                entry.id,
            )
        if job.on_repeat in ("replace", "debounce", "throttle") and self._waits(entry, plan):
            plan.steps.append((job, entry.id))
            if job.on_repeat == "replace":
                plan.fresh[job.id] = job
                plan.replaced.append(entry.id)
            holder = job.id if job.on_repeat == "replace" else entry.id
            plan.keys[job.task, job.key] = KeyEntry(holder, job.digest)
            return Added(holder, created=holder == job.id)
        if entry.digest != job.digest:
            raise KeyConflict(
                f"key {job.key!r} of task {job.task!r} belongs to job {entry.id}, which "
                f"has other arguments; nothing was stored"
            )
        return Added(entry.id, created=False)

    def _waits(self, entry: KeyEntry, plan: _Plan) -> bool:
        """Whether the holder of a key is queued and was never started."""
        if entry.id in plan.fresh:
            return True
        row = self.table.rows.get(entry.id)
        return row is not None and row.job.status is Status.QUEUED and row.job.attempt == 0

    def _is_new(self, job: Job, now: float) -> bool:
        if job.id in self.table.rows:
            return False
        return job.key is None or self.table.key(job.task, job.key, now) is None

    def _check_capacity(self, plan: _Plan, capacity: int) -> None:
        added = Counter(job.queue for job in plan.fresh.values())
        for id_ in plan.replaced:
            holder = plan.fresh.get(id_) or self.table.rows[id_].job
            added[holder.queue] -= 1
        for queue, more in added.items():
            queued = sum(line.counts[Status.QUEUED] for line in self.table.queues.get(queue, ()))
            if more > 0 and queued + more > capacity:
                raise QueueFull(f"queue {queue!r} holds {queued} of {capacity} jobs")

    def _claimable(
        self, queues: Sequence[str], tasks: Sequence[str | None], newest: bool, now: float
    ) -> list[Line]:
        table = self.table
        lines: list[Line] = []
        for queue in dict.fromkeys(queues):
            table.promote(queue, now)
            if queue in table.paused:
                continue
            for task in dict.fromkeys(tasks):
                line = table.lines.get((queue, task))
                if line is not None and line.counts[Status.QUEUED]:
                    lines.append(line)
        if newest:
            for line in lines:
                line.sort_newest(table.rows.values())
        return lines

    def remember(self, claim: Claim, step: Step, now: float) -> bool:
        """Store a step, if the claim is still held."""
        if self._held(claim) is None:
            return False
        self.deeds.remember(claim.job.id, step, now)
        return True

    def _held(self, claim: Claim) -> Row | None:
        row = self.table.rows.get(claim.job.id)
        if row is None or row.job.status is not Status.RUNNING or row.receipt != claim.receipt:
            return None
        return row

    def _apply(self, row: Row, verdict: Verdict, now: float) -> None:
        table = self.table
        if not verdict.started:
            row.job = replace(row.job, attempt=row.job.attempt - 1)
        job = row.job
        match verdict.kind:
            case "done":
                table.end(row, Status.DONE, now, None, verdict.result)
            case "dead":
                if verdict.started:
                    row.job = _counted(job, verdict.failure)
                table.end(row, Status.DEAD, now, verdict.failure)
            case "cancelled":
                failure = verdict.failure or Failure(kind="cancelled")
                table.end(row, Status.CANCELLED, now, failure)
            case "retry" | "give_back":
                if verdict.kind == "retry":
                    job = replace(_counted(job, verdict.failure), failure=verdict.failure)
                if verdict.started:
                    job = replace(job, suspect=False)
                sent = (
                    verdict.event is not None and self.deeds.event(verdict.event, now) is not None
                )
                if verdict.delay > 0 and not sent:
                    job = replace(job, run_at=now + verdict.delay)
                table.requeue(row, job, now)

    def _crash(self, row: Row, failure: Failure, now: float) -> None:
        job = row.job
        row.job = job = replace(job, crashes=job.crashes + 1, suspect=True, failure=failure)
        if job.max_crashes is not None and job.crashes >= job.max_crashes:
            self.table.end(row, Status.DEAD, now, failure)
        else:
            self.table.requeue(row, job, now)


def _counted(job: Job, failure: Failure | None) -> Job:
    """The job with one more failure, or one more crash if its own process died."""
    if failure is not None and failure.kind == "crash":
        return replace(job, crashes=job.crashes + 1)
    return replace(job, failures=job.failures + 1)


def _depth(total: Counter[Status], delayed: int) -> Depth:
    return Depth(
        ready=total[Status.QUEUED] - delayed,
        delayed=delayed,
        running=total[Status.RUNNING],
        done=total[Status.DONE],
        dead=total[Status.DEAD],
        cancelled=total[Status.CANCELLED],
    )
