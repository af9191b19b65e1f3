"""How the app reaches its store: one for the event loop it was opened in, one for the bridge."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar, cast

from outlast.bridge import Bridge
from outlast.errors import StoreClosed, Unsupported
from outlast.store import Feature

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from outlast.store import Ledger, Store

__all__ = ["Access", "ledger_of"]

T = TypeVar("T")

OPEN_IT = "open it first: `async with app:`"


class Access:
    """Opens the store when the first user comes and closes it when the last one goes.

    It belongs to the event loop and the process it was opened in. Anywhere else it answers with
    an error, since waiting for another loop's connection would hang.
    """

    def __init__(self, connect: Callable[[], Store]) -> None:
        self._connect = connect
        self._session: _Session | None = None
        self._left: list[_Session] = []
        self._lent = False
        self.bridge = Bridge(connect)

    async def open(self, check: Callable[[Store], None], borrowed: Store | None = None) -> None:
        """Open the store, or count one more user of it; ``check`` sees what it can do first.

        ``borrowed`` is taken as the store if there is none yet: it serves a worker already.
        """
        while True:
            session = self._here(borrowed)
            async with session.lock:
                if session is not self._session:
                    continue  # whoever had the lock has just closed this one
                if not session.users:
                    await self._begin(session, check)
                session.users += 1
                return

    async def close(self) -> None:
        """Count one user less, and close the store after the last one; closed, it stays closed."""
        session = self._session
        if session is None or not session.users:
            return
        self.store()  # raises if this is not where it was opened
        async with session.lock:
            session.users = max(0, session.users - 1)
            if session.users or session is not self._session:
                return
            self._session = None
            try:
                await session.store.close()
            finally:
                if self.bridge.running:
                    await asyncio.to_thread(self.bridge.stop)

    async def _begin(self, session: _Session, check: Callable[[Store], None]) -> None:
        try:
            check(session.store)
            await session.store.open()
        except BaseException:
            self._session = None
            await session.store.close()
            raise

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Store | None]:
        """The open store for one worker, so that what this program stores starts at once in it.

        None if it is lent already: a store tells its news once, and two would miss some.
        """
        if self._lent:
            yield None
            return
        self._lent = True
        try:
            yield self.store()
        finally:
            self._lent = False

    @property
    def in_use(self) -> bool:
        """Whether the store is open for anybody."""
        return self._session is not None and bool(self._session.users)

    def store(self) -> Store:
        """The store that is open here. Raises ``StoreClosed`` saying what to do."""
        session = self._session
        if session is None or not session.users:
            raise StoreClosed(f"the app is not open; {OPEN_IT}")
        if session.pid != os.getpid():
            raise StoreClosed(
                f"the app was opened before this process was forked; {OPEN_IT} in this process too"
            )
        if session.loop is not _running_loop():
            raise self._elsewhere(session)
        return session.store

    def anywhere(self, instead: str) -> Store:
        """The store of this process, for calls that need no event loop.

        Without an open app it is the bridge's, which can't be waited for in a loop: ``instead``
        says what to do there.
        """
        session = self._session
        if session is not None and session.users and session.pid == os.getpid():
            return session.store

        async def itself(store: Store) -> Store:
            return store

        return self.bridge.run(itself, instead)

    @property
    def opened(self) -> Store | None:
        """The store, once it has been opened, for what it can do; until then nobody asks."""
        session = self._session
        return None if session is None or not session.users else session.store

    def _here(self, borrowed: Store | None = None) -> _Session:
        session = self._session
        loop = asyncio.get_running_loop()
        if session is not None and (session.pid != os.getpid() or session.loop.is_closed()):
            # Its loop or its process is gone, and closing the store needs both. It is kept, since
            # a connection inherited over a fork must not even be finalized here.
            self._left.append(session)
            session = None
        if session is None:
            session = self._session = _Session(borrowed or self._connect(), loop)
            self._lent = borrowed is not None
        elif session.loop is not loop:
            raise self._elsewhere(session)
        return session

    @staticmethod
    def _elsewhere(session: _Session) -> StoreClosed:
        if session.loop.is_closed():
            return StoreClosed(
                f"the app was opened in an event loop that has ended since; {OPEN_IT} in this one"
            )
        return StoreClosed(
            "the app is open in another event loop: use it there, make a second Outlast with the "
            "same URL for this loop, or call enqueue_sync() from a thread without a loop"
        )


class _Session:
    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self.store = store
        self.loop = loop
        self.pid = os.getpid()
        self.lock = asyncio.Lock()
        self.users = 0


def ledger_of(store: Store) -> Ledger:
    """The store as a ``Ledger``. Raises ``Unsupported`` if it can't be asked about its jobs."""
    if Feature.INSPECT not in store.features:
        raise Unsupported(
            f"{store.url} can't look jobs up, wait for them or cancel them; "
            "keep what must be asked about in a store that can, such as sqlite; RabbitMQ can with"
            " records= (docs/rabbitmq.md)"
        )
    return cast("Ledger", store)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
