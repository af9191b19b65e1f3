"""One store in a folder, workers of the command line, and the log that the tasks write."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import apsw
import pytest
from tests.cases.program import LOG, make
from tests.proof.patience import until

from outlast.access import ledger_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from outlast import Outlast
    from outlast.job import Job, Status
    from outlast.store import Ledger

__all__ = [
    "FULL",
    "SECRET",
    "UP",
    "Rig",
    "Said",
    "assert_hidden",
    "everywhere",
    "outlast",
    "scaled",
]

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
UP = "(durability: "
"""What a worker says when it is ready."""
FULL = bool(os.environ.get("OUTLAST_FULL_CASES"))
"""Whether the cases run with the counts and waits in which they were reported."""


def scaled(full: T, short: T) -> T:
    """The full number, or the one that CI has the time for."""
    return full if FULL else short


everywhere = pytest.mark.parametrize(
    "rig", ["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("servers"))], indirect=True
)
"""A case that is to hold on every store that keeps jobs beyond the program."""


class Said(NamedTuple):
    """A line of the log."""

    what: str
    id: str
    attempt: int
    pid: int
    at: float


class Rig:
    """What every case works with."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder / 'case.db'}"
        self.log = folder / "log"
        self.workers: list[subprocess.Popen[bytes]] = []
        os.environ[LOG] = str(self.log)

    # -- the store

    def run(self, work: Callable[[Outlast], Awaitable[T]]) -> T:
        """Do something with the app open, in an event loop of its own."""

        async def opened() -> T:
            app = make(self.url)
            async with app:
                return await work(app)

        return asyncio.run(opened())

    def enqueue(self, *calls: tuple[Any, ...], **using: Any) -> list[str]:
        """Store calls given as (task, *arguments), all or none; their ids."""

        async def work(app: Outlast) -> list[str]:
            made = [app.tasks[name].using(**using).call(*args) for name, *args in calls]
            return [handle.id for handle in await app.enqueue_many(made)]

        return self.run(work)

    def ledger(self, work: Callable[[Ledger], Awaitable[T]]) -> T:
        async def through(app: Outlast) -> T:
            return await work(ledger_of(app.store))

        return self.run(through)

    def job(self, id: str) -> Job:
        (found,) = self.ledger(lambda ledger: ledger.get([id]))
        assert found is not None
        return found

    def until_up(self) -> None:
        """Wait until every worker that was started has said that it is ready."""
        until(self._all_up, 60.0, "all workers are up")

    def _all_up(self) -> bool:
        return self.workers_said.count(UP) >= len(self.workers)

    def statuses(self, ids: Sequence[str]) -> Counter[Status]:
        jobs = self.ledger(lambda ledger: ledger.get(ids))
        return Counter(job.status for job in jobs if job is not None)

    def until_ended(self, ids: Sequence[str], seconds: float = 60.0) -> None:
        """Wait until all of them have ended."""

        async def work(app: Outlast) -> None:
            ledger, left = ledger_of(app.store), set(ids)
            async with asyncio.timeout(seconds):
                while left:
                    left -= {job.id for job in await ledger.finished(sorted(left), seconds)}

        self.run(work)

    # -- the log

    def said(self, what: str, id: str | None = None) -> list[Said]:
        if not self.log.exists():
            return []
        found = []
        whole, _, _ = self.log.read_text().rpartition("\n")  # the last may be under way
        for line in whole.splitlines():
            word, its_id, attempt, pid, at = line.split()
            if word == what and id in (None, its_id):
                found.append(Said(word, its_id, int(attempt), int(pid), float(at)))
        return found

    def starts(self, ids: Sequence[str]) -> list[int]:
        """How often each was started."""
        counts = Counter(line.id for line in self.said("start"))
        return [counts[id] for id in ids]

    def ends(self, ids: Sequence[str]) -> list[int]:
        counts = Counter(line.id for line in self.said("end"))
        return [counts[id] for id in ids]

    def until_started(self, id: str, times: int = 1, seconds: float = 60.0) -> None:
        until(lambda: len(self.said("start", id)) >= times, seconds, f"start {times} of {id}")

    # -- workers

    def start(
        self, *options: str, before: Sequence[str] = (), **environment: str
    ) -> subprocess.Popen[bytes]:
        """`outlast worker`, in a session of its own; ``before`` are words put before it."""
        words = [sys.executable, "-m", "outlast", "worker", "tests.cases.program:app", "--create"]
        with (self.folder / "workers.log").open("ab") as log:
            worker = subprocess.Popen(
                [*before, *words, *options],
                cwd=ROOT,
                env={**os.environ, "OUTLAST_URL": self.url, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.workers.append(worker)
        return worker

    def members(self, worker: subprocess.Popen[bytes]) -> list[int]:
        """The supervisor and its worker processes."""
        return [worker.pid, *children_of(worker.pid)]

    def signal(self, worker: subprocess.Popen[bytes], number: int) -> None:
        """Send it to the supervisor and to its worker processes."""
        for pid in self.members(worker):
            # The workers of one that is killed follow it by themselves.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def freeze(self, worker: subprocess.Popen[bytes]) -> None:
        """Stop every thread of it. In the middle of a commit it would stop the others too."""
        until(lambda: self._is_frozen(worker), 60.0, "it stands still, and holds nobody up")

    def _is_frozen(self, worker: subprocess.Popen[bytes]) -> bool:
        self.signal(worker, signal.SIGSTOP)
        until(lambda: all(map(_stands_still, self.members(worker))), 60.0, "it stands still")
        if not self.url.startswith("sqlite:"):
            return True
        connection = apsw.Connection(str(self.folder / "case.db"))
        try:
            connection.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            self.signal(worker, signal.SIGCONT)
            return False
        finally:
            connection.close()
        return True

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        self.signal(worker, signal.SIGKILL)
        worker.wait()

    def stop(self, worker: subprocess.Popen[bytes], seconds: float = 60.0) -> int:
        worker.send_signal(signal.SIGTERM)
        return worker.wait(seconds)

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                self.signal(worker, signal.SIGCONT)
                self.kill(worker)

    @property
    def workers_said(self) -> str:
        path = self.folder / "workers.log"
        return path.read_text() if path.exists() else ""


def _stands_still(pid: int) -> bool:
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return {task.read_text().rpartition(")")[2].split()[0] for task in tasks} == {"T"}


def children_of(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


# -- what is shown to people

SECRET = "S3cr3t!pw"
"""The password of C51."""


def outlast(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, with all that it can be made to say."""
    return subprocess.run(
        [sys.executable, "-X", "dev", "-m", "outlast", "--debug", *words],
        cwd=ROOT, env={**os.environ, "OUTLAST_URL": url}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def assert_hidden(said: str) -> None:
    """Of C51: neither the password, nor an argument's way to colour the terminal."""
    for form in (SECRET, "S3cr3t%21pw", "\x1b[31m"):
        assert form not in said
