"""``durability=replica`` on PostgreSQL: what is promised is on a standby too, or it is said."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.servers import PostgresServer, PostgresStandby

from outlast.errors import DurabilityError, EnqueueUncertain, StoreUnavailable
from outlast.job import Job, done
from outlast.store import Durability
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.needs("servers")

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
