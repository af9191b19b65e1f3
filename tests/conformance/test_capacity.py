"""`add` with a capacity: a limit of queued jobs that holds for everybody."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import OOPS, add, job, start, take

from outlast.errors import QueueFull
from outlast.job import Added, dead, done, give_back, retry

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore


async def test_up_to_the_capacity(store: FullStore, place: Place) -> None:
    for _ in range(3):
        await store.add([job()], capacity=3)
    with pytest.raises(QueueFull):
        await store.add([job("x")], capacity=3)
    other = await place.open()
    with pytest.raises(QueueFull):
        await other.add([job("x")], capacity=3)
    assert list(await other.get(["x"])) == [None]
    assert list(await other.add([job("x")], capacity=4)) == [Added("x")]


async def test_a_batch_fits_whole_or_not_at_all(store: FullStore) -> None:
    await add(store, job())
    with pytest.raises(QueueFull):
        await store.add([job("a"), job("b"), job("c")], capacity=3)
    assert list(await store.get(["a", "b", "c"])) == [None] * 3
    await store.add([job("a"), job("b")], capacity=3)


async def test_what_found_no_room_holds_no_key(store: FullStore) -> None:
    await add(store, job())
    with pytest.raises(QueueFull):
        await store.add([job("a", key="k")], capacity=1)
    assert list(await store.add([job("b", key="k")])) == [Added("b")]


async def test_without_a_capacity_there_is_none(store: FullStore) -> None:
    await store.add([job()], capacity=1)
    await add(store, job(), job())


async def test_all_that_is_queued_counts(store: FullStore) -> None:
    running = await start(store, job("1", lane="l"))
    await add(store, job("2", lane="l"), job("late", delay=1000), job("unknown", task="t"))
    with pytest.raises(QueueFull):
        await store.add([job()], capacity=3)
    await store.settle([retry(running, 50, OOPS)])
    with pytest.raises(QueueFull):
        await store.add([job()], capacity=4)
    await store.add([job()], capacity=5)


async def test_a_claim_makes_room(store: FullStore) -> None:
    await add(store, job("a"), job("b"))
    [a] = await take(store, 1)
    await store.add([job("c")], capacity=2)
    with pytest.raises(QueueFull):
        await store.add([job("d")], capacity=2)
    await store.settle([give_back(a)])
    with pytest.raises(QueueFull):
        await store.add([job("d")], capacity=3)


async def test_ended_jobs_do_not_count(store: FullStore) -> None:
    [a, b] = await start(store, job("a"), job("b"))
    await add(store, job("c"))
    await store.settle([done(a), dead(b, OOPS)])
    await store.cancel(["c"])
    await store.add([job(), job(), job()], capacity=3)


async def test_each_queue_alone(store: FullStore) -> None:
    await add(store, job(queue="a"), job(queue="a"))
    await store.add([job(queue="b")], capacity=2)
    with pytest.raises(QueueFull):
        await store.add([job("x", queue="b"), job("y", queue="a")], capacity=2)
    assert list(await store.get(["x", "y"])) == [None, None]


async def test_each_namespace_alone(store: FullStore, place: Place) -> None:
    other = await place.open("other")
    await add(other, *(job() for _ in range(5)))
    assert list(await store.add([job("x")], capacity=1)) == [Added("x")]


async def test_all_tasks_of_a_queue_together(store: FullStore) -> None:
    await add(store, job(task="t1"), job(task="t2"))
    with pytest.raises(QueueFull):
        await store.add([job(task="t3")], capacity=2)


async def test_repeating_is_safe_in_a_full_queue(store: FullStore) -> None:
    """The answer to the first call may have been lost."""
    await store.add([job("a", key="k"), job("b")], capacity=2)
    again = await store.add([job("a", key="k"), job("b"), job("c", key="k")], capacity=2)
    assert list(again) == [
        Added("a", created=False),
        Added("b", created=False),
        Added("a", created=False),
    ]
    with pytest.raises(QueueFull):
        await store.add([job("a"), job("d")], capacity=2)


async def test_what_follows_a_verdict_always_fits(store: FullStore) -> None:
    running = await start(store, job())
    await store.settle([done(running, None, (job(), job()))])
    with pytest.raises(QueueFull):
        await store.add([job()], capacity=2)


async def test_nobody_overfills_in_a_race(store: FullStore, place: Place) -> None:
    handles = [store, await place.open(), await place.open()]
    calls = (handles[n % 3].add([job(), job()], capacity=11) for n in range(12))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    full = [answer for answer in answers if isinstance(answer, BaseException)]
    assert all(isinstance(error, QueueFull) for error in full)
    assert len(full) == 7
    assert (await store.depth("default")).live == 10
