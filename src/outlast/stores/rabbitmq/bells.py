"""Bells: messages that say that a line has work, where the jobs themselves stand in other records.

A bell is rung by who adds a job, by who puts one back, and by the sweep for all else. Whoever gets
it claims from the records, and has it acknowledged then: one too many finds nothing, one that is
lost is rung again.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from pika.exceptions import AMQPError

from outlast.errors import OutlastError, StoreClosed, StoreError
from outlast.stores.news import WORK
from outlast.stores.rabbitmq.engine import Engine
from outlast.stores.rabbitmq.letters import read
from outlast.stores.rabbitmq.op import Op
from outlast.stores.rabbitmq.outbox import Batch, Posting
from outlast.stores.rabbitmq.source import put_back
from outlast.stores.rabbitmq.sweep import Sweep
from outlast.stores.rabbitmq.topology import BANDS, BELLS, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from outlast.chance import Chance
    from outlast.store import Store
    from outlast.stores.news import News
    from outlast.stores.rabbitmq.address import Address
    from outlast.stores.rabbitmq.held import Held

__all__ = ["MOST", "Bells"]

_log = logging.getLogger(__name__)

MOST = 32
"""Bells of a line that are on their way at once: each wakes a worker, which takes all it can. More
would cost a producer in a hurry half of its pace, and wake nobody sooner who is not rung anyway."""
REST = 0.25
"""Seconds without a claim after which the bells that a busy worker was sent go to others."""

Pair = tuple[str, str | None]


class Bells:
    """The broker's part of a store whose jobs stand in other records."""

    def __init__(
        self,
        address: Address,
        namespace: str,
        news: News,
        chance: Chance,
        records: Store,
        more_records: Callable[[], Store],
    ) -> None:
        self._namespace = namespace
        self._news = news
        self._records = records
        self._coming: Counter[Pair] = Counter()
        self._pid = os.getpid()
        self.engine = Engine(
            address, namespace, self._arrived, _give_back,
            bands=(*BANDS, BELLS), rest=REST, patient=True,
        )  # fmt: skip
        self._sweep = Sweep(self.engine, more_records, self.ring_here, chance)
        self._sweeping = False

    # -- for callers, in any thread

    @property
    def listens(self) -> bool:
        """Whether a bell that is rung now would be heard here."""
        return self._pid == os.getpid() and self.engine.intake.is_on

    def ring(self, lines: Mapping[Pair, int]) -> None:
        """Soon, and in vain if the broker is away: then the sweep does it when it is back."""
        if lines:
            self._hand_over(lambda: self.ring_here(lines))

    def take(self, queues: Sequence[str], tasks: Sequence[str | None], limit: int) -> list[Held]:
        """Those that are here, at most so many; the list is filled soon, and before ``heed``.

        From now on there are consumers for these lines.
        """
        found: list[Held] = []
        self._hand_over(lambda: self._take(queues, tasks, limit, found))
        return found

    def heed(self, found: list[Held], *, claimed: bool) -> None:
        """What they told of is claimed, or nobody got to it and they stay."""
        self._hand_over(lambda: self._heed(found, claimed=claimed))

    def _hand_over(self, work: Callable[[], None]) -> None:
        if self._pid == os.getpid():
            with contextlib.suppress(StoreClosed):
                self.engine.hand_over(Op(lambda engine, op: _safely(work)))

    # -- in the thread

    def _arrived(self, queues: set[str]) -> None:
        self._news.heard(WORK, queues)

    def ring_here(self, lines: Mapping[Pair, int]) -> None:
        outbox = self.engine.outbox
        if not outbox.takes:
            return
        for pair, many in lines.items():
            place = Place.of(self._namespace, *pair, BELLS)
            for _ in range(min(many, MOST - self._coming[pair])):
                self._coming[pair] += 1
                outbox.send(Posting("", b"", place, Batch(1, partial(self._rung, pair))))

    def _rung(self, pair: Pair, _: Batch) -> None:
        """Confirmed, or lost: the sweep will see."""
        self._coming[pair] -= 1
        if not self._coming[pair]:
            del self._coming[pair]

    def _take(
        self, queues: Sequence[str], tasks: Sequence[str | None], limit: int, found: list[Held]
    ) -> None:
        with contextlib.suppress(OutlastError):  # that it is away
            self.engine.consume()
        if not self._sweeping:
            self._sweeping = True
            self.engine.spawn(self._sweep.run())
        intake = self.engine.intake
        for held in intake.take(queues, tasks, limit):
            if held.source.place.band == BELLS:
                found.append(held)
            else:
                self.engine.spawn(self._adopt([held]))
        apart = intake.apart.of(queues, tasks)
        if apart is not None:
            self.engine.spawn(self._adopt_from(apart))

    def _heed(self, found: list[Held], *, claimed: bool) -> None:
        mine = [held for held in found if not held.settled]
        if claimed:
            self.engine.intake.acknowledge(mine)
            return
        put_back(mine)
        if mine:
            self._arrived({held.source.place.queue for held in mine})

    # -- jobs that were stored here while there were no records

    async def _adopt(self, helds: Iterable[Held]) -> None:
        """Into the records first, under the same id; only then does the broker forget them."""
        for held in helds:
            try:
                job, _ = read(held.body)
                await self._records.add([job])
            except (StoreError, OutlastError) as error:
                _log.warning(
                    "%s: a job of %s stays there, the records don't take it: %s",
                    self.engine.shown, held.source.place.name, error,
                )  # fmt: skip
                continue
            self.engine.intake.acknowledge([held])

    async def _adopt_from(self, place: Place) -> None:
        while (held := await self.engine.intake.apart.fetch(place)) is not None:
            await self._adopt([held])


def _give_back(engine: Engine, helds: Sequence[Held]) -> None:
    """To the broker, for others; how often that happens tells nobody anything."""
    for held in helds:
        held.settled = True
        channel = held.source.channel
        if held.source.unacked.pop(held.tag, None) is not None and channel is not None:
            with contextlib.suppress(AMQPError):
                channel.raw.basic_nack(held.tag, requeue=True)


def _safely(work: Callable[[], None]) -> None:
    """Nobody waits for it, so nobody else could tell."""
    try:
        work()
    except Exception:
        _log.exception("a bell could not be handled")
