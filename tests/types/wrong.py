"""What a type checker must refuse: this file is read by mypy and never run."""

from __future__ import annotations

from outlast import Call, Handle, Outlast, PriorityQueue, Queue, Task

app = Outlast("memory://", name="x")  # E: Unexpected keyword argument "name"


@app.task
async def send(order: int, *, to: str = "") -> str:
    return ""


@app.task(timeout=30)
def count(path: str) -> int:
    return 0


@app.task(retries=3)  # E: Unexpected keyword argument "retries"
async def misspelt() -> None: ...


@app.task(timeout="30")  # E: No overload variant
async def badly_timed() -> None: ...


async def wrong_arguments() -> None:
    await send.enqueue("1")  # E: incompatible type "str"; expected "int"
    await send.enqueue()  # E: Missing positional argument "order"
    await send.enqueue(1, "a")  # E: Too many positional arguments
    await send.enqueue(1, cc="a")  # E: Unexpected keyword argument "cc"
    await send.using(delay=1).enqueue("1")  # E: incompatible type "str"; expected "int"
    send.call(order="1")  # E: incompatible type "str"; expected "int"
    send.enqueue_sync(1, to=2)  # E: incompatible type "int"; expected "str"
    count(1)  # E: incompatible type "int"; expected "str"
    await send("1")  # E: incompatible type "str"; expected "int"


async def wrong_results() -> None:
    number: int = await (await send.enqueue(1)).result()  # E: expression has type "str"
    text: str = (await count.enqueue("a")).result_sync()  # E: expression has type "int"
    handles: list[Handle[str]] = await app.enqueue_many([count.call("a")])  # E: list-item|arg-type
    narrower: Call[bool] = count.call("a")  # E: expression has type "Call[int]"
    task: Task[[str], str] = send  # E: expression has type
    del number, text, handles, narrower, task


async def wrong_options() -> None:
    send.using(delay="60")  # E: incompatible type "str"
    send.using(key=42)  # E: incompatible type "int"
    send.using(at=5)  # E: incompatible type "int"
    send.using(retry=None)  # E: incompatible type "None"
    send.using(prio=5)  # E: Unexpected keyword argument "prio"
    send.using(5)  # E: Too many positional arguments
    await app.enqueue_many([send.enqueue(1)])  # E: expected "Iterable[Call[
    await app.enqueue_many(send.call(1))  # E: expected "Iterable[Call[
    app.tasks["x"] = send  # E: Unsupported target for indexed assignment
    app.store = None  # E: is read-only


async def not_there() -> None:
    from outlast import Celery  # noqa: F401  # E: has no attribute "Celery"

    await send.delay(1)  # E: has no attribute "delay"


async def wrong_queues() -> None:
    queue = Queue(name="a", type=int)
    await queue.put("x")  # E: incompatible type "str"; expected "int"
    text: str = await queue.get()  # E: expression has type "int"
    Queue()  # E: Missing named argument "name"
    PriorityQueue()  # E: Missing named argument "name"|missing required
    Queue(name="a", ack="never")  # E: expected "Literal['done', 'get']"
    PriorityQueue(name="a", prio=5)  # E: Unexpected keyword argument "prio"
    del text
