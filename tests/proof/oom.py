"""A worker in a memory cgroup: the kernel kills it when a job eats too much."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.proof import tolls
from tests.proof.actors import dumped_in_child
from tests.proof.fleet import work
from tests.proof.patience import until
from tests.proof.processes import Child, fork, in_child
from tests.proof.stores import sqlite_store

from outlast.job import Status

__all__ = ["Starved", "starve"]

GROUPS = Path("/sys/fs/cgroup/memory")
LIMIT = 120 << 20


@dataclass
class Starved:
    """What became of the hog and of its neighbours."""

    hog: Status
    failure: str
    neighbours: dict[str, int]
    deaths: int


def starve() -> Starved | None:
    """Run a job that eats all memory among ten that don't; None where memory can't be limited."""
    if not os.access(GROUPS / "memory.limit_in_bytes", os.R_OK):
        return None
    group = GROUPS / f"outlast-proof-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))
        with tempfile.TemporaryDirectory(prefix="outlast-oom-") as scratch:
            return _starve(Path(scratch), group)
    finally:
        until(lambda: _removed(group), 60.0, "the cgroup is empty")


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def _starve(folder: Path, group: Path) -> Starved:
    witness = folder / "witness"
    witness.mkdir()
    os.environ["OUTLAST_URL"] = f"sqlite:///{folder / 'proof.db'}"
    os.environ["PROOF_WITNESS"] = str(witness)
    in_child(_enqueue, 60.0)
    deaths = 0
    child = fork(lambda: _work_in(group))
    try:
        while not _dry(folder / "proof.db"):
            if not child.alive:
                deaths += 1
                if child.wait(1) != -signal.SIGKILL or deaths > 5:
                    raise AssertionError(f"death {deaths}, with {child.wait(1)}")
                child = fork(lambda: _work_in(group))
            _pause(child)
    finally:
        child.kill()
    jobs = dumped_in_child(lambda: sqlite_store(folder / "proof.db"), folder / "final.json")
    hogs = [job for job in jobs.values() if job.task and job.task.endswith("hog")]
    others = Counter(str(job.status) for job in jobs.values() if job not in hogs)
    (hog,) = hogs
    return Starved(hog.status, hog.failure.kind if hog.failure else "", dict(others), deaths)


def _enqueue() -> None:
    async def add() -> None:
        async with tolls.app as app:
            calls = [tolls.quick.call("x") for _ in range(10)]
            await app.enqueue_many([*calls[:3], tolls.hog.call(4 * LIMIT), *calls[3:]])

    asyncio.run(add())


def _work_in(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
    work()


def _dry(db: Path) -> bool:
    from tests.proof.fleet import is_dry

    return is_dry(db)


def _pause(child: Child) -> None:
    """Until the worker died, or for a moment."""
    try:
        until(lambda: not child.alive, 0.1, "the worker dies")
    except TimeoutError:
        pass
