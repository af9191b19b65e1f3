"""outlast on PostgreSQL beside the plain driver, PgQueuer and Oban: on one private server.

``python -m bench.postgres_bench``, with the extra ``postgres``, ``bench/requirements.txt`` and
PostgreSQL's own programs; Oban is left out where Python is older than 3.12. Ours and what it is
compared with take turns, and the medians count. The exit code is 1 if a floor is missed.

Options: --quick, --rounds N, --jobs N (in a drained store), --only PART, --folder DIR, --json FILE.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
from bench.postgres_work import DSN, PAYLOAD, RAW_MANY, RAW_ONE, RAW_TABLES
from tests.servers import PostgresServer

from outlast import Outlast
from outlast.cli.bench_figures import Figure, at_most, beside
from outlast.cli.bench_measure import in_turn
from outlast.cli.bench_processes import until
from outlast.cli.bench_work import FOLDER, counts_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    from outlast.task import Task

CALLERS = 100
POOL = 10
BULK = 1000
ENQUEUE, BULKS, DRAIN, PGQUEUER, OBAN, TWO, BESIDE = 2.5, 0.4, 0.4, 2.0, 8.0, 1.3, 0.8
IDLE = 0.002
PINGS = 100
FEWER = {"pgqueuer": 2, "oban": 8}
"""Peers get so many times fewer jobs to drain; the rate is a rate, and the run ends sooner."""
PATIENCE = 300.0
ROOT = Path(__file__).resolve().parents[1]

_FINISHED = """
INSERT INTO outlast.ended (seq, id, line, state, payload, created_at, finished_at, gone_at,
    started_at, attempt, worker, result)
SELECT -n, '00000000-' || lpad(n::text, 24, '0'), 1, 4, $1::bytea, 1, 2, 4e9, 1.5, 1, 'w', 'null'
FROM generate_series(1, $2::int) AS n
"""
_DELAYED = """
INSERT INTO outlast.jobs (id, line, state, payload, created_at, due)
SELECT '10000000-' || lpad(n::text, 24, '0'), 1, 0, $1::bytea, 1,
    extract(epoch FROM clock_timestamp()) + 86400 + n
FROM generate_series(1, $2::int) AS n
"""
_COUNTS = (
    "INSERT INTO outlast.changes (line, ready, delayed, running, done, dead, cancelled)"
    " VALUES (1, 0, $1, 0, $2, 0, 0)"
)


class Bench:
    """Measures on one server; each measurement has a database of its own, made anew."""

    def __init__(self, server: PostgresServer, folder: Path, options: argparse.Namespace) -> None:
        self.server = server
        self.folder = folder
        self.rounds: int = options.rounds
        self.seconds: float = options.seconds
        self.jobs: int = options.jobs
        self.finished: int = options.finished
        self.url = server.url("bench")

    async def _fresh(self) -> None:
        connection = await asyncpg.connect(self.server.url())
        await connection.execute("DROP DATABASE IF EXISTS bench WITH (FORCE)")
        await connection.execute("CREATE DATABASE bench")
        await connection.execute("CHECKPOINT")
        await connection.close()
        for path in self.folder.iterdir():
            path.unlink()

    # -- producers

    async def _produce(self, callers: int, one: Callable[[], Awaitable[object]]) -> float:
        """Calls a second."""
        await one()  # what is done but once is no part of a rate
        began = time.perf_counter()
        number = 0

        async def producer() -> None:
            nonlocal number
            while time.perf_counter() - began < self.seconds:
                await one()
                number += 1

        await asyncio.gather(*(producer() for _ in range(callers)))
        return number / (time.perf_counter() - began)

    async def _raw_producers(self, bulk: bool) -> float:
        await self._fresh()
        async with asyncpg.create_pool(self.url, min_size=POOL, max_size=POOL) as pool:
            await pool.execute(RAW_TABLES)
            if bulk:
                return BULK * await self._produce(
                    1, lambda: pool.execute(RAW_MANY, [PAYLOAD] * BULK)
                )
            return await self._produce(CALLERS, lambda: pool.execute(RAW_ONE, PAYLOAD))

    async def _producers(self, bulk: bool) -> float:
        await self._fresh()
        app, noop = _app(self.url)
        async with app:
            if bulk:
                return BULK * await self._produce(
                    1, lambda: app.enqueue_many([noop.call(PAYLOAD) for _ in range(BULK)])
                )
            return await self._produce(CALLERS, lambda: noop.enqueue(PAYLOAD))

    def enqueue(self) -> list[Figure]:
        figures = []
        for name, bulk, least in (
            (f"enqueue, {CALLERS} at once, beside one insert a commit", False, ENQUEUE),
            (f"enqueue_many of {BULK}, beside one insert of {BULK} rows", True, BULKS),
        ):
            rates = in_turn(
                self.rounds,
                partial(self._run, self._raw_producers, bulk),
                partial(self._run, self._producers, bulk),
            )
            figures.append(beside(name, rates["ours"], rates["yardstick"], least=least))
        return figures

    def _run(self, producers: Callable[[bool], Coroutine[Any, Any, float]], bulk: bool) -> float:
        return asyncio.run(producers(bulk))

    # -- workers

    @contextmanager
    def _process(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        environment = os.environ | {
            DSN: self.url, FOLDER: str(self.folder), "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        log = self.folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", *command], env=environment, cwd=ROOT, stdout=out, stderr=out
            )
        try:
            yield process
        except TimeoutError as error:
            raise SystemExit(f"{command}: {error}; {log.read_text()[-2000:]}") from error
        finally:
            process.terminate()
            process.wait()

    def _peer_drain(self, peer: str) -> float:
        """Jobs a second that a peer does, or the bare loop."""
        asyncio.run(self._fresh())
        jobs = self.jobs // FEWER.get(peer, 1)
        with self._process("bench.postgres_work", peer, str(jobs)) as fill:
            assert fill.wait() == 0, (self.folder / "log").read_text()
        with self._process("bench.postgres_work", peer) as worker:
            until(lambda: counts_in(self.folder).number >= jobs, PATIENCE, worker)
        return counts_in(self.folder).rate

    def _drain(self, processes: int = 1, crowd: bool = False) -> float:
        asyncio.run(self._fill(crowd))
        with self._worker("-c", "100", "-p", str(processes)) as worker:
            until(lambda: counts_in(self.folder).number >= self.jobs, PATIENCE, worker)
        return counts_in(self.folder).rate

    @contextmanager
    def _worker(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        command = ("outlast", "worker", "bench.postgres_work:app", "--log-level", "error")
        with self._process(*command, *options) as worker:
            yield worker

    async def _fill(self, crowd: bool) -> None:
        await self._fresh()
        app, noop = _app(self.url)
        async with app:
            await noop.using(delay=86400).enqueue(PAYLOAD)  # so that there is the line
            if crowd:
                await self._crowd()
            for _ in range(0, self.jobs, 2000):
                await app.enqueue_many([noop.call(PAYLOAD) for _ in range(2000)])

    async def _crowd(self) -> None:
        """Finished jobs and delayed ones, which the others are drained beside."""
        connection = await asyncpg.connect(self.url)
        delayed = self.finished // 10
        await connection.execute(_FINISHED, PAYLOAD.encode(), self.finished)
        await connection.execute(_DELAYED, PAYLOAD.encode(), delayed)
        await connection.execute(_COUNTS, delayed, self.finished)
        await connection.execute("VACUUM ANALYZE outlast.ended")
        await connection.execute("VACUUM ANALYZE outlast.jobs")
        await connection.execute("CHECKPOINT")
        await connection.close()

    def drain(self) -> list[Figure]:
        sides: dict[str, Callable[[], float]] = {
            "ours": self._drain,
            "two": lambda: self._drain(2),
            "raw": lambda: self._peer_drain("raw"),
            "pgqueuer": lambda: self._peer_drain("pgqueuer"),
        }
        if importlib.util.find_spec("oban"):
            sides["oban"] = lambda: self._peer_drain("oban")
        found = _medians(self.rounds, sides)
        ours = found["ours"]
        figures = [
            beside("drain, beside a bare loop", ours, found["raw"], least=DRAIN),
            beside("drain, beside PgQueuer", ours, found["pgqueuer"], least=PGQUEUER),
            beside("drain, two processes beside one", found["two"], ours, least=TWO),
        ]
        if "oban" in found:
            figures.insert(2, beside("drain, beside Oban", ours, found["oban"], least=OBAN))
        return figures

    def crowd(self) -> list[Figure]:
        found = _medians(
            self.rounds, {"alone": self._drain, "crowd": lambda: self._drain(crowd=True)}
        )
        what = f"drain, {self.finished:,} finished and {self.finished // 10:,} delayed beside"
        return [beside(what, found["crowd"], found["alone"], least=BESIDE)]

    # -- moments

    def idle(self) -> list[Figure]:
        runs = [asyncio.run(self._idle()) for _ in range(self.rounds)]
        trip, commit, ours = (statistics.median(column) for column in zip(*runs, strict=True))
        limit = 2 * trip + commit + IDLE
        said = f"{trip * 1e3:.2f} ms a round trip, {commit * 1e3:.2f} ms a commit"
        floor = f"2 round trips + 1 commit + 2 ms = {limit * 1e3:.2f} ms"
        return [
            Figure(
                "idle latency", f"{ours * 1e3:.2f} ms", said, ours / (2 * trip + commit), floor,
                at_most(limit, ours),
            )
        ]  # fmt: skip

    async def _idle(self) -> tuple[float, float, float]:
        """Medians: a round trip, what a commit takes beyond one, and ours.

        All with the same pauses: an idle processor is slow, for each of them.
        """
        await self._fresh()
        connection = await asyncpg.connect(self.url)
        await connection.execute(RAW_TABLES)
        trips, commits = [], []
        for at in range(PINGS // 2):
            await _pause(at)
            trips.append(await _timed(connection.fetchval("SELECT 1")))
            await _pause(at)
            commits.append(await _timed(connection.execute(RAW_ONE, PAYLOAD)))
        await connection.close()
        trip = statistics.median(trips)
        app, _ = _app(self.url)

        @app.task(name="ping")
        async def ping(sent: float) -> None: ...

        async with app:
            with self._worker("-c", "10") as worker:
                for at in range(PINGS + 10):
                    await _pause(at)
                    handle = await ping.enqueue(time.monotonic())
                    await handle.result(timeout=PATIENCE)
                assert worker.poll() is None
        pairs = list(struct.iter_unpack("<dd", (self.folder / "pings").read_bytes()))[10:]
        waits = [began - sent for sent, began in pairs]
        return trip, max(0.0, statistics.median(commits) - trip), statistics.median(waits)


def _app(url: str) -> tuple[Outlast, Task[[str], None]]:
    app = Outlast(url)

    @app.task(name="noop")
    async def noop(payload: str) -> None: ...

    return app, noop


async def _pause(at: int) -> None:
    """Odd ones, so that no rhythm is met each time; idle: a NOTIFY is sent each 50 ms at most."""
    await asyncio.sleep(0.055 + at % 7 * 0.007)


async def _timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def _medians(rounds: int, sides: dict[str, Callable[[], float]]) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(rounds):
        for name in sides if round_ % 2 == 0 else reversed(sides):
            found[name].append(sides[name]())
    return {name: statistics.median(rates) for name, rates in found.items()}


PARTS: dict[str, Callable[[Bench], list[Figure]]] = {
    "enqueue": Bench.enqueue,
    "drain": Bench.drain,
    "idle": Bench.idle,
    "crowd": Bench.crowd,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one run of producers")
    parser.add_argument("--jobs", type=int, default=40_000, help="in a drained store")
    parser.add_argument("--finished", type=int, default=1_000_000, help="a tenth as many delayed")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--quick", action="store_true", help="its figures are worth nothing")
    parser.add_argument("--folder", default=None, help="on the disk that is measured")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.jobs, options.finished = 1, 0.3, 4000, 10_000
    tempfile.tempdir = options.folder
    server = PostgresServer()
    figures: list[Figure] = []
    try:
        server.start()
        with tempfile.TemporaryDirectory(prefix="outlast-postgres-bench-") as folder:
            bench = Bench(server, Path(folder), options)
            for name in options.only or PARTS:
                for figure in PARTS[name](bench):
                    figures.append(figure)
                    print(" | ".join(figure.cells()), flush=True)
    finally:
        server.remove()
    if options.json is not None:
        options.json.write_text(json.dumps([figure.as_dict() for figure in figures]))
    return int(any(figure.ok is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
