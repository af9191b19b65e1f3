"""The user's rows, steps, further jobs and the job's end in one commit; and jobs in his own."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.fakes import FakeClock

from outlast import (
    ConfigurationError,
    DurabilityError,
    JobFailed,
    KeyConflict,
    Keys,
    LeaseLost,
    Outlast,
    Status,
    StoreUnavailable,
    TaskError,
    Unsupported,
    current,
    stores,
)
from outlast.access import ledger_of
from outlast.job import Death
from outlast.testing import drain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

WORKER = "outlast-testing"
NOTHING: Any = None
OTHER: Any = sqlite3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture(params=["plain", "sealed"])
async def app(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[Outlast]:
    keys = Keys(current="k", secrets={"k": bytes(32)}, seal=True)
    url = f"sqlite:///{path}?durability=process"
    app = Outlast(url, keys=None if request.param == "plain" else keys, clock=FakeClock())
    async with app:
        await rows(path, "CREATE TABLE sold (item TEXT)")
        yield app


def connect(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(60_000)
    return connection


@pytest.fixture
def mine(app: Outlast, path: Path) -> Iterator[apsw.Connection]:
    connection = connect(path)
    yield connection
    connection.close()


async def rows(path: Path, text: str = "SELECT item FROM sold ORDER BY item") -> list[Any]:
    def run() -> list[Any]:
        connection = connect(path)
        try:
            return [row[0] for row in connection.execute(text)]
        finally:
            connection.close()

    return await asyncio.to_thread(run)


# -- current().transaction()


async def test_all_of_it_is_one_commit(app: Outlast, path: Path) -> None:
    stepped: list[str] = []

    @app.task(name="note")
    async def note(item: str) -> str:
        return item

    @app.task(name="sell")
    async def sell(item: str) -> str:
        async with current().transaction() as tx:
            assert await tx.execute("INSERT INTO sold VALUES (?)", (item,)) == []
            assert await tx.execute("SELECT item FROM sold") == [(item,)]
            follow = await note.using(key=f"note-{item}").enqueue(item)
            assert follow.created
            await current().step("mark", stepped.append, item)
            current().step_sync("mark", stepped.append, item)
            await app.emit("sold", item)
            tx.result = f"sold {item}"
            assert await rows(path) == []
        assert await rows(path) == [item]
        return "not this"

    handle = await sell.enqueue("tea")
    ended = await drain(app)
    assert [job.task for job in ended] == ["sell", "note"]
    assert await handle.result(timeout=60) == "sold tea"
    assert stepped == ["tea", "tea"]
    assert not await app.emit("sold", "again")
    assert not (await note.using(key="note-tea").enqueue("tea")).created


async def test_an_exception_undoes_all_of_it(app: Outlast, path: Path) -> None:
    @app.task(name="note")
    async def note() -> None: ...

    @app.task(name="sell", retry=2)
    async def sell(item: str) -> str:
        fails = current().attempt == 1
        async with current().transaction() as tx:
            await tx.execute("INSERT INTO sold VALUES (?)", (item,))
            await note.enqueue()
            await app.emit("sold")
            if fails:
                raise ValueError("no")
            tx.result = "sold"
        return ""

    handle = await sell.enqueue("tea")
    await drain(app)
    assert await rows(path) == []
    depth = await app.store.depth("default")
    assert (depth.live, depth.done) == (1, 0)
    clock: Any = app.clock
    clock.advance(3600)
    assert len(await drain(app)) == 2
    assert await handle.result(timeout=60) == "sold"
    assert await rows(path) == ["tea"]


async def test_one_who_lost_the_job_commits_nothing(app: Outlast, path: Path) -> None:
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
            await tx.execute("INSERT INTO sold VALUES (?)", (item,))

    handle = await sell.enqueue("tea")
    await drain(app)
    assert await rows(path) == ["tea"]
    assert await handle.status() is Status.DONE


async def test_what_comes_after_changes_nothing(
    app: Outlast, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="sell", retry=5)
    async def sell() -> None:
        async with current().transaction() as tx:
            await tx.execute("INSERT INTO sold VALUES ('tea')")
        with pytest.raises(TaskError, match="one for a run"):
            current().transaction()
        with pytest.raises(LeaseLost):
            await current().step("late", print)
        raise ValueError("too late")

    handle = await sell.enqueue()
    with caplog.at_level(logging.ERROR):
        await drain(app)
    assert "raised after its transaction was committed" in caplog.text
    assert (await handle.job()).status is Status.DONE
    assert await rows(path) == ["tea"]


async def test_to_be_stopped_after_the_commit_is_no_error(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = Outlast(f"sqlite:///{path}?durability=process")
    committed = asyncio.Event()

    @app.task(name="sell")
    async def sell() -> None:
        async with current().transaction() as tx:
            await tx.execute("CREATE TABLE sold (item TEXT)")
        committed.set()
        await asyncio.get_running_loop().create_future()

    async with app.worker(grace=0.0), asyncio.timeout(60):
        handle = await sell.enqueue()
        await committed.wait()
    async with app:
        assert await handle.status() is Status.DONE
    assert await rows(path) == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_nobody_holds_the_lock_for_long(path: Path) -> None:
    app = Outlast(f"sqlite:///{path}?durability=process")

    @app.task(name="dawdle", retry=1)
    async def dawdle() -> None:
        async with current().transaction():
            await asyncio.get_running_loop().create_future()

    async with app.worker(lease=0.4):
        handle = await dawdle.enqueue()
        with pytest.raises(JobFailed, match="TimeoutError"):
            await handle.result(timeout=60)


async def test_it_waits_for_the_lock_no_longer(app: Outlast, mine: apsw.Connection) -> None:
    seen: list[str] = []

    @app.task(name="sell")
    async def sell() -> None:
        clock: Any = app.clock
        mine.execute("BEGIN IMMEDIATE")
        waits = asyncio.ensure_future(current().transaction().__aenter__())
        while not waits.done():
            clock.advance(1)
            await asyncio.sleep(0)
        seen.append(repr(waits.exception()))
        assert isinstance(waits.exception(), StoreUnavailable)
        mine.execute("ROLLBACK")

    await sell.enqueue()
    await drain(app)
    assert "locked by others for 5 s" in seen[0]


async def test_those_of_one_process_stand_in_line(path: Path) -> None:
    """However long that is: the limit is for a file that somebody else keeps locked."""
    clock = FakeClock()
    store: Any = stores.connect(f"sqlite:///{path}?durability=process", clock=clock)
    await store.open()
    first = await store.begin(5.0)
    known = len(apsw.connections())
    came: list[int] = []

    async def come(number: int) -> None:
        transaction = await store.begin(5.0)
        came.append(number)
        await transaction.close()

    async with asyncio.timeout(60):
        rest = [asyncio.ensure_future(come(number)) for number in range(5)]
        while len(apsw.connections()) < known + 5:
            await asyncio.to_thread(lambda: None)
        for _ in range(10):
            clock.advance(1)
            await asyncio.to_thread(lambda: None)
        assert came == []
        await first.close()
        await asyncio.gather(*rest)
    assert sorted(came) == [0, 1, 2, 3, 4]
    await store.close()


async def test_no_wait_inside(app: Outlast) -> None:
    @app.task(name="sell")
    async def sell() -> str:
        async with current().transaction() as tx:
            with pytest.raises(TaskError, match="inside a transaction"):
                await current().sleep(5)
            with pytest.raises(TaskError, match="one for a run"):
                current().transaction()
            with pytest.raises(ConfigurationError, match="ended the transaction"):
                await tx.execute("COMMIT")
        return ""

    handle = await sell.enqueue()
    await drain(app)
    assert (await handle.job()).status is not Status.DONE


async def test_a_slow_statement_is_interrupted(app: Outlast, path: Path) -> None:
    forever = (
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    )

    @app.task(name="sell")
    async def sell() -> None:
        async with current().transaction() as tx, asyncio.timeout(0.05):
            await tx.execute("INSERT INTO sold VALUES ('tea')")
            await tx.execute(forever)

    handle = await sell.enqueue()
    await drain(app)
    assert (await handle.job()).status is Status.DEAD
    assert await rows(path) == []


async def test_on_a_connection_of_the_user(app: Outlast, path: Path, mine: apsw.Connection) -> None:
    @app.task(name="sell")
    async def sell() -> None:
        async with current().transaction(mine) as tx:
            mine.execute("INSERT INTO sold VALUES ('tea')")
            await tx.execute("INSERT INTO sold VALUES ('milk')")
        assert not mine.in_transaction

    handle = await sell.enqueue()
    await drain(app)
    assert await handle.status() is Status.DONE
    assert await rows(path) == ["milk", "tea"]


async def test_in_a_real_worker(path: Path) -> None:
    """The claim is given up at the commit: no renewal finds it lost while the run goes on."""
    app = Outlast(f"sqlite:///{path}?durability=process")
    going_on = asyncio.Event()

    @app.task(name="note")
    async def note() -> None: ...

    @app.task(name="sell")
    async def sell() -> None:
        async with current().transaction() as tx:
            await tx.execute("CREATE TABLE sold (item TEXT)")
            await note.enqueue()
            tx.result = None
        await going_on.wait()
        assert not current().lease_lost

    async with app.worker(lease=0.5) as worker:
        handle = await sell.enqueue()
        await handle.result(timeout=60)
        while (await app.store.depth("default")).done < 2:
            await asyncio.sleep(0)
        going_on.set()
    assert worker.stuck == []


async def test_where_there_is_none(tmp_path: Path) -> None:
    memory = Outlast("memory://")

    @memory.task(name="sell")
    async def sell() -> None:
        with pytest.raises(TaskError, match="no transactions"):
            await current().transaction().__aenter__()

    @memory.task(name="plain")
    def plain() -> None:
        with pytest.raises(TaskError, match="async def"):
            current().transaction()

    async with memory:
        handles = [await sell.enqueue(), await plain.enqueue()]
        await drain(memory)
        assert [await handle.status() for handle in handles] == [Status.DONE] * 2
        with pytest.raises(Unsupported, match="no transactions to join"):
            memory.joined(NOTHING)


# -- app.joined()


async def test_a_job_if_and_only_if_it_commits(app: Outlast, mine: apsw.Connection) -> None:
    @app.task(name="note")
    async def note(item: str) -> str:
        return item

    jobs = app.joined(mine)
    mine.execute("BEGIN IMMEDIATE")
    gone = jobs.enqueue(note.call("gone"))
    mine.execute("ROLLBACK")
    mine.execute("BEGIN IMMEDIATE")
    kept = jobs.enqueue(note.using(key="k").call("kept"))
    more = jobs.enqueue_many([note.call("more"), note.using(key="k").call("kept")])
    assert [handle.created for handle in more] == [True, False]
    with pytest.raises(KeyConflict):
        jobs.enqueue(note.using(key="k").call("other"))
    mine.execute("COMMIT")
    assert list(await ledger_of(app.store).get([gone.id])) == [None]
    assert len(await drain(app)) == 2
    assert await kept.result(timeout=60) == "kept"


async def test_a_waiting_worker_hears_of_it(path: Path) -> None:
    app = Outlast(f"sqlite:///{path}?durability=process")

    @app.task(name="note")
    async def note() -> str:
        return "heard"

    async with app.worker():
        mine = connect(path)

        def elsewhere() -> Any:
            mine.execute("BEGIN IMMEDIATE")
            handle = app.joined(mine).enqueue(note.call())
            mine.execute("COMMIT")
            return handle

        handle = await asyncio.to_thread(elsewhere)
        assert await handle.result(timeout=60) == "heard"
        mine.close()


def test_from_a_thread_with_no_app_open(path: Path) -> None:
    app = Outlast(f"sqlite:///{path}?durability=process")

    @app.task(name="note")
    async def note() -> None: ...

    app.enqueue_many_sync([note.call()])
    mine = connect(path)
    mine.execute("BEGIN IMMEDIATE")
    handle = app.joined(mine).enqueue(note.call())
    mine.execute("COMMIT")
    mine.close()
    assert app.handle(handle.id).created is False
    thread = threading.Thread(target=app.emit_sync, args=("end",))
    thread.start()
    thread.join()
    app._access.bridge.stop()


async def test_what_can_t_be_one_transaction_is_refused(
    app: Outlast, mine: apsw.Connection, path: Path, tmp_path: Path
) -> None:
    task = app.task(name="note")(_nothing)
    jobs = app.joined(mine)
    with pytest.raises(ConfigurationError, match="BEGIN IMMEDIATE"):
        jobs.enqueue(task.call())
    other = apsw.Connection(str(tmp_path / "other.db"))
    with pytest.raises(Unsupported, match="not atomic in a power cut"):
        app.joined(other)
    other.close()
    with pytest.raises(Unsupported, match=r"no apsw\.Connection"):
        app.joined(OTHER)
    mine.execute("ATTACH ? AS shop", (str(tmp_path / "other.db"),))
    with pytest.raises(Unsupported, match="attached to the connection as 'shop'"):
        app.joined(mine)
    mine.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unsupported, match="attached"):
        jobs.enqueue(task.call())
    mine.execute("ROLLBACK")


async def test_a_careless_connection_is_refused(path: Path) -> None:
    app = Outlast(f"sqlite:///{path}")
    async with app:
        mine = connect(path)
        mine.pragma("synchronous", "NORMAL")
        with pytest.raises(DurabilityError, match="PRAGMA synchronous=2"):
            app.joined(mine)
        mine.close()
    with pytest.raises(RuntimeError, match="open the app first"):
        app.joined(NOTHING)


async def _nothing() -> None: ...
