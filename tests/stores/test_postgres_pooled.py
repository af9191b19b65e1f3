"""PostgreSQL behind PgBouncer in transaction mode, whether the URL says so or not."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.servers import PgBouncer, PostgresServer, shared

from outlast import Outlast, Status, StoreUnavailable, current
from outlast.job import Job, done
from outlast.stores import connect
from outlast.testing import drain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from outlast.stores.postgres.store import PostgresStore

pytestmark = pytest.mark.needs("servers", "pgbouncer")

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def pooler() -> Iterator[PgBouncer]:
    made = PgBouncer(shared(PostgresServer))
    made.start()
    yield made
    made.remove()


@pytest.fixture(params=["told", "found out"])
def url(request: pytest.FixtureRequest, pooler: PgBouncer) -> str:
    more = {"pooler": "transaction"} if request.param == "told" else {}
    return pooler.url(schema=f"pooled{next(_numbers)}", **more)


@pytest.fixture
async def stores(url: str) -> AsyncIterator[list[PostgresStore]]:
    """Three, so that they share two sessions of the server."""
    opened: list[Any] = [connect(url) for _ in range(3)]
    for store in opened:
        await store.open()
    yield opened
    for store in opened:
        await store.close()


async def test_everything_is_done_once(
    stores: list[PostgresStore],
    url: str,
    pooler: PgBouncer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    number = 300
    ran: list[str] = []

    async def produce(store: PostgresStore, mine: int) -> None:
        for n in range(mine, number, 3):
            lane = f"l{n % 5}" if n % 2 else None
            await store.add([Job(id=f"j{n}", key=f"k{n}", lane=lane)])

    async def work(store: PostgresStore) -> None:
        while len(ran) < number:
            claims = await store.claim(["default"], [None], 20, 60.0, "w")
            if not claims:
                await store.wait(["default"], 0.05)
            ran.extend(claim.job.id for claim in claims)
            assert not await store.renew(claims, 60.0)
            assert not await store.settle([done(claim) for claim in claims])

    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(100):
            await asyncio.gather(
                *(produce(store, n) for n, store in enumerate(stores)), *map(work, stores)
            )
    assert sorted(ran) == sorted(f"j{n}" for n in range(number))
    depth = await stores[0].depth("default")
    assert (depth.live, depth.done) == (0, number)
    said = "there seems to be a pooler in transaction mode" in caplog.text
    assert said == ("pooler=" not in url and not pooler.knows_statements())


async def test_a_job_that_comes_is_found_by_polling(stores: list[PostgresStore], url: str) -> None:
    if "pooler=" not in url:
        pytest.skip("while all is quiet nothing tells that there is a pooler: workers poll anyway")
    assert await stores[0].claim(["default"], [None], 1, 60.0, "w") == []
    waits = asyncio.ensure_future(stores[0].wait(["default"], 1e6))
    await stores[1].add([Job(id="a")])
    async with asyncio.timeout(60):
        await waits


async def test_a_fence_grows_though_the_pooler_hides_the_death_of_the_server() -> None:
    server = PostgresServer(wal_writer_delay="10s")  # so that what nobody waited for is lost
    server.start()
    pooler = PgBouncer(server)
    pooler.start()
    store: Any = connect(pooler.url(pooler="transaction"))
    try:
        await store.open()
        await store.add([Job(id="a")])
        fences = []
        for _ in range(2):
            [claim] = await store.claim(["default"], [None], 1, 0.0, "w")
            fences.append(claim.fence)
            server.kill()
            server.start()
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(StoreUnavailable):
                        await store.recover(10)
                        if (await store.depth("default")).ready:
                            break
        assert fences == sorted(set(fences))
    finally:
        await store.close()
        pooler.remove()
        server.remove()


async def test_a_transaction_of_the_user_is_one_session(url: str) -> None:
    app = Outlast(url)

    @app.task(name="note")
    async def note() -> None: ...

    @app.task(name="sell")
    async def sell() -> None:
        async with current().transaction() as tx:
            [[before]] = await tx.execute("SELECT pg_backend_pid()")
            await note.enqueue()
            await current().step("mark", str)
            [[after]] = await tx.execute("SELECT pg_backend_pid()")
            assert before == after

    async with app:
        handle = await sell.enqueue()
        assert len(await drain(app)) == 2
        assert await handle.status() is Status.DONE
