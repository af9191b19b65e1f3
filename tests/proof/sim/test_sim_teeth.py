"""A planted bug turns at least one of the seeds red that are green without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from tests.proof.sim.runs import command, shrink
from tests.proof.sim.test_sim import DENSE, SPARSE
from tests.proof.sim.world import run_world

from outlast.job import Status
from outlast.stores.memory.bell import Bell
from outlast.stores.memory.order import Line, Row
from outlast.stores.memory.room import Room
from outlast.stores.memory.table import Table
from outlast.worker import claims, crew, renew, settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.job import Claim, Death

Plant = pytest.MonkeyPatch
BUGS: dict[str, Callable[[Plant], None]] = {}
pytestmark = pytest.mark.timeout(120)


def bug(plant: Callable[[Plant], None]) -> Callable[[Plant], None]:
    BUGS[plant.__name__] = plant
    return plant


@bug
def settle_without_looking_at_the_receipt(plant: Plant) -> None:
    def held(self: Room, claim: Claim) -> Row | None:
        row = self.table.rows.get(claim.job.id)
        return row if row is not None and row.job.status is Status.RUNNING else None

    plant.setattr(Room, "_held", held)


@bug
def recover_leases_that_still_run(plant: Plant) -> None:
    good = Room.recover
    plant.setattr(
        Room, "recover", lambda self, limit, now, monotonic: good(self, limit, now, monotonic + 1e9)
    )


@bug
def keys_are_not_looked_up(plant: Plant) -> None:
    plant.setattr(Table, "key", lambda self, task, key, now: None)


@bug
def nobody_is_woken(plant: Plant) -> None:
    plant.setattr(Bell, "call", lambda self, topic: None)
    plant.setattr(claims, "PUSHED_POLL", 1e6)


@bug
def nobody_is_woken_though_all_poll(plant: Plant) -> None:
    plant.setattr(Bell, "call", lambda self, topic: None)


@bug
def a_crash_is_counted_for_neighbours(plant: Plant) -> None:
    good = Room.recover_worker

    def recover_worker(self: Room, worker: str, cause: Death, now: float) -> int:
        return good(self, worker, replace(cause, alone=True), now)

    plant.setattr(Room, "recover_worker", recover_worker)


@bug
def what_waits_is_not_given_back_at_the_stop(plant: Plant) -> None:
    def close(self: crew.Crew) -> None:
        self.closed = True

    plant.setattr(crew.Crew, "close", close)


@bug
def leases_are_not_renewed(plant: Plant) -> None:
    async def turn(self: renew.Renewal, store: Any) -> float:
        return self.pause

    plant.setattr(renew.Renewal, "turn", turn)


@bug
def a_verdict_is_handed_in_once_only(plant: Plant) -> None:
    good = settle.Settling._apply

    async def apply(self: settle.Settling, batch: Any) -> None:
        before = self._store
        task: Any = before.settle(batch)
        try:
            await task
        except Exception:
            self.settled(batch)
            return
        self.settled(batch)

    assert good is not apply
    plant.setattr(settle.Settling, "_apply", apply)


@bug
def priorities_are_ignored(plant: Plant) -> None:
    def offer(self: Line, row: Row) -> None:
        self._oldest.push((row.seq,), row)

    plant.setattr(Line, "_offer", offer)


@bug
def lanes_hold_nobody(plant: Plant) -> None:
    plant.setattr(Row, "blocked", property(lambda self: False))


@pytest.mark.parametrize("name", BUGS)
def test_some_seed_is_red(name: str, monkeypatch: Plant) -> None:
    BUGS[name](monkeypatch)
    for seed in DENSE:
        if run_world(seed, "dense").broken:
            return
    for seed in SPARSE:
        if run_world(seed, "sparse").broken:
            return
    pytest.fail("none of the seeds saw it")


def test_a_failing_world_is_cut_down_to_the_faults_it_needs(monkeypatch: Plant) -> None:
    keys_are_not_looked_up(monkeypatch)
    outcome = next(found for seed in DENSE if (found := run_world(seed, "dense")).broken)
    needed = shrink(outcome)
    assert len(needed) < len(outcome.faults)
    again = run_world(outcome.seed, "dense", needed)
    assert set(again.broken) & set(outcome.broken)
    assert command(outcome.seed, "dense", needed).startswith("python -m tests.proof.sim --seed ")
