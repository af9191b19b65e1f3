"""`shutdown`, which asyncio's queues have from Python 3.13 on, and ours everywhere."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from tests.dropin.steps import shutdown_on, until

import outlast
from outlast import QueueShutDown

if TYPE_CHECKING:
    from tests.dropin.steps import Queues


@pytest.fixture(autouse=True)
def _has_shutdown(queues: Queues) -> None:
    if not queues.ours and not hasattr(asyncio.Queue, "shutdown"):
        pytest.skip("this Python's asyncio.Queue has no shutdown")


async def test_nothing_comes_in_and_the_rest_comes_out(queues: Queues) -> None:
    queue = queues.queue()
    await queue.put("a")
    await queue.put("b")
    shutdown_on(queue)
    with pytest.raises(QueueShutDown):
        await queue.put("c")
    with pytest.raises(QueueShutDown):
        queue.put_nowait("c")
    assert queue.qsize() == 2
    assert await queue.get() == "a"
    assert queue.get_nowait() == "b"
    with pytest.raises(QueueShutDown):
        await queue.get()
    with pytest.raises(QueueShutDown):
        queue.get_nowait()
    queue.task_done()
    queue.task_done()
    await asyncio.wait_for(queue.join(), 60)


async def test_immediate_shows_nothing_more(queues: Queues) -> None:
    queue = queues.queue()
    await queue.put("a")
    await queue.put("b")
    assert await queue.get() == "a"
    shutdown_on(queue, immediate=True)
    assert queue.empty()
    assert queue.qsize() == 0
    with pytest.raises(QueueShutDown):
        await queue.get()
    join = asyncio.create_task(queue.join())
    await asyncio.sleep(0)
    assert not join.done()
    queue.task_done()
    with pytest.raises(ValueError, match="too many"):
        queue.task_done()
    await asyncio.wait_for(join, 60)


async def test_those_who_wait_are_told(queues: Queues) -> None:
    queue = queues.queue(1)
    getters = [asyncio.create_task(queue.get()) for _ in range(3)]
    await until(lambda: len(queue._getters) == 3)  # type: ignore[attr-defined]
    shutdown_on(queue)
    for getter in getters:
        with pytest.raises(QueueShutDown):
            await asyncio.wait_for(getter, 60)


@pytest.mark.parametrize("immediate", [False, True])
async def test_putters_are_told(queues: Queues, immediate: bool) -> None:
    queue = queues.queue(1)
    await queue.put(1)
    putters = [asyncio.create_task(queue.put(n)) for n in range(3)]
    await until(lambda: len(queue._putters) == 3)  # type: ignore[attr-defined]
    shutdown_on(queue, immediate=immediate)
    for putter in putters:
        with pytest.raises(QueueShutDown):
            await asyncio.wait_for(putter, 60)
    assert queue.qsize() == (0 if immediate else 1)


async def test_immediate_lets_join_go(queues: Queues) -> None:
    queue = queues.queue()
    await queue.put(1)
    join = asyncio.create_task(queue.join())
    done, _ = await asyncio.wait([join], timeout=0.05)
    assert not done
    shutdown_on(queue, immediate=True)
    await asyncio.wait_for(join, 60)


async def test_twice_and_harder(queues: Queues) -> None:
    queue = queues.queue()
    await queue.put(1)
    shutdown_on(queue)
    shutdown_on(queue)
    assert queue.qsize() == 1
    shutdown_on(queue, immediate=True)
    assert queue.qsize() == 0
    shutdown_on(queue, immediate=True)
    assert "shutdown" in repr(queue)


async def test_consumers_end_by_it(queues: Queues) -> None:
    queue = queues.queue()
    got = []

    async def consumer() -> None:
        while True:
            try:
                got.append(await queue.get())
            except QueueShutDown:
                return
            queue.task_done()

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(consumer())
        for number in range(20):
            await queue.put(number)
        shutdown_on(queue)
    assert sorted(got) == list(range(20))


@pytest.mark.parametrize("maxsize", [0, 3])
@pytest.mark.parametrize("immediate", [False, True])
@pytest.mark.parametrize("rounds", [0, 1, 2, 5, 20])
async def test_in_the_middle_of_puts_and_gets(
    queues: Queues, rounds: int, immediate: bool, maxsize: int
) -> None:
    """Nobody hangs, and what was put came out, or is there after the shutdown at once."""
    queue = queues.queue(maxsize)
    put = got = 0

    async def produce() -> None:
        nonlocal put
        with contextlib.suppress(QueueShutDown):
            while True:
                await queue.put(put)
                put += 1
                await asyncio.sleep(0)

    async def consume() -> None:
        nonlocal got
        with contextlib.suppress(QueueShutDown):
            while True:
                await queue.get()
                got += 1
                await asyncio.sleep(0)
                with contextlib.suppress(ValueError):  # counted away by an immediate shutdown
                    queue.task_done()

    tasks = [asyncio.create_task(work()) for work in [produce] * 5 + [consume] * 5]
    await until(lambda: got > 5, 60)
    for _ in range(rounds):
        await asyncio.sleep(0)
    shutdown_on(queue, immediate=immediate)
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks)
        await queue.join()
    assert queue.empty()
    if not immediate:
        assert got == put
    elif isinstance(queue, outlast.Queue):
        await until(lambda: not queue._line.settling, 60)
        assert got + (await queue.depth()).live == put


async def test_it_belongs_to_the_object_and_the_items_stay(queues: Queues) -> None:
    if not queues.ours:
        pytest.skip("asyncio's items are gone")
    one, other = queues.queue(name="same"), queues.queue(name="same")
    for number in range(5):
        await one.put(number)
    assert await one.get() == 0
    shutdown_on(one, immediate=True)
    assert one.empty()
    assert [await other.get() for _ in range(4)] == [1, 2, 3, 4]
    await other.put(5)
    one.task_done()
