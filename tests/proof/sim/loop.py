"""An event loop whose time is virtual and whose order is drawn: one seed, one history."""

from __future__ import annotations

import asyncio
import random
from contextvars import Context, ContextVar
from hashlib import blake2b
from heapq import heapify, heappop
from struct import pack
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple, Unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

__all__ = ["OWNER", "Owner", "SimFuture", "SimLoop", "SimTask", "TooLong", "inside"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
START = 1000.0


class Owner:
    """A process of the simulated world: whatever runs in a context with it is its doing.

    A frozen one's handles wait until it is thawed; a dead one's are dropped, so that nothing of it
    is cleaned up, not even by ``finally``.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.frozen = False
        self.dead = False
        self.stash: list[asyncio.Handle] = []


OWNER: ContextVar[Owner | None] = ContextVar("owner", default=None)


class TooLong(Exception):
    """The world took more steps than it was given, or nothing in it can ever happen again."""


class SimFuture(asyncio.Future[Any]):
    """A future with a number, so that sets of them have the same order in every run."""

    def __init__(self, *, loop: SimLoop) -> None:
        self.serial = loop.next_serial()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.serial


class SimTask(asyncio.Task[Any]):
    """The same for tasks; also knows whose it is."""

    def __init__(
        self, coro: Any, *, loop: SimLoop, name: str | None, context: Context | None
    ) -> None:
        self.serial = loop.next_serial()
        self.owner = OWNER.get() if context is None else context.get(OWNER)
        super().__init__(coro, loop=loop, name=name or f"task-{self.serial}", context=context)

    def __hash__(self) -> int:
        return self.serial


class SimLoop(asyncio.BaseEventLoop):
    """Runs one handle at a time, drawn from all that are ready; then time jumps to the next timer.

    ``digest`` stands for every step so far. There are no threads, executors or sockets.
    """

    def __init__(self, seed: int, limit: int = 5_000_000) -> None:
        super().__init__()
        self.set_debug(False)
        self.errors: list[str] = []
        """What nobody caught."""
        self.steps = 0
        self.limit = limit
        self.outside = Context()
        """Where whatever belongs to no process runs."""
        self._dice = random.Random(seed)
        self._now = START
        self._serial = 0
        self._hash = blake2b(digest_size=16)
        self._over = False
        self._left: list[SimTask] = []
        self._timer_cancelled_count = 0
        self._lot: list[Any] = []
        self._timers: list[Any] = []
        # The lists that the base class fills in call_soon and call_at.
        vars(self).update(_ready=self._lot, _scheduled=self._timers)
        self.set_exception_handler(self._note_error)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def time(self) -> float:
        return self._now

    def create_future(self) -> SimFuture:
        return SimFuture(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **_: Any,
    ) -> asyncio.Task[T]:
        text = None if name is None else str(name)
        task = SimTask(coro, loop=self, name=text, context=context)
        if self._over:
            self._left.append(task)
        return task

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        raise AssertionError("there are no threads in a simulation")

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        if self._over:
            return
        woken = self.create_future()
        timer = self.call_later(max(0.0, seconds), _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._over:
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon(callback, *args, context=context)

    def thaw(self, owner: Owner) -> None:
        """Let a frozen process go on where it stood."""
        owner.frozen = False
        self._lot.extend(owner.stash)
        owner.stash.clear()

    def abandon(self, owner: Owner) -> None:
        """Keep what a dead process was doing until the end: collecting it would run its code."""
        owner.stash.clear()
        self._left += [
            task
            for task in asyncio.all_tasks(self)
            if isinstance(task, SimTask) and task.owner is owner
        ]

    def bury(self) -> None:
        """End the world: what still stands there is unwound without any effect.

        As the running loop, or what a ``finally`` starts would land on another loop, one that never
        runs, and be found there as never awaited in the middle of a later test.
        """
        self._over = True
        self._left += [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)]
        asyncio._set_running_loop(self)
        try:
            while self._left:
                tasks = sorted(set(self._left), key=hash)
                self._left.clear()
                for task in tasks:
                    _unwind(task)
        finally:
            asyncio._set_running_loop(None)
        self._lot.clear()
        self._timers.clear()
        self.close()

    def _run_once(self) -> None:
        self._ring_timers()
        lot = self._lot
        if not lot:
            return
        at = self._dice.randrange(len(lot)) if len(lot) > 1 else 0
        lot[at], lot[-1] = lot[-1], lot[at]
        handle = lot.pop()
        if handle._cancelled:
            return
        owner = handle._context.get(OWNER)
        if owner is not None and (owner.dead or owner.frozen):
            if not owner.dead:
                owner.stash.append(handle)
            return
        self.steps += 1
        if self.steps > self.limit:
            raise TooLong(f"more than {self.limit} steps")
        doer = getattr(handle._callback, "__self__", None)
        serial = doer.serial if isinstance(doer, SimTask | SimFuture) else 0
        pid = 0 if owner is None else owner.pid
        self._hash.update(pack("<dIIq", self._now, at, pid, serial))
        handle._run()

    def _ring_timers(self) -> None:
        """Move those that are due among what is ready; time passes only if there is nothing."""
        lot, timers = self._lot, self._timers
        if not lot:
            while timers and timers[0]._cancelled:
                self._forget(heappop(timers))
            if not timers:
                raise TooLong("nothing can ever happen again")
            self._now = max(self._now, timers[0]._when)
        while timers and timers[0]._when <= self._now:
            timer = heappop(timers)
            self._forget(timer)
            if not timer._cancelled:
                lot.append(timer)
        if len(timers) > 200:
            self._sweep()

    def _forget(self, timer: Any) -> None:
        timer._scheduled = False
        if timer._cancelled:
            self._timer_cancelled_count -= 1

    def _sweep(self) -> None:
        """Drop cancelled timers once they are many."""
        if self._timer_cancelled_count * 2 < len(self._timers):
            return
        kept = [timer for timer in self._timers if not timer._cancelled]
        for timer in self._timers:
            timer._scheduled = not timer._cancelled
        self._timers[:] = kept
        heapify(self._timers)
        self._timer_cancelled_count = 0

    def _note_error(self, loop: asyncio.AbstractEventLoop, told: dict[str, Any]) -> None:
        if not self._over:
            doer = told.get("task") or told.get("future") or told.get("handle")
            self.errors.append(f"{told.get('message')}: {told.get('exception')!r} in {doer!r:.500}")


def inside(owner: Owner) -> Context:
    """A context in which everything is that process's doing."""
    context = Context()
    context.run(OWNER.set, owner)
    return context


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _unwind(task: SimTask) -> None:
    """Close a task's coroutine and those it awaits; what its ``finally`` does is of no effect."""
    silent: Any = task
    silent._log_destroy_pending = False
    _close(task.get_coro())


def _close(coroutine: Any) -> None:
    """Close the innermost first, each however often its ``finally`` waits for something else.

    One that awaits while it is closed from outside stays suspended, and is found by the collector.
    """
    for _ in range(50):
        inner = getattr(coroutine, "cr_await", None)
        if hasattr(inner, "cr_await"):
            _close(inner)
        try:
            coroutine.close()
        except RuntimeError:
            continue  # it awaited once more
        except BaseException:
            return  # it raised while it was closed: it is over, and nobody is interested
        return
