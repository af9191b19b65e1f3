"""The tables of the PostgreSQL store, how they came to be, and how they are brought up to date.

One schema holds one namespace. Live jobs are in a small hot table, ended ones in another, so that
what piles up behind never slows what is to be done. The jobs of one task in one queue form a line.
Counts are kept as a log of changes that is summed up now and then: no row is written by everybody.
``state`` is finer than what people see: WAITING (not yet due), READY and HELD (behind another job
of its lane) are all QUEUED.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import TYPE_CHECKING

import asyncpg

from outlast.errors import SchemaMismatch, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Connection

__all__ = [
    "CANCELLED",
    "DEAD",
    "DONE",
    "HELD",
    "MIGRATIONS",
    "READY",
    "RUNNING",
    "WAITING",
    "Names",
    "lock_number",
    "migrate",
    "schema_name",
    "version_of",
]

_log = logging.getLogger(__name__)

WAITING, READY, HELD, RUNNING, DONE, DEAD, CANCELLED = range(7)

MAX_NAME = 63
STEP_TIMEOUT = "1s"
"""How long a step waits for tables that somebody's transaction holds: all others wait behind it."""

_COLUMNS = """
    id text COLLATE "C" NOT NULL,
    line int NOT NULL,
    state smallint NOT NULL,
    payload bytea NOT NULL,
    created_at float8 NOT NULL,
    opts text,
    attempt int NOT NULL DEFAULT 0,
    priority smallint NOT NULL DEFAULT 0,
    rank bytea NOT NULL DEFAULT '',
    due float8 NOT NULL DEFAULT 'Infinity',
    key text COLLATE "C",
    lane text COLLATE "C",
    expires_at float8,
    failures int NOT NULL DEFAULT 0,
    crashes int NOT NULL DEFAULT 0,
    suspect boolean NOT NULL DEFAULT false,
    failure text,
    progress text,
    worker text,
    started_at float8,
    fence bigint NOT NULL DEFAULT 0
"""
_HOT = (
    "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,"
    " autovacuum_analyze_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0"
)

# What was made before 2026-12 checks each live job's state as well, which only who adds thousands
# feels: to drop that check would hold everybody up, behind whoever has a transaction open.
_FIRST = f"""
CREATE TABLE @lines (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C"
);
CREATE UNIQUE INDEX lines_name ON @lines (queue, coalesce(task, ''));
CREATE SEQUENCE @places AS bigint CACHE 1;
CREATE TABLE @jobs (
    seq bigint NOT NULL DEFAULT nextval('@places') PRIMARY KEY,
    {_COLUMNS},
    cancel boolean NOT NULL DEFAULT false,
    receipt bytea,
    lease float8
) WITH (fillfactor = 70, {_HOT});
CREATE UNIQUE INDEX jobs_id ON @jobs (id);
CREATE INDEX jobs_ready ON @jobs (line, priority DESC, rank, due, seq) WHERE state = 1;
CREATE INDEX jobs_waiting ON @jobs (due) WHERE state = 0;
CREATE INDEX jobs_running ON @jobs (seq) WHERE state = 3;
CREATE INDEX jobs_lane ON @jobs (lane, state) WHERE lane IS NOT NULL;
CREATE INDEX jobs_expiry ON @jobs (expires_at) WHERE expires_at IS NOT NULL AND state < 3;
CREATE TABLE @ended (
    seq bigint NOT NULL,
    {_COLUMNS},
    finished_at float8 NOT NULL,
    gone_at float8,
    result bytea,
    PRIMARY KEY (id),
    CHECK (state BETWEEN 4 AND 6)
);
CREATE INDEX ended_seq ON @ended (seq);
CREATE INDEX ended_gone ON @ended (gone_at) WHERE gone_at IS NOT NULL;
CREATE INDEX ended_badly ON @ended (state, seq) WHERE state > 4;
CREATE TABLE @keys (
    task text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    job text COLLATE "C" NOT NULL,
    digest bytea NOT NULL,
    until float8,
    PRIMARY KEY (task, key)
) WITH ({_HOT});
CREATE INDEX keys_until ON @keys (until) WHERE until IS NOT NULL;
CREATE TABLE @counts (
    line int PRIMARY KEY,
    ready bigint NOT NULL DEFAULT 0,
    delayed bigint NOT NULL DEFAULT 0,
    running bigint NOT NULL DEFAULT 0,
    done bigint NOT NULL DEFAULT 0,
    dead bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, {_HOT});
CREATE TABLE @changes (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    line int NOT NULL,
    ready int NOT NULL,
    delayed int NOT NULL,
    running int NOT NULL,
    done int NOT NULL,
    dead int NOT NULL,
    cancelled int NOT NULL
) WITH ({_HOT});
CREATE TABLE @pauses (queue text COLLATE "C" PRIMARY KEY);
CREATE TABLE @bounded (queue text COLLATE "C" PRIMARY KEY);
CREATE TABLE @workers (
    id text COLLATE "C" PRIMARY KEY,
    seen_at float8 NOT NULL,
    info text NOT NULL
) WITH (fillfactor = 50, {_HOT});
"""

_SECOND = f"""
CREATE TABLE @steps (
    job text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    digest bytea NOT NULL,
    result bytea,
    until float8,
    event text COLLATE "C",
    PRIMARY KEY (job, name)
) WITH ({_HOT});
CREATE INDEX steps_event ON @steps (event) WHERE event IS NOT NULL AND result IS NULL;
CREATE TABLE @events (
    name text COLLATE "C" PRIMARY KEY,
    payload bytea NOT NULL,
    until float8 NOT NULL
);
CREATE INDEX events_until ON @events (until);
"""

_THIRD = """
CREATE TABLE @moves (name text COLLATE "C" PRIMARY KEY, value text NOT NULL);
"""

_FOURTH = """
CREATE INDEX jobs_key ON @jobs (key) WHERE key IS NOT NULL;
CREATE INDEX ended_key ON @ended (key) WHERE key IS NOT NULL;
"""

# A claim writes a new version of its row, and so an entry beside that of the old one: where a page
# has no room for it, it is split, by the very ones who are in a hurry. And no plan depends on
# statistics, so there need be none.
_FIFTH = """
ALTER INDEX @jobs_pkey SET (fillfactor = 45);
ALTER INDEX @jobs_id SET (fillfactor = 45);
ALTER TABLE @jobs SET (autovacuum_analyze_threshold = 2147483647);
"""

# As measured, less room is enough for that, and what is added then has fewer pages to make.
_SIXTH = """
ALTER INDEX @jobs_pkey SET (fillfactor = 75);
ALTER INDEX @jobs_id SET (fillfactor = 75);
ALTER TABLE @jobs SET (fillfactor = 100);
"""

MIGRATIONS: Sequence[str] = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH)
"""Forward only. The n-th script makes version n; script and version are one transaction."""

_META = (
    "CREATE TABLE @meta (one boolean PRIMARY KEY DEFAULT true CHECK (one), version int NOT NULL,"
    " serves int NOT NULL, namespace text NOT NULL, epoch bigint NOT NULL DEFAULT 0)"
)
_THERE = (
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
    " ON n.oid = c.relnamespace WHERE n.nspname = $1::text AND c.relname = 'meta')"
)
"""Read from the tables: what ``to_regclass`` says may be older than a lock that was waited for."""
_NEW_META = "INSERT INTO @meta (version, serves, namespace) VALUES (0, 0, $1)"
"""``serves``: the oldest version of the schema whose programs may still work on this one."""
SERVES = 1
WORKS_ON = 5
"""The oldest version of the schema that our own statements work on."""
LEFT = 10.0
"""Seconds for all that follows once a step has been made."""


class Names(dict[str, str]):
    """Statements with the schema put in where they say ``@``."""

    def __init__(self, prefix: str, namespace: str) -> None:
        self.prefix = prefix
        self.namespace = namespace
        self.use(schema_name(prefix, namespace))

    def use(self, schema: str) -> None:
        """Mean this schema from now on."""
        self.clear()
        self.schema = schema
        self._quoted = '"' + schema.replace('"', '""') + '".'

    def __missing__(self, text: str) -> str:
        found = self[text] = text.replace("@", self._quoted)
        return found


def schema_name(prefix: str, namespace: str) -> str:
    """The schema of a namespace: the prefix for the default one, else with its name behind."""
    name = prefix if namespace == "default" else f"{prefix}_{namespace}"
    if len(name) <= MAX_NAME:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: MAX_NAME - 17]}_{mark}"


def lock_number(schema: str, what: str) -> int:
    """A number for an advisory lock: they are shared by everything in one database."""
    digest = hashlib.sha256(f"outlast\0{schema}\0{what}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


async def migrate(
    connection: Connection,
    names: Names,
    *,
    create: bool,
    limit: asyncio.Timeout,
) -> None:
    """Bring the schema up to date, one transaction a step, under a lock; killed, it can go on.

    ``limit`` doesn't count while tables are changed. Tables that serve stay as they are if our role
    may not change them, or somebody's open transaction is in the way.

    Raises ``SchemaMismatch`` if it is too new, and ``StoreUnavailable`` if there is none and
    ``create`` is false; the driver's error if tables that don't serve can't be changed.
    """
    migrations = MIGRATIONS
    while True:
        version = await version_of(connection, names, len(migrations))
        if version >= len(migrations):
            return
        if version == 0 and not create:
            raise StoreUnavailable(
                f"there is no outlast schema {names.schema!r} in this database: check the URL, or"
                " make it first (outlast migrate --create, or create=True)"
            )
        try:
            await _step(connection, names, version, limit)
        except (asyncpg.InsufficientPrivilegeError, asyncpg.LockNotAvailableError) as error:
            if version < WORKS_ON:
                raise
            _log.warning(
                "schema %r: its tables stay at version %d, and %d is to come (%s); that goes on"
                " working, and `outlast migrate` by their owner changes them",
                names.schema, version, len(migrations), error,
            )  # fmt: skip
            return


async def _step(connection: Connection, names: Names, version: int, limit: asyncio.Timeout) -> None:
    """From this version to the next, unless another program was faster."""
    async with connection.transaction(isolation="read_committed"):
        number = lock_number(names.schema, "migrate")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", number)
        if await version_of(connection, names, len(MIGRATIONS)) != version:
            return
        await connection.execute(f"SET LOCAL lock_timeout TO '{STEP_TIMEOUT}'")
        await connection.execute("SET LOCAL synchronous_commit TO on")
        if version == 0:
            await _create_schema(connection, names)
            await connection.execute(names[_META])
            await connection.execute(names[_NEW_META], names.namespace)
        limit.reschedule(None)  # an index of a large table takes as long as it takes
        await connection.execute(names[MIGRATIONS[version]])
        limit.reschedule(asyncio.get_running_loop().time() + LEFT)
        await connection.execute(
            names["UPDATE @meta SET version = $1, serves = $2"], version + 1, SERVES
        )


async def _create_schema(connection: Connection, names: Names) -> None:
    quoted = names["@"].rstrip(".")
    found = await connection.fetchval(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1::text)", names.schema
    )
    if not found:
        await connection.execute(f"CREATE SCHEMA {quoted}")


async def version_of(connection: Connection, names: Names, known: int) -> int:
    """The number of the schema that is there, or 0. Raises ``SchemaMismatch`` if it is too new."""
    if not await connection.fetchval(_THERE, names.schema):
        return 0
    row = await connection.fetchrow(names["SELECT version, serves FROM @meta"])
    version, serves = (0, 0) if row is None else (int(row[0]), int(row[1]))
    if version > known and serves > known:
        raise SchemaMismatch(
            f"schema {names.schema!r} has version {version}, made by a newer outlast; this one"
            f" knows up to {known}. Upgrade outlast here; nothing was changed"
        )
    return version
