"""A store and the model side by side: every call goes to both, and nothing may differ after it."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import apsw
from tests.conformance.steps import FullStore
from tests.fakes import FakeClock
from tests.proof.model import Held, Model, Stored

from outlast.chance import SeededChance
from outlast.errors import JobNotFound, KeyConflict, QueueFull
from outlast.job import (
    Claim,
    Death,
    Failure,
    Job,
    Progress,
    Status,
    Verdict,
    cancelled,
    dead,
    done,
    give_back,
    retry,
)
from outlast.store import Durability
from outlast.stores import connect
from outlast.stores.sqlite.verify import verify

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

__all__ = ["QUEUES", "TASKS", "WORKERS", "Comparison", "Settlement"]

T = TypeVar("T")

QUEUES = ("a", "b")
TASKS = (None, "t")
WORKERS = ("w1", "w2")

OOPS = Failure(kind="error", message="oops")
CRASH = Failure(kind="crash", signal=9)
FIELDS = ("status", "attempt", "failures", "crashes", "finished_at")

Settlement = tuple[int, str, float, list[dict[str, Any]]]
"""Which of the last claims, the kind of verdict, its delay, and the jobs that follow."""

_names = itertools.count(1)

VERDICTS: dict[str, Callable[[Claim, float, tuple[Job, ...]], Verdict]] = {
    "done": lambda claim, delay, then: done(claim, b"r", then),
    "retry": lambda claim, delay, then: retry(claim, delay, OOPS, then),
    "crash": lambda claim, delay, then: retry(claim, delay, CRASH, then),
    "give_back": lambda claim, delay, then: give_back(claim, delay),
    "untouched": lambda claim, delay, then: give_back(claim, delay, started=False),
    "dead": lambda claim, delay, then: dead(claim, OOPS, then),
    "cancelled": lambda claim, delay, then: cancelled(claim),
}


class Comparison:
    """One store, through two handles in turn, beside the model.

    Numbers name jobs and claims by how old they are: 0 is the newest. So calls can be drawn without
    knowing what is there.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="outlast-model-"))
        self.clock = FakeClock()
        self.chance = SeededChance(1)
        self.url = {
            "memory": f"memory://model{next(_names)}",
            "sqlite": f"sqlite:///{self.folder}/jobs.db",
        }[kind]
        self.model = Model(self.clock.now())
        self.ids: list[str] = []
        self.made = 0
        self.named: set[str] = set()
        self.claims: list[tuple[Claim, Held]] = []
        self.stores: list[FullStore] = []
        self.open()

    def open(self) -> None:
        required = Durability.MEMORY if self.kind == "memory" else Durability.PROCESS
        for _ in range(2):
            store = connect(self.url, durability=required, clock=self.clock, chance=self.chance)
            assert isinstance(store, FullStore)
            self.run(store.open())
            self.stores.append(store)

    def close(self) -> None:
        while self.stores:
            self.run(self.stores.pop().close())
        if self.kind == "sqlite":
            connection = apsw.Connection(f"{self.folder}/jobs.db")
            try:
                assert list(verify(connection)) == []
            finally:
                connection.close()

    def end(self) -> None:
        """Let go of everything."""
        try:
            self.close()
        finally:
            self.loop.close()
            shutil.rmtree(self.folder)

    def run(self, call: Awaitable[T]) -> T:
        async def called() -> T:
            async with asyncio.timeout(60):
                return await call

        return self.loop.run_until_complete(called())

    @property
    def store(self) -> FullStore:
        self.stores.reverse()
        return self.stores[0]

    def make(self, drawn: dict[str, Any]) -> Job:
        """A job; a negative ``name`` asks for an id that was used before."""
        fields = dict(drawn)
        name = fields.pop("name")
        if name < 0 and self.ids:
            id_ = self.ids[name % len(self.ids)]
        else:
            id_ = f"job-{self.made:05}"
            self.made += 1
            self.ids.append(id_)
        return Job(id=id_, **fields)

    def some_ids(self, chosen: Sequence[int]) -> list[str]:
        return [self.ids[-1 - n % len(self.ids)] for n in chosen] if self.ids else []

    # -- the calls

    def add(self, batch: list[dict[str, Any]], capacity: int | None) -> None:
        # An id twice in a batch has its own tests: which twin counts is nobody's promise.
        made = list({job.id: job for job in map(self.make, batch)}.values())
        self.named.update(job.queue for job in made)
        expected = _answer(lambda: self.model.add(made, capacity))
        assert _answer(lambda: list(self.run(self.store.add(made, capacity)))) == expected

    def claim(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool,
    ) -> None:
        if any(it.job.lane and it.status is Status.QUEUED for it in self.model.jobs.values()):
            newest = False  # which job of one lane is the newest isn't promised
        expected = self.model.claim(queues, tasks, limit, lease, worker, newest)
        found = self.run(self.store.claim(queues, tasks, limit, lease, worker, newest))
        assert [claim.job.id for claim in found] == [held.id for held in expected]
        for claim, held in zip(found, expected, strict=True):
            self.same(claim.job, self.model.jobs[held.id])
            self.claims.append((claim, held))

    def claim_anything(self, limit: int, worker: str) -> None:
        self.claim(QUEUES, TASKS, limit, 30.0, worker, False)

    def settle(self, settlements: Sequence[Settlement]) -> None:
        if not self.claims:
            return
        verdicts, expected = [], []
        for number, kind, delay, then in settlements:
            claim, held = self.claims[-1 - number % len(self.claims)]
            if len(settlements) > 1:
                # Whether what follows comes before or after the other verdicts is up to the store.
                then = [each | {"name": 0, "key": None} for each in then]
            verdict = VERDICTS[kind](claim, delay, tuple(self.make(each) for each in then))
            verdicts.append(verdict)
            if not self.model.settle(held, verdict):
                expected.append(claim.receipt)
        lost = self.run(self.store.settle(verdicts))
        assert sorted(each.claim.receipt for each in lost) == sorted(expected)
        assert all(each.reason == "lost" for each in lost)

    def renew(self, chosen: Sequence[int], lease: float, noted: bool) -> None:
        if not self.claims:
            return
        pairs = [self.claims[-1 - n] for n in {n % len(self.claims) for n in chosen}]
        # A note names its job, not its claim: of two claims of one job it might be either's.
        twice = {held.id for _, held in pairs if sum(held.id == it.id for _, it in pairs) > 1}
        notes = {
            held.id: Progress(id=held.id, value=0.5)
            for _, held in pairs
            if noted and held.id not in twice
        }
        expected = []
        for claim, held in pairs:
            reason = self.model.renew(held, lease, notes.get(held.id))
            if reason is not None:
                expected.append((claim.receipt, reason))
        asked = [claim for claim, _ in pairs]
        lost = self.run(self.store.renew(asked, lease, list(notes.values())))
        assert sorted((each.claim.receipt, each.reason) for each in lost) == sorted(expected)

    def recover(self) -> None:
        assert self.run(self.store.recover(1000)) == self.model.recover()

    def crash_again(self) -> None:
        """Leases run out, and run out again."""
        for _ in range(2):
            self.advance(30.0)
            self.recover()
            self.claim_anything(5, "w1")

    def recover_worker(
        self,
        worker: str,
        started: Sequence[int] | None,
        blamed: Sequence[int] | None,
        alone: bool,
    ) -> None:
        running = [it.job.id for it in self.model.jobs.values() if it.worker == worker]
        cause = Death(started=_among(running, started), blamed=_among(running, blamed), alone=alone)
        expected = self.model.recover_worker(worker, cause)
        assert self.run(self.store.recover_worker(worker, cause)) == expected

    def cancel(self, chosen: Sequence[int]) -> None:
        asked = [*self.some_ids(chosen), "missing"]
        expected = [self.model.cancel(id_) for id_ in asked]
        assert list(self.run(self.store.cancel(asked))) == expected

    def revive(self, chosen: Sequence[int]) -> None:
        asked = self.some_ids(chosen)
        expected = _answer(lambda: self.model.revive(asked))
        assert _answer(lambda: list(self.run(self.store.revive(asked)))) == expected

    def purge(self, queue: str, status: Sequence[Status], dry_run: bool) -> None:
        expected = self.model.purge(queue, status, dry_run=dry_run)
        found = _answer(lambda: self.run(self.store.purge(queue, status, dry_run=dry_run)))
        if found == 0 and expected is None and queue in self.named:
            return  # a queue that only a refused batch has named may be known, and is empty
        assert found == (JobNotFound if expected is None else expected)

    def prune(self) -> None:
        self.model.prune()
        self.run(self.store.prune(100_000))
        assert self.run(self.store.prune(100_000)) == 0

    def pause(self, queue: str) -> None:
        """Or let it go on."""
        paused = queue not in self.model.paused
        (self.model.paused.add if paused else self.model.paused.discard)(queue)
        self.run(self.store.pause(queue, paused))

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now = self.clock.now()
        self.expire()

    def expire(self) -> None:
        """Whether a job expires now or when somebody looks is up to the store: look now."""
        if self.model.overdue():
            self.prune()

    def reopen(self) -> None:
        self.close()
        self.open()

    # -- what must hold after each of them

    def check(self) -> None:
        """All jobs and counts, read back and compared."""
        self.expire()
        store = self.store
        found = self.run(store.get(self.ids))
        for id_, job in zip(self.ids, found, strict=True):
            it = self.model.jobs.get(id_)
            assert (job is None) == (it is None), f"{id_}: {job} and {it}"
            if job is not None and it is not None:
                self.same(job, it)
        for queue in QUEUES:
            depth = self.run(store.depth(queue))
            expected = self.model.depth(queue)
            assert {name: getattr(depth, name) for name in expected} == expected
        lanes = [job.lane for job in found if job and job.lane and job.status is Status.RUNNING]
        assert len(lanes) == len(set(lanes)), "two of one lane at once"

    def same(self, job: Job, it: Stored) -> None:
        ours = {name: getattr(job, name) for name in FIELDS}
        assert ours == {name: getattr(it, name) for name in FIELDS}, job.id
        assert (job.failure and job.failure.kind) == (it.failure and it.failure.kind), job.id
        assert (job.result, job.progress) == (it.result, it.progress), job.id
        if job.status in (Status.QUEUED, Status.RUNNING):
            assert (job.worker, job.suspect) == (it.worker, it.suspect), job.id
            assert job.run_at == it.run_at, job.id


def _answer(call: Callable[[], Any]) -> Any:
    """What a call answers, or which of the errors that it may answer with."""
    try:
        return call()
    except (KeyConflict, QueueFull, JobNotFound) as error:
        return type(error)


def _among(running: Sequence[str], chosen: Sequence[int] | None) -> frozenset[str] | None:
    if chosen is None:
        return None
    return frozenset(running[n % len(running)] for n in chosen) if running else frozenset()
