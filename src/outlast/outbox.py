"""Outbox and inbox: two plain tables in the user's own database, written in his own transactions.

In the outbox wait jobs that are to be moved on to the store; see ``relay``. In the inbox stands
which jobs were applied already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from outlast.at_once import at_once
from outlast.errors import ConfigurationError, Unsupported
from outlast.job import Job
from outlast.limits import check_job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.clock import Clock

__all__ = ["AsyncInbox", "Database", "Inbox", "Pen", "job_of", "outbox_tables", "pen_of", "write"]

Database = Literal["sqlite", "postgresql"]

_TABLES: dict[str, str] = {
    "sqlite": """\
CREATE TABLE IF NOT EXISTS outlast_outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    id TEXT NOT NULL,
    job TEXT NOT NULL,
    batch TEXT,
    UNIQUE (namespace, id)
);
CREATE INDEX IF NOT EXISTS outlast_outbox_batch ON outlast_outbox (namespace, batch, seq);
CREATE TABLE IF NOT EXISTS outlast_inbox (
    namespace TEXT NOT NULL,
    task TEXT NOT NULL,
    key TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (namespace, task, key)
);
""",
    "postgresql": """\
CREATE TABLE IF NOT EXISTS outlast_outbox (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text NOT NULL,
    id text NOT NULL,
    job text NOT NULL,
    batch text,
    UNIQUE (namespace, id)
);
CREATE INDEX IF NOT EXISTS outlast_outbox_batch ON outlast_outbox (namespace, batch, seq);
CREATE TABLE IF NOT EXISTS outlast_inbox (
    namespace text NOT NULL,
    task text NOT NULL,
    key text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, task, key)
);
""",
}
_WRITE = "INSERT INTO outlast_outbox (namespace, id, job) VALUES ({0}, {1}, {2})"
_RECORD = (
    "INSERT INTO outlast_inbox (namespace, task, key) VALUES ({0}, {1}, {2}) ON CONFLICT DO NOTHING"
)

_dump = msgspec.json.Encoder().encode
_load = msgspec.json.Decoder(Job).decode


def outbox_tables(database: Database) -> str:
    """The statements that make the two tables, and change nothing where they are.

    For a migration of your own; ``outlast relay --create`` runs them as well.

    >>> connection.executescript(outbox_tables("sqlite"))
    """
    if database not in _TABLES:
        raise ConfigurationError(f"database {database!r}: there is 'sqlite' and 'postgresql'")
    return _TABLES[database]


class Pen(Protocol):
    """Writes on a connection of the user's."""

    plain: bool
    """Whether it blocks, and ``run`` never waits for an event loop."""

    async def run(self, text: str, *values: str) -> int:
        """One statement with ``{0}`` for its first value; how many rows were written.

        Raises ``ConfigurationError`` if the connection is in no transaction.
        """
        ...


class _SqlitePen:
    """On a connection of the standard library's sqlite3, or of apsw."""

    plain = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        # The standard library's begins a transaction by itself, unless it was told not to.
        self._begins = (
            getattr(connection, "isolation_level", None) is not None
            and getattr(connection, "autocommit", None) is not True
        )

    async def run(self, text: str, *values: str) -> int:
        connection = self._connection
        if not (self._begins or connection.in_transaction):
            raise ConfigurationError(_NO_TRANSACTION)
        cursor = connection.execute(text.format("?", "?", "?"), values)
        return int(cursor.rowcount if hasattr(cursor, "rowcount") else connection.changes())


class _PostgresPen:
    """On any connection that jobs can be enqueued on in PostgreSQL."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        self.plain: bool = wire.plain

    async def run(self, text: str, *values: str) -> int:
        await self._wire.ready()
        if not self._wire.in_transaction():
            raise ConfigurationError(_NO_TRANSACTION)
        casts = [f"${n}::text" for n in range(1, len(values) + 1)]
        done: str = await self._wire.execute(text.format(*casts), *values)
        return int(done.rpartition(" ")[2])


_NO_TRANSACTION = (
    "the connection is in no transaction, so what is written there would not be one with your"
    " rows: begin one"
)


def pen_of(connection: Any) -> Pen:
    """That connection, as we write on it. Raises ``Unsupported`` for any other kind."""
    if _is_sqlite(connection):
        return _SqlitePen(connection)
    if any(kind.__module__.startswith("sqlalchemy.") for kind in type(connection).__mro__):
        raw = _below(connection)
        if raw is not None:
            return _SqlitePen(raw)
    try:
        from outlast.stores.postgres.wires import wire_of

        return _PostgresPen(wire_of(connection))
    except (Unsupported, ImportError):
        raise Unsupported(
            f"{type(connection).__module__}.{type(connection).__qualname__} is no connection that"
            " can be written on: use one of sqlite3, apsw, asyncpg, psycopg 3 or SQLAlchemy"
        ) from None


def _is_sqlite(connection: Any) -> bool:
    return any(
        kind.__name__ == "Connection" and kind.__module__ in ("sqlite3", "apsw")
        for kind in type(connection).__mro__
    )


def _below(connection: Any) -> Any:
    """The sqlite3 connection under one of SQLAlchemy's that blocks, with a transaction begun."""
    if not hasattr(connection, "get_bind") and not hasattr(connection, "exec_driver_sql"):
        return None
    layer = connection.connection() if hasattr(connection, "get_bind") else connection
    if not hasattr(layer, "exec_driver_sql") or layer.dialect.name != "sqlite":
        return None
    layer.exec_driver_sql("SELECT 1")
    raw = layer.connection.driver_connection
    return raw if _is_sqlite(raw) else None


async def write(pen: Pen, namespace: str, jobs: Sequence[Job], clock: Clock) -> None:
    """Write jobs into the outbox. What was relative in them counts from here, by our clock."""
    now = clock.now()
    for job in jobs:
        check_job(job)
    for job in jobs:
        text = _dump(_fixed(job, now)).decode()
        await pen.run(_WRITE, namespace, job.id, text)


def _fixed(job: Job, now: float) -> Job:
    moments: dict[str, Any] = {}
    if job.delay:
        moments |= {"run_at": now + job.delay, "delay": None}
    if job.ttl is not None:
        moments |= {"expires_at": now + job.ttl, "ttl": None}
    return msgspec.structs.replace(job, **moments) if moments else job


def job_of(id: str, text: str) -> Job:
    """The job of a row. Raises ``ConfigurationError`` if somebody else wrote it."""
    try:
        job = _load(text)
        check_job(job)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigurationError(f"row {id} of outlast_outbox holds no job: {error}") from None
    return job


class _Inbox:
    def __init__(self, pen: Pen, namespace: str, whose: Callable[[], tuple[str, str]]) -> None:
        self._pen = pen
        self._namespace = namespace
        self._whose = whose

    async def _record(self, key: str | None) -> bool:
        task, its_key = self._whose() if key is None else ("", key)
        return await self._pen.run(_RECORD, self._namespace, task, its_key) == 1


class Inbox(_Inbox):
    """``app.inbox(connection)``: which jobs were applied, as rows of a transaction of yours."""

    __module__ = "outlast"

    def is_new(self, key: str | None = None) -> bool:
        """Whether this job was not applied before; from this commit on it was.

        ``key`` stands for the job's ``idempotency_key``, outside of tasks for example.
        """
        return at_once(self._record(key))


class AsyncInbox(_Inbox):
    """The same on a connection that is awaited: so is this."""

    __module__ = "outlast"

    async def is_new(self, key: str | None = None) -> bool:
        """Whether this job was not applied before; from this commit on it was."""
        return await self._record(key)
