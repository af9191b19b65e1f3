"""The usual add and the usual claim on PostgreSQL: one trip each; else the long way."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.conformance.steps import idle
from tests.engine.rig import until
from tests.servers import PostgresServer, shared

from outlast.chance import SystemChance, made_at
from outlast.clock import SystemClock
from outlast.errors import JobNotFound
from outlast.job import Job, done
from outlast.stores import connect
from outlast.stores.postgres import link
from outlast.stores.postgres.bell import Bell
from outlast.stores.postgres.store import FIRST_LOOK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from outlast.stores.postgres.store import PostgresStore

pytestmark = pytest.mark.needs("servers")

DROP = """
DO $f$ DECLARE f regprocedure; BEGIN FOR f IN SELECT p.oid FROM pg_proc p JOIN pg_namespace n
ON n.oid = p.pronamespace WHERE n.nspname = '{s}' LOOP EXECUTE 'DROP ROUTINE ' || f; END LOOP;
END $f$
"""
_numbers = itertools.count(1)


@pytest.fixture
async def server() -> PostgresServer:
    return shared(PostgresServer)


@pytest.fixture
async def store(server: PostgresServer) -> AsyncIterator[PostgresStore]:
    made: Any = connect(server.url(schema=f"swift{next(_numbers)}"))
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the driver was asked, a trip each, but for the clock, which is read once a second."""
    monkeypatch.setattr(link, "QUIET", 1e9)
    found: list[str] = []

    def watch(name: str) -> None:
        ask = getattr(asyncpg.Connection, name)

        async def watched(self: Any, text: str, *values: Any, **more: Any) -> Any:
            if "clock_timestamp()" not in text and "pg_" not in text:
                found.append(text)
            return await ask(self, text, *values, **more)

        monkeypatch.setattr(asyncpg.Connection, name, watched)

    for name in ("execute", "fetch", "fetchval"):
        watch(name)
    return found


async def _claim(store: PostgresStore, *tasks: str | None) -> list[Any]:
    return list(await store.claim(["default"], tasks or [None], 10, 60.0, "w"))


async def _warm(store: PostgresStore) -> None:
    """The line is made, an epoch taken, news are heard, and nothing has been quiet for long."""
    for task in (None, "t"):
        await store.add([Job(id=f"warm-{task}", task=task)])
    while claims := await _claim(store, None, "t"):
        assert not await store.settle([done(claim) for claim in claims])
    await until(lambda: store._running().bell.listens)


async def test_one_trip_to_add_and_one_to_claim(store: PostgresStore, said: list[str]) -> None:
    await _warm(store)
    for tasks in ((None,), (None, "t")):
        said.clear()
        for task in tasks:
            await store.add([Job(id=f"{len(tasks)}-{task}", task=task)])
        assert len(said) == len(tasks), said
        said.clear()
        claims = await _claim(store, *tasks)
        assert len(said) == 1, said
        assert len(claims) == len(tasks)
        depth = await store.depth("default")
        assert (depth.ready, depth.running) == (0, len(tasks))
        assert not await store.settle([done(claim) for claim in claims])


async def test_the_same_by_the_long_way(
    server: PostgresServer, store: PostgresStore, said: list[str]
) -> None:
    """The functions are gone, as where a role may not make them."""
    await _warm(store)
    connection = await asyncpg.connect(server.url())
    await connection.execute(DROP.format(s=store.schema))
    await connection.close()
    for n in range(2):
        said.clear()
        await store.add([Job(id=f"a{n}")])
        [claim] = await _claim(store)
        assert claim.job.id == f"a{n}"
        assert "COMMIT" in said[-1]
        assert not await store.settle([done(claim)])


@pytest.mark.parametrize("there", [True, False])
async def test_others_are_told_in_the_same_trip(
    server: PostgresServer, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Or else, where the routines are gone, in a trip of its own; and by no other way."""
    rung = []
    ring = Bell.ring

    async def watched(self: Bell, link: Any) -> None:
        rung.append(self)
        await ring(self, link)

    monkeypatch.setattr(Bell, "ring", watched)
    other: Any = connect(server.url(schema=store.schema))
    await other.open()
    try:
        await _warm(store)
        bell = store._running().bell
        waits = await idle(other)
        if not there:  # and nobody connects any more, and makes them again
            connection = await asyncpg.connect(server.url())
            await connection.execute(DROP.format(s=store.schema))
            await connection.close()
        await until(lambda: not bell._pending and bell.due_in(anything=True) == 0.0)
        rung.clear()
        await store.add([Job(id="told")])
        async with asyncio.timeout(60):
            await waits
            while not (claims := await _claim(other)):  # something of before was heard late
                await other.wait(["default"], 1e6)
        assert [claim.job.id for claim in claims] == ["told"]
        if there:
            assert not rung
        else:
            await until(lambda: rung)
        assert not await other.settle([done(claim) for claim in claims])
    finally:
        await other.close()


async def test_one_trip_to_look_for_an_end(store: PostgresStore, said: list[str]) -> None:
    await _warm(store)
    await store.add([Job(id="a")])
    said.clear()
    assert await store.finished(["a"], 0) == []
    assert len(said) == 1, said
    [claim] = await _claim(store)
    assert not await store.settle([done(claim, b"1")])
    [job] = await store.finished(["a"], 0)
    assert job.result == b"1"
    with pytest.raises(JobNotFound):
        await store.finished(["never"], 0)


class Looked(SystemClock):
    """Where the first sleep ends when it is told to."""

    def __init__(self) -> None:
        self.asked: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()

    async def sleep(self, seconds: float, /) -> None:
        if not self.asked.done():
            self.asked.set_result(seconds)
            await self.over.wait()


async def test_a_job_made_just_now_is_not_looked_for_at_once(
    store: PostgresStore, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are those who run it held up by that; what was made long ago is."""
    await _warm(store)
    young = SystemChance().uuid7()
    await store.add([Job(id=young), Job(id="old")])
    clock = Looked()
    monkeypatch.setattr(clock, "now", lambda: made_at(young), raising=False)
    monkeypatch.setattr(store, "clock", clock)
    said.clear()
    waits = asyncio.ensure_future(store.finished([young], 60))
    async with asyncio.timeout(60):
        assert await clock.asked == FIRST_LOOK
        assert not said
        [job] = [claim for claim in await _claim(store) if claim.job.id == young]
        assert not await store.settle([done(job, b"1")])
        clock.over.set()
        assert [job.id for job in await waits] == [young]
    said.clear()
    assert await store.finished([young, "old"], 0)
    assert said
    said.clear()
    monkeypatch.setattr(clock, "now", lambda: (made_at(young) or 0) + 1, raising=False)
    assert await store.finished([young], 60)
    assert said


async def test_nobody_listens_who_does_not_wait(
    store: PostgresStore, server: PostgresServer
) -> None:
    """Each ring wakes all that listen; who reads alone is one of them only when he waits."""
    await store.add([Job(id="a", queue="other")])
    assert await store.get(["a"]) != [None]
    bell = store._running().bell
    assert bell._hearing.connected
    assert not bell.listens
    waits = asyncio.ensure_future(store.claim_next(
        ["default"], [None], 1, 60.0, "w", 1e6, asyncio.get_running_loop().create_future()
    ))  # fmt: skip
    other: Any = connect(server.url(schema=store.schema))
    await other.open()
    try:
        await until(lambda: bell.listens)
        await other.add([Job(id="told")])
        async with asyncio.timeout(60):
            while not (claims := await waits):  # it looks once when it begins to listen
                waits = asyncio.ensure_future(store.claim_next(
                    ["default"], [None], 1, 60.0, "w", 1e6,
                    asyncio.get_running_loop().create_future(),
                ))  # fmt: skip
        assert [claim.job.id for claim in claims] == ["told"]
        assert not await store.settle([done(claim) for claim in claims])
    finally:
        await other.close()


async def test_the_same_id_again(store: PostgresStore) -> None:
    """Live or ended, it is not stored twice, although the swift way met it first."""
    await _warm(store)
    assert (await store.add([Job(id="a")]))[0].created
    assert not (await store.add([Job(id="a")]))[0].created
    [claim] = await _claim(store)
    assert not await store.settle([done(claim)])
    assert not (await store.add([Job(id="a")]))[0].created
    assert await _claim(store) == []


async def test_a_key_that_is_held_while_queued_is_free_once_claimed(store: PostgresStore) -> None:
    await _warm(store)
    for n in range(2):
        await store.add([Job(id=f"k{n}", task="t", key="k", key_queued=True)])
        [claim] = await _claim(store, "t")
        assert claim.job.id == f"k{n}"
