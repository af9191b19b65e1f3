"""Redis: outlast beside a raw stream and beside its peers, in one run on private servers.

``python -m bench.redis_bench``, after ``scripts/venv bench``. Each server syncs its append-only
file with each write (``appendfsync always``). The sides take turns, each on an empty server, and
the medians count. Prints each floor with pass or FAIL; the exit code is 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.redis_work import SERVER, SIDE, SIDES
from tests.servers import RedisServer

from outlast.cli.bench_figures import Figure, at_most, beside
from outlast.cli.bench_processes import until
from outlast.cli.bench_work import FOLDER, counts_in

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PEERS = tuple(name for name in SIDES if name not in ("outlast", "raw"))
JOBS = {
    "outlast": 40_000, "raw": 40_000, "dramatiq": 4000, "taskiq": 4000, "saq": 2000,
    "arq": 1000, "streaq": 2000, "celery": 500, "rq": 300,
}  # fmt: skip
"""Of a drain: about as many as a side does in two seconds. The rate is a rate."""
PINGS = 200
QUEUED = 20_000
PARTS = ("enqueue", "bulk", "drain", "idle", "memory")


class Bench:
    """One server, emptied before each measurement, and a folder for counts."""

    def __init__(self, folder: Path, server: RedisServer, scale: float) -> None:
        self.folder = folder
        self.server = server
        self.scale = scale
        self._number = 0

    def _clean(self, side: str) -> dict[str, str]:
        self.server.empty()
        self._number += 1
        counts = self.folder / str(self._number)
        counts.mkdir()
        told = {SERVER: self.server.url(), SIDE: side, FOLDER: str(counts)}
        return os.environ | told | {"PYTHONPATH": str(ROOT), "C_FORCE_ROOT": "1"}

    def _do(self, env: dict[str, str], what: str, size: float) -> Any:
        words = SIDES[env[SIDE]].module("bench.redis_work", env[SIDE], what)
        done = subprocess.run(
            [*words, str(size)], env=env, cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
        return json.loads(done.stdout.splitlines()[-1])

    def rate(self, side: str, what: str) -> float:
        """Of ``enqueue`` or ``bulk``, jobs a second."""
        return float(self._do(self._clean(side), what, 1.5 * self.scale))

    def drain(self, side: str) -> float:
        """Jobs a second that one worker starts, from its first to its last."""
        env = self._clean(side)
        jobs = max(50, int(JOBS[side] * self.scale))
        self._do(env, "fill", jobs)
        with self._worker(env) as worker:
            until(lambda: counts_in(Path(env[FOLDER])).number >= jobs, 300, worker)
        return counts_in(Path(env[FOLDER])).rate

    def idle(self, side: str) -> float:
        """Milliseconds from the call to the first line of the task: the median."""
        env = self._clean(side)
        number = max(20, int(PINGS * self.scale))
        with self._worker(env):
            self._do(env, "pings", number)
        found = list(struct.iter_unpack("<dd", (Path(env[FOLDER]) / "pings").read_bytes()))
        waits: list[float] = [(began - sent) * 1e3 for sent, began in found[number // 10 :]]
        return statistics.median(waits)

    def memory(self, side: str) -> float:
        """Bytes of the server's memory for each queued job."""
        env = self._clean(side)
        self._do(env, "fill", 1)
        before = self._used()
        self._do(env, "fill", QUEUED)
        return (self._used() - before) / QUEUED

    def _used(self) -> int:
        found = re.search(rb"used_memory:(\d+)", self.server.say("INFO", "memory"))
        assert found is not None
        return int(found[1])

    @contextmanager
    def _worker(self, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / "log").open("ab") as log:
            words = [sys.executable, "-m", "bench.redis_bench", "--worker", env[SIDE]]
            said = subprocess.run(words, env=env, cwd=ROOT, stdout=subprocess.PIPE, check=True)
            worker = subprocess.Popen(
                json.loads(said.stdout), env=env, cwd=ROOT, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        try:
            yield worker
        except TimeoutError:
            sys.exit((self.folder / "log").read_text()[-3000:])
        finally:
            worker.send_signal(signal.SIGTERM)
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()


def measure(bench: Bench, part: str, rounds: int, peers: list[str]) -> list[Figure]:
    """The rows of one part; each side goes first every other time."""
    sides = ["outlast", "raw", *(peers if part in ("enqueue", "drain") else ())]
    found: dict[str, list[float]] = {side: [] for side in sides}
    for round_ in range(rounds):
        for side in sides if round_ % 2 == 0 else reversed(sides):
            if part in ("enqueue", "bulk"):
                found[side].append(bench.rate(side, part))
            else:
                found[side].append(getattr(bench, part)(side))
            print(f"  {part} {side}: {found[side][-1]:,.2f}", file=sys.stderr, flush=True)
    middle = {side: statistics.median(each) for side, each in found.items()}
    ours, raw = middle["outlast"], middle["raw"]
    if part == "bulk":
        return [beside("enqueue, 1,000 a call; raw: pipelined XADD", ours, raw, least=0.4)]
    if part == "idle":
        return [
            Figure("idle latency, median; raw: blocked XREADGROUP", f"{ours:.2f} ms",
                   f"{raw:.2f} ms", ours / raw, "raw + 2 ms", at_most(raw + 2, ours))
        ]  # fmt: skip
    if part == "memory":
        return [
            Figure("server memory of a queued job; raw: a stream's entry", f"{ours:,.0f} B",
                   f"{raw:,.0f} B", ours / raw, "600 B", at_most(600, ours))
        ]  # fmt: skip
    return _beside_peers(part, middle)


def _beside_peers(part: str, middle: dict[str, float]) -> list[Figure]:
    ours, raw = middle.pop("outlast"), middle.pop("raw")
    best = max(middle, key=lambda side: middle[side], default="")
    if part == "enqueue":
        rows = [beside("enqueue, 100 at once; raw: XADD, 100 at once", ours, raw)]
        floor, what = 3.0, "enqueue, 100 at once; the best peer"
    else:
        rows = [beside("drain, one worker; raw: XREADGROUP of 100", ours, raw, least=0.3)]
        floor, what = 5.0, "drain, one worker; the best peer"
    for side in sorted(middle, key=lambda side: -middle[side]):
        if side == best:
            row = beside(
                f"{what}: {side}", ours, middle[side], least=floor, floor=f"{floor:g} times"
            )
        else:
            row = beside(f"{part}; {side}", ours, middle[side])
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS), help="parts by comma")
    parser.add_argument("--peers", default=",".join(PEERS), help="by comma")
    parser.add_argument("--quick", action="store_true", help="short, and worth nothing as a figure")
    parser.add_argument("--folder", default=None, help="for the counts")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(SIDES[given.worker]().worker()))
        return 0
    peers = [name for name in given.peers.split(",") if name]
    rows: list[Figure] = []
    server = RedisServer(appendfsync="always")
    server.start()
    try:
        with tempfile.TemporaryDirectory(prefix="outlast-redis-", dir=given.folder) as folder:
            bench = Bench(Path(folder), server, 0.1 if given.quick else 1.0)
            for part in given.only.split(","):
                rounds = 1 if given.quick or part == "memory" else given.rounds
                rows += measure(bench, part, rounds, peers)
    finally:
        server.remove()
    for row in rows:
        print("   ".join(cell for cell in row.cells() if cell))
    if given.json:
        given.json.write_text(json.dumps([row.as_dict() for row in rows], indent=2))
    return int(any(row.ok is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
