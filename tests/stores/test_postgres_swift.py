"""The usual add and the usual claim on PostgreSQL: one trip each; else the long way."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.servers import PostgresServer, shared

from outlast.job import Job, done
from outlast.stores import connect
from outlast.stores.postgres import link

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from outlast.stores.postgres.store import PostgresStore

pytestmark = pytest.mark.needs("servers")

DROP = """
DO $f$ DECLARE f regprocedure; BEGIN FOR f IN SELECT p.oid FROM pg_proc p JOIN pg_namespace n
ON n.oid = p.pronamespace WHERE n.nspname = '{s}' LOOP EXECUTE 'DROP FUNCTION ' || f; END LOOP;
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
    """The line is made, an epoch taken, and nothing has been quiet for long."""
    for task in (None, "t"):
        await store.add([Job(id=f"warm-{task}", task=task)])
    while claims := await _claim(store, None, "t"):
        assert not await store.settle([done(claim) for claim in claims])


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
