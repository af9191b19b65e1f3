"""Empty, full, `maxsize`, and what is raised when: as asyncio's."""

from __future__ import annotations

import asyncio
import math
from types import GenericAlias
from typing import TYPE_CHECKING, Any

import pytest
from tests.dropin.steps import until

import outlast

if TYPE_CHECKING:
    from tests.dropin.steps import Queues


def test_ours_are_asyncios() -> None:
    """Code that asks for an `asyncio.Queue` takes ours, at run time as for a type checker."""
    assert issubclass(outlast.Queue, asyncio.Queue)
    assert issubclass(outlast.PriorityQueue, asyncio.PriorityQueue)
    assert issubclass(outlast.LifoQueue, asyncio.LifoQueue)
    assert outlast.QueueEmpty is asyncio.QueueEmpty
    assert outlast.QueueFull is asyncio.QueueFull


def test_a_generic_alias(queues: Queues) -> None:
    kind: Any = outlast.Queue if queues.ours else asyncio.Queue
    assert isinstance(kind[int], GenericAlias)
    assert kind[int].__args__ == (int,)


def test_all_methods_are_there() -> None:
    public = {name for name in dir(asyncio.Queue) if not name.startswith("_")}
    assert {*public, "shutdown", "maxsize"} <= set(dir(outlast.Queue))


def test_without_a_loop(queues: Queues) -> None:
    queue = queues.queue(2)
    assert queue.empty()
    assert queue.maxsize == 2
    queue.put_nowait("a")
    queue.put_nowait("b")
    assert queue.full()
    assert queue.qsize() == 2
    with pytest.raises(asyncio.QueueFull):
        queue.put_nowait("c")
    assert queue.get_nowait() == "a"
    queue.task_done()
    assert not queue.full()
    assert queue.get_nowait() == "b"
    with pytest.raises(asyncio.QueueEmpty):
        queue.get_nowait()
    queue.task_done()
    with pytest.raises(ValueError, match="task_done"):
        queue.task_done()


async def test_a_slot_is_free_at_get_not_at_task_done(queues: Queues) -> None:
    queue = queues.queue(1)
    await queue.put("a")
    assert await queue.get() == "a"
    await asyncio.wait_for(queue.put("b"), 60)
    assert queue.full()
    assert await queue.get() == "b"


async def test_a_consumer_may_put_into_the_queue_that_it_takes_from(queues: Queues) -> None:
    queue = queues.queue(1)
    await queue.put(3)
    seen = []
    while True:
        number = await queue.get()
        seen.append(number)
        if number:
            await queue.put(number - 1)
        queue.task_done()
        if not number:
            break
    assert seen == [3, 2, 1, 0]
    await asyncio.wait_for(queue.join(), 60)


@pytest.mark.parametrize("size", [0, -1, math.inf, math.nan])
async def test_no_limit(queues: Queues, size: int) -> None:
    queue = queues.queue(size)
    for number in range(20):
        queue.put_nowait(number)
    await queue.put(20)
    assert not queue.full()
    assert queue.qsize() == 21


async def test_a_limit_that_is_no_whole_number(queues: Queues) -> None:
    queue = queues.queue(2.5)  # type: ignore[arg-type]
    for number in range(3):
        assert not queue.full()
        await queue.put(number)
    assert queue.full()
    with pytest.raises(asyncio.QueueFull):
        queue.put_nowait(3)


async def test_put_waits_for_room(queues: Queues) -> None:
    queue = queues.queue(2)
    await queue.put(1)
    await queue.put(2)
    third = asyncio.create_task(queue.put(3))
    await until(lambda: len(queue._putters) == 1)  # type: ignore[attr-defined]
    assert not third.done()
    assert queue.get_nowait() == 1
    await asyncio.wait_for(third, 60)
    assert [queue.get_nowait(), queue.get_nowait()] == [2, 3]


async def test_the_limit_holds_under_a_crowd(queues: Queues) -> None:
    queue = queues.queue(3)
    sizes = []

    async def producer(number: int) -> None:
        for n in range(8):
            await queue.put((number, n))

    async def consumer() -> None:
        for _ in range(32):
            sizes.append(queue.qsize())
            await queue.get()
            queue.task_done()

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(producer(number))
        group.create_task(consumer())
    assert max(sizes) <= 3
    assert queue.empty()
    await queue.join()


async def test_the_store_has_the_last_word_on_room(
    ours: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have put in the moment since we looked."""
    queue: Any = ours.queue(2)
    await queue.put("a")
    await queue.put("b")
    with monkeypatch.context() as patch:
        patch.setattr(queue._puts, "full", lambda: False)
        with pytest.raises(asyncio.QueueFull):
            queue.put_nowait("c")
        if not ours.each:
            patch.setattr(queue._puts, "_crowded", lambda: False)
            put = asyncio.create_task(queue.put("c"))
            await until(lambda: queue._line.sending == 0)
            assert queue.qsize() == 2
            put.cancel()
            await asyncio.wait([put])
    assert queue.qsize() == 2


async def test_while_not_empty_get_nowait(queues: Queues) -> None:
    """The idiom relies on both saying the same."""
    queue = queues.queue()
    for number in range(30):
        await queue.put(number)
    assert await queue.get() == 0
    rest = []
    while not queue.empty():
        rest.append(queue.get_nowait())
    assert rest == list(range(1, 30))


async def test_a_queue_is_bound_to_the_loop_it_waited_in(queues: Queues) -> None:
    queue = queues.queue()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.01)

    def elsewhere() -> None:
        asyncio.run(asyncio.wait_for(queue.get(), 1))

    with pytest.raises(RuntimeError, match="bound to a different event loop"):
        await asyncio.to_thread(elsewhere)


def test_a_queue_that_never_waited_may_be_used_in_several_loops(queues: Queues) -> None:
    queue = queues.queue()
    asyncio.run(queue.put("a"))
    asyncio.run(queue.put("b"))
    assert queue.get_nowait() == "a"
    queue.task_done()
    queue.put_nowait("c")
    assert queue.qsize() == 2


async def test_repr_shows_what_is_known(queues: Queues) -> None:
    queue = queues.queue(3)
    name = "Queue"
    assert repr(queue) == f"<{name} at {id(queue):#x} maxsize=3>"
    await queue.put("x")
    assert str(queue) == f"<{name} maxsize=3 _queue=['x'] tasks=1>"
    await queue.get()
    assert str(queue) == f"<{name} maxsize=3 tasks=1>"
    queue.task_done()
    await queue.join()
    assert str(queue) == f"<{name} maxsize=3>"
