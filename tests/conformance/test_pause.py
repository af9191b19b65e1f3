"""`pause`: a queue gives nothing out until it is let go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.steps import add, ids, job, start, take

from outlast.job import done

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def test_nothing_comes_from_a_paused_queue(store: FullStore, place: Place) -> None:
    await add(store, job("a"), job("b", queue="other"), job("c", task="t"))
    await store.pause("default")
    names = {"queues": ["default", "other"], "tasks": [None, "t"]}
    assert ids(await take(store, **names)) == ["b"]  # type: ignore[arg-type]
    assert await take(store, newest=True) == []
    assert await take(await place.open()) == []
    store = await place.reopen()
    assert await take(store) == []
    await store.pause("default", False)
    assert ids(await take(store, tasks=[None, "t"])) == ["a", "c"]


async def test_twice_is_the_same(store: FullStore) -> None:
    await add(store, job("a"))
    for _ in range(2):
        await store.pause("default")
    await store.pause("default", False)
    await store.pause("default", False)
    assert ids(await take(store)) == ["a"]


async def test_running_jobs_go_on(store: FullStore) -> None:
    running = await start(store, job("a"))
    await store.pause("default")
    assert list(await store.renew([running], 10)) == []
    assert list(await store.settle([done(running)])) == []


async def test_jobs_still_come_in(store: FullStore, clock: FakeClock) -> None:
    await store.pause("default")
    await add(store, job("a"), job("b", task="t"))
    await add(store, job("late", delay=5))
    clock.advance(5)
    depth = await store.depth("default")
    assert (depth.ready, depth.delayed) == (3, 0)
    assert await take(store, tasks=[None, "t"]) == []
    await store.pause("default", False)
    assert len(await take(store, tasks=[None, "t"])) == 3


async def test_of_this_namespace_only(store: FullStore, place: Place) -> None:
    other = await place.open("other")
    await store.pause("default")
    await add(other, job("a"))
    assert ids(await take(other)) == ["a"]
