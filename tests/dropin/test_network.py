"""The queues on the stores behind a network, by URL: what works, and what says what to await."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.dropin.children import child
from tests.dropin.steps import until
from tests.servers import PostgresServer, RedisServer, shared

import outlast
from outlast.queue import line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture(
    params=[
        pytest.param("postgresql", marks=pytest.mark.needs("servers")),
        pytest.param("redis", marks=pytest.mark.needs("redis")),
    ]
)
async def far(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The URL of an empty store."""
    if request.param == "redis":
        redis = shared(RedisServer)
        redis.empty()
        # What is asked for is less than power, which its setting can't promise.
        yield redis.url(query="durability=process")
    else:
        server = shared(PostgresServer)
        await server.empty()
        yield server.url()


async def test_a_queue(far: str) -> None:
    async with outlast.Queue[Any](name="far", url=far, type=tuple[int, str]) as queue:
        await queue.put((1, "a"))
        await queue.put_many([(2, "b"), (3, "c"), (4, "d")])
        assert await queue.get() == (1, "a")
        queue.task_done()
        assert await queue.get_many(2) == [(2, "b"), (3, "c")]
        queue.task_done()
        queue.task_done()
        async with queue.item() as item:
            assert item == (4, "d")
        async with asyncio.timeout(60):
            await queue.join()
        assert (await queue.depth()).live == 0


async def test_its_order_in_ranks(far: str) -> None:
    async with outlast.PriorityQueue[Any](name="far", url=far) as queue:
        await queue.put_many([(3, "c"), (1, "a"), (-2, "z"), (1, "b")])
        got = [await queue.get() for _ in range(4)]
        assert got == [(-2, "z"), (1, "a"), (1, "b"), (3, "c")]
        for item in got:
            queue.task_done(item)


async def test_last_in_first_out(far: str) -> None:
    async with outlast.LifoQueue[int](name="far", url=far) as queue:
        await queue.put_many([1, 2, 3])
        got = [await queue.get() for _ in range(3)]
        assert got == [3, 2, 1]
        for item in got:
            queue.task_done(item)


async def test_many_producers_and_consumers(far: str) -> None:
    """Each item once, and the end is seen."""
    got: list[int] = []

    async def consume(queue: outlast.Queue[int]) -> None:
        async for item in queue:
            got.append(item)

    async with outlast.Queue[int](name="far", url=far) as queue, asyncio.timeout(60):
        consumers = [asyncio.create_task(consume(queue)) for _ in range(10)]
        await asyncio.gather(*(queue.put(number) for number in range(200)))
        await until(lambda: len(got) == 200, 60)
        queue.shutdown()
        await asyncio.gather(*consumers)
        await queue.join()
    assert sorted(got) == list(range(200))


async def test_a_limit(far: str) -> None:
    async with outlast.Queue[int](1, name="far", url=far) as queue:
        await queue.put(1)
        second = asyncio.create_task(queue.put(2))
        await until(lambda: len(queue._putters) == 1, 60)
        assert (await queue.depth()).queued == 1
        assert await queue.get() == 1
        async with asyncio.timeout(60):
            await second
            assert await queue.get() == 2
        queue.task_done(1)
        queue.task_done(2)


async def test_what_is_not_awaited_waits_for_the_server(far: str) -> None:
    async with outlast.Queue[int](2, name="far", url=far) as queue:
        assert queue.empty()
        queue.put_nowait(1)
        await queue.put(2)
        assert (queue.qsize(), queue.full()) == (2, True)
        with pytest.raises(asyncio.QueueFull):
            queue.put_nowait(3)
        assert queue.get_nowait() == 1
        queue.task_done()
        assert await queue.get() == 2
        queue.task_done()
        with pytest.raises(asyncio.QueueEmpty):
            queue.get_nowait()
        async with asyncio.timeout(60):
            await queue.join()


async def test_each_call_may_be_durable_when_it_returns(far: str) -> None:
    async with outlast.Queue[int](name="far", url=far, commit="each") as queue:
        await queue.put(1)
        assert await queue.get() == 1
        queue.task_done()
        await queue.join()
        assert (await queue.depth()).live == 0


@pytest.mark.parametrize("call", ["get", "get_nowait"])
async def test_what_is_held_for_long_is_kept(
    far: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is renewed, whichever way the item was taken."""
    monkeypatch.setattr(line, "LEASE", 1.5)
    async with outlast.Queue[int](name="far", url=far) as queue:
        await queue.put(1)
        assert (queue.get_nowait() if call == "get_nowait" else await queue.get()) == 1
        renewed = asyncio.Event()
        renew = queue._line.store.renew

        async def seen(*arguments: Any) -> Any:
            lost = await renew(*arguments)
            renewed.set()
            return lost

        monkeypatch.setattr(queue._line.store, "renew", seen)
        async with asyncio.timeout(60):
            await renewed.wait()
        queue.task_done()


async def test_what_a_dead_host_held_comes_to_one_who_waits(
    far: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its life signs can't be seen from here, and so its lease has to run out."""
    monkeypatch.setattr(line, "LEASE", 2.0)
    async with outlast.Queue[int](name="far", url=far) as queue:
        await queue.put(1)
        body = f"""
        from outlast.queue import line
        import tempfile
        tempfile.tempdir = {str(tmp_path)!r}
        line.LEASE = 2.0
        queue = Queue(name="far", url=URL)
        say(await queue.get())
        await forever()
        """
        with child(body, far) as program:
            assert program.line() == "1"
            waiting = asyncio.create_task(queue.get())
            await until(lambda: len(queue._getters) == 1, 60)
            program.kill()
        async with asyncio.timeout(60):
            assert await waiting == 1
        queue.task_done()


async def test_what_a_closed_queue_held_comes_again_first(far: str) -> None:
    async with outlast.Queue[int](name="far", url=far) as queue:
        await queue.put_many([1, 2, 3])
        assert await queue.get() == 1
        assert await queue.get() == 2
        queue.task_done(2)
    async with outlast.Queue[int](name="far", url=far) as queue:
        assert [await queue.get(), await queue.get()] == [1, 3]
        for item in (1, 3):
            queue.task_done(item)


async def test_a_killed_producers_items_are_there(far: str) -> None:
    body = """
    queue = Queue(name="far", url=URL)
    for number in itertools.count():
        await queue.put(number)
        say(number)
    """
    with child(body, far) as program:
        said = [int(program.line()) for _ in range(20)]
        said += [int(line) for line in program.kill()]
    async with outlast.Queue[int](name="far", url=far) as queue:
        got = await queue.get_many(len(said))
        assert got == said
        for item in got:
            queue.task_done(item)
