"""Measures the queues beside raw apsw and two peers, in one run: `python bench/queue_bench.py`.

Each figure is the median of several runs; ours and the others take turns, so that a disk or a
machine that drifts drifts for all. Peers are measured where they are installed (persist-queue,
litequeue). litequeue's own setting doesn't sync at a commit; it is measured as it comes and with
synchronous=FULL, which is what the others promise.

Raw is the plainest program that does the same: 100 coroutines that wait for one thread, which
commits 100 rows at a time. What that thread alone could do in a loop, with no coroutine to serve,
is shown too and is no floor.

Options: --runs N, --items N, --million (a queue of a million items: opening time and memory),
--folder DIR (on the disk to measure), --json FILE. The exit code is 1 if a floor is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from outlast import Queue
from outlast.cli.bench_figures import Figure, at_most, beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ITEM = "x" * 100
CALLERS = 100
RAW_SCHEMA = (
    "create table q(id integer primary key, state int not null default 0, payload text not null);"
    "create index q0 on q(id) where state = 0"
)


class Clocks:
    """Seconds, and seconds of CPU of the process and of this thread, since it was made."""

    def __init__(self) -> None:
        self._start = self._now()

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), time.thread_time()

    def read(self) -> tuple[float, float, float]:
        wall, process, thread = (
            now - start for now, start in zip(self._now(), self._start, strict=True)
        )
        return wall, process, thread


@contextlib.contextmanager
def folder_in(parent: Path) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield made
    finally:
        shutil.rmtree(made)


# -- raw apsw, WAL and FULL: 100 rows a commit


def raw(folder: Path) -> apsw.Connection:
    path = folder / "raw.db"
    fresh = not path.exists()
    connection = apsw.Connection(str(path))
    connection.execute("pragma journal_mode=wal; pragma synchronous=full")
    if fresh:
        connection.execute(RAW_SCHEMA)
    return connection


def raw_put(folder: Path, items: int) -> float:
    """As many coroutines wait for one thread that commits what is waiting."""
    connection = raw(folder)
    waiting: list[asyncio.Future[None]] = []

    def commit(count: int) -> None:
        with connection:
            connection.executemany("insert into q(payload) values (?)", [(ITEM,)] * count)

    flushing: asyncio.Task[None] | None = None

    async def flush() -> None:
        nonlocal flushing
        while waiting:
            batch = waiting[:]
            waiting.clear()
            await asyncio.to_thread(commit, len(batch))
            for future in batch:
                future.set_result(None)
            await asyncio.sleep(0)
        flushing = None

    async def produce(count: int) -> None:
        nonlocal flushing
        loop = asyncio.get_running_loop()
        for _ in range(count):
            future = loop.create_future()
            waiting.append(future)
            if flushing is None:
                flushing = loop.create_task(flush())
            await future

    async def main() -> float:
        clocks = Clocks()
        await asyncio.gather(*(produce(items // CALLERS) for _ in range(CALLERS)))
        return items / clocks.read()[0]

    rate = asyncio.run(main())
    connection.close()
    return rate


def raw_step(connection: apsw.Connection, done: list[tuple[Any]]) -> list[Any]:
    """Claim 100, delete the last 100, one commit."""
    connection.execute("begin immediate")
    connection.executemany("delete from q where id = ?", done)
    rows = connection.execute(
        "update q set state = 1 where id in (select id from q where state = 0 order by id"
        " limit 100) returning id, payload"
    ).fetchall()
    connection.execute("commit")
    return rows


def raw_get(folder: Path, items: int) -> float:
    """As with ``raw_put``: as many coroutines wait for one thread that claims and deletes."""
    connection = raw(folder)
    waiting: deque[asyncio.Future[str]] = deque()
    ready: deque[Any] = deque()
    done: list[tuple[Any]] = []

    filling: asyncio.Task[None] | None = None

    async def fill() -> None:
        nonlocal filling
        while waiting:
            settled = done[:]
            done.clear()
            ready.extend(await asyncio.to_thread(raw_step, connection, settled))
            while waiting and ready:
                waiting.popleft().set_result(ready.popleft())
            await asyncio.sleep(0)
        filling = None

    async def consume(count: int) -> None:
        nonlocal filling
        loop = asyncio.get_running_loop()
        for _ in range(count):
            future = loop.create_future()
            waiting.append(future)
            if filling is None:
                filling = loop.create_task(fill())
            done.append((await future)[:1])

    async def main() -> float:
        clocks = Clocks()
        await asyncio.gather(*(consume(items // CALLERS) for _ in range(CALLERS)))
        raw_step(connection, done)
        return items / clocks.read()[0]

    rate = asyncio.run(main())
    connection.close()
    return rate


def bare_get(folder: Path, items: int) -> float:
    """The same with nobody waiting: one thread, no event loop. What the disk and SQLite can do."""
    connection = raw(folder)
    done: list[tuple[Any]] = []
    clocks = Clocks()
    while rows := raw_step(connection, done):
        done = [row[:1] for row in rows]
    rate = items / clocks.read()[0]
    connection.close()
    return rate


# -- ours


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/ours.db"


def our_put(folder: Path, items: int) -> float:
    async def main() -> float:
        async with Queue[str](name="bench", url=url(folder)) as queue:

            async def produce(count: int) -> None:
                for _ in range(count):
                    await queue.put(ITEM)

            clocks = Clocks()
            await asyncio.gather(*(produce(items // CALLERS) for _ in range(CALLERS)))
            return items / clocks.read()[0]

    return asyncio.run(main())


def our_get(folder: Path, items: int) -> float:
    async def main() -> float:
        async with Queue[str](name="bench", url=url(folder)) as queue:

            async def consume(count: int) -> None:
                for _ in range(count):
                    await queue.get()
                    queue.task_done()

            clocks = Clocks()
            await asyncio.gather(*(consume(items // CALLERS) for _ in range(CALLERS)))
            await queue.join()
            return items / clocks.read()[0]

    return asyncio.run(main())


def our_cpu(folder: Path, items: int) -> dict[str, float]:
    """CPU of one consumer: of each call alone, and of everything behind it, all threads."""

    async def main() -> dict[str, float]:
        async with Queue[str](name="cpu", url=url(folder)) as queue:
            for _ in range(0, items, 1000):
                await queue.put_many([ITEM] * 1000)
            await warm(queue)
            gets: list[float] = []
            dones: list[float] = []
            whole = Clocks()
            done = 0
            while done < items - 3000:
                while queue._line.supply.window.ready() < 2:
                    queue.get_nowait()
                    queue.task_done()
                    done += 1
                    await asyncio.sleep(0)
                count = queue._line.supply.window.ready()
                got, said = calls(queue, count)
                gets.append(got / count)
                dones.append(said / count)
                done += count
                await asyncio.sleep(0)
            await queue.purge()
            process = whole.read()[1]
            return {
                "get_nowait": statistics.median(gets) * 1e6,
                "task_done": statistics.median(dones) * 1e6,
                "everything, a call": process / done / 2 * 1e6,
            }

    return asyncio.run(main())


async def warm(queue: Queue[str]) -> None:
    """Let the window grow to its full size."""
    for _ in range(2500):
        await queue.get()
        queue.task_done()


def calls(queue: Queue[str], count: int) -> tuple[float, float]:
    """Seconds of this thread in so many calls of each kind, with the window full."""
    clocks = Clocks()
    got = [queue.get_nowait() for _ in range(count)]
    first = clocks.read()[2]
    clocks = Clocks()
    for item in got:
        queue.task_done(item)
    return first, clocks.read()[2]


# -- peers


def persist_put(folder: Path, items: int) -> float:
    import persistqueue

    queue = persistqueue.SQLiteAckQueue(str(folder / "persist"), multithreading=True)
    return threads(lambda: queue.put(ITEM), items)


def persist_get(folder: Path, items: int) -> float:
    import persistqueue

    queue = persistqueue.SQLiteAckQueue(str(folder / "persist"), multithreading=True)
    return threads(lambda: queue.ack(queue.get(block=False)), items)


def lite(folder: Path, *, full: bool) -> Any:
    import litequeue

    queue = litequeue.LiteQueue(str(folder / "lite.db"))
    if full:
        queue.conn.execute("pragma synchronous=full")
    return queue


def lite_put(folder: Path, items: int, *, full: bool) -> float:
    queue = lite(folder, full=full)
    clocks = Clocks()
    for _ in range(items):
        queue.put(ITEM)
    return items / clocks.read()[0]


def lite_get(folder: Path, items: int, *, full: bool) -> float:
    queue = lite(folder, full=full)
    clocks = Clocks()
    for _ in range(items):
        message = queue.pop()
        queue.done(message.message_id)
    return items / clocks.read()[0]


def threads(call: Callable[[], object], items: int) -> float:
    """The rate of a call made by as many threads."""

    def work() -> None:
        for _ in range(items // CALLERS):
            call()

    workers = [threading.Thread(target=work) for _ in range(CALLERS)]
    clocks = Clocks()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return items / clocks.read()[0]


# -- a million


OPENING = """
import resource, sys, time
from outlast import Queue
queue = Queue(name="million", url=sys.argv[1])
started = time.perf_counter()
size = queue.qsize()
opened = time.perf_counter() - started
first = queue.get_nowait()
queue.task_done()
got = time.perf_counter() - started
print(size, opened, got, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def million(folder: Path) -> dict[str, float]:
    """What opening a queue of a million items takes, in a fresh process: seconds, and MiB."""

    async def fill() -> None:
        async with Queue[str](name="million", url=url(folder)) as queue:
            for _ in range(1000):
                await queue.put_many([ITEM] * 1000)

    asyncio.run(fill())
    found: list[tuple[float, ...]] = []
    for _ in range(3):
        out = subprocess.run(
            [sys.executable, "-c", OPENING, url(folder)], capture_output=True, text=True, check=True
        ).stdout
        found.append(tuple(map(float, out.split())))
    assert found[0][0] == 1_000_000, found
    _, opened, got, peak = (statistics.median(column) for column in zip(*found, strict=True))
    return {"open": opened, "open and first item": got, "MiB": peak / 1024}


# -- all of it


def rates(parent: Path, runs: int, items: int) -> dict[str, dict[str, float]]:
    """Items a second of putting and of getting, by who does it."""
    few = max(CALLERS, items // 20)
    who: dict[str, tuple[Any, Any, int]] = {
        "raw": (raw_put, raw_get, items),
        "raw, nobody waits": (raw_put, bare_get, items),
        "outlast": (our_put, our_get, items),
    }
    if importlib.util.find_spec("persistqueue"):
        who["persist-queue"] = (persist_put, persist_get, few)
    if importlib.util.find_spec("litequeue"):
        for name, full in (("litequeue", False), ("litequeue, FULL", True)):
            who[name] = (
                lambda folder, count, full=full: lite_put(folder, count, full=full),
                lambda folder, count, full=full: lite_get(folder, count, full=full),
                few,
            )
    found: dict[str, dict[str, list[float]]] = {name: {"put": [], "get": []} for name in who}
    for run in range(runs):
        # The order turns, so that nobody always comes after the one who leaves the disk busy.
        for name in who if run % 2 == 0 else reversed(who):
            put, get, count = who[name]
            with folder_in(parent) as folder:
                found[name]["put"].append(put(folder, count))
                found[name]["get"].append(get(folder, count))
    return {
        name: {what: statistics.median(values) for what, values in each.items()}
        for name, each in found.items()
    }


def figures(found: dict[str, Any]) -> list[Figure]:
    """What was measured, each with its floor."""
    speed = found["rates"]
    rows = []
    for what, label in (("put", "queue: put"), ("get", "queue: get + task_done")):
        ours = speed["outlast"][what]
        rows.append(beside(f"{label}, 100 at once", ours, speed["raw"][what], least=0.4))
        if what == "get":
            bare = speed["raw, nobody waits"][what]
            rows.append(beside(f"{label}, beside a bare loop", ours, bare))
        # litequeue as it comes doesn't sync, so it is shown and is no floor.
        for peer, floor in (("persist-queue", 10), ("litequeue, FULL", 10), ("litequeue", None)):
            if peer in speed:
                asked = f"{floor} times" if floor else ""
                name = f"{label}, beside {peer}"
                rows.append(beside(name, ours, speed[peer][what], floor=asked, least=floor))
    for call in ("get_nowait", "task_done", "everything, a call"):
        cpu = found["cpu"][call]
        rows.append(_limited(f"queue: CPU of {call}", f"{cpu:.1f} us", "under 15 us", 15, cpu))
    if "million" in found:
        opened, memory = found["million"]["open"] * 1000, found["million"]["MiB"]
        rows += [
            _limited("queue of 1,000,000: open", f"{opened:.0f} ms", "under 250 ms", 250, opened),
            _limited("queue of 1,000,000: memory", f"{memory:.0f} MiB", "under 60 MiB", 60, memory),
        ]
    return rows


def _limited(what: str, shown: str, floor: str, limit: float, value: float) -> Figure:
    return Figure(what, shown, floor=floor, margin=at_most(limit, value))


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; 1 if a floor is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path(".cache/bench"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if given.items < 5000:
        parser.error("--items is 5000 at least: the window has to grow to its full size first")
    given.folder.mkdir(parents=True, exist_ok=True)
    parent = given.folder.resolve()
    found: dict[str, Any] = {"rates": rates(parent, given.runs, given.items)}
    with folder_in(parent) as folder:
        found["cpu"] = our_cpu(folder, given.items)
    if given.million:
        with folder_in(parent) as folder:
            found["million"] = million(folder)
    print(f"{'items a second':24}{'put':>12}{'get + task_done':>18}")
    for name, each in found["rates"].items():
        print(f"{name:24}{each['put']:12,.0f}{each['get']:18,.0f}")
    print()
    rows = figures(found)
    for row in rows:
        what, shown, _, ratio, floor, passed = row.cells()
        print(f"{what:44}{shown:>12}{ratio:>9}   {passed:4}   {floor}")
    found["figures"] = [row.as_dict() for row in rows]
    found["load"] = os.getloadavg()[0]
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))
    return int(any(row.ok is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
