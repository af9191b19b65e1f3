"""PostgreSQL's tables brought up to date: with rows in them, under way, killed, and in the way."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.servers import PostgresServer, shared

from outlast.errors import StoreUnavailable
from outlast.job import Job, Status, done
from outlast.stores import connect
from outlast.stores.postgres import schema
from outlast.stores.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.needs("servers")

_numbers = itertools.count(1)
NOW = len(schema.MIGRATIONS)
FILL = """
INSERT INTO {s}.lines (queue, task) VALUES ('default', NULL), ('default', 't');
INSERT INTO {s}.jobs (id, line, state, payload, created_at, due, key, lane, attempt, receipt,
    lease, worker, started_at)
VALUES ('ready', 1, 1, 'a', 1, 'Infinity', NULL, NULL, 0, NULL, NULL, NULL, NULL),
    ('due', 1, 0, 'a', 1, 2, NULL, NULL, 0, NULL, NULL, NULL, NULL),
    ('late', 1, 0, 'a', 1, 4e9, NULL, NULL, 0, NULL, NULL, NULL, NULL),
    ('first', 1, 1, 'a', 1, 'Infinity', NULL, 'lane', 0, NULL, NULL, NULL, NULL),
    ('second', 1, 2, 'a', 1, 'Infinity', NULL, 'lane', 0, NULL, NULL, NULL, NULL),
    ('keyed', 2, 1, 'a', 1, 'Infinity', 'k', NULL, 0, NULL, NULL, NULL, NULL),
    ('taken', 2, 3, 'a', 1, 'Infinity', NULL, NULL, 1, 'r', 1, 'gone', 1);
INSERT INTO {s}.keys (task, key, job, digest) VALUES ('t', 'k', 'keyed', '');
INSERT INTO {s}.ended (seq, id, line, state, payload, created_at, finished_at, gone_at, result)
VALUES (100, 'done', 1, 4, 'a', 1, 2, 4e9, 'b'), (101, 'dead', 1, 5, 'a', 1, 2, NULL, NULL);
INSERT INTO {s}.counts (line, ready, delayed, running, done, dead)
VALUES (1, 3, 2, 0, 1, 1), (2, 1, 0, 1, 0, 0)
"""


@pytest.fixture
async def admin() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(shared(PostgresServer).url())
    yield connection
    await connection.close()


@pytest.fixture
def url() -> str:
    return shared(PostgresServer).url(schema=f"old{next(_numbers)}")


def open_at(url: str) -> PostgresStore:
    store = connect(url)
    assert isinstance(store, PostgresStore)
    return store


async def made(url: str, version: int) -> str:
    """The name of a schema, with the tables as they were then."""
    with pytest.MonkeyPatch.context() as before:
        before.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:version])
        store = open_at(url)
        await store.open()
        await store.close()
    return store.schema


async def work_off(store: PostgresStore) -> list[str]:
    """Run what can be run; the ids, in the order of the claims."""
    ids: list[str] = []
    while claims := await store.claim(["default"], [None, "t"], 100, 60.0, "w"):
        ids += [claim.job.id for claim in claims]
        assert not await store.settle([done(claim, b"1") for claim in claims])
    return ids


@pytest.mark.parametrize("version", range(1, NOW))
async def test_the_rows_of_each_earlier_version_are_kept(
    url: str, admin: Any, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though each of its steps is cut off once before it is done."""
    name = await made(url, version)
    await admin.execute(FILL.format(s=name))
    die = ";SELECT pg_terminate_backend(pg_backend_pid())"
    for step in range(version, NOW):
        with monkeypatch.context() as cut:
            steps = [text + die * (n == step) for n, text in enumerate(schema.MIGRATIONS)]
            cut.setattr(schema, "MIGRATIONS", steps)
            with pytest.raises(StoreUnavailable):
                await open_at(url).open()
        assert await admin.fetchval(f"SELECT version FROM {name}.meta") == step
    store = open_at(url)
    await store.open()
    assert (await store.versions()).found == NOW
    try:
        depth = await store.depth("default")
        assert (depth.ready, depth.delayed, depth.running) == (5, 1, 1)
        assert (depth.done, depth.dead) == (1, 1)
        [again] = await store.add([Job(id="other", task="t", key="k", digest=b"")])
        assert (again.id, again.created) == ("keyed", False)
        assert await store.recover(10) == 1
        assert sorted(await work_off(store)) == [
            "due", "first", "keyed", "ready", "second", "taken",
        ]  # fmt: skip
        jobs = await store.get(["late", "done", "dead", "taken"])
        status = [Status.QUEUED, Status.DONE, Status.DEAD, Status.DONE]
        assert [job and job.status for job in jobs] == status
        assert jobs[3] is not None
        assert jobs[3].attempt == 2
    finally:
        await store.close()


CUT = "ALTER TABLE @jobs ADD COLUMN colour text; SELECT pg_terminate_backend(pg_backend_pid());"


async def test_an_older_program_goes_on_while_tables_are_changed(
    url: str, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was at work before, and one that begins then; a step that is cut off changes nothing
    for them, and one that is done neither."""
    older = open_at(url)
    await older.open()
    stop = asyncio.Event()
    added: list[str] = []
    ran: list[str] = []

    async def add(store: PostgresStore) -> None:
        while not stop.is_set():
            ids = [f"j{next(_numbers)}" for _ in range(5)]
            await store.add([Job(id=id_, keep=0.0) for id_ in ids])
            added.extend(ids)

    async def run(store: PostgresStore) -> None:
        while not stop.is_set() or len(ran) < len(added):
            ran.extend(await work_off(store))

    async def come_along(count: int) -> None:
        while len(ran) < count:
            await asyncio.sleep(0)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for work in (add, run, run):
            tasks.create_task(work(older))
        await come_along(100)
        steps = (*schema.MIGRATIONS, CUT)
        monkeypatch.setattr(schema, "MIGRATIONS", steps)
        with pytest.raises(StoreUnavailable):
            await open_at(url).open()
        assert await admin.fetchval(f"SELECT version FROM {older.schema}.meta") == NOW
        await come_along(len(ran) + 100)
        whole = CUT.partition(" SELECT")[0]
        monkeypatch.setattr(schema, "MIGRATIONS", (*steps[:-1], whole))
        newer = open_at(url)
        await newer.open()
        assert await admin.fetchval(f"SELECT version FROM {older.schema}.meta") == NOW + 1
        monkeypatch.setattr(schema, "MIGRATIONS", steps[:-1])
        late = open_at(url)
        await late.open()
        for work in (add, run):
            tasks.create_task(work(newer))
            tasks.create_task(work(late))
        await come_along(len(ran) + 100)
        stop.set()
    assert sorted(ran) == sorted(added)
    for store in (older, newer, late):
        assert (await store.depth("default")).live == 0
        await store.close()


async def test_tables_that_are_held_serve_as_they_are(
    url: str, admin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """By a VACUUM of somebody's, say."""
    name = await made(url, schema.WORKS_ON)
    older = open_at(url)
    transaction = admin.transaction()
    await transaction.start()
    await admin.execute(f"LOCK TABLE {name}.jobs IN SHARE UPDATE EXCLUSIVE MODE")
    async with asyncio.timeout(60):
        await older.open()
        assert f"stay at version {schema.WORKS_ON}" in caplog.text
        await older.add([Job(id="a"), Job(id="b", key="k")])
        assert sorted(await work_off(older)) == ["a", "b"]
    assert (await older.versions()).pending
    await transaction.rollback()
    await made(url, NOW)
    assert not (await older.versions()).pending
    await older.close()


async def test_a_role_without_rights_works_on_the_tables_before(
    url: str, admin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its programs may be new before the owner of the tables has changed these."""
    caplog.set_level(logging.WARNING)
    role = f"app{next(_numbers)}"
    await admin.execute(f"CREATE ROLE {role} LOGIN")
    theirs = url.replace("outlast@", f"{role}@")

    async def grant(name: str) -> None:
        for what in ("USAGE ON SCHEMA", "ALL ON ALL TABLES IN SCHEMA"):
            await admin.execute(f"GRANT {what} {name} TO {role}")
        await admin.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {name} TO {role}")

    await grant(await made(url, schema.WORKS_ON - 1))
    with pytest.raises(StoreUnavailable, match="refuses us"):
        await open_at(theirs).open()
    await grant(await made(url, schema.WORKS_ON))
    store = open_at(theirs)
    await store.open()
    assert "`outlast migrate` by their owner" in caplog.text
    await store.add([Job(id="a"), Job(id="b", key="k")])
    assert sorted(await work_off(store)) == ["a", "b"]
    await store.close()


async def test_a_step_may_take_longer_than_a_connection(
    url: str, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index of a large table takes minutes; what is asked for around it does not."""
    name = await made(url, NOW)
    lock = "SELECT pg_advisory_xact_lock(hashtext('slow'))"
    monkeypatch.setattr(schema, "STEP_TIMEOUT", "60s")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, lock))
    transaction = admin.transaction()
    await transaction.start()
    await admin.execute(lock)
    connection = await asyncpg.connect(shared(PostgresServer).url())
    async with asyncio.timeout(60) as limit:
        begun = limit.when()
        names = schema.Names(name, "default")
        step = asyncio.create_task(schema.migrate(connection, names, create=False, limit=limit))
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while not await admin.fetchval(waits):
            assert not step.done()
        assert limit.when() is None
        await transaction.rollback()
        await step
        assert begun is not None
        assert limit.when() not in (None, begun)
    await connection.close()
