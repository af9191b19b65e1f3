"""A move killed at each of its steps: no job is lost, none runs twice, none is in two places."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.proof.processes import fork, in_child
from tests.proof.stores import sqlite_store
from tests.proof.vfs import watched

from outlast.job import Failure, Job, Step, done, retry
from outlast.moving import move
from outlast.stores.sqlite.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from tests.proof.vfs import Op

JOBS = 12
BITE = 4
REST = 1_000_000


class Killer:
    """Looks on at the files of both stores, and kills this process at its n-th write."""

    def __init__(self, nth: int) -> None:
        self._left = nth

    def before(self, op: Op) -> None:
        if op.kind in ("write", "sync", "truncate", "delete"):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def after(self, op: Op) -> None:
        """Nothing to note."""


async def fill(folder: Path) -> None:
    """Items, and tasks of which one has failed once and done a step."""
    store = sqlite_store(folder / "from.db")
    await store.open()
    await store.add([Job(id=f"item-{n:02}", queue="items", keep=0.0) for n in range(JOBS)])
    await store.add(
        [Job(id=f"task-{n}", task="t", keep=0.0, key=f"k-{n}", max_attempts=9) for n in range(3)]
    )
    [claim] = await store.claim(["default"], ["t"], 1, 60.0, "w")
    await store.remember(claim, Step(name="charge", result=b"paid"))
    await store.settle([retry(claim, 0, Failure(kind="error"))])
    await store.close()


async def take_and_settle(folder: Path, name: str, limit: int) -> list[str]:
    """What can be claimed there is run, and gone; its ids."""
    store = sqlite_store(folder / name)
    await store.open()
    try:
        claims = await store.claim(["items", "default"], [None, "t"], limit, 60.0, "w")
        for claim in claims:
            steps = [step.result for step in await store.recall(claim)]
            assert steps == ([b"paid"] if claim.job.id == "task-0" else [])
            assert claim.job.attempt == (2 if claim.job.id == "task-0" else 1)
        assert await store.settle([done(claim) for claim in claims]) == []
        return [claim.job.id for claim in claims]
    finally:
        await store.close()


async def run_a_few(folder: Path, limit: int) -> None:
    """Run what can be run, wherever that is: it must not be in both places."""
    here = await take_and_settle(folder, "from.db", limit)
    there = await take_and_settle(folder, "to.db", limit)
    assert not (here and there), f"runnable in both: {here} and {there}"
    with open(folder / "ran", "a") as file:
        file.writelines(f"{each}\n" for each in (*here, *there))


async def move_once(folder: Path, vfs: str | None = None) -> None:
    source = sqlite_store(folder / "from.db", vfs=vfs)
    target = sqlite_store(folder / "to.db", vfs=vfs)
    await source.open()
    await target.open()
    await move(source, target, bite=BITE)
    await target.close()
    await source.close()


def life(folder: Path, nth: int) -> None:
    """A move that dies at its n-th write, unless it ends before."""
    with watched("proof-moving", Killer(nth)) as vfs:
        asyncio.run(move_once(folder, vfs))


def live(folder: Path, nth: int) -> bool:
    """Whether such a life came to its end."""
    child = fork(partial(life, folder, nth))
    try:
        code = child.wait(120.0)
    finally:
        child.kill()
    assert code in (0, -signal.SIGKILL)
    return code == 0


def in_loop(work: Any, *args: Any) -> None:
    in_child(lambda: asyncio.run(work(*args)), 120.0)


def look_through(folder: Path) -> None:
    for name in ("from.db", "to.db"):
        connection = apsw.Connection(str(folder / name))
        try:
            assert verify(connection) == []
        finally:
            connection.close()


@pytest.mark.timeout(600)
def test_killed_at_each_write(tmp_path: Path) -> None:
    nth, ended, killed = 0, False, 0
    while not ended:
        nth += 3
        folder = tmp_path / str(nth)
        folder.mkdir()
        in_loop(fill, folder)
        ended = live(folder, nth)
        killed += not ended
        in_loop(run_a_few, folder, 2)
        live(folder, 11 + nth % 17)
        in_loop(run_a_few, folder, 2)
        in_loop(move_once, folder)
        in_loop(run_a_few, folder, REST)
        ran = (folder / "ran").read_text().split()
        wanted = [f"item-{n:02}" for n in range(JOBS)] + [f"task-{n}" for n in range(3)]
        assert sorted(ran) == wanted, f"killed at write {nth}"
        assert [each for each in ran if each.startswith("item")] == wanted[:JOBS], "in their order"
        in_child(partial(look_through, folder), 120.0)
    assert killed >= 15
