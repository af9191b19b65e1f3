"""The store's own thread and event loop: one connection that all calls share, in their order.

Calls are sent without waiting for the answers of those before, and the server syncs what it got in
one moment together. Adds and settlements that wait at the same time are one call. A caller that is
cancelled stops waiting, no more: no answer can ever reach the wrong one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import hiredis
from redis.exceptions import MovedError, RedisError, ResponseError

from outlast.errors import EnqueueUncertain, OutlastError, StoreClosed, StoreUnavailable
from outlast.stores.redis.address import ANSWERS_WITHIN, dial, hang_up, send
from outlast.stores.redis.bell import Bell
from outlast.stores.redis.faults import NOT_DONE, mapped
from outlast.stores.redis.op import MORE, add_args, added_from
from outlast.stores.redis.safe import Safe, second
from outlast.stores.redis.scripts import digest
from outlast.stores.redis.verdicts import lost_from, settle_args
from outlast.stores.replies import deliver
from outlast.stores.thread_loop import ThreadLoop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from redis.asyncio.connection import AbstractConnection

    from outlast.stores.news import News
    from outlast.stores.redis.address import Address
    from outlast.stores.redis.op import Arg, Op
    from outlast.stores.redis.safe import Wait

__all__ = ["Engine"]

_log = logging.getLogger(__name__)

GROUP = 1000
"""Jobs and verdicts in one call, roughly: beyond that others have waited long enough."""
WINDOW = 64
"""Calls under way at once; of those that write what was promised, ``WRITES``."""
WRITES = 2
PATIENCE = 5.0
"""Seconds that a call waits for a server that is away."""
SOON_FORGOTTEN = 60.0
"""Seconds, more than may pass until a call is made again."""
TRIES = 5
"""Connections that may break under a call that has waited so long, one after the other."""
SILENCE = 20.0
"""Seconds after which a server that owes an answer is taken for lost."""
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 1.0


class Engine:
    """Two connections: one for all calls, one that hears news; a third where it has to wait."""

    def __init__(
        self,
        address: Address,
        prefix: str,
        news: News,
        times: Callable[[], tuple[Arg, Arg]],
        check: Callable[[AbstractConnection], Awaitable[Wait | None]],
    ) -> None:
        self._address = address
        self._prefix = prefix
        self._times = times
        self._check = check
        self._where: tuple[str, int] | None = None
        self._writes: deque[Op[Any]] = deque()
        self._others: deque[Op[Any]] = deque()
        self._under_way: deque[list[Op[Any]]] = deque()
        self._writing = 0
        self._heard = 0.0
        self._down_since = 0.0
        self._answered = False
        self._closing = False
        self._over = False
        self._asleep = False
        self._thread = ThreadLoop("outlast-redis")
        self._loop = self._thread.loop
        self._work = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._wait: Wait | None = None
        self._second: AbstractConnection | None = None
        self._safe = Safe(prefix, self._unknown, self._rouse)
        self.bell = Bell(address, prefix, news)

    # -- for callers, in any thread

    def start(self) -> None:
        """Start the thread, and connect. Raises what keeps us from it; then it is closed again."""
        self._thread.start()
        try:
            self._thread.run(self._begin())
        except BaseException:
            self._closing = True
            self._thread.end()
            raise

    def hand_over(self, op: Op[Any]) -> None:
        """Have a call made; it is answered whatever becomes of the server."""
        if self._closing:
            raise StoreClosed("the store is closed")
        op.since = self._loop.time()
        (self._writes if op.writes else self._others).append(op)
        if self._over:  # since it was looked at
            self._refuse()
        elif self._asleep:
            self._asleep = False
            try:
                self._thread.soon(self._work.set)
            except BaseException:  # a signal's handler raised: the next one is to ring
                self._asleep = True
                raise

    def listen(self) -> None:
        """Somebody may be about to wait for news."""
        if not self._closing and not self.bell.listens:
            self._thread.soon(self.bell.listen)

    def close(self) -> None:
        """Finish what was handed over, then let go of everything. Blocks."""
        if self._closing:
            return
        self._closing = True
        self._thread.run(self._finish())
        self._thread.end()

    # -- the thread

    async def _begin(self) -> None:
        connection = await self._connect()
        self._life = self._loop.create_task(self._live(connection))

    async def _finish(self) -> None:
        self._work.set()
        if self._life is not None:
            await self._life
        self._over = True
        self._refuse()
        await self.bell.close()

    def _refuse(self) -> None:
        """In any thread: whatever was handed over while we closed is not going to be done."""
        for waiting in (self._writes, self._others):
            with contextlib.suppress(IndexError):
                while True:
                    op = waiting.popleft()
                    op.error = StoreClosed("the store is closed")
                    deliver([op])

    async def _connect(self) -> AbstractConnection:
        """In time, or not at all."""
        try:
            async with asyncio.timeout(ANSWERS_WITHIN):
                return await self._follow()
        except TimeoutError as error:
            raise mapped(error, self._address.shown) from error

    async def _follow(self) -> AbstractConnection:
        """To whoever has the namespace: a node of a cluster may name another."""
        for _ in range(5):
            # Whoever doesn't answer, or not as we wish, is not asked a second time.
            where, self._where = self._where, None
            connection = await dial(self._address, where)
            try:
                self._wait = await self._check(connection)
                if self._wait is not None:
                    self._second = await second(self._address, where, self._wait)
            except MovedError as error:
                await hang_up(connection)
                self._where = (error.host, error.port)
            except BaseException as error:
                await hang_up(connection)
                if isinstance(error, RedisError | OSError):
                    raise mapped(error, self._address.shown) from error
                raise
            else:
                self._where = where
                return connection
        raise StoreUnavailable(f"{self._address.shown}: the cluster sends us round in a circle")

    async def _live(self, first: AbstractConnection) -> None:
        connection: AbstractConnection | None = first
        pause = FIRST_PAUSE
        while connection is not None:
            began = self._heard = self._loop.time()
            self._answered = False
            work = [self._read(connection), self._send(connection)]
            if self._wait is not None and self._second is not None:
                work.append(self._safe.watch(self._second, self._wait))
            tasks = [self._loop.create_task(each) for each in work]
            why = await self._until_lost(tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for each in (connection, self._second):
                if each is not None:
                    await hang_up(each)
            self._second = None
            self._take_back()
            if self._answered or self._loop.time() - began > PATIENCE:
                self._down_since, why, pause = self._loop.time(), None, FIRST_PAUSE
            connection = None
            if not self._closing or self._writes or self._others:
                connection, pause = await self._reach(why, pause)

    async def _until_lost(self, tasks: Sequence[asyncio.Task[None]]) -> BaseException | None:
        """What ended one of them."""
        while True:
            done, _ = await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            why = None
            for task in done:
                error = task.exception()
                if error is not None and not isinstance(error, RedisError | OSError):
                    _log.error("%s: a call broke the connection", self._address, exc_info=error)
                why = error or why
            if done or (self._under_way and self._loop.time() - self._heard > SILENCE):
                return why

    async def _reach(
        self, why: BaseException | None, pause: float
    ) -> tuple[AbstractConnection | None, float]:
        """Try again and again; calls that have waited too long are told. None when all is over.

        ``why`` is what has ended a connection on which nothing was answered: so may the next end.
        """
        while True:
            try:
                if why is not None:
                    raise mapped(why, self._address.shown)
                return await self._connect(), pause
            except OutlastError as error:
                self._give_up(error)
            except Exception as error:
                # Of ours or the driver's: it must not end the only task that could answer anybody.
                _log.error("%s: can't connect", self._address, exc_info=error)
                self._give_up(
                    StoreUnavailable(f"can't connect to {self._address.shown}: {error!r}")
                )
            if self._closing and not (self._writes or self._others):
                return None, pause
            why = None
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    # -- sending

    async def _send(self, connection: AbstractConnection) -> None:
        while True:
            calls = self._take()
            if calls:
                if not self._under_way:
                    self._heard = self._loop.time()
                data = []
                for ops, packed in self._packed_each(calls):
                    data.append(packed)
                    self._under_way.append(ops)
                    self._writing += ops[0].writes
                if data:
                    await send(connection, data)
                continue
            if self._closing and not (
                self._under_way or self._writes or self._others or self._safe
            ):
                return
            self._work.clear()
            self._asleep = True
            if not self._may_take():
                await self._work.wait()
            self._asleep = False

    def _may_take(self) -> bool:
        room = len(self._under_way) < WINDOW
        return room and bool(self._others or (self._writes and self._writing < WRITES))

    def _take(self) -> list[list[Op[Any]]]:
        """The calls to be sent now, each with those that it answers."""
        calls: list[list[Op[Any]]] = []
        writing = self._writing
        while self._others and len(self._under_way) + len(calls) < WINDOW:
            calls.append([self._others.popleft()])
        while self._writes and writing < WRITES and len(self._under_way) + len(calls) < WINDOW:
            calls.append(self._take_writes())
            writing += 1
        return calls

    def _take_writes(self) -> list[Op[Any]]:
        first = self._writes.popleft()
        ops, size = [first], len(first.jobs) + len(first.verdicts)
        while self._writes and first.mergeable and size < GROUP:
            op = self._writes[0]
            if not op.mergeable or op.script != first.script or op.again != first.again:
                break
            ops.append(self._writes.popleft())
            size += len(op.jobs) + len(op.verdicts)
        return ops

    def _packed_each(self, calls: Sequence[list[Op[Any]]]) -> Iterator[tuple[list[Op[Any]], bytes]]:
        """Whoever asks for what can't be written down is told, and spoils nobody else's call."""
        for ops in calls:
            try:
                packed = self._packed(ops)
            except Exception as error:
                if len(ops) > 1:
                    yield from self._packed_each([[op] for op in ops])
                else:
                    ops[0].error = error
                    deliver(ops)
            else:
                yield ops, packed

    def _packed(self, ops: Sequence[Op[Any]]) -> bytes:
        first = ops[0]
        args: Sequence[Arg]
        if first.jobs:
            jobs = [job for op in ops for job in op.jobs]
            args = add_args(jobs, first.capacity, first.again)
        elif first.verdicts:
            args = settle_args([each for op in ops for each in op.verdicts], first.again)
        else:
            args = first.args(first.again) if callable(first.args) else first.args
        command: Any = ("EVALSHA", digest(first.script), 1, self._prefix, *self._times(), *args)
        packed: bytes = hiredis.pack_command(command)
        return packed

    # -- answers

    async def _read(self, connection: AbstractConnection) -> None:
        while True:
            raw: Any
            try:
                raw = await connection.read_response(disable_decoding=True)
            except ResponseError as error:
                raw = error
            ops = self._under_way.popleft()
            self._writing -= ops[0].writes
            self._heard = self._loop.time()
            if isinstance(raw, NOT_DONE):
                self._put_back(ops)
                self._where = (raw.host, raw.port) if isinstance(raw, MovedError) else None
                raise raw
            self._answered = True
            self._answer(ops, raw)
            if ops[0].answer is MORE:
                self._put_back(ops)
            elif self._wait is not None and ops[0].promises and ops[0].error is None:
                self._safe.hold(ops)
            else:
                deliver(ops)
            self._rouse()

    def _rouse(self) -> None:
        if self._asleep:
            self._asleep = False
            self._work.set()

    def _answer(self, ops: Sequence[Op[Any]], raw: Any) -> None:
        try:
            if isinstance(raw, ResponseError):
                error = mapped(raw, self._address.shown)
                error.__cause__ = raw
                raise error
            first = ops[0]
            if first.jobs:
                self._answer_adds(ops, raw)
            elif first.verdicts:
                self._answer_settles(ops, raw)
            else:
                first.answer = first.parse(raw) if first.parse is not None else None
        except Exception as error:
            for op in ops:
                op.error = error

    def _answer_adds(self, ops: Sequence[Op[Any]], raw: Any) -> None:
        jobs = [job for op in ops for job in op.jobs]
        added = added_from(raw, jobs, again=ops[0].again)
        for op in ops:
            op.answer, added = added[: len(op.jobs)], added[len(op.jobs) :]

    def _answer_settles(self, ops: Sequence[Op[Any]], raw: Sequence[int]) -> None:
        lost, before = set(raw), 0
        for op in ops:
            many = len(op.verdicts)
            mine = [n for n in range(1, many + 1) if before + n in lost]
            op.answer = lost_from(mine, op.verdicts)
            before += many

    # -- when the connection breaks

    def _take_back(self) -> None:
        """What was under way may have been done. It is done again where that changes nothing."""
        self._under_way.extendleft(reversed(self._safe.take_back()))
        while self._under_way:
            ops = self._under_way.pop()
            kept: list[Op[Any]] = []
            for op in ops:
                op.again = True
                op.broken += 1
                if _is_risky(op) or self._is_hopeless(op):
                    op.error = self._unknown(op, "the connection broke before the answer came")
                else:
                    kept.append(op)
            deliver([op for op in ops if op.error is not None])
            self._put_back(kept)
        self._writing = 0

    def _is_hopeless(self, op: Op[Any]) -> bool:
        """It may be what breaks the connections: one that is too large for the server does."""
        return op.broken >= TRIES and op.since < self._loop.time() - PATIENCE

    def _put_back(self, ops: Sequence[Op[Any]]) -> None:
        for op in reversed(ops):
            (self._writes if op.writes else self._others).appendleft(op)

    def _give_up(self, error: OutlastError) -> None:
        """Tell the calls that have waited long enough."""
        late = self._loop.time() - PATIENCE
        for waiting in (self._writes, self._others):
            told = [op for op in waiting if max(op.since, self._down_since) < late]
            if not told:
                continue
            kept = [op for op in waiting if max(op.since, self._down_since) >= late]
            waiting.clear()
            waiting.extend(kept)
            for op in told:
                op.error = self._unknown(op, str(error)) if op.again else _copy(error)
            deliver(told)

    def _unknown(self, op: Op[Any], why: str) -> OutlastError:
        if op.jobs:
            return EnqueueUncertain(
                f"{self._address.shown}: the jobs may or may not be stored: {why}; adding the same"
                " jobs again is safe",
                [job.id for job in op.jobs],
            )
        return StoreUnavailable(f"{self._address.shown}: this may or may not be done: {why}")


def _is_risky(op: Op[Any]) -> bool:
    """Whether doing it twice is not the same as once.

    A job that isn't kept for long may have been added, done and forgotten meanwhile.
    """
    return not op.repeatable or any(
        job.keep is not None and job.keep < SOON_FORGOTTEN for job in op.jobs
    )


def _copy(error: OutlastError) -> OutlastError:
    """One for each caller, since each adds its own traceback."""
    return type(error)(*error.args)
