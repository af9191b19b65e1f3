"""Messages in this process's hands: delivered and not acknowledged yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast.job import Claim
    from outlast.stores.rabbitmq.source import Source

__all__ = ["Held", "holds"]


class Held:
    """One delivery. It is ours until its channel closes."""

    __slots__ = ("at", "body", "claim", "crashes", "number", "settled", "source", "tag")

    def __init__(
        self, source: Source, tag: int, body: bytes, crashes: int, number: int, at: float
    ) -> None:
        self.source = source
        self.tag = tag
        self.body = body
        self.crashes = crashes
        """How often it was delivered before and came back without a word."""
        self.number = number
        """Grows from delivery to delivery."""
        self.at = at
        self.claim: Claim | None = None
        self.settled = False


claimed: dict[bytes, Held] = {}
"""By receipt, for all stores of this process: a worker renews through a store of its own."""


def holds(receipt: bytes) -> bool:
    return receipt in claimed
