"""`prune`: what is past its time goes, in bites, and nothing else does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.steps import OOPS, add, get, ids, job, start, take

from outlast.job import DAY, Death, Status, cancelled, dead, done, retry

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def test_done_jobs_go_after_their_time(
    store: FullStore, clock: FakeClock, place: Place
) -> None:
    [a, b] = await start(store, job("a", keep=100), job("b"))
    clock.advance(1000)
    await store.settle([done(a), done(b)])
    clock.advance(99.5)
    assert await store.prune(100) == 0
    store = await place.reopen()
    clock.advance(0.5)
    assert await store.prune(100) == 1
    assert list(await store.get(["a"])) == [None]
    clock.advance(DAY - 100)
    assert await store.prune(100) == 1
    assert list(await store.get(["b"])) == [None]
    assert await store.prune(100) == 0


async def test_for_ever(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a", keep=None))
    await store.settle([done(running)])
    clock.advance(1000 * DAY)
    assert await store.prune(100) == 0
    assert (await get(store, "a")).status is Status.DONE


async def test_the_dead_stay(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a", keep=5))
    await store.settle([dead(running, OOPS)])
    clock.advance(1000 * DAY)
    assert await store.prune(100) == 0
    assert (await get(store, "a")).failure == OOPS


async def test_those_that_died_with_their_worker_stay(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a", keep=5, max_crashes=1))
    await take(store, worker="w2")
    await store.recover_worker("w2", Death(started=frozenset({"a"}), alone=True))
    clock.advance(1000 * DAY)
    assert await store.prune(100) == 0
    assert (await get(store, "a")).status is Status.DEAD


async def test_cancelled_jobs_go(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a", keep=5))
    await add(store, job("b", keep=5))
    await store.settle([cancelled(running)])
    await store.cancel(["b"])
    clock.advance(4)
    assert await store.prune(100) == 0
    clock.advance(1)
    assert await store.prune(100) == 2
    assert list(await store.get(["a", "b"])) == [None, None]


async def test_expired_jobs_are_cancelled_and_go_later(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a", ttl=10, keep=5), job("b", expires_at=clock.now() + 20))
    clock.advance(10)
    assert await store.prune(100) == 1
    expired = await get(store, "a")
    assert (expired.status, expired.finished_at) == (Status.CANCELLED, clock.now())
    assert expired.failure is not None
    assert expired.failure.kind == "expired"
    assert (await get(store, "b")).status is Status.QUEUED
    clock.advance(5)
    assert await store.prune(100) == 1
    assert list(await store.get(["a"])) == [None]


async def test_a_retry_past_its_time_expires(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a", ttl=10))
    clock.advance(20)
    await store.settle([retry(running, 5, OOPS)])
    assert await take(store) == []
    await store.prune(100)
    assert (await get(store, "a")).status is Status.CANCELLED


async def test_live_jobs_stay(store: FullStore, clock: FakeClock) -> None:
    await start(store, job("running", keep=0, keep_key=0, key="k", ttl=5))
    await add(store, job("queued", keep=0), job("late", delay=1e9))
    clock.advance(1e6)
    assert await store.prune(100) == 0
    statuses = [each.status for each in await store.get(["running", "queued", "late"]) if each]
    assert statuses == [Status.RUNNING, Status.QUEUED, Status.QUEUED]


async def test_in_bites(store: FullStore, clock: FakeClock) -> None:
    claims = await start(store, *(job(keep=5, key=f"k{n}", keep_key=9) for n in range(10)))
    await store.settle([done(claim) for claim in claims])
    await add(store, *(job(ttl=3, keep=None) for _ in range(7)))
    clock.advance(10)
    assert await store.prune(0) == 0
    counts = []
    while count := await store.prune(6):
        counts.append(count)
    assert sum(counts) == 7 + 10 + 10
    assert max(counts) <= 6
    depth = await store.depth("default")
    assert (depth.done, depth.cancelled, depth.live) == (0, 7, 0)


async def test_a_pruned_id_is_free(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a", keep=5))
    await store.settle([done(running)])
    clock.advance(5)
    await store.prune(100)
    await add(store, job("a"))
    assert ids(await take(store)) == ["a"]


async def test_a_revived_job_is_not_pruned(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a", keep=5))
    await store.cancel(["a"])
    await store.revive(["a"])
    clock.advance(10)
    assert await store.prune(100) == 0
    [running] = await take(store)
    await store.settle([done(running)])
    clock.advance(4)
    assert await store.prune(100) == 0
    clock.advance(1)
    assert await store.prune(100) == 1
