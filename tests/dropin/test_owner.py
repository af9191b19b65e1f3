"""Whose item is done when `task_done()` is called, and what is never settled by mistake."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.dropin.steps import until

import outlast

if TYPE_CHECKING:
    from tests.dropin.steps import Queues


@pytest.fixture
async def queue(ours: Queues) -> outlast.Queue[Any]:
    made = ours.queue()
    assert isinstance(made, outlast.Queue)
    await made.put_many(["A", "B", "C"])
    return made


async def left(queue: outlast.Queue[Any]) -> list[Any]:
    """What another object finds once this one is closed: all that was not settled, in order."""
    await queue.close()
    found = []
    while not queue.empty():
        found.append(queue.get_nowait())
        queue.task_done()
    return found


class Consumer:
    """An asyncio task that does what it is told, one step at a time."""

    def __init__(self, queue: outlast.Queue[Any]) -> None:
        self.queue = queue
        self._orders: asyncio.Queue[str] = asyncio.Queue()
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            order = await self._orders.get()
            answer = None
            if order == "get":
                answer = await self.queue.get()
            elif order == "wait_for":
                answer = await asyncio.wait_for(self.queue.get(), 60)
            elif order == "task":
                answer = await asyncio.create_task(self.queue.get())
            elif order == "many":
                answer = await self.queue.get_many(2)
            else:
                self.queue.task_done()
            self._answers.put_nowait(answer)

    async def do(self, order: str) -> Any:
        self._orders.put_nowait(order)
        return await asyncio.wait_for(self._answers.get(), 60)


async def test_the_caller_that_holds_one_means_that_one(queue: outlast.Queue[Any]) -> None:
    one, other = Consumer(queue), Consumer(queue)
    assert await one.do("get") == "A"
    assert await other.do("get") == "B"
    await other.do("done")
    assert await left(queue) == ["A", "C"]


@pytest.mark.parametrize("way", ["wait_for", "task"])
async def test_the_owner_is_who_calls_get_not_who_awaits(
    queue: outlast.Queue[Any], way: str
) -> None:
    """`wait_for` awaits in a task of its own on Python 3.11."""
    one, other = Consumer(queue), Consumer(queue)
    assert await one.do(way) == "A"
    assert await other.do(way) == "B"
    await other.do("done")
    assert await left(queue) == ["A", "C"]


async def test_a_helper_is_only_counted(queue: outlast.Queue[Any]) -> None:
    one, helper = Consumer(queue), Consumer(queue)
    assert await one.do("get") == "A"
    assert await one.do("get") == "B"
    await helper.do("done")
    assert await left(queue) == ["A", "B", "C"]


async def test_as_many_calls_as_items_settle_all(queue: outlast.Queue[Any]) -> None:
    one, helper = Consumer(queue), Consumer(queue)
    assert await one.do("get") == "A"
    assert await one.do("get") == "B"
    await helper.do("done")
    await helper.do("done")
    await until(lambda: not queue._line.settling)
    assert (await queue.depth()).live == 1
    assert await left(queue) == ["C"]


async def test_a_call_from_a_thread_is_not_taken_for_that_of_the_task_that_runs(
    queue: outlast.Queue[Any],
) -> None:
    other = Consumer(queue)
    assert await other.do("get") == "A"
    assert await queue.get() == "B"
    thread = threading.Thread(target=queue.task_done)
    thread.start()
    thread.join()
    assert await left(queue) == ["A", "B", "C"]


async def test_a_helper_and_an_owner(queue: outlast.Queue[Any]) -> None:
    """B's owner settles B, whatever the helper said; the helper's call then covers A."""
    one, other, helper = Consumer(queue), Consumer(queue), Consumer(queue)
    assert await one.do("get") == "A"
    assert await other.do("get") == "B"
    await helper.do("done")
    await other.do("done")
    assert await left(queue) == ["C"]


async def test_of_several_the_caller_holds_none_is_taken_for_done(
    queue: outlast.Queue[Any],
) -> None:
    one = Consumer(queue)
    assert await one.do("many") == ["A", "B"]
    await one.do("done")
    assert await left(queue) == ["A", "B", "C"]


async def test_several_all_done(queue: outlast.Queue[Any]) -> None:
    one = Consumer(queue)
    assert await one.do("many") == ["A", "B"]
    await one.do("done")
    await one.do("done")
    assert await left(queue) == ["C"]


async def test_naming_the_item(queue: outlast.Queue[Any]) -> None:
    for _ in range(3):
        await queue.get()
    queue.task_done("B")
    with pytest.raises(ValueError, match="nobody holds: 'B'"):
        queue.task_done("B")
    with pytest.raises(ValueError, match="nobody holds"):
        queue.task_done("Z")
    assert await left(queue) == ["A", "C"]


async def test_among_equal_items_ones_own_is_meant(ours: Queues) -> None:
    queue = ours.queue()
    assert isinstance(queue, outlast.Queue)
    await queue.put_many([["same"], ["same"], ["same"]])
    mine = await queue.get()
    theirs = await asyncio.create_task(queue.get())
    third = asyncio.create_task(_get(queue))
    await third
    queue.task_done(["same"])
    queue.task_done(["same"])
    assert mine == theirs == ["same"]
    assert len(queue._line.holds) == 1
    assert await left(queue) == [["same"]]


async def _get_all(queue: outlast.Queue[Any]) -> None:
    while not queue.empty():
        await queue.get()


async def _get(queue: outlast.Queue[Any]) -> Any:
    return await queue.get()


async def test_two_objects_dont_mix_their_counts(ours: Queues) -> None:
    one, other = ours.queue(name="x"), ours.queue(name="x")
    assert isinstance(one, outlast.Queue)
    assert isinstance(other, outlast.Queue)
    await one.put_many([1, 2])
    assert one.get_nowait() == 1
    assert other.get_nowait() == 2
    other.task_done()
    with pytest.raises(ValueError, match="nobody holds"):
        other.task_done(1)
    await other.close()
    assert await left(one) == [1]


async def test_a_consumer_that_never_says_done_is_warned(ours: Queues) -> None:
    queue = ours.queue()
    assert isinstance(queue, outlast.Queue)
    await queue.put_many(list(range(150)))
    with pytest.warns(UserWarning, match=r"task_done\(\) was never called.*ack='get'") as warned:
        await _get_all(queue)
    assert [warning.filename for warning in warned] == [__file__], "the line of who gets them"
    for number in range(150):
        queue.task_done(number)


async def test_a_few_forgotten_items_are_told_of_at_the_close(ours: Queues) -> None:
    queue = ours.queue()
    assert isinstance(queue, outlast.Queue)
    await queue.put_many([1, 2])
    await queue.get()
    await queue.get()
    with pytest.warns(UserWarning, match="ack='get'") as warned:
        await queue.close()
    assert [warning.filename for warning in warned] == [__file__]


async def test_a_consumer_that_is_interrupted_at_its_first_item_is_not(ours: Queues) -> None:
    queue = ours.queue()
    assert isinstance(queue, outlast.Queue)
    await queue.put_many(list(range(150)))
    for _ in range(150):
        await asyncio.create_task(_get(queue))
    await queue.close()


async def test_calls_that_mean_no_item_are_warned_of(ours: Queues) -> None:
    queue = ours.queue()
    assert isinstance(queue, outlast.Queue)
    await queue.put_many(list(range(1001)))
    await queue.get_many(5)
    queue.task_done()
    with pytest.warns(UserWarning, match=r"call task_done\(item\)"):
        await _get_all(queue)
    for number in range(1000):
        queue.task_done(number)
    assert not len(queue._line.holds), "the call that was counted covers the last one"


async def test_a_program_that_says_done_is_not_warned(ours: Queues) -> None:
    queue = ours.queue()
    assert isinstance(queue, outlast.Queue)
    await queue.put_many(list(range(300)))
    for _ in range(300):
        await queue.get()
        queue.task_done()
    await queue.close()
