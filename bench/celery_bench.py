"""Celery on our SQLite transport, beside a private Redis and kombu's SQLAlchemy transport.

The same program on each: it publishes from some threads, and a worker drains it with acks_late.
They take turns, and the medians count. The exit code is 1 if a floor is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.servers import RedisServer  # noqa: E402

FLOORS = {"redis": 1.0, "sqlalchemy": 5.0}
"""How many times their rate ours has to be at least. This Redis keeps nothing on its disk."""
BEAT = 0.002
PATIENCE = 300.0


def publish(broker: str, marks: Path, count: int, threads: int) -> float:
    """Messages a second, with ``delay()`` as a program calls it."""
    code = (
        "import sys, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from bench.celery_work import mark\n"
        "count, threads = map(int, sys.argv[1:])\n"
        "mark.app.conf.broker_pool_limit = threads\n"
        "def some(n):\n"
        "    for _ in range(n): mark.delay()\n"
        "with ThreadPoolExecutor(threads) as pool:\n"
        "    list(pool.map(some, [1] * threads))\n"
        "    began = time.perf_counter()\n"
        "    list(pool.map(some, [count // threads] * threads))\n"
        "    print(time.perf_counter() - began)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(count), str(threads)],
        env=_environment(broker, marks), cwd=marks.parent, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    return count / float(done.stdout)


def drain(broker: str, marks: Path, count: int, pool: str, concurrency: int) -> float:
    """Tasks a second, from the first to the last one that runs in a worker with acks_late."""
    log = marks.with_suffix(".log")
    with log.open("wb") as out:
        worker = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "celery", "-A", "bench.celery_work", "worker",
             "-P", pool, "-c", str(concurrency), "-l", "WARNING"],
            env=_environment(broker, marks), cwd=marks.parent, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    try:
        _until(lambda: _size(marks) > 0, worker, log)
        began, first = time.perf_counter(), _size(marks)
        _until(lambda: _size(marks) >= count, worker, log)
        return (count - first) / (time.perf_counter() - began)
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def _until(condition: Any, worker: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if worker.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(log.read_text())
        time.sleep(BEAT)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _environment(broker: str, marks: Path) -> dict[str, str]:
    return {
        **os.environ, "BROKER": broker, "MARKS": str(marks), "PYTHONPATH": str(ROOT),
        "C_FORCE_ROOT": "1",
    }  # fmt: skip


def once(name: str, folder: Path, count: int, options: argparse.Namespace) -> tuple[float, float]:
    """Publish and drain on one broker, made for this."""
    folder.mkdir()
    server = None
    if name.startswith("redis"):
        always = {"appendfsync": "always"} if name.endswith("always") else {"appendonly": "no"}
        server = RedisServer(**always)
        server.start()
        broker = f"redis://127.0.0.1:{server.port}/0"
    elif name == "sqlalchemy":
        broker = f"sqla+sqlite:///{folder}/broker.db"
    else:
        broker = f"outlast+sqlite:///{folder}/app.db"
    try:
        marks = folder / "marks"
        sent = publish(broker, marks, count, options.threads)
        ran = drain(broker, marks, count, options.pool, options.concurrency)
        return sent, ran
    finally:
        if server is not None:
            server.remove()


def report(found: dict[str, list[tuple[float, float]]]) -> int:
    """A line for each broker and for each floor; the exit code."""
    rates: dict[str, dict[str, float]] = {}
    for name, pairs in found.items():
        sent, ran = (statistics.median(side) for side in zip(*pairs, strict=True))
        rates[name] = {"publish": sent, "drain": ran}
        print(json.dumps({"broker": name, "publish": round(sent), "drain": round(ran)}))
    missed = 0
    for name, floor in FLOORS.items():
        for what in ("publish", "drain") if {"outlast", name} <= set(rates) else ():
            ratio = rates["outlast"][what] / rates[name][what]
            missed += ratio < floor
            word = "pass" if ratio >= floor else "FAIL"
            print(f"{word}  {what}: {ratio:.2f} times {name}, floor {floor}")
    return int(missed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tasks", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=8, help="that publish")
    parser.add_argument("--pool", default="prefork")
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--only", default="outlast,redis,redis-always,sqlalchemy")
    parser.add_argument("--folder", default=None, help="on the disk that is measured")
    options = parser.parse_args()
    names = options.only.split(",")
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="outlast-celery-", dir=options.folder) as base:
        for round_ in range(options.rounds):
            for name in names if round_ % 2 == 0 else reversed(names):
                # SQLAlchemy's transport is so slow that fewer tasks say the same.
                count = options.tasks // 8 if name == "sqlalchemy" else options.tasks
                count -= count % options.threads
                folder = Path(base) / f"{name}-{round_}"
                found[name].append(once(name, folder, count, options))
    print(f"load average {os.getloadavg()[0]:.1f} at the end, this run in it", file=sys.stderr)
    return report(found)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
