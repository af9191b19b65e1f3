"""One AMQP queue as a consumer sees it: what was delivered from it, and how much may be."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from pika.exceptions import AMQPError

from outlast.errors import StoreUnavailable
from outlast.stores.rabbitmq.faults import mapped
from outlast.stores.rabbitmq.held import claimed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from outlast.stores.rabbitmq.held import Held
    from outlast.stores.rabbitmq.link import Channel
    from outlast.stores.rabbitmq.topology import Place

__all__ = ["MOST", "TAKES_BACK", "Source", "put_back", "settled", "take_first"]

MOST = 1024
"""Messages that a consumer is sent ahead of its acknowledgements; quorum queues allow 2000."""
TAKES_BACK = (4, 3)
"""The first version that, when a message of a quorum queue was held for too long, ends the consumer
and sends the message to another one. Before, the channel was closed, which nobody overlooks."""


class Source:
    """It has a channel of its own, so that what closes that is nobody else's trouble.

    ``tag`` is the consumer's, or None while there is none.
    """

    __slots__ = (
        "beginning", "buffer", "channel", "detached", "doubtful", "place", "prefetch", "tag",
        "told", "unacked",
    )  # fmt: skip

    def __init__(self, place: Place) -> None:
        self.place = place
        self.channel: Channel | None = None
        self.tag: str | None = None
        self.beginning = False
        """A consumer is about to begin or to end."""
        self.detached = False
        """Its queue is gone; it lives on for what was claimed from it."""
        self.doubtful = False
        """Its consumer was ended, and the broker may have taken back what it holds."""
        self.prefetch = 0
        self.buffer: deque[Held] = deque()
        self.unacked: dict[int, Held] = {}
        """Delivered and not acknowledged, claimed or not, in that order."""
        self.told = 0
        """How many were delivered when somebody last looked whether there are any."""

    @property
    def pair(self) -> tuple[str, str | None]:
        return self.place.queue, self.place.task

    @property
    def is_full(self) -> bool:
        """The broker sends no more until something is acknowledged."""
        return len(self.unacked) >= self.prefetch

    def acknowledge(self, helds: Sequence[Held]) -> None:
        """Let the broker forget these, which are settled.

        Those at the beginning share one word. The end of the channel is told elsewhere.
        """
        channel = self.channel
        if channel is None or channel.why is not None:
            return
        last, unacked = 0, self.unacked
        while unacked:
            tag = next(iter(unacked))
            if not unacked[tag].settled:
                break
            del unacked[tag]
            last = tag
        try:
            if last:
                channel.raw.basic_ack(last, multiple=True)
            for held in helds:
                if unacked.pop(held.tag, None) is not None:
                    channel.raw.basic_ack(held.tag)
        except AMQPError:
            pass

    def lost(self) -> None:
        """What it held belongs to others now."""
        for held in self.unacked.values():
            held.settled = True
            if held.claim is not None:
                claimed.pop(held.claim.receipt, None)
        self.unacked.clear()
        self.buffer.clear()


def put_back(helds: Sequence[Held]) -> None:
    """As if they had never been taken."""
    for held in reversed(helds):
        if not held.settled:
            held.source.buffer.appendleft(held)


async def settled(sources: Collection[Source], shown: str) -> None:
    """When the broker has read what was acknowledged from these. Raises our errors."""
    asked = [
        channel.ask(channel.raw.basic_qos, prefetch_count=1)
        if channel.raw.is_open
        else asyncio.shield(channel.closed)  # it was closed behind them
        for source in sources
        if (channel := source.channel) is not None and channel.why is None
    ]
    try:
        await asyncio.gather(*asked)
    except AMQPError as error:
        raise mapped(error, shown) from error
    if any(source.doubtful for source in sources):
        raise StoreUnavailable(f"{shown}: a consumer was ended before it had settled")


def take_first(sources: Sequence[Source], limit: int, found: list[Held]) -> None:
    """Add what came first to what was found, until there are so many."""
    full = [source for source in sources if source.buffer]
    while full and len(found) < limit:
        first = full[0] if len(full) == 1 else min(full, key=_came)
        found.append(first.buffer.popleft())
        if not first.buffer:
            full.remove(first)


def _came(source: Source) -> int:
    return source.buffer[0].number
