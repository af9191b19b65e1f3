"""PostgreSQL in bad company: rows written by hand, strangers' functions, and their noise."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.servers import PostgresServer, shared

from outlast import Outlast
from outlast.job import Death, Failure, Job, Status, done, retry
from outlast.stores import connect
from outlast.stores.news import MOST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from outlast.stores.postgres.store import PostgresStore

pytestmark = pytest.mark.needs("servers")

_numbers = itertools.count(1)


@pytest.fixture
async def server() -> PostgresServer:
    return shared(PostgresServer)


@pytest.fixture
async def admin(server: PostgresServer) -> AsyncIterator[Any]:
    """A connection that may do anything, and has nothing to do with us."""
    connection = await asyncpg.connect(server.url())
    yield connection
    await connection.close()


@pytest.fixture
async def store(server: PostgresServer) -> AsyncIterator[PostgresStore]:
    made: Any = connect(server.url(schema=f"hurt{next(_numbers)}"))
    await made.open()
    yield made
    await made.close()


BY_HAND = {
    "opts": ("'no json'", "'[1]'", """'{"keep":"for ever"}'""", "'\"'", "'null'"),
    "failure": ("'{'", "'7'"),
    "progress": ("'<b>'",),
}
"""What nobody of us writes into these columns."""
HIGHEST = "attempt = 2147483647, failures = 2147483647, crashes = 2147483647, fence = 1 << 62"


async def spoil(admin: Any, store: PostgresStore, mark: str, state: int = 1) -> list[str]:
    """Put a row in for each of them; their ids. They stand before all sound ones."""
    ids = []
    more = {"state": state, "priority": 9, "lease": 1.0 if state == 3 else None}
    for column, values in BY_HAND.items():
        for number, value in enumerate(values):
            ids.append(f"{mark}-{column}-{number}")
            await admin.execute(
                f"INSERT INTO {store.schema}.jobs (id, line, state, payload, created_at, priority,"
                f" lease, worker, {column}) VALUES ($1, (SELECT min(id) FROM {store.schema}.lines),"
                f" $2, '1', 1, $3, $4, 'w', {value})",
                ids[-1], *more.values(),
            )  # fmt: skip
    return ids


async def all_claims(store: PostgresStore) -> list[Any]:
    """Until nothing comes any more: each claim may bury some, and then finds more."""
    found: list[Any] = []
    empty = 0
    async with asyncio.timeout(60):
        while empty < 9:
            claims = await store.claim(["default"], [None], 3, 60.0, "w")
            found += claims
            empty = 0 if claims else empty + 1
            if not claims:
                await store.recover(100)  # behind what was handed over before
    return found


@pytest.mark.parametrize("way", ["swift", "long"])
async def test_rows_written_by_hand_are_buried_and_the_rest_goes_on(
    store: PostgresStore, admin: Any, way: str
) -> None:
    sound = [Job(id=f"sound-{n}", lane="l" if way == "long" else None) for n in range(4)]
    await store.add(sound)
    spoilt = await spoil(admin, store, "ready") + await spoil(admin, store, "overdue", 3)
    assert await store.recover(100) == len(spoilt) // 2
    claimed: list[str] = []
    for _ in range(len(sound)):
        claims = await all_claims(store)
        claimed += [claim.job.id for claim in claims]
        assert not await store.settle([done(claim) for claim in claims])
    assert sorted(claimed) == sorted(job.id for job in sound)
    jobs = [job for job in await store.get(spoilt) if job is not None]
    assert [job.id for job in jobs] == spoilt
    assert {job.status for job in jobs} == {Status.DEAD}
    assert {job.failure.kind for job in jobs if job.failure is not None} == {"damaged"}
    assert len(await store.find(status=[Status.DEAD])) == len(spoilt)
    depth = await store.depth("default")
    assert (depth.dead, depth.done) == (len(spoilt), len(sound))
    assert await store.revive([spoilt[0]]) == [True]


async def test_numbers_as_high_as_can_be_stop_nobody(store: PostgresStore, admin: Any) -> None:
    await store.add([Job(id=name, max_crashes=None) for name in "abcd"])
    await admin.execute(f"UPDATE {store.schema}.jobs SET {HIGHEST} WHERE id < 'c'")
    claims = {claim.job.id: claim for claim in await all_claims(store)}
    assert sorted(claims) == list("abcd")
    assert not await store.settle([retry(claims["a"], 0, Failure(kind="error")), done(claims["c"])])
    assert await store.recover_worker("w", Death(alone=True)) == 2
    assert len(await all_claims(store)) == 3


async def test_a_lease_that_never_ends_does(store: PostgresStore, admin: Any) -> None:
    await store.add([Job(id=name) for name in "abcd"])
    assert len(await store.claim(["default"], [None], 4, 60.0, "w")) == 4
    for name, lease in (("a", "NULL"), ("b", "'NaN'"), ("c", "'Infinity'")):
        text = f"UPDATE {store.schema}.jobs SET lease = {lease} WHERE id = $1"
        await admin.execute(text, name)
    assert await store.recover(100) == 3


async def test_a_line_that_is_not_there(store: PostgresStore, admin: Any) -> None:
    """Whatever meets such a row goes on, and says that it is in no queue."""
    await store.add([Job(id="sound")])
    for id_, state in (("lost-1", 1), ("lost-3", 3)):
        await admin.execute(
            f"INSERT INTO {store.schema}.jobs (id, line, state, payload, created_at, lease,"
            " expires_at) VALUES ($1, 999, $2::int, '1', 1, 1, CASE WHEN $2 < 3 THEN 1 END)",
            id_, state,
        )  # fmt: skip
    assert await store.recover(10) == 1
    assert [claim.job.id for claim in await all_claims(store)] == ["sound"]
    found = await store.get(["lost-1", "lost-3"])
    assert [job and (job.queue, job.status) for job in found] == [
        ("", Status.CANCELLED), ("", Status.QUEUED),
    ]  # fmt: skip
    assert await store.cancel(["lost-3"]) == ["cancelled"]


async def test_a_worker_goes_on(server: PostgresServer, admin: Any) -> None:
    app = Outlast(server.url(schema=f"hurt{next(_numbers)}"))
    ran: list[int] = []

    @app.task(name="note")
    async def note(n: int) -> None:
        ran.append(n)

    async with app:
        store: Any = app.store
        await note.enqueue(0)
        spoilt = await spoil(admin, store, "work")
        for n, opts in enumerate(('{"codec":"pickle"}', '{"max_attempts":-9}', '{"timeout":-1.5}')):
            await admin.execute(
                f"INSERT INTO {store.schema}.jobs (id, line, state, payload, created_at, priority,"
                f" opts) SELECT $1, min(id), 1, '{{\"n\":1}}', 1, 9, $2 FROM {store.schema}.lines",
                f"odd-{n}", opts,
            )  # fmt: skip
        handles = [await note.enqueue(n) for n in range(1, 4)]
        async with app.worker(), asyncio.timeout(60):
            for handle in handles:
                await handle.result()
        assert set(range(4)) <= set(ran)
        assert {job.status for job in await store.get(spoilt)} == {Status.DEAD}
        odd = [job.status for job in await store.get([f"odd-{n}" for n in range(3)])]
        assert all(status.ended for status in odd)


TRAP = """
CREATE FUNCTION public.{name}({takes}) RETURNS {gives} LANGUAGE plpgsql AS $$
BEGIN INSERT INTO public.caught VALUES (current_user, '{name}'); {body} END $$
"""
TRAPS = (
    ("unnest", "text[]", "SETOF text", "RETURN QUERY SELECT pg_catalog.unnest($1);"),
    ("unnest", "int[]", "SETOF int", "RETURN QUERY SELECT pg_catalog.unnest($1);"),
    ("unnest", "bigint[]", "SETOF bigint", "RETURN QUERY SELECT pg_catalog.unnest($1);"),
    ("cardinality", "text[]", "int", "RETURN pg_catalog.cardinality($1);"),
    ("cardinality", "int[]", "int", "RETURN pg_catalog.cardinality($1);"),
    ("joint", "bigint, text", "text", "RETURN pg_catalog.concat($1, $2);"),
    ("joint", "text, name", "text", "RETURN pg_catalog.concat($1, $2);"),
)
OPERATORS = (
    "CREATE OPERATOR public.|| (FUNCTION = public.joint, LEFTARG = bigint, RIGHTARG = text)",
    "CREATE OPERATOR public.|| (FUNCTION = public.joint, LEFTARG = text, RIGHTARG = name)",
)


async def test_functions_of_a_stranger_are_not_called(server: PostgresServer, admin: Any) -> None:
    """Before PostgreSQL 15 anybody may make functions where everybody finds them."""
    await admin.execute("CREATE DATABASE company")
    await admin.execute("CREATE ROLE stranger LOGIN")
    await admin.execute("CREATE ROLE victim LOGIN")
    url = server.url("company")
    owner = await asyncpg.connect(url)
    await owner.execute("GRANT CREATE ON SCHEMA public TO PUBLIC; CREATE SCHEMA outlast")
    await owner.execute("GRANT ALL ON SCHEMA outlast TO victim")
    await owner.close()
    stranger = await asyncpg.connect(url.replace("outlast@", "stranger@"))
    await stranger.execute("CREATE TABLE public.caught (who text, by text)")
    await stranger.execute("GRANT ALL ON public.caught TO PUBLIC")
    for name, takes, gives, body in TRAPS:
        await stranger.execute(TRAP.format(name=name, takes=takes, gives=gives, body=body))
    for operator in OPERATORS:
        await stranger.execute(operator)
    store: Any = connect(url.replace("outlast@", "victim@"))
    await store.open()
    try:
        mine = await asyncpg.connect(url.replace("outlast@", "victim@"))
        async with mine.transaction():
            await store.joined(mine).add([Job(id="joined", key="j")])
            assert await mine.fetchval("SELECT current_setting('search_path')") == (
                '"$user", public'
            )
        await mine.close()
        await store.add([Job(id="swift")])
        await store.add([Job(id="keyed", key="k"), Job(id="laned", lane="l", delay=0.001)])
        await store.add([Job(id="room")], capacity=9)
        claims = [*await store.claim(["default"], [None], 1, 60.0, "w")]
        claims += await store.claim(["default"], [None], 9, 60.0, "w", True)
        await store.renew(claims, 60.0)
        assert not await store.settle([done(claim) for claim in claims])
        await store.recover(9)
        await store.prune(9)
        await store.find(status=[Status.DONE])
        await store.cancel(["laned"])
        await store.depth("default")
        assert await stranger.fetch("SELECT DISTINCT who, by FROM public.caught") == []
    finally:
        await store.close()
        await stranger.close()


async def test_noise_on_our_channel_costs_no_memory(store: PostgresStore, admin: Any) -> None:
    """Anybody who may connect may notify: about queues that are not, in words that say nothing."""
    assert await store.claim(["default"], [None], 1, 60.0, "w") == []
    while not store._running().bell.listens:
        await store.depth("default")
    waits = asyncio.ensure_future(store.wait(["default"], 1e6))
    names = (f"work:{','.join(f'q{n}x{m}' for m in range(600))}" for n in range(40))
    for words in ("", "|", "x", "x|", "x|work", "x|nothing:a,b", *(f"x|{each}" for each in names)):
        await admin.execute("SELECT pg_notify($1, $2)", store.schema, words)
    await admin.execute("SELECT pg_notify($1, 'x|work:default')", store.schema)
    async with asyncio.timeout(60):
        await waits
    assert len(store._news._counts) <= MOST
