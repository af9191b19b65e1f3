"""Every store against the model: random calls, the same answers, the same jobs after each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.proof.comparison import QUEUES, TASKS, WORKERS, Comparison, Settlement
from tests.proof.walk import walk

from outlast.job import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

TIMES = int(os.environ.get("OUTLAST_EXAMPLES", "1"))
"""How many times the usual number of examples: for those who have the time."""
STARTS = (20, 6)
STEPS = 250


def some(values: Sequence[T]) -> st.SearchStrategy[list[T]]:
    return st.lists(st.sampled_from(values), unique=True, min_size=1, max_size=len(values))


def often(usual: T, *rare: T) -> st.SearchStrategy[T]:
    """Mostly the first, so that one oddity at a time has room to show what it does."""
    return st.sampled_from((usual,) * 2 * len(rare) + rare)


jobs: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "name": often(0, -1, -2, -3),
        "queue": often("a", "b"),
        "task": often(None, "t"),
        "payload": often(b"1", b"2"),
        "priority": often(0, 1, -1),
        "rank": often(b"", b"\x01"),
        "delay": often(None, 0, 5, 20),
        "ttl": often(None, 12),
        "key": st.sampled_from((None, "k1", "k2")),
        "digest": often(b"1", b"2"),
        "keep_key": st.sampled_from((15, 0, 40)),
        "keep": often(10, 0, None),
        "lane": st.sampled_from((None, "l1")),
        "max_crashes": st.sampled_from((1, 2, None)),
    }
)
picks = st.lists(st.integers(0, 5), min_size=1, max_size=3)
kinds = st.sampled_from(("done", "retry", "crash", "give_back", "untouched", "dead", "cancelled"))
settlement = st.tuples(st.integers(0, 5), kinds, often(0.0, 5.0), st.lists(jobs, max_size=1))


class Machine(RuleBasedStateMachine):
    """The calls as hypothesis draws them; it can make a failing run short."""

    kind = "memory"
    both: Comparison | None = None

    @property
    def it(self) -> Comparison:
        assert self.both is not None
        return self.both

    @initialize()
    def begin(self) -> None:
        self.both = Comparison(self.kind)

    def teardown(self) -> None:
        if self.both is not None:
            self.both.end()

    @invariant()
    def nothing_differs(self) -> None:
        if self.both is not None:
            self.both.check()

    @rule(batch=st.lists(jobs, min_size=1, max_size=4), capacity=often(None, 2, 5))
    def add(self, batch: list[dict[str, Any]], capacity: int | None) -> None:
        self.it.add(batch, capacity)

    @rule(
        queues=some(QUEUES),
        tasks=some(TASKS),
        limit=st.integers(0, 3),
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
        self.it.claim(queues, tasks, limit, lease, worker, newest)

    @rule(limit=often(5, 1), worker=often(*WORKERS))
    def claim_anything(self, limit: int, worker: str) -> None:
        self.it.claim_anything(limit, worker)

    @rule(settlements=st.lists(settlement, min_size=1, max_size=4))
    def settle(self, settlements: list[Settlement]) -> None:
        self.it.settle(settlements)

    @rule(chosen=picks, lease=st.sampled_from((3.0, 30.0)), noted=st.booleans())
    def renew(self, chosen: list[int], lease: float, noted: bool) -> None:
        self.it.renew(chosen, lease, noted)

    @rule()
    def recover(self) -> None:
        self.it.recover()

    @rule()
    def crash_again(self) -> None:
        self.it.crash_again()

    @rule(
        worker=often(*WORKERS),
        started=st.none() | picks,
        blamed=st.none() | picks,
        alone=st.booleans(),
    )
    def recover_worker(
        self, worker: str, started: list[int] | None, blamed: list[int] | None, alone: bool
    ) -> None:
        self.it.recover_worker(worker, started, blamed, alone)

    @rule(chosen=picks)
    def cancel(self, chosen: list[int]) -> None:
        self.it.cancel(chosen)

    @rule(chosen=picks)
    def revive(self, chosen: list[int]) -> None:
        self.it.revive(chosen)

    @rule(queue=often(*QUEUES, "none"), status=some(tuple(Status)), dry_run=st.booleans())
    def purge(self, queue: str, status: list[Status], dry_run: bool) -> None:
        self.it.purge(queue, status, dry_run)

    @rule()
    def prune(self) -> None:
        self.it.prune()

    @rule(queue=often(*QUEUES))
    def pause(self, queue: str) -> None:
        self.it.pause(queue)

    @rule(seconds=st.sampled_from((1.0, 3.0, 5.0, 10.0, 30.0)))
    def advance(self, seconds: float) -> None:
        self.it.advance(seconds)

    @rule()
    def reopen(self) -> None:
        self.it.reopen()


class Sqlite(Machine):
    kind = "sqlite"


@pytest.mark.timeout(360)
@pytest.mark.parametrize(
    ("machine", "examples"), [(Machine, 25), (Sqlite, 10)], ids=["memory", "sqlite"]
)
def test_a_store_does_what_the_model_does(machine: type[Machine], examples: int) -> None:
    """``OUTLAST_SHRINK=1`` makes a failure short; it takes thousands of calls to do so."""
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    if os.environ.get("OUTLAST_SHRINK"):
        phases.append(Phase.shrink)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples * TIMES,
            stateful_step_count=40,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(360)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_long_walks(kind: str) -> None:
    """Always the same ones in the usual run, so that it fails for everybody or for nobody."""
    first, last = (0, STARTS[kind == "sqlite"]) if TIMES == 1 else (1000, 1000 + 10 * TIMES)
    for seed in range(first, last):
        walk(kind, seed, STEPS)
