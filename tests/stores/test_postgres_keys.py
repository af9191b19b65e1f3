"""Keys and lanes on a real server: callers, claims and other people's transactions at once."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.servers import PostgresServer, shared

from outlast.errors import StoreUnavailable
from outlast.job import Job, Status, done
from outlast.stores import connect
from outlast.stores.postgres import engine, link
from outlast.stores.postgres.schema import lock_number

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from outlast.stores.postgres.store import PostgresStore

pytestmark = pytest.mark.needs("servers")

_numbers = itertools.count(1)


class Shop:
    """One schema of the shared server, and as many handles on it as a test wants."""

    def __init__(self) -> None:
        self.url = shared(PostgresServer).url(schema=f"keys{next(_numbers)}")
        self.opened: list[PostgresStore] = []

    async def open(self) -> PostgresStore:
        store: Any = connect(self.url)
        await store.open()
        self.opened.append(store)
        return store  # type: ignore[no-any-return]

    async def close(self) -> None:
        for store in self.opened:
            await store.close()


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    made = Shop()
    yield made
    await made.close()


@pytest.mark.parametrize("policy", ["replace", "debounce"])
async def test_callers_and_claims_at_once(shop: Shop, policy: str) -> None:
    """Each job that was created is run or replaced, once, and no two hold the key in the queue."""
    stores = [await shop.open() for _ in range(3)]
    ran: list[str] = []
    made: set[str] = set()
    busy = True

    async def call(store: PostgresStore, mine: int) -> None:
        for n in range(60):
            job = Job(
                id=f"{mine}-{n}", key="k", digest=b"%d" % n, on_repeat=policy,  # type: ignore[arg-type]
                key_queued=True, keep_key=0, lane="l" if mine else None,
            )  # fmt: skip
            [answer] = await store.add([job])
            if answer.created:
                made.add(job.id)

    async def work() -> None:
        while busy or (await stores[2].depth("default")).live:
            claims = await stores[2].claim(["default"], [None], 10, 60, "w")
            ran.extend(claim.job.id for claim in claims)
            await stores[2].settle([done(claim) for claim in claims])

    worker = asyncio.ensure_future(work())
    await asyncio.gather(*(call(store, mine) for mine, store in enumerate(stores)))
    busy = False
    await worker
    gone = [job.id for job in await stores[0].find(status=[Status.CANCELLED], limit=1000)]
    assert sorted([*ran, *gone]) == sorted(made)
    assert (policy == "replace") == bool(gone)
    [answer] = await stores[0].add([Job(id="last", key="k", digest=b"x")])
    assert answer.created


async def test_an_open_transaction_stops_only_who_needs_its_key(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SETTLING", link.SETTLING.replace("'7s'", "'300ms'"))
    store = await shop.open()
    await store.add([Job(id="a", key="k")])
    theirs = await asyncpg.connect(shared(PostgresServer).url())
    try:
        await theirs.execute("BEGIN")
        await theirs.execute(f"UPDATE {store.schema}.keys SET job = job")
        blocked, other = await asyncio.gather(
            store.add([Job(id="b", key="k")]), store.add([Job(id="c")]), return_exceptions=True
        )
        assert isinstance(blocked, StoreUnavailable)
        assert "a key that is asked for here" in str(blocked)
        assert not isinstance(other, BaseException)
        await theirs.execute("ROLLBACK")
        # So too where the key is new, and its holder has not committed it yet.
        await theirs.execute("BEGIN")
        await theirs.execute(f"INSERT INTO {store.schema}.keys VALUES ('', 'new', 'n', '')")
        with pytest.raises(StoreUnavailable, match="a key that is asked for here"):
            await store.add([Job(id="n2", key="new")])
        await theirs.execute("ROLLBACK")
        [answer] = await store.add([Job(id="b", key="k")])
        assert (answer.id, answer.created) == ("a", False)
    finally:
        await theirs.close()


_WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)"


async def test_claims_and_ends_look_at_lanes_one_after_the_other(shop: Shop) -> None:
    """Else a job is put aside for its lane when the end that frees that has just looked for it."""
    store = await shop.open()
    await store.add([Job(id="a", lane="l"), Job(id="b", lane="l")])
    theirs = await asyncpg.connect(shared(PostgresServer).url())

    async def waits_for_us(call: Coroutine[Any, Any, Any]) -> Any:
        await theirs.execute("BEGIN")
        number = lock_number(store.schema, "lanes")
        await theirs.execute("SELECT pg_advisory_xact_lock($1)", number)
        asked = asyncio.ensure_future(call)
        async with asyncio.timeout(60):
            while not await theirs.fetchval(_WAITS):
                assert not asked.done()
        await theirs.execute("ROLLBACK")
        return await asked

    try:
        [claim] = await waits_for_us(store.claim(["default"], [None], 2, 60, "w"))
        assert claim.job.id == "a"
        await waits_for_us(store.settle([done(claim)]))
        [claim] = await store.claim(["default"], [None], 2, 60, "w")
        assert claim.job.id == "b"
    finally:
        await theirs.close()
