"""Hears what others tell: one connection that subscribes, from the first time somebody may wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from outlast.errors import OutlastError
from outlast.stores.news import ENDED, ROOM, WORK
from outlast.stores.redis.address import ANSWERS_WITHIN, ask, dial, hang_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio.connection import AbstractConnection

    from outlast.stores.news import News
    from outlast.stores.redis.address import Address

__all__ = ["Bell"]

_log = logging.getLogger(__name__)

PING_EVERY = 5.0
"""Seconds of silence after which it is asked whether anybody is there; then as many again."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
_KINDS = {"w": WORK, "r": ROOM, "j": ENDED}


class Bell:
    """Lives in the engine's loop. While it is deaf, those who wait look for themselves."""

    def __init__(self, address: Address, prefix: str, news: News) -> None:
        self.listens = False
        self._address = address
        self._prefix = prefix
        self._news = news
        self._task: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Begin, unless it has begun."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen())

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _listen(self) -> None:
        pause = FIRST_PAUSE
        while True:
            connection: AbstractConnection | None = None
            try:
                async with asyncio.timeout(ANSWERS_WITHIN):
                    connection = await dial(self._address)
                    await ask(connection, "SUBSCRIBE", self._prefix)
                self.listens = True
                # What was told before that, nobody here has heard.
                self._news.missed()
                pause = FIRST_PAUSE
                await self._hear(connection)
            except (RedisError, OutlastError, OSError) as error:
                _log.debug("%s: nothing is heard for now: %s", self._address.shown, error)
            finally:
                self.listens = False
                if connection is not None:
                    await hang_up(connection)
            self._news.missed()
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _hear(self, connection: AbstractConnection) -> None:
        asked = False
        while True:
            message = await connection.read_response(disable_decoding=True, timeout=PING_EVERY)
            if message is None:
                if asked:
                    raise OSError("the server is silent")
                asked = True
                await connection.send_command("PING", check_health=False)
            else:
                asked = False
                if message[0] == b"message":
                    self._tell(message[2].decode().split("\n"))

    def _tell(self, topics: Sequence[str]) -> None:
        for letter, kind in _KINDS.items():
            names = {topic[1:] for topic in topics if topic[0] == letter}
            if names and kind == ENDED:
                self._news.wake(ENDED, names)  # of jobs, of which there are too many to count
            elif names:
                self._news.heard(kind, names)
