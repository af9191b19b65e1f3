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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.app import Outlast
from outlast.cli import bench_raw
from outlast.cli.bench_work import FOLDER, app, counts_in, hold, noop, ping
from outlast.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Bench"]

PAYLOAD = "N" + "x" * 99
_clock = SystemClock()
_now = _clock.monotonic


class Bench:
    """Measures in one folder, on its disk; everything it makes there is deleted again.

    ``seconds`` is the length of one run of a producer; ``runs`` how often each is repeated, the
    yardstick and ours in turn, so that a machine that drifts meets both alike.
    """

    def __init__(self, folder: Path, *, seconds: float = 1.0, runs: int = 3) -> None:
        self.folder = folder
        self.store = folder / "bench.db"
        self.seconds = seconds
        self.runs = runs
        os.environ["OUTLAST_URL"] = f"sqlite:///{self.store}"
        os.environ[FOLDER] = str(folder)

    # -- producers

    def enqueue(self, how: str) -> dict[str, float]:
        """Jobs accepted a second, ours and raw: ``one``, ``hundred``, ``thousand`` or ``bulk``."""
        callers = {"one": 1, "hundred": 100, "thousand": 1000, "bulk": 0}[how]
        raw, ours = [], []
        for _ in range(self.runs):
            raw.append(asyncio.run(self._raw_producers(callers)))
            ours.append(asyncio.run(self._producers(callers)))
        return {"raw": statistics.median(raw), "ours": statistics.median(ours)}

    async def _raw_producers(self, callers: int) -> float:
        with self._clean():
            raw = bench_raw.Raw(self.folder / "raw.db")
            batch = [PAYLOAD] * 1000

            async def many() -> None:
                raw.put_many(batch)

            rate = await self._produce(lambda: raw.put(PAYLOAD), many, callers)
            raw.close()
            return rate

    async def _producers(self, callers: int) -> float:
        with self._clean():
            async with app:

                async def one() -> None:
                    await noop.enqueue(PAYLOAD)

                async def many() -> None:
                    await app.enqueue_many([noop.call(PAYLOAD) for _ in range(1000)])

                await one()
                return await self._produce(one, many, callers)

    async def _produce(self, one: Any, many: Any, callers: int) -> float:
        began = _now()
        end = began + self.seconds
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

    def drain(self, jobs: int, processes: int = 1) -> dict[str, float]:
        """No-op jobs a second out of a backlog of ``jobs``, and what the yardstick does."""
        raw, ours = [], []
        for _ in range(self.runs):
            with self._clean():
                bench_raw.fill(self.folder / "raw.db", PAYLOAD, jobs)
                raw.append(self._raw_drain())
            ours.append(self.drain_some(jobs, jobs, processes)["rate"])
        return {"raw": statistics.median(raw), "ours": statistics.median(ours)}

    def _raw_drain(self) -> float:
        code = (
            "import sys; from pathlib import Path; from outlast.cli import bench_raw, bench_work;"
            "bench_raw.drain(Path(sys.argv[1]), lambda payload: bench_work.count())"
        )
        subprocess.run([sys.executable, "-c", code, str(self.folder / "raw.db")], check=True)
        return counts_in(self.folder).rate

    def drain_some(self, backlog: int, first: int, processes: int = 1) -> dict[str, float]:
        """The rate over the ``first`` jobs out of a backlog, and the worker's memory."""
        with self._clean():
            asyncio.run(self._fill(backlog))
            with self._worker("-c", "100", "-p", str(processes)) as worker:
                _until(lambda: counts_in(self.folder).number >= first, 300)
                counts = counts_in(self.folder)
                memory = _memory(worker.pid)
            return {"rate": counts.rate, "memory": memory}

    async def _fill(self, number: int, delay: float | None = None) -> None:
        async with app:
            task = noop if delay is None else noop.using(delay=delay)
            for at in range(0, number, 2000):
                calls = [task.call(PAYLOAD) for _ in range(min(2000, number - at))]
                await app.enqueue_many(calls)

    def memory(self, jobs: int, delay: float | None = None) -> float:
        """MiB of a worker and its supervisor while so many jobs wait in the store."""
        with self._clean():
            asyncio.run(self._fill(jobs, delay))
            with self._worker("-c", "10") as worker:
                if delay is None:
                    _until(lambda: counts_in(self.folder).number >= min(jobs, 20_000), 300)
                else:
                    self._await_start()
                return _memory(worker.pid)

    def _await_start(self) -> None:
        async def one() -> None:
            async with app:
                await (await noop.enqueue(PAYLOAD)).result(timeout=60)

        asyncio.run(one())

    def idle(self, seconds: float) -> float:
        """The share of one core that an idle worker and its supervisor use."""
        with self._clean():
            asyncio.run(self._fill(1))
            with self._worker("-c", "10") as worker:
                self._await_start()
                before = _cpu(worker.pid)
                _sleep(seconds)
                return (_cpu(worker.pid) - before) / seconds

    def cpu(self, jobs: int) -> float:
        """Seconds of CPU a no-op job costs from ``enqueue_many`` to its settlement."""
        with self._clean():
            return asyncio.run(_cpu_of_jobs(self.store, jobs))

    # -- moments

    def latency(self, samples: int, *, same_process: bool) -> dict[str, float]:
        """Seconds from the call of ``enqueue`` to the first line of the task, when idle."""
        with self._clean():
            asyncio.run(self._fill(0))
            if same_process:
                asyncio.run(self._pings(samples, same_process=True))
            else:
                with self._worker("-c", "10"):
                    self._await_start()
                    asyncio.run(self._pings(samples, same_process=False))
            data = (self.folder / "pings").read_bytes()
            pairs = struct.iter_unpack("<dd", data)
            waits = sorted(began - sent for sent, began in pairs)
        return {"p50": waits[len(waits) // 2], "p99": waits[int(len(waits) * 0.99)]}

    async def _pings(self, samples: int, *, same_process: bool) -> None:
        async def all_of_them() -> None:
            for at in range(samples):
                # Odd pauses, so that no rhythm of the worker's is met each time.
                await _clock.sleep(0.002 + at % 7 * 0.003)
                await (await ping.enqueue(_now())).result(timeout=20)

        async with app:
            if same_process:
                async with app.worker(concurrency=10):
                    await all_of_them()
            else:
                await all_of_them()

    def reopen(self, jobs: int) -> float:
        """Seconds from opening a store whose users were killed to the first claim."""
        with self._clean():
            asyncio.run(self._fill(jobs))
            with self._worker("-c", "100") as worker:
                _until(lambda: counts_in(self.folder).number > jobs // 50, 60)
                for pid in (worker.pid, *_children(worker.pid)):
                    os.kill(pid, signal.SIGKILL)
            return asyncio.run(_first_claim(self.store))

    def recovery(self) -> float:
        """Seconds from the SIGKILL of a worker and its supervisor to its job's next start."""
        with self._clean():
            asyncio.run(self._fill(0))
            held = self.folder / "held-a"
            with self._worker("-c", "10") as first:

                async def begin() -> None:
                    async with app:
                        await hold.enqueue("a")

                asyncio.run(begin())
                _until(held.exists, 30)
                with self._worker("-c", "10") as second:
                    _until(lambda: len(_children(second.pid)) > 0, 30)
                    self._await_start()
                    killed = _now()
                    for pid in (first.pid, *_children(first.pid)):
                        os.kill(pid, signal.SIGKILL)
                    _until(lambda: held.stat().st_size >= 16, 60)
            (again,) = struct.unpack_from("<d", held.read_bytes(), 8)
            return float(again) - killed

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
            finally:
                worker.send_signal(signal.SIGTERM)
                worker.wait()


async def _cpu_of_jobs(store: Path, jobs: int) -> float:
    mine = Outlast(f"sqlite:///{store}")
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


async def _first_claim(store: Path) -> float:
    from outlast.stores import connect

    began = _now()
    opened = connect(f"sqlite:///{store}")
    await opened.open()
    claims = await opened.claim(["default"], ["noop"], 1, 15.0, "bench")
    took = _now() - began
    assert claims
    await opened.close()
    return took


def _process_time() -> float:
    times = os.times()
    return times.user + times.system


def _until(happened: Callable[[], bool], seconds: float) -> None:
    end = _now() + seconds
    while not happened():
        if _now() > end:
            raise TimeoutError(f"did not happen within {seconds} s; see worker.log")
        _sleep(0.005)


def _sleep(seconds: float) -> None:
    asyncio.run(_clock.sleep(seconds))


def _children(pid: int) -> list[int]:
    """The processes that this one started, where the system tells (Linux)."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(status.parent.name))
    return found


def _memory(pid: int) -> float:
    """MiB that a process and its children held at most."""
    total = 0
    for each in (pid, *_children(pid)):
        for line in Path(f"/proc/{each}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1])
    return total / 1024


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process and its children have used."""
    ticks = 0
    for each in (pid, *_children(pid)):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
