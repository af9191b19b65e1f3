"""What a type checker must conclude: this file is read by mypy and never run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, assert_type, reveal_type

from outlast import (
    AsyncTask,
    Call,
    Current,
    Durability,
    Failure,
    Handle,
    Job,
    JobFailed,
    LifoQueue,
    Outlast,
    PriorityQueue,
    Queue,
    RetryPolicy,
    Status,
    SyncTask,
    Task,
    current,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

app = Outlast("memory://", durability=Durability.MEMORY)


@dataclass
class Receipt:
    order: int


@app.task
async def send(order: int, *, to: str = "") -> Receipt:
    return Receipt(order)


@app.task
def count(path: str) -> dict[str, int]:
    return {}


@app.task(retry=RetryPolicy(attempts=5), timeout=30)
async def optioned(order: int) -> str:
    return ""


@app.task(processes=True, retry=3, keep=timedelta(days=7), lane=lambda path: path)
def crunch(path: str) -> list[int]:
    return []


@app.task(timeout=timedelta(minutes=1))
async def nothing() -> None: ...


async def tasks_keep_their_parameters() -> None:
    reveal_type(optioned)  # N: outlast.task.AsyncTask[[order: int], str]
    reveal_type(send)  # N: outlast.task.AsyncTask[[order: int, *, to: str =], Receipt]
    later = send.using(delay=1)
    reveal_type(later)  # N: outlast.task.AsyncTask[[order: int, *, to: str =], Receipt]
    reveal_type(count)  # N: outlast.task.SyncTask[[path: str], dict[str, int]]
    reveal_type(crunch.using(key="k"))  # N: outlast.task.SyncTask[[path: str], list[int]]


async def calling_a_task_is_calling_the_function() -> None:
    not_awaited: Coroutine[Any, Any, Receipt] = send(1, to="a")
    del not_awaited
    assert_type(await send(1), Receipt)
    assert_type(count("a"), dict[str, int])
    assert_type(crunch("a"), list[int])
    assert_type(await optioned(1), str)


async def handles_know_the_result() -> None:
    handle = await send.enqueue(1, to="a")
    assert_type(handle, Handle[Receipt])
    assert_type(await handle.result(), Receipt)
    assert_type(handle.result_sync(timeout=timedelta(seconds=5)), Receipt)
    assert_type(handle.id, str)
    assert_type(handle.created, bool)
    assert_type(await handle.status(), Status)
    assert_type(await handle.job(), Job)
    assert_type(await (await count.enqueue("a")).result(timeout=1), dict[str, int])
    assert_type(await (await nothing.enqueue()).result(), None)
    assert_type(count.enqueue_sync("a"), Handle[dict[str, int]])
    assert_type(await crunch.using(delay=1).enqueue("a"), Handle[list[int]])
    assert_type(app.handle("id"), Handle[Any])


async def batches() -> None:
    calls = [send.call(n, to="a") for n in range(3)]
    assert_type(calls, list[Call[Receipt]])
    assert_type(await app.enqueue_many(calls), list[Handle[Receipt]])
    assert_type(app.enqueue_many_sync(count.call("a") for _ in "ab"), list[Handle[dict[str, int]]])
    mixed: list[Call[object]] = [send.call(1), count.call("a")]
    assert_type(await app.enqueue_many(mixed), list[Handle[object]])


async def every_option_of_a_call() -> None:
    send.using(
        delay=timedelta(seconds=1),
        expires=datetime.now(UTC),
        priority=1,
        queue="mail",
        key="k",
        lane=lambda order, to="": to,
        timeout=1.5,
        retry=3,
        keep=None,
        headers={"a": "b"},
    )
    send.using(at=datetime.now(UTC), delay=None, expires=5, key=None, lane=None, timeout=None)


async def results_are_covariant(handle: Handle[bool], call: Call[bool]) -> None:
    wider: Handle[int] = handle
    wider_call: Call[int] = call
    assert_type(await wider.result(), int)
    assert_type(await app.enqueue_many([wider_call]), list[Handle[int]])


def any_task(task: Task[..., int]) -> str:
    return task.name


async def the_app() -> None:
    async with app as opened:
        assert_type(opened, Outlast)
        assert_type(app.store.durability, Durability)
    async with app.worker(queues=["a"], concurrency=2) as worker:
        worker.stop()
    async with app.lifespan(object()) as nothing_at_all:
        assert_type(nothing_at_all, None)
    assert_type(app.tasks["send"], Task[..., Any])


async def inside_a_task() -> None:
    assert_type(current(), Current)
    assert_type(current().attempt, int)


def failures(error: JobFailed) -> None:
    assert_type(error.failure, Failure | None)


def subclasses() -> None:
    assert_type(any_task(count_all), str)
    task: AsyncTask[..., Receipt] = send
    other: SyncTask[[str], dict[str, int]] = count
    del task, other


@app.task
def count_all() -> int:
    return 0


async def queues() -> None:
    typed = Queue(name="a", type=Receipt)
    assert_type(typed, Queue[Receipt])
    assert_type(await typed.get(), Receipt)
    assert_type(typed.get_nowait(), Receipt)
    assert_type(await typed.get_many(3), list[Receipt])
    await typed.put(Receipt(1))
    typed.task_done(Receipt(1))
    async for item in typed:
        assert_type(item, Receipt)
    async with typed.item() as one:
        assert_type(one, Receipt)
    async with typed as same:
        assert_type(same, Queue[Receipt])
    pairs = Queue(name="a", type=tuple[int, str])
    assert_type(await pairs.get(), tuple[int, str])
    plain: Queue[str] = Queue(name="a", maxsize=3, ack="get")
    assert_type(await plain.get(), str)
    either: Queue[int | None] = Queue(name="a", type=int | None)
    assert_type(await either.get(), int | None)
    ranked = PriorityQueue(5, name="a", type=Receipt, key=lambda receipt: receipt.order)
    assert_type(await ranked.get(), Receipt)
    theirs: asyncio.Queue[Receipt] = Queue(name="a", type=Receipt)
    stack: asyncio.LifoQueue[int] = LifoQueue(name="a")
    lowest: asyncio.PriorityQueue[int] = PriorityQueue(name="a")
    del theirs, stack, lowest
