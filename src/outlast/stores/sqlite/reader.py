"""The thread that reads, and the calls that sleep until there is something to see."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from outlast.errors import StoreClosed
from outlast.stores.sqlite.faults import mapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.clock import Clock
    from outlast.stores.sqlite.ledger import Reads

__all__ = ["Reader", "Waiter"]

T = TypeVar("T")


class Reader:
    """The thread that reads, one call after the other, each in a short transaction of its own."""

    def __init__(self, make: Callable[[], Reads], path: str) -> None:
        self._reads = make()
        self._path = path
        self._calls: deque[tuple[Callable[[Reads], Any], Callable[[Any, Any], None]]] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="outlast-reader", daemon=True)
        self._thread.start()

    async def do(self, run: Callable[[Reads], T]) -> T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def answer(result: Any, error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle_future, future, result, error)

        self._submit(run, answer)
        return await future

    def now(self, run: Callable[[Reads], T]) -> T:
        done = threading.Event()
        box: list[Any] = []

        def answer(result: Any, error: BaseException | None) -> None:
            box[:] = (result, error)
            done.set()

        self._submit(run, answer)
        done.wait()
        if box[1] is not None:
            raise box[1]
        return box[0]  # type: ignore[no-any-return]

    def _submit(self, run: Callable[[Reads], Any], answer: Callable[[Any, Any], None]) -> None:
        if self._closing:
            raise StoreClosed("the store is closed")
        self._calls.append((run, answer))
        self._wake.set()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _work(self) -> None:
        connection = self._reads.connection
        connection.set_busy_timeout(5000)
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._calls:
                run, answer = self._calls.popleft()
                try:
                    # One snapshot for all statements of a call.
                    with connection:
                        result = run(self._reads)
                except apsw.Error as error:
                    answer(None, mapped(error, self._path))
                except BaseException as error:
                    answer(None, error)
                else:
                    answer(result, None)
            if self._closing and not self._calls:
                break
        # The last to close copies the log; what that leaves undone, the next one to open does.
        with contextlib.suppress(apsw.Error):
            connection.close()


def _settle_future(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if not future.done():
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


class Waiter:
    """One call that sleeps until there is news, in whatever loop it runs."""

    __slots__ = ("_loop", "_rung", "kind")

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self._loop = asyncio.get_running_loop()
        self._rung: asyncio.Future[None] = self._loop.create_future()

    def ring(self) -> None:
        # A loop that was closed has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self._rung.done():
            self._rung.set_result(None)

    async def sleep(self, clock: Clock, seconds: float) -> None:
        sleeper = asyncio.ensure_future(clock.sleep(seconds))
        try:
            await asyncio.wait((self._rung, sleeper), return_when=asyncio.FIRST_COMPLETED)
            if sleeper.done():
                sleeper.result()
        finally:
            sleeper.cancel()
