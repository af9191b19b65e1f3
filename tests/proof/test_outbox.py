"""Relays and workers killed at each of their steps: each job of an outbox has one effect."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.proof.processes import fork, in_child
from tests.proof.stores import sqlite_store
from tests.proof.vfs import watched

from outlast import Outlast, outbox_tables
from outlast.chance import SystemChance
from outlast.job import Status, done
from outlast.relay import SqliteBox, relay_all

if TYPE_CHECKING:
    from pathlib import Path

    from tests.proof.vfs import Op

JOBS = 3


class Fuse:
    """Burns down with each step, and kills this process at its end."""

    def __init__(self, length: int) -> None:
        self._left = length

    def burn(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, op: Op) -> None:
        if op.kind in ("write", "sync", "truncate", "delete"):
            self.burn()

    def after(self, op: Op) -> None:
        """Nothing to note."""


class Fused:
    """A box or a store each of whose calls burns the fuse, before it is made and after."""

    def __init__(self, real: Any, fuse: Fuse) -> None:
        self._real = real
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*values: Any) -> Any:
            self._fuse.burn()
            answer = await found(*values)
            self._fuse.burn()
            return answer

        return call


def app_at(folder: Path) -> Outlast:
    app = Outlast(f"sqlite:///{folder}/jobs.db")

    @app.task(name="ship")
    async def ship(n: int) -> None: ...

    return app


def fill(folder: Path) -> None:
    """An outbox with jobs, and a store."""
    app = app_at(folder)
    connection = sqlite3.connect(folder / "shop.db")
    connection.executescript(outbox_tables("sqlite"))
    with connection:
        app.outbox(connection).enqueue_many([app.tasks["ship"].call(n) for n in range(JOBS)])
    connection.close()


async def relay_once(folder: Path, vfs: str | None, fuse: Fuse) -> None:
    store = sqlite_store(folder / "jobs.db", vfs=vfs)
    box = SqliteBox(str(folder / "shop.db"))
    await store.open()
    await box.open(create=False)
    fused_store: Any = Fused(store, fuse)
    fused_box: Any = Fused(box, fuse)
    await relay_all(fused_store, fused_box, "default", SystemChance())
    await box.close()
    await store.close()


def relay_life(folder: Path, length: int) -> None:
    fuse = Fuse(length)
    with watched("proof-outbox", fuse) as vfs:
        asyncio.run(relay_once(folder, vfs, fuse))


async def run_all(folder: Path) -> None:
    """Run whatever can be run by now, and forget it: nothing in the store remembers the ids."""
    store = sqlite_store(folder / "jobs.db")
    await store.open()
    claims = await store.claim(["default"], ["ship"], 1000, 60.0, "w")
    with open(folder / "ran", "a") as file:
        file.writelines(f"{claim.job.id}\n" for claim in claims)
    assert await store.settle([done(claim) for claim in claims]) == []
    if claims:
        assert await store.purge("default", [Status.DONE]) == len(claims)
    await store.close()


def run_them(folder: Path) -> None:
    asyncio.run(run_all(folder))


def end_of(life: Any, *args: Any) -> int:
    child = fork(partial(life, *args))
    try:
        return child.wait(120.0)
    finally:
        child.kill()


@pytest.mark.timeout(600)
def test_a_relay_killed_at_each_step_neither_loses_nor_doubles(tmp_path: Path) -> None:
    length, code, killed = 0, -signal.SIGKILL, 0
    while code:
        length += 3
        folder = tmp_path / str(length)
        folder.mkdir()
        in_child(partial(fill, folder), 60.0)
        code = end_of(relay_life, folder, length)
        assert code in (0, -signal.SIGKILL)
        killed += code != 0
        in_child(partial(run_them, folder), 60.0)
        end_of(relay_life, folder, 3 + length % 11)
        in_child(partial(run_them, folder), 60.0)
        assert end_of(relay_life, folder, 1_000_000) == 0
        in_child(partial(run_them, folder), 60.0)
        ran = (folder / "ran").read_text().split()
        assert len(ran) == len(set(ran)) == JOBS, f"killed at step {length}: {ran}"
    assert killed >= 7


def work(folder: Path, *, inbox: bool, dies: bool) -> None:
    """A worker whose task dies behind the commit of its own rows, unless it has died before."""
    app = Outlast(f"sqlite:///{folder}/jobs.db")
    ran: list[int] = []

    @app.task(name="sell", max_crashes=None)
    async def sell(n: int) -> None:
        connection = sqlite3.connect(folder / "shop.db")
        with connection:
            if not inbox or app.inbox(connection).is_new():
                connection.execute("INSERT INTO sold VALUES (?)", (n,))
        connection.close()
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        ran.append(n)

    async def main() -> None:
        async with app.worker():
            while (await app.store.depth("default")).live:
                await app.store.wait(["none"], 0.01)

    asyncio.run(main())


@pytest.mark.parametrize("inbox", [True, False])
def test_a_worker_killed_behind_its_commit_applies_once_with_an_inbox(
    tmp_path: Path, inbox: bool
) -> None:
    def prepare() -> None:
        connection = sqlite3.connect(tmp_path / "shop.db")
        connection.executescript(outbox_tables("sqlite"))
        connection.execute("CREATE TABLE sold (n INTEGER)")
        app = Outlast(f"sqlite:///{tmp_path}/jobs.db")

        @app.task(name="sell", max_crashes=None)
        async def sell(n: int) -> None: ...

        with connection:
            app.outbox(connection).enqueue(sell.call(7))
        connection.close()
        asyncio.run(app.relay(f"sqlite:///{tmp_path}/shop.db", once=True))

    in_child(prepare, 60.0)
    for _ in range(2):
        assert end_of(partial(work, tmp_path, inbox=inbox, dies=True)) == -signal.SIGKILL
    assert end_of(partial(work, tmp_path, inbox=inbox, dies=False)) == 0
    connection = sqlite3.connect(tmp_path / "shop.db")
    [count] = connection.execute("SELECT count(*) FROM sold").fetchone()
    connection.close()
    assert count == (1 if inbox else 3), "without an inbox each run has its effect"
