"""A store that can only be awaited, as behind a network: what works, and what says what to do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.dropin.steps import until

import outlast
from outlast.errors import Unsupported
from outlast.store import Direct, Feature, Store, offers
from outlast.stores import connect

HIDDEN = {"open_now", "close_now", "add_now", "claim_now", "claim_soon", "settle_now", "depth_now"}


class Awaited:
    """The memory store without the calls that block, and a moment slower."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name in HIDDEN:
            raise AttributeError(name)
        return getattr(self._store, name)

    async def claim(self, *arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        claims = await self._store.claim(*arguments, **options)
        await asyncio.sleep(0)
        return claims


@pytest.fixture(autouse=True)
def _network(monkeypatch: pytest.MonkeyPatch) -> None:
    def far(url: str, **options: Any) -> Any:
        store = Awaited(connect(url, **options))
        assert not offers(store, Direct)
        return store

    monkeypatch.setattr("outlast.queue.queue.connect", far)


def make(maxsize: int = 0, **options: Any) -> outlast.Queue[Any]:
    return outlast.Queue(maxsize, **{"name": "far", "url": "memory://", **options})


async def test_everything_that_is_awaited_works() -> None:
    async with make() as queue:
        await queue.put("a")
        await queue.put_many(["b", "c", "d"])
        assert await queue.get() == "a"
        queue.task_done()
        assert await queue.get_many(2) == ["b", "c"]
        queue.task_done()
        queue.task_done()
        async with queue.item() as item:
            assert item == "d"
        await asyncio.wait_for(queue.join(), 60)
        assert (await queue.depth()).live == 0


@pytest.mark.parametrize("kind", [outlast.PriorityQueue, outlast.LifoQueue])
async def test_its_sisters_too(kind: type[outlast.Queue[int]]) -> None:
    async with kind(name="far", url="memory://") as queue:
        await queue.put_many([2, 3, 1])
        got = [await queue.get() for _ in range(3)]
        assert got == ([1, 2, 3] if kind is outlast.PriorityQueue else [1, 3, 2])
        for item in got:
            queue.task_done(item)
        await asyncio.wait_for(queue.join(), 60)


async def test_a_getter_waits_for_a_put_and_for_the_shutdown() -> None:
    async with make() as queue:
        first, second = (asyncio.create_task(queue.get()) for _ in range(2))
        await until(lambda: len(queue._getters) == 2)
        await queue.put(1)
        assert await asyncio.wait_for(first, 60) == 1
        queue.task_done()
        queue.shutdown()
        with pytest.raises(outlast.QueueShutDown):
            await asyncio.wait_for(second, 60)


async def test_shutdown_lets_the_rest_out_first() -> None:
    async with make() as queue:
        await queue.put_many([1, 2])
        queue.shutdown()
        assert [item async for item in queue] == [1, 2]
        await asyncio.wait_for(queue.join(), 60)


async def test_a_limit_holds() -> None:
    async with make(1) as queue:
        await queue.put(1)
        second = asyncio.create_task(queue.put(2))
        await until(lambda: len(queue._putters) == 1)
        assert (await queue.depth()).queued == 1
        assert await queue.get() == 1
        await asyncio.wait_for(second, 60)
        assert await queue.get() == 2
        queue.task_done(1)
        queue.task_done(2)


@pytest.mark.parametrize("call", ["qsize", "empty", "full", "get_nowait", "put_nowait"])
async def test_what_would_block_says_what_to_await(call: str) -> None:
    async with make(3) as queue:
        await queue.put(1)
        arguments = [1] if call == "put_nowait" else []
        with pytest.raises(Unsupported, match=r"can only be awaited: use .*depth\(\)"):
            getattr(queue, call)(*arguments)
        assert (await queue.depth()).live == 1


async def test_what_is_in_memory_needs_no_waiting() -> None:
    async with make() as queue:
        await queue.put_many(list(range(20)))
        got = [await queue.get() for _ in range(5)]
        while len(queue._line.supply.window):
            got.append(queue.get_nowait())
        assert got == list(range(len(got)))
        for item in got:
            queue.task_done(item)


def test_each_needs_calls_that_block() -> None:
    with pytest.raises(Unsupported, match="commit='group'"):
        make(commit="each")


@pytest.mark.parametrize(
    ("kind", "maxsize", "feature"),
    [(outlast.PriorityQueue, 0, Feature.PRIORITY), (outlast.Queue, 5, Feature.CAPACITY)],
)
def test_what_a_store_cant_do_is_said_at_once(
    kind: type[outlast.Queue[Any]], maxsize: int, feature: Feature, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poor(url: str, **options: Any) -> Any:
        store = connect(url, **options)
        store.features &= ~feature
        return store

    monkeypatch.setattr("outlast.queue.queue.connect", poor)
    with pytest.raises(Unsupported, match=str(feature.name)):
        kind(maxsize, name="far", url="memory://")
    make()


async def test_nobody_is_lost_when_gets_are_cancelled() -> None:
    async with make() as queue:
        await queue.put_many(list(range(40)))
        got: list[int] = []
        rounds = 0
        while len(got) < 40:
            get = asyncio.create_task(queue.get())
            for _ in range(rounds % 12):
                await asyncio.sleep(0)
            rounds += 1
            get.cancel()
            await asyncio.wait([get])
            if not get.cancelled():
                got.append(get.result())
                queue.task_done(got[-1])
        assert got == list(range(40))
        await asyncio.wait_for(queue.join(), 60)
