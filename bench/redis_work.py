"""What bench/redis_bench.py runs: one task on outlast, on a raw stream, and on each peer.

Each side is a class that fills its queue and names the command of its worker; the server, the
side and the counts' folder are named by the environment. ``python -m bench.redis_work SIDE what``.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import struct
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast import Outlast
from outlast.cli.bench_work import FOLDER, count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["SERVER", "SIDE", "SIDES", "TEXT", "Side"]

SERVER, SIDE = "OUTLAST_BENCH_REDIS", "OUTLAST_BENCH_SIDE"
TEXT = "N" + "x" * 99
CALLERS = 100
BULK = 1000
URL = os.environ.get(SERVER, "redis://127.0.0.1:1")
ARQ = Path(__file__).parents[1] / ".venv-bench-arq" / "bin" / "python"

_ping = struct.Struct("<dd")


def run(text: str) -> None:
    """The task: count it, or say when it was sent and when it began."""
    if text[0] == "N":
        count()
        return
    with Path(os.environ[FOLDER], "pings").open("ab", buffering=0) as file:
        file.write(_ping.pack(float(text[1:].partition("|")[0]), time.monotonic()))


async def run_async(text: str) -> None:
    run(text)


class Side:
    """``put`` is a coroutine function, or for a client that blocks a plain one."""

    python = sys.executable
    """What runs it: the peers don't all bear one version of redis-py."""
    blocks = False
    bulk: Callable[[Sequence[str]], Any] | None = None
    filled: Callable[[Sequence[str]], Any] | None = None
    """A faster way to fill its queue, where it has one of its own."""

    async def open(self) -> None:
        """Connect, and declare what has to be."""

    def put(self, text: str) -> Any:
        raise AssertionError("a side says it")

    async def close(self) -> None:
        """Let go."""

    def worker(self) -> list[str]:
        """Its words, for a process that works off what was put in."""
        return self.module("bench.redis_work", os.environ[SIDE], "work")

    @classmethod
    def module(cls, *words: str) -> list[str]:
        return [cls.python, "-W", "ignore", "-m", *words]

    async def work(self) -> None:
        raise AssertionError("a side says it")


# -- ours, and what could be had at most

app = Outlast(URL)


@app.task(name="noop")
async def noop(text: str) -> None:
    run(text)


class Ours(Side):
    async def open(self) -> None:
        await app.open()

    def put(self, text: str) -> Any:
        return noop.enqueue(text)

    async def bulk(self, texts: Sequence[str]) -> None:
        await app.enqueue_many([noop.call(text) for text in texts])

    filled = bulk

    async def close(self) -> None:
        await app.close()

    def worker(self) -> list[str]:
        words = ["worker", "bench.redis_work:app", "--create", "-c", "100"]
        return self.module("outlast", *words)


class Raw(Side):
    """A stream: no ids of ours, no delays, priorities, retries, results or leases."""

    async def open(self) -> None:
        from redis.asyncio import Redis

        self.redis = Redis.from_url(URL, protocol=2)

    def put(self, text: str) -> Any:
        return self.redis.xadd("raw", {"p": text})

    async def bulk(self, texts: Sequence[str]) -> None:
        pipe = self.redis.pipeline(transaction=False)
        for text in texts:
            pipe.xadd("raw", {"p": text})
        await pipe.execute()

    filled = bulk

    async def close(self) -> None:
        await self.redis.aclose()

    async def work(self) -> None:
        """A hundred a read; the hundred before are acknowledged and deleted with it."""
        await self.open()
        await self.redis.xgroup_create("raw", "g", id="0", mkstream=True)
        ids: list[Any] = []
        while True:
            pipe = self.redis.pipeline(transaction=False)
            if ids:
                pipe.xack("raw", "g", *ids)
                pipe.xdel("raw", *ids)
            pipe.xreadgroup("g", "c", {"raw": ">"}, count=100, block=1000)
            found = (await pipe.execute())[-1]
            ids = []
            for _, items in found or ():
                for id_, fields in items:
                    await run_async(fields[b"p"].decode())
                    ids.append(id_)


# -- the peers, each with its own settings; results are off where that is possible


class Saq(Side):
    async def open(self) -> None:
        from redis.asyncio import Redis
        from saq.queue.redis import RedisQueue

        # A hundred jobs at once want more connections than the driver gives by default.
        self.queue = RedisQueue(Redis.from_url(URL, max_connections=1000))
        await self.queue.connect()

    def put(self, text: str) -> Any:
        return self.queue.enqueue("noop", text=text)

    async def close(self) -> None:
        await self.queue.disconnect()

    async def work(self) -> None:
        from saq import Worker

        async def noop(context: Any, *, text: str) -> None:
            run(text)

        await self.open()
        await Worker(self.queue, functions=[("noop", noop)], concurrency=CALLERS).start()


class Arq(Side):
    python = str(ARQ)

    async def open(self) -> None:
        from arq import create_pool
        from arq.connections import RedisSettings

        self.pool = await create_pool(RedisSettings.from_dsn(URL))

    def put(self, text: str) -> Any:
        return self.pool.enqueue_job("noop", text)

    async def close(self) -> None:
        await self.pool.aclose()

    async def work(self) -> None:
        from arq import Worker, func
        from arq.connections import RedisSettings

        async def noop(context: Any, text: str) -> None:
            run(text)

        worker = Worker(
            functions=[func(noop, name="noop")], redis_settings=RedisSettings.from_dsn(URL),
            keep_result=0, max_jobs=CALLERS,
        )  # fmt: skip
        await worker.async_run()


class Streaq(Side):
    def _make(self) -> Any:
        from streaq import Worker

        worker: Any = Worker(redis_url=URL, concurrency=CALLERS, queue_name="bench")
        self.task = worker.task(name="noop", ttl=0)(run_async)
        return worker

    async def open(self) -> None:
        self.made = self._make()
        await self.made.__aenter__()

    def put(self, text: str) -> Any:
        return self.task.enqueue(text)

    async def bulk(self, texts: Sequence[str]) -> None:
        await self.made.enqueue_many([self.task.enqueue(text) for text in texts])

    filled = bulk

    async def close(self) -> None:
        await self.made.__aexit__(None, None, None)

    async def work(self) -> None:
        await self._make().run_async()


class Taskiq(Side):
    def __init__(self) -> None:
        from taskiq_redis import RedisStreamBroker

        self.broker: Any = RedisStreamBroker(URL, consumer_id="0")
        self.task = self.broker.task(task_name="noop")(run_async)

    async def open(self) -> None:
        await self.broker.startup()

    def put(self, text: str) -> Any:
        return self.task.kiq(text)

    async def close(self) -> None:
        await self.broker.shutdown()

    def worker(self) -> list[str]:
        words = ["taskiq", "worker", "-w", "1", "--log-level", "ERROR"]
        return self.module(*words, "bench.redis_work:broker")


class Dramatiq(Side):
    blocks = True

    def __init__(self) -> None:
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker

        self.broker: Any = RedisBroker(url=URL)
        dramatiq.set_broker(self.broker)
        self.actor: Any = dramatiq.actor(run, actor_name="noop", queue_name="bench")

    def put(self, text: str) -> Any:
        self.actor.send(text)

    def worker(self) -> list[str]:
        return self.module("dramatiq", "-p", "1", "-t", "8", "bench.redis_work:broker")


class Rq(Side):
    """The worker that doesn't fork for each job, which is the faster one."""

    blocks = True

    async def open(self) -> None:
        from redis import Redis
        from rq import Queue

        self.queue: Any = Queue("bench", connection=Redis.from_url(URL))

    def put(self, text: str) -> Any:
        self.queue.enqueue(run, text, result_ttl=0)

    def bulk(self, texts: Sequence[str]) -> None:
        make = type(self.queue).prepare_data
        self.queue.enqueue_many([make(run, (text,), result_ttl=0) for text in texts])

    filled = bulk

    def worker(self) -> list[str]:
        words = ["worker", "-q", "-u", URL, "-w", "rq.SimpleWorker", "bench"]
        return [sys.executable, "-c", "from rq.cli import main; main()", *words]


class Celery(Side):
    """Late acknowledgement, as with everybody here but RQ; two processes, as it has two cores."""

    blocks = True

    def __init__(self) -> None:
        import celery

        self.app: Any = celery.Celery("bench", broker=URL)
        self.app.conf.update(
            task_ignore_result=True, task_acks_late=True, worker_hijack_root_logger=False
        )
        self.task: Any = self.app.task(run, name="noop")

    def put(self, text: str) -> Any:
        self.task.delay(text)

    def worker(self) -> list[str]:
        words = ["-A", "bench.redis_work:broker", "worker", "-l", "ERROR", "-P", "prefork", "-c"]
        return self.module("celery", *words, "2", "--without-gossip", "--without-mingle")


SIDES: dict[str, type[Side]] = {
    "outlast": Ours, "raw": Raw, "arq": Arq, "saq": Saq, "streaq": Streaq,
    "taskiq": Taskiq, "dramatiq": Dramatiq, "rq": Rq, "celery": Celery,
}  # fmt: skip

# What the command lines of taskiq, Dramatiq and Celery import.
_named = os.environ.get(SIDE)
broker: Any = None
if _named in ("taskiq", "dramatiq", "celery"):
    _side: Any = SIDES[_named]()
    broker = _side.app if _named == "celery" else _side.broker


# -- what a process of a side is told to do


async def enqueue(side: Side, seconds: float) -> float:
    """Jobs a second that a hundred callers, coroutines or threads, get stored."""
    done = 0
    end = time.monotonic() + seconds

    async def call() -> None:
        nonlocal done
        while time.monotonic() < end:
            await side.put(TEXT)
            done += 1

    def call_blocking() -> None:
        nonlocal done
        while time.monotonic() < end:
            side.put(TEXT)
            with lock:
                done += 1

    lock, began = threading.Lock(), time.monotonic()
    if side.blocks:
        threads = [threading.Thread(target=call_blocking) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        await asyncio.gather(*(call() for _ in range(CALLERS)))
    return done / (time.monotonic() - began)


async def bulk(side: Side, seconds: float) -> float:
    """Jobs a second, a thousand a call."""
    assert side.bulk is not None
    done, began = 0, time.monotonic()
    while time.monotonic() < began + seconds:
        await _awaited(side.bulk([TEXT] * BULK))
        done += BULK
    return done / (time.monotonic() - began)


async def fill(side: Side, number: int) -> None:
    texts = [TEXT] * number
    if side.filled is not None:
        for at in range(0, number, BULK):
            await _awaited(side.filled(texts[at : at + BULK]))
    elif side.blocks:
        for text in texts:
            side.put(text)
    else:
        for at in range(0, number, CALLERS):
            await asyncio.gather(*(side.put(text) for text in texts[at : at + CALLERS]))


async def pings(side: Side, number: int) -> None:
    """One at a time, with pauses of 2 to 20 ms, each to an idle worker."""
    for n in range(number):
        path = Path(os.environ[FOLDER], "pings")
        await side.put(f"L{time.monotonic()}|".ljust(100, "x"))
        while not path.exists() or path.stat().st_size < (n + 1) * _ping.size:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.002 + 0.018 * (n * 37 % 100) / 100)


async def _awaited(answer: Any) -> None:
    if asyncio.iscoroutine(answer):
        await answer


async def main(name: str, what: str, size: float) -> None:
    side = SIDES[name]()
    if what == "work":
        await side.work()
        return
    await side.open()
    rate: float | None = None
    if what in ("enqueue", "bulk"):
        await _awaited(side.put(TEXT))  # connected, and warm
        rate = await (enqueue if what == "enqueue" else bulk)(side, size)
    else:
        await (fill if what == "fill" else pings)(side, int(size))
    await side.close()
    print(json.dumps(rate))


if __name__ == "__main__":
    # Tasks are found by their module's name, which is not this one's in a program.
    module = importlib.import_module("bench.redis_work")
    asyncio.run(module.main(sys.argv[1], sys.argv[2], float((*sys.argv[3:], "0")[0])))
