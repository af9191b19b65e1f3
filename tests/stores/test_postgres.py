"""What is special to the PostgreSQL store: lost connections, dead servers, plans, and passwords."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.proof.processes import import_path
from tests.servers import PostgresServer

from outlast.doctor import examine
from outlast.errors import (
    ConfigurationError,
    DurabilityError,
    EnqueueUncertain,
    SchemaMismatch,
    StoreUnavailable,
)
from outlast.job import Death, Job, done
from outlast.store import Durability
from outlast.stores import connect
from outlast.stores.postgres import opening, schema
from outlast.stores.postgres.schema import lock_number

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from outlast.stores.postgres.store import PostgresStore

pytestmark = pytest.mark.needs("servers")

CANARY = "S3cr3t!pw"
ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that writes its log to the disk late, so that what nobody waited for is lost."""
    made = PostgresServer(
        wal_writer_delay="10s",
        session_preload_libraries="auto_explain",
        **{"auto_explain.log_min_duration": "0", "auto_explain.log_nested_statements": "on"},
    )
    made.start()
    yield made
    made.remove()


def open_at(url: str, **more: Any) -> PostgresStore:
    store: Any = connect(url, **more)
    return store  # type: ignore[no-any-return]


@pytest.fixture
async def store(server: PostgresServer) -> AsyncIterator[PostgresStore]:
    made = open_at(server.url(schema=f"s{next(_numbers)}"))
    await made.open()
    yield made
    await made.close()


def jobs(count: int) -> list[Job]:
    return [Job(id=f"j{next(_numbers)}") for _ in range(count)]


UNFLUSHED = "SELECT (pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn())::int"
PAGE_HEADER = 64
"""More than what the log's own pages may add to where it ends; less than any record of ours."""


async def ask(server: PostgresServer, text: str, *values: Any) -> Any:
    connection = await asyncpg.connect(server.url())
    try:
        return await connection.fetchval(text, *values)
    finally:
        await connection.close()


async def terminate_all(server: PostgresServer) -> None:
    """All sessions of outlast, as an administrator would."""
    await ask(
        server,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE application_name = 'outlast'",
    )


async def are_connected(server: PostgresServer, many: int) -> None:
    """So many sessions of outlast: one that was closed is seen for a moment longer."""
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outlast'"
    async with asyncio.timeout(60):
        while await ask(server, count) != many:
            pass


async def added(store: PostgresStore, job: Job) -> None:
    """Add until it is there: what callers do while a server is away."""
    async with asyncio.timeout(60):
        while True:
            try:
                await store.add([job])
                return
            except (StoreUnavailable, EnqueueUncertain):
                continue  # the store itself waits before it connects again


async def claimed(store: PostgresStore, lease: float = 60.0) -> list[Any]:
    async with asyncio.timeout(60):
        while True:
            try:
                return list(await store.claim(["default"], [None], 1000, lease, "w"))
            except StoreUnavailable:
                continue


async def test_sessions_that_are_ended_are_made_again(
    server: PostgresServer, store: PostgresStore
) -> None:
    [job] = jobs(1)
    await store.add([job])
    assert len(await claimed(store)) == 1
    waits = asyncio.ensure_future(store.wait(["default"], 60))
    await terminate_all(server)
    await added(store, Job(id="after"))
    async with asyncio.timeout(60):
        await waits
    assert [claim.job.id for claim in await claimed(store)] == ["after"]


async def test_news_are_pushed_again_after_a_restart(
    server: PostgresServer, store: PostgresStore
) -> None:
    other = open_at(server.url(schema=store.schema))
    await other.open()
    try:
        assert await claimed(store) == []
        server.stop()
        server.start()
        await added(other, Job(id="first"))
        assert [claim.job.id for claim in await claimed(store)] == ["first"]
        async with asyncio.timeout(60):
            while not store._running().bell.listens:
                await claimed(store)
        assert await claimed(store) == []
        await store.wait(["default"], 0)
        waits = asyncio.ensure_future(store.wait(["default"], 1e6))
        await added(other, Job(id="second"))
        async with asyncio.timeout(60):
            await waits
        assert [claim.job.id for claim in await claimed(store)] == ["second"]
    finally:
        await other.close()


async def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    server: PostgresServer, store: PostgresStore
) -> None:
    """Although role and database say that commits need not wait for the disk."""
    await ask(server, "ALTER ROLE outlast SET synchronous_commit = off")
    await ask(server, "ALTER DATABASE postgres SET synchronous_commit = off")
    try:
        acknowledged: set[str] = set()
        settled: set[str] = set()

        async def produce(name: str) -> None:
            for n in range(1000):
                await store.add([Job(id=f"{name}-{n}")])
                acknowledged.add(f"{name}-{n}")

        async def consume() -> None:
            while True:
                claims = await store.claim(["default"], [None], 5, 60.0, "w")
                lost = await store.settle([done(claim, b"1") for claim in claims])
                assert not lost
                settled.update(claim.job.id for claim in claims)

        work = [asyncio.ensure_future(produce(f"p{n}")) for n in range(5)]
        work.append(asyncio.ensure_future(consume()))
        async with asyncio.timeout(60):
            while len(settled) < 50:
                await asyncio.wait(work, timeout=0.01)
        server.kill()
        ends = await asyncio.gather(*work, return_exceptions=True)
        assert all(isinstance(e, (StoreUnavailable, EnqueueUncertain)) for e in ends), ends
        server.start()
        found = await store.get(sorted(acknowledged))
        kept = {job.id: job for job in found if job is not None}
        assert set(kept) == acknowledged
        assert {kept[id].result for id in settled} == {b"1"}
    finally:
        await ask(server, "ALTER ROLE outlast RESET synchronous_commit")
        await ask(server, "ALTER DATABASE postgres RESET synchronous_commit")


@pytest.fixture
async def careless(server: PostgresServer) -> AsyncIterator[PostgresStore]:
    """One whose role says that commits need not wait, and that asks for the least there is."""
    await ask(server, "ALTER ROLE outlast SET synchronous_commit = off")
    url = server.url(schema=f"s{next(_numbers)}", notify="off", durability="process")
    made = open_at(url)
    await made.open()
    yield made
    await made.close()
    await ask(server, "ALTER ROLE outlast RESET synchronous_commit")


async def test_whatever_is_promised_waits_for_the_disk(
    server: PostgresServer, careless: PostgresStore
) -> None:
    """Also where a kill of the server is all that is to be survived: memory dies with it."""
    connection = await asyncpg.connect(server.url())
    await careless.add([Job(id=f"c{n}") for n in range(20)])
    claims = await claimed(careless)
    fresh = (f"f{n}" for n in itertools.count())
    calls: dict[str, Any] = {
        "add": lambda: careless.add([Job(id=next(fresh))]),
        "add carefully": lambda: careless.add([Job(id=next(fresh), key=next(fresh))]),
        "settle": lambda: careless.settle([done(claims.pop())]),
        "recover": lambda: careless.recover_worker("w", Death()),
    }
    for name, call in calls.items():
        # Somebody else may have written a little just then: once is enough, and never is not.
        gaps: list[int] = []
        while len(gaps) < 5 and min(gaps, default=PAGE_HEADER + 1) > PAGE_HEADER:
            await call()
            gaps.append(await connection.fetchval(UNFLUSHED))
        assert min(gaps) <= PAGE_HEADER, name
    await connection.close()


async def test_a_line_that_is_known_is_there_after_the_death_of_the_server(
    server: PostgresServer, careless: PostgresStore
) -> None:
    """Else jobs would be put into a line that nobody serves."""
    await careless.add([Job(id="before")])
    await careless.engine.elsewhere(careless.engine.make_lines({("late", None)}))
    server.kill()
    server.start()
    await added(careless, Job(id="a", queue="late"))
    other = open_at(server.url(schema=careless.schema))
    await other.open()
    assert [c.job.id for c in await other.claim(["late"], [None], 9, 60.0, "w")] == ["a"]
    await other.close()


async def test_a_fence_grows_over_the_death_of_the_server(
    server: PostgresServer, store: PostgresStore
) -> None:
    await store.add([Job(id="a")])
    fences = []
    for _ in range(3):
        [claim] = await claimed(store, lease=0.0)
        fences.append(claim.fence)
        server.kill()
        server.start()
        async with asyncio.timeout(60):
            # The claim itself may be lost with the server: then there is nothing to recover.
            while (await store.depth("default")).ready == 0:
                await store.recover(10)
    assert fences == sorted(set(fences))


async def test_a_server_that_promises_less_is_refused() -> None:
    server = PostgresServer(fsync="off")
    server.start()
    try:
        store = open_at(server.url())
        with pytest.raises(DurabilityError, match="fsync"):
            await store.open()
        store = open_at(server.url(), durability=Durability.REPLICA)
        with pytest.raises(DurabilityError, match="fsync"):
            await store.open()
        store = open_at(server.url(), durability=Durability.PROCESS)
        await store.open()
        assert store.durability is Durability.PROCESS
        await store.close()
    finally:
        server.remove()


async def test_no_replica_without_a_standby(server: PostgresServer) -> None:
    store = open_at(server.url(), durability=Durability.REPLICA)
    with pytest.raises(DurabilityError, match="synchronous_standby_names"):
        await store.open()


async def test_a_server_that_takes_no_writes_is_refused(server: PostgresServer) -> None:
    await ask(server, "CREATE DATABASE still")
    await ask(server, "ALTER DATABASE still SET default_transaction_read_only = on")
    store = open_at(server.url("still"))
    with pytest.raises(StoreUnavailable, match="replica"):
        await store.open()


async def test_a_server_that_is_too_old_or_of_another_encoding_is_refused(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(
        server,
        "CREATE DATABASE odd ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    )
    with pytest.raises(StoreUnavailable, match="SQL_ASCII"):
        await open_at(server.url("odd")).open()
    monkeypatch.setattr(opening, "OLDEST", 990_000)
    with pytest.raises(StoreUnavailable, match="outlast needs 14"):
        await open_at(server.url()).open()


async def test_a_missing_schema_is_not_made_unasked(server: PostgresServer) -> None:
    store = open_at(server.url(schema="never"), create=False)
    with pytest.raises(StoreUnavailable, match="create=True"):
        await store.open()
    assert not await ask(server, "SELECT to_regnamespace('never') IS NOT NULL")


async def test_two_who_make_the_same_schema_at_once(server: PostgresServer) -> None:
    """Both have seen that there is none, and wait for the lock: the second must look again."""
    url = server.url(schema="twice")
    connection = await asyncpg.connect(server.url())
    number = lock_number("twice", "migrate")
    await connection.execute("SELECT pg_advisory_lock($1)", number)
    stores = [open_at(url), open_at(url)]
    opening = [asyncio.ensure_future(store.open()) for store in stores]
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    async with asyncio.timeout(60):
        while await connection.fetchval(waiting) < len(stores):
            await asyncio.sleep(0)
    await connection.close()
    await asyncio.gather(*opening)
    for store in stores:
        await store.close()


async def test_a_migration_that_is_cut_off_goes_on(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a step: the steps before it stand, and that one was never begun."""
    url = server.url(schema="halfway")
    first, second, *rest = schema.MIGRATIONS
    die = "SELECT pg_terminate_backend(pg_backend_pid());"
    monkeypatch.setattr(schema, "MIGRATIONS", (first, second + die, *rest))
    with pytest.raises(StoreUnavailable):
        await open_at(url).open()
    assert await ask(server, "SELECT version FROM halfway.meta") == 1
    assert await ask(server, "SELECT to_regclass('halfway.steps')") is None
    monkeypatch.setattr(schema, "MIGRATIONS", (first, second, *rest))
    store = open_at(url)
    await store.open()
    await store.close()
    assert await ask(server, "SELECT version FROM halfway.meta") == len(schema.MIGRATIONS)


async def test_a_migration_does_not_hold_everybody_up(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has a transaction open holds the step up, and the step all who come after it."""
    url = server.url(schema="heldup")
    steps = schema.MIGRATIONS
    monkeypatch.setattr(schema, "MIGRATIONS", steps[:3])
    old = open_at(url)
    await old.open()
    await old.add([Job(id="a")])
    monkeypatch.setattr(schema, "MIGRATIONS", steps)
    monkeypatch.setattr(schema, "STEP_TIMEOUT", "100ms")
    connection = await asyncpg.connect(server.url())
    await connection.execute("BEGIN; UPDATE heldup.jobs SET attempt = 0")
    async with asyncio.timeout(60):
        with pytest.raises(StoreUnavailable, match="open transaction"):
            await open_at(url).open()
        await old.add([Job(id="b")])
    await connection.close()
    monkeypatch.undo()
    new = open_at(url)
    await new.open()
    claims = await new.claim(["default"], [None], 10, 60.0, "w")
    assert [claim.job.id for claim in claims] == ["a", "b"]
    await new.close()
    await old.close()


async def test_a_newer_schema_is_refused_unless_it_serves_us(
    server: PostgresServer, store: PostgresStore
) -> None:
    meta = f"{store.schema}.meta"
    url = server.url(schema=store.schema)
    await ask(server, f"UPDATE {meta} SET version = 99")
    other = open_at(url)
    await other.open()
    await other.close()
    await ask(server, f"UPDATE {meta} SET serves = 99")
    with pytest.raises(SchemaMismatch, match="newer"):
        await open_at(url).open()


async def test_passwords_are_in_no_message_and_no_log(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for place in (f"127.0.0.1:{server.port}/nowhere", "127.0.0.1:1/x", "nowhere.invalid/x"):
        store = open_at(f"postgresql://nobody:{CANARY.replace('!', '%21')}@{place}")
        with pytest.raises(StoreUnavailable) as caught:
            await store.open()
        error: BaseException | None = caught.value
        shown = f"{store!r} {store.url}"
        while error is not None:
            shown += f"{error} {error!r}"
            error = error.__cause__ or error.__context__
        assert "S3cr3t" not in shown + caplog.text
        assert "postgresql://nobody:***@" in shown


def test_the_driver_is_asked_for_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigurationError, match=r"outlast\[postgres\]"):
        connect("postgres://h/d")


async def test_three_connections_a_worker_and_one_for_a_producer(
    server: PostgresServer, store: PostgresStore
) -> None:
    await store.add(jobs(3))
    await are_connected(server, 1)
    await claimed(store)
    await are_connected(server, 2)
    side = open_at(server.url(schema=store.schema))
    await side.open()
    await side.recover(10)
    await side.prune(10)
    await are_connected(server, 3)
    await side.close()


async def test_three_connections_a_worker_process(server: PostgresServer, tmp_path: Path) -> None:
    """Pool, LISTEN, renewal: and no more for the app that is open in it."""
    (tmp_path / "shop.py").write_text(
        "from outlast import Outlast\napp = Outlast()\n"
        "@app.task(name='more')\nasync def more(n: int) -> None:\n"
        "    if n:\n        await more.enqueue(n - 1)\n"
    )
    schema = f"s{next(_numbers)}"
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "outlast", "worker", "shop:app", "--create", cwd=tmp_path,
        env=os.environ
        | {"OUTLAST_URL": server.url(schema=schema), "PYTHONPATH": import_path(tmp_path)},
    )  # fmt: skip
    try:
        store = open_at(server.url(schema=schema))
        await store.open()
        await store.add([Job(id=f"j{next(_numbers)}", task="more", payload=b'{"n":9}')])
        await store.close()
        async with asyncio.timeout(60):
            done = f"SELECT count(*) FROM {schema}.ended, {schema}.workers"
            while await ask(server, done) < 10:
                assert worker.returncode is None
        await are_connected(server, 3)
    finally:
        worker.terminate()
        await worker.wait()


async def test_a_role_with_no_more_rights_than_the_page_says(server: PostgresServer) -> None:
    owner = open_at(server.url(schema="least"))
    await owner.open()
    await owner.close()
    page = (ROOT / "docs" / "postgresql.md").read_text()
    await ask(server, "CREATE ROLE app LOGIN")
    connection = await asyncpg.connect(server.url())
    for line in page.splitlines():
        if line.startswith("GRANT "):
            await connection.execute(line.replace("outlast", "least"))
    await connection.close()
    store = open_at(server.url(schema="least").replace("outlast@", "app@"))
    await store.open()
    try:
        await store.add([Job(id="a", key="k"), Job(id="b"), Job(id="c", task="new")])
        claims = await claimed(store)
        assert not await store.settle([done(claim) for claim in claims])
        assert await store.recover(1) == await store.prune(1) == 0
        assert (await store.depth("default")).done == 2
    finally:
        await store.close()


async def test_the_doctor_tells_a_sound_server_from_an_unsound_one(
    server: PostgresServer, store: PostgresStore
) -> None:
    report = await examine(server.url(schema=store.schema))
    assert (report.accepted, report.exit_code) == (Durability.POWER, 0)
    assert {finding.id for finding in report.findings} == {f"PG{n}" for n in range(1, 12)}
    await ask(server, f"ALTER TABLE {store.schema}.jobs SET (autovacuum_enabled = false)")
    await ask(server, "ALTER ROLE outlast SET idle_in_transaction_session_timeout TO '1s'")
    try:
        report = await examine(server.url(schema=store.schema))
    finally:
        await ask(server, "ALTER ROLE outlast RESET ALL")
        await ask(server, f"ALTER TABLE {store.schema}.jobs RESET (autovacuum_enabled)")
    said = {finding.read for finding in report.findings if finding.id == "PG9"}
    assert {"autovacuum is off for jobs", "idle_in_transaction_session_timeout=1000ms"} <= said
    await ask(server, f"ALTER TABLE {store.schema}.keys SET UNLOGGED")
    report = await examine(server.url(schema=store.schema))
    assert (report.accepted, report.exit_code) == (Durability.MEMORY, 1)
    assert report.worst()[0].id == "PG4"
    report = await examine(f"postgresql://nobody:{CANARY}@127.0.0.1:1/x")
    assert report.exit_code == 3
    assert CANARY not in repr(report)


FILL = """
INSERT INTO {s}.ended (seq, id, line, state, payload, created_at, finished_at, gone_at)
SELECT n, 'e' || n, 1, 4, 'x', 1, 1, 4e9 FROM generate_series(1, {n} * 3 / 5) n;
INSERT INTO {s}.jobs (seq, id, line, state, payload, created_at, due)
SELECT n, 'd' || n, 1, 0, 'x', 1, 4e9 FROM generate_series({n}, {n} + {n} * 2 / 5) n;
INSERT INTO {s}.jobs (seq, id, line, state, payload, created_at)
SELECT n, 'r' || n, 1 + n % 2, 1, 'x', 1 FROM generate_series(2 * {n}, 2 * {n} + {n} / 5) n;
INSERT INTO {s}.keys SELECT '', 'k' || n, 'e' || n, '', 4e9 FROM generate_series(1, {n} / 5) n
"""
ROWS = 2_000_000 if os.environ.get("OUTLAST_FULL_CASES") else 100_000
"""Three fifths of them ended, two delayed, one ready. Two million: a million and more a table."""


@pytest.mark.timeout(1800 if ROWS > 100_000 else 120)
async def test_no_table_that_grows_is_read_from_end_to_end(
    server: PostgresServer, store: PostgresStore
) -> None:
    """The plans as the server made them, for an empty table as for a full one."""
    names: list[str | None] = [None, "t"]

    async def everything(round: str) -> None:
        await store.add([Job(id=f"{round}{n}") for n in range(50)])
        await store.add([Job(id=f"{round}k{n}", key=f"{round}{n}", task="t") for n in range(50)])
        await store.add([Job(id=f"{round}k0", key=f"{round}0", task="t")])
        claims = list(await store.claim(["default"], names, 120, 60.0, "w"))
        assert claims
        assert not await store.renew(claims, 120.0)
        assert not await store.settle([done(claim, b"1") for claim in claims])
        for newest in (False, True):
            claims = list(await store.claim(["default"], [None], 20, 60.0, "w", newest))
            assert not await store.settle([done(claim) for claim in claims])
        await store.recover(10)
        await store.prune(10)
        await store.get([f"{round}1"])
        await store.cancel([f"{round}2"])
        await store.depth("default")
        assert [job.id for job in await store.find(key=f"{round}3")] == [f"{round}k3"]
        assert await store.emit(f"{round}", b"1", 60)

    (server.folder / "log").write_text("")
    await everything("a")
    connection = await asyncpg.connect(server.url())
    await connection.execute(FILL.format(s=store.schema, n=ROWS))
    await connection.execute("ANALYZE")
    await connection.close()
    begun = (server.folder / "log").stat().st_size
    await everything("b")
    plans = (server.folder / "log").read_text()
    assert "Index Scan using jobs_ready on jobs" in plans[begun:]
    assert "Index Scan using ended_key on ended" in plans[begun:]
    table = re.compile(r"^.*Seq Scan on (jobs|ended|keys|steps|events)\b.*$", re.MULTILINE)
    found = [match[0] for match in table.finditer(plans)]
    assert not found


STALE = """
INSERT INTO {s}.jobs (id, line, state, payload, created_at, due)
SELECT 'd' || n, 1, 0, 'x', 1, 4e9 FROM generate_series(1, 20000) n
"""


async def test_rows_are_found_by_their_numbers_whatever_the_statistics_say(
    server: PostgresServer, store: PostgresStore
) -> None:
    """A backlog that came after the last ANALYZE: one index of it is walked through by no claim."""
    await store.add([Job(id="first", run_at=4e9)])  # so that there is the line
    connection = await asyncpg.connect(server.url())
    await connection.execute(STALE.format(s=store.schema))
    await connection.execute(f"ANALYZE {store.schema}.jobs")
    begun = (server.folder / "log").stat().st_size
    await store.add(jobs(100))
    assert len(await claimed(store)) == 100
    await connection.execute(f"UPDATE {store.schema}.jobs SET due = 1 WHERE id < 'd2'")
    assert await claimed(store)
    await store.add([Job(id=f"l{n}", lane=f"lane{n % 7}") for n in range(50)])
    assert await store.claim(["default"], [None], 5, 60.0, "w", True)
    assert await claimed(store)
    await connection.close()
    plans = (server.folder / "log").read_bytes()[begun:].decode()
    assert re.findall(r"Index Cond: \(seq = ANY .*", plans)
    assert not re.findall(r"Filter: .*\bseq = ANY.*", plans)
