"""The order in which items come out, and in which those who wait are served."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.dropin.steps import until

if TYPE_CHECKING:
    from tests.dropin.steps import Queues


async def fill(queue: asyncio.Queue[Any], items: list[Any]) -> None:
    for item in items:
        await queue.put(item)


async def drain(queue: asyncio.Queue[Any]) -> list[Any]:
    items = []
    while not queue.empty():
        items.append(queue.get_nowait())
        queue.task_done()
    return items


async def test_first_in_first_out(queues: Queues) -> None:
    queue = queues.queue()
    await fill(queue, list(range(50)))
    assert [await queue.get() for _ in range(25)] == list(range(25))
    await fill(queue, [50, 51])
    assert [await queue.get() for _ in range(27)] == list(range(25, 52))


async def test_last_in_first_out(queues: Queues) -> None:
    queue = queues.lifo()
    await fill(queue, [1, 2, 3, 4])
    assert [await queue.get(), await queue.get()] == [4, 3]
    await fill(queue, [5])
    assert [await queue.get(), await queue.get(), await queue.get()] == [5, 2, 1]


async def test_a_stack_with_many_below_the_top(queues: Queues) -> None:
    queue = queues.lifo()
    await fill(queue, list(range(40)))
    assert [queue.get_nowait() for _ in range(7)] == list(range(39, 32, -1))
    await fill(queue, list(range(100, 120)))
    expected = [*range(119, 99, -1), *range(32, -1, -1)]
    assert [await queue.get() for _ in expected] == expected


async def test_lowest_first(queues: Queues) -> None:
    queue = queues.priority()
    await fill(queue, [5, 1, 4, 1.5, -2, 3])
    assert [await queue.get() for _ in range(6)] == [-2, 1, 1.5, 3, 4, 5]


async def test_a_late_item_overtakes_what_waits_in_memory(queues: Queues) -> None:
    queue = queues.priority()
    await fill(queue, [10, 20, 30, 40, 50, 60, 70, 80])
    assert [queue.get_nowait() for _ in range(4)] == [10, 20, 30, 40]
    await fill(queue, [55, 5])
    assert [await queue.get() for _ in range(6)] == [5, 50, 55, 60, 70, 80]


async def test_the_textbook_entry_of_number_count_and_whatever(queues: Queues) -> None:
    queue = queues.priority()
    entries: list[tuple[Any, ...]] = [(2, 0, {"x": 1}), (1, 1, None), (2, 2, {}), (0, 3, [])]
    await fill(queue, entries)
    assert await drain(queue) == [(0, 3, []), (1, 1, None), (2, 0, {"x": 1}), (2, 2, {})]


@dataclass(order=True)
class Ticket:
    urgency: int
    note: Any = field(compare=False, default=None)


EARLY = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("items", "type_"),
    [
        ([3.5, 1, -7, 2**70, 0.1], Any),
        (["b", "a", "Z", "ä", "aa"], str),
        ([b"\x00\x01", b"\x00", b"", b"\xff"], bytes),
        ([EARLY + timedelta(days=n) for n in (3, -1, 2)], datetime),
        ([(1, "b"), (1, "a"), (0, "z"), (1,)], Any),
        ([Ticket(2, {"a": 1}), Ticket(1), Ticket(3)], Ticket),
    ],
    ids=["numbers", "text", "bytes", "datetimes", "tuples", "dataclasses"],
)
async def test_order_of_all_kinds_of_items(queues: Queues, items: list[Any], type_: Any) -> None:
    queue = queues.priority(type=type_)
    await fill(queue, items)
    assert await drain(queue) == sorted(items)


async def test_ties_in_insertion_order(ours: Queues) -> None:
    """asyncio's heap doesn't promise it."""
    queue = ours.priority(key=lambda item: item["p"])
    items = [{"p": n % 3, "n": n} for n in range(30)]
    await fill(queue, items)
    assert await drain(queue) == sorted(items, key=lambda item: item["p"])


@pytest.mark.parametrize("item", [{"a": 1}, None, ({}, 1)], ids=repr)
async def test_what_cant_be_ordered_raises_at_put(ours: Queues, item: Any) -> None:
    """With asyncio it does from the second such item on."""
    queue = ours.priority()
    with pytest.raises(TypeError):
        await queue.put(item)
    with pytest.raises(TypeError):
        queue.put_nowait(item)
    assert queue.empty()


async def test_items_that_cant_be_compared_raise_at_put(queues: Queues) -> None:
    queue = queues.priority()
    await queue.put(1)
    with pytest.raises(TypeError):
        queue.put_nowait("a")
    if queues.ours:  # asyncio's keeps the item that broke its heap
        assert await drain(queue) == [1]
        await queue.put("a")


async def test_getters_are_served_in_the_order_in_which_they_came(queues: Queues) -> None:
    queue = queues.queue()
    served: list[tuple[int, int]] = []

    async def consumer(number: int) -> None:
        served.append((number, await queue.get()))

    tasks = []
    for number in range(5):
        tasks.append(asyncio.create_task(consumer(number)))
        await until(lambda expected=number + 1: len(queue._getters) == expected)  # type: ignore[misc,attr-defined]
    await fill(queue, list(range(5)))
    await asyncio.gather(*tasks)
    assert served == [(n, n) for n in range(5)]


async def test_putters_get_room_in_the_order_in_which_they_came(queues: Queues) -> None:
    queue = queues.queue(1)
    await queue.put("first")
    tasks = []
    for number in range(5):
        tasks.append(asyncio.create_task(queue.put(number)))
        await until(lambda expected=number + 1: len(queue._putters) == expected)  # type: ignore[misc,attr-defined]
    assert await queue.get() == "first"
    assert [await queue.get() for _ in range(5)] == list(range(5))
    await asyncio.gather(*tasks)


async def test_a_waiting_getter_and_a_burst(queues: Queues) -> None:
    queue = queues.queue()
    first = asyncio.create_task(queue.get())
    await until(lambda: len(queue._getters) == 1)  # type: ignore[attr-defined]
    await fill(queue, [1, 2, 3])
    assert await first == 1
    assert [queue.get_nowait(), queue.get_nowait()] == [2, 3]


async def test_many_consumers_get_everything_once_and_in_order(queues: Queues) -> None:
    queue = queues.queue()
    got: list[int] = []

    async def consumer() -> None:
        while True:
            got.append(await queue.get())
            queue.task_done()

    consumers = [asyncio.create_task(consumer()) for _ in range(7)]
    await asyncio.gather(*(queue.put(n) for n in range(100)))
    await queue.join()
    for task in consumers:
        task.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    assert sorted(got) == list(range(100))
    assert queue.empty()
