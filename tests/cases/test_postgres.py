"""The cases that were seen on PostgreSQL, on a server of their own."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.cases.rig import FULL, SECRET, Rig, assert_hidden, outlast, scaled
from tests.cases.ticks import one_job_a_tick
from tests.proof.patience import linger, until
from tests.servers import PostgresServer, PostgresStandby
from tests.stores.proxy import proxied

from outlast.doctor import examine
from outlast.doctor.report import Severity
from outlast.errors import StoreUnavailable
from outlast.job import Job, Status, done
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

END_ALL = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE application_name = 'outlast'"
)
pytestmark = pytest.mark.needs("servers")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    made = PostgresServer(autovacuum="off")
    made.start()
    yield made
    made.remove()


async def ask(server: PostgresServer, text: str, *values: Any) -> Any:
    connection = await asyncpg.connect(server.url())
    try:
        return await connection.fetchval(text, *values)
    finally:
        await connection.close()


# -- C19


def test_c19(tmp_path: Path, server: PostgresServer) -> None:
    """C19: several who see the same tick make a task each, or a killed one's tick is lost."""
    rig = Rig(tmp_path, server.url(schema="c19"))
    try:
        one_job_a_tick(rig)
    finally:
        rig.close()


# -- a standby


def test_a_standby_is_refused_and_promoted_it_has_the_same_workers(
    tmp_path: Path,
) -> None:
    primary = PostgresServer()
    primary.start()
    standby = None
    rig = Rig(tmp_path, primary.url())
    try:
        first = rig.enqueue(("instant", 1))
        standby = PostgresStandby(primary)
        standby.start()
        with pytest.raises(StoreUnavailable, match="replica"):
            Rig(tmp_path, standby.url()).enqueue(("instant", 2))
        report = asyncio.run(examine(standby.url()))
        assert [each.read for each in report.findings if each.severity is Severity.ERROR] == [
            "it is a replica"
        ]
        rig.url = primary.url().replace("/postgres", f",127.0.0.1:{standby.port}/postgres")
        worker = rig.start("-c", "2")
        rig.until_ended(first)
        pids = rig.members(worker)
        ids = rig.enqueue(*[("instant", n) for n in range(20)])
        asyncio.run(_caught_up(primary))
        primary.kill()
        asyncio.run(ask(standby, "SELECT pg_promote()"))
        rig.until_ended([*ids, *rig.enqueue(("instant", 3))], 90.0)
        assert rig.members(worker) == pids
        assert rig.statuses(ids) == {Status.DONE: 20}
        assert "a standby was promoted (timeline 2, before 1)" in rig.workers_said
    finally:
        rig.close()
        if standby is not None:
            standby.remove()
        primary.remove()


async def _caught_up(primary: PostgresServer) -> None:
    """The standby has all that has been acknowledged."""
    behind = "SELECT bool_and(replay_lsn >= $1::text::pg_lsn) FROM pg_stat_replication"
    at = await ask(primary, "SELECT pg_current_wal_flush_lsn()::text")
    async with asyncio.timeout(60):
        while not await ask(primary, behind, at):
            pass


# -- C24


async def test_c24(tmp_path: Path, server: PostgresServer) -> None:
    """C24: a lost LISTEN connection leaves the worker hanging, or polling slowly for ever."""
    async with proxied(server.port) as proxy:
        rig = Rig(tmp_path, server.url(port=proxy.port, schema="c24"))
        try:
            worker = await asyncio.to_thread(rig.start, "-c", "2")
            await asyncio.to_thread(rig.until_up)
            rig.url = server.url(schema="c24")  # those who enqueue go to the server itself
            pids = rig.members(worker)
            await _goes_well(rig, scaled(15.0, 0.0))
            await ask(server, END_ALL)
            await _goes_well(rig, scaled(15.0, 0.0))
            server.stop()
            await asyncio.to_thread(server.start)
            await _goes_well(rig, scaled(15.0, 0.0))
            proxy.swallow()
            await _goes_well(rig, scaled(60.0, 0.0))
            assert rig.members(worker) == pids
        finally:
            await asyncio.to_thread(rig.close)


async def _goes_well(rig: Rig, after: float) -> None:
    """Once a job has come through again, or after so long, the next ones start at once."""
    if after:
        await asyncio.to_thread(linger, after)
    else:
        await asyncio.to_thread(_took, rig)
    waits = []
    for _ in range(scaled(20, 5)):
        waits.append(await asyncio.to_thread(_took, rig))
        await asyncio.to_thread(linger, scaled(1.0, 0.0))
    # Who polls looks every five seconds, so that it takes half of that.
    assert statistics.median(waits) < scaled(0.5, 1.5), waits


def _took(rig: Rig) -> float:
    """Seconds from the enqueue of a job to its start."""
    began = time.monotonic()
    [id_] = rig.enqueue(("instant", 1))
    rig.until_started(id_, seconds=90.0)
    return rig.said("start", id_)[0].at - began


# -- C51


def test_c51(tmp_path: Path, server: PostgresServer) -> None:
    """C51: the password is shown in a message, a log, or a listing; and an argument unescaped."""
    rules = server.data / "pg_hba.conf"
    rules.write_text(f"host all guarded 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
    for text in (
        "SELECT pg_reload_conf()",
        f"CREATE ROLE guarded LOGIN PASSWORD '{SECRET}'",
        "CREATE SCHEMA c51 AUTHORIZATION guarded",
    ):
        asyncio.run(ask(server, text))
    right = server.url(schema="c51").replace("outlast@", f"guarded:{SECRET}@")
    rig = Rig(tmp_path, right)
    try:
        (shown,) = rig.enqueue(("until", "<script>\x1b[31m"))
        worker = rig.start("-c", "1", "--log-level", "debug", PYTHONASYNCIODEBUG="1")
        rig.until_started(shown)
        done = [outlast(right, "show", shown), outlast(right, "doctor")]
        assert [each.returncode for each in done] == [0, 1], done  # autovacuum is off there
        asyncio.run(ask(server, "ALTER ROLE guarded PASSWORD 'another'"))
        asyncio.run(ask(server, END_ALL))
        away = right.replace(f":{server.port}", ":1")
        done += [outlast(url, "status") for url in (right, away)]
        assert all(each.returncode != 0 for each in done[2:])
        until(lambda: "the server refuses us" in rig.workers_said, 60.0, "it was told")
        rig.kill(worker)
        said = "".join([rig.workers_said, *(each.stdout + each.stderr for each in done)])
    finally:
        rig.close()
    assert "<script>" in said
    assert "guarded:***@127.0.0.1" in said
    assert_hidden(said)


# -- C44


FINISHED = """
INSERT INTO {s}.ended (seq, id, line, state, payload, created_at, finished_at, gone_at)
SELECT -n, 'e' || n, 1, 4, 'x', 1, 1, 4e9 FROM generate_series(1, $1::int) n
"""
DELAYED = """
INSERT INTO {s}.jobs (id, line, state, payload, created_at, due)
SELECT 'd' || n, 1, 0, 'x', 1, 4e9 + n FROM generate_series(1, $1::int) n
"""
TOUCHED = """
SELECT sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::bigint
FROM pg_statio_all_tables WHERE schemaname = $1
"""
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'outlast'"
OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outlast'"
YOUNGER = "SELECT coalesce(pg_stat_get_snapshot_timestamp() > $1, true)"
"""Before version 15 a process of the server's own gathers the counts, and writes them down when it
is asked: what is read may be half a second old. Since then there is no such time.
"""


async def test_c44(server: PostgresServer) -> None:
    """C44: claims become slow as finished and delayed rows pile up.

    Counted in pages of the server that are touched, and in processor time of its sessions: these
    don't depend on who else is at work.
    """
    alone = await _drained(server, "alone", 0)
    beside = await _drained(server, "beside", scaled(1_000_000, 20_000))
    assert beside[0] <= 1.25 * alone[0], (alone, beside)
    if FULL:
        assert beside[1] < 0.02, (alone, beside)
        assert beside[2] <= alone[2] / 0.8, (alone, beside)


async def _drained(server: PostgresServer, schema: str, finished: int) -> tuple[int, float, float]:
    """Pages touched, the 95th percentile of a claim's seconds, and all seconds of the sessions."""
    url = server.url(schema=schema)
    many, size = scaled(50_000, 1000), scaled(100, 10)
    store: Any = connect(url)
    await store.open()
    await store.add([Job(id="delayed", run_at=4e9)])  # so that there is the line
    for at in range(0, many, 1000):
        await store.add([Job(id=f"r{at + n}") for n in range(1000)])
    await store.close()
    plain = url.partition("?")[0]
    # One that ends, and is waited for: what it has touched itself is said by then, and not later.
    filler = await asyncpg.connect(plain, server_settings={"application_name": "outlast"})
    if finished:
        await filler.execute(FINISHED.format(s=schema), finished)
        await filler.execute(DELAYED.format(s=schema), scaled(100_000, 10_000))
    await filler.execute("VACUUM ANALYZE")
    await filler.close()
    connection = await asyncpg.connect(plain)
    try:
        before = await _touched(connection, schema)
        await store.open()
        took = []
        await store.depth("default")  # both connections are there
        pids = [pid for (pid,) in await connection.fetch(SESSIONS)]
        began = _busy(pids)
        for _ in range(many // size):
            asked = _busy(pids)
            claims = await store.claim(["default"], [None], size, 60.0, "w")
            took.append(_busy(pids) - asked)
            assert len(claims) == size
            assert not await store.settle([done(claim) for claim in claims])
        seconds = _busy(pids) - began
        await store.close()
        touched = await _touched(connection, schema) - before
    finally:
        await connection.close()
    return touched, sorted(took)[int(len(took) * 0.95)], seconds


def _busy(pids: list[int]) -> float:
    """Seconds that these processes have had of a processor."""
    texts = [Path(f"/proc/{pid}/schedstat").read_text() for pid in pids]
    return sum(int(text.split()[0]) for text in texts) / 1e9


async def _touched(connection: Any, schema: str) -> int:
    """What the sessions have counted; they say it when they end."""
    async with asyncio.timeout(60):
        for _ in itertools.count():
            if not await connection.fetchval(OTHERS):
                break
        ended = await connection.fetchval("SELECT clock_timestamp()")
        while not await connection.fetchval(YOUNGER, ended):
            pass
    found: int = await connection.fetchval(TOUCHED, schema)
    return found
