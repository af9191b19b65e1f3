"""Jobs in transactions of the user's, on each driver; and the end of a job in one with his rows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from tests.fakes import FakeClock
from tests.servers import PostgresServer, shared

from outlast import (
    ConfigurationError,
    JobFailed,
    KeyConflict,
    LeaseLost,
    Outlast,
    Status,
    StoreClosed,
    StoreUnavailable,
    TaskError,
    Unsupported,
    current,
)
from outlast.access import ledger_of
from outlast.job import Death
from outlast.stores import connect
from outlast.testing import drain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.needs("servers")

WORKER = "outlast-testing"
_numbers = itertools.count(1)
KINDS = (
    "asyncpg", "pool", "psycopg", "psycopg-autocommit", "async-psycopg", "async-psycopg-autocommit",
    "sqlalchemy", "session", "async-sqlalchemy-asyncpg", "async-sqlalchemy-psycopg",
    "async-session",
)  # fmt: skip


async def ask(text: str, *values: Any) -> list[Any]:
    connection = await asyncpg.connect(shared(PostgresServer).url())
    try:
        return [row[0] for row in await connection.fetch(text, *values)]
    finally:
        await connection.close()


@pytest.fixture
async def url() -> str:
    """A schema for the jobs, and an empty table of the user's beside it."""
    await ask("DROP TABLE IF EXISTS sold")
    await ask("CREATE TABLE sold (item text)")
    return shared(PostgresServer).url(schema=f"joined{next(_numbers)}")


@pytest.fixture
async def app(url: str) -> AsyncIterator[Outlast]:
    app = Outlast(url, clock=FakeClock())
    async with app:
        yield app


class Mine:
    """A connection of the user's, and how he works with it."""

    def __init__(self, kind: str, connection: Any) -> None:
        self.kind = kind
        self.connection = connection
        self.awaited = kind not in ("psycopg", "psycopg-autocommit", "sqlalchemy", "session")

    async def do(self, done: Any) -> Any:
        return await done if self.awaited else done

    async def execute(self, text: str) -> None:
        layered = "sqlalchemy" in self.kind or "session" in self.kind
        said = sqlalchemy.text(text) if layered else text
        await self.do(self.connection.execute(said))

    async def begin(self) -> None:
        if self.kind in ("asyncpg", "pool") or "autocommit" in self.kind:
            await self.execute("BEGIN")

    async def commit(self) -> None:
        if self.kind in ("asyncpg", "pool"):
            await self.execute("COMMIT")
        else:
            await self.do(self.connection.commit())

    async def rollback(self) -> None:
        if self.kind in ("asyncpg", "pool"):
            await self.execute("ROLLBACK")
        else:
            await self.do(self.connection.rollback())


@asynccontextmanager
async def connected(kind: str) -> AsyncIterator[Mine]:
    url = shared(PostgresServer).url()
    plain = url.replace("postgresql://", "postgresql+psycopg://")
    async with contextlib.AsyncExitStack() as stack:
        connection: Any
        if kind == "asyncpg":
            connection = await asyncpg.connect(url)
            stack.push_async_callback(connection.close)
        elif kind == "pool":
            pool = await stack.enter_async_context(asyncpg.create_pool(url, min_size=1))
            connection = await stack.enter_async_context(pool.acquire())
        elif kind.startswith("psycopg"):
            connection = psycopg.connect(url, autocommit="autocommit" in kind)
            stack.callback(connection.close)
        elif kind.startswith("async-psycopg"):
            connect = psycopg.AsyncConnection.connect
            connection = await connect(url, autocommit="autocommit" in kind)
            stack.push_async_callback(connection.close)
        elif kind in ("sqlalchemy", "session"):
            engine = sqlalchemy.create_engine(plain)
            stack.callback(engine.dispose)
            made: Any = engine.connect() if kind == "sqlalchemy" else orm.Session(engine)
            connection = stack.enter_context(made)
        else:
            driver = "psycopg" if kind.endswith("psycopg") else "asyncpg"
            many = create_async_engine(url.replace("postgresql://", f"postgresql+{driver}://"))
            stack.push_async_callback(many.dispose)
            made = AsyncSession(many) if kind == "async-session" else many.connect()
            connection = await stack.enter_async_context(made)
        yield Mine(kind, connection)


@pytest.fixture(params=KINDS)
async def mine(request: pytest.FixtureRequest) -> AsyncIterator[Mine]:
    async with connected(request.param) as made:
        yield made


async def _nothing(item: str = "") -> str:
    return item


# -- app.joined()


async def test_a_job_if_and_only_if_it_commits(app: Outlast, mine: Mine) -> None:
    note = app.task(name="note")(_nothing)
    jobs: Any = app.joined(mine.connection)
    await mine.begin()
    gone = await mine.do(jobs.enqueue(note.call("gone")))
    await mine.rollback()
    await mine.begin()
    await mine.execute("INSERT INTO sold VALUES ('kept')")
    kept = await mine.do(jobs.enqueue(note.using(key="k").call("kept")))
    more = await mine.do(jobs.enqueue_many([note.call("é"), note.using(key="k").call("kept")]))
    assert [handle.created for handle in more] == [True, False]
    with pytest.raises(KeyConflict):
        await mine.do(jobs.enqueue(note.using(key="k").call("other")))
    await mine.execute("INSERT INTO sold VALUES ('after')")
    assert await ask("SELECT item FROM sold") == []
    assert await drain(app) == []
    await mine.commit()
    assert await ask("SELECT item FROM sold ORDER BY item") == ["after", "kept"]
    assert list(await ledger_of(app.store).get([gone.id])) == [None]
    assert len(await drain(app)) == 2
    assert await kept.result(timeout=60) == "kept"


async def test_what_is_promised_and_what_is_put_back(app: Outlast) -> None:
    """It is durable whatever role and database say; plans of the caller's are his own."""
    note = app.task(name="note")(_nothing)
    mine = await asyncpg.connect(shared(PostgresServer).url())
    await mine.execute("SET synchronous_commit TO off; SET enable_mergejoin TO off; BEGIN")
    before = await mine.fetch("SELECT name, setting FROM pg_settings ORDER BY name")
    with pytest.raises(KeyConflict):
        await app.joined(mine).enqueue_many(
            [note.using(key="k").call("1"), note.using(key="k").call("2")]
        )
    assert await mine.fetch("SELECT name, setting FROM pg_settings ORDER BY name") == before
    await app.joined(mine).enqueue(note.call())
    after = dict(await mine.fetch("SELECT name, setting FROM pg_settings ORDER BY name"))
    assert after == dict(before) | {"synchronous_commit": "on"}
    await mine.execute("COMMIT")
    assert await mine.fetchval("SHOW synchronous_commit") == "off"
    await mine.close()


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg"])
async def test_a_waiting_worker_hears_of_it(url: str, kind: str) -> None:
    app = Outlast(url)
    note = app.task(name="note")(_nothing)
    async with app.worker(), connected(kind) as mine:
        await mine.begin()
        jobs: Any = app.joined(mine.connection)
        handle = await mine.do(jobs.enqueue(note.call("heard")))
        await mine.commit()
        assert await handle.result(timeout=60) == "heard"


def test_from_a_thread_with_no_app_open() -> None:
    schema = f"joined{next(_numbers)}"
    app = Outlast(shared(PostgresServer).url(schema=schema))
    note = app.task(name="note")(_nothing)
    with psycopg.connect(shared(PostgresServer).url()) as mine:
        handle = app.joined(mine).enqueue(note.call())
        assert mine.execute(f"SELECT id FROM {schema}.jobs").fetchall() == [(handle.id,)]
    app._access.bridge.stop()


async def test_what_can_t_be_one_transaction_is_refused(app: Outlast) -> None:
    note = app.task(name="note")(_nothing)
    nothing: Any = object()
    with pytest.raises(Unsupported, match="one of asyncpg, psycopg 3 or SQLAlchemy"):
        app.joined(nothing)
    server = shared(PostgresServer)
    mine = await asyncpg.connect(server.url())
    with pytest.raises(ConfigurationError, match="no transaction"):
        await app.joined(mine).enqueue(note.call())
    await mine.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
    with pytest.raises(ConfigurationError, match="use READ COMMITTED"):
        await app.joined(mine).enqueue(note.call())
    await mine.execute("ROLLBACK")
    if not await ask("SELECT 1 FROM pg_database WHERE datname = 'other'"):
        await ask("CREATE DATABASE other")
    other = await asyncpg.connect(server.url("other"))
    await other.execute("BEGIN")
    with pytest.raises(Unsupported, match="another database"):
        await app.joined(other).enqueue(note.call())
    await other.close()
    await mine.close()
    with psycopg.connect(server.url(), autocommit=True) as plain:
        with pytest.raises(ConfigurationError, match="no transaction"):
            app.joined(plain).enqueue(note.call())
        plain.execute("BEGIN")
        with contextlib.suppress(psycopg.Error):
            plain.execute("nonsense")
        with pytest.raises(ConfigurationError, match="has failed"):
            app.joined(plain).enqueue(note.call())


# -- current().transaction()


async def test_all_of_it_is_one_commit(app: Outlast) -> None:
    stepped: list[str] = []

    @app.task(name="note")
    async def note(item: str) -> str:
        return item

    @app.task(name="sell")
    async def sell(item: str) -> str:
        async with current().transaction() as tx:
            assert await tx.execute("INSERT INTO sold VALUES ($1)", (item,)) == []
            [[found]] = await tx.execute("SELECT item FROM sold")
            assert found == item
            follow = await note.using(key=f"note-{item}").enqueue(item)
            assert follow.created
            await current().step("mark", stepped.append, item)
            current().step_sync("mark", stepped.append, item)
            await app.emit("sold", item)
            tx.result = f"sold {item}"
            assert await ask("SELECT item FROM sold") == []
        assert await ask("SELECT item FROM sold") == [item]
        return "not this"

    handle = await sell.enqueue("tea")
    ended = await drain(app)
    assert [job.task for job in ended] == ["sell", "note"]
    assert await handle.result(timeout=60) == "sold tea"
    assert stepped == ["tea", "tea"]
    assert not await app.emit("sold", "again")
    assert not (await note.using(key="note-tea").enqueue("tea")).created
    assert (await app.store.depth("default")).done == 2


async def test_on_a_connection_of_the_user(app: Outlast, mine: Mine) -> None:
    @app.task(name="note")
    async def note() -> None: ...

    @app.task(name="sell", retry=2)
    async def sell() -> None:
        async with current().transaction(mine.connection) as tx:
            await mine.execute("INSERT INTO sold VALUES ('tea')")
            await tx.execute("INSERT INTO sold VALUES ('milk')")
            await note.enqueue()
            await current().step("mark", str)
            if current().attempt == 1:
                raise ValueError("no")

    handle = await sell.enqueue()
    await drain(app)
    assert await ask("SELECT item FROM sold") == []
    assert await handle.status() is Status.QUEUED
    clock: Any = app.clock
    clock.advance(3600)
    assert [job.task for job in await drain(app)] == ["sell", "note"]
    assert await ask("SELECT item FROM sold ORDER BY item") == ["milk", "tea"]
    await mine.begin()
    await mine.execute("SELECT 1")
    store: Any = app.store
    with pytest.raises(ConfigurationError, match="in a transaction already"):
        await store.begin(5.0, mine.connection)
    await mine.rollback()


async def test_one_who_lost_the_job_commits_nothing(app: Outlast) -> None:
    @app.task(name="sell")
    async def sell(item: str) -> None:
        if current().attempt == 1:
            death = Death(started=frozenset({current().id}), blamed=frozenset())
            await app.store.recover_worker(WORKER, death)
            with pytest.raises(LeaseLost, match="nothing was committed"):
                async with current().transaction() as tx:
                    await tx.execute("INSERT INTO sold VALUES ('late')")
            return
        async with current().transaction() as tx:
            await tx.execute("INSERT INTO sold VALUES ($1)", (item,))

    handle = await sell.enqueue("tea")
    await drain(app)
    assert await ask("SELECT item FROM sold") == ["tea"]
    assert await handle.status() is Status.DONE


async def test_what_comes_after_changes_nothing(
    app: Outlast, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="sell", retry=5)
    async def sell() -> None:
        async with current().transaction() as tx:
            await tx.execute("INSERT INTO sold VALUES ('tea')")
        with pytest.raises(TaskError, match="one for a run"):
            current().transaction()
        raise ValueError("too late")

    handle = await sell.enqueue()
    with caplog.at_level(logging.ERROR):
        await drain(app)
    assert "raised after its transaction was committed" in caplog.text
    assert await handle.status() is Status.DONE
    assert await ask("SELECT item FROM sold") == ["tea"]


async def test_it_ends_in_time_and_leaves_nothing(url: str) -> None:
    """Whoever dawdles is undone; and the connection serves the next."""
    app = Outlast(url)

    @app.task(name="dawdle", retry=1)
    async def dawdle(long: bool) -> None:
        async with current().transaction() as tx:
            await tx.execute("INSERT INTO sold VALUES ('tea')")
            if long:
                await tx.execute("SELECT pg_sleep(300)")

    async with app.worker(lease=1):
        handle = await dawdle.enqueue(True)
        with pytest.raises(JobFailed):
            await handle.result(timeout=60)
        assert await ask("SELECT item FROM sold") == []
        handle = await dawdle.enqueue(False)
        await handle.result(timeout=60)
        assert await ask("SELECT item FROM sold") == ["tea"]
        # What is left behind stays; what the worker itself is amid of is over in a moment.
        async with asyncio.timeout(60):
            while await ask("SELECT 1 FROM pg_stat_activity WHERE state LIKE 'idle in%'"):
                pass


async def test_the_store_is_closed_under_it(url: str) -> None:
    """It is undone, and whoever waits is told; the program does not hang."""
    store: Any = connect(url)
    await store.open()
    open_, waits = await store.begin(5.0), await store.begin(5.0)
    await open_.execute("INSERT INTO sold VALUES ('tea')")
    sleeps = asyncio.ensure_future(waits.execute("SELECT pg_sleep(1000)"))
    async with asyncio.timeout(60):
        while not await ask("SELECT 1 FROM pg_stat_activity WHERE query LIKE '%pg_sleep(1000)'"):
            pass
        await store.close()
        with pytest.raises(StoreClosed):
            await sleeps
        while await ask("SELECT 1 FROM pg_stat_activity WHERE state LIKE 'idle in%'"):
            pass
    assert await ask("SELECT item FROM sold") == []


async def test_one_that_nobody_waits_for_any_more_is_given_back(url: str) -> None:
    store: Any = connect(url)
    await store.open()
    engine = store.engine
    real, there, go = engine.take, threading.Event(), threading.Event()

    async def slow() -> Any:
        taken = await real()
        there.set()
        assert go.wait(60)
        return taken

    engine.take = slow
    begins = asyncio.ensure_future(store.begin(5.0))
    await asyncio.to_thread(there.wait, 60)
    begins.cancel()
    await asyncio.wait((begins,))
    go.set()
    engine.take = real
    async with asyncio.timeout(60):
        while not engine._spare:
            await asyncio.sleep(0)
    assert not engine._lent
    await store.close()


async def test_a_lost_answer_to_the_commit_is_found_out(app: Outlast) -> None:
    """The connection breaks at the very end: once before the commit is done, once after."""
    runs: list[str] = []

    @app.task(name="sell", retry=3)
    async def sell() -> None:
        async with current().transaction() as tx:
            await tx.execute("INSERT INTO sold VALUES ('tea')")
            opened: Any = tx._open
            real = opened._wire.execute
            after = bool(runs)

            async def breaks(text: str, *values: Any) -> str:
                if text == "COMMIT":
                    runs.append("after" if after else "before")
                    done = await real(text) if after else ""
                    opened._wire.key.terminate()
                    await asyncio.sleep(0)
                    raise ConnectionResetError(done)
                answer: str = await real(text, *values)
                return answer

            opened._wire.key = _Breaking(opened._wire, breaks)
        runs.append("went on")

    handle = await sell.enqueue()
    await drain(app)
    clock: Any = app.clock
    assert await ask("SELECT item FROM sold") == []
    clock.advance(3600)
    await drain(app)
    assert runs == ["before", "after", "went on"]
    assert await ask("SELECT item FROM sold") == ["tea"]
    assert await handle.status() is Status.DONE


class _Breaking:
    """Stands before a connection, and breaks it at its COMMIT."""

    def __init__(self, wire: Any, execute: Any) -> None:
        self._real = wire._connection
        wire._connection = self
        wire.execute = execute
        self.execute = execute

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


async def test_no_step_that_blocks_where_all_is_awaited(app: Outlast) -> None:
    @app.task(name="sell")
    async def sell() -> None:
        async with connected("asyncpg") as mine, current().transaction(mine.connection):
            with pytest.raises(TaskError, match="await current"):
                current().step_sync("mark", str)
            with pytest.raises(TaskError, match="inside a transaction"):
                await current().sleep(5)

    handle = await sell.enqueue()
    await drain(app)
    assert await handle.status() is Status.DONE


async def test_a_renewal_does_not_wait_for_it(app: Outlast) -> None:
    @app.task(name="sell")
    async def sell() -> None:
        claim = current()._claim
        async with current().transaction() as tx:
            await current().step("mark", str)
            async with asyncio.timeout(60):
                assert list(await app.store.renew([claim], 60)) == []
            await tx.execute("INSERT INTO sold VALUES ('tea')")

    handle = await sell.enqueue()
    await drain(app)
    assert await handle.status() is Status.DONE


async def test_the_session_that_is_ended_in_the_middle(app: Outlast) -> None:
    @app.task(name="sell", retry=3)
    async def sell() -> None:
        async with current().transaction() as tx:
            [[pid]] = await tx.execute("SELECT pg_backend_pid()")
            await tx.execute("INSERT INTO sold VALUES ('tea')")
            if current().attempt == 1:
                await ask("SELECT pg_terminate_backend($1)", pid)

    handle = await sell.enqueue()
    with contextlib.suppress(StoreUnavailable):
        await drain(app)
    assert await ask("SELECT item FROM sold") == []
    clock: Any = app.clock
    clock.advance(3600)
    await drain(app)
    assert await ask("SELECT item FROM sold") == ["tea"]
    assert await handle.status() is Status.DONE
