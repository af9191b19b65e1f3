"""Worker processes under a supervisor on a real file, for tests that kill them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from outlast import Outlast
from outlast.worker import WorkerOptions
from outlast.worker.supervisor import OPTIONS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

__all__ = ["PROGRAM", "Service", "wait_until"]

PROGRAM = '''
"""A program with tasks that say when they start and end."""
import asyncio, os, signal, threading, time
from outlast import Outlast, current
from outlast.hooks import Hooks

app = Outlast("sqlite:///jobs.db")

def log(what):
    note(what, current().id, current().attempt)

def note(what, id, attempt):
    line = f"{what} {id} {attempt} {os.getpid()}\\n"
    fd = os.open("log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)

class Says(Hooks):
    def worker_stopping(self, worker):
        note("stopping", worker, 0)

app.hooks.append(Says())

@app.task(name="quick")
async def quick(n: int) -> int:
    log("start")
    log("end")
    return n

@app.task(name="wait")
async def wait(name: str) -> int:
    """Until a file of that name is there."""
    log("start")
    while not os.path.exists(name):
        await asyncio.sleep(0.01)
    log("end")
    return os.getpid()

@app.task(name="poison")
async def poison() -> None:
    log("start")
    os._exit(137)

@app.task(name="segfault")
async def segfault() -> None:
    log("start")
    os.kill(os.getpid(), signal.SIGSEGV)

@app.task(name="unplugs")
async def unplugs() -> None:
    """Closes what the event loops of other threads wait with, and nothing of its own."""
    log("start")
    own = asyncio.get_running_loop()._selector.fileno()
    for number in map(int, os.listdir("/proc/self/fd")):
        if number != own and "eventpoll" in os.path.realpath(f"/proc/self/fd/{number}"):
            os.close(number)

@app.task(name="blocks", timeout=0.2)
async def blocks() -> None:
    log("start")
    time.sleep(60)

@app.task(name="deaf")
def deaf() -> None:
    log("start")
    threading.Event().wait(60)

@app.task(name="fails", retry=2)
async def fails() -> None:
    log("start")
    raise ValueError
'''

NAMES = ("quick", "wait", "poison", "segfault", "unplugs", "blocks", "deaf", "fails")


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Return once the condition holds."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        pause.wait(0.01)


class Service:
    """The program in a folder, its store, and supervisors that run its workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = folder / "jobs.db"
        (folder / "program.py").write_text(PROGRAM)
        self.app = Outlast(f"sqlite:///{self.db}")
        self.supervisors: list[subprocess.Popen[bytes]] = []
        for name in NAMES:
            self.app.task(name=name)(_stand_in(name))

    def start(self, **options: Any) -> subprocess.Popen[bytes]:
        """A supervisor, as the command line starts it."""
        given = WorkerOptions(target="program:app", create=True, grace=10.0)._replace(**options)
        environment = {**os.environ, OPTIONS: json.dumps(given._asdict())}
        log = (self.folder / "stderr.txt").open("ab")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-m", "outlast.worker.supervisor"],
                cwd=self.folder, env=environment, stderr=log,
            )  # fmt: skip
        self.supervisors.append(process)
        return process

    @property
    def stderr(self) -> str:
        path = self.folder / "stderr.txt"
        return path.read_text() if path.exists() else ""

    def lines(self, what: str, id: str | None = None) -> list[tuple[str, int, int]]:
        """Which jobs started or ended: id, attempt and process."""
        path = self.folder / "log.txt"
        text = path.read_text() if path.exists() else ""
        whole, _, _ = text.rpartition("\n")  # the last line may be under way
        rows = [line.split() for line in whole.splitlines()]
        return [(r[1], int(r[2]), int(r[3])) for r in rows if r[0] == what and id in (None, r[1])]

    def has_started(self, id: str, times: int) -> bool:
        """Whether a job was started so often."""
        return len(self.lines("start", id)) == times

    def children(self, supervisor: subprocess.Popen[bytes]) -> list[int]:
        """The worker processes of a supervisor."""
        path = f"/proc/{supervisor.pid}/task/{supervisor.pid}/children"
        with open(path) as file:
            return [int(word) for word in file.read().split()]

    def kill_all(self) -> None:
        """End whatever still runs."""
        for process in self.supervisors:
            if process.poll() is None:
                for child in self.children(process):
                    os.kill(child, signal.SIGKILL)
                process.kill()
            process.wait()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Outlast]:
        async with self.app:
            yield self.app


def _stand_in(name: str) -> Any:
    """A function with the signature that the program's task has; it is never run here."""

    async def named(name: str) -> int:
        raise AssertionError(name)

    async def numbered(n: int) -> int:
        raise AssertionError(name)

    async def bare() -> int:
        raise AssertionError(name)

    return {"quick": numbered, "wait": named}.get(name, bare)
