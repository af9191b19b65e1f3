"""The examination of a PostgreSQL store: checks PG1 to PG11. One empty mark goes into its log."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from outlast.doctor.report import Finding, Report, Severity
from outlast.store import Durability
from outlast.stores.postgres.opening import OLDEST, TIMELINE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from outlast.stores.urls import Address as Parsed

__all__ = ["examine"]

CONNECT = 10.0
ALL = 60.0
"""Seconds for all checks together."""
OLD = 50_000_000
"""Transactions for which a snapshot may be held before dead rows pile up noticeably."""
WRAP = 1_500_000_000
_SAID_BY = {
    "default": "by default",
    "configuration file": "by the server",
    "command line": "by the server",
    "database": "by the database",
    "user": "by the role",
    "database user": "by the role in this database",
    "client": "by this connection",
}
_TOO_MUCH = (
    "SELECT v.name FROM pg_roles r, LATERAL (VALUES ('CREATEDB', r.rolcreatedb), ('CREATEROLE',"
    " r.rolcreaterole), ('REPLICATION', r.rolreplication), ('BYPASSRLS', r.rolbypassrls))"
    " v(name, has) WHERE r.rolname = current_user AND v.has UNION ALL SELECT r.rolname"
    " FROM pg_roles r WHERE r.rolname IN ('pg_execute_server_program', 'pg_write_server_files',"
    " 'pg_read_server_files', 'pg_write_all_data', 'pg_read_all_data')"
    " AND pg_has_role(r.oid, 'MEMBER') ORDER BY 1"
)
_TOO_LITTLE = (
    "NOT (has_schema_privilege(n.oid, 'USAGE') AND CASE c.relkind WHEN 'S' THEN c.relname <>"
    " 'places' OR has_sequence_privilege(c.oid, 'USAGE') ELSE has_table_privilege(c.oid, 'SELECT')"
    " AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE')"
    " AND has_table_privilege(c.oid, 'DELETE') END)"
)
_EVERYBODY = (
    "has_schema_privilege('public', n.oid, 'USAGE')"
    " AND has_table_privilege('public', c.oid, 'INSERT, UPDATE, DELETE')"
)

_OK, _NOTE, _WARNING, _ERROR = Severity.OK, Severity.NOTE, Severity.WARNING, Severity.ERROR


async def examine(address: Parsed, *, required: Durability | None) -> Report:
    """Look at the server behind a URL. What can't be read is a finding, not an error."""
    import asyncpg

    from outlast.stores.postgres.address import Address

    place = Address(address.path, address.options)
    wanted = required or address.durability or Durability.POWER
    connect = partial(asyncpg.connect, **place.options(), timeout=CONNECT, statement_cache_size=0)
    try:
        connection = await connect()
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        why = f"can't be reached: {type(error).__name__}: {error}"
        found = (Finding(id="PG0", severity=_ERROR, read=why),)
        return Report(url=place.shown, required=wanted, findings=found, reached=False)
    examination = _Examination(connection, connect, place.schema)
    try:
        async with asyncio.timeout(ALL):
            for check in examination.checks:
                await examination.run(check, asyncpg.PostgresError)
    except TimeoutError:
        examination.give_up()
    finally:
        connection.terminate()
    return Report(url=place.shown, required=wanted, findings=tuple(examination.findings))


class _Examination:
    def __init__(self, connection: Any, connect: Callable[[], Awaitable[Any]], schema: str) -> None:
        self._connection = connection
        self._connect = connect
        self._schema = schema
        self.findings: list[Finding] = []
        self.checks: tuple[Callable[[], Awaitable[None]], ...] = (
            self.pg1, self.pg2, self.pg3, self.pg4, self.pg5, self.pg6, self.pg7, self.pg8,
            self.pg9, self.pg10, self.pg11,
        )  # fmt: skip

    def give_up(self) -> None:
        self._say("PG0", _ERROR, f"no answer within {ALL:g} s", "what follows was not looked at")

    async def run(self, check: Callable[[], Awaitable[None]], refused: type[Exception]) -> None:
        try:
            await check()
        except refused as error:
            name = getattr(check, "__name__", "pg").upper()
            self._say(name, _NOTE, f"can't be told: {error}", "the role may not read it")
            if self._connection.is_in_transaction():
                await self._connection.execute("ROLLBACK")  # else all that follows is refused too

    def _say(
        self,
        id: str,
        severity: Severity,
        read: str,
        means: str = "",
        remedy: str = "",
        durability: Durability | None = None,
    ) -> None:
        self.findings.append(
            Finding(
                id=id,
                severity=severity,
                read=read,
                means=means,
                remedy=remedy,
                durability=durability,
            )
        )

    async def _setting(self, name: str) -> str:
        found: str = await self._connection.fetchval("SELECT current_setting($1)", name)
        return found

    async def _tables(self, bad: str, kinds: str) -> list[tuple[str, bool]]:
        """What is in the schemas of all namespaces, and whether it is so."""
        rows = await self._connection.fetch(
            f"SELECT CASE WHEN n.nspname = $1 THEN '' ELSE n.nspname || '.' END || c.relname,"
            f" coalesce({bad}, false) FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = c.relnamespace WHERE (n.nspname = $1 OR starts_with(n.nspname::text, $1"
            f" || '_')) AND c.relkind IN ({kinds}) ORDER BY 1",
            self._schema,
        )
        return [(name, found) for name, found in rows]

    async def pg1(self) -> None:
        """What a commit does."""
        fsync, pages = await self._setting("fsync"), await self._setting("full_page_writes")
        method = await self._setting("wal_sync_method")
        commit, source = await self._connection.fetchrow(
            "SELECT setting, source FROM pg_settings WHERE name = 'synchronous_commit'"
        )
        read = (
            f"fsync={fsync} ({method}), full_page_writes={pages}, synchronous_commit={commit}"
            f" (set {_SAID_BY.get(source, source)})"
        )
        if fsync != "on":
            means = "nothing is on the disk when a commit returns"
            self._say("PG1", _ERROR, read, means, "set fsync=on", Durability.PROCESS)
        elif pages != "on":
            means = "a page that was half written in a power cut can't be mended"
            self._say("PG1", _WARNING, read, means, "set full_page_writes=on", Durability.POWER)
        elif commit == "off":
            means = "outlast sets it by itself for what it promises; other programs may not"
            self._say("PG1", _NOTE, read, means, durability=Durability.REPLICA)
        else:
            read += ", and outlast sets the last by itself"
            self._say("PG1", _OK, read, durability=Durability.REPLICA)

    async def pg2(self) -> None:
        """Settings that somebody hid at the role or the database."""
        rows = await self._connection.fetch(
            "SELECT pg_catalog.unnest(setconfig) FROM pg_db_role_setting s WHERE (setrole = 0 OR"
            " setrole = (SELECT oid FROM pg_roles WHERE rolname = current_user))"
            " AND (setdatabase = 0 OR setdatabase ="
            " (SELECT oid FROM pg_database WHERE datname = current_database()))"
        )
        hidden = sorted(row[0] for row in rows)
        if any(text.startswith("synchronous_commit=") for text in hidden):
            means = "outlast sets it by itself for what it promises; other programs may not"
            self._say("PG2", _NOTE, f"for this role or database: {', '.join(hidden)}", means)
        else:
            self._say("PG2", _OK, "no setting of the role or database lowers durability")

    async def pg3(self) -> None:
        """Whether a commit waits for the disk, whatever the settings say.

        For the server's own: a standby that is away would be waited for without end.
        """
        if await self._connection.fetchval("SELECT pg_is_in_recovery()"):
            self._say("PG3", _NOTE, "nothing is committed there", "it is a replica, see PG6")
            return
        await self._connection.execute("BEGIN; SET LOCAL synchronous_commit TO local")
        at = await self._connection.fetchval(
            "SELECT pg_logical_emit_message(true, 'outlast', '')::text"
        )
        await self._connection.execute("COMMIT")
        flushed = await self._connection.fetchval(
            "SELECT pg_current_wal_flush_lsn() >= $1::text::pg_lsn", at
        )
        if flushed:
            self._say("PG3", _OK, "a commit was flushed when it returned")
        else:
            means = "what was accepted can be lost when the server dies"
            self._say("PG3", _ERROR, "a commit returned unflushed", means, "", Durability.PROCESS)

    async def pg4(self) -> None:
        """Tables that a crash empties."""
        rows = await self._tables("c.relpersistence = 'u'", "'r', 'i', 'S'")
        unlogged = [name for name, bad in rows if bad]
        if unlogged:
            remedy = f'ALTER TABLE "{self._schema}".… SET LOGGED'
            read = f"unlogged: {', '.join(unlogged)}"
            self._say("PG4", _ERROR, read, "a crash empties them", remedy, Durability.MEMORY)
        elif rows:
            self._say("PG4", _OK, f"schema {self._schema!r}: all tables are logged")
        else:
            self._say("PG4", _NOTE, f"there is no schema {self._schema!r} yet")

    async def pg5(self) -> None:
        """Standbys that must have a commit too."""
        names = await self._setting("synchronous_standby_names")
        live = await self._connection.fetchval(
            "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
        )
        if names and live:
            read = f"{live} synchronous standbys are connected"
            self._say("PG5", _OK, read, durability=Durability.REPLICA)
        elif names:
            means = "commits wait until one of them is back"
            read = f"synchronous_standby_names={names}, and none is connected (or may be seen)"
            self._say("PG5", _WARNING, read, means, durability=Durability.POWER)
        else:
            means = "the loss of the server's disk loses what was accepted since the last backup"
            self._say("PG5", _NOTE, "no synchronous standby", means, durability=Durability.POWER)

    async def pg6(self) -> None:
        """Whether it can hold jobs at all, and whether it always was the one that does."""
        replica = await self._connection.fetchval("SELECT pg_is_in_recovery()")
        read_only = await self._setting("transaction_read_only") == "on"
        if replica or read_only:
            read = "it is a replica" if replica else "transactions are read-only"
            self._say("PG6", _ERROR, read, "no job can be stored", "name the primary")
            return
        version = int(await self._setting("server_version_num"))
        encoding = await self._setting("server_encoding")
        if version < OLDEST:
            read, remedy = f"it is PostgreSQL {version // 10000}", "PostgreSQL 14 or later"
            self._say("PG6", _ERROR, read, "outlast does not work with it", remedy)
            return
        if encoding != "UTF8":
            read, remedy = f"text is kept as {encoding}", "a database with UTF8"
            self._say("PG6", _ERROR, read, "outlast does not work with it", remedy)
            return
        place, line = await self._connection.fetchrow(
            "SELECT coalesce(host(inet_server_addr()) || ':' || inet_server_port(), 'a socket'),"
            f" ('x' || {TIMELINE})::bit(32)::int"
        )
        read = f"it is a primary that takes writes ({place}, timeline {line})"
        if line > 1:
            means = (
                "a standby was promoted once, or a backup restored: what had been accepted before"
                " and had not come so far is gone"
            )
            self._say("PG6", _NOTE, read, means, "durability=replica, with standbys: see PG5")
        else:
            self._say("PG6", _OK, read)

    async def pg7(self) -> None:
        """Damage: whether it would be noticed, and what is done then."""
        for name in ("ignore_checksum_failure", "zero_damaged_pages", "data_sync_retry"):
            if await self._setting(name) == "on":
                means = "damaged or unwritten data passes for good"
                self._say("PG7", _ERROR, f"{name}=on", means, f"set {name}=off")
        if await self._setting("data_checksums") == "on":
            self._say("PG7", _OK, "data checksums are on")
        else:
            means = "bits that flip on the disk are not noticed"
            self._say("PG7", _NOTE, "data checksums are off", means, "pg_checksums --enable")

    async def pg8(self) -> None:
        """Whether a pooler hands each transaction to another session."""
        ask = "SELECT pg_backend_pid()"
        pids = {await self._connection.fetchval(ask) for _ in range(5)}
        # A pooler that has little to do hands everybody the session that was used last.
        other = await self._connect()
        try:
            shared = await other.fetchval(ask) in pids
        finally:
            other.terminate()
        if shared or len(pids) > 1:
            means = "news are polled for, since LISTEN does not last"
            read = "sessions are shared: there is a pooler in transaction mode"
            self._say("PG8", _NOTE, read, means, "say ?pooler=transaction in the URL")
        else:
            self._say("PG8", _OK, "statements met one session")

    async def pg9(self) -> None:
        """What keeps the tables from being tidied, and what cuts work off."""
        timeouts = await self._connection.fetch(
            "SELECT name, setting || unit FROM pg_settings WHERE setting <> '0' AND name IN"
            " ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')"
            " ORDER BY name"
        )
        for name, value in timeouts:
            means = "pruning and looking for jobs may be cut off"
            if name.startswith("idle"):
                means = "a transaction of a task's that takes a while is undone"
            self._say("PG9", _WARNING, f"{name}={value}", means)
        if await self._setting("autovacuum") != "on":
            means = "dead rows pile up, and every claim walks over them"
            self._say("PG9", _ERROR, "autovacuum=off", means, "set autovacuum=on")
        unkept = await self._tables("'autovacuum_enabled=false' = ANY(c.reloptions)", "'r'")
        if names := [name for name, bad in unkept if bad]:
            means = "dead rows pile up there, and every claim may walk over them"
            remedy = "ALTER TABLE … RESET (autovacuum_enabled)"
            self._say("PG9", _ERROR, f"autovacuum is off for {', '.join(names)}", means, remedy)
        oldest = await self._connection.fetchval(
            "SELECT greatest((SELECT max(age(backend_xmin)) FROM pg_stat_activity), (SELECT"
            " max(age(xmin)) FROM pg_replication_slots), (SELECT max(age(catalog_xmin))"
            " FROM pg_replication_slots), (SELECT max(age(transaction)) FROM pg_prepared_xacts))"
        )
        age = await self._connection.fetchval(
            "SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()"
        )
        read = f"oldest snapshot {oldest or 0} transactions ago, database {age}"
        if not await self._connection.fetchval("SELECT pg_has_role('pg_read_all_stats', 'USAGE')"):
            read += " (as far as the role may see: pg_monitor sees all)"
        if age > WRAP:
            self._say("PG9", _ERROR, read, "the server will stop taking writes", "VACUUM FREEZE")
        elif (oldest or 0) > OLD:
            means = (
                "dead rows can't be removed: a long transaction, an idle replication slot, or a"
                " prepared transaction that nobody ends"
            )
            remedy = "end it; see pg_stat_activity, pg_replication_slots, pg_prepared_xacts"
            self._say("PG9", _WARNING, read, means, remedy)
        else:
            self._say("PG9", _OK, read)

    async def pg10(self) -> None:
        """More rights than needed or fewer, and whether the way there is open."""
        too_much = [row[0] for row in await self._connection.fetch(_TOO_MUCH)]
        remedy = "a role of its own: see docs/postgresql.md"
        if await self._setting("is_superuser") == "on":
            means = "whoever takes over this program owns the server"
            self._say("PG10", _WARNING, "the role is a superuser", means, remedy)
        elif too_much:
            means = "whoever takes over this program may do so too"
            read = f"the role may do more than is needed: {', '.join(too_much)}"
            self._say("PG10", _WARNING, read, means, remedy)
        else:
            self._say("PG10", _OK, "the role is no superuser")
        await self._rights()
        if await self._setting("password_encryption") == "md5":
            means = "who has read a password as it is kept then can log in with it"
            remedy = "set password_encryption=scram-sha-256, and then each password anew"
            self._say("PG10", _WARNING, "password_encryption=md5", means, remedy)
        row = await self._connection.fetchrow(
            "SELECT s.ssl, inet_server_addr() IS NULL OR inet_server_addr() <<= '127.0.0.0/8'"
            " OR inet_server_addr() <<= '::1' FROM pg_stat_ssl s WHERE s.pid = pg_backend_pid()"
        )
        if row is not None and not row[0] and not row[1]:
            means = "payloads and results can be read on the network"
            remedy = "?sslmode=verify-full"
            self._say("PG10", _WARNING, "the connection is not encrypted", means, remedy)

    async def _rights(self) -> None:
        """On our tables: those of the role, and those of everybody."""
        lacking = [name for name, bad in await self._tables(_TOO_LITTLE, "'r', 'S'") if bad]
        if mine := [name for name in lacking if "." not in name]:
            means = "jobs can't be stored or run"
            remedy = "GRANT … TO the role: see docs/postgresql.md"
            self._say("PG10", _ERROR, f"not all rights on {', '.join(mine)}", means, remedy)
        elif lacking:
            means = "this role can't serve that namespace"
            self._say("PG10", _NOTE, f"not all rights on {', '.join(lacking)}", means)
        if free := [name for name, bad in await self._tables(_EVERYBODY, "'r'") if bad]:
            means = "whoever may connect to this database can add, change and delete jobs"
            remedy = f'REVOKE ALL ON SCHEMA "{self._schema}" FROM PUBLIC'
            self._say("PG10", _WARNING, f"everybody may write {', '.join(free)}", means, remedy)

    async def pg11(self) -> None:
        """Whether there is a way back."""
        archive = await self._setting("archive_mode")
        failed = await self._connection.fetchval("SELECT failed_count FROM pg_stat_archiver")
        if archive == "off":
            means = "there is no going back to a moment before a mistake"
            self._say("PG11", _NOTE, "archive_mode=off", means, "pg_dump or pg_basebackup, often")
        elif failed:
            self._say("PG11", _WARNING, f"{failed} log files could not be archived")
        else:
            self._say("PG11", _OK, f"archive_mode={archive}")
