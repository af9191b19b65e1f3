"""`depth`: counts by state, after everything that can happen to a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.steps import OOPS, add, job, start, take

from outlast.job import Death, Depth, Status, cancelled, dead, done, give_back, retry

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def depth(store: FullStore, queue: str = "default") -> tuple[int, ...]:
    found = await store.depth(queue)
    assert found.queued == found.ready + found.delayed
    assert found.live == found.queued + found.running
    return (
        found.ready,
        found.delayed,
        found.running,
        found.done,
        found.dead,
        found.cancelled,
    )


async def test_a_queue_that_was_never_used(store: FullStore) -> None:
    assert await store.depth("nothing") == Depth()


async def test_states(store: FullStore, clock: FakeClock, place: Place) -> None:
    await add(store, *(job() for _ in range(9)), job(delay=5), job(delay=50), job(task="t"))
    assert await depth(store) == (10, 2, 0, 0, 0, 0)
    claims = await take(store, 7)
    assert await depth(store) == (3, 2, 7, 0, 0, 0)
    await store.settle(
        [
            done(claims[0]),
            dead(claims[1], OOPS),
            cancelled(claims[2]),
            retry(claims[3], 5, OOPS),
            give_back(claims[4]),
            give_back(claims[5], 500),
        ]
    )
    assert await depth(store) == (4, 4, 1, 1, 1, 1)
    assert await depth(await place.open()) == (4, 4, 1, 1, 1, 1)
    clock.advance(5)
    assert await depth(store) == (6, 2, 1, 1, 1, 1)
    store = await place.reopen()
    assert await depth(store) == (6, 2, 1, 1, 1, 1)
    assert len(await take(store)) == 5
    assert await depth(store) == (1, 2, 6, 1, 1, 1)


async def test_each_queue_alone(store: FullStore) -> None:
    await add(store, job(queue="a"), job(queue="a", task="t"), job(queue="b"))
    assert await depth(store, "a") == (2, 0, 0, 0, 0, 0)
    assert await depth(store, "b") == (1, 0, 0, 0, 0, 0)


async def test_each_namespace_alone(store: FullStore, place: Place) -> None:
    await add(store, job(), job())
    other = await place.open("other")
    assert await depth(other) == (0, 0, 0, 0, 0, 0)
    await add(other, job())
    assert await depth(other) == (1, 0, 0, 0, 0, 0)
    assert await depth(store) == (2, 0, 0, 0, 0, 0)


async def test_what_was_there_already_is_not_counted(store: FullStore) -> None:
    await store.add([job("a", key="k"), job("a"), job("b", key="k")])
    await store.add([job("a"), job("c", key="k")])
    assert await depth(store) == (1, 0, 0, 0, 0, 0)


async def test_lost_verdicts_are_not_counted(store: FullStore) -> None:
    [a, b] = await start(store, job(), job())
    await store.settle([done(a)])
    await store.settle([done(a), dead(a, OOPS), retry(a, 0, OOPS), give_back(a, 5), done(b)])
    assert await depth(store) == (0, 0, 0, 2, 0, 0)


async def test_what_is_not_kept_is_not_counted(store: FullStore) -> None:
    [a, b] = await start(store, job(keep=0), job(keep=0))
    await store.settle([done(a), dead(b, OOPS)])
    assert await depth(store) == (0, 0, 0, 0, 1, 0)


async def test_jobs_behind_a_lane_are_queued(store: FullStore) -> None:
    await add(store, *(job(lane="l") for _ in range(5)))
    await take(store)
    assert await depth(store) == (4, 0, 1, 0, 0, 0)


async def test_after_recovery(store: FullStore, clock: FakeClock) -> None:
    await start(store, job(), job(max_crashes=1), lease=10)
    clock.advance(10)
    await store.recover(10)
    assert await depth(store) == (2, 0, 0, 0, 0, 0)
    await take(store, lease=10)
    clock.advance(10)
    await store.recover(10)
    assert await depth(store) == (1, 0, 0, 0, 1, 0)
    await take(store, worker="w2")
    await store.recover_worker("w2", Death())
    assert await depth(store) == (1, 0, 0, 0, 1, 0)


async def test_after_expiry_and_pruning(store: FullStore, clock: FakeClock) -> None:
    await add(store, job(ttl=5, keep=10), job(ttl=5, delay=50, keep=10), job(keep=10))
    [running] = await take(store, 1)
    clock.advance(6)
    await store.prune(100)
    assert await depth(store) == (1, 0, 1, 0, 0, 1)
    await store.settle([done(running)])
    clock.advance(20)
    await store.prune(100)
    assert await depth(store) == (1, 0, 0, 0, 0, 0)


async def test_after_steering(store: FullStore) -> None:
    await add(store, job("a"), job("b", delay=5), job("c"), job("d", delay=5))
    await store.cancel(["a", "b"])
    assert await depth(store) == (1, 1, 0, 0, 0, 2)
    await store.revive(["b"])
    assert await depth(store) == (2, 1, 0, 0, 0, 1)
    await store.purge("default", [Status.QUEUED])
    assert await depth(store) == (0, 0, 0, 0, 0, 1)
    await store.purge("default", [Status.CANCELLED])
    assert await depth(store) == (0, 0, 0, 0, 0, 0)


async def test_with_many_jobs(store: FullStore) -> None:
    await add(store, *(job(task=f"t{n % 7}", delay=n % 2) for n in range(2000)))
    assert await depth(store) == (1000, 1000, 0, 0, 0, 0)
