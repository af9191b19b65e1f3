"""Moves jobs on from outboxes to the store, with the same ids: a crash neither loses nor doubles.

A few rows are given the name of a batch, which the store has been told of before. The batch goes
into the store in one transaction with the word that it has come; then its rows are deleted, then
the store forgets the name. Whoever finds rows with a name asks the store which of these was last.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, Protocol, cast

from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.errors import (
    ConfigurationError,
    KeyConflict,
    KeyRepeated,
    StoreError,
    StoreMoved,
    StoreUnavailable,
)
from outlast.movable import Crate, Movable
from outlast.outbox import job_of, outbox_tables
from outlast.stores import redact
from outlast.stores.urls import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.job import Job
    from outlast.store import Store

__all__ = ["Box", "PostgresBox", "SqliteBox", "box_at", "relay", "relay_all", "relay_for_ever"]

log = logging.getLogger(__name__)

BATCH = 200
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two looks into an outbox: soon after there was something, seldom later."""
AGAIN = 5.0
"""Seconds before the next try where something couldn't be reached."""

_NO_TABLE = "there is no table outlast_outbox: make it (outlast relay --create, or outbox_tables())"
_BATCHES = "SELECT DISTINCT batch FROM outlast_outbox WHERE namespace = {0} AND batch IS NOT NULL"
_WAITS = "SELECT 1 FROM outlast_outbox WHERE namespace = {0} AND batch IS NULL LIMIT 1"
_TAKE = (
    "UPDATE outlast_outbox SET batch = {1} WHERE namespace = {0} AND batch IS NULL AND seq IN"
    " (SELECT seq FROM outlast_outbox WHERE namespace = {0} AND batch IS NULL ORDER BY seq"
    f" LIMIT {BATCH}"
)
_RENAME = "UPDATE outlast_outbox SET batch = {1} WHERE namespace = {0} AND batch = {2}"
_ROWS = "SELECT id, job FROM outlast_outbox WHERE namespace = {0} AND batch = {1} ORDER BY seq"
_DROP = "DELETE FROM outlast_outbox WHERE namespace = {0} AND batch = {1}"


class Box(Protocol):
    """An outbox as the relay sees it. Each call is one transaction, durable when it returns."""

    async def open(self, *, create: bool) -> None: ...
    async def close(self) -> None: ...
    async def ask(self, text: str, *values: str) -> list[Any]: ...
    async def change(self, text: str, *values: str) -> int: ...

    take: str
    """How rows without a batch are given one."""


async def relay(
    store: Store,
    url: str,
    namespace: str,
    library: str = "sqlite3",
    *,
    create: bool = False,
    once: bool = False,
    tell: Callable[[int], None] = lambda _: None,
) -> None:
    """Move on what waits in the outbox of a database, ``once`` or until cancelled."""
    box = box_at(url, store, library)
    chance = SystemChance()
    try:
        await store.open()
        await box.open(create=create)
        if once:
            await relay_all(store, box, namespace, chance, tell)
        else:
            await relay_for_ever(store, box, namespace, chance, SystemClock(), tell)
    finally:
        await box.close()
        await store.close()


async def relay_all(
    store: Store,
    box: Box,
    namespace: str,
    chance: Chance,
    tell: Callable[[int], None] = lambda _: None,
) -> int:
    """Move on what waits; how many jobs. Any number of these may do it at once.

    ``tell`` hears of each batch. Cancelled, it sees the one that it has begun through to its end.
    Where the store can't take in a batch as one, each job is added by itself: repeated after a
    crash, that changes nothing as long as the store remembers its id or its key.
    """
    moved = 0
    if not hasattr(store, "expect"):
        moved = await _add_one_by_one(store, box, namespace, chance)
        tell(moved)
        return moved
    into = cast("Movable", store)

    async def finish(batch: str) -> int:
        many = await _finish(into, box, namespace, batch, chance)
        tell(many)
        return many

    for (batch,) in await box.ask(_BATCHES, namespace):
        moved += await _to_its_end(finish(batch))
    while await box.ask(_WAITS, namespace):
        batch = chance.token().hex()
        await into.expect(batch)
        if not await box.change(box.take, namespace, batch):
            await into.unexpect(batch)
            break
        moved += await _to_its_end(finish(batch))
    return moved


async def _to_its_end(work: Coroutine[Any, Any, int]) -> int:
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


async def _finish(into: Movable, box: Box, namespace: str, batch: str, chance: Chance) -> int:
    """See a batch through to its end, wherever whoever began it has left it."""
    place = await into.arrived(batch)
    if place is None:
        # It is over, and its rows are gone; or it was begun for another store. A new name for
        # them, since who began it may still be about to use the old one.
        fresh = chance.token().hex()
        await into.expect(fresh)
        if not await box.change(_RENAME, namespace, fresh, batch):
            await into.unexpect(fresh)
            return 0
        batch, place = fresh, ""
    jobs: list[Job] = []
    if not place:
        jobs = [job_of(*row) for row in await box.ask(_ROWS, namespace, batch)]
        try:
            await into.unpack(batch, Crate(after="", upto="in", adds=jobs))
        except StoreMoved:
            if await into.departure() is not None:
                raise
            return 0  # somebody else has finished it
    await box.change(_DROP, namespace, batch)
    await into.unexpect(batch)
    return len(jobs)


async def _add_one_by_one(store: Store, box: Box, namespace: str, chance: Chance) -> int:
    batch = chance.token().hex()
    await box.change(box.take, namespace, batch)
    moved = 0
    for (name,) in await box.ask(_BATCHES, namespace):
        for row in await box.ask(_ROWS, namespace, name):
            try:
                await store.add([job_of(*row)])
            except (KeyConflict, KeyRepeated) as error:
                log.warning("job %s of the outbox: %s; it is left out", row[0], error)
            moved += 1
        await box.change(_DROP, namespace, name)
    return moved


async def relay_for_ever(
    store: Store,
    box: Box,
    namespace: str,
    chance: Chance,
    clock: Clock,
    tell: Callable[[int], None] = lambda _: None,
) -> None:
    """Look again and again, until cancelled; what can't be reached is tried again."""
    pause = FIRST_PAUSE
    while True:
        try:
            moved = await relay_all(store, box, namespace, chance, tell)
        except (StoreError, OSError) as error:
            if isinstance(error, StoreMoved):
                raise
            log.warning("the outbox is not moved on: %s; trying again in %g s", error, AGAIN)
            await clock.sleep(AGAIN)
            continue
        pause = FIRST_PAUSE if moved else min(LONGEST_PAUSE, pause * 1.5)
        await clock.sleep(pause)


class SqliteBox:
    """An outbox in a SQLite file, opened with the library that this process uses for it.

    Two copies of SQLite in one process undo each other's locks on a file. So it is the standard
    library's sqlite3, as in nearly every program, unless ``library`` says apsw.
    """

    take = f"{_TAKE})"

    def __init__(self, path: str, library: str = "sqlite3") -> None:
        self._path = path
        self._library = library
        self._connection: Any = None
        self._turn = asyncio.Lock()

    async def open(self, *, create: bool) -> None:
        await asyncio.to_thread(self._open, create)

    def _open(self, create: bool) -> None:
        if self._library == "apsw":
            import apsw

            self._connection = apsw.Connection(self._path, flags=apsw.SQLITE_OPEN_READWRITE)
            self._connection.set_busy_timeout(10_000)
        else:
            import sqlite3

            where = f"file:{_quoted(self._path)}?mode=rw"
            try:
                self._connection = sqlite3.connect(
                    where, uri=True, timeout=10, isolation_level=None, check_same_thread=False
                )
            except sqlite3.Error as error:
                raise self._mapped(error) from error
            self._warn(sqlite3.sqlite_version)
        # What a commit here says has to outlive a power cut, whatever the program's own do.
        self._connection.execute("PRAGMA synchronous = FULL")
        if create:
            for statement in outbox_tables("sqlite").split(";"):
                self._connection.execute(statement)

    async def ask(self, text: str, *values: str) -> list[Any]:
        async with self._turn:
            return await asyncio.to_thread(self._run, text, values, False)

    async def change(self, text: str, *values: str) -> int:
        async with self._turn:
            return int(await asyncio.to_thread(self._run, text, values, True))

    def _warn(self, version: str) -> None:
        from outlast.stores.sqlite.schema import library_flaw

        flaw = library_flaw(version)
        mode = self._connection.execute("PRAGMA journal_mode").fetchone()[0]
        if flaw and mode == "wal":
            log.warning(
                "%s is in WAL mode, and %s: with a relay beside it there are several connections;"
                " a newer Python or SQLite, or journal_mode=DELETE, is safe", self._path, flaw,
            )  # fmt: skip

    def _mapped(self, error: Exception) -> Exception:
        if "no such table" in str(error):
            return ConfigurationError(f"{self._path}: {_NO_TABLE}")
        return StoreUnavailable(f"{self._path}: {error}")

    def _run(self, text: str, values: Sequence[str], changes: bool) -> Any:
        connection = self._connection
        try:
            cursor = connection.execute(text.format("?1", "?2", "?3"), values)
            rows = cursor.fetchall()
        except Exception as error:
            if type(error).__module__ in ("sqlite3", "apsw"):
                raise self._mapped(error) from error
            raise
        if not changes:
            return rows
        return cursor.rowcount if self._library == "sqlite3" else connection.changes()

    async def close(self) -> None:
        async with self._turn:
            connection, self._connection = self._connection, None
            if connection is not None:
                await asyncio.to_thread(connection.close)


class PostgresBox:
    """An outbox in a PostgreSQL database. Its connection is made again when it was lost."""

    # Two relays at once are not to wait for each other, nor to take the same rows.
    take = f"{_TAKE} FOR UPDATE SKIP LOCKED)"

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None

    async def open(self, *, create: bool) -> None:
        connection = await self._connected()
        if create:
            await connection.execute(outbox_tables("postgresql"))

    async def _connected(self) -> Any:
        import asyncpg

        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(
                self._url, timeout=10, server_settings={"synchronous_commit": "on"}
            )
        return self._connection

    async def ask(self, text: str, *values: str) -> list[Any]:
        rows: Sequence[Any] = await self._do("fetch", text, values)
        return list(rows)

    async def change(self, text: str, *values: str) -> int:
        done: str = await self._do("execute", text, values)
        return int(done.rpartition(" ")[2])

    async def _do(self, how: str, text: str, values: Sequence[str]) -> Any:
        from asyncpg import UndefinedTableError

        from outlast.stores.postgres.faults import is_lost, is_ours, mapped

        try:
            connection = await self._connected()
            return await getattr(connection, how)(_numbered(text, values), *values)
        except UndefinedTableError as error:
            raise ConfigurationError(f"{redact(self._url)}: {_NO_TABLE}") from error
        except Exception as error:
            if is_lost(error) and self._connection is not None:
                self._connection.terminate()
                self._connection = None
            if is_ours(error):
                raise mapped(error, redact(self._url)) from error
            raise

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(timeout=2)


def box_at(url: str, store: Store, library: str = "sqlite3") -> Box:
    """The outbox in that database. Raises ``ConfigurationError`` where none can be."""
    address = parse(url)
    if address.scheme == "postgresql":
        return PostgresBox(url)
    if address.scheme != "sqlite":
        raise ConfigurationError(f"{redact(url)}: an outbox is in sqlite:///FILE or postgresql://")
    if library not in ("sqlite3", "apsw"):
        raise ConfigurationError(f"library {library!r}: there is 'sqlite3' and 'apsw'")
    mine = getattr(store, "path", None)
    if mine is not None and os.path.realpath(mine) == os.path.realpath(address.path):
        raise ConfigurationError(
            f"{redact(url)} is the store's own file: use app.joined(connection), which needs no"
            " outbox"
        )
    return SqliteBox(address.path, library)


def _numbered(text: str, values: Sequence[str]) -> str:
    return text.format(*(f"${n}::text" for n in range(1, len(values) + 1)))


def _quoted(path: str) -> str:
    from urllib.parse import quote

    return quote(path)
