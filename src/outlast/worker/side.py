"""The second event loop of a worker, in a thread with a store of its own.

It goes on when the first one is blocked by a task.

Renewal, recovery and the rest live here as plain loops. In a simulation, where there are no
threads, the same loops run in the worker's own event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

from outlast.errors import StoreStopped, StoreUnavailable
from outlast.worker.neighbours import Lookout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from outlast.clock import Clock
    from outlast.store import Store

__all__ = ["Complaint", "Outage", "Side"]

log = logging.getLogger(__name__)

PATIENCE = 2.0
"""Leases after which a store that was given up is not expected to come back by itself."""
RARE = 1.5
"""Seconds between two rounds, at least, where nothing has been done for a while.

An idle processor is slow to wake up, so that waking is most of what an idle worker costs.
"""
STEP = 0.5
"""Rounds that are at least so many seconds apart fall due at whole multiples of it. And so often
somebody looks whether a process has died."""

COMPLAIN_AGAIN = 60.0
"""Seconds until a failure that goes on in the same words is told again."""


class Outage:
    """Knows since when the store can be relied on again.

    Leases that ran out while the store was away, or while this process stood still, or because the
    wall clock jumped, say nothing about their workers: everybody gets one full lease to renew.
    """

    def __init__(self, clock: Clock, lease: float) -> None:
        self._stopped_at: float | None = None
        self._struck_at = clock.monotonic()
        self._clock = clock
        self._lease = lease
        self._quiet_until = clock.monotonic() + lease
        self._seen = clock.monotonic()
        self._offset = clock.now() - clock.monotonic()

    def strike(self, error: StoreUnavailable | None = None) -> None:
        """The store could not be reached just now.

        Raises the error again if it says that the store was given up, and has been saying so for a
        while: somebody who opens it anew may have more luck with it.
        """
        now = self._clock.monotonic()
        self._quiet_until = now + self._lease
        if now - self._struck_at > self._lease:
            self._stopped_at = None  # it was there meanwhile
        self._struck_at = now
        if not isinstance(error, StoreStopped):
            return
        if self._stopped_at is None:
            self._stopped_at = now
        elif now - self._stopped_at > PATIENCE * self._lease:
            raise error

    def reached(self) -> None:
        """One who could not reach the store has reached it again: the next outage is another one.

        Not to be told of every call that was answered: a store that has stopped writing for good
        may be opened a second time in this process, and be well there.
        """
        self._stopped_at = None

    def over(self, expected: float) -> bool:
        """Whether leases may be judged. To be asked about every ``expected`` seconds."""
        now = self._clock.monotonic()
        late = now - self._seen > expected + self._lease / 2
        offset = self._clock.now() - now
        jumped = abs(offset - self._offset) > self._lease / 2
        self._seen, self._offset = now, offset
        if late or jumped:
            self.strike()
        return now >= self._quiet_until


class Complaint:
    """Says of something that is tried again and again that it fails: at once, then once in a while.

    An outage of a night is not to fill the disk with a line a second.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = ""
        self._again_at = 0.0

    def is_due(self, error: StoreUnavailable) -> bool:
        """Whether this failure is to be told."""
        now, text = self._clock.monotonic(), str(error)
        if text == self._last and now < self._again_at:
            return False
        self._last, self._again_at = text, now + COMPLAIN_AGAIN
        return True

    def over(self) -> None:
        """It went well: the next failure is news."""
        self._last = ""


class Side:
    """Runs loops beside the worker's event loop.

    Each is a function that does one round and says how many seconds to wait until the next; those
    are ``least()`` seconds apart at least. ``bury`` is not, and in a thread it is done when another
    process may have died.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        bury: Callable[[Store], Awaitable[float]],
        rounds: Sequence[Callable[[Store], Awaitable[float]]],
        least: Callable[[], float],
        last: Callable[[Store], Awaitable[None]],
        clock: Clock,
        outage: Outage,
        fail: Callable[[BaseException], Any],
    ) -> None:
        self._open_store = open_store
        self._bury = bury
        self._rounds = rounds
        self._least = least
        self._last = last
        self._clock = clock
        self._outage = outage
        self._fail = fail
        self._home = asyncio.get_running_loop()
        self._loop = self._home
        self._main: asyncio.Task[None] | None = None
        self.opened: asyncio.Future[None] = self._home.create_future()
        """Done once its store is open. If it can't be opened, ``fail`` is called instead."""
        self._ended: asyncio.Future[None] = self._home.create_future()
        self._stopped = False

    def start(self, *, thread: bool) -> None:
        """Begin, in a thread or in the running loop."""
        if thread:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._in_thread, name="outlast-side", daemon=True).start()
        else:
            self._main = self._home.create_task(self._run())

    async def stop(self) -> None:
        """End the loops, say good-bye to the store and close it."""
        self._stopped = True
        if self._loop is self._home:
            self._cancel()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)
        await self._ended

    def _cancel(self) -> None:
        if self._main is not None:
            self._main.cancel()

    def _in_thread(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._run())
        except BaseException as error:
            # The loop itself broke, so that nothing in it could tell: without leases no work.
            self._tell_home(self._fail, error)
        finally:
            # Only now is there nothing left that could be cut off by the end of the program.
            self._tell_home(self._end)

    async def _run(self) -> None:
        self._main = asyncio.current_task()
        try:
            if not self._stopped:
                await self._serve()
        except asyncio.CancelledError:
            pass  # that is how it is stopped
        except BaseException as error:
            failure = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
            self._tell_home(self._fail, failure)
        finally:
            if self._loop is self._home:
                self._end()

    def _tell_home(self, call: Callable[..., object], *args: Any) -> None:
        if self._loop is self._home:
            call(*args)
        elif not self._home.is_closed():
            self._home.call_soon_threadsafe(call, *args)

    def _open(self) -> None:
        if not self.opened.done():
            self.opened.set_result(None)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    async def _serve(self) -> None:
        store = self._open_store()
        await store.open()
        self._tell_home(self._open)
        lookout = None
        if self._loop is not self._home and store.lifelines is not None:
            lookout = Lookout(store.lifelines, STEP)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._repeat(self._bury, store, lookout))
                for turn in self._rounds:
                    group.create_task(self._repeat(turn, store))
        finally:
            if lookout is not None:
                lookout.stop()
            try:
                await self._last(store)
            except StoreUnavailable as error:
                log.warning("could not say good-bye to the store: %s", error)
            await store.close()

    async def _repeat(
        self,
        turn: Callable[[Store], Awaitable[float]],
        store: Store,
        lookout: Lookout | None = None,
    ) -> None:
        failing = False
        while True:
            try:
                pause = await turn(store)
                if failing:
                    self._outage.reached()
                failing = False
            except StoreUnavailable as error:
                self._outage.strike(error)
                if not failing:
                    log.warning("the store can't be reached: %s", error)
                failing = True
                pause = 0.5
            if lookout is not None and not failing:
                await lookout.change()
                continue
            if turn is not self._bury:
                pause = max(pause, self._least())
            await self._clock.sleep(_together(self._clock.monotonic(), pause))


def _together(now: float, pause: float) -> float:
    """A long pause ends when those of the others do: to be woken up is most of what a round costs.

    It is a little shorter for that, or longer by next to nothing.
    """
    if pause < STEP:
        return pause
    return max(0.0, int((now + pause) / STEP + 0.05) * STEP - now)
