"""Cancelling a `get` or a `put` at any instant neither loses nor duplicates an item."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.dropin.steps import ASYNCIO, until

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tests.dropin.steps import Queues


async def rounds(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def cancelled_after(count: int, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """The task of ``work``, cancelled after so many rounds of the loop, and ended."""
    task = asyncio.ensure_future(work)
    await rounds(count)
    task.cancel()
    await asyncio.wait([task])
    return task


async def drained(queue: asyncio.Queue[Any]) -> list[Any]:
    items = []
    while not queue.empty():
        items.append(queue.get_nowait())
        queue.task_done()
    await asyncio.wait_for(queue.join(), 60)
    return items


@pytest.mark.timeout(360)
async def test_c27_every_item_once_though_gets_time_out_and_are_cancelled(queues: Queues) -> None:
    """Case C27: an item that meets the timeout of the `get` that waits for it."""
    if queues.kind == "file-each":
        pytest.skip("10,000 single commits; memory-each and file-group are the same code")
    queue, chance, total = queues.queue(), Random(27), 10_000
    got: list[int] = []
    cancellations = 0

    async def produce() -> None:
        number = 0
        while number < total:
            some = range(number, min(total, number + chance.choice((1, 1, 5, 100))))
            await asyncio.gather(*map(queue.put, some))
            await rounds(chance.choice((0, 0, 1, 5)))
            number = some.stop

    async def consume() -> None:
        nonlocal cancellations
        while len(got) < total:
            try:
                if chance.random() < 0.2:
                    task = await cancelled_after(chance.randrange(6), queue.get())
                    item = task.result()
                else:
                    item = await asyncio.wait_for(queue.get(), chance.choice((0, 0.0001, 0.001)))
            except (TimeoutError, asyncio.CancelledError):
                cancellations += 1
                await asyncio.sleep(0)
            else:
                got.append(item)
                queue.task_done()

    await asyncio.gather(produce(), consume())
    assert got == list(range(total))
    assert cancellations > 20
    assert queue.qsize() == 0
    await asyncio.wait_for(queue.join(), 60)
    if queues.ours:
        assert (await queue.depth()).live == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("when", [*range(12), 20, 40, 80])
async def test_a_get_cancelled_after_some_rounds(queues: Queues, when: int) -> None:
    queue = queues.queue()

    async def put() -> None:
        await rounds(2)
        await queue.put("a")
        await queue.put("b")

    putting = asyncio.create_task(put())
    get = await cancelled_after(when, queue.get())
    await putting
    taken = [] if get.cancelled() else [get.result()]
    queue.task_done() if taken else None
    assert taken + await drained(queue) == ["a", "b"]


@pytest.mark.parametrize("when", [*range(12), 20, 40, 80])
@pytest.mark.parametrize("maxsize", [0, 3])
async def test_a_put_cancelled_after_some_rounds(queues: Queues, when: int, maxsize: int) -> None:
    queue = queues.queue(maxsize)
    await queue.put("first")
    put = await cancelled_after(when, queue.put("second"))
    expected = ["first"] if put.cancelled() else ["first", "second"]
    assert await drained(queue) == expected


@pytest.mark.parametrize("maxsize", [0, 4])
async def test_puts_that_time_out_and_are_repeated(queues: Queues, maxsize: int) -> None:
    queue, chance, total = queues.queue(maxsize), Random(3), 300
    got: list[int] = []
    timeouts = 0

    async def produce(start: int) -> None:
        nonlocal timeouts
        for number in range(start, total, 3):
            while True:
                try:
                    await asyncio.wait_for(queue.put(number), chance.choice((0, 0.0002, 0.002)))
                    break
                except TimeoutError:
                    timeouts += 1
                    await asyncio.sleep(0)

    async def consume() -> None:
        while len(got) < total:
            got.append(await queue.get())
            queue.task_done()
            await rounds(chance.randrange(3))

    await asyncio.gather(consume(), *(produce(n) for n in range(3)))
    assert sorted(got) == list(range(total))
    assert timeouts > 0
    assert await drained(queue) == []


async def test_a_held_up_cancellation_strikes_at_the_next_wait(ours: Queues) -> None:
    """The put went through; its caller is cancelled where it waits next."""
    if ours.each:
        pytest.skip("nothing is ever on its way")
    queue = ours.queue()
    await queue.put("warm")
    reached: list[str] = []

    async def work() -> None:
        await queue.put("a")
        reached.append("after put")
        await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await rounds(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    assert reached == ["after put"]
    assert await drained(queue) == ["warm", "a"]


async def test_a_timeout_that_came_too_late_is_not_delivered_later(ours: Queues) -> None:
    queue = ours.queue()
    await queue.put("warm")
    for number in range(30):
        try:
            await asyncio.wait_for(queue.put(number), 0)
        except TimeoutError:
            await queue.put(number)
        await rounds(3)
    assert await drained(queue) == ["warm", *range(30)]


async def test_a_cancelled_getter_passes_its_item_on(queues: Queues) -> None:
    queue = queues.queue()
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await until(lambda: len(queue._getters) == 2)  # type: ignore[attr-defined]
    await queue.put("a")
    first.cancel()
    await asyncio.wait([first])
    if first.cancelled():
        assert await asyncio.wait_for(second, 60) == "a"
    else:  # it was served before it was cancelled
        second.cancel()
        await asyncio.wait([second])
        assert first.result() == "a"
    assert queue.empty()


async def test_a_getter_that_is_cancelled_while_being_woken_wakes_the_next(queues: Queues) -> None:
    queue = queues.queue()
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await until(lambda: len(queue._getters) == 2)  # type: ignore[attr-defined]
    queue.put_nowait("a")
    first.cancel()
    if queues.kind in (ASYNCIO, "memory-each", "file-each"):
        await rounds(2)
        assert second.done(), "asyncio takes two rounds of the loop for it"
    assert await asyncio.wait_for(second, 60) == "a"
    assert first.cancelled()


async def test_a_putter_that_is_cancelled_while_being_woken_wakes_the_next(queues: Queues) -> None:
    queue = queues.queue(1)
    queue.put_nowait("a")
    first, second = (asyncio.create_task(queue.put(item)) for item in "bc")
    await until(lambda: len(queue._putters) == 2)  # type: ignore[attr-defined]
    assert queue.get_nowait() == "a"
    first.cancel()
    if queues.kind in (ASYNCIO, "memory-each", "file-each"):
        await rounds(2)
        assert second.done()
    await asyncio.wait_for(second, 60)
    assert first.cancelled()
    assert queue.get_nowait() == "c"


async def test_cancelled_waiters_leave_nothing_behind(queues: Queues) -> None:
    queue = queues.queue(1)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get(), 0.001)
    assert len(queue._getters) == 0  # type: ignore[attr-defined]
    await queue.put(1)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.put(2), 0.01)
    assert len(queue._putters) == 0  # type: ignore[attr-defined]
    assert await drained(queue) == [1]
