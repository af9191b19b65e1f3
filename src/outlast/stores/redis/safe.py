"""Waits until what was written is safe: synced by the server, and by so many of its replicas.

That is asked on a connection of its own, since one that waits in the server holds up all that comes
behind. It writes something first: the server then answers for everything that came before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from outlast.errors import StoreUnavailable
from outlast.stores.redis.address import ask, dial, hang_up, see_that_it_lives
from outlast.stores.replies import deliver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from redis.asyncio.connection import AbstractConnection

    from outlast.errors import OutlastError
    from outlast.stores.redis.address import Address, Wish
    from outlast.stores.redis.op import Op

__all__ = ["Safe", "Wait", "second", "wait_of"]

ASK_FOR = 1.0
"""Seconds that one question may wait in the server; then it is asked again."""
PATIENCE = 20.0
"""Seconds after which callers are told that nobody knows."""

# The first write is one that a server without memory does too, and what follows it then as well.
_WRITE = (
    "redis.call('HDEL', KEYS[1] .. 'i', '') return redis.call('HINCRBY', KEYS[1] .. 'm', 'ack', 1)"
)


class Wait(Struct, frozen=True, kw_only=True):
    """What has to be waited for on a server, and which run of it that is."""

    replicas: int
    synced: bool
    """By ``WAITAOF``: in the files of all of them. Else by ``WAIT``: replicas have it in memory."""
    run: str


def wait_of(facts: Mapping[str, str], wish: Wish) -> Wait | None:
    """None where the answer to a write already says that it is safe."""
    always = facts.get("appendfsync") == "always"
    if not wish.replicas and (always or not wish.file):
        return None
    synced = facts.get("waitaof") == "1" and facts.get("aof_enabled") == "1"
    if not synced and not wish.replicas:
        return None
    return Wait(replicas=wish.replicas, synced=synced, run=facts.get("run_id", ""))


async def second(address: Address, where: tuple[str, int] | None, wait: Wait) -> AbstractConnection:
    """A connection to the same run of the server. Raises our errors, and the driver's."""
    connection = await dial(address, where)
    try:
        lines = str(await ask(connection, "INFO", "server"), errors="replace").splitlines()
        if f"run_id:{wait.run}" not in lines:
            raise StoreUnavailable(f"{address.shown}: another server answers now")
    except BaseException:
        await hang_up(connection)
        raise
    return connection


class Safe:
    """Holds the calls that are done but not yet safe. Lives in the engine's loop."""

    def __init__(
        self,
        prefix: str,
        unknown: Callable[[Op[Any], str], OutlastError],
        empty: Callable[[], None],
    ) -> None:
        self._prefix = prefix
        self._unknown = unknown
        self._empty = empty
        self._calls: deque[list[Op[Any]]] = deque()
        self._came = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._calls)

    def hold(self, ops: list[Op[Any]]) -> None:
        self._calls.append(ops)
        self._came.set()

    def take_back(self) -> Sequence[list[Op[Any]]]:
        """What was not found to be safe, oldest first: it may have been done."""
        calls = list(self._calls)
        self._calls.clear()
        return calls

    async def watch(self, connection: AbstractConnection, wait: Wait) -> None:
        """Answer them in time; whatever waits at one moment is asked for at once."""
        while True:
            await self._came.wait()
            self._came.clear()
            while self._calls:
                many = len(self._calls)
                sure = await self._ask(connection, wait, write=True)
                # Not with another write, which the sync that comes next could miss as well.
                while not sure and not self._is_late(self._calls[0]):
                    sure = await self._ask(connection, wait, write=False)
                for _ in range(many):
                    ops = self._calls.popleft()
                    if not sure:
                        ops = self._give_up(ops, wait)
                    deliver(ops)
            self._empty()

    async def _ask(self, connection: AbstractConnection, wait: Wait, *, write: bool) -> bool:
        async with asyncio.timeout(PATIENCE + ASK_FOR):  # its error is an OSError: a lost line
            return await self._answer(connection, wait, write)

    async def _answer(self, connection: AbstractConnection, wait: Wait, write: bool) -> bool:
        see_that_it_lives(connection)
        if write:
            await connection.send_command("EVAL", _WRITE, 1, self._prefix, check_health=False)
        milliseconds = int(ASK_FOR * 1000)
        if wait.synced:
            words: Sequence[Any] = ("WAITAOF", 1, wait.replicas, milliseconds)
        else:
            words = ("WAIT", wait.replicas, milliseconds)
        await connection.send_command(*words, check_health=False)
        if write:
            await connection.read_response(disable_decoding=True)
        found: Any = await connection.read_response(disable_decoding=True)
        if wait.synced:
            return bool(found[0] >= 1 and found[1] >= wait.replicas)
        return bool(found >= wait.replicas)

    def _give_up(self, ops: Sequence[Op[Any]], wait: Wait) -> list[Op[Any]]:
        """Those that have waited long enough; the others are asked for again."""
        told = [op for op in ops if self._is_late([op])]
        for op in told:
            op.error = self._unknown(op, _why(wait))
        if kept := [op for op in ops if op not in told]:
            self._calls.append(kept)
        return told

    def _is_late(self, ops: Sequence[Op[Any]]) -> bool:
        late = asyncio.get_running_loop().time() - PATIENCE
        return any(op.since < late for op in ops)


def _why(wait: Wait) -> str:
    where = f"by the server and {wait.replicas} of its replicas" if wait.replicas else "there"
    what = "synced" if wait.synced else "received"
    return f"within {PATIENCE:g} seconds it was not known to be {what} {where}"
