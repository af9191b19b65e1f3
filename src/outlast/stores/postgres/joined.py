"""Work inside a transaction of the caller's: the same statements, on his connection."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from outlast.at_once import at_once
from outlast.clock import SystemClock
from outlast.errors import (
    ConfigurationError,
    StoreClosed,
    StoreUnavailable,
    TaskError,
    Unsupported,
)
from outlast.limits import check_job
from outlast.store import Durability
from outlast.stores.postgres.adds import add_carefully
from outlast.stores.postgres.faults import (
    Refused,
    Repeat,
    is_again,
    is_lost,
    is_ours,
    is_theirs,
    mapped,
)
from outlast.stores.postgres.link import PATIENCE, TRIES, planner
from outlast.stores.postgres.op import Op
from outlast.stores.postgres.opening import (
    PLACE,
    STANDBYS,
    TIMELINE,
    check_standbys,
    commit_mode,
)
from outlast.stores.postgres.steps import emit, remember
from outlast.stores.postgres.turn import Turn
from outlast.stores.postgres.verdicts import lines_of, settle
from outlast.stores.postgres.wires import AsyncpgWire, wire_of
from outlast.stores.surface import Surface

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from outlast.job import Added, Claim, Job, Lost, Step, Verdict
    from outlast.stores.postgres.engine import Engine
    from outlast.stores.postgres.link import Link
    from outlast.stores.postgres.schema import Names
    from outlast.stores.postgres.wires import Wire

__all__ = ["Joinable", "PostgresJoined", "PostgresTransaction"]

T = TypeVar("T")

PAUSE = 0.05
"""Seconds between two questions what became of a commit."""
_PLANNER = planner("off")
"""As in our own transactions; put back after each call, since the caller's statements follow."""
_ENTER = (
    "SELECT current_setting('transaction_isolation'),"
    f" {PLACE}, {TIMELINE},"
    " extract(epoch FROM clock_timestamp())::float8,"
    " set_config('synchronous_commit', CASE WHEN $1::text = 'on'"
    " AND current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN 'on'"
    " ELSE current_setting('synchronous_commit') END, true)"
)
for _name, _value in _PLANNER.items():
    _ENTER += f", current_setting('{_name}'), set_config('{_name}', '{_value}', true)"
_LEAVE = "SELECT pg_current_xact_id_if_assigned()::text"
for _number, _name in enumerate(_PLANNER, 1):
    _LEAVE += f", set_config('{_name}', ${_number}::text, true)"
_NOTIFY = "SELECT pg_notify($1::text, $2::text)"
_BECAME = (
    f"SELECT CASE WHEN {TIMELINE} = $2::text THEN pg_xact_status($1::text::xid8)"
    " ELSE 'elsewhere' END"
)
_MARK = "SELECT pg_logical_emit_message(true, 'outlast', '')::text"
"""Something to commit: what a standby has of the log, it has in order."""
_AWAITED = f"SELECT current_setting('synchronous_standby_names'), ({STANDBYS})"
_CAPPED = (
    "SELECT set_config('statement_timeout', $1::text, true),"
    " set_config('idle_in_transaction_session_timeout', $2::text, true)"
)


class PostgresJoined:
    """``Joined`` on a connection of the caller's."""

    def __init__(self, store: Joinable, wire: Wire, *, ends: bool = False) -> None:
        self._store = store
        self._wire = wire
        self._ends = ends
        """Whether it is we who commit, so that we know when there is news."""
        self.plain = wire.plain
        self.news: dict[int, set[str]] = {}
        self.number: str | None = None
        """The transaction's own, by which it is known whether it was committed."""
        self.timeline = ""
        """Where that number counts."""

    async def add(self, jobs: Sequence[Job]) -> Sequence[Added]:
        for job in jobs:
            check_job(job)
        wanted = {(job.queue, job.task) for job in jobs}
        [added] = await self._do(partial(add_carefully, ops=[Op(jobs=jobs)]), wanted)
        return added

    async def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        for verdict in verdicts:
            for job in verdict.then:
                check_job(job)
        work = partial(settle, verdicts=verdicts, careful=True)
        return await self._do(work, lines_of(verdicts))

    async def remember(self, claim: Claim, step: Step) -> bool:
        return await self._do(partial(remember, claim=claim, step=step))

    def remember_now(self, claim: Claim, step: Step) -> bool:
        """``remember``, blocking."""
        if not self.plain:
            raise TaskError(
                "on a connection that is awaited a step is too: await current().step(...)"
            )
        return at_once(self.remember(claim, step))

    async def emit(self, event: str, payload: bytes, keep: float) -> bool:
        return await self._do(partial(emit, event=event, payload=payload, keep=keep))

    async def confirm(self) -> None:
        """See ``Joined``: whoever commits need not have heard that no standby was waited for."""
        op = self._confirming()
        if op is not None and self.plain:
            self._store._hand_over(op).result()
        elif op is not None:
            await self._store._do(op)

    def _confirming(self) -> Op[None] | None:
        url = self._store.url
        if self.number is None or self._store.required < Durability.REPLICA:
            return None
        return Op(partial(_confirm, number=self.number, timeline=self.timeline, url=url))

    async def _do(
        self,
        run: Callable[[Turn], Awaitable[T]],
        lines: set[tuple[str, str | None]] | None = None,
    ) -> T:
        """Done in full or not at all; what he does with his transaction then is his."""
        wire, store = self._wire, self._store
        try:
            await wire.ready()
            if not wire.in_transaction():
                raise ConfigurationError(
                    "the connection is in no transaction, so there is nothing to join: begin one"
                )
            await self._make_lines(lines or set())
            for tries in range(TRIES):
                await wire.execute("SAVEPOINT outlast")
                try:
                    answer = await self._once(run)
                except BaseException as error:
                    await wire.execute("ROLLBACK TO SAVEPOINT outlast")
                    await wire.execute("RELEASE SAVEPOINT outlast")
                    if not is_again(error) or tries == TRIES - 1:
                        raise
                else:
                    await wire.execute("RELEASE SAVEPOINT outlast")
                    return answer
        except Refused as no:
            raise no.error from None
        except Exception as error:
            if is_theirs(error):
                raise mapped(error, store.url) from error
            if isinstance(error, Repeat):
                raise StoreUnavailable(f"{store.url}: others are at the same rows") from error
            raise
        raise AssertionError("the last try has an end")

    async def _make_lines(self, wanted: set[tuple[str, str | None]]) -> None:
        """Have these lines exist, whatever becomes of the transaction."""
        engine = self._store.engine
        if wanted - engine.lines.ids.keys():
            if self.plain:
                engine.blocking(engine.make_lines(wanted))
            else:
                await engine.elsewhere(engine.make_lines(wanted))

    async def _once(self, run: Callable[[Turn], Awaitable[T]]) -> T:
        wire, store = self._wire, self._store
        [entered] = await wire.fetch(_ENTER, commit_mode(store.required))
        isolation, place, self.timeline, now, _, *planner = entered
        if isolation != "read committed":
            raise ConfigurationError(
                f"the transaction is {isolation}, and so can't see what others have done to jobs"
                " since it began: use READ COMMITTED for it"
            )
        if place != store.place:
            raise Unsupported(
                f"the connection is to another database than the jobs are in ({store.url}), and no"
                " commit is one in both"
            )
        if store.required >= Durability.REPLICA:
            check_standbys(store.url, *(await wire.fetch(_AWAITED))[0])
        if not isinstance(store.clock, SystemClock):
            now = store.clock.now()
        mono = now if isinstance(store.clock, SystemClock) else store.clock.monotonic()
        turn = Turn(wire, store.names, store.engine.lines, now, mono)
        answer = await run(turn)
        await turn.finish()
        [left] = await wire.fetch(_LEAVE, *planner[::2])
        self.number = left[0]
        if self._ends:
            for kind, queues in turn.news.items():
                self.news.setdefault(kind, set()).update(queues)
        elif (told := store.engine.bell.words(turn.news)) is not None:
            # Heard by everybody, in this process too, once it is committed.
            await wire.fetch(_NOTIFY, store.names.schema, told)
        return answer


async def _confirm(turn: Turn, number: str, timeline: str, url: str) -> None:
    """Commits something behind it: by then a standby has both, or it is said."""
    became = await turn.value(_BECAME, number, timeline)
    if became == "elsewhere":
        raise StoreUnavailable(
            f"{url}: the server is not the one that it was committed on, and whether it was"
            " kept can't be told"
        )
    if became != "committed":
        raise ConfigurationError(
            f"the transaction is {became}: confirm what you have enqueued once you have committed"
        )
    await turn.value(_MARK)


class _Ours(PostgresJoined):
    """The same on a connection of the store's own, which lives in the store's own loop."""

    async def _do(
        self,
        run: Callable[[Turn], Awaitable[T]],
        lines: set[tuple[str, str | None]] | None = None,
    ) -> T:
        return await self._store.engine.elsewhere(super()._do(run, lines))

    def remember_now(self, claim: Claim, step: Step) -> bool:
        """``remember``, blocking: the other loop goes on meanwhile."""
        work = super()._do(partial(remember, claim=claim, step=step))
        return self._store.engine.blocking(work)


class PostgresTransaction:
    """``Transaction``: on a connection of ours, or of the caller's."""

    def __init__(self, store: Joinable, wire: Wire, link: Link | None) -> None:
        self._store = store
        self._wire = wire
        self._link = link
        self._over = False
        self._turn = asyncio.Lock()
        kind = PostgresJoined if link is None else _Ours
        self.joined = self._view = kind(store, wire, ends=True)
        if wire.plain:
            self.joined = _InThread(self._view, self._run)

    async def begin(self, within: float) -> None:
        """Nothing in it may take longer than ``within`` seconds, in the server's eyes either."""
        most = f"{max(1, int(within * 1000))}ms"

        async def run() -> None:
            await self._wire.begin()
            await self._wire.fetch(_CAPPED, most, most)

        await self._run(run)

    async def execute(self, text: Any, values: Any = ()) -> list[Any]:
        async def run() -> list[Any]:
            rows = await self._wire.say(text, values)
            if not self._wire.in_transaction():
                raise ConfigurationError(
                    "the statement has ended the transaction, which is ours to end"
                )
            return rows

        return await self._run(run)

    async def commit(self) -> None:
        """Durable when this returns; cancelling it doesn't stop it."""
        commit = asyncio.ensure_future(self._commit())
        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError:
            await asyncio.wait((commit,))
            commit.result()
            raise

    async def _commit(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._run(self._wire.commit)
        except Exception as error:
            # The answer may be all that was lost, and there is one who knows.
            if not await self._became():
                if self._link is not None and is_lost(error):
                    raise mapped(error, self._store.url) from error
                raise
        self._over = True
        self._store.engine.tell(self._view.news)

    async def _became(self) -> bool:
        """Whether it was committed. Raises ``StoreUnavailable`` if that can't be found out."""
        engine, number = self._store.engine, self._view.number
        if number is None:
            return False
        deadline = time.monotonic() + PATIENCE
        why: Exception | None = None
        while time.monotonic() <= deadline:
            try:
                found = await engine.elsewhere(engine.ask(_BECAME, number, self._view.timeline))
            except Exception as error:
                why = error
                if isinstance(error, StoreClosed):
                    break
            else:
                if found == "elsewhere":
                    break  # a standby was promoted, and its numbers are others
                if found != "in progress":
                    return bool(found == "committed")
            await asyncio.sleep(PAUSE)
        raise StoreUnavailable(
            f"{self._store.url}: the connection broke at the commit, and whether it was done can't"
            " be found out"
        ) from why

    async def close(self) -> None:
        """Undo what was not committed, and let go."""
        if self._link is not None:
            async with self._turn:
                await self._store.engine.elsewhere(self._store.engine.give(self._link))
        elif not self._over:
            # It can only fail where the connection is gone, and the server has undone it then.
            with contextlib.suppress(Exception):
                await self._run(self._wire.rollback)

    async def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """In the loop of the connection, or in a thread if it blocks; one after the other."""
        async with self._turn:
            if self._link is not None:
                return await self._store.engine.elsewhere(work())
            if not self._wire.plain:
                return await work()
            busy = asyncio.ensure_future(asyncio.to_thread(lambda: at_once(work())))
            try:
                # The thread can't be cancelled, and is not to be left alone with the connection.
                return await asyncio.shield(busy)
            except asyncio.CancelledError:
                await asyncio.wait((busy,))
                busy.exception()
                raise


class _InThread(PostgresJoined):
    """On a connection that blocks, inside a task that must not."""

    def __init__(self, view: PostgresJoined, run: Callable[..., Awaitable[Any]]) -> None:
        self._view = view
        self._run = run
        self.plain = False

    async def _do(
        self,
        run: Callable[[Turn], Awaitable[T]],
        lines: set[tuple[str, str | None]] | None = None,
    ) -> T:
        found: T = await self._run(partial(self._view._do, run, lines))
        return found

    def remember_now(self, claim: Claim, step: Step) -> bool:
        return self._view.remember_now(claim, step)

    async def confirm(self) -> None:
        op = self._view._confirming()
        if op is not None:
            await self._view._store._do(op)


class Joinable(Surface):
    """The ``Joining`` part of the store."""

    names: Names
    place: str
    """Which database of which server this is."""

    if TYPE_CHECKING:

        def _running(self) -> Engine: ...

    @property
    def engine(self) -> Engine:
        return self._running()

    def joined(self, connection: Any) -> PostgresJoined:
        self._running()
        return PostgresJoined(self, wire_of(connection))

    async def begin(self, within: float, connection: Any = None) -> PostgresTransaction:
        engine = self._running()
        for last in (False, True):
            if connection is not None:
                transaction = PostgresTransaction(self, wire_of(connection), None)
            else:
                link, ours = await engine.lend()
                transaction = PostgresTransaction(self, AsyncpgWire(ours), link)
            try:
                await transaction.begin(within)
            except BaseException as error:
                if connection is None:
                    with contextlib.suppress(Exception):
                        await transaction.close()
                    # One that was kept, and has died since.
                    if is_lost(error) and not last:
                        continue
                if is_ours(error):
                    raise mapped(error, self.url) from error
                raise
            return transaction
        raise AssertionError("the last try has an end")
