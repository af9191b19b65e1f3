"""A move killed at each of its steps: no job is lost, none runs twice, none is in two places.

A step is a write to a file, a call of a store, or a statement of the PostgreSQL driver: before it,
and behind. By default some of them; with ``OUTLAST_FULL_CASES`` every one, on all pairs of stores.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import apsw
import asyncpg
import pytest
from tests.proof.processes import fork, in_child
from tests.proof.stores import sqlite_store
from tests.proof.vfs import watched
from tests.servers import PostgresServer, RedisServer, shared

from outlast.job import Failure, Job, Step, done, retry
from outlast.moving import move
from outlast.store import Durability
from outlast.stores import connect
from outlast.stores.sqlite.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from tests.proof.vfs import Op

FULL = "OUTLAST_FULL_CASES" in os.environ
KINDS = ("sqlite", "postgresql", "redis")
CALLS = [f"{a}-{b}" for a in KINDS for b in KINDS if FULL and (a, b) != ("sqlite", "sqlite")] or [
    "postgresql-redis", "redis-sqlite",
]  # fmt: skip
STATEMENTS = ["sqlite-postgresql", *(["postgresql-sqlite", "postgresql-postgresql"] * FULL)]
HOURS = 4 * 3600 if FULL else 600
JOBS = 12
BITE = 4
REST = 1_000_000
_numbers = itertools.count(1)


class Killer:
    """Looks on at the files of both stores, and kills this process at its n-th write."""

    def __init__(self, nth: int) -> None:
        self._left = nth

    def before(self, op: Op) -> None:
        if op.kind in ("write", "sync", "truncate", "delete"):
            self.burn()

    def burn(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def after(self, op: Op) -> None:
        """Nothing to note."""


class Places:
    """Where the jobs come from, and where they go; each opened in children alone."""

    def __init__(self, folder: Path, kinds: str = "sqlite-sqlite", number: int = 0) -> None:
        self.folder = folder
        self._kinds = kinds.split("-")
        self._number = number

    def files(self) -> list[Path]:
        names = zip(self._kinds, ("from.db", "to.db"), strict=True)
        return [self.folder / name for kind, name in names if kind == "sqlite"]

    def store(self, which: int, vfs: str | None = None) -> Any:
        """From here, or to there; not open yet."""
        kind = self._kinds[which]
        if kind == "sqlite":
            return sqlite_store(self.folder / ("from.db", "to.db")[which], vfs=vfs)
        space = f"kill{self._number}{'ab'[which]}"
        if kind == "redis":
            return connect(
                shared(RedisServer).url(), namespace=space, durability=Durability.PROCESS
            )
        return connect(shared(PostgresServer).url(schema=space), durability=Durability.PROCESS)


async def fill(places: Places) -> None:
    """Items, and tasks of which one has failed once and done a step."""
    store = places.store(0)
    await store.open()
    await store.add([Job(id=f"item-{n:02}", queue="items", keep=0.0) for n in range(JOBS)])
    await store.add(
        [Job(id=f"task-{n}", task="t", keep=0.0, key=f"k-{n}", max_attempts=9) for n in range(3)]
    )
    [claim] = await store.claim(["default"], ["t"], 1, 60.0, "w")
    await store.remember(claim, Step(name="charge", result=b"paid"))
    await store.settle([retry(claim, 0, Failure(kind="error"))])
    await store.close()


async def take_and_settle(places: Places, which: int, limit: int) -> list[str]:
    """What can be claimed there is run, and gone; its ids."""
    store = places.store(which)
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


async def run_a_few(places: Places, limit: int) -> None:
    """Run what can be run, wherever that is: it must not be in both places."""
    here = await take_and_settle(places, 0, limit)
    there = await take_and_settle(places, 1, limit)
    assert not (here and there), f"runnable in both: {here} and {there}"
    with open(places.folder / "ran", "a") as file:
        file.writelines(f"{each}\n" for each in (*here, *there))


async def finish(places: Places) -> None:
    """The move goes on to its end, and all that is left is run; files are looked through."""
    await move_once(places)
    await run_a_few(places, REST)
    for path in places.files():
        connection = apsw.Connection(str(path))
        try:
            assert verify(connection) == []
        finally:
            connection.close()


async def move_once(
    places: Places,
    vfs: str | None = None,
    killer: Killer | None = None,
    *,
    by_statements: bool = False,
) -> None:
    source, target = places.store(0, vfs), places.store(1, vfs)
    await source.open()
    await target.open()
    if killer is not None and by_statements:
        burn_at_statements(killer)
    elif killer is not None:
        for store in (source, target):
            burn_at_calls(store, killer)
    await move(source, target, bite=BITE)
    await target.close()
    await source.close()


def burning(real: Any, killer: Killer) -> Any:
    """The same call, before which the process may die, and behind."""

    async def call(*values: Any, **named: Any) -> Any:
        killer.burn()
        answer = await real(*values, **named)
        killer.burn()
        return answer

    return call


def burn_at_calls(store: Any, killer: Killer) -> None:
    """Each call of ``Movable`` is a write to a server: it may die before that, or behind."""
    names = "departure depart stay pack discard expect arrived unpack unexpect"
    for name in names.split():
        setattr(store, name, burning(getattr(store, name), killer))


def burn_at_statements(killer: Killer) -> None:
    """Of the PostgreSQL driver, from now on: in the middle of a transaction, or behind its end."""
    for name in ("execute", "fetch", "fetchval", "fetchrow"):
        setattr(asyncpg.Connection, name, burning(getattr(asyncpg.Connection, name), killer))


def life(places: Places, nth: int) -> None:
    """A move that dies at its n-th write to a file, unless it ends before."""
    with watched("proof-moving", Killer(nth)) as vfs:
        asyncio.run(move_once(places, vfs))


def life_by_calls(places: Places, nth: int) -> None:
    """One that dies at a call of a store."""
    asyncio.run(move_once(places, None, Killer(nth)))


def life_by_statements(places: Places, nth: int) -> None:
    """One that dies at a statement of a move; the stores are open."""
    asyncio.run(move_once(places, None, Killer(nth), by_statements=True))


def live(body: Any, places: Places, nth: int) -> bool:
    """Whether such a life came to its end."""
    child = fork(partial(body, places, nth))
    try:
        code = child.wait(120.0)
    finally:
        child.kill()
    assert code in (0, -signal.SIGKILL)
    return code == 0


def in_loop(work: Any, *args: Any) -> None:
    in_child(lambda: asyncio.run(work(*args)), 120.0)


def kill_and_judge(body: Any, places: Places, nth: int, again: int) -> bool:
    """Filled places; a move killed at the n-th, and once more on the way; whether the first came
    to its end."""
    ended = live(body, places, nth)
    in_loop(run_a_few, places, 2)
    live(body, places, again)
    in_loop(run_a_few, places, 2)
    in_loop(finish, places)
    ran = (places.folder / "ran").read_text().split()
    wanted = [f"item-{n:02}" for n in range(JOBS)] + [f"task-{n}" for n in range(3)]
    assert sorted(ran) == wanted, f"killed at {nth}, then {again}"
    assert [each for each in ran if each.startswith("item")] == wanted[:JOBS], "in their order"
    return ended


@pytest.mark.timeout(HOURS)
def test_killed_at_each_write(tmp_path: Path) -> None:
    filled = tmp_path / "filled"
    filled.mkdir()
    in_loop(fill, Places(filled))
    nth, ended, killed = 0, False, 0
    while not ended:
        nth += 1 if FULL else 4
        folder = tmp_path / str(nth)
        shutil.copytree(filled, folder)
        ended = kill_and_judge(life, Places(folder), nth, 11 + nth % 17)
        killed += not ended
    assert killed >= 10


def kill_at_some(body: Any, kinds: str, folder: Path, some: tuple[int, ...]) -> None:
    """At these steps, or at each until one life comes to its end."""
    # Here, and not in a child that ends, is where the servers belong.
    for kind, server in (("postgresql", PostgresServer), ("redis", RedisServer)):
        if kind in kinds:
            shared(server)
    killed = 0
    for nth in itertools.count(1) if FULL else some:
        mine = folder / str(nth)
        mine.mkdir()
        places = Places(mine, kinds, next(_numbers))
        in_loop(fill, places)
        ended = kill_and_judge(body, places, nth, 5 + nth % 13)
        killed += not ended
        if ended and FULL:
            break
    assert killed >= 2


@pytest.mark.needs("servers", "redis")
@pytest.mark.timeout(HOURS)
@pytest.mark.parametrize("kinds", CALLS)
def test_killed_at_calls_of_servers(kinds: str, tmp_path: Path) -> None:
    kill_at_some(life_by_calls, kinds, tmp_path, (7, 14, 22))


@pytest.mark.needs("servers")
@pytest.mark.timeout(HOURS)
@pytest.mark.parametrize("kinds", STATEMENTS)
def test_killed_at_statements(kinds: str, tmp_path: Path) -> None:
    kill_at_some(life_by_statements, kinds, tmp_path, (48, 71, 96))
