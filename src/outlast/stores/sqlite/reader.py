"""The thread that reads: one call after the other, beside the one that writes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar, cast

import apsw

from outlast.errors import StoreClosed
from outlast.stores.sqlite.faults import OF_ONE_CALL, UNREADABLE, mapped
from outlast.stores.sqlite.forks import Gate
from outlast.stores.sqlite.ledger import Reads
from outlast.stores.sqlite.wake import Wake

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.stores.sqlite.files import Identity

__all__ = ["Reader"]

T = TypeVar("T")


class Reader:
    """The thread that reads, one call after the other, each in a short transaction of its own."""

    def __init__(
        self, connect: Callable[[], apsw.Connection], namespace: str, identity: Identity
    ) -> None:
        self._connect = connect
        self._namespace = namespace
        self._identity = identity
        self._reads = Reads(connect(), namespace)
        self._sound = True
        self._calls: deque[tuple[Callable[[Reads], Any], Callable[[Any, Any], None]]] = deque()
        self._wake = Wake()
        self._closing = self._ended = False
        self._gate = Gate()
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
        return cast("T", box[0])

    def _submit(self, run: Callable[[Reads], Any], answer: Callable[[Any, Any], None]) -> None:
        if self._closing:
            raise StoreClosed("the store is closed")
        self._calls.append((run, answer))
        self._wake.set()
        if self._ended:
            self._refuse_the_rest()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join()
        self._ended = True
        self._refuse_the_rest()

    def _refuse_the_rest(self) -> None:
        """What came too late for the thread."""
        with contextlib.suppress(IndexError):
            while True:
                self._calls.popleft()[1](None, StoreClosed("the store is closed"))

    def _work(self) -> None:
        self._reads.connection.set_busy_timeout(5000)
        while True:
            self._wake.wait()
            while self._calls:
                run, answer = self._calls.popleft()
                try:
                    with self._gate:
                        result = self._read(run)
                except apsw.Error as error:
                    # Never go on with a connection that saw an I/O error.
                    self._sound = isinstance(error, (*OF_ONE_CALL, apsw.BusyError))
                    answer(None, mapped(error, self._identity.path))
                except UNREADABLE as error:
                    answer(None, mapped(error, self._identity.path))
                except BaseException as error:
                    answer(None, error)
                else:
                    answer(result, None)
            if self._closing and not self._calls:
                break
        # The last to close copies the log; what that leaves undone, the next one to open does.
        with self._gate, contextlib.suppress(apsw.Error):
            self._reads.connection.close()
        self._gate.close()

    def _read(self, run: Callable[[Reads], Any]) -> Any:
        # What was taken away would otherwise be read for ever, as if nobody wrote any more.
        self._identity.check()
        if not self._sound:
            with contextlib.suppress(apsw.Error):
                self._reads.connection.close()
            self._reads = Reads(self._connect(), self._namespace)
            self._reads.connection.set_busy_timeout(5000)
            self._sound = True
        connection = self._reads.connection
        # One snapshot for all statements of a call.
        connection.execute("BEGIN")
        try:
            return run(self._reads)
        finally:
            # SQLite has ended it by itself after some errors.
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _settle_future(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if not future.done():
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
