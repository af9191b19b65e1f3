"""Outbox and inbox on each kind of connection: written with the user's rows, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
from typing import TYPE_CHECKING, Any

import apsw
import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from tests.servers import PostgresServer, shared

from outlast import ConfigurationError, KeyConflict, Outlast, Unsupported, current, outbox_tables
from outlast.access import ledger_of
from outlast.chance import SystemChance
from outlast.errors import StoreMoved, StoreUnavailable
from outlast.movable import Departure
from outlast.relay import SqliteBox, box_at, relay_all, relay_for_ever
from outlast.sealing import Keys
from outlast.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from outlast.job import Job

_names = itertools.count(1)


class Shop:
    """A user's program: rows in a database of his own, and an app whose jobs are elsewhere."""

    def __init__(self, folder: Path, keys: Keys | None = None) -> None:
        self.path = folder / "shop.db"
        self.url = f"sqlite:///{self.path}"
        self.app = Outlast(f"sqlite:///{folder}/jobs.db", keys=keys)
        self.ran: list[int] = []

        @self.app.task(name="ship", key=lambda n: f"ship-{n}" if n >= 100 else None)
        async def ship(n: int) -> int:
            self.ran.append(n)
            return n

        self.ship = ship
        connection = sqlite3.connect(self.path)
        connection.executescript(outbox_tables("sqlite"))
        connection.execute("CREATE TABLE orders (n INTEGER)")
        connection.close()

    def open(self, **how: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(self.path, **how)
        return connection

    def waiting(self) -> list[str]:
        connection = self.open()
        try:
            return [id_ for (id_,) in connection.execute("SELECT id FROM outlast_outbox")]
        finally:
            connection.close()

    async def work(self, *numbers: int) -> None:
        """Relay, run, and see that just these were run."""
        await self.app.relay(self.url, once=True)
        await self.run(*numbers)

    async def run(self, *numbers: int) -> None:
        self.ran.clear()
        async with self.app.worker():
            while len(self.ran) < len(numbers) or (await self.app.store.depth("default")).live:
                await self.app.store.wait(["none"], 0.01)
        assert sorted(self.ran) == sorted(numbers)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


async def test_stored_with_the_rows_or_not_at_all(shop: Shop) -> None:
    connection = shop.open()
    connection.execute("INSERT INTO orders VALUES (1)")
    shop.app.outbox(connection).enqueue(shop.ship.call(1))
    connection.rollback()
    connection.execute("INSERT INTO orders VALUES (2)")
    handle = shop.app.outbox(connection).enqueue(shop.ship.call(2))
    connection.commit()
    assert shop.waiting() == [handle.id]
    await shop.work(2)
    assert shop.waiting() == []
    async with shop.app:
        assert await shop.app.handle(handle.id).result(timeout=60) == 2
    connection.close()


async def test_apsw(shop: Shop) -> None:
    connection = apsw.Connection(str(shop.path))
    with pytest.raises(ConfigurationError, match="in no transaction"):
        shop.app.outbox(connection).enqueue(shop.ship.call(1))
    connection.execute("BEGIN IMMEDIATE")
    shop.app.outbox(connection).enqueue_many([shop.ship.call(2), shop.ship.call(3)])
    assert shop.app.inbox(connection).is_new("k")
    assert not shop.app.inbox(connection).is_new("k")
    connection.execute("COMMIT")
    connection.close()
    await shop.app.relay(shop.url, library="apsw", once=True)
    await shop.run(2, 3)


async def test_without_a_transaction_nothing_is_written(shop: Shop) -> None:
    connection = shop.open(isolation_level=None)
    with pytest.raises(ConfigurationError, match="in no transaction"):
        shop.app.outbox(connection).enqueue(shop.ship.call(1))
    with pytest.raises(ConfigurationError, match="in no transaction"):
        shop.app.inbox(connection).is_new("k")
    connection.execute("BEGIN")
    shop.app.outbox(connection).enqueue(shop.ship.call(2))
    connection.execute("COMMIT")
    connection.close()
    await shop.work(2)


async def test_sqlalchemy_on_sqlite(shop: Shop) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{shop.path}")
    with engine.connect() as connection:
        connection.exec_driver_sql("INSERT INTO orders VALUES (1)")
        shop.app.outbox(connection).enqueue(shop.ship.call(1))
        connection.rollback()
        shop.app.outbox(connection).enqueue(shop.ship.call(2))
        connection.commit()
    with sqlalchemy.orm.Session(engine) as session:
        shop.app.outbox(session).enqueue(shop.ship.call(3))
        session.commit()
    engine.dispose()
    await shop.work(2, 3)


def test_other_things_are_no_connections(shop: Shop) -> None:
    for thing in (object(), "shop.db", sqlalchemy.create_engine("sqlite://")):
        with pytest.raises(Unsupported, match="use one of sqlite3, apsw, asyncpg"):
            shop.app.outbox(thing)  # type: ignore[call-overload]


def test_a_task_of_another_app_is_refused(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Shop(tmp_path / "other")
    connection = shop.open()
    with pytest.raises(ConfigurationError, match="belongs to another Outlast"):
        shop.app.outbox(connection).enqueue(other.ship.call(1))
    connection.close()


async def test_keys_hold_across_the_relay(shop: Shop) -> None:
    """The one that holds the key stands, as for jobs that follow another."""
    connection = shop.open()
    for _ in range(2):
        shop.app.outbox(connection).enqueue(shop.ship.call(100))
    connection.commit()
    await shop.work(100)
    shop.app.outbox(connection).enqueue(shop.ship.call(100))
    connection.commit()
    connection.close()
    await shop.app.relay(shop.url, once=True)
    async with shop.app:
        assert (await shop.app.store.depth("default")).live == 0


async def test_delays_count_from_the_writing(tmp_path: Path) -> None:
    clock = FakeClock()
    app = Outlast(f"sqlite:///{tmp_path}/jobs.db", clock=clock)

    @app.task(name="t")
    async def later() -> None: ...

    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.executescript(outbox_tables("sqlite"))
    handle = app.outbox(connection).enqueue(later.using(delay=60).call())
    connection.commit()
    connection.close()
    written = clock.now()
    clock.advance(40)
    await app.relay(f"sqlite:///{tmp_path}/shop.db", once=True)
    async with app:
        [job] = await ledger_of(app.store).get([handle.id])
        assert job is not None
        assert job.run_at == written + 60


async def test_signed_jobs_are_signed_by_the_relay(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Keys(current="a", secrets={"a": bytes(32)}))
    connection = shop.open()
    shop.app.outbox(connection).enqueue(shop.ship.call(7))
    connection.commit()
    connection.close()
    await shop.work(7)


async def test_a_batch_of_another_store_is_named_anew(shop: Shop) -> None:
    """It was begun for a store whose URL has changed since: it is not left behind."""
    connection = shop.open()
    shop.app.outbox(connection).enqueue(shop.ship.call(5))
    connection.execute("UPDATE outlast_outbox SET batch = 'of another store'")
    connection.commit()
    connection.close()
    await shop.work(5)
    assert shop.waiting() == []


async def test_of_a_batch_that_is_over_the_store_remembers_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = type(shop.app.open_store())
    expect, unexpect = kind.expect, kind.unexpect
    begun: list[str] = []
    over: list[str] = []

    async def note(self: Any, batch: str) -> None:
        begun.append(batch)
        await expect(self, batch)

    async def forget(self: Any, batch: str) -> None:
        over.append(batch)
        await unexpect(self, batch)

    monkeypatch.setattr(kind, "expect", note)
    monkeypatch.setattr(kind, "unexpect", forget)
    connection = shop.open()
    shop.app.outbox(connection).enqueue(shop.ship.call(5))
    connection.execute("UPDATE outlast_outbox SET batch = 'of another store'")
    shop.app.outbox(connection).enqueue(shop.ship.call(6))
    connection.commit()
    connection.close()
    await shop.work(5, 6)
    assert len(begun) >= 2
    assert sorted(over) == sorted(begun)


async def test_a_store_that_has_moved_is_said_so(shop: Shop) -> None:
    connection = shop.open()
    shop.app.outbox(connection).enqueue(shop.ship.call(5))
    connection.commit()
    connection.close()
    async with shop.app:
        mark = Departure(id="m", to="elsewhere://", stage="sealed")
        store: Any = shop.app.store
        await store.depart(mark, None)
        with pytest.raises(StoreMoved, match="elsewhere"):
            await shop.app.relay(shop.url, once=True)
        await store.stay(mark)
    await shop.work(5)


async def test_where_batches_cannot_be_taken_in_jobs_go_one_by_one(shop: Shop) -> None:
    connection = shop.open()
    for n in (1, 100, 2):
        shop.app.outbox(connection).enqueue(shop.ship.call(n))
    connection.commit()
    connection.close()
    added: list[str] = []

    class Plain:
        """A store like that of RabbitMQ."""

        async def add(self, jobs: list[Job]) -> None:
            if jobs[0].key is not None:
                raise KeyConflict("held by another")
            added.extend(job.id for job in jobs)

    box = SqliteBox(str(shop.path))
    await box.open(create=False)
    ids = shop.waiting()
    plain: Any = Plain()
    assert await relay_all(plain, box, "default", SystemChance()) == 3
    assert added == [ids[0], ids[2]]
    assert await relay_all(plain, box, "default", SystemChance()) == 0
    await box.close()
    assert shop.waiting() == []


async def test_no_table_is_said(shop: Shop, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "bare.db").execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(ConfigurationError, match="there is no table outlast_outbox"):
        await shop.app.relay(f"sqlite:///{tmp_path}/bare.db", once=True)
    await shop.app.relay(f"sqlite:///{tmp_path}/bare.db", once=True, create=True)
    with pytest.raises(StoreUnavailable, match="unable to open"):
        await shop.app.relay(f"sqlite:///{tmp_path}/none.db", once=True)


def test_what_can_be_no_outbox(shop: Shop) -> None:
    store = shop.app.open_store()
    with pytest.raises(ConfigurationError, match="the store's own file"):
        box_at(store.url, store)
    with pytest.raises(ConfigurationError, match="an outbox is in"):
        box_at("redis://localhost/0", store)
    with pytest.raises(ConfigurationError, match="library 'other'"):
        box_at(shop.url, store, "other")


async def test_it_goes_on_when_something_was_away(shop: Shop) -> None:
    connection = shop.open()
    shop.app.outbox(connection).enqueue(shop.ship.call(1))
    connection.commit()
    connection.close()
    box = SqliteBox(str(shop.path))
    await box.open(create=False)
    real, failures = box.ask, [StoreUnavailable("away")]

    async def ask(text: str, *values: str) -> list[Any]:
        if failures:
            raise failures.pop()
        return await real(text, *values)

    box.ask = ask  # type: ignore[method-assign]
    clock = FakeClock()
    moved = asyncio.Event()
    async with shop.app:
        task = asyncio.create_task(
            relay_for_ever(
                shop.app.store, box, "default", SystemChance(), clock,
                lambda many: moved.set() if many else None,
            )
        )  # fmt: skip
        while not moved.is_set():
            clock.advance(5.0)
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await box.close()
    await shop.run(1)


async def test_applied_once_whatever_is_repeated(shop: Shop) -> None:
    new: list[bool] = []

    @shop.app.task(name="apply", retry=3)
    async def apply() -> str:
        connection = shop.open()
        with connection:
            new.append(shop.app.inbox(connection).is_new())
            if new[-1]:
                connection.execute("INSERT INTO orders VALUES (9)")
        connection.close()
        if len(new) < 3:
            raise RuntimeError("died before it could say so")
        return current().idempotency_key

    async with shop.app.worker():
        handle = await apply.enqueue()
        await handle.result(timeout=60)
    assert new == [True, False, False]
    connection = shop.open()
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    [row] = connection.execute("SELECT namespace, task, key FROM outlast_inbox")
    assert row == ("default", "apply", handle.id)
    connection.close()


@pytest.fixture
def database() -> Iterator[str]:
    """The URL of a schemaless corner of a server: its tables are taken away afterwards."""
    url = shared(PostgresServer).url()
    asyncio.run(_run(url, "DROP TABLE IF EXISTS outlast_outbox, outlast_inbox, orders"))
    asyncio.run(_run(url, outbox_tables("postgresql"), "CREATE TABLE orders (n int)"))
    yield url
    asyncio.run(_run(url, "DROP TABLE outlast_outbox, outlast_inbox, orders"))


async def _run(url: str, *texts: str) -> None:
    connection = await asyncpg.connect(url)
    for text in texts:
        await connection.execute(text)
    await connection.close()


async def _asyncpg(shop: Shop, url: str) -> None:
    connection = await asyncpg.connect(url)
    with pytest.raises(ConfigurationError, match="in no transaction"):
        await shop.app.outbox(connection).enqueue(shop.ship.call(1))
    async with connection.transaction():
        await connection.execute("INSERT INTO orders VALUES (1)")
        await shop.app.outbox(connection).enqueue(shop.ship.call(2))
        assert await shop.app.inbox(connection).is_new("k")
        assert not await shop.app.inbox(connection).is_new("k")
    await connection.close()


async def _psycopg(shop: Shop, url: str) -> None:
    with psycopg.connect(url) as connection:
        shop.app.outbox(connection).enqueue(shop.ship.call(1))
        connection.rollback()
        shop.app.outbox(connection).enqueue(shop.ship.call(2))
        assert shop.app.inbox(connection).is_new("k")
        assert not shop.app.inbox(connection).is_new("k")


async def _async_psycopg(shop: Shop, url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await shop.app.outbox(connection).enqueue(shop.ship.call(2))


async def _sqlalchemy(shop: Shop, url: str) -> None:
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        shop.app.outbox(connection).enqueue(shop.ship.call(2))
    engine.dispose()


async def _async_sqlalchemy(shop: Shop, url: str) -> None:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    async with engine.begin() as connection:
        await shop.app.outbox(connection).enqueue(shop.ship.call(2))
    await engine.dispose()


@pytest.mark.needs("servers")
@pytest.mark.parametrize(
    "write", [_asyncpg, _psycopg, _async_psycopg, _sqlalchemy, _async_sqlalchemy]
)
async def test_postgresql(database: str, shop: Shop, write: Callable[[Shop, str], Any]) -> None:
    await write(shop, database)
    await shop.app.relay(database, once=True)
    await shop.run(2)


@pytest.mark.needs("servers")
async def test_the_relay_connects_again(database: str, shop: Shop) -> None:
    box: Any = box_at(database, shop.app.open_store())
    await box.open(create=True)
    assert await box.ask("SELECT 1") == [(1,)]
    await _run(
        database,
        # And wait until it is gone: until then it may still answer.
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
    )
    with contextlib.suppress(StoreUnavailable, OSError):
        await box.ask("SELECT 1")
    assert await box.ask("SELECT 1") == [(1,)]
    await _run(database, "ALTER TABLE outlast_outbox RENAME TO away")
    with pytest.raises(ConfigurationError, match="there is no table"):
        await box.change("DELETE FROM outlast_outbox WHERE id = {0}", "x")
    await _run(database, "ALTER TABLE away RENAME TO outlast_outbox")
    await box.close()
