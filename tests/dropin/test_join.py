"""`task_done` and `join`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.dropin.steps import until

if TYPE_CHECKING:
    from tests.dropin.steps import Queues


async def test_join_waits_for_the_last(queues: Queues) -> None:
    queue = queues.queue()
    for number in range(3):
        await queue.put(number)
    join = asyncio.create_task(queue.join())
    for _ in range(3):
        await queue.get()
    await asyncio.sleep(0)
    assert not join.done()
    queue.task_done()
    queue.task_done()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not join.done()
    queue.task_done()
    await asyncio.wait_for(join, 60)


async def test_join_on_an_empty_queue_returns(queues: Queues) -> None:
    queue = queues.queue()
    await asyncio.wait_for(queue.join(), 60)
    await queue.put(1)
    await queue.get()
    queue.task_done()
    await asyncio.wait_for(queue.join(), 60)
    await asyncio.wait_for(queue.join(), 60)


async def test_several_join(queues: Queues) -> None:
    queue = queues.queue()
    await queue.put(1)
    joins = [asyncio.create_task(queue.join()) for _ in range(3)]
    await queue.get()
    done, _ = await asyncio.wait(joins, timeout=0.05)
    assert not done, "an item is out, and nobody has said what became of it"
    queue.task_done()
    await asyncio.wait_for(asyncio.gather(*joins), 60)


async def test_a_cancelled_join_disturbs_nobody(queues: Queues) -> None:
    queue = queues.queue()
    await queue.put(1)
    one, two = (asyncio.create_task(queue.join()) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    await queue.get()
    queue.task_done()
    await asyncio.wait_for(two, 60)


async def test_too_many_task_dones(queues: Queues) -> None:
    queue = queues.queue()
    with pytest.raises(ValueError, match="too many times"):
        queue.task_done()
    await queue.put(1)
    await queue.get()
    queue.task_done()
    with pytest.raises(ValueError, match="too many times"):
        queue.task_done()


async def test_put_during_join(queues: Queues) -> None:
    queue = queues.queue()
    await queue.put(1)
    join = asyncio.create_task(queue.join())
    await queue.get()
    await queue.put(2)
    queue.task_done()
    await queue.get()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not join.done()
    queue.task_done()
    await asyncio.wait_for(join, 60)


async def test_join_may_be_called_before_the_consumers_start(queues: Queues) -> None:
    queue = queues.queue()
    for number in range(20):
        await queue.put(number)

    async def consumer() -> None:
        while True:
            await queue.get()
            await asyncio.sleep(0)
            queue.task_done()

    join = asyncio.create_task(queue.join())
    consumers = [asyncio.create_task(consumer()) for _ in range(3)]
    await asyncio.wait_for(join, 60)
    assert queue.empty()
    for task in consumers:
        task.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)


async def test_what_join_has_waited_for_is_out_of_the_store(ours: Queues) -> None:
    queue = ours.queue()
    for number in range(10):
        await queue.put(number)
    for _ in range(10):
        await queue.get()
        queue.task_done()
    await asyncio.wait_for(queue.join(), 60)
    assert (await queue.depth()).live == 0  # type: ignore[attr-defined]


async def test_join_waits_for_other_objects_of_that_name(ours: Queues) -> None:
    """The producer joins, the consumer is elsewhere."""
    producer, consumer = ours.queue(name="shared"), ours.queue(name="shared")
    for number in range(3):
        await producer.put(number)
    join = asyncio.create_task(producer.join())
    got = [await consumer.get() for _ in range(3)]
    assert got == [0, 1, 2]
    for item in got[:2]:
        consumer.task_done(item)  # type: ignore[call-arg]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not join.done()
    consumer.task_done(2)  # type: ignore[call-arg]
    await asyncio.wait_for(join, 60)
    await until(lambda: producer._unfinished_tasks == 0)  # type: ignore[attr-defined]
