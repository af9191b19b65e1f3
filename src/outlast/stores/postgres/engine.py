"""The store's own thread and event loop: it writes in groups, reads, rings and listens.

The driver's connections live in this one loop from beginning to end. A caller that is cancelled
stops waiting, no more: nothing on a connection is ever cut off in the middle.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from outlast.errors import EnqueueUncertain, OutlastError, StoreClosed
from outlast.stores.news import ENDED, EVERYWHERE
from outlast.stores.postgres.bell import Bell
from outlast.stores.postgres.faults import Careful, Dropped, Refused, is_ours, mapped
from outlast.stores.postgres.group import Group
from outlast.stores.postgres.link import CLAIMING, SETTLING, Link
from outlast.stores.postgres.op import Op, deliver
from outlast.stores.postgres.patient import Patient
from outlast.stores.postgres.servertime import ServerTime
from outlast.stores.postgres.turn import Lines
from outlast.stores.thread_loop import ThreadLoop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from asyncpg import Connection

    from outlast.clock import Clock
    from outlast.stores.news import News
    from outlast.stores.postgres.address import Address
    from outlast.stores.postgres.schema import Names

__all__ = ["Engine"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

SPARE = 4
"""Connections kept for the next transactions of users."""
GROUP = 2000
"""Rows in one transaction, roughly: beyond that the others have waited long enough."""
LAST_WORDS = 5.0
"""Seconds that calls get to end which are under way when the store is closed."""
COMPACT_EVERY = 500
"""Transactions after which this process sums up the log of counts, should no worker do it."""
_BOUND = "INSERT INTO @bounded (queue) SELECT pg_catalog.unnest($1::text[]) ON CONFLICT DO NOTHING"


class Engine:
    """Two connections: one for what is promised, one for claims, reads and news."""

    def __init__(
        self,
        address: Address,
        names: Names,
        clock: Clock,
        news: News,
        me: str,
        commit: str,
        replicated: bool,
        check: Callable[[Connection], Awaitable[None]],
    ) -> None:
        self._address = address
        self._names = names
        self._news = news
        self._commit = commit
        self._settling = SETTLING.format(commit=commit)
        self._waiting: deque[Op[Any]] = deque()
        self._bounded: set[str] = set()
        self._turns = 0
        self._closing = False
        self._gate = threading.RLock()
        """What is handed over has been when the closing begins, or never is."""
        self._asleep = False
        self._thread = ThreadLoop("outlast-postgres")
        self._loop = self._thread.loop
        self.lines = lines = Lines()
        self._spare: list[Link] = []
        self._lent: set[Link] = set()
        time = ServerTime(clock)
        self._make = partial(Link, address, names, lines, time, "lent")
        self._check = check
        self._writing = Link(address, names, lines, time, "writing")
        self._reading = Link(address, names, lines, time, "reading")
        self.bell = Bell(address, names.schema, me, self._reading, news)
        self._writing.check = check
        self._writing.replicated = replicated
        listen = self.bell._connected
        self._reading.check = _both(check, listen)
        self._work = False
        """Whether there is something to write, or to tell."""
        self._pause: asyncio.Future[None] | None = None
        self._writer: asyncio.Task[None]
        self._reads: set[asyncio.Task[None]] = set()
        self._parked: set[Patient] = set()

    # -- for callers, in any thread

    def start(self) -> None:
        """Start the thread, and connect. Raises what keeps us from it; then it is closed again."""
        self._thread.start()
        try:
            self._thread.run(self._begin_work())
        except BaseException:
            self.close()
            raise

    def write(self, op: Op[Any]) -> None:
        """Have a call done in the order of its coming, in one transaction with others."""
        with self._gate:
            self._check_open()
            self._waiting.append(op)
            if self._asleep:
                self._asleep = False
                try:
                    self._thread.soon(self._set_to_work)
                except BaseException:  # a signal's handler raised: the next one is to ring
                    self._asleep = True
                    raise

    def read(self, op: Op[Any]) -> None:
        """Have a call done on the other connection, in the order of its coming."""
        with self._gate:
            self._check_open()
            self._thread.soon(self._begin, op)

    def park(self, op: Op[Any], queues: Sequence[str], idle: Callable[[], bool]) -> Patient:
        """Have a call done as soon as it is not ``idle``, or there is news, or it is rung."""
        with self._gate:
            self._check_open()
            patient = Patient(op, queues, self._thread, self._unpark)
            self._thread.soon(self._park, patient, idle)
            return patient

    def listen(self) -> None:
        """Somebody is about to wait for news of others."""
        with self._gate:
            if not (self._closing or self.bell.listens):
                self._thread.soon(self.bell.listen)

    def tell(self, news: dict[int, set[str]]) -> None:
        """Something was committed on another connection than ours."""
        with self._gate:
            if not self._closing:
                self._thread.soon(self._tell, news)

    async def elsewhere(self, work: Coroutine[Any, Any, T]) -> T:
        """Have it done in the store's own loop; cancelled, it is cancelled there."""
        done = self._start_elsewhere(work)
        try:
            return await asyncio.wrap_future(done)
        except asyncio.CancelledError:
            # Not the caller was cancelled, but what he waits for, by the closing.
            if done.cancelled() and not _is_cancelled():
                raise StoreClosed("the store was closed meanwhile") from None
            raise

    def blocking(self, work: Coroutine[Any, Any, T]) -> T:
        """The same for callers without an event loop; blocks."""
        try:
            return self._start_elsewhere(work).result()
        except concurrent.futures.CancelledError:
            raise StoreClosed("the store was closed meanwhile") from None

    async def lend(self) -> tuple[Link, Connection]:
        """``take``, for a caller in another loop. Cancelled, what comes all the same goes back."""
        taking = self._start_elsewhere(self.take())
        try:
            return await asyncio.shield(asyncio.wrap_future(taking))
        except asyncio.CancelledError:
            taking.add_done_callback(self._unlend)
            if taking.cancelled() and not _is_cancelled():
                raise StoreClosed("the store was closed meanwhile") from None
            raise

    def close(self) -> None:
        """Finish what was handed over, then let go of everything. Blocks."""
        with self._gate:
            if self._closing:
                return
            self._closing = True
        self._thread.run(self._finish())
        self._thread.end()

    def _check_open(self) -> None:
        if self._closing:
            raise StoreClosed("the store is closed")

    def _start_elsewhere(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        with self._gate:
            if self._closing:
                work.close()
            self._check_open()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _unlend(self, taking: concurrent.futures.Future[tuple[Link, Connection]]) -> None:
        if not taking.cancelled() and taking.exception() is None:
            link, _ = taking.result()
            # Once the store is closed, whatever was lent is gone.
            with contextlib.suppress(StoreClosed):
                self._start_elsewhere(self.give(link))

    # -- the thread

    async def _begin_work(self) -> None:
        self._writer = self._loop.create_task(self._write())
        await self._writing.plain("SELECT 1")

    async def _finish(self) -> None:
        for patient in list(self._parked):
            self._unpark(patient)
        self._set_to_work()
        await self._writer
        while self._reads:
            await asyncio.wait(list(self._reads))
        await self.bell.close()
        # Transactions of users that are still open are undone, and who waits for one is told.
        for link in self._lent:
            link.abort()
        if rest := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in rest:
                task.cancel()
            await asyncio.wait(rest, timeout=LAST_WORDS)
        while self._spare:
            await self._spare.pop().close()
        await self._writing.close()
        await self._reading.close()

    # -- connections for others, in the store's own loop

    async def take(self) -> tuple[Link, Connection]:
        """One more connection, for one user alone until ``give``."""
        link = self._spare.pop() if self._spare else self._make()
        link.check = self._check
        connection = await link.hold()
        self._lent.add(link)
        return link, connection

    async def give(self, link: Link) -> None:
        """It comes back; a few are kept for the next ones."""
        self._lent.discard(link)
        await link.let_go()
        if self._closing or len(self._spare) >= SPARE:
            await link.close()
        else:
            self._spare.append(link)

    async def make_lines(self, wanted: set[tuple[str, str | None]]) -> None:
        """Have these lines exist, by a commit of our own: others' transactions may be undone."""
        link, connection = await self.take()
        try:
            await self.lines.make(connection, self._names, wanted)
        finally:
            await self.give(link)

    async def ask(self, text: str, *values: Any) -> Any:
        """One value, by a connection that nobody else uses."""
        link, connection = await self.take()
        try:
            return await connection.fetchval(self._names[text], *values)
        finally:
            await self.give(link)

    def _begin(self, op: Op[Any]) -> None:
        task = self._loop.create_task(self._alone(op, self._reading, CLAIMING))
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)

    def _park(self, patient: Patient, idle: Callable[[], bool]) -> None:
        self._news.join(patient)
        if self._closing or not idle():
            self._go_on(patient)
        else:
            self._parked.add(patient)

    def _unpark(self, patient: Patient) -> None:
        if patient in self._parked:
            self._parked.remove(patient)
            self._go_on(patient)

    def _go_on(self, patient: Patient) -> None:
        self._news.drop(patient)
        if self._closing:
            patient.op.error = StoreClosed("the store is closed")
        if self._closing or patient.op.unheard:
            deliver([patient.op])
        else:
            self._begin(patient.op)

    async def _write(self) -> None:
        while True:
            if not self._waiting:
                if self._closing:
                    break
                self._work = False
                self._asleep = True
                if not self._waiting:
                    await self._until_work()
                self._asleep = False
            while self._waiting:
                await self._serve(self._take())
                if self.bell.due_in() == 0.0:
                    await self.bell.ring(self._writing)
        if self.bell.due_in() is not None and self._writing.connected:
            await self.bell.ring(self._writing)

    async def _until_work(self) -> None:
        while not self._work:
            due = self.bell.due_in()
            self._pause = pause = self._loop.create_future()
            alarm = None if due is None else self._loop.call_later(due, self._go_on_writing)
            await pause
            if alarm is not None:
                alarm.cancel()
            if not self._work:
                await self.bell.ring(self._writing)

    def _set_to_work(self) -> None:
        self._work = True
        self._go_on_writing()

    def _go_on_writing(self) -> None:
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)

    def _take(self) -> list[Op[Any]]:
        """What goes into the next transaction: adds and settlements together, others alone."""
        first = self._waiting.popleft()
        group, size = [first], len(first.jobs) + len(first.verdicts)
        while first.work is None and self._waiting and size < GROUP:
            op = self._waiting[0]
            if op.work is not None:
                break
            group.append(self._waiting.popleft())
            size += len(op.jobs) + len(op.verdicts)
        return group

    async def _serve(self, group: list[Op[Any]]) -> None:
        if group[0].work is not None:
            if group[0].after_reads and self._reads:
                await asyncio.wait(list(self._reads))
            begin = self._settling if group[0].promised else CLAIMING
            await self._alone(group[0], self._writing, begin)
            return
        careful = any(op.capacity is not None for op in group)
        refused: list[Op[Any]] = []
        while group:
            try:
                await self._together(group, careful)
                break
            except Careful:
                careful = True
            except Refused as no:
                no.op.error = no.error
                refused.append(no.op)
                group = [op for op in group if op is not no.op]
                careful = True
            except Exception as error:
                if len(group) > 1 and not isinstance(error, Dropped | OutlastError):
                    # One of them spoils it for all: find it.
                    for op in group:
                        await self._serve([op])
                    group = []
                else:
                    self._fail(group, error)
                break
        deliver([*group, *refused])

    def _fail(self, group: Sequence[Op[Any]], error: Exception) -> None:
        ours = mapped(error, self._address.shown) if is_ours(error) else error
        for op in group:
            if op.jobs and isinstance(error, Dropped) and error.committing:
                why = f"{self._address.shown}: the connection broke before the answer came"
                if isinstance(error.cause, OutlastError):
                    why = str(error.cause)
                op.error = EnqueueUncertain(
                    f"{why}; adding the same jobs again is safe", [job.id for job in op.jobs]
                )
            else:
                op.error = ours
            if ours is not error:
                op.error.__cause__ = error

    async def _together(self, group: Sequence[Op[Any]], careful: bool) -> None:
        together = Group(group, careful)
        bounds: set[str] = set()
        if careful:
            bounds = {job.queue for op in group if op.capacity is not None for job in op.jobs}
        if bounds - self._bounded:
            # Before anybody can be refused: those who claim are to tell that there is room.
            await self._writing.plain(_BOUND, sorted(bounds))
            self._bounded |= bounds
        self._turns += 1
        together.compacts = self._turns % COMPACT_EVERY == 0
        swift, taken = None, None
        if together.is_swift:
            taken = self.bell.take(together.queue)
            call = () if taken is None else self.bell.call(taken)
            swift = partial(together.add, commit=self._commit, call=call)
        try:
            _, news = await self._writing.run(
                together.write, self._settling, together.lines, swift=swift
            )
        finally:
            if taken is not None and not together.told:
                self.bell.give_back(taken)
        together.answer()
        self._tell(news, told=together.told)

    async def _alone(self, op: Op[Any], link: Link, begin: str) -> None:
        assert op.work is not None
        try:
            op.answer, news = await link.run(op.work, begin, fenced=op.fenced, swift=op.swift)
            self._tell(news)
            if op.answer and op.revert is not None and op.unheard:
                # Here and now, so that whoever claims next finds it.
                _, news = await link.run(op.revert(op.answer), begin)
                op.answer = []
                self._tell(news)
        except Exception as error:
            self._fail([op], error)
        deliver([op])

    def _tell(self, news: dict[int, set[str]], told: bool = False) -> None:
        """``told``: other processes have heard of it."""
        for kind, queues in news.items():
            if queues:
                self._news.heard(kind, queues)
            elif kind == ENDED:
                self._news.wake(ENDED, (EVERYWHERE,))
        if not told:
            self.bell.tell(news)
        if self.bell.due_in() is not None:
            self._set_to_work()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _both(
    first: Callable[[Connection], Awaitable[None]], second: Callable[[Connection], Awaitable[None]]
) -> Callable[[Connection], Awaitable[None]]:
    async def run(connection: Connection) -> None:
        await first(connection)
        await second(connection)

    return run
