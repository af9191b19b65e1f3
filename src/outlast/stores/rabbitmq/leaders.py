"""Whether queues have a leader: one that has none answers nobody, and costs who asks it the line.

RabbitMQ 3.10 brings back a quorum queue like that which was made in the half second before the
broker died. It is empty, and stays as it is through restarts. So does, for as long, one of a
cluster that most of its nodes have left.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from pika.exceptions import AMQPError
from pika.spec import Basic

from outlast.errors import OutlastError
from outlast.stores.rabbitmq.link import dial

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from outlast.stores.rabbitmq.address import Address
    from outlast.stores.rabbitmq.link import Link

__all__ = ["Leaders", "no_leader", "silent"]

_log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds that a queue has to answer. The broker itself gives up after 65, with the connection."""
AT_ONCE = 20


async def silent(address: Address, names: Iterable[str]) -> list[str]:
    """Those of the empty queues that don't answer, asked over a connection of its own.

    What has no leader seems to be empty. Raises our errors.
    """
    link = await dial(address, "outlast looks for leaders")
    at_once, found = asyncio.Semaphore(AT_ONCE), []

    async def ask(name: str) -> None:
        async with at_once:
            if not await _answers(link, name):
                found.append(name)

    try:
        await asyncio.gather(*map(ask, names))
        if link.why is not None:
            raise link.error()
        return sorted(found)
    finally:
        link.drop()


async def _answers(link: Link, name: str) -> bool:
    """Also if it is gone, or has messages, of which none shall come back as if from a crash."""
    channel = await link.channel()
    got: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answer(*_: Any) -> None:
        if not got.done():
            got.set_result(None)

    try:
        found = await channel.ask(channel.raw.queue_declare, name, passive=True)
        if found.method.message_count:
            await channel.close()
            return True
        channel.raw.add_callback(answer, [Basic.GetEmpty], one_shot=True)
        channel.raw.basic_get(name, answer)
    except AMQPError:
        return True
    await asyncio.wait((got, channel.closed), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    if got.done():
        await channel.close()
    return got.done() or channel.why is not None


def no_leader(address: Address, name: str) -> str:
    """What was found, and what is to be done."""
    vhost = address.settings["virtual_host"]
    return (
        f"{address.shown}: queue {name!r} has no leader: it takes nothing and gives nothing. If"
        " nodes of a cluster are down, start them. Otherwise the broker died in the moment in which"
        f" it was made, and nothing is in it: rabbitmqctl -p {vhost} delete_queue '{name}', and it"
        " is made anew"
    )


class Leaders:
    """Remembers which queues did not answer when they were to be consumed from."""

    def __init__(self, address: Address, spawn: Callable[[Coroutine[Any, Any, Any]], None]) -> None:
        self._address = address
        self._spawn = spawn
        self._asked: dict[str, float] = {}
        self._mute: set[str] = set()
        self._awaited: set[str] = set()

    def asked(self, name: str) -> None:
        """A consumer is about to begin."""
        self._asked[name] = asyncio.get_running_loop().time()

    def answered(self, name: str) -> None:
        self._asked.pop(name, None)

    def lost(self) -> None:
        """The connection is gone, and it may have been because of these."""
        late = asyncio.get_running_loop().time() - PATIENCE
        self._mute.update(name for name, at in self._asked.items() if at < late)
        self._asked.clear()

    def has_one(self, name: str) -> None:
        """It was made anew, or tells of messages."""
        self._mute.discard(name)

    def is_mute(self, name: str) -> bool:
        """Whether a consumer there would cost us the connection."""
        return name in self._mute

    def when_back(self, name: str, then: Callable[[], None]) -> None:
        """Ask it again, and call ``then`` if it answers."""
        if name not in self._awaited:
            self._awaited.add(name)
            self._spawn(self._await(name, then))

    async def _await(self, name: str, then: Callable[[], None]) -> None:
        try:
            if await self.is_back(name):
                then()
        finally:
            self._awaited.discard(name)

    async def is_back(self, name: str) -> bool:
        """Ask it again, where nothing else hangs on the answer; say so if there is none."""
        try:
            mute = await silent(self._address, [name])
        except OutlastError as error:
            _log.info("%s", error)
            return False
        if mute:
            _log.error("%s", no_leader(self._address, name))
            return False
        self._mute.discard(name)
        return True
