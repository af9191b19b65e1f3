"""Delays: counted by the store's own clock, due ones before immediate ones, kept over a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import OOPS, add, get, ids, job, start, take

from outlast.job import give_back, retry

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def test_not_before_it_is_due(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a", delay=10))
    assert (await get(store, "a")).run_at == clock.now() + 10
    clock.advance(9.9)
    assert await take(store) == []
    clock.advance(0.1)
    assert ids(await take(store)) == ["a"]


async def test_a_moment_is_kept_as_given(store: FullStore, clock: FakeClock) -> None:
    moment = clock.now() + 7.25
    await add(store, job("a", run_at=moment))
    clock.advance(5)
    assert (await get(store, "a")).run_at == moment
    assert await take(store) == []
    clock.advance(2.25)
    assert ids(await take(store)) == ["a"]


@pytest.mark.parametrize("delay", [None, 0, 0.0])
async def test_no_delay_is_no_moment(store: FullStore, delay: float | None) -> None:
    await add(store, job("a", delay=delay))
    assert (await get(store, "a")).run_at is None
    assert ids(await take(store)) == ["a"]


async def test_a_moment_in_the_past_is_due(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a", run_at=clock.now() - 1e6), job("b", run_at=-5.0))
    assert ids(await take(store)) == ["b", "a"]


async def test_far_off_moments(store: FullStore, clock: FakeClock, place: Place) -> None:
    await add(store, job("2**31", run_at=2.0**31), job("2**63", run_at=2.0**63 * 4))
    await add(store, job("90 days", delay=90 * 86400))
    clock.advance(90 * 86400 - 1)
    store = await place.reopen()
    assert await take(store) == []
    clock.advance(1)
    assert ids(await take(store)) == ["90 days"]
    clock.advance(2.0**31)
    assert ids(await take(store)) == ["2**31"]


async def test_due_ones_come_before_immediate_ones_by_moment(
    store: FullStore, clock: FakeClock
) -> None:
    await add(store, job("1"), job("due 9", delay=9), job("2"), job("due 3", delay=3))
    await add(store, job("high due", delay=5, priority=1), job("high", priority=1))
    await add(store, job("ranked", rank=b"a"), job("ranked due", rank=b"a", delay=1))
    clock.advance(10)
    await add(store, job("3"))
    order = ["high due", "high", "due 3", "due 9", "1", "2", "3", "ranked due", "ranked"]
    assert ids(await take(store)) == order


async def test_what_is_due_a_little_later_is_not_due_yet(
    store: FullStore, clock: FakeClock
) -> None:
    await add(store, job("now", delay=10), job("soon", delay=10.25))
    clock.advance(10)
    assert ids(await take(store)) == ["now"]
    clock.advance(0.25)
    assert ids(await take(store)) == ["soon"]


async def test_the_same_moment_goes_by_time_of_adding(store: FullStore, clock: FakeClock) -> None:
    moment = clock.now() + 5
    order = await add(store, *(job(f"{n}", run_at=moment) for n in (3, 1, 2)))
    clock.advance(5)
    assert ids(await take(store)) == order


async def test_delays_survive_reopening(store: FullStore, clock: FakeClock, place: Place) -> None:
    await add(store, job("late", delay=20), job("soon", delay=10), job("now"))
    clock.advance(15)
    store = await place.reopen()
    assert ids(await take(store)) == ["soon", "now"]
    clock.advance(5)
    assert ids(await take(store)) == ["late"]


async def test_a_retry_waits(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a"))
    await add(store, job("b"))
    clock.advance(100)
    await store.settle([retry(running, 30, OOPS)])
    assert (await get(store, "a")).run_at == clock.now() + 30
    assert ids(await take(store)) == ["b"]
    clock.advance(29.5)
    assert await take(store) == []
    clock.advance(0.5)
    assert ids(await take(store)) == ["a"]


async def test_a_retry_at_once_keeps_the_place(store: FullStore) -> None:
    running = await start(store, job("a"))
    await add(store, job("b"))
    await store.settle([retry(running, 0, OOPS)])
    assert (await get(store, "a")).run_at is None
    assert ids(await take(store)) == ["a", "b"]


async def test_giving_back_with_a_delay(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a"))
    await store.settle([give_back(running, 30)])
    assert await take(store) == []
    clock.advance(30)
    await add(store, job("b"))
    assert ids(await take(store)) == ["a", "b"]


async def test_a_delayed_one_given_back_keeps_its_place(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("1"), job("due", delay=1))
    clock.advance(1)
    [claim] = await take(store, 1)
    assert claim.job.id == "due"
    await store.settle([give_back(claim)])
    assert ids(await take(store)) == ["due", "1"]


async def test_a_clock_set_back_does_not_hold_up_immediate_ones(
    store: FullStore, clock: FakeClock
) -> None:
    await add(store, job("a"), job("b", delay=60))
    clock.step(-3 * 86400)
    assert ids(await take(store)) == ["a"]
    clock.step(3 * 86400 + 60)
    assert ids(await take(store)) == ["b"]


async def test_many_delayed_ones_do_not_hide_the_others(store: FullStore) -> None:
    await add(store, *(job(delay=1e6, priority=100) for _ in range(2000)), job("now"))
    assert ids(await take(store, 1)) == ["now"]
    assert (await store.depth("default")).delayed == 2000
