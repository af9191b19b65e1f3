"""Declares what a message needs before it is sent, and says what stands in the way."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any

from pika.exceptions import AMQPError, ChannelClosed

from outlast.errors import ConfigurationError, DurabilityError, StoreUnavailable
from outlast.stores.rabbitmq.faults import mapped
from outlast.stores.rabbitmq.leaders import no_leader, silent
from outlast.stores.rabbitmq.topology import (
    BELLS,
    DELIVER,
    LINES,
    deliver_key,
    level_arguments,
    level_name,
    level_patterns,
    line_arguments,
    news_name,
    plain_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outlast.stores.rabbitmq.address import Address
    from outlast.stores.rabbitmq.link import Channel, Link
    from outlast.stores.rabbitmq.topology import Place

__all__ = ["WEAK", "Declaring"]

_log = logging.getLogger(__name__)

_OTHER = re.compile(r"inequivalent arg '([^']+)'")
SETTLE = 1.5
"""Seconds until a queue that was just made is safe to use.

RabbitMQ writes down which files are a quorum queue's own when nothing was declared for half a
second, and not before: killed in that time, version 3.10 comes back with the queue, empty, and the
messages that it had confirmed are gone. So nothing is sent to it until then; what tells is that it
is bound, for somebody else may have made it.
"""
_MISSING, _MISMATCH = 404, 406
WEAK = {"x-queue-type", "x-max-priority", "durable", "auto_delete", "exclusive"}
"""Where these differ it is no durable quorum queue: those have no priorities that are declared."""


class Declaring:
    """What is declared over one connection, on a channel of its own: a refusal closes it."""

    def __init__(
        self, link: Link, version: tuple[int, ...], namespace: str, address: Address
    ) -> None:
        self.news = news_name(namespace)
        self._link = link
        self._version = version
        self._address = address
        self._shown = address.shown
        self._channel: Channel | None = None
        self._known: set[str] = set()
        self._unready: set[str] = set()
        """Those that are there and not bound yet: somebody has just made them, or died over it."""
        self._levels = -1
        self._one = asyncio.Lock()

    def has(self, name: str, level: int) -> bool:
        """Whether a queue, and the ladder up to this level, were there."""
        return name in self._known and level <= self._levels

    def forget(self, name: str) -> None:
        """A message came back: it is gone or was never ready, and so may be anything."""
        self._known.discard(name)
        self._unready.add(name)
        self._levels = -1

    async def begin(self) -> None:
        """What everything else is bound to. Raises our errors."""
        async with self._one:
            raw = (await self._open()).raw
            await self._say(raw.exchange_declare, LINES, "direct", durable=True)
            await self._say(raw.exchange_declare, DELIVER, "topic", durable=True)
            await self._say(raw.exchange_declare, self.news, "fanout", durable=True)

    async def declare(self, place: Place, level: int) -> bool | None:
        """A line with its dead, and the ladder up to a level.

        True if the line had to be made, False if it is new to us alone, None if it was known.
        Raises our errors; a queue that is there with other arguments is left as it is.
        """
        async with self._one:
            made = None
            if place.name not in self._known:
                made = not await self._exists(place.name)
                await self._queue(place.dead, plain_arguments(self._version))
                await self._queue(place.name, line_arguments(self._version, place.dead))
            fresh = bool(made) or (made is False and place.name in self._unready)
            new_levels = [each for each in range(level + 1) if each > self._levels]
            missing = [each for each in new_levels if not await self._exists(level_name(each))]
            for each in new_levels:
                await self._level(each)
        unbound = new_levels if fresh or missing else []
        # A bell that is lost with the broker is rung again.
        if (fresh and place.band != BELLS) or missing:
            await asyncio.sleep(SETTLE)
        if made is False and fresh and await silent(self._address, [place.name]):
            # Bound, it would be sent jobs, and confirm none of them.
            raise StoreUnavailable(no_leader(self._address, place.name))
        async with self._one:
            for each in unbound:
                await self._bind_level(each)
            if fresh:
                raw = (await self._open()).raw
                await self._say(raw.queue_bind, place.name, DELIVER, deliver_key(place.name))
                await self._say(raw.queue_bind, place.name, LINES, place.name)
                self._unready.discard(place.name)
            self._known.add(place.name)
            self._levels = max(self._levels, level)
            return made

    async def _level(self, level: int) -> None:
        name = level_name(level)
        await self._queue(name, level_arguments(level))
        raw = (await self._open()).raw
        await self._say(raw.exchange_declare, name, "topic", durable=True)

    async def _bind_level(self, level: int) -> None:
        """As late as a line: what somebody else sends there comes back until it is safe."""
        name, below = level_name(level), level_name(level - 1)
        raw = (await self._open()).raw
        waits, passes = level_patterns(level)
        await asyncio.gather(
            self._say(raw.queue_bind, name, name, waits),
            self._say(raw.exchange_bind, below, name, passes),
        )

    async def _queue(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Declare it. The broker names one difference at a time, so it is asked again for the rest.

        A limit of deliveries alone may be that of the broker's version that it was made by.
        """
        differ: list[str] = []
        rest, why, is_other = dict(arguments), "", True
        while is_other:
            try:
                await self._try_queue(name, rest)
                is_other = False
            except ChannelClosed as error:
                other = _OTHER.search(error.reply_text)
                if error.reply_code != _MISMATCH or other is None:
                    raise mapped(error, self._shown) from error
                differ.append(other[1])
                why = why or error.reply_text
                if rest.pop(other[1], None) is None:
                    break
            except AMQPError as error:
                raise mapped(error, self._shown) from error
        if not differ:
            return
        if differ == ["x-delivery-limit"] and not is_other:
            _log.warning("%s: queue %s keeps its own delivery limit", self._shown, name)
            return
        if WEAK.intersection(differ):
            raise DurabilityError(
                f"{self._shown}: queue {name!r} is there already and is no durable quorum queue: it"
                f" can lose what was confirmed, so nothing is put into it ({why}). Empty and delete"
                " it, and it is made anew"
            )
        raise ConfigurationError(
            f"{self._shown}: queue {name!r} is there already with another {' and '.join(differ)},"
            f" and is left as it is: {why}. Empty and delete it, and it is made anew"
        )

    async def _exists(self, name: str) -> bool:
        channel = await self._open()
        try:
            await channel.ask(channel.raw.queue_declare, name, passive=True)
        except ChannelClosed as error:
            if error.reply_code == _MISSING:
                return False
            raise mapped(error, self._shown) from error
        except AMQPError as error:
            raise mapped(error, self._shown) from error
        return True

    async def _try_queue(self, name: str, arguments: Mapping[str, Any]) -> None:
        channel = await self._open()
        await channel.ask(channel.raw.queue_declare, name, durable=True, arguments=dict(arguments))

    async def _say(self, call: Any, *args: Any, **more: Any) -> None:
        channel = await self._open()
        try:
            await channel.ask(call, *args, **more)
        except AMQPError as error:
            raise mapped(error, self._shown) from error

    async def _open(self) -> Channel:
        if self._channel is None or self._channel.why is not None:
            self._channel = await self._link.channel()
        return self._channel
