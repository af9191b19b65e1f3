"""Every store against the model: random calls, the same answers, the same jobs after each."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
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

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")

OOPS = Failure(kind="error", message="oops")
CRASH = Failure(kind="crash", signal=9)
QUEUES = ("a", "b")
TASKS = (None, "t", "u")
WORKERS = ("w1", "w2")
FIELDS = ("status", "attempt", "failures", "crashes", "run_at", "finished_at")

_names = itertools.count(1)


def some(values: tuple[T, ...]) -> st.SearchStrategy[list[T]]:
    return st.lists(st.sampled_from(values), unique=True, max_size=len(values))


jobs: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "name": st.integers(-3, 3),
        "queue": st.sampled_from(QUEUES),
        "task": st.sampled_from(TASKS),
        "payload": st.sampled_from((b"1", b"1", b"2")),
        "priority": st.sampled_from((0, 0, 0, 1, -1)),
        "rank": st.sampled_from((b"", b"", b"\x01")),
        "delay": st.sampled_from((None, None, None, 0, 5, 20)),
        "ttl": st.sampled_from((None, None, None, 12)),
        "key": st.sampled_from((None, None, "k1", "k2")),
        "digest": st.sampled_from((b"1", b"1", b"1", b"2")),
        "keep_key": st.sampled_from((0, 15, 40)),
        "keep": st.sampled_from((0, 10, 10, None)),
        "lane": st.sampled_from((None, None, "l1", "l2")),
        "max_crashes": st.sampled_from((1, 2, None)),
    }
)
batches = st.lists(jobs, max_size=4)
picks = st.lists(st.integers(0, 50), max_size=4)
settlements = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.sampled_from(
            ("done", "done", "retry", "crash", "give_back", "untouched", "dead", "cancelled")
        ),
        st.sampled_from((0.0, 0.0, 5.0)),
        st.lists(jobs, max_size=1),
    ),
    max_size=4,
)


def verdict_on(claim: Claim, kind: str, delay: float, then: tuple[Job, ...]) -> Verdict:
    made = {
        "done": lambda: done(claim, b"r", then),
        "retry": lambda: retry(claim, delay, OOPS, then),
        "crash": lambda: retry(claim, delay, CRASH, then),
        "give_back": lambda: give_back(claim, delay),
        "untouched": lambda: give_back(claim, delay, started=False),
        "dead": lambda: dead(claim, OOPS, then),
        "cancelled": lambda: cancelled(claim),
    }
    return made[kind]()


class Comparison(RuleBasedStateMachine):
    """One store, through two handles, beside the model."""

    kind = "memory"

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="outlast-model-"))
        self.clock = FakeClock()
        self.chance = SeededChance(1)
        self.url = {
            "memory": f"memory://model{next(_names)}",
            "sqlite": f"sqlite:///{self.folder}/jobs.db",
        }[self.kind]
        self.model = Model(self.clock.now())
        self.ids: list[str] = []
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

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.close()
            self.loop.close()
            shutil.rmtree(self.folder)

    def close(self) -> None:
        while self.stores:
            self.run(self.stores.pop().close())

    def run(self, call: Awaitable[T]) -> T:
        async def called() -> T:
            async with asyncio.timeout(10):
                return await call

        return self.loop.run_until_complete(called())

    @property
    def store(self) -> FullStore:
        """The two handles in turn."""
        self.stores.reverse()
        return self.stores[0]

    def make(self, drawn: dict[str, Any]) -> Job:
        """A job; a negative name asks for an id that was used before."""
        fields = dict(drawn)
        name = fields.pop("name")
        if name < 0 and self.ids:
            id_ = self.ids[name % len(self.ids)]
        else:
            id_ = f"job-{len(self.ids):04}"
            self.ids.append(id_)
        return Job(id=id_, **fields)

    def some_ids(self, chosen: list[int]) -> list[str]:
        return [self.ids[n % len(self.ids)] for n in chosen] if self.ids else []

    # -- the calls

    @rule(batch=batches, capacity=st.sampled_from((None, None, None, 0, 1, 3, 6)))
    def add(self, batch: list[dict[str, Any]], capacity: int | None) -> None:
        # An id twice in a batch has its own tests: which twin counts is nobody's promise.
        made = list({job.id: job for job in map(self.make, batch)}.values())
        self.named.update(job.queue for job in made)
        expected: Any
        found: Any
        try:
            expected = self.model.add(made, capacity)
        except (KeyConflict, QueueFull) as error:
            expected = type(error)
        try:
            found = list(self.run(self.store.add(made, capacity)))
        except (KeyConflict, QueueFull) as error:
            found = type(error)
        assert found == expected

    @rule(
        queues=some(QUEUES),
        tasks=some(TASKS),
        limit=st.integers(0, 5),
        lease=st.sampled_from((8.0, 30.0)),
        worker=st.sampled_from(WORKERS),
        newest=st.booleans(),
    )
    def claim(
        self,
        queues: list[str],
        tasks: list[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool,
    ) -> None:
        expected = self.model.claim(queues, tasks, limit, lease, worker, newest)
        found = self.run(self.store.claim(queues, tasks, limit, lease, worker, newest))
        assert [claim.job.id for claim in found] == [held.id for held in expected]
        for claim, held in zip(found, expected, strict=True):
            self.same(claim.job, self.model.jobs[held.id])
            self.claims.append((claim, held))

    @rule(limit=st.integers(1, 5), worker=st.sampled_from(WORKERS))
    def claim_anything(self, limit: int, worker: str) -> None:
        self.claim(list(QUEUES), list(TASKS), limit, 30.0, worker, False)

    @precondition(lambda self: self.claims)
    @rule(drawn=settlements)
    def settle(self, drawn: list[tuple[int, str, float, list[dict[str, Any]]]]) -> None:
        verdicts, expected = [], []
        for number, kind, delay, then in drawn:
            claim, held = self.claims[-1 - number % len(self.claims)]
            verdict = verdict_on(claim, kind, delay, tuple(self.make(each) for each in then))
            verdicts.append(verdict)
            if not self.model.settle(held, verdict):
                expected.append(claim.receipt)
        lost = self.run(self.store.settle(verdicts))
        assert sorted(each.claim.receipt for each in lost) == sorted(expected)
        assert all(each.reason == "lost" for each in lost)

    @precondition(lambda self: self.claims)
    @rule(chosen=picks, lease=st.sampled_from((3.0, 30.0)), noted=st.booleans())
    def renew(self, chosen: list[int], lease: float, noted: bool) -> None:
        pairs = [self.claims[-1 - n] for n in {n % len(self.claims) for n in chosen}]
        notes = {held.id: Progress(id=held.id, value=0.5) for _, held in pairs if noted}
        expected = []
        for claim, held in pairs:
            reason = self.model.renew(held, lease, notes.get(held.id))
            if reason is not None:
                expected.append((claim.receipt, reason))
        asked = [claim for claim, _ in pairs]
        lost = self.run(self.store.renew(asked, lease, list(notes.values())))
        assert sorted((each.claim.receipt, each.reason) for each in lost) == sorted(expected)

    @rule()
    def recover(self) -> None:
        assert self.run(self.store.recover(1000)) == self.model.recover()

    @rule(
        worker=st.sampled_from(WORKERS),
        started=st.none() | picks,
        blamed=st.none() | picks,
        alone=st.booleans(),
    )
    def recover_worker(
        self, worker: str, started: list[int] | None, blamed: list[int] | None, alone: bool
    ) -> None:
        running = [it.job.id for it in self.model.jobs.values() if it.worker == worker]
        cause = Death(started=_among(running, started), blamed=_among(running, blamed), alone=alone)
        expected = self.model.recover_worker(worker, cause)
        assert self.run(self.store.recover_worker(worker, cause)) == expected

    @rule(chosen=picks)
    def cancel(self, chosen: list[int]) -> None:
        asked = [*self.some_ids(chosen), "missing"]
        expected = [self.model.cancel(id_) for id_ in asked]
        assert list(self.run(self.store.cancel(asked))) == expected

    @rule(chosen=picks)
    def revive(self, chosen: list[int]) -> None:
        asked = self.some_ids(chosen)
        expected: Any
        found: Any
        try:
            expected = self.model.revive(asked)
        except KeyConflict as error:
            expected = type(error)
        try:
            found = list(self.run(self.store.revive(asked)))
        except KeyConflict as error:
            found = type(error)
        assert found == expected

    @rule(queue=st.sampled_from((*QUEUES, "none")), status=some(tuple(Status)), dry=st.booleans())
    def purge(self, queue: str, status: list[Status], dry: bool) -> None:
        found: int | None
        try:
            found = self.run(self.store.purge(queue, status, dry_run=dry))
        except JobNotFound:
            found = None
        expected = self.model.purge(queue, status, dry_run=dry)
        # A queue that only a refused batch has named may be known, and is empty.
        assert found == expected or (found == 0 and expected is None and queue in self.named)

    @rule()
    def prune(self) -> None:
        self.model.prune()
        self.run(self.store.prune(100_000))
        assert self.run(self.store.prune(100_000)) == 0

    @rule(queue=st.sampled_from(QUEUES), paused=st.booleans())
    def pause(self, queue: str, paused: bool) -> None:
        (self.model.paused.add if paused else self.model.paused.discard)(queue)
        self.run(self.store.pause(queue, paused))

    @rule(seconds=st.sampled_from((1.0, 3.0, 5.0, 10.0, 30.0)))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now = self.clock.now()
        if self.model.overdue():
            # Whether a job expires now or when somebody looks is up to the store.
            self.prune()

    @rule()
    def reopen(self) -> None:
        self.close()
        self.open()

    # -- what must hold after each of them

    @invariant()
    def nothing_differs(self) -> None:
        if not hasattr(self, "model"):
            return
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
        assert (job.failure and job.failure.kind) == (it.failure and it.failure.kind)
        assert (job.result, job.progress) == (it.result, it.progress)
        if job.status in (Status.QUEUED, Status.RUNNING):
            assert (job.worker, job.suspect) == (it.worker, it.suspect), job.id


def _among(running: list[str], chosen: list[int] | None) -> frozenset[str] | None:
    if chosen is None:
        return None
    return frozenset(running[n % len(running)] for n in chosen) if running else frozenset()


class Sqlite(Comparison):
    kind = "sqlite"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("machine", "examples"), [(Comparison, 60), (Sqlite, 30)], ids=["memory", "sqlite"]
)
def test_a_store_does_what_the_model_does(machine: type[Comparison], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
