"""Consumes: what the broker delivers waits here until it is claimed, and is acknowledged from here.

A worker is never sent what it doesn't know, since each task of a queue has AMQP queues of its own.
It consumes from those that exist, hears of new ones, and looks for itself now and then.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from pika.exceptions import AMQPError

from outlast.errors import OutlastError, StoreUnavailable
from outlast.stores.rabbitmq.apart import Apart
from outlast.stores.rabbitmq.faults import mapped
from outlast.stores.rabbitmq.held import Held, claimed
from outlast.stores.rabbitmq.source import MOST, TAKES_BACK, Source, settled, take_first
from outlast.stores.rabbitmq.topology import ALONE, BANDS, Place, news_name

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from outlast.stores.rabbitmq.leaders import Leaders
    from outlast.stores.rabbitmq.link import Channel, Link

__all__ = ["Intake"]

_log = logging.getLogger(__name__)

LOOK = 30.0
"""Seconds between two looks for queues nobody told us of, and for consumers that get nothing."""
REST = 5.0
"""Seconds without a claim after which what was sent ahead goes back, for others to take."""
STALE = 0.01
"""The same for one queue of which nothing was claimed, as a part of what a run may last: what waits
here is held already, by the broker's clock."""
PROBES = 20
"""Queues that are asked for at once."""

Pair = tuple[str, str | None]


class Intake:
    """The consuming half of an engine, over one connection at a time."""

    def __init__(
        self,
        namespace: str,
        shown: str,
        arrived: Callable[[set[str]], None],
        give_back: Callable[[Sequence[Held]], None],
        longest: float | None,
        leaders: Leaders,
        bands: Sequence[str] = BANDS,
        rest: float = REST,
    ) -> None:
        self.asked: set[Pair] = set()
        """Lines that were asked for, ever."""
        self._namespace = namespace
        self._shown = shown
        self._arrived = arrived
        self._give_back = give_back
        self._stale = inf if longest is None else longest * STALE
        self._leaders = leaders
        self._bands = bands
        self._rest = rest
        self._link: Link | None = None
        self._channel: Channel | None = None
        self._sources: dict[str, Source] = {}
        self._all: set[Source] = set()
        """Those too whose queue is gone, for what was claimed from it."""
        self._orders: dict[tuple[Any, Any], list[list[Source]]] = {}
        self.apart = Apart(self._made, self._open, self._received, lambda: not self.out, shown)
        self._caught: set[Pair] = set()
        self._consuming: set[asyncio.Task[None]] = set()
        """Consumers that are about to begin."""
        self._news = ""
        self._want = 1
        self._count = 0
        self._numbers = 0
        self._claimed_at = 0.0
        self._rings: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._probing = asyncio.Semaphore(PROBES)

    @property
    def is_on(self) -> bool:
        return self._channel is not None

    async def begin(self, link: Link) -> None:
        """Use a new connection: consume what was asked for, as far as it exists."""
        channel = await link.channel()
        raw = channel.raw
        news = news_name(self._namespace)
        try:
            await channel.ask(raw.exchange_declare, news, "fanout", durable=True)
            mine = await channel.ask(raw.queue_declare, "", exclusive=True)
            self._news = mine.method.queue
            await channel.ask(raw.queue_bind, self._news, news, "")
            await channel.ask(raw.basic_consume, self._news, self._on_news, auto_ack=True)
        except AMQPError as error:
            raise mapped(error, self._shown) from error
        self._link, self._channel = link, channel
        channel.closed.add_done_callback(lambda _: self._channel_lost(channel))
        asked = set(self.asked)
        await self._look(asked)
        self._caught |= asked  # not those that were asked for meanwhile

    def lost(self) -> None:
        """The connection is gone: the broker gives all of it to others."""
        self._link = self._channel = None
        self._leaders.lost()
        for source in self._all:
            source.lost()
        self._all.clear()
        self.apart.clear()
        self._sources.clear()
        self._orders.clear()
        self._caught.clear()

    def _channel_lost(self, channel: Channel) -> None:
        if channel is self._channel and self._link is not None and self._link.raw.is_open:
            _log.warning("%s: consuming begins anew: %s", self._shown, channel.why)
            self._link.raw.close()

    def _source_lost(self, source: Source) -> None:
        """The broker closed a channel, as when it held a message for too long."""
        if source not in self._all:
            return
        held, mine = len(source.unacked), self._forget(source)
        source.lost()
        self._all.discard(source)
        self.apart.lost(source)
        if self._link is None or not self._link.raw.is_open:
            return  # it went with the connection
        why = None if source.channel is None else source.channel.why
        _log.warning("%s: %d jobs go back to %s: %s", self._shown, held, source.place.name, why)
        if mine:
            self._spawn(self._look({source.pair}))

    def _forget(self, source: Source) -> bool:
        """Claim no more from it; whether that was done."""
        if mine := self._sources.get(source.place.name) is source:
            del self._sources[source.place.name]
            self._orders.clear()
        return mine

    # -- claiming

    def take(self, queues: Sequence[str], tasks: Sequence[str | None], limit: int) -> list[Held]:
        """Up to so many messages, the most urgent first, and of these the first to come."""
        self._claimed_at = asyncio.get_running_loop().time()
        self._want = max(1, limit)
        key = (tuple(queues), tuple(tasks))
        bands = self._orders.get(key)
        if bands is None:
            bands = self._orders[key] = self._order(queues, tasks)
        found: list[Held] = []
        for band in bands:
            take_first(band, limit, found)
        if len(found) < limit:
            for band in bands:
                for source in band:
                    if source.tag is None:
                        self._consume_soon(source)
                    elif source.is_full and source.prefetch < MOST:
                        self._grow(source, limit)
        return found

    def _order(self, queues: Iterable[str], tasks: Iterable[str | None]) -> list[list[Source]]:
        pairs = {(queue, task) for queue in queues for task in tasks}
        self.asked |= pairs
        return [
            [
                source
                for source in self._sources.values()
                if source.place.band == band and source.pair in pairs
            ]
            for band in self._bands
        ]

    def link(self) -> Link:
        """The connection that consumes. Raises our errors."""
        if self._link is None:
            raise StoreUnavailable(f"{self._shown}: not connected")
        return self._link

    def knows(self, queues: Iterable[str], tasks: Iterable[str | None]) -> bool:
        """Whether ``catch_up`` has been done for all of these on this connection."""
        return all((queue, task) in self._caught for queue in queues for task in tasks)

    async def catch_up(self, queues: Iterable[str], tasks: Iterable[str | None]) -> None:
        """Return when everything is here that was confirmed before, as far as it is sent ahead.

        An answer on the channel that consumes comes after the deliveries that were due before it.
        Raises our errors.
        """
        channel, pairs = self._channel, {(queue, task) for queue in queues for task in tasks}
        self.asked |= pairs
        if channel is None:
            raise StoreUnavailable(f"{self._shown}: not connected")
        try:
            await channel.ask(channel.raw.queue_declare, self._news, passive=True)
            await self._look(pairs - self._caught)
            if channel is self._channel:
                self._caught |= pairs
            while self._consuming:
                await asyncio.gather(*self._consuming)
            answers = [
                channel.ask(channel.raw.queue_declare, source.place.name, passive=True)
                for source in self._sources.values()
                if source.tag is not None and source.pair in pairs and (channel := source.channel)
            ]
            await asyncio.gather(*answers)
        except AMQPError as error:
            raise mapped(error, self._shown) from error

    def there_is(self, place: Place) -> None:
        """Something was set apart there."""
        self.apart.pending.add(place)
        self._arrived({place.queue})

    def _made(self, place: Place) -> Source:
        source = Source(place)
        self._all.add(source)
        return source

    @property
    def out(self) -> int:
        """How many are claimed, or on their way to somewhere else."""
        return sum(len(source.unacked) - len(source.buffer) for source in self._all)

    def counts(self, queue: str) -> tuple[int, int]:
        """Of this queue: how many wait here, and how many are claimed."""
        mine = [source for source in self._all if source.place.queue == queue]
        waiting = sum(len(source.buffer) for source in mine)
        return waiting, sum(len(source.unacked) for source in mine) - waiting

    def acknowledge(self, helds: Iterable[Held]) -> None:
        """Let the broker forget them; those of a channel that is gone are not ours any more."""
        sources: dict[Source, list[Held]] = {}
        for held in helds:
            if not held.settled:
                held.settled = True
                sources.setdefault(held.source, []).append(held)
                if held.claim is not None:
                    claimed.pop(held.claim.receipt, None)
        for source, mine in sources.items():
            source.acknowledge(mine)
            if source.detached:
                self._end(source)
        if sources and self.apart.is_in_use and not self.out:  # who runs alone may, or the others
            self._arrived({source.place.queue for source in self._all})

    async def settled(self, helds: Iterable[Held] | None = None) -> None:
        """When the broker has read the acknowledgements of these. Raises our errors."""
        await settled(self._all if helds is None else {held.source for held in helds}, self._shown)

    # -- consumers

    def _consume_soon(self, source: Source) -> None:
        self._begin(source, max(self._want, len(source.unacked) + 1))

    def _grow(self, source: Source, limit: int) -> None:
        """A worker that is this fast is sent more ahead."""
        self._begin(source, max(2 * source.prefetch, len(source.unacked) + limit))

    def _begin(self, source: Source, prefetch: int) -> None:
        if not source.beginning:
            source.beginning = True
            task = self._spawn(self._consume(source, min(MOST, prefetch)))
            self._consuming.add(task)
            task.add_done_callback(self._consuming.discard)

    async def _consume(self, source: Source, prefetch: int) -> None:
        try:
            channel = source.channel or await self._open(source)
            if source.tag is not None:
                await channel.ask(channel.raw.basic_cancel, source.tag)
            if source.detached:  # in the meantime; another one has its place
                self._end(source)
                return
            self._count += 1
            source.tag, source.prefetch = f"outlast.{self._count}", prefetch
            tag, deliver = source.tag, partial(self._deliver, source)
            asked = channel.ask(channel.raw.basic_qos, prefetch_count=prefetch)
            begun = channel.ask(
                channel.raw.basic_consume,
                source.place.name,
                lambda _, how, has, body: deliver(how.delivery_tag, has.headers or {}, body),
                consumer_tag=tag,
            )
            self._leaders.asked(source.place.name)
            await asyncio.gather(asked, begun)
            self._leaders.answered(source.place.name)
            if self._sources.get(source.place.name) is not source and channel.why is None:
                await channel.ask(channel.raw.basic_cancel, tag)
        except (AMQPError, OutlastError) as error:
            _log.info("%s: %s is not consumed: %s", self._shown, source.place.name, error)
        finally:
            source.beginning = False

    async def _open(self, source: Source) -> Channel:
        link = self.link()
        channel = source.channel = await link.channel()
        quick, number = link.raw.quick, channel.raw.channel_number
        quick[number] = partial(self._deliver, source)
        channel.closed.add_done_callback(lambda _: quick.pop(number, None))
        channel.raw.add_on_cancel_callback(lambda _: self._cancelled(source))
        channel.raw.add_on_close_callback(lambda *_: self._source_lost(source))
        return channel

    def _deliver(self, source: Source, tag: int, headers: Mapping[str, Any], body: bytes) -> None:
        """Whichever way it came, also while its consumer is about to end."""
        if source not in self._all:
            return  # it was let go of, and the broker gives this to somebody else
        self._received(source, tag, headers, body)
        if not self._rings:
            asyncio.get_running_loop().call_soon(self._ring)
        self._rings.add(source.place.queue)

    def _received(self, source: Source, tag: int, headers: Mapping[str, Any], body: bytes) -> None:
        crashes = int(headers.get("x-delivery-count", 0)) if headers else 0
        self._numbers += 1
        now = asyncio.get_running_loop().time()
        held = Held(source, tag, body, crashes, self._numbers, now)
        source.unacked[tag] = held
        source.buffer.append(held)

    def _ring(self) -> None:
        queues, self._rings = self._rings, set()
        self._arrived(queues)

    def _cancelled(self, source: Source) -> None:
        """The broker ended a consumer: its queue was deleted, or it held a message for too long."""
        _log.warning("%s: the broker ended a consumer of %s", self._shown, source.place.name)
        source.tag = None
        self._forget(source)
        source.doubtful = self._link is not None and self._link.version >= TAKES_BACK
        self._spawn(self._succeed(source))

    async def _succeed(self, source: Source) -> None:
        if source.doubtful:
            try:
                found = await self.link().look(source.place.name)
            except OutlastError:
                found = 0, 0
            if found is not None and source.channel is not None:
                await source.channel.close()  # nothing it held is ours any more
        source.doubtful = False
        self._detach(source)
        await self._look({source.pair})

    def _detach(self, source: Source) -> None:
        """Its queue is gone, or is another: what was claimed may be settled, the rest goes back."""
        if source.tag is not None and source.channel is not None and source.channel.why is None:
            source.channel.ask(source.channel.raw.basic_cancel, source.tag)
        source.tag, source.detached = None, True
        self._forget(source)
        if source.buffer:
            back = list(source.buffer)
            source.buffer.clear()
            self._give_back(back)
        self._end(source)

    def _end(self, source: Source) -> None:
        """Its channel goes, unless something was claimed from it."""
        if source.unacked:
            return
        self._all.discard(source)
        if source.channel is not None and source.channel.raw.is_open:
            source.channel.raw.close()

    def _on_news(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        queue, task, band, made = body.decode().split("\0")
        pair = (queue, task or None)
        if pair in self.asked and band in self._bands:
            place = Place.of(self._namespace, *pair, band)
            source = self._sources.get(place.name)
            if made:
                self._leaders.has_one(place.name)
                if source is not None:
                    # A consumer of the old one gets nothing, and may never be told so.
                    self._detach(source)
            self._found(place)

    def _found(self, place: Place) -> None:
        if self._leaders.is_mute(place.name):
            self._leaders.when_back(place.name, lambda: self._found(place))
            return
        source = self._sources.get(place.name)
        if source is None:
            source = self._sources[place.name] = self._made(place)
            self._orders.clear()
        if source.tag is None:
            self._consume_soon(source)

    async def _look(self, pairs: Iterable[Pair]) -> None:
        """Consume from what there is of these lines."""
        bands = (*self._bands, ALONE)
        places = [Place.of(self._namespace, *pair, band) for pair in pairs for band in bands]
        await asyncio.gather(*(self._probe(place) for place in places))

    async def _probe(self, place: Place) -> None:
        async with self._probing:
            if (link := self._link) is None:
                return
            source = self._sources.get(place.name)
            tag = None if source is None or source.beginning else source.tag
            try:
                found = await link.look(place.name)
            except OutlastError as error:
                _log.info("%s: %s could not be asked for: %s", self._shown, place.name, error)
                return
            if found is not None and link is self._link:
                self._check(place, *found, tag)

    def _check(self, place: Place, ready: int, consumers: int, tag: str | None) -> None:
        """It exists. A consumer that gets nothing although there is something is none.

        ``tag`` is that of the consumer that we had when the broker was asked.
        """
        if ready:
            self._leaders.has_one(place.name)
        if place.band == ALONE:
            if ready:
                self.there_is(place)
            return
        source = self._sources.get(place.name)
        if source is not None and tag is not None and source.tag == tag and not consumers:
            _log.warning("%s: %s is not consumed any more", self._shown, place.name)
            self._detach(source)
            source = None
        if source is not None and source.tag is not None and ready and not source.is_full:
            link = self._link
            if source.told == self._numbers and link is not None and link.raw.is_open:
                _log.warning("%s: nothing is delivered from %s", self._shown, place.name)
                link.raw.close()
                return
            source.told = self._numbers
        if source is None or not self._resting():
            self._found(place)

    def _resting(self) -> bool:
        return asyncio.get_running_loop().time() - self._claimed_at > self._rest

    async def tick(self) -> None:
        """Now and then: look for queues, and for consumers that get nothing."""
        await self._look(self.asked)

    async def rest(self) -> None:
        """Give back what was sent ahead and has not been claimed for a while."""
        resting, now = self._resting(), asyncio.get_running_loop().time()
        idle = [
            source
            for source in self._all
            if source.buffer
            and (resting or source.detached or now - source.buffer[0].at > self._stale)
        ]
        if idle:
            claimed_at = self._claimed_at
            await self.stop(idle)
            if self._claimed_at != claimed_at:  # who did has got nothing from there, and waits now
                for source in idle:
                    if self._sources.get(source.place.name) is source:
                        self._consume_soon(source)

    async def stop(self, sources: Sequence[Source] | None = None) -> None:
        """Consume no more from these, or at all, and give back what was not claimed."""
        stopping = self._all if sources is None else sources
        mine = [source for source in stopping if not source.beginning]
        for source in mine:
            source.beginning = True
        try:
            await asyncio.gather(*(self._stop(source) for source in mine if source.tag is not None))
        except AMQPError as error:
            raise StoreUnavailable(f"{self._shown}: {error}") from error
        finally:
            for source in mine:
                source.beginning = False
        back = [held for source in mine for held in source.buffer]
        for source in mine:
            source.buffer.clear()
        if back:
            self._give_back(back)

    async def _stop(self, source: Source) -> None:
        if source.channel is not None and source.channel.why is None:
            await source.channel.ask(source.channel.raw.basic_cancel, source.tag)
        source.tag = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
