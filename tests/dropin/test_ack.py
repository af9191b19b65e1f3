"""`ack="get"`: for consumers that never call `task_done()`. An item is handed out once at most."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.dropin.children import child
from tests.dropin.steps import Queues, until

import outlast

if TYPE_CHECKING:
    from pathlib import Path


def make(ours: Queues, **options: Any) -> outlast.Queue[Any]:
    queue = ours.queue(ack="get", **options)
    assert isinstance(queue, outlast.Queue)
    return queue


async def test_an_item_is_out_of_the_store_when_get_returns(ours: Queues) -> None:
    queue = make(ours)
    await queue.put_many([1, 2, 3])
    assert await queue.get() == 1
    assert (await queue.depth()).live == 2
    assert queue.get_nowait() == 2
    assert (await queue.depth()).live == 1


async def test_join_needs_no_task_done(ours: Queues) -> None:
    queue = make(ours)
    await queue.put_many([1, 2])
    join = asyncio.create_task(queue.join())
    await queue.get()
    await asyncio.sleep(0)
    assert not join.done()
    await queue.get()
    await asyncio.wait_for(join, 60)
    with pytest.raises(ValueError, match="too many"):
        queue.task_done()


async def test_nothing_is_lost_by_cancelled_gets(ours: Queues) -> None:
    queue = make(ours)
    await queue.put_many(list(range(60)))
    got: list[int] = []
    rounds = 0
    while len(got) < 60:
        get = asyncio.create_task(queue.get())
        for _ in range(rounds % 30):
            await asyncio.sleep(0)
        rounds += 1
        get.cancel()
        await asyncio.wait([get])
        if not get.cancelled():
            got.append(get.result())
        elif rounds % 5 == 0:
            got.append(await queue.get())
    assert got == list(range(60))
    assert queue.empty()


async def test_what_nobody_came_for_goes_back_at_the_close(ours: Queues) -> None:
    if ours.each:
        pytest.skip("a get that finds an item ends at once")
    queue = make(ours)
    await queue.put_many(["a", "b"])
    gets = [asyncio.create_task(queue.get()) for _ in range(2)]
    await until(lambda: len(queue._line.supply.window) == 2)
    for get in gets:
        get.cancel()
    await asyncio.wait(gets)
    assert (await queue.depth()).live == 0
    assert queue.qsize() == 2
    await queue.close()
    assert {await queue.get(), await queue.get()} == {"a", "b"}


def test_what_nobody_came_for_goes_back_when_the_object_goes(tmp_path: Path) -> None:
    queues = Queues("memory-group", tmp_path)
    queue = make(queues)

    async def leave() -> None:
        await queue.put("a")
        get = asyncio.create_task(queue.get())
        await until(lambda: len(queue._line.supply.window) == 1)
        get.cancel()

    asyncio.run(leave())
    queue._line.close_now()
    assert make(queues, name=queue.name).get_nowait() == "a"


async def test_in_a_block_and_in_a_loop(ours: Queues) -> None:
    queue = make(ours)
    await queue.put_many([1, 2, 3])
    with pytest.raises(KeyError):
        async with queue.item() as item:
            raise KeyError(item)
    queue.shutdown()
    assert [item async for item in queue] == [2, 3]


async def test_no_warning(ours: Queues) -> None:
    queue = make(ours)
    await queue.put_many(list(range(150)))
    for _ in range(150):
        queue.get_nowait()
    await queue.close()


def test_after_a_kill_it_does_not_come_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queues.db?durability=process"
    with child("""
        queue = Queue(name="q", url=URL, ack="get")
        await queue.put_many(["a", "b"])
        say(await queue.get())
        await forever()
    """, url) as program:  # fmt: skip
        program.expect("a")
        program.kill()
    queue: outlast.Queue[str] = outlast.Queue(name="q", url=url, ack="get")
    assert queue.get_nowait() == "b"
    assert queue.empty()
