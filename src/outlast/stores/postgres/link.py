"""One connection to the server: made when it is needed, made again when it was lost.

Nothing is kept in a session: each transaction begins with all the settings it relies on, so that a
pooler may give every transaction another server process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from outlast.errors import OutlastError, StoreUnavailable
from outlast.stores.postgres.faults import (
    AGAIN,
    POOLED,
    Careful,
    Dropped,
    Repeat,
    is_lost,
    mapped,
)
from outlast.stores.postgres.turn import Turn
from outlast.stores.thread_loop import read_sparingly

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncpg import Connection

    from outlast.stores.postgres.address import Address
    from outlast.stores.postgres.schema import Names
    from outlast.stores.postgres.servertime import ServerTime
    from outlast.stores.postgres.turn import Lines

__all__ = [
    "CLAIMING",
    "CONNECT",
    "LOCK_TIMEOUT",
    "PATIENCE",
    "SETTLING",
    "TRIES",
    "Link",
    "planner",
]

T = TypeVar("T")

_log = logging.getLogger(__name__)

CONNECT = 10.0
PATIENCE = 30.0
"""Seconds that a transaction may take before its connection counts as lost."""
ROLLBACK = 5.0
TRIES = 8
QUIET = 10.0
"""Seconds after which a connection that nobody used may be dead, and nobody has told us."""
_NEVER = float("inf")
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0

LOCK_TIMEOUT = "7s"


SEARCH_PATH = "pg_catalog, pg_temp"
"""All of ours is named with its schema. Where anybody may make functions in a schema of the usual
path, one for an array of texts would be taken for ``unnest``, and do in our name what it likes."""


def planner(nested: str | None = None) -> dict[str, str]:
    """The settings that all statements are parsed and planned under.

    ``nested``: whether rows may be looked up one by one, where tables are joined at all. In a
    function each setting costs a lone call a hundredth of its time.
    """
    sets = {
        "search_path": SEARCH_PATH,
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "jit": "off",
        "plan_cache_mode": "force_generic_plan",
    }
    if nested is not None:
        sets |= {"enable_nestloop": nested, "enable_mergejoin": nested}
    return sets


def _begin(commit: str, nested: str) -> str:
    local = {"synchronous_commit": commit} | planner(nested)
    sets = "; ".join(f"SET LOCAL {name} TO {value}" for name, value in local.items())
    begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
    return f"{begin}; {sets}; SET LOCAL lock_timeout TO '{LOCK_TIMEOUT}'"


CLAIMING = _begin("off", "on")
SETTLING = _begin("{commit}", "off")
"""A hot table may be empty now and hold a million rows a minute later: no plan may depend on what
the statistics say of it. Who keeps a transaction of his own open over a key stops only those who
ask for that key: they are told, and the others go on."""
_NO_FUNCTION = (
    asyncpg.UndefinedFunctionError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.DatatypeMismatchError,
)
"""The last: a newer program has given the table one more column, and this session knows the old."""
_EPOCH = (
    "UPDATE @meta SET epoch = epoch + 1 RETURNING epoch,"
    " extract(epoch FROM clock_timestamp())::float8"
)
_SESSION = (
    "SELECT extract(epoch FROM backend_start)::float8 FROM pg_stat_activity"
    " WHERE pid = pg_backend_pid()"
)


class Link:
    """A connection, used by one transaction after the other, all in one event loop."""

    def __init__(
        self, address: Address, names: Names, lines: Lines, clock: ServerTime, label: str
    ) -> None:
        self._address = address
        self._names = names
        self._lines = lines
        self._clock = clock
        self._label = label
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None
        self._pause = 0.0
        self._not_before = 0.0
        self._epoch = 0
        self._epoch_at = 0.0
        """When it was taken, by the server's clock."""
        self._prepares = True
        """Whether its statements are prepared, and kept by the server's session."""
        self._swift = True
        """Whether the server may have the functions that ``swift`` calls."""
        self.check: Callable[[Connection], Awaitable[None]] | None = None
        """Run on each new connection, before it is used; it sees to its own end."""
        self.lost: Callable[[], None] = _nothing
        """Told when the connection is gone."""
        self.used_at = 0.0
        self.replicated = False
        """Whether what is promised must be on a standby too: a commit that returns tells not."""
        self._deadline = _NEVER
        self._alarm: asyncio.TimerHandle | None = None
        self._gave_up = False
        """Whether the server has ended its wait for the standby, and committed nevertheless."""

    @property
    def connected(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def run(
        self,
        work: Callable[[Turn], Awaitable[T]],
        begin: str,
        lines: Callable[[], set[tuple[str, str | None]]] | None = None,
        *,
        fenced: bool = False,
        swift: Callable[[Turn], Awaitable[T | None]] | None = None,
    ) -> tuple[T, dict[int, set[str]]]:
        """A transaction: what ``work`` answers, and the news that the commit is.

        ``lines`` gives those that must exist; ``fenced`` asks for an epoch. ``swift`` does all of
        it in one statement, or answers None and has done nothing. Raises ``Dropped`` when
        the connection was lost, and else what the server says.
        """
        async with self._lock:
            fresh = self.connected
            for tries in range(TRIES):
                try:
                    return await self._once(work, begin, lines, fenced, swift)
                except AGAIN:
                    if tries == TRIES - 1:
                        raise
                except POOLED as error:
                    if not self._met_a_pooler(error):
                        raise
                except Dropped as dropped:
                    # A connection that died while nobody used it: nothing was asked of it yet.
                    if dropped.committing or not fresh:
                        raise
                    fresh = False
            raise StoreUnavailable(f"{self._address.shown}: no transaction could be finished")

    async def _once(
        self,
        work: Callable[[Turn], Awaitable[T]],
        begin: str,
        lines: Callable[[], set[tuple[str, str | None]]] | None,
        fenced: bool,
        swift: Callable[[Turn], Awaitable[T | None]] | None,
    ) -> tuple[T, dict[int, set[str]]]:
        committing = False
        connection = await self._ready()
        # One that may be dead is to find it out by what promises nothing yet.
        hurries = self._prepares and self._swift and time.monotonic() - self.used_at < QUIET
        self.used_at = time.monotonic()
        self._bound(PATIENCE)
        try:
            if lines is not None:
                await self._lines.make(connection, self._names, lines())
            if fenced and not self._epoch:
                self._epoch = await self._next_epoch(connection)
            if swift is not None and hurries:
                committing = True
                done = await self._hurry(connection, swift)
                if done is not None:
                    await self._confirm(connection, begin)
                    return done
                committing = False
            await connection.execute(begin)
            if fenced and not self._prepares:
                await self._check_epoch(connection)
            turn = await self._turn(connection)
            answer = await work(turn)
            committing = True
            status = await connection.execute(turn.last_words())
            if status != "COMMIT":
                raise StoreUnavailable(f"{self._address.shown}: the server answered {status}")
            await self._confirm(connection, begin)
        except BaseException as error:
            if is_lost(error) or connection.is_closed():
                self._drop()
                raise Dropped(error, committing) from error
            await self._roll_back(connection)
            if committing and not isinstance(error, asyncpg.PostgresError | Careful):
                raise Dropped(error, True) from error
            raise
        finally:
            self._deadline = _NEVER
        return answer, turn.news

    def _bound(self, seconds: float) -> None:
        """What is on its way now may take so long; then the connection counts as lost.

        One alarm for many transactions: to set one for each costs a lone one a tenth of its time.
        """
        loop = asyncio.get_running_loop()
        self._deadline = deadline = loop.time() + seconds
        if self._alarm is None or self._alarm.when() > deadline:
            self._quieten()
            self._alarm = loop.call_at(deadline, self._look_after)

    def _look_after(self) -> None:
        self._alarm = None
        loop = asyncio.get_running_loop()
        if self._deadline <= loop.time():
            if self._connection is not None:
                self._connection.terminate()
        elif self._deadline < _NEVER:
            self._alarm = loop.call_at(self._deadline, self._look_after)

    def _quieten(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def _confirm(self, connection: Connection, begin: str) -> None:
        """What was promised is on a standby too, if that is asked for.

        The server lets a commit return without it when somebody cancels the wait or empties the
        list of those to be waited for. The connection is given up then, since with the next one
        all that the server promises is looked at again.
        """
        if not self.replicated or begin == CLAIMING:
            return
        names = await connection.fetchval("SELECT current_setting('synchronous_standby_names')")
        if not names or self._gave_up:
            self._drop()
            why = "the wait for one was cancelled" if names else "none is to be waited for any more"
            raise StoreUnavailable(
                f"{self._address.shown}: it was committed there, and maybe on no standby: {why}"
            )

    def _overhear(self, connection: Any, message: Any) -> None:
        # By the name of the function: what it says is in the language of the server.
        if getattr(message, "server_source_function", "") == "SyncRepWaitForLSN":
            self._gave_up = True

    async def _turn(self, connection: Connection) -> Turn:
        turn = Turn(connection, self._names, self._lines, *await self._clock.read(connection))
        turn.epoch = self._epoch
        return turn

    async def plain(self, text: str, *values: Any) -> list[Any]:
        """One statement of its own, on the connection that is there or a new one."""
        async with self._lock:
            try:
                return await self._plain(text, *values)
            except POOLED as error:
                if not self._met_a_pooler(error):
                    raise
            return await self._plain(text, *values)

    async def _plain(self, text: str, *values: Any) -> list[Any]:
        connection = await self._ready()
        self.used_at = time.monotonic()
        self._bound(CONNECT)
        try:
            found: list[Any] = await connection.fetch(self._names[text], *values)
            return found
        except BaseException as error:
            if is_lost(error) or connection.is_closed():
                self._drop()
            raise
        finally:
            self._deadline = _NEVER

    def _met_a_pooler(self, error: Exception) -> bool:
        """Whether the error is the sign of one that we had not known of; then go on without."""
        if not self._prepares:
            return False
        if not self._address.pooled:
            _log.warning(
                "%s: there seems to be a pooler in transaction mode before the server"
                " (%s): going on without prepared statements and without LISTEN, so that"
                " news are polled for; ?pooler=transaction in the URL says so at once",
                self._address.shown, type(error).__name__,
            )  # fmt: skip
            self._address.pooled = True
        self._drop()
        return True

    async def hold(self) -> Connection:
        """The connection, for one user alone until ``let_go``; made if need be."""
        await self._lock.acquire()
        try:
            return await self._ready()
        except BaseException:
            self._lock.release()
            raise

    async def let_go(self) -> None:
        """Undo what was not committed, or drop the connection, so that the server does."""
        try:
            connection = self._connection
            if connection is None or connection.is_closed():
                self._drop()
            elif connection.is_in_transaction():
                async with asyncio.timeout(ROLLBACK):
                    await connection.execute("ROLLBACK")
        except Exception:
            self._drop()
        except BaseException:
            self._drop()
            raise
        finally:
            self._lock.release()

    def abort(self) -> None:
        """Let go of the connection, whatever it is used for; the server undoes what is open."""
        self._drop()

    async def _hurry(
        self, connection: Connection, swift: Callable[[Turn], Awaitable[T | None]]
    ) -> tuple[T, dict[int, set[str]]] | None:
        turn = await self._turn(connection)
        try:
            found = await swift(turn)
        except _NO_FUNCTION:
            self._swift = False
            return None
        return None if found is None else (found, turn.news)

    async def _roll_back(self, connection: Connection) -> None:
        if not connection.is_in_transaction():
            return
        try:
            await connection.execute("ROLLBACK")
        except Exception:
            self._drop()

    async def _next_epoch(self, connection: Connection) -> int:
        """Raised durably, once a connection: a server that has lost claims has lost all of them."""
        await connection.execute("BEGIN; SET LOCAL synchronous_commit TO on")
        [(epoch, self._epoch_at)] = await connection.fetch(self._names[_EPOCH])
        await connection.execute("COMMIT")
        return int(epoch)

    async def _check_epoch(self, connection: Connection) -> None:
        """Behind a pooler a connection outlives the server, and only the sessions there do not.

        One that was there when the epoch was taken has seen no death of the server since.
        """
        began = await connection.fetchval(_SESSION)
        if began is None or began > self._epoch_at:
            self._epoch = 0
            raise Repeat

    # -- connecting

    async def _ready(self) -> Connection:
        connection = self._connection
        if connection is not None:
            # Another one may have met a pooler meanwhile, and what this one has prepared is lost.
            if not connection.is_closed() and not (self._prepares and self._address.pooled):
                return connection
            self._drop()
        wait = self._not_before - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        try:
            connection = await self._connect()
        except BaseException:
            self._pause = min(LONGEST_PAUSE, self._pause * 2) or FIRST_PAUSE
            self._not_before = time.monotonic() + self._pause
            raise
        self._pause = 0.0
        self._connection = connection
        return connection

    async def _connect(self) -> Connection:
        address = self._address
        self._prepares = not address.pooled
        self._swift = True
        try:
            connection = await asyncpg.connect(
                **address.options(),
                timeout=CONNECT,
                statement_cache_size=200 if self._prepares else 0,
                max_cached_statement_lifetime=0,
            )
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise mapped(error, address.shown) from None
        except ValueError as error:
            raise StoreUnavailable(f"{address.shown}: {error}") from None
        try:
            _tune(connection)
            if self.check is not None:
                await self.check(connection)
            connection.add_termination_listener(self._terminated)
            self._gave_up = False
            connection.add_log_listener(self._overhear)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, POOLED) and self._met_a_pooler(error):
                return await self._connect()
            if isinstance(error, OutlastError | asyncio.CancelledError):
                raise
            raise mapped(error, address.shown) from error
        return connection

    def _terminated(self, connection: Any) -> None:
        if self._connection is None or self._connection.is_closed():
            self.lost()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._clock.forget()
        self._epoch = 0
        if connection is not None:
            connection.terminate()
            self.lost()

    async def close(self) -> None:
        """Wait for the transaction that is on its way, then let go."""
        async with self._lock:
            connection, self._connection = self._connection, None
            self._quieten()
            if connection is not None:
                connection.remove_termination_listener(self._terminated)
                with contextlib.suppress(Exception):
                    await connection.close(timeout=2)


def _tune(connection: Connection) -> None:
    """Read small answers cheaply, and notice in seconds that the other machine is gone."""
    transport = getattr(connection, "_transport", None)
    if transport is None:
        return
    read_sparingly(transport)
    found = transport.get_extra_info("socket")
    if found is None or found.family == socket.AF_UNIX:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 20_000),
    ):
        if hasattr(socket, option):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _nothing() -> None:
    """Until someone wants to be told."""
