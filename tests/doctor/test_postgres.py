"""Each check of the doctor on PostgreSQL, on a sound server and on one that lacks just that."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.doctor.test_doctor import found
from tests.servers import PgBouncer, PostgresServer, PostgresStandby

from outlast.doctor import Severity, examine, postgres
from outlast.store import Durability
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.needs("servers")

OK, NOTE, WARNING, ERROR = Severity
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    made = PostgresServer()
    made.start()
    yield made
    made.remove()


@pytest.fixture
async def admin(server: PostgresServer) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(server.url())
    yield connection
    await connection.close()


@pytest.fixture
async def name(server: PostgresServer) -> str:
    """A schema with tables."""
    chosen = f"d{next(_numbers)}"
    store = connect(server.url(schema=chosen))
    await store.open()
    await store.close()
    return chosen


@pytest.fixture
async def role(admin: Any, name: str) -> str:
    """One with the rights that the page lists, and no more."""
    chosen = f"r{next(_numbers)}"
    await admin.execute(f"CREATE ROLE {chosen} LOGIN")
    for right, what in (
        ("USAGE", "SCHEMA"),
        ("SELECT, INSERT, UPDATE, DELETE", "ALL TABLES IN SCHEMA"),
        ("USAGE", "ALL SEQUENCES IN SCHEMA"),
    ):
        await admin.execute(f"GRANT {right} ON {what} {name} TO {chosen}")
    return chosen


def url_of(server: PostgresServer, name: str, role: str = "outlast") -> str:
    return server.url(schema=name).replace("outlast@", f"{role}@")


async def test_a_sound_server_and_a_role_of_its_own(
    server: PostgresServer, name: str, role: str
) -> None:
    report = await examine(url_of(server, name, role))
    assert {finding.id for finding in report.findings} == {f"PG{n}" for n in range(1, 12)}
    assert {f.id for f in report.worst()} <= {"PG5", "PG7", "PG11"}
    assert (report.accepted, report.exit_code) == (Durability.POWER, 0)
    assert f"127.0.0.1:{server.port}, timeline 1" in found(report, "PG6", OK)
    assert "as far as the role may see" in found(report, "PG9", OK)


PLACES = {
    "by the role": "ROLE {role}",
    "by the database": "DATABASE postgres",
    "by the role in this database": "ROLE {role} IN DATABASE postgres",
    "by the server": "SYSTEM",
}


@pytest.mark.parametrize("place", PLACES)
async def test_where_the_mode_of_commits_comes_from(
    server: PostgresServer, admin: Any, name: str, role: str, place: str
) -> None:
    where = PLACES[place].format(role=role)
    url = url_of(server, name, role)
    await admin.execute(f"ALTER {where} SET synchronous_commit TO off")
    await admin.execute("SELECT pg_reload_conf()")
    try:
        await until_it_is("off", url)
        report = await examine(url)
    finally:
        await admin.execute(f"ALTER {where} RESET synchronous_commit")
        await admin.execute("SELECT pg_reload_conf()")
        await until_it_is("on", url)
    assert f"synchronous_commit=off (set {place})" in found(report, "PG1", NOTE)
    hidden = place != "by the server"
    assert ("synchronous_commit=off" in found(report, "PG2", NOTE if hidden else OK)) is hidden
    assert report.accepted is Durability.POWER
    found(report, "PG3", OK)


async def until_it_is(mode: str, url: str) -> None:
    """New sessions get this mode of commits: the server reads its file when it has the time."""
    async with asyncio.timeout(60):
        while True:
            connection = await asyncpg.connect(url.partition("?")[0])
            said = await connection.fetchval("SHOW synchronous_commit")
            await connection.close()
            if said == mode:
                return


async def test_rights(server: PostgresServer, admin: Any, name: str, role: str) -> None:
    url = url_of(server, name, role)
    assert "no superuser" in found(await examine(url), "PG10", OK)
    await admin.execute(f"REVOKE DELETE ON {name}.keys FROM {role}")
    report = await examine(url)
    assert found(report, "PG10", ERROR) == "not all rights on keys"
    assert report.exit_code == 1
    await admin.execute(f"GRANT DELETE ON {name}.keys TO {role}")
    await admin.execute(f"REVOKE USAGE ON SEQUENCE {name}.places FROM {role}")
    assert found(await examine(url), "PG10", ERROR) == "not all rights on places"
    await admin.execute(f"GRANT USAGE ON SEQUENCE {name}.places TO {role}")
    await admin.execute(f"GRANT USAGE ON SCHEMA {name} TO PUBLIC")
    await admin.execute(f"GRANT UPDATE ON {name}.jobs TO PUBLIC")
    assert found(await examine(url), "PG10", WARNING) == "everybody may write jobs"
    await admin.execute(f"REVOKE ALL ON {name}.jobs FROM PUBLIC")
    other = connect(server.url(schema=name), namespace="other")
    await other.open()
    await other.close()
    report = await examine(url)
    assert f"{name}_other.jobs" in found(report, "PG10", NOTE)
    assert report.exit_code == 0
    await admin.execute(f"ALTER ROLE {role} CREATEROLE")
    await admin.execute(f"GRANT pg_read_server_files TO {role}")
    said = found(await examine(url), "PG10", WARNING)
    assert said.endswith(": CREATEROLE, pg_read_server_files")
    assert "superuser" in found(await examine(server.url(schema=name)), "PG10", WARNING)


async def test_passwords_are_kept_well(
    server: PostgresServer, admin: Any, name: str, role: str
) -> None:
    await admin.execute(f"ALTER ROLE {role} SET password_encryption TO md5")
    report = await examine(url_of(server, name, role))
    assert found(report, "PG10", WARNING) == "password_encryption=md5"


@pytest.mark.needs("pgbouncer")
async def test_a_pooler_that_nobody_else_uses(server: PostgresServer, name: str) -> None:
    assert found(await examine(server.url(schema=name)), "PG8", OK)
    pooler = PgBouncer(server)
    pooler.start()
    try:
        report = await examine(pooler.url(schema=name, pooler="transaction"))
    finally:
        pooler.remove()
    assert "transaction mode" in found(report, "PG8", NOTE)


async def test_a_server_that_no_store_is_opened_on(
    server: PostgresServer, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admin.execute(
        "CREATE DATABASE odd ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    assert "SQL_ASCII" in found(await examine(server.url("odd")), "PG6", ERROR)
    monkeypatch.setattr(postgres, "OLDEST", 990_000)
    report = await examine(server.url())
    assert "it is PostgreSQL" in found(report, "PG6", ERROR)
    assert report.exit_code == 1


async def test_a_standby_that_was_promoted() -> None:
    with contextlib.ExitStack() as stack:
        primary = PostgresServer()
        stack.callback(primary.remove)
        primary.start()
        standby = PostgresStandby(primary)
        stack.callback(standby.remove)
        standby.start()
        assert found(await examine(standby.url()), "PG6", ERROR) == "it is a replica"
        connection = await asyncpg.connect(standby.url())
        await connection.execute("SELECT pg_promote()")
        await connection.close()
        report = await examine(standby.url())
    assert f"127.0.0.1:{standby.port}, timeline 2" in found(report, "PG6", NOTE)
    assert report.exit_code == 0


async def test_an_unsound_server() -> None:
    """What is asked of the server's own settings, and can't be changed while it runs."""
    server = PostgresServer(
        full_page_writes="off", synchronous_standby_names="'*'", zero_damaged_pages="on",
        statement_timeout="60s", autovacuum="off", archive_mode="on", archive_command="'false'",
    )  # fmt: skip
    server.start()
    try:
        report = await examine(server.url())
    finally:
        server.remove()
    assert "full_page_writes=off" in found(report, "PG1", WARNING)
    assert "none is connected" in found(report, "PG5", WARNING)
    assert found(report, "PG7", ERROR) == "zero_damaged_pages=on"
    assert "statement_timeout=60000ms" in found(report, "PG9", WARNING)
    assert found(report, "PG9", ERROR) == "autovacuum=off"


async def test_one_that_does_not_answer(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stuck(self: Any) -> None:
        await self._connection.fetchval("SELECT pg_sleep(60)")

    monkeypatch.setattr(postgres, "ALL", 0.5)
    monkeypatch.setattr(postgres._Examination, "pg7", stuck)
    report = await examine(server.url())
    assert "no answer" in found(report, "PG0", ERROR)
    assert report.exit_code != 0
