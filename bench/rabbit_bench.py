"""RabbitMQ: outlast beside raw pika and aio-pika, and beside Celery, Dramatiq and taskiq.

``python -m bench.rabbit_bench``, with ``bench/requirements.txt`` and what the tests need. All of it
runs on one private broker, in turn, and the medians count. The exit code is 1 if a floor is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aio_pika
import pika
from tests.servers import RabbitServer

from outlast import Outlast
from outlast.cli.bench_figures import COLUMNS, Figure, at_most, beside

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ROOT = Path(__file__).parents[1]
PRODUCERS = 100
BODY = b"x" * 100
QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}
PEERS = ("celery", "dramatiq", "taskiq")
PATIENCE = 300.0
BEAT = 0.002
FILL = "import asyncio, sys; from bench.rabbit_work import fill; asyncio.run(fill({}, 'x' * 100))"
WORKERS = {
    "outlast": ["outlast", "worker", "bench.rabbit_work:app"],
    "celery": ["celery", "-A", "bench.rabbit_work:app", "worker", "-l", "ERROR", "-c", "2",
               "--without-gossip", "--without-mingle"],
    "dramatiq": ["dramatiq", "-p", "1", "-t", "8", "bench.rabbit_work"],
    "taskiq": ["taskiq", "worker", "-w", "1", "--log-level", "ERROR", "bench.rabbit_work:app"],
}  # fmt: skip


async def measure(work: Callable[[], Awaitable[None]], many: int) -> float:
    """How many a second."""
    began = time.perf_counter()
    await work()
    return many / (time.perf_counter() - began)


# -- enqueueing, confirmed, by many at once


async def raw_enqueue(url: str, many: int) -> float:
    connection = await aio_pika.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    await channel.declare_queue("raw", durable=True, arguments=QUORUM)

    async def produce() -> None:
        for _ in range(many // PRODUCERS):
            message = aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, "raw", mandatory=True)

    async def all_of_them() -> None:
        await asyncio.gather(*(produce() for _ in range(PRODUCERS)))

    rate = await measure(all_of_them, many)
    await connection.close()
    return rate


async def enqueue(url: str, many: int) -> float:
    app = Outlast(url, namespace="enqueue")

    @app.task(name="nothing", timeout=600.0)
    async def nothing(text: str) -> None: ...

    async def produce() -> None:
        for _ in range(many // PRODUCERS):
            await nothing.enqueue("x" * 100)

    async def all_of_them() -> None:
        await asyncio.gather(*(produce() for _ in range(PRODUCERS)))

    async with app:
        await nothing.enqueue("the queue is made")
        return await measure(all_of_them, many)


# -- draining


def raw_drain(url: str, many: int) -> float:
    """The blocking client, one word for a hundred messages."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=500)
    began = time.perf_counter()
    for got, (method, _, _) in enumerate(channel.consume("raw", inactivity_timeout=5), 1):
        if got % 100 == 0 or got == many:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if got == many:
            break
    rate = many / (time.perf_counter() - began)
    channel.cancel()
    connection.close()
    return rate


def drain(side: str, url: str, many: int) -> float:
    """By one worker of that library, from the first run to the last."""
    with tempfile.TemporaryDirectory(prefix="outlast-rabbit-") as folder:
        marks, log = Path(folder, "marks"), Path(folder, "log")
        environment = os.environ | {
            "SIDE": side, "BROKER": url, "MARKS": str(marks), "PYTHONPATH": str(ROOT),
            "C_FORCE_ROOT": "1",
        }  # fmt: skip
        python = [sys.executable, "-W", "ignore"]
        subprocess.run([*python, "-c", FILL.format(many)], env=environment, cwd=folder, check=True)
        with log.open("wb") as out:
            worker = subprocess.Popen(
                [*python, "-m", *WORKERS[side]], env=environment, cwd=folder, stdout=out,
                stderr=out, start_new_session=True,
            )  # fmt: skip
        try:
            return _timed(marks, many, worker, log)
        finally:
            worker.send_signal(signal.SIGTERM)
            try:
                worker.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()


def _timed(marks: Path, many: int, worker: subprocess.Popen[bytes], log: Path) -> float:
    deadline = time.monotonic() + PATIENCE

    def wait(number: int) -> int:
        while True:
            size = marks.stat().st_size if marks.exists() else 0
            if size >= number:
                return size
            if worker.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(log.read_text())
            time.sleep(BEAT)

    first = wait(1)
    began = time.perf_counter()
    wait(many)
    return (many - first) / (time.perf_counter() - began)


# -- one job while nothing else happens


async def raw_idle(url: str, rounds: int) -> float:
    connection = await aio_pika.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    queue = await channel.declare_queue("idle", durable=True, arguments=QUORUM)
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


async def idle(url: str, rounds: int) -> float:
    app = Outlast(url, namespace="idle")
    came = asyncio.Event()
    waits: list[float] = []

    @app.task(name="clocked", timeout=600.0)
    async def clocked(began: float) -> None:
        waits.append(time.perf_counter() - began)
        came.set()

    async with app.worker():
        for _ in range(rounds + 2):
            came.clear()
            await clocked.enqueue(time.perf_counter())
            await came.wait()
    return statistics.median(waits[2:]) * 1e3


# -- all together


def figures(found: dict[str, list[float]]) -> list[Figure]:
    medians = {name: statistics.median(values) for name, values in found.items()}
    best = max(PEERS, key=lambda name: medians[name])
    ours, more = medians["outlast"], medians["idle"] - medians["raw idle"]
    return [
        beside(
            f"enqueue, {PRODUCERS} at once, confirmed; aio-pika",
            medians["enqueue"], medians["raw enqueue"], least=0.8,
        ),
        beside("drain, one worker; pika, multiple acks", ours, medians["raw drain"], least=0.3),
        *(
            beside(f"drain, one worker; {name}", ours, medians[name], least=3.0)
            if name == best
            else beside(f"drain, one worker; {name}", ours, medians[name])
            for name in PEERS
        ),
        Figure(
            "idle latency, p50; aio-pika", f"{medians['idle']:.2f} ms",
            f"{medians['raw idle']:.2f} ms", medians["idle"] / medians["raw idle"],
            "+2 ms", at_most(2.0, more),
        ),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-peers", action="store_true", help="and no floor beside them")
    options = parser.parse_args()
    many, found = options.messages, defaultdict[str, list[float]](list)
    server = RabbitServer()
    server.start()
    try:
        url = server.url()
        for _ in range(options.rounds):
            found["enqueue"].append(asyncio.run(enqueue(url, many)))
            found["raw enqueue"].append(asyncio.run(raw_enqueue(url, many)))
            found["outlast"].append(drain("outlast", url, many))
            found["raw drain"].append(raw_drain(url, many))
            for side in () if options.no_peers else PEERS:
                found[side].append(drain(side, url, many // 5))
            found["idle"].append(asyncio.run(idle(url, 200)))
            found["raw idle"].append(asyncio.run(raw_idle(url, 200)))
    finally:
        server.remove()
    if options.no_peers:
        found |= {side: [1.0] for side in PEERS}
    rows = figures(found)
    for cells in (COLUMNS, *(row.cells() for row in rows)):
        print(f"{cells[0]:45} {cells[1]:>10} {cells[2]:>10} {cells[3]:>7} {cells[4]:>6} {cells[5]}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return int(any(row.ok is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
