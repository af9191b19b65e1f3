"""The tables of the SQLite store, how they came to be, and how a connection is opened and checked.

One file holds every namespace (``spaces``). The jobs of one task in one queue form a line; the row
of the line carries their counts, so that asking for the depth costs the same at any size. ``state``
is finer than what people see: WAITING (not yet due), READY and HELD (behind another job of its
lane) are all QUEUED.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from outlast.errors import DurabilityError, SchemaMismatch, StoreDamaged, StoreUnavailable
from outlast.store import Durability

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "APPLICATION_ID",
    "CANCELLED",
    "DEAD",
    "DONE",
    "HELD",
    "MIGRATIONS",
    "READY",
    "RUNNING",
    "WAITING",
    "boot_id",
    "check_library",
    "connect",
    "library",
    "library_flaw",
    "migrate",
]

_log = logging.getLogger(__name__)

WAITING, READY, HELD, RUNNING, DONE, DEAD, CANCELLED = range(7)

LOG_BYTES = 16 << 20
"""What the log is cut down to when it starts anew after having grown."""
APPLICATION_ID = 0x6F75746C
"""``outl``: in the header of the file, so that another program's database is never touched."""

PAGE_CACHE_KIB = 2048

_FIRST = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE spaces (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE lines (
    id INTEGER PRIMARY KEY,
    space INTEGER NOT NULL,
    queue TEXT NOT NULL,
    task TEXT,
    ready INTEGER NOT NULL DEFAULT 0,
    delayed INTEGER NOT NULL DEFAULT 0,
    running INTEGER NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX lines_name ON lines (space, queue, ifnull(task, ''));
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    space INTEGER NOT NULL,
    line INTEGER NOT NULL,
    state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 6),
    payload BLOB NOT NULL,
    crc INTEGER NOT NULL,
    created_at REAL NOT NULL,
    opts TEXT,
    priority INTEGER NOT NULL DEFAULT 0,
    rank BLOB NOT NULL DEFAULT x'',
    due REAL NOT NULL DEFAULT 9e999,
    key TEXT,
    lane TEXT,
    expires_at REAL,
    attempt INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    suspect INTEGER NOT NULL DEFAULT 0,
    cancel INTEGER NOT NULL DEFAULT 0,
    worker TEXT,
    receipt BLOB,
    lease REAL,
    started_at REAL,
    finished_at REAL,
    gone_at REAL,
    failure TEXT,
    result BLOB,
    progress TEXT
) STRICT;
CREATE UNIQUE INDEX jobs_id ON jobs (id, space);
CREATE INDEX jobs_ready ON jobs (line, priority DESC, rank, due, seq) WHERE state = 1;
CREATE INDEX jobs_waiting ON jobs (due, line) WHERE state = 0;
CREATE INDEX jobs_running ON jobs (receipt) WHERE state = 3;
CREATE INDEX jobs_gone ON jobs (space, gone_at) WHERE gone_at IS NOT NULL;
CREATE INDEX jobs_lane ON jobs (space, lane, state) WHERE lane IS NOT NULL AND state < 4;
CREATE INDEX jobs_expiry ON jobs (space, expires_at) WHERE expires_at IS NOT NULL AND state < 3;
CREATE TABLE keys (
    space INTEGER NOT NULL,
    task TEXT NOT NULL,
    key TEXT NOT NULL,
    job TEXT NOT NULL,
    digest BLOB NOT NULL,
    until REAL,
    PRIMARY KEY (space, task, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_until ON keys (space, until) WHERE until IS NOT NULL;
CREATE TABLE pauses (
    space INTEGER NOT NULL,
    queue TEXT NOT NULL,
    PRIMARY KEY (space, queue)
) STRICT, WITHOUT ROWID;
CREATE TABLE workers (
    space INTEGER NOT NULL,
    id TEXT NOT NULL,
    seen_at REAL NOT NULL,
    info TEXT NOT NULL,
    PRIMARY KEY (space, id)
) STRICT, WITHOUT ROWID;
"""

_STEPS = """
CREATE TABLE steps (
    space INTEGER NOT NULL,
    job TEXT NOT NULL,
    name TEXT NOT NULL,
    digest BLOB NOT NULL,
    result BLOB,
    until REAL,
    event TEXT,
    PRIMARY KEY (space, job, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX steps_event ON steps (space, event) WHERE event IS NOT NULL AND result IS NULL;
CREATE TABLE events (
    space INTEGER NOT NULL,
    name TEXT NOT NULL,
    payload BLOB NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (space, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX events_until ON events (space, until);
INSERT INTO meta VALUES ('epoch', '1');
"""

MIGRATIONS: Sequence[str] = (_FIRST, _STEPS)
"""Forward only. The n-th script makes version n; script and version are one transaction."""


def library() -> str:
    """The SQLite that serves this process, for people and for ``WorkerInfo``."""
    return f"SQLite {apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})"


def check_library() -> None:
    """Raise ``DurabilityError`` on a SQLite that can lose rows; warn of one that was withdrawn."""
    version = apsw.sqlite_lib_version()
    flaw = library_flaw(version)
    if flaw:
        raise DurabilityError(f"{flaw}; upgrade apsw, which brings its own SQLite")
    if version.split(".")[:3] == ["3", "52", "0"]:
        _log.warning("SQLite 3.52.0 was withdrawn by its makers; upgrade apsw, which brings it")


def library_flaw(version: str) -> str | None:
    """Why a version of SQLite must not serve several connections in WAL, or None.

    https://sqlite.org/wal.html#walresetbug: 3.7.0 to 3.51.2 can lose committed rows; fixed in
    3.51.3 and, as back-ports, in 3.50.7 and 3.44.6.
    """
    numbers = tuple(int(part) for part in version.split(".")[:3])
    fixed = numbers >= (3, 51, 3) or any(
        numbers[:2] == branch[:2] and numbers >= branch for branch in ((3, 50, 7), (3, 44, 6))
    )
    if fixed:
        return None
    return (
        f"SQLite {version} can lose committed rows when two connections write and checkpoint at"
        " once (fixed in 3.51.3, 3.50.7 and 3.44.6)"
    )


def connect(path: str, durability: Durability, vfs: str | None = None) -> apsw.Connection:
    """Open an existing file for reading and writing, set what the promise needs, and read it back.

    The library must have been checked. Raises ``DurabilityError`` when SQLite doesn't do as told,
    ``StoreDamaged`` and ``SchemaMismatch`` as ``migrate`` does, before the file is touched, and
    apsw's own errors.
    """
    # A symbolic link that was put in the way since the path was looked at is not followed.
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
    connection = apsw.Connection(path, flags=flags, vfs=vfs)
    try:
        connection.set_busy_timeout(5000)
        # Before anything is set: switching to WAL writes into the file, whosever it is.
        _version(connection, path, MIGRATIONS)
        _switch_to_wal(connection)
        synchronous = synchronous_for(durability)
        for name, value, expected in (
            ("journal_mode", "wal", "wal"),
            ("synchronous", synchronous, synchronous),
            ("mmap_size", 0, 0),
            ("fullfsync", 1, 1),
            ("checkpoint_fullfsync", 1, 1),
            ("wal_autocheckpoint", 0, 0),
            ("journal_size_limit", LOG_BYTES, LOG_BYTES),
        ):
            connection.pragma(name, value)
            found = connection.pragma(name)
            if found != expected and not (name == "mmap_size" and found is None):
                raise DurabilityError(
                    f"{path}: SQLite was told {name}={value} and answers {found!r}; the file system"
                    " or another program prevents it, so nothing could be promised"
                )
        connection.pragma("cache_size", -PAGE_CACHE_KIB)
        connection.set_busy_timeout(0)
    except BaseException:
        connection.close()
        raise
    return connection


def _switch_to_wal(connection: apsw.Connection) -> None:
    """Processes that open a new file at once block each other here, and SQLite waits for none."""
    for _ in range(1000):
        try:
            connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            time.sleep(0.005)
        else:
            return
    connection.pragma("journal_mode", "wal")


def synchronous_for(durability: Durability) -> int:
    """SQLite's ``synchronous``: FULL syncs each commit, NORMAL only checkpoints, OFF nothing."""
    return {Durability.MEMORY: 0, Durability.PROCESS: 1}.get(durability, 2)


def migrate(
    connection: apsw.Connection,
    path: str,
    store_id: str,
    migrations: Sequence[str] | None = None,
) -> None:
    """Bring the schema to this version, one transaction a step; killed anywhere, it can go on.

    Raises ``SchemaMismatch`` for a newer file, or one whose number isn't that of its tables, and
    ``StoreDamaged`` for a database of someone else.
    """
    if migrations is None:
        migrations = MIGRATIONS
    connection.set_busy_timeout(30_000)
    try:
        if _version(connection, path, migrations) == len(migrations):
            return
        while True:
            connection.execute("BEGIN IMMEDIATE")
            try:
                version = _version(connection, path, migrations)
                if version == len(migrations):
                    connection.execute("ROLLBACK")
                    return
                try:
                    connection.execute(migrations[version])
                except apsw.SQLError as error:
                    raise SchemaMismatch(
                        f"{path} says that it has schema {version} (PRAGMA user_version), which its"
                        f" tables don't bear out: {error}. Another program changed that number: put"
                        " it back, or restore a backup; nothing was changed"
                    ) from error
                if version == 0:
                    connection.execute("INSERT INTO meta VALUES ('store_id', ?)", (store_id,))
                    connection.pragma("application_id", APPLICATION_ID)
                connection.pragma("user_version", version + 1)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
    finally:
        connection.set_busy_timeout(0)


def version_at(path: str) -> int:
    """The number of the schema of that file, or 0 if it isn't there; nothing is changed."""
    if not Path(path).exists():
        return 0
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        try:
            connection.set_busy_timeout(5_000)
            return _version(connection, path, MIGRATIONS)
        finally:
            connection.close()
    except apsw.Error as error:
        raise StoreUnavailable(f"can't read {path}: {error}") from error


def _version(connection: apsw.Connection, path: str, migrations: Sequence[str]) -> int:
    application, version, tables = connection.execute(
        "SELECT a.application_id, v.user_version, (SELECT count(*) FROM sqlite_master)"
        " FROM pragma_application_id a, pragma_user_version v"
    ).get
    if application == APPLICATION_ID:
        if version < 0:
            raise SchemaMismatch(
                f"{path} has schema {version} (PRAGMA user_version), which no outlast writes; put"
                " back what it was, or restore a backup. Nothing was changed"
            )
        if version > len(migrations):
            raise SchemaMismatch(
                f"{path} has schema {version}, made by a newer outlast; this one knows up to "
                f"{len(migrations)}. Upgrade outlast here; nothing was changed"
            )
        return int(version)
    if application or tables:
        raise StoreDamaged(
            f"{path} is a database of another program, not an outlast store; give outlast a file"
            " of its own. Nothing was changed"
        )
    return 0


def boot_id() -> str:
    """Differs after each start of the machine; empty where the system doesn't tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
