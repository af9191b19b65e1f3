"""RabbitMQ with records in PostgreSQL beside those records alone: what a bell costs, and saves.

    python -m bench.records_bench

Four runs on private servers, each kind twice: a producer process with 100 callers, then 8 workers
that have nothing to do but one job after the other. The wall clock wants a quiet machine; claims
and CPU do not.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from tests.servers import PostgresServer, RabbitServer

from outlast import Outlast

if TYPE_CHECKING:
    from outlast.task import AsyncTask

CALLERS, CALLS = 100, 50
WORKERS, JOBS = 8, 60


def make(broker: str, records: str) -> tuple[Outlast, AsyncTask[[float], float]]:
    namespace = f"bench{os.getpid()}"
    app = (
        Outlast(broker, records=records, namespace=namespace)
        if broker
        else Outlast(records, namespace=namespace)
    )

    @app.task(name="latency")
    async def latency(began: float) -> float:
        return time.perf_counter() - began

    return app, latency


async def enqueue(task: AsyncTask[[float], float]) -> None:
    async def caller() -> None:
        for _ in range(CALLS):
            await task.enqueue(0.0)

    await task.enqueue(0.0)
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    many = CALLERS * CALLS
    print(
        f"  enqueue: {many / (time.perf_counter() - began):.0f} a second,"
        f" {1e6 * (time.process_time() - cpu) / many:.0f} µs of CPU each"
    )


async def measure(broker: str, records: str) -> None:
    claims = 0

    def counted(store: Any) -> None:
        claim = store.claim

        async def count(*args: Any, **options: Any) -> Any:
            nonlocal claims
            claims += 1
            return await claim(*args, **options)

        store.claim = count

    async with AsyncExitStack() as stack:
        app, task = make(broker, records)
        await stack.enter_async_context(app)
        await enqueue(task)
        for other, _ in (make(broker, records) for _ in range(WORKERS)):
            await stack.enter_async_context(other.worker(concurrency=4))
            counted(getattr(other.store, "records", other.store))
        last = await task.enqueue(0.0)
        await last.result(timeout=120)
        await asyncio.sleep(5)
        claims, cpu, took = 0, time.process_time(), []
        for _ in range(JOBS):
            handle = await task.enqueue(time.perf_counter())
            took.append(await handle.result(timeout=60))
            await asyncio.sleep(0.05)
        median = 1e3 * statistics.median(took)
        print(
            f"  one job at a time, {WORKERS} workers: start after {median:.1f} ms (median),"
            f" {claims / JOBS:.1f} claims a job,"
            f" {1e3 * (time.process_time() - cpu) / JOBS:.1f} ms of CPU a job"
        )


def main() -> None:
    rabbit, postgres = RabbitServer(), PostgresServer()
    try:
        rabbit.start()
        postgres.start()
        for broker in ("", rabbit.url()) * 2:
            print("RabbitMQ with records" if broker else "the records alone", flush=True)
            words = [sys.executable, "-m", "bench.records_bench", broker, postgres.url()]
            subprocess.run(words, check=True, timeout=300)
    finally:
        rabbit.remove()
        postgres.remove()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        asyncio.run(measure(*sys.argv[1:]))
    else:
        main()
