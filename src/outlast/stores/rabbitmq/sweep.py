"""The sweep: rings for whatever can be claimed from the records and has no bell on its way.

What came due, came back, was added in a transaction of somebody's or was added by a process that
died before it could ring: the records tell of all of it alike. One process does it for a namespace:
the one that the broker lets consume from a queue that nothing is ever sent to.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from msgspec import Struct
from pika.exceptions import AMQPError, ChannelClosed

from outlast.errors import OutlastError
from outlast.stores.rabbitmq.faults import mapped
from outlast.stores.rabbitmq.topology import BELLS, Place, plain_arguments, sweep_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outlast.chance import Chance
    from outlast.store import Ledger, Line, Store
    from outlast.stores.rabbitmq.engine import Engine
    from outlast.stores.rabbitmq.link import Channel

__all__ = ["Sweep"]

_log = logging.getLogger(__name__)

STAND_IN = 2.0
"""Seconds between two looks whether somebody else sweeps, and half as many more by chance."""
ROUND, BREATH = 1.0, 0.05
"""Seconds between two rounds, at most and at least."""
GRACE = 0.2
"""Seconds that a job may be claimable without a bell: it is just being rung, most likely."""
SOME = 16
"""Bells that are rung for a line at once."""
FIRST_GAP, LONGEST_GAP = 1.0, 8.0
"""Seconds until a line is rung again that did not change: what waits there can't be claimed now."""

Pair = tuple[str, str | None]


class _Watched(Struct):
    """A line with jobs that look claimable."""

    sign: tuple[int, int]
    """Its counts when it was last looked at."""
    running: int
    """That of all lines: another one's end may let go a lane."""
    at: float
    """When it is to be rung."""
    gap: float = FIRST_GAP


class Sweep:
    """Lives in the engine's thread."""

    def __init__(
        self,
        engine: Engine,
        open_records: Callable[[], Store],
        ring: Callable[[Mapping[Pair, int]], None],
        chance: Chance,
    ) -> None:
        self._engine = engine
        self._open = open_records
        self._ring = ring
        self._chance = chance
        self._watched: dict[Pair, _Watched] = {}
        self._delayed: dict[Pair, int] = {}
        self.leads = False
        """Whether it is the one."""

    async def run(self) -> None:
        """Sweep whenever nobody else does."""
        while True:
            try:
                await self._engine.consuming()
                channel = await self._elected()
                if channel is not None:
                    await self._lead(channel)
            except (OutlastError, AMQPError) as error:
                _log.info("%s: no sweep for now: %s", self._engine.shown, error)
            except Exception:
                _log.exception("%s: the sweep broke, and begins anew", self._engine.shown)
            await asyncio.sleep(STAND_IN * (1 + self._chance.random() / 2))

    async def _elected(self) -> Channel | None:
        """A channel that nobody else has as long as it is open; or None, for somebody has it."""
        name, leaders = sweep_name(self._engine.namespace), self._engine.leaders
        if leaders.is_mute(name) and not await leaders.is_back(name):
            return None
        channel = await self._engine.intake.link().channel()
        arguments = plain_arguments(self._engine.version)
        try:
            declared = await channel.ask(
                channel.raw.queue_declare, name, durable=True, arguments=arguments
            )
            if not declared.method.consumer_count:
                leaders.asked(name)
                await channel.ask(
                    channel.raw.basic_consume, name, _nothing, exclusive=True, auto_ack=True
                )
                leaders.answered(name)
                return channel
        except ChannelClosed as error:
            _log.info("%s", mapped(error, self._engine.shown))  # somebody was faster
            return None
        await channel.close()
        return None

    async def _lead(self, channel: Channel) -> None:
        records = self._open()
        self._watched.clear()
        self._delayed.clear()
        self.leads = True
        ended = asyncio.ensure_future(asyncio.wait((channel.closed,)))
        channel.raw.add_on_cancel_callback(lambda _: channel.raw.close())
        try:
            await records.open()
            while not ended.done():
                began = self._engine.loop.time()
                lines = await cast("Ledger", records).lines()
                pause = await self._round(lines)
                queues = {queue for queue, _ in self._engine.intake.asked}
                queues |= {line.queue for line in lines}
                news = asyncio.ensure_future(records.wait(sorted(queues), ROUND))
                try:
                    await asyncio.wait(
                        (news, ended), timeout=pause, return_when=asyncio.FIRST_COMPLETED
                    )
                    if news.done():
                        news.result()
                finally:
                    news.cancel()
                await asyncio.sleep(max(0.0, began + BREATH - self._engine.loop.time()))
        finally:
            self.leads = False
            ended.cancel()
            await channel.close()
            await records.close()

    async def _round(self, lines: Sequence[Line]) -> float:
        """Ring where it is time to; how many seconds until the next look."""
        now = self._engine.loop.time()
        running = sum(line.depth.running for line in lines)
        for line in lines:
            pair = (line.queue, line.task)
            if self._is_time(pair, line, running, now) and not await self._bells_of(pair):
                self._ring({pair: min(line.depth.ready, SOME)})
        there = {(line.queue, line.task) for line in lines}
        for gone in self._watched.keys() - there:
            del self._watched[gone]
        nearest = min((watched.at for watched in self._watched.values()), default=now + ROUND)
        return max(0.0, min(ROUND, nearest - now))

    def _is_time(self, pair: Pair, line: Line, running: int, now: float) -> bool:
        depth = line.depth
        came_due = depth.delayed < self._delayed.get(pair, 0)
        self._delayed[pair] = depth.delayed
        if line.paused or not depth.ready:
            self._watched.pop(pair, None)
            return False
        first = now if came_due else now + GRACE
        sign = (depth.ready, depth.running)
        watched = self._watched.setdefault(pair, _Watched(sign, running, first))
        if came_due or watched.sign != sign:
            watched.sign, watched.gap = sign, FIRST_GAP
            watched.at = min(watched.at, first)
        if watched.running != running:
            watched.running, watched.gap = running, FIRST_GAP
            watched.at = min(watched.at, now + FIRST_GAP)
        if watched.at > now:
            return False
        watched.at, watched.gap = now + watched.gap, min(2 * watched.gap, LONGEST_GAP)
        return True

    async def _bells_of(self, pair: Pair) -> int:
        """How many wait on the broker for somebody who has room."""
        place = Place.of(self._engine.namespace, *pair, BELLS)
        found = await self._engine.intake.link().look(place.name)
        return 0 if found is None else found[0]


def _nothing(*_: object) -> None:
    """Nothing is ever sent there."""
