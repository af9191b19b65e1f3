"""Messages a second of an outlast worker on a Celery queue, beside a Celery worker: on one Redis.

Both have so many processes, run the same task, which appends one byte to a file, and write its
result where Celery's client looks for it. Timed from the first run to the last result. Celery acks
early, as it does by default; outlast stores each message on its disk first. They take turns, and
the medians count. The exit code is 1 if the floor is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.servers import RedisServer  # noqa: E402

FLOOR = 3.0
BEAT = 0.002
PATIENCE = 300.0

FILL = """
import sys
from bench.beside_work import celery
with celery.producer_or_acquire() as producer:
    for n in range(int(sys.argv[1])):
        celery.send_task("mark", (n,), producer=producer)
"""


def once(side: str, folder: Path, count: int, options: argparse.Namespace) -> float:
    """Messages a second."""
    folder.mkdir()
    server = RedisServer(appendonly="no")
    server.start()
    marks = folder / "marks"
    environment = {
        **os.environ, "BROKER": server.url(), "MARKS": str(marks), "PYTHONPATH": str(ROOT),
        "C_FORCE_ROOT": "1", "FOLDER": str(folder), "IGNORE": "1" if options.no_results else "",
    }  # fmt: skip
    size, processes = str(options.concurrency), str(options.processes)
    commands = {
        "celery": ["celery", "-A", "bench.beside_work:celery", "worker", "-P", "prefork",
                   "-c", processes, "-l", "WARNING"],
        "outlast": ["outlast", "worker", "bench.beside_work:app", "--create",
                    "--processes", processes, "--concurrency", size],
    }  # fmt: skip
    try:
        fill = [sys.executable, "-W", "ignore", "-c", FILL, str(count)]
        subprocess.run(fill, env=environment, cwd=folder, check=True)
        log = folder / "log"
        with log.open("wb") as out:
            worker = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", *commands[side]], env=environment,
                cwd=folder, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        try:
            return _timed(server, marks, count, worker, log, not options.no_results)
        finally:
            worker.send_signal(signal.SIGTERM)
            try:
                worker.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
    finally:
        server.remove()


def _timed(
    server: RedisServer,
    marks: Path,
    count: int,
    worker: subprocess.Popen[bytes],
    log: Path,
    results: bool,
) -> float:
    deadline = time.monotonic() + PATIENCE

    def wait(number: int, look: bool) -> int:
        while True:
            size = marks.stat().st_size if marks.exists() else 0
            if size >= number and (not look or _results(server) >= number):
                return size
            if worker.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(log.read_text())
            time.sleep(BEAT)

    first = wait(1, False)
    began = time.perf_counter()
    wait(count, results)
    return (count - first) / (time.perf_counter() - began)


def _results(server: RedisServer) -> int:
    """How many keys expire: results do, queues don't."""
    found = re.search(rb"expires=(\d+)", server.say("INFO", "keyspace"))
    return int(found[1]) if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=100, help="of outlast's, in a process")
    parser.add_argument("--no-results", action="store_true")
    parser.add_argument("--folder", default=None, help="on the disk that is measured")
    options = parser.parse_args()
    found: dict[str, list[float]] = {"celery": [], "outlast": []}
    with tempfile.TemporaryDirectory(prefix="outlast-beside-", dir=options.folder) as base:
        for round_ in range(options.rounds):
            for side in list(found) if round_ % 2 == 0 else reversed(list(found)):
                count = options.messages if side == "outlast" else options.messages // 2
                found[side].append(once(side, Path(base) / f"{side}-{round_}", count, options))
    ours, theirs = (statistics.median(found[side]) for side in ("outlast", "celery"))
    row = {"outlast": round(ours), "celery": round(theirs), "ratio": round(ours / theirs, 2)}
    print(json.dumps(row))
    ok = ours / theirs >= FLOOR
    print(f"{'pass' if ok else 'FAIL'}  {ours / theirs:.2f} times Celery's worker, floor {FLOOR}")
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
