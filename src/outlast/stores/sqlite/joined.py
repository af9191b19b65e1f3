"""Work inside a transaction of the caller's: the same steps as the writer's, on his connection."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from outlast.errors import ConfigurationError, DurabilityError, StoreUnavailable, Unsupported
from outlast.limits import check_job
from outlast.stores.news import ENDED, WORK
from outlast.stores.sqlite import schema
from outlast.stores.sqlite.faults import mapped
from outlast.stores.sqlite.moves import Moves
from outlast.stores.sqlite.op import Op
from outlast.stores.sqlite.steps import emit, remember
from outlast.stores.sqlite.verdicts import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.clock import Clock
    from outlast.job import Added, Claim, Job, Lost, Step, Verdict
    from outlast.store import Durability
    from outlast.stores.sqlite.files import Identity
    from outlast.stores.sqlite.turn import Turn
    from outlast.stores.sqlite.writer import Writer

__all__ = ["Joinable", "SqliteJoined", "SqliteTransaction"]

T = TypeVar("T")

PAUSE = 0.001
"""Seconds between two tries to get the lock of the file."""
AWAKENING = 0.05
"""Seconds that somebody has who waits for the file, until the next of ours goes on."""


class SqliteJoined:
    """``Joined`` on an apsw connection of the caller's, in his thread."""

    plain = True

    def __init__(
        self, connection: apsw.Connection, namespace: str, clock: Clock, told: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self.clock = clock
        self._told = told

    async def add(self, jobs: Sequence[Job]) -> list[Added]:
        for job in jobs:
            check_job(job)
        return self._do(partial(Moves.add, jobs=jobs))

    async def settle(self, verdicts: Sequence[Verdict]) -> list[Lost]:
        for verdict in verdicts:
            for job in verdict.then:
                check_job(job)
        return self._do(partial(settle, verdicts=verdicts))

    async def remember(self, claim: Claim, step: Step) -> bool:
        return self.remember_now(claim, step)

    def remember_now(self, claim: Claim, step: Step) -> bool:
        """``remember``, blocking."""
        return self._do(partial(remember, claim=claim, step=step))

    async def emit(self, event: str, payload: bytes, keep: float) -> bool:
        return self._do(partial(emit, event=event, payload=payload, keep=keep))

    async def confirm(self) -> None:
        """A commit that has returned is all that a file can promise."""

    def _do(self, run: Callable[[Moves], T]) -> T:
        """Done in full or not at all; what he does with his transaction then is his."""
        connection = self._connection
        if not connection.in_transaction:
            raise ConfigurationError(
                "the connection is in no transaction, so there is nothing to join: begin one with "
                "BEGIN IMMEDIATE"
            )
        refuse_attached(connection)
        # What is known of lines may be rolled back any time, so nothing is kept between calls.
        moves = Moves(self._namespace, self.clock)
        moves.attach(connection)
        try:
            connection.execute("SAVEPOINT outlast")
            try:
                moves.begin(careful=True)
                answer = run(moves)
                moves.finish()
            except BaseException:
                connection.execute("ROLLBACK TO outlast")
                raise
            finally:
                connection.execute("RELEASE outlast")
        except apsw.Error as error:
            raise mapped(error, connection.filename) from error
        if moves.take_news():
            self._told()
        return answer


class SqliteTransaction:
    """``Transaction``: on a connection of ours, or of the caller's."""

    def __init__(
        self, store: Joinable, connection: apsw.Connection, ours: bool, turn: Turn
    ) -> None:
        self._store = store
        self._turn = turn
        self._is_first = False
        self._connection = connection
        self._ours = ours
        self._busy: asyncio.Future[Any] | None = None
        self.joined = store.joined_on(connection)

    async def begin(self, within: float) -> None:
        """``BEGIN IMMEDIATE``: nobody else can write from here on.

        Those of one store stand in line, and one of them waits for the file, as a writer does: if
        all of them tried again and again, luck would choose, and some would have none. Raises
        ``StoreUnavailable`` if the file is locked for longer than that after it is this one's turn.
        """
        await self._store.line.acquire()
        self._is_first = True
        # A wait inside SQLite would hold up the event loop.
        self._connection.set_busy_timeout(0)
        if self._begun():
            return
        clock = self._store.clock
        deadline = clock.monotonic() + within
        with self._turn.waiting():
            while not self._begun():
                if clock.monotonic() >= deadline:
                    raise StoreUnavailable(
                        f"{self._store.path} stayed locked by others for {within:g} s"
                    )
                await clock.sleep(PAUSE)

    def _begun(self) -> bool:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            return False
        return True

    async def execute(self, text: str, values: Any = ()) -> list[Any]:
        run = partial(self._execute, text, values)
        self._busy = asyncio.ensure_future(asyncio.to_thread(run))
        try:
            # The thread can't be cancelled, and is not to be left alone with the connection.
            return await asyncio.shield(self._busy)
        except asyncio.CancelledError:
            await self._interrupt()
            raise

    def _execute(self, text: str, values: Any) -> list[Any]:
        rows = self._connection.execute(text, values).fetchall()
        if not self._connection.in_transaction:
            raise ConfigurationError(
                "the statement has ended the transaction, which is ours to end"
            )
        return rows

    async def _interrupt(self) -> None:
        busy = self._busy
        if busy is not None and not busy.done():
            self._connection.interrupt()
            await asyncio.wait((busy,))
        if busy is not None and not busy.cancelled():
            busy.exception()

    async def commit(self) -> None:
        """Durable when this returns; cancelling it doesn't stop it."""
        commit = asyncio.ensure_future(asyncio.to_thread(self._commit))
        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError:
            await asyncio.wait((commit,))
            commit.result()
            raise

    def _commit(self) -> None:
        self._store.identity.check()
        try:
            self._connection.execute("COMMIT")
        except apsw.Error as error:
            raise mapped(error, self._store.path) from error
        self._store.news_from_outside()

    async def close(self) -> None:
        """Roll back what was not committed, and let go."""
        try:
            await self._interrupt()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if self._is_first:
                await self._let_others_in()
        finally:
            if self._ours:
                self._connection.close()
            if self._is_first:
                self._is_first = False
                self._store.line.release()

    async def _let_others_in(self) -> None:
        """One of those who wait, before the next of ours: on a busy machine they wake up late."""
        connection = self._connection
        seen = connection.pragma("data_version")
        deadline = time.monotonic() + AWAKENING
        while time.monotonic() < deadline:
            if not self._turn.others_wait() or connection.pragma("data_version") != seen:
                return
            await asyncio.sleep(PAUSE)


class Joinable:
    """The ``Joining`` part of the store."""

    line: asyncio.Lock
    """Who is in a transaction here, and who waits for that."""
    path: str
    namespace: str
    clock: Clock
    _identity: Identity
    required: Durability
    _vfs: str | None

    if TYPE_CHECKING:

        def _writing(self) -> Writer: ...

    @property
    def identity(self) -> Identity:
        return self._identity

    def joined(self, connection: Any) -> SqliteJoined:
        self._writing()
        self._check_theirs(connection)
        return self.joined_on(connection)

    def joined_on(self, connection: apsw.Connection) -> SqliteJoined:
        return SqliteJoined(connection, self.namespace, self.clock, self.news_from_outside)

    async def begin(self, within: float, connection: Any = None) -> SqliteTransaction:
        turn = self._writing().turn
        ours = connection is None
        if ours:
            connection = await asyncio.to_thread(
                schema.connect, self.path, self.required, self._vfs
            )
        else:
            self._check_theirs(connection)
            if connection.in_transaction:
                raise ConfigurationError(
                    "the connection is in a transaction already; it is begun and ended here"
                )
        transaction = SqliteTransaction(self, connection, ours, turn)
        try:
            await transaction.begin(within)
        except BaseException:
            await transaction.close()
            raise
        return transaction

    def _check_theirs(self, connection: Any) -> None:
        if not isinstance(connection, apsw.Connection):
            raise Unsupported(
                f"{type(connection).__name__} is no apsw.Connection; two copies of the SQLite "
                "library on one file in one process undo each other's locks, so it can't be another"
            )
        there = connection.db_filename("main")
        if not there or not os.path.samefile(there, self.path):
            raise Unsupported(
                f"the connection is to {there or 'memory'}, and the jobs are in {self.path}: one "
                "transaction over two files is not atomic in a power cut"
            )
        refuse_attached(connection)
        wanted = schema.synchronous_for(self.required)
        found = connection.pragma("synchronous")
        if found < wanted:
            raise DurabilityError(
                f"the connection has synchronous={found}, so a power cut may undo what it commits: "
                f"PRAGMA synchronous={wanted}"
            )

    def news_from_outside(self) -> None:
        """Wake those who wait, once the write lock is free: then it was committed, or was not."""
        self._writing().submit(Op(lambda moves: moves.tell(WORK | ENDED), synced=False))


def refuse_attached(connection: apsw.Connection) -> None:
    """``Unsupported`` if a transaction could span files."""
    for _, name, path in connection.execute("PRAGMA database_list"):
        if name not in ("main", "temp"):
            raise Unsupported(
                f"{path or 'a database in memory'} is attached to the connection as {name!r}: in "
                "WAL a commit over two files is not atomic in a power cut; detach it"
            )
