"""K: clocks that jump, differ, or have stood still."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import job
from tests.fakes import FakeClock
from tests.stores.children import Child, listen, say

from outlast import Outlast
from outlast.clock import SystemClock
from outlast.job import Status, done
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86400.0


class Wall(SystemClock):
    """The machine's clock, but the hands on the wall can be set."""

    __slots__ = ("ahead",)

    def __init__(self, ahead: float = 0.0) -> None:
        self.ahead = ahead

    def now(self) -> float:
        return SystemClock.now() + self.ahead


async def test_k1_a_wall_clock_that_jumps_for_days_ends_no_lease(tmp_path: Path) -> None:
    clock = Wall()
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = Outlast(url, clock=clock)
    runs: list[str] = []
    go = asyncio.Event()

    @app.task(name="long")
    async def long() -> str:
        runs.append("long")
        await go.wait()
        return "done"

    @app.task(name="late")
    async def late() -> str:
        runs.append("late")
        return "done"

    async with app, app.worker(lease=2.0), app.worker(lease=2.0):
        running = await long.enqueue()
        waiting = await late.using(delay=DAY).enqueue()
        async with asyncio.timeout(60):
            while not runs:
                await asyncio.sleep(0)
        for jump in range(16):
            clock.ahead = 3 * DAY if jump % 2 else -3 * DAY
            # Not a whole part of the time between two renewals, so that some jumps come before one.
            with pytest.raises(TimeoutError):
                await running.result(timeout=0.23)
            assert (await running.job()).attempt == 1
        assert await waiting.result(timeout=60) == "done", "by that clock it is due"
        go.set()
        assert await running.result(timeout=60) == "done"
    assert sorted(runs) == ["late", "long"]


async def test_k2_workers_whose_clocks_differ_by_hours_take_nothing_from_each_other(
    tmp_path: Path,
) -> None:
    stores = [
        SqliteStore(str(tmp_path / "jobs.db"), clock=Wall(hours * 3600.0)) for hours in (0, 5, -5)
    ]
    for store in stores:
        await store.open()
    await stores[0].add([job(f"j{n}") for n in range(3)])
    claims = [
        (await store.claim(["default"], [None], 1, 10.0, f"w{n}"))[0]
        for n, store in enumerate(stores)
    ]
    for store in stores:
        assert await store.recover(100) == 0
    for store, claim in zip(stores, claims, strict=True):
        assert list(await store.renew([claim], 10.0)) == []
        assert await store.settle([done(claim)]) == []
    for store in stores:
        await store.close()


def settle_elsewhere(path: str) -> None:
    """In a child for which more time has passed than for its parent."""
    store = SqliteStore(path)
    store.open_now()
    say(asyncio.run(store.recover(10)))
    (claim,) = store.claim_now(["default"], [None], 1, 60.0, "heir")
    store.settle_now([done(claim, b"2")])
    say(claim.job.attempt)
    listen()
    store.close_now()


@pytest.mark.needs("netns")
def test_k3_whoever_slept_through_its_lease_is_refused(tmp_path: Path) -> None:
    """As after a suspend that only one of the two went through: an hour is gone for the other."""
    path = tmp_path / "jobs.db"
    store = SqliteStore(str(path))
    store.open_now()
    store.add_now([job("a")])
    (claim,) = store.claim_now(["default"], [None], 1, 60.0, "sleeper")
    hour = ("unshare", "--time", "--fork", "--kill-child", "--monotonic", "3600")
    with Child(settle_elsewhere, before=hour, path=str(path)) as child:
        assert child.hear() == 1
        assert child.hear() == 2
        (lost,) = store.settle_now([done(claim, b"1")])
        assert (lost.claim, lost.reason) == (claim, "lost")
        child.end()
    (found,) = asyncio.run(store.get(["a"]))
    assert found is not None
    assert (found.status, found.result) == (Status.DONE, b"2")
    store.close_now()


async def test_k3_a_machine_that_slept_goes_on_where_it_was(tmp_path: Path) -> None:
    """All processes slept, the monotonic clock stood still, and the wall clock is hours ahead."""
    clock = FakeClock()
    store = SqliteStore(str(tmp_path / "jobs.db"), clock=clock)
    await store.open()
    await store.add([job("runs"), job("late", delay=3600.0)])
    (claim,) = await store.claim(["default"], [None], 1, 15.0, "w")
    clock.step(8 * 3600.0)
    assert await store.recover(10) == 0
    (late,) = await store.claim(["default"], [None], 9, 15.0, "w")
    assert late.job.id == "late"
    assert await store.settle([done(claim), done(late)]) == []
    await store.close()
