"""``durability=replica`` on PostgreSQL: what is promised is on a standby too, or it is said."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
from tests.engine.rig import until
from tests.servers import PostgresServer, PostgresStandby

from outlast import Outlast, Status, current
from outlast.errors import (
    ConfigurationError,
    DurabilityError,
    EnqueueUncertain,
    StoreUnavailable,
)
from outlast.job import Job, done
from outlast.store import Durability
from outlast.stores import connect
from outlast.testing import drain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.needs("servers")

NOISE = "BEGIN; SELECT pg_logical_emit_message(true, '', ''); NOTIFY news; COMMIT"
WAITS = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname IS NOT NULL"


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[PostgresServer, PostgresStandby]]:
    """A server, and a standby that it waits for from the first test on."""
    primary = PostgresServer()
    primary.start()
    standby = PostgresStandby(primary)
    standby.start()
    yield primary, standby
    standby.remove()
    primary.remove()


@pytest.fixture
async def admin(pair: tuple[PostgresServer, PostgresStandby]) -> AsyncIterator[Any]:
    primary, _ = pair
    connection = await asyncpg.connect(primary.url())
    await connection.execute("SET synchronous_commit TO local")
    await names(connection, "*")
    yield connection
    await connection.close()


async def names(admin: Any, wanted: str) -> None:
    """Have the server wait for these standbys; and wait until it does, or doesn't."""
    await admin.execute(f"ALTER SYSTEM SET synchronous_standby_names TO '{wanted}'")
    await admin.execute("SELECT pg_reload_conf()")
    state = "sync" if wanted else "async"
    ask = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = $1"
    async with asyncio.timeout(60):
        while not await admin.fetchval(ask, state):
            pass


async def waiting(admin: Any) -> int:
    """The session that waits for the standby to have its commit."""
    async with asyncio.timeout(60):
        while (pid := await admin.fetchval(WAITS)) is None:
            pass
    return int(pid)


async def test_a_commit_that_waits_for_no_standby_promises_nothing(
    pair: tuple[PostgresServer, PostgresStandby], admin: Any
) -> None:
    primary, standby = pair
    store: Any = connect(primary.url(schema="both"), durability=Durability.REPLICA)
    await store.open()
    try:
        assert store.durability is Durability.REPLICA
        await store.add([Job(id="sure")])
        [claim] = await store.claim(["default"], [None], 1, 60.0, "w")
        with standby.frozen():
            adds = asyncio.ensure_future(store.add([Job(id="here")]))
            await admin.execute("SELECT pg_cancel_backend($1)", await waiting(admin))
            with pytest.raises(EnqueueUncertain, match="maybe on no standby"):
                await adds
            settles = asyncio.ensure_future(store.settle([done(claim)]))
            await admin.execute("SELECT pg_cancel_backend($1)", await waiting(admin))
            with pytest.raises(StoreUnavailable, match="was cancelled"):
                await settles
        await store.add([Job(id="here")])
        await names(admin, "")
        with pytest.raises(EnqueueUncertain, match="none is to be waited for"):
            await store.add([Job(id="alone")])
        with pytest.raises(DurabilityError, match="synchronous_standby_names"):
            await store.add([Job(id="refused")])
    finally:
        await store.close()


async def test_a_transaction_that_the_user_commits_is_confirmed_if_he_asks(
    pair: tuple[PostgresServer, PostgresStandby], admin: Any
) -> None:
    """The server lets his commit return, and nobody but his driver's log hears why."""
    primary, standby = pair
    app = Outlast(primary.url(schema="his"), durability=Durability.REPLICA)

    @app.task(name="note")
    async def note() -> None: ...

    mine = await asyncpg.connect(primary.url())
    async with app:
        jobs = app.joined(mine)
        await mine.execute("BEGIN")
        await jobs.enqueue(note.call())
        with pytest.raises(ConfigurationError, match="in progress"):
            await jobs.confirm()
        with standby.frozen():
            commits = asyncio.ensure_future(mine.execute("COMMIT"))
            await admin.execute("SELECT pg_cancel_backend($1)", await waiting(admin))
            assert await commits == "COMMIT"
            confirms = asyncio.ensure_future(jobs.confirm())
            await admin.execute("SELECT pg_cancel_backend($1)", await waiting(admin))
            with pytest.raises(StoreUnavailable, match="maybe on no standby"):
                await confirms
        await jobs.confirm()
        # Where no standby is waited for, nothing is taken in.
        await names(admin, "")
        await mine.execute("BEGIN")
        with pytest.raises(DurabilityError, match="synchronous_standby_names"):
            await app.joined(mine).enqueue(note.call())
        await mine.execute("ROLLBACK")
    await mine.close()


async def cancel_two(admin: Any) -> None:
    """Have the wait of a commit end, and of what is to confirm it."""
    for _ in range(2):
        pid = await waiting(admin)
        await admin.execute("SELECT pg_cancel_backend($1)", pid)
        while await admin.fetchval(f"{WAITS} AND pid = $1", pid):
            pass


async def test_a_transaction_of_a_run_is_confirmed(
    pair: tuple[PostgresServer, PostgresStandby], admin: Any
) -> None:
    """It is done there, and the block raises all the same."""
    primary, standby = pair
    app = Outlast(primary.url(schema="runs"), durability=Durability.REPLICA)
    cold = contextlib.ExitStack()

    async def thaw() -> None:
        await cancel_two(admin)
        cold.close()

    @app.task(name="sell")
    async def sell() -> None:
        async def transact() -> None:
            async with current().transaction() as tx:
                await tx.execute("SELECT 1")
                cold.enter_context(standby.frozen())
                thaws.append(asyncio.create_task(thaw()))

        with pytest.raises(StoreUnavailable, match="maybe on no standby"):
            await transact()

    thaws: list[asyncio.Task[None]] = []
    async with app:
        handle = await sell.enqueue()
        assert len(await drain(app)) == 1
        assert await handle.status() is Status.DONE
        await thaws[0]


async def test_a_blocking_connection_is_confirmed_too(
    pair: tuple[PostgresServer, PostgresStandby], admin: Any
) -> None:
    primary, standby = pair
    app = Outlast(primary.url(schema="blocking"), durability=Durability.REPLICA)

    @app.task(name="note")
    async def note() -> None: ...

    def enqueue() -> None:
        with psycopg.connect(primary.url()) as mine:
            jobs = app.joined(mine)
            jobs.enqueue(note.call())
            mine.commit()
            jobs.confirm()

    async with app:
        await asyncio.to_thread(enqueue)
        with standby.frozen():
            late = asyncio.ensure_future(asyncio.to_thread(enqueue))
            await cancel_two(admin)
            with pytest.raises(StoreUnavailable, match="maybe on no standby"):
                await late


async def test_an_add_is_not_held_up_by_others_who_notify(
    pair: tuple[PostgresServer, PostgresStandby], admin: Any
) -> None:
    """A commit that notifies holds a lock of the whole server, for as long as it waits."""
    primary, standby = pair
    store: Any = connect(primary.url(schema="noisy"))
    other = await asyncpg.connect(primary.url())
    await store.open()
    try:
        await store.add([Job(id="first")])
        with standby.frozen():
            notifies = asyncio.ensure_future(other.execute(NOISE))
            pid = await waiting(admin)
            os.kill(pid, signal.SIGSTOP)
            await admin.execute("ALTER SYSTEM SET synchronous_standby_names TO ''")
            await admin.execute("SELECT pg_reload_conf()")
        try:
            bell = store.engine.bell
            await until(lambda: bell.due_in(anything=True) == 0.0)
            for n in range(3):
                [added] = await store.add([Job(id=f"b{n}")])
                assert added.created
            assert (await store.depth("default")).ready == 4
        finally:
            os.kill(pid, signal.SIGCONT)
        await notifies
        await until(lambda: bell.due_in() is None)  # told in the end
    finally:
        await store.close()
        await other.close()


async def test_a_standby_that_is_away_is_said(
    pair: tuple[PostgresServer, PostgresStandby], admin: Any
) -> None:
    """And not waited for in silence; nor is one that is there, and is not waited for."""
    primary, _ = pair
    url = primary.url(schema="away")
    await admin.execute("ALTER SYSTEM SET synchronous_standby_names TO 'another'")
    await admin.execute("SELECT pg_reload_conf()")
    ask = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'async'"
    async with asyncio.timeout(60):
        while not await admin.fetchval(ask):
            pass
    with pytest.raises(StoreUnavailable, match="none of these is connected"):
        await connect(url, durability=Durability.REPLICA).open()


async def test_a_former_primary_that_comes_back_is_refused() -> None:
    """What it takes in is lost to the one that was promoted meanwhile."""
    with contextlib.ExitStack() as stack:
        primary = PostgresServer()
        stack.callback(primary.remove)
        primary.start()
        standby = PostgresStandby(primary)
        stack.callback(standby.remove)
        standby.start()
        store = connect(primary.url().replace("/postgres", f",127.0.0.1:{standby.port}/postgres"))
        await store.open()
        await store.add([Job(id="before")])
        primary.stop()
        promoted = await asyncpg.connect(standby.url())
        await promoted.execute("SELECT pg_promote()")
        await promoted.close()
        await added(store, "between")
        primary.start()
        standby.stop()
        with pytest.raises(StoreUnavailable, match="a former primary is back"):
            await added(store, "after")
        primary.stop()
        standby.start()
        await added(store, "after")
        ids = [claim.job.id for claim in await store.claim(["default"], [None], 9, 60.0, "w")]
        assert {"between", "after"} <= set(ids)
        await store.close()


async def added(store: Any, id_: str) -> None:
    """Once a server is there; adding it again changes nothing."""
    async with asyncio.timeout(60):
        while True:
            try:
                await store.add([Job(id=id_)])
                return
            except EnqueueUncertain:
                continue
            except StoreUnavailable as error:
                if "former primary" in str(error):
                    raise
