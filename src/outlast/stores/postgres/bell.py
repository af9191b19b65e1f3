"""Rings for other processes and hears theirs: NOTIFY, seldom, and LISTEN, seen to work.

A NOTIFY takes a lock that all notifying commits of a server share, and wakes every listener of the
database. So it is sent after the commit, in a transaction of its own that waits for no disk (where
it can be, in the same trip), and at most twenty times a second; what comes in between is told
together. Who doesn't hear of something finds it by polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg

from outlast.errors import StoreError
from outlast.stores.news import EVERYWHERE, ROOM, WORK
from outlast.stores.postgres.link import CONNECT

if TYPE_CHECKING:
    from collections.abc import Collection

    from asyncpg import Connection

    from outlast.stores.news import News
    from outlast.stores.postgres.address import Address
    from outlast.stores.postgres.link import Link

__all__ = ["TELL_TIMEOUT", "Bell", "Pending"]

_log = logging.getLogger(__name__)

TELL_TIMEOUT = "200ms"
"""How long others' notifying commits are waited for; on our own nobody waits for a disk."""
SPACING = 0.05
"""Seconds between two rings of one process."""
MOST_QUEUES = 20
"""Queues named in one ring; more are told as all of them."""
LOOK = 10.0
"""Seconds after which a quiet connection is asked whether it still listens."""
_RING = (
    "SELECT set_config('synchronous_commit', 'off', true),"
    f" set_config('lock_timeout', '{TELL_TIMEOUT}', true), pg_notify($1::text, $2::text)"
)
LATER = 1.0
"""Seconds until the next ring after one that somebody's notifying commit was in the way of."""
_LISTENS = "SELECT EXISTS (SELECT 1 FROM pg_listening_channels() c WHERE c = $1::text)"
_KINDS = {"work": WORK, "room": ROOM}


Pending: TypeAlias = dict[str, set[str]]
"""The queues of each kind of news that is to be told."""


class Bell:
    """Used in the store's own event loop alone, but for ``listens``."""

    def __init__(self, address: Address, channel: str, me: str, hearing: Link, news: News) -> None:
        self.listens = False
        """Whether news of other processes are pushed to us."""
        self._address = address
        self._channel = channel
        self._me = me
        self._hearing = hearing
        self._news = news
        self._pending: Pending = {}
        self._rung_at = -1e9
        self._keeper: asyncio.Task[None] | None = None
        self._wanted = False
        """Whether somebody waits for news: each ring wakes every session that listens."""
        self._warned = False
        hearing.check = self._connected
        hearing.lost = self._deaf

    # -- ringing

    def tell(self, news: dict[int, set[str]]) -> None:
        """Note what others are to hear of."""
        if self._address.notify:
            for name, kind in _KINDS.items():
                if news.get(kind):
                    self._pending.setdefault(name, set()).update(news[kind])

    def due_in(self, *, anything: bool = False) -> float | None:
        """In how many seconds to ring, or None if there is nothing to tell."""
        if not (self._pending or anything):
            return None
        return max(0.0, self._rung_at + SPACING - time.monotonic())

    def take(self, queue: str) -> Pending | None:
        """What a commit is to tell by itself, with work in this queue; None if it is too early.

        Whoever doesn't tell it after all hands it to ``give_back``.
        """
        if not self._address.notify or self.due_in(anything=True) != 0.0:
            return None
        taken, self._pending = self._pending, {}
        self._rung_at = time.monotonic()
        taken.setdefault("work", set()).add(queue)
        return taken

    def give_back(self, taken: Pending) -> None:
        for name, queues in taken.items():
            self._pending.setdefault(name, set()).update(queues)

    def call(self, taken: Pending) -> tuple[str, str]:
        """The channel, and what is said there."""
        return self._channel, _words(self._me, taken)

    async def ring(self, link: Link) -> None:
        """Tell the others. What can't be told now is found by polling."""
        pending, self._pending = self._pending, {}
        self._rung_at = time.monotonic()
        try:
            await link.plain(_RING, *self.call(pending))
        except asyncpg.LockNotAvailableError:
            self.give_back(pending)
            self._rung_at += LATER
        except (StoreError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            _log.info("%s: news could not be told: %s", self._address.shown, type(error).__name__)

    def words(self, news: dict[int, set[str]]) -> str | None:
        """What a transaction of somebody else's is to tell, us as well; None if it is nothing."""
        pending = {name: news[kind] for name, kind in _KINDS.items() if news.get(kind)}
        return _words("", pending) if pending and self._address.notify else None

    # -- hearing

    def listen(self) -> None:
        """Somebody waits for news from now on: keep a connection that hears them."""
        if self._keeper is None and self._address.notify and not self._address.pooled:
            self._wanted = True
            self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        self.listens = False
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper

    async def _keep(self) -> None:
        """Have a listening connection at all times, and see that it is one."""
        while True:
            pause = LOOK
            quiet = time.monotonic() - self._hearing.used_at
            if not self.listens or quiet >= LOOK:
                try:
                    if not self.listens:
                        await self._begin()
                    [[listens]] = await self._hearing.plain(_LISTENS, self._channel)
                except (StoreError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    # Its own backoff is in the way of doing this too often.
                    pause = 0.2
                else:
                    if not listens:
                        self._cannot_listen()
                        return
            if self._address.pooled:
                return
            await asyncio.sleep(pause if not self.listens else LOOK - min(quiet, LOOK - 1))

    async def _begin(self) -> None:
        """On a new connection, or on one that was there before anybody waited."""
        connection = await self._hearing.hold()
        try:
            if not self.listens:
                await self._connected(connection)
        except BaseException:
            # One that does not answer would be asked again for ever, and be in the way of reads.
            self._hearing.abort()
            raise
        finally:
            await self._hearing.let_go()

    async def _connected(self, connection: Connection) -> None:
        """A new connection: whatever was committed meanwhile, nobody has told us."""
        if self._wanted and not self._address.pooled:
            async with asyncio.timeout(CONNECT):
                await connection.add_listener(self._channel, self._heard)
            self.listens = True
            self._wake_everybody()

    def _deaf(self) -> None:
        was, self.listens = self.listens, False
        if was:
            self._wake_everybody()
            if self._keeper is not None:
                self._keeper.cancel()
                self._keeper = asyncio.get_running_loop().create_task(self._keep())

    def _cannot_listen(self) -> None:
        self.listens = False
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s: LISTEN does not last here (a pooler in transaction mode?): news are polled"
                " for instead; ?pooler=transaction in the URL says so at once", self._address.shown,
            )  # fmt: skip
        self._address.pooled = True
        self._wake_everybody()

    def _wake_everybody(self) -> None:
        self._news.missed()

    def _heard(self, connection: Any, pid: int, channel: str, payload: Any) -> None:
        sender, *parts = str(payload).split("|")
        if sender == self._me:
            return
        for part in parts:
            name, _, named = part.partition(":")
            queues: Collection[str] = named.split(",")
            if name in _KINDS:
                self._news.heard(_KINDS[name], queues)


def _words(sender: str, pending: Pending) -> str:
    parts = [sender]
    for name, queues in pending.items():
        named = sorted(queues) if len(queues) <= MOST_QUEUES else [EVERYWHERE]
        parts.append(f"{name}:{','.join(named)}")
    return "|".join(parts)
