"""RabbitMQ: outlast beside raw pika and raw aio-pika, in one run on one private broker.

``python -m bench.rabbit_bench``, with the extra ``rabbitmq`` and ``bench/requirements.txt``.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any

import aio_pika
import pika
from tests.servers import RabbitServer

from outlast import Outlast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MANY = 5000
PRODUCERS = 100
BODY = b"x" * 100


async def measure(work: Callable[[], Awaitable[None]], many: int) -> tuple[float, float]:
    """A second, and microseconds of CPU of this process for each."""
    cpu, wall = time.process_time(), time.perf_counter()
    await work()
    return many / (time.perf_counter() - wall), (time.process_time() - cpu) / many * 1e6


async def raw_enqueue(url: str) -> tuple[float, float]:
    connection = await aio_pika.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    await channel.declare_queue("raw", durable=True, arguments={"x-queue-type": "quorum"})

    async def produce() -> None:
        for _ in range(MANY // PRODUCERS):
            message = aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, "raw", mandatory=True)

    async def all_of_them() -> None:
        await asyncio.gather(*(produce() for _ in range(PRODUCERS)))

    figures = await measure(all_of_them, MANY)
    await connection.close()
    return figures


def raw_drain(url: str) -> tuple[float, float]:
    """The blocking client, one word for a hundred messages."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=500)
    cpu, wall = time.process_time(), time.perf_counter()
    for got, (method, _, _) in enumerate(channel.consume("raw", inactivity_timeout=5), 1):
        if got % 100 == 0 or got == MANY:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if got == MANY:
            break
    figures = MANY / (time.perf_counter() - wall), (time.process_time() - cpu) / MANY * 1e6
    channel.cancel()
    connection.close()
    return figures


async def raw_idle(url: str, rounds: int) -> float:
    connection = await aio_pika.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    queue = await channel.declare_queue("idle", durable=True, arguments={"x-queue-type": "quorum"})
    began, came = 0.0, asyncio.Event()
    waits: list[float] = []

    async def take(message: Any) -> None:
        waits.append(time.perf_counter() - began)
        await message.ack()
        came.set()

    await queue.consume(take)
    for _ in range(rounds):
        came.clear()
        began = time.perf_counter()
        await channel.default_exchange.publish(aio_pika.Message(BODY, delivery_mode=2), "idle")
        await came.wait()
    await connection.close()
    return statistics.median(waits) * 1e3


async def ours(url: str) -> dict[str, Any]:
    app = Outlast(url)
    ended, came = 0, asyncio.Event()
    waits: list[float] = []

    @app.task(name="nothing")
    async def nothing(text: str) -> None:
        nonlocal ended
        ended += 1
        if ended == MANY + 1:
            came.set()

    @app.task(name="clocked")
    async def clocked(began: float) -> None:
        waits.append(time.perf_counter() - began)
        came.set()

    found: dict[str, Any] = {}
    async with app:
        await nothing.enqueue("the queue is made")

        async def produce() -> None:
            for _ in range(MANY // PRODUCERS):
                await nothing.enqueue("x" * 100)

        async def all_of_them() -> None:
            await asyncio.gather(*(produce() for _ in range(PRODUCERS)))

        found["enqueue"] = await measure(all_of_them, MANY)

        async def drain() -> None:
            async with app.worker():
                await came.wait()

        found["drain"] = await measure(drain, MANY)
        await clocked.enqueue(time.perf_counter())
        async with app.worker():
            for _ in range(200):
                await came.wait()
                came.clear()
                await clocked.enqueue(time.perf_counter())
            await came.wait()
        found["idle"] = statistics.median(waits[2:]) * 1e3
    return found


def main() -> None:
    server = RabbitServer()
    server.start()
    try:
        url = server.url()
        mine = asyncio.run(ours(url))
        raw = asyncio.run(raw_enqueue(url)), raw_drain(url), asyncio.run(raw_idle(url, 200))
    finally:
        server.remove()
    for name, ours_, theirs, what in (
        ("enqueue", mine["enqueue"], raw[0], f"aio-pika, {PRODUCERS} producers, confirmed"),
        ("drain", mine["drain"], raw[1], "pika, blocking, multiple acks"),
    ):
        print(
            f"{name}: {ours_[0]:,.0f}/s, {ours_[1]:.0f} us of CPU each; {what}:"
            f" {theirs[0]:,.0f}/s, {theirs[1]:.0f} us; ratio {ours_[0] / theirs[0]:.2f}"
        )
    print(f"idle p50: {mine['idle']:.2f} ms; aio-pika: {raw[2]:.2f} ms")


if __name__ == "__main__":
    main()
