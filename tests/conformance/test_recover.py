"""`recover`: claims whose lease ran out come back: as suspects at first, then as crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.steps import OOPS, add, get, ids, job, start, take

from outlast.job import Lost, Status, done, retry

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def test_only_what_ran_out(store: FullStore, clock: FakeClock) -> None:
    await start(store, job("a"), lease=10)
    await start(store, job("b"), lease=20)
    clock.advance(9.5)
    assert await store.recover(100) == 0
    clock.advance(0.5)
    assert await store.recover(100) == 1
    assert await store.recover(100) == 0
    assert (await get(store, "b")).status is Status.RUNNING
    assert ids(await take(store)) == ["a"]


async def test_the_first_time_makes_a_suspect(store: FullStore, clock: FakeClock) -> None:
    await start(store, job("a"), lease=10)
    clock.advance(10)
    await store.recover(100)
    back = await get(store, "a")
    assert back.status is Status.QUEUED
    assert (back.attempt, back.failures, back.crashes, back.suspect) == (1, 0, 0, True)
    assert (back.worker, back.run_at) == (None, None)


async def test_the_next_times_are_crashes_until_they_are_spent(
    store: FullStore, clock: FakeClock, place: Place
) -> None:
    await add(store, job("a", max_crashes=2))
    for crashes, status in ((0, Status.QUEUED), (1, Status.QUEUED), (2, Status.DEAD)):
        [claim] = await take(store, lease=10)
        clock.advance(10)
        assert await store.recover(100) == 1
        found = await get(store, "a")
        assert (found.status, found.crashes, found.failures) == (status, crashes, 0)
        assert list(await store.settle([done(claim)])) == [Lost(claim, "lost")]
    buried = await get(await place.reopen(), "a")
    assert buried.failure is not None
    assert buried.failure.kind == "crash"
    assert buried.finished_at == clock.now()
    assert buried.attempt == 3


async def test_no_limit_of_crashes(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a", max_crashes=None))
    for _ in range(8):
        assert ids(await take(store, lease=10)) == ["a"]
        clock.advance(10)
        assert await store.recover(100) == 1
    assert (await get(store, "a")).crashes == 7


async def test_a_run_between_that_was_no_crash_starts_anew(
    store: FullStore, clock: FakeClock
) -> None:
    await add(store, job("a", max_crashes=1))
    for _ in range(3):
        await take(store, lease=10)
        clock.advance(10)
        await store.recover(100)
        [claim] = await take(store)
        assert claim.job.suspect
        await store.settle([retry(claim, 0, OOPS)])
        assert not (await get(store, "a")).suspect


async def test_it_keeps_its_place(store: FullStore, clock: FakeClock) -> None:
    await start(store, job("a"), job("b"), lease=10)
    await add(store, job("c"))
    clock.advance(10)
    assert await store.recover(100) == 2
    assert ids(await take(store)) == ["a", "b", "c"]


async def test_a_limit(store: FullStore, clock: FakeClock) -> None:
    await start(store, *(job() for _ in range(25)), lease=10)
    clock.advance(10)
    assert await store.recover(0) == 0
    assert await store.recover(10) == 10
    assert (await store.depth("default")).running == 15
    assert await store.recover(10) == 10
    assert await store.recover(10) == 5


async def test_after_reopening(store: FullStore, clock: FakeClock, place: Place) -> None:
    await start(store, job("a"), lease=10)
    clock.advance(5)
    store = await place.reopen()
    assert await store.recover(100) == 0
    clock.advance(5)
    assert await store.recover(100) == 1


async def test_a_clock_that_jumps_ends_no_lease_and_prolongs_none(
    store: FullStore, clock: FakeClock
) -> None:
    claims = [await start(store, job(), lease=10)]
    for jump in (3 * 86400, -6 * 86400):
        clock.step(jump)
        assert await store.recover(100) == 0
        claims.append(await start(store, job(), lease=10))
        assert list(await store.renew(claims[:1], 10)) == []
        assert await store.recover(100) == 0
    clock.advance(10)
    assert await store.recover(100) == 3


async def test_all_queues_and_tasks(store: FullStore, clock: FakeClock) -> None:
    await start(store, job(queue="a", task="t"), job(queue="b"), lease=10)
    clock.advance(10)
    assert await store.recover(100) == 2


async def test_namespaces_do_not_disturb_each_other(
    store: FullStore, clock: FakeClock, place: Place
) -> None:
    other = await place.open("other")
    doomed = job("a", key="k", keep_key=50, lane="l", max_crashes=1)
    await add(other, doomed, job("b", lane="l"), job("c", key="k2", keep_key=50, ttl=5))
    for _ in range(2):
        assert ids(await take(other, 1, lease=10)) == ["a"]
        clock.advance(10)
        await store.recover(100)
        await other.recover(100)
        await store.prune(100)
        assert await take(store) == []
    assert (await get(other, "a")).status is Status.DEAD
    assert (await get(other, "c")).status is Status.CANCELLED
    assert ids(await take(other)) == ["b"]
    clock.advance(100)
    await add(other, job("new", key="k"), job("new 2", key="k2"))
