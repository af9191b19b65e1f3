"""``claim_next``: what comes is claimed as it comes, nothing is missed, nothing is for nobody."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.steps import (
    OOPS,
    add,
    claim_next,
    get,
    ids,
    job,
    never,
    soon,
    start,
    take,
    waiting,
)

from outlast.errors import StoreClosed
from outlast.job import Death, Status, give_back, retry
from outlast.store import Feature

if TYPE_CHECKING:
    from tests.conformance.conftest import Place


async def parked(store: Any, limit: int = 10, **how: Any) -> asyncio.Task[Any]:
    """A claim that waits in the store's own thread: before that it may look a few times."""
    assert Feature.PROMPT in store.features
    thread = getattr(store, "_writer", None) or store._engine
    for _ in range(5):
        task = asyncio.ensure_future(claim_next(store, limit, **how))
        while not task.done() and not thread._parked:
            await asyncio.wait((task,), timeout=0.001)
        if not task.done():
            return task
        assert task.result() == []
    raise AssertionError("there is nothing to claim, but it returns again and again")


async def test_what_was_there_at_the_start_comes_at_once(store: Any, place: Place) -> None:
    names = await add(store, job())
    found = asyncio.ensure_future(claim_next(await place.open()))
    assert ids(await soon(found)) == names


async def test_what_is_there_comes_at_once(store: Any) -> None:
    names = await add(store, job(), job(), job())
    assert ids(await soon(asyncio.ensure_future(claim_next(store, 2)))) == names[:2]
    assert ids(await soon(asyncio.ensure_future(claim_next(store, 2)))) == names[2:]


@pytest.mark.parametrize("where", ["here", "in another process's store"])
async def test_what_is_added_comes_as_it_is_added(store: Any, place: Place, where: str) -> None:
    other = store if where == "here" else await place.open()
    for round in range(6):
        task = await parked(store)
        await add(other, job(f"{round}", priority=round % 3))
        [claimed] = await soon(task)
        assert claimed.job.id == f"{round}"
        assert (await get(store, claimed.job.id)).status is Status.RUNNING


async def test_a_hundred_at_once_lose_none(store: Any) -> None:
    got: list[str] = []

    async def worker() -> None:
        while len(got) < 300:
            got.extend(ids(await claim_next(store, 7)))

    working = asyncio.ensure_future(worker())
    for n in range(3):
        await asyncio.gather(*(store.add([job(f"{n}-{m}")]) for m in range(100)))
    await soon(working)
    assert sorted(got) == sorted(f"{n}-{m}" for n in range(3) for m in range(100))


async def test_it_claims_no_more_than_it_was_told(store: Any) -> None:
    task = await parked(store, 1)
    names = await add(store, job(), job())
    assert ids(await soon(task)) == names[:1]
    assert ids(await soon(asyncio.ensure_future(claim_next(store)))) == names[1:]


async def test_what_comes_due(store: Any, place: Place) -> None:
    await add(store, job("late", delay=20))
    task = await parked(store)
    await place.clock.run(task, 22)
    assert ids(task.result()) == ["late"]


async def test_a_nearer_moment_added_while_it_waits(store: Any, place: Place) -> None:
    await add(store, job(delay=1000))
    task = await parked(store)
    await add(await place.open(), job("near", delay=10))
    for _ in range(3):
        await place.clock.run(task, 12)
        if task.result():
            assert ids(task.result()) == ["near"]
            return
        task = asyncio.ensure_future(claim_next(store))
    pytest.fail("it was not woken in time")


@pytest.mark.parametrize("way", ["retried", "given back", "recovered"])
async def test_what_comes_back(store: Any, way: str) -> None:
    running = await start(store, job("again"))
    task = await parked(store)
    if way == "recovered":
        await store.recover_worker("w1", Death())
    else:
        await store.settle([retry(running, 0, OOPS) if way == "retried" else give_back(running)])
    assert ids(await soon(task)) == ["again"]


async def test_a_timeout_looks_once_more(store: Any, place: Place) -> None:
    task = await parked(store, timeout=30)
    assert await place.clock.run(task, 31) >= 30
    assert task.result() == []


async def test_enough(store: Any) -> None:
    enough = never()
    task = await parked(store, enough=enough)
    enough.cancel()
    assert await soon(task) == []
    assert len(await add(store, job())) == 1
    assert len(await take(store)) == 1


async def test_cancelled_while_it_waits_it_claims_nothing(store: Any) -> None:
    for _ in range(5):
        task = await parked(store)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        [name] = await add(store, job())
        assert (await get(store, name)).status is Status.QUEUED
        assert ids(await take(store)) == [name]


async def test_cancelled_as_it_is_answered_it_gives_back(store: Any) -> None:
    for steps in range(24):
        task = await parked(store)
        adding = asyncio.ensure_future(store.add([job(f"{steps}")]))
        for _ in range(steps % 8):
            await asyncio.sleep(0)
        await asyncio.wait((adding,), timeout=steps % 5 * 2e-4)
        task.cancel()
        await asyncio.wait((task, adding))
        found = [] if task.cancelled() else task.result()
        while not found:
            found = await take(store)
        assert ids(found) == [f"{steps}"]


async def test_a_store_that_closes_lets_it_go(place: Place) -> None:
    store: Any = await place.open()
    task = await parked(store)
    await store.close()
    with pytest.raises(StoreClosed):
        await soon(task)


async def test_it_waits_through_what_is_none_of_its_news(store: Any) -> None:
    running = await start(store, job())
    task = await parked(store)
    await store.renew([running], 5.0)
    await store.depth("default")
    await waiting(task)
    task.cancel()
