"""How long things take at worst, against what is promised: F8 to F11, on a machine left alone.

``python -m tests.proof.bounds``; ``--only reopen,stop`` for some. Every figure is a list of samples
with a limit that its 99th percentile must not pass.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
from tests.proof import journal as journals
from tests.proof import plain, tolls
from tests.proof.actors import dumped_in_child
from tests.proof.checker import check
from tests.proof.faults import in_process
from tests.proof.fleet import Fleet, is_dry
from tests.proof.patience import linger, until
from tests.proof.processes import Child, fork, in_child
from tests.proof.stores import sqlite_store

from outlast.job import Job
from outlast.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.servers import Server

__all__ = ["Figure", "Figures", "measure"]

ROOT = Path(__file__).parents[2]
MANY = 100_000
LEASE = 2.0
NOTHING = 1e-3
TOGETHER = 8
"""Workers that are started at once, and then stopped one by one."""


@dataclass
class Figure:
    """One promise: what was measured, in seconds or in pieces, and what it may be at most."""

    name: str
    limit: float
    samples: list[float] = field(default_factory=list)
    unit: str = "s"

    @property
    def p99(self) -> float:
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]

    def told(self) -> dict[str, Any]:
        ordered = sorted(self.samples)
        return {
            "name": self.name,
            "unit": self.unit,
            "limit": self.limit,
            "samples": len(ordered),
            "p50": round(ordered[len(ordered) // 2], 4),
            "p99": round(self.p99, 4),
            "worst": round(ordered[-1], 4),
        }


@dataclass
class Figures:
    """All that was measured in one go."""

    figures: list[Figure] = field(default_factory=list)
    broken: dict[str, int] = field(default_factory=dict)
    stories: list[str] = field(default_factory=list)

    def figure(self, name: str, limit: float, unit: str = "s") -> Figure:
        self.figures.append(Figure(name, limit, unit=unit))
        return self.figures[-1]

    def told(self, seed: int) -> dict[str, Any]:
        late = [each for each in self.figures if each.p99 > each.limit]
        broken = self.broken | ({"late": len(late)} if late else {})
        stories = [f"{each.name}: p99 {each.p99:.3f}, limit {each.limit}" for each in late]
        return {
            "bounds": [each.told() for each in self.figures],
            "samples": sum(len(each.samples) for each in self.figures),
            "load": round(os.getloadavg()[1], 1),
            "broken": broken,
            "stories": self.stories + stories,
            "seed": seed,
        }


@contextmanager
def place() -> Iterator[Path]:
    """A folder with a store to be and a witness, which the tasks are told of."""
    with tempfile.TemporaryDirectory(prefix="outlast-bounds-") as scratch:
        folder = Path(scratch)
        (folder / "witness").mkdir()
        _at(folder)
        yield folder


def _at(folder: Path) -> None:
    """Where the tasks of this process, and of those it starts, find their store and journal."""
    os.environ["OUTLAST_URL"] = f"sqlite:///{folder / 'proof.db'}"
    os.environ["PROOF_WITNESS"] = str(folder / "witness")


def events(folder: Path, kind: str) -> list[journals.Event]:
    return [event for event in journals.read(folder / "witness") if event.kind == kind]


# -- F8


def without_faults(found: Figures, dice: random.Random) -> None:
    """Producers and workers that nobody harms: nothing runs twice."""
    figure = found.figure("F8: second runs of a job without a fault, of those run", 0, "runs")
    with tempfile.TemporaryDirectory(prefix="outlast-bounds-") as scratch:
        fleet = Fleet(Path(scratch), dice)
        try:
            fleet.muster()
            until(lambda: any(fleet.witness.glob("*.jsonl")), 60.0, "somebody says something")
            linger(10.0)
            fleet.stop_producers()
            until(lambda: is_dry(fleet.db), 60.0, "all has ended", beat=0.1)
            fleet.dismiss()
            final = dumped_in_child(lambda: sqlite_store(fleet.db), Path(scratch) / "final.json")
            history = journals.read(fleet.witness)
            report = check(history, final, author=lambda job: tolls.author(job.result))
        finally:
            fleet.disband()
    figure.samples += [float(report.explained)] + [0.0] * (report.runs - 1)
    for name, ids in report.broken.items():
        found.broken[name] = found.broken.get(name, 0) + len(ids)
        found.stories.append(f"{name}: {ids[:3]}")


# -- F9


def reopening(found: Figures, dice: random.Random) -> None:
    """A process is killed at its work; the next opens the store, with 100,000 jobs, and claims."""
    figure = found.figure(f"F9: SQLite with {MANY:,} jobs, from the start to the first claim", 0.25)
    with tempfile.TemporaryDirectory(prefix="outlast-bounds-") as scratch:
        folder = Path(scratch)
        db, said = folder / "proof.db", folder / "said"

        async def grow() -> None:
            store = sqlite_store(db)
            await store.open()
            for start in range(0, MANY, 5000):
                await store.add([Job(id=f"j{start + n}") for n in range(5000)])
            # Killed without a word: the log is as it is.
            os.kill(os.getpid(), signal.SIGKILL)

        async def begin() -> None:
            began = time.monotonic()
            store = sqlite_store(db)
            await store.open()
            claims = await store.claim(["default"], [None], 10, 60.0, "w")
            took = time.monotonic() - began
            said.write_text(str(took) if claims else "")
            while True:
                await store.add([Job(id=os.urandom(8).hex())])

        _killed(fork(lambda: asyncio.run(grow())), lambda: False)
        for _ in range(60):
            said.unlink(missing_ok=True)
            _killed(
                fork(lambda: asyncio.run(begin())),
                lambda: said.exists() and bool(said.read_text()),
                dice.uniform(0.0, 0.1),
            )
            figure.samples.append(float(said.read_text()))


def _killed(child: Child, when: Callable[[], bool], later: float = 0.0) -> None:
    """Wait for it to kill itself, or kill it once it has come so far."""
    until(lambda: not child.alive or when(), 300.0, "it comes so far", beat=0.002)
    if child.alive:
        linger(later)
    child.kill()


def another_host(found: Figures, dice: random.Random) -> None:
    """Workers die whose life signs nobody sees: their jobs run elsewhere once the lease is over."""
    figure = found.figure(
        f"F9: from the kill to the next start on another host, lease {LEASE:g} s", LEASE + 1
    )
    with tempfile.TemporaryDirectory(prefix="outlast-bounds-") as scratch:
        pairs = [Path(scratch) / str(number) for number in range(6)]
        children: list[Child] = []
        try:
            for folder in pairs:
                (folder / "witness").mkdir(parents=True)
                in_child(partial(_enqueue, 1, folder), 60.0)
                children.append(fork(partial(_unseen, folder)))
            for folder in pairs:
                until(partial(events, folder, "start"), 60.0, "it runs")
                children.append(fork(partial(_unseen, folder)))
            for folder in pairs:
                until(partial(_has, 3, folder, "birth"), 60.0, "somebody stands by")
            linger(LEASE * 1.5)  # who stands by gives everybody a full lease at first
            killed = []
            for victim in children[: len(pairs)]:
                linger(dice.uniform(0.0, 0.4))
                killed.append(time.monotonic())
                victim.kill()
            for folder, at in zip(pairs, killed, strict=True):
                until(partial(_has, 2, folder, "start"), 60.0, "it runs again")
                figure.samples.append(events(folder, "start")[-1].at - at)
        finally:
            for child in children:
                child.kill()


def _has(number: int, folder: Path, kind: str) -> bool:
    return len(events(folder, kind)) >= number


def _unseen(folder: Path) -> None:
    """A worker as if it were on another host: it shows no life signs, and looks for none."""

    def store() -> Any:
        made: Any = sqlite_store(folder / "proof.db")
        made.lifelines = None
        return made

    async def serve() -> None:
        tolls.say_hello()
        worker = Worker(store, tolls.app.tasks, queues=(tolls.QUEUE,), lease=LEASE)
        await worker.run()

    _at(folder)
    asyncio.run(serve())


def _enqueue(
    jobs: int, folder: Path | None = None, seconds: float = 600.0, program: Any = tolls
) -> None:
    async def add() -> None:
        tolls.say_hello()
        async with program.app as app:
            await app.enqueue_many([program.slow.call(seconds) for _ in range(jobs)])

    if folder is not None:
        _at(folder)
    asyncio.run(add())


def servers(found: Figures, dice: random.Random) -> None:
    """A server is killed under a worker that has much to do, and started again.

    Not a broker with records elsewhere: without it, the work goes on by what these tell.
    """
    from tests.servers import PostgresServer, RabbitServer, RedisServer

    redis = RedisServer()
    with _running(redis):
        _restarts(found, dice, redis, "Redis", f"{redis.url()}?durability=process")
    postgres = PostgresServer()
    with _running(postgres):
        _restarts(found, dice, postgres, "Postgres", postgres.url())
    rabbit = RabbitServer()
    with _running(rabbit):
        _restarts(found, dice, rabbit, "RabbitMQ", rabbit.url())


@contextmanager
def _running(server: Server) -> Iterator[None]:
    try:
        server.start()
        yield
    finally:
        server.remove()


def _restarts(found: Figures, dice: random.Random, server: Server, title: str, url: str) -> None:
    figure = found.figure(f"F9: {title}, from when it accepts connections to the next start", 3)
    for _ in range(6):
        with place() as folder:
            os.environ["OUTLAST_URL"] = url
            figure.samples.append(_restarted(server, folder, dice))


def _restarted(server: Server, folder: Path, dice: random.Random) -> float:
    with _service(folder, program=plain):
        in_child(lambda: _enqueue(60, seconds=0.3, program=plain), 60.0)
        until(partial(_has, 10, folder, "start"), 60.0, "it works")
        server.kill()
        linger(dice.uniform(0.5, 1.5))
        server.start()
        began = time.monotonic()

        def again() -> list[float]:
            return [event.at - began for event in events(folder, "start") if event.at > began]

        until(again, 60.0, "it works again")
        took = min(again())
        until(lambda: len(_done(folder)) >= 60, 120.0, "all is done")
    return took


def _done(folder: Path) -> set[str]:
    return {event.id for event in events(folder, "end") if event.note == "done"}


# -- F10


@contextmanager
def _service(folder: Path, *words: str, program: Any = tolls) -> Iterator[subprocess.Popen[bytes]]:
    """`outlast worker`, with a supervisor and one process."""
    command = [sys.executable, "-m", "outlast", "worker", f"{program.__name__}:app", "--create"]
    command += ["-q", tolls.QUEUE, "--log-level", "error", *words]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, stderr=log, process_group=0)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def stopping(found: Figures, dice: random.Random, stops: int = 80) -> None:
    """SIGTERM to `outlast worker`, idle and busy.

    Some are started beside each other, since that takes most of the time. They are stopped one
    after the other, each while the rest is at peace.
    """
    idle = found.figure("F10: from SIGTERM to the end of an idle worker", 0.3)
    busy = found.figure("F10: from the end of the grace time to the end of a busy worker", 0.3)
    back = found.figure("F10: from giving a job back to the end of the worker", 0.1)
    grace = 0.25
    for first in range(0, stops, TOGETHER):
        with ExitStack() as stack:
            folders = [stack.enter_context(place()) for _ in range(min(TOGETHER, stops - first))]
            workers = []
            for number, folder in enumerate(folders):
                in_child(partial(_enqueue, 1, folder, 600.0 if number % 2 else 0.0), 60.0)
                _at(folder)
                workers.append(stack.enter_context(_service(folder, "--grace", str(grace))))
            for number, folder in enumerate(folders):
                what = "start" if number % 2 else "end"
                until(partial(_has, 1, folder, what), 60.0, "it runs, or has worked")
            linger(dice.uniform(0.3, 0.6))
            for number, (folder, worker) in enumerate(zip(folders, workers, strict=True)):
                with _end_of(worker) as end:
                    began = time.monotonic()
                    worker.send_signal(signal.SIGTERM)
                    given = _watch(folder / "proof.db", worker) if number % 2 else None
                    ended = end()
                if given is None:
                    idle.samples.append(ended - began)
                else:
                    busy.samples.append(max(ended - began - grace, NOTHING))
                    back.samples.append(max(ended - given, NOTHING))


@contextmanager
def _end_of(worker: subprocess.Popen[bytes]) -> Iterator[Callable[[], float]]:
    """The moment of its end. ``Popen.wait`` with a timeout only looks, every 50 ms in the end."""
    fd = os.pidfd_open(worker.pid)

    def end() -> float:
        if not select.select([fd], [], [], 60.0)[0]:
            raise RuntimeError("the worker does not end")
        at = time.monotonic()
        if worker.wait() != 0:
            raise RuntimeError(f"the supervisor ended with {worker.returncode}")
        return at

    try:
        yield end
    finally:
        os.close(fd)


def _watch(db: Path, worker: subprocess.Popen[bytes]) -> float:
    """The moment in which the job is seen to be back in its queue."""
    connection = apsw.Connection(str(db))
    connection.set_busy_timeout(5000)
    try:
        while True:
            ended = worker.poll() is not None
            if connection.execute("SELECT count(*) FROM jobs WHERE state < 3").get:
                return time.monotonic()
            if ended:
                raise RuntimeError("the worker ended, and its job is not back")
            linger(0.001)
    finally:
        connection.close()


# -- F11


def full_disk(found: Figures, dice: random.Random) -> None:
    """Nothing accepted is lost on a full disk, all of it ends, and new work comes in after it."""
    left = found.figure("F11: accepted jobs that could not end while the disk was full", 0, "jobs")
    again = found.figure("F11: from when there is room to the next accepted job", 1.0)
    for _ in range(5):
        seen = in_process("full-disk", tmpfs="48m")
        left.samples.append(float(seen.acknowledged - 1 - seen.notes["ended while full"]))
        again.samples.append(seen.notes["microseconds until an add"] / 1e6)
        for name, count in seen.broken.items():
            found.broken[name] = found.broken.get(name, 0) + count
            found.stories.append(seen.story)


SCENARIOS: dict[str, Callable[[Figures, random.Random], None]] = {
    "reopen": reopening,
    "stop": stopping,
    "host": another_host,
    "disk": full_disk,
    "servers": servers,
    "calm": without_faults,
}


def measure(names: Sequence[str], seed: int) -> dict[str, Any]:
    """These scenarios, one after the other."""
    found = Figures()
    dice = random.Random(seed)
    for name in names:
        SCENARIOS[name](found, dice)
    return found.told(seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="scenarios by comma: " + ", ".join(SCENARIOS))
    parser.add_argument("--stops", type=int, default=80, help="how often a worker is stopped")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=3600.0, help="not heeded: it is one piece")
    told = parser.parse_args()
    names = told.only.split(",") if told.only else list(SCENARIOS)
    if shutil.which("unshare") is None:
        names = [name for name in names if name != "disk"]
    SCENARIOS["stop"] = partial(stopping, stops=told.stops)
    print(json.dumps(measure(names, told.seed)))


if __name__ == "__main__":
    main()
