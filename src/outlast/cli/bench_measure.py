"""The measurements of `outlast bench`, each beside what the disk alone does in the same run."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict

from outlast.app import Outlast
from outlast.cli import bench_raw
from outlast.cli.bench_processes import children, cpu_of, kill, memory_of, until
from outlast.cli.bench_work import FOLDER, app, counts_in, hold, noop, ping, url_in
from outlast.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType

__all__ = ["FULL", "QUICK", "Bench", "Sizes", "in_turn"]

PAYLOAD = "N" + "x" * 99
_clock = SystemClock()
_now = _clock.monotonic


@dataclass(frozen=True)
class Sizes:
    """How much is measured. ``runs`` is how often: medians are taken of that many."""

    runs: int = 3
    seconds: float = 1.0  # of one run of producers
    drain: int = 40_000  # jobs in a drained store
    few: int = 50_000  # the backlog that the others are compared with
    backlogs: tuple[int, ...] = (10_000, 200_000)
    first: int = 30_000  # so many are taken out of a backlog
    delayed: int = 100_000
    pings: int = 200
    cpu: int = 30_000
    idle: float = 5.0  # seconds
    reopen: int = 100_000


FULL = replace(Sizes(), backlogs=(10_000, 200_000, 1_000_000))
QUICK = Sizes(
    runs=1, seconds=0.2, drain=2_000, few=2_000, backlogs=(1_000, 5_000), first=1_000,
    delayed=2_000, pings=20, cpu=2_000, idle=1.0, reopen=2_000,
)  # fmt: skip


class Rates(TypedDict):
    """Ours, and the yardstick's in the same run."""

    ours: float
    yardstick: float


def in_turn(runs: int, yardstick: Callable[[], float], ours: Callable[[], float]) -> Rates:
    """Medians of several runs of both.

    They take turns, and take turns at going first: what drifts in the machine, or is left over
    from the run before (a disk that still writes), meets both alike.
    """
    rates: dict[str, list[float]] = {"ours": [], "yardstick": []}
    for run in range(runs):
        pair = [("yardstick", yardstick), ("ours", ours)]
        for name, measure in pair if run % 2 == 0 else reversed(pair):
            rates[name].append(measure())
    return Rates(
        ours=statistics.median(rates["ours"]), yardstick=statistics.median(rates["yardstick"])
    )


class Bench:
    """Measures in one folder, on its disk; everything in that folder is deleted.

    To be used in a ``with`` block: until its end the measured app has its store in that folder.
    """

    def __init__(self, folder: Path, sizes: Sizes | None = None) -> None:
        self.folder = folder.resolve()
        self.url = url_in(self.folder)
        self.sizes = Sizes() if sizes is None else sizes
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        before = os.environ.get(FOLDER)
        self._undo.callback(_set_folder, before)
        _set_folder(str(self.folder))
        self._undo.enter_context(app.stand_in(self.url))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()

    # -- producers

    def enqueue(self, how: str) -> Rates:
        """Jobs accepted a second: ``one``, ``hundred`` or ``thousand`` callers, or ``bulk``."""
        callers = {"one": 1, "hundred": 100, "thousand": 1000, "bulk": 0}[how]
        return in_turn(
            self.sizes.runs,
            lambda: asyncio.run(self._raw_producers(callers)),
            lambda: asyncio.run(self._producers(callers)),
        )

    async def _raw_producers(self, callers: int) -> float:
        with self._clean():
            raw = bench_raw.Raw(self.folder / "raw.db")
            batch = [PAYLOAD] * 1000

            async def one() -> None:
                await raw.put(PAYLOAD)

            async def many() -> None:
                raw.put_many(batch)

            rate = await self._produce(one, many, callers)
            raw.close()
            return rate

    async def _producers(self, callers: int) -> float:
        with self._clean():
            async with app:

                async def one() -> None:
                    await noop.enqueue(PAYLOAD)

                async def many() -> None:
                    await app.enqueue_many([noop.call(PAYLOAD) for _ in range(1000)])

                return await self._produce(one, many, callers)

    async def _produce(self, one: Any, many: Any, callers: int) -> float:
        await one()  # what is done but once is no part of a rate
        began = _now()
        end = began + self.sizes.seconds
        number = 0

        async def producer() -> None:
            nonlocal number
            while _now() < end:
                await one()
                number += 1

        if callers:
            await asyncio.gather(*(producer() for _ in range(callers)))
        else:
            while _now() < end:
                await many()
                number += 1000
        return number / (_now() - began)

    # -- workers

    def drain(self, processes: int = 1) -> Rates:
        """No-op jobs a second until the store is empty, and what the yardstick does."""
        jobs = self.sizes.drain
        return in_turn(
            self.sizes.runs,
            lambda: self._raw_drain(jobs),
            lambda: self.drain_some(jobs, jobs, processes)[0],
        )

    def _raw_drain(self, jobs: int) -> float:
        code = (
            "import sys; from pathlib import Path; from outlast.cli import bench_raw, bench_work;"
            "bench_raw.drain(Path(sys.argv[1]), lambda payload: bench_work.count())"
        )
        with self._clean():
            path = self.folder / "raw.db"
            bench_raw.fill(path, PAYLOAD, jobs)
            subprocess.run([sys.executable, "-c", code, str(path)], check=True)
            return counts_in(self.folder).rate

    def drain_some(self, backlog: int, first: int, processes: int = 1) -> tuple[float, float]:
        """The rate over the ``first`` jobs out of a backlog, and the worker's memory in MiB."""
        with self._clean():
            asyncio.run(self._fill(backlog))
            with self._worker("-c", "100", "-p", str(processes)) as worker:
                until(lambda: counts_in(self.folder).number >= first, 300, worker)
                return counts_in(self.folder).rate, memory_of(worker.pid)

    def backlogs(self) -> dict[int, tuple[float, float]]:
        """By the number of jobs queued: the median rate, and the most memory in MiB."""
        sizes = (*self.sizes.backlogs, self.sizes.few)
        found: dict[int, list[tuple[float, float]]] = {size: [] for size in sorted(sizes)}
        for run in range(self.sizes.runs):
            for size in found if run % 2 == 0 else reversed(found):
                found[size].append(self.drain_some(size, min(size, self.sizes.first)))
        return {
            size: (statistics.median(rate for rate, _ in each), max(memory for _, memory in each))
            for size, each in found.items()
        }

    async def _fill(self, number: int, delay: float | None = None) -> None:
        async with app:
            task = noop if delay is None else noop.using(delay=delay)
            for at in range(0, number, 2000):
                calls = [task.call(PAYLOAD) for _ in range(min(2000, number - at))]
                await app.enqueue_many(calls)

    def memory_of_delayed(self) -> Rates:
        """MiB of a worker with many jobs waiting for their time, and with none; same work done."""
        return in_turn(
            self.sizes.runs, lambda: self._memory(0), lambda: self._memory(self.sizes.delayed)
        )

    def _memory(self, delayed: int) -> float:
        with self._clean():
            asyncio.run(self._fill(delayed, delay=86400.0))
            with self._worker("-c", "10") as worker:
                asyncio.run(self._fill(1000))
                until(lambda: counts_in(self.folder).number >= 1000, 120, worker)
                return memory_of(worker.pid)

    def _await_start(self) -> None:
        async def one() -> None:
            async with app:
                await (await noop.enqueue(PAYLOAD)).result(timeout=60)

        asyncio.run(one())

    def idle(self) -> float:
        """The share of one core that an idle worker and its supervisor use."""
        with self._clean():
            asyncio.run(self._fill(1))
            with self._worker("-c", "10") as worker:
                self._await_start()
                time.sleep(0.5)  # what belongs to the job just done is no idleness
                began, before = _now(), cpu_of(worker.pid)
                time.sleep(self.sizes.idle)
                return (cpu_of(worker.pid) - before) / (_now() - began)

    def cpu(self) -> float:
        """Seconds of CPU a no-op job costs from ``enqueue_many`` to its settlement."""
        costs = []
        for _ in range(self.sizes.runs):
            with self._clean():
                costs.append(asyncio.run(_cpu_of_jobs(self.url, self.sizes.cpu)))
        return statistics.median(costs)

    # -- moments

    def latency(self) -> dict[str, Any]:
        """Seconds from the call of ``enqueue`` to the first line of the task, when idle.

        ``same`` and ``other`` process, each ``p50`` and ``p99``, and ``sync``: what the disk takes
        for one sync, read before and after each of the runs. Medians of the runs.
        """
        syncs: list[float] = []
        found: dict[str, list[dict[str, float]]] = {"same": [], "other": []}
        for _ in range(self.sizes.runs):
            for where, waits in found.items():
                syncs.append(bench_raw.sync_time(self.folder, _now))
                waits.append(self._latency(where))
                syncs.append(bench_raw.sync_time(self.folder, _now))
        medians: dict[str, Any] = {
            where: {at: statistics.median(run[at] for run in waits) for at in ("p50", "p99")}
            for where, waits in found.items()
        }
        return {**medians, "sync": statistics.median(syncs)}

    def _latency(self, where: str) -> dict[str, float]:
        with self._clean():
            asyncio.run(self._fill(0))
            if where == "same":
                asyncio.run(self._pings(same_process=True))
            else:
                with self._worker("-c", "10"):
                    self._await_start()
                    asyncio.run(self._pings(same_process=False))
            data = (self.folder / "pings").read_bytes()
            pairs = struct.iter_unpack("<dd", data)
            waits = sorted(began - sent for sent, began in pairs)
        return {"p50": waits[len(waits) // 2], "p99": waits[int(len(waits) * 0.99)]}

    async def _pings(self, *, same_process: bool) -> None:
        async def all_of_them() -> None:
            for at in range(self.sizes.pings):
                # Odd pauses, so that no rhythm of the worker's is met each time.
                await _clock.sleep(0.002 + at % 7 * 0.003)
                await (await ping.enqueue(_now())).result(timeout=20)

        async with app:
            if same_process:
                async with app.worker(concurrency=10):
                    await all_of_them()
            else:
                await all_of_them()

    def reopen(self) -> float:
        """Seconds from opening a store whose users were killed to the first claim."""
        jobs, took = self.sizes.reopen, []
        for _ in range(self.sizes.runs):
            with self._clean():
                asyncio.run(self._fill(jobs))
                with self._worker("-c", "100") as worker:
                    until(lambda: counts_in(self.folder).number > jobs // 50, 60, worker)
                    kill((worker.pid, *children(worker.pid)))
                    took.append(asyncio.run(_first_claim(self.url)))
        return statistics.median(took)

    def recovery(self, whom: Literal["child", "all"]) -> float:
        """Seconds from the SIGKILL of a worker to its job's next start; the longest of the runs.

        ``child``: the process alone, so that its supervisor starts another. ``all``: the supervisor
        too, while another worker stands by.
        """
        return max(self._recovery(whom) for _ in range(self.sizes.runs))

    def _recovery(self, whom: str) -> float:
        with self._clean(), ExitStack() as stack:
            asyncio.run(self._fill(0))
            held = self.folder / "held-a"
            first = stack.enter_context(self._worker("-c", "10"))

            async def begin() -> None:
                async with app:
                    await hold.enqueue("a")

            asyncio.run(begin())
            until(held.exists, 30, first)
            victims = children(first.pid)
            if whom == "all":
                victims.append(first.pid)
                self._await_work_of(stack.enter_context(self._worker("-c", "10")))
            killed = _now()
            kill(victims)
            until(lambda: held.stat().st_size >= 16, 60)
            (again,) = struct.unpack_from("<d", held.read_bytes(), 8)
            return float(again) - killed

    def _await_work_of(self, worker: subprocess.Popen[bytes]) -> None:
        """Offer jobs until this worker has run one; others may get there first."""

        def has_run() -> bool:
            asyncio.run(self._fill(10))
            return any((self.folder / f"count-{pid}").exists() for pid in children(worker.pid))

        until(has_run, 60, worker)

    # -- rooms

    @contextmanager
    def _clean(self) -> Iterator[None]:
        """An empty folder before and after."""
        self._empty()
        try:
            yield
        finally:
            self._empty()

    def _empty(self) -> None:
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    @contextmanager
    def _worker(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "outlast", "worker", "outlast.cli.bench_work:app"]
        with (self.folder / "worker.log").open("wb") as log:
            worker = subprocess.Popen(
                [*command, "--create", "--log-level", "error", *options], stdout=log, stderr=log
            )
            try:
                yield worker
            except TimeoutError as error:
                said = (self.folder / "worker.log").read_text(errors="replace")[-2000:]
                raise TimeoutError(f"{error}; the worker said: {said or 'nothing'}") from None
            finally:
                worker.send_signal(signal.SIGTERM)
                worker.wait()


def _set_folder(name: str | None) -> None:
    os.environ.pop(FOLDER, None)
    if name is not None:
        os.environ[FOLDER] = name


async def _cpu_of_jobs(url: str, jobs: int) -> float:
    mine = Outlast(url)
    done = asyncio.Event()
    left = jobs

    @mine.task(name="nothing")
    async def nothing(payload: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async with mine:
        began = _process_time()
        for at in range(0, jobs, 1000):
            await mine.enqueue_many([nothing.call(PAYLOAD) for _ in range(min(1000, jobs - at))])
        async with mine.worker(concurrency=100):
            await done.wait()
        return (_process_time() - began) / jobs


async def _first_claim(url: str) -> float:
    from outlast.stores import connect

    began = _now()
    opened = connect(url)
    await opened.open()
    claims = await opened.claim(["default"], ["noop"], 1, 15.0, "bench")
    took = _now() - began
    assert claims
    await opened.close()
    return took


def _process_time() -> float:
    times = os.times()
    return times.user + times.system
