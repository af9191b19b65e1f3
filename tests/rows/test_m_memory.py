"""M: no more threads, no more processes, and more jobs than should ever be in memory."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cases.rig import ROOT
from tests.conformance.steps import job
from tests.rows.memory import peak
from tests.stores.children import NOBODY, Child, become, listen, say

from outlast.errors import StoreError
from outlast.job import done
from outlast.store import Durability
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cases.rig import Rig


def without_threads(path: str) -> None:
    """In a child that may start no thread, and then may."""
    become(NOBODY)
    store = SqliteStore(path, durability=Durability.PROCESS)
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
    try:
        store.open_now()
    except (StoreError, RuntimeError) as error:
        say([type(error).__name__, str(error)])
    else:
        say(["opened", ""])
    resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
    store.open_now()
    store.add_now([job("a")])
    (claim,) = store.claim_now(["default"], [None], 1, 60.0, "w")
    say(store.settle_now([done(claim)]))
    listen()
    store.close_now()


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that a user without rights can reach and owns."""
    folder = Path(tempfile.mkdtemp(prefix="outlast-test-"))
    os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.needs("cut")
def test_m1_without_threads_opening_is_refused_and_works_later(reachable: Path) -> None:
    with Child(without_threads, path=str(reachable / "jobs.db")) as child:
        kind, says = child.hear()
        assert kind in ("StoreUnavailable", "RuntimeError")
        assert "thread" in says
        assert child.hear() == []
        child.end()


NO_FORK = """
import subprocess

left = [3]
real = subprocess._fork_exec


def fork_exec(*args):
    if left[0]:
        left[0] -= 1
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return real(*args)


subprocess._fork_exec = fork_exec
"""


def test_m1_a_supervisor_that_can_not_fork_says_so_and_tries_again(rig: Rig) -> None:
    (rig.folder / "sitecustomize.py").write_text(NO_FORK)
    paths = os.pathsep.join([str(rig.folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    ids = rig.enqueue(*[("instant", n) for n in range(3)])
    worker = rig.start("-c", "1", "-p", "2", PYTHONPATH=paths)
    rig.until_ended(ids)
    assert rig.workers_said.count("no worker process can be started") == 3
    assert "Traceback" not in rig.workers_said
    assert rig.stop(worker) == 0
    assert rig.ends(ids) == [1] * 3


MANY = 60_000


def hold_many(path: str) -> None:
    """In a child: open a store that is full, look, claim, settle, and say what that took."""
    began = time.monotonic()
    store = SqliteStore(path, durability=Durability.PROCESS)
    store.open_now()
    opened = time.monotonic() - began
    before = peak()
    depth = store.depth_now("default")
    taken = 0
    while taken < MANY // 2:
        claims = store.claim_now(["default"], [None], 200, 60.0, "w")
        store.settle_now([done(claim, b'"' + b"y" * 300 + b'"') for claim in claims])
        taken += len(claims)
    asyncio.run(store.find(limit=100))
    asyncio.run(store.lines())
    asyncio.run(store.prune(1000))
    after = peak()
    say([depth.live, opened, before, after])
    listen()
    store.close_now()


def test_m2_as_many_as_there_are_memory_stays_flat(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore(str(path), durability=Durability.PROCESS)
    store.open_now()
    payload = b'"' + b"x" * 1000 + b'"'
    for _ in range(MANY // 2000):
        store.add_now([job(payload=payload) for _ in range(2000)])
    store.close_now()
    assert path.stat().st_size > 60_000_000
    with Child(hold_many, path=str(path)) as child:
        live, opened, before, after = child.hear(50)
        child.end()
    assert live == MANY
    assert opened < 5.0
    # In KiB: far less than the file, most of it SQLite's page cache and the first batch.
    assert after - before < 12_000
