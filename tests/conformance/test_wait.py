"""`wait`: nothing is missed, nobody spins."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.steps import OOPS, add, get, idle, ids, job, soon, start, take, waiting

from outlast.errors import QueueFull
from outlast.job import Death, Status, done, give_back, retry

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def test_a_timeout(store: FullStore, clock: FakeClock) -> None:
    task = await idle(store, timeout=30)
    assert await clock.run(task, 31) >= 30


async def test_no_time_at_all(store: FullStore) -> None:
    async with asyncio.timeout(60):
        for _ in range(3):
            await store.wait(["default"], 0)


async def test_what_was_added_since_the_last_look(store: FullStore, place: Place) -> None:
    other = await place.open()
    for handle in (store, other):
        (await idle(store)).cancel()
        assert await take(store) == []
        await add(handle, job("news"))
        await soon(asyncio.ensure_future(store.wait(["default"], 1e9)))
        [claim] = await take(store)
        await store.settle([done(claim)])
        await store.purge("default", [Status.DONE])


async def test_wakes_for_a_new_job(store: FullStore, place: Place) -> None:
    for handle in (store, await place.open()):
        task = await idle(store)
        await add(handle, job())
        await soon(task)
        assert len(await take(store)) == 1


async def test_wakes_for_jobs_that_come_together(store: FullStore, place: Place) -> None:
    for handle in (store, await place.open()):
        task = await idle(store)
        await asyncio.gather(*(add(handle, job()) for _ in range(5)))
        await soon(task)
        assert len(await take(store)) == 5


async def test_wakes_for_one_of_several_queues(store: FullStore) -> None:
    task = await idle(store, queues=["a", "b"])
    await add(store, job(queue="b"))
    await soon(task)


async def test_wakes_everybody(store: FullStore, place: Place) -> None:
    tasks = [await idle(await place.open()) for _ in range(3)]
    await add(store, job())
    for task in tasks:
        await soon(task)


async def test_wakes_when_a_delayed_job_comes_due(store: FullStore, clock: FakeClock) -> None:
    await add(store, job(delay=20), job(delay=90))
    task = await idle(store)
    assert await clock.run(task, 22) >= 20
    assert len(await take(store)) == 1


async def test_wakes_when_a_retry_comes_due(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job())
    task = await idle(store)
    await store.settle([retry(running, 20, OOPS)])
    if task.done():
        task = await idle(store)
    await clock.run(task, 22)


async def test_a_nearer_moment_added_while_waiting(
    store: FullStore, clock: FakeClock, place: Place
) -> None:
    await add(store, job(delay=1000))
    other = await place.open()
    task = await idle(store)
    await add(other, job("near", delay=10))
    for _ in range(3):
        await clock.run(task, 12)
        if claims := await take(store):
            assert ids(claims) == ["near"]
            return
        task = asyncio.ensure_future(store.wait(["default"], 1e9))
    pytest.fail("it was not woken in time")


async def test_due_since_the_last_look(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a", delay=10))
    (await idle(store)).cancel()
    clock.advance(10)
    await store.depth("default")
    await soon(asyncio.ensure_future(store.wait(["default"], 1e9)))
    assert ids(await take(store)) == ["a"]


async def test_came_due_and_was_seen_by_another(
    store: FullStore, clock: FakeClock, place: Place
) -> None:
    other = await place.open()
    await add(store, job("a", delay=10))
    (await idle(store)).cancel()
    assert await take(store) == []
    clock.advance(10)
    assert await take(other, tasks=["another"]) == []
    await other.depth("default")
    await soon(asyncio.ensure_future(store.wait(["default"], 1e9)))
    assert ids(await take(store)) == ["a"]


WAYS_BACK: dict[str, Any] = {
    "retried": lambda store, claim: store.settle([retry(claim, 0, OOPS)]),
    "given back": lambda store, claim: store.settle([give_back(claim)]),
    "followed": lambda store, claim: store.settle([done(claim, None, (job(),))]),
    "recovered": lambda store, claim: store.recover_worker("w1", Death()),
}


@pytest.mark.parametrize("way", WAYS_BACK)
async def test_wakes_for_what_comes_back(store: FullStore, place: Place, way: str) -> None:
    running = await start(store, job())
    worker = await place.open()
    task = await idle(worker)
    await WAYS_BACK[way](store, running)
    await soon(task)
    assert len(await take(worker)) == 1


async def test_wakes_for_an_expired_lease(store: FullStore, clock: FakeClock) -> None:
    await start(store, job(), lease=10)
    task = await idle(store)
    clock.advance(10)
    assert await store.recover(10) == 1
    await soon(task)
    assert len(await take(store)) == 1


async def test_wakes_when_a_lane_is_free(store: FullStore, place: Place) -> None:
    running = await start(store, job(lane="l"))
    await add(store, job("next", lane="l", queue="other"))
    worker = await place.open()
    task = await idle(worker, queues=["other"])
    await store.settle([done(running)])
    await soon(task)
    assert ids(await take(worker, queues=["other"])) == ["next"]


async def test_wakes_for_a_revived_job(store: FullStore) -> None:
    await add(store, job("a"))
    await store.cancel(["a"])
    task = await idle(store)
    await store.revive(["a"])
    await soon(task)


async def test_wakes_when_a_pause_ends(store: FullStore) -> None:
    await add(store, job("a"))
    await store.pause("default")
    task = await idle(store)
    await store.pause("default", False)
    await soon(task)
    assert ids(await take(store)) == ["a"]


async def test_nobody_spins_on_jobs_that_nobody_knows(store: FullStore, clock: FakeClock) -> None:
    await add(store, *(job(task="unknown", delay=n % 2) for n in range(10)))
    clock.advance(5)
    # What a store hears late of its own beginnings may wake it a few times, and no more.
    for _ in range(5):
        task = await idle(store, timeout=30)
        if await clock.run(task, 31) >= 30:
            return
    raise AssertionError("there is nothing to claim, but wait returns again and again")


async def test_nobody_spins_on_a_held_lane(store: FullStore) -> None:
    await start(store, job(lane="l"))
    await add(store, *(job(lane="l") for _ in range(3)))
    (await idle(store)).cancel()


async def test_nobody_spins_on_a_paused_queue(store: FullStore, clock: FakeClock) -> None:
    await add(store, job(), job(delay=1))
    await store.pause("default")
    clock.advance(1)
    (await idle(store)).cancel()


SPACE: dict[str, Any] = {
    "claimed": lambda store: take(store),
    "cancelled": lambda store: store.cancel(["a"]),
    "purged": lambda store: store.purge("default", [Status.QUEUED]),
}


@pytest.mark.parametrize("way", SPACE)
async def test_wakes_when_there_is_room(store: FullStore, place: Place, way: str) -> None:
    await add(store, job("a"))
    putter = await place.open()
    task = await _full(putter)
    await SPACE[way](store)
    await soon(task)
    await putter.add([job("x")], capacity=1)


async def test_wakes_when_an_expired_job_makes_room(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a", ttl=10))
    task = await _full(store)
    clock.advance(10)
    await store.prune(10)
    await soon(task)
    await store.add([job("x")], capacity=1)


async def test_room_since_the_last_look(store: FullStore, place: Place) -> None:
    await add(store, job("a"))
    (await _full(store)).cancel()
    with pytest.raises(QueueFull):
        await store.add([job("x")], capacity=1)
    await take(await place.open())
    await soon(asyncio.ensure_future(store.wait(["default"], 1e9, space=True)))


async def _full(store: FullStore) -> asyncio.Task[None]:
    """A wait like that of a producer in front of a full queue."""
    for _ in range(5):
        with pytest.raises(QueueFull):
            await store.add([job("x")], capacity=1)
        task = asyncio.ensure_future(store.wait(["default"], 1e9, space=True))
        done, _ = await asyncio.wait((task,), timeout=0.05)
        if not done:
            return task
    raise AssertionError("there is no room, but wait returns again and again")


async def test_cancelled_while_waiting(store: FullStore) -> None:
    cancelled = 0
    for _ in range(20):
        task = await waiting_soon(store)
        if task.cancel():  # else it returned early, as it may
            with pytest.raises(asyncio.CancelledError):
                await task
            cancelled += 1
    assert cancelled >= 10
    task = await idle(store)
    await add(store, job())
    await soon(task)


async def waiting_soon(store: FullStore) -> asyncio.Task[None]:
    task = asyncio.ensure_future(store.wait(["nowhere"], 1e9))
    await asyncio.sleep(0)
    return task


async def test_closing_lets_go(store: FullStore) -> None:
    task = await idle(store)
    await store.close()
    async with asyncio.timeout(60):
        await asyncio.wait((task,))
    assert task.done()


async def test_a_store_in_another_thread(store: FullStore, place: Place) -> None:
    """The worker renews its leases from a thread with a loop of its own."""
    waits, found = threading.Event(), []

    async def other() -> None:
        handle = await place.open()
        task = await idle(handle)
        waits.set()
        await soon(task)
        found.extend(ids(await take(handle)))
        await handle.close()

    thread = asyncio.ensure_future(asyncio.to_thread(asyncio.run, other()))
    assert await asyncio.to_thread(waits.wait, 60)
    await add(store, job("a"))
    await soon(thread)
    assert found == ["a"]
    assert (await get(store, "a")).status is Status.RUNNING


async def test_waits_at_all(store: FullStore) -> None:
    (await idle(store)).cancel()
    (await waiting(store.wait(["default"], 1e9))).cancel()
