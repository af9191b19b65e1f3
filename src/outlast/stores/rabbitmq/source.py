"""One AMQP queue as a consumer sees it: what was delivered from it, and how much may be."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast.stores.rabbitmq.held import Held
    from outlast.stores.rabbitmq.topology import Place

__all__ = ["MOST", "Source"]

MOST = 1024
"""Messages that a consumer is sent ahead of its acknowledgements; quorum queues allow 2000."""


class Source:
    """``tag`` is the consumer's, or None while there is none."""

    __slots__ = ("beginning", "buffer", "out", "place", "prefetch", "tag", "told")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.tag: str | None = None
        self.beginning = False
        """A consumer is about to begin or to end."""
        self.prefetch = 0
        self.buffer: deque[Held] = deque()
        self.out = 0
        """Messages that were delivered and not acknowledged, claimed or not."""
        self.told = 0
        """How many were delivered when somebody last looked whether there are any."""

    @property
    def is_full(self) -> bool:
        """The broker sends no more until something is acknowledged."""
        return self.out >= self.prefetch
