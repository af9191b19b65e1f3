"""Celery's queues on RabbitMQ, used as they are; and results as messages, as with ``rpc://``."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
import pika
from msgspec import Struct
from pika.exceptions import AMQPError

from outlast.clock import SystemClock
from outlast.contrib.celery.beside.carrier import Taken
from outlast.contrib.celery.beside.wire import Parcel, write
from outlast.errors import StoreUnavailable
from outlast.stores.rabbitmq.address import read
from outlast.stores.rabbitmq.faults import mapped
from outlast.stores.rabbitmq.link import dial

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from outlast.contrib.celery.beside.canvas import Part, Result, Size
    from outlast.contrib.celery.beside.wire import Call
    from outlast.stores.rabbitmq.link import Channel, Link

__all__ = ["RabbitBroker", "RpcBackend"]

log = logging.getLogger(__name__)

PREFETCH = 500
"""Messages of one queue that the broker hands out ahead of our acknowledging them."""
CONFIRM = 30.0
CONTROL = "celery.pidbox"
"""Celery's exchange for what is broadcast to all of its workers."""
KNOWN = 10_000
"""Calls whose end was told, and of which nothing else is told after it."""
ABSENT = 5.0
"""Seconds until a queue that was not there is asked for again."""

_json = msgspec.json.Encoder(enc_hook=str).encode


class _Tag(Struct, frozen=True):
    channel: Any
    number: int
    out: dict[int, None]
    """The numbers on this channel that were taken and are not settled, in order."""


class _Publisher:
    """A connection, and on it a channel on which the broker confirms."""

    def __init__(self, url: str) -> None:
        self._address = read(_ours(url), {})
        self.shown = self._address.shown
        self._link: Link | None = None
        self._channel: Channel | None = None
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._by_id: dict[str, asyncio.Future[None]] = {}
        self._sent = 0
        self._dialing, self._opening = asyncio.Lock(), asyncio.Lock()

    async def link(self) -> Link:
        """The connection, made anew if it has ended. Raises our errors."""
        async with self._dialing:
            if self._link is None or self._link.closed.done():
                self._channel = None
                self._link = await dial(self._address, "outlast beside Celery")
            return self._link

    async def channel(self) -> Channel:
        # One at a time: confirms are known by their numbers, which begin anew on each channel.
        async with self._opening:
            link = await self.link()
            if self._channel is None or self._channel.closed.done():
                self._fail(StoreUnavailable(f"{self.shown}: the connection was lost"))
                channel = await link.channel()
                channel.raw.add_on_return_callback(self._on_return)
                await channel.ask(channel.raw.confirm_delivery, self._on_confirm)
                self._sent = 0
                self._channel = channel
            return self._channel

    async def publish(
        self, messages: Iterable[tuple[str, bytes, pika.BasicProperties]], *, mandatory: bool
    ) -> Sequence[BaseException | None]:
        """To queues by their names; what became of each. Raises our errors if nobody knows."""
        channel = await self.channel()
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[None]] = []
        try:
            for queue, body, properties in messages:
                channel.raw.basic_publish("", queue, body, properties, mandatory=mandatory)
                self._sent += 1
                confirmed: asyncio.Future[None] = loop.create_future()
                self._waiting[self._sent] = self._by_id[properties.correlation_id] = confirmed
                waiting.append(confirmed)
        except AMQPError as error:
            raise mapped(error, self.shown) from error
        if not waiting:
            return ()
        lost = asyncio.ensure_future(asyncio.wait((channel.closed,)))
        everything = asyncio.gather(*waiting, return_exceptions=True)
        try:
            await asyncio.wait((everything, lost), timeout=CONFIRM, return_when="FIRST_COMPLETED")
            if not everything.done():
                raise StoreUnavailable(f"{self.shown}: it did not confirm what was sent")
            return everything.result()
        finally:
            lost.cancel()
            everything.cancel()
            self._by_id.clear()

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        last = method.delivery_tag
        tags = [tag for tag in self._waiting if tag <= last] if method.multiple else [last]
        for tag in tags:
            future = self._waiting.pop(tag, None)
            if future is None or future.done():
                continue
            if isinstance(method, pika.spec.Basic.Ack):
                future.set_result(None)
            else:
                future.set_exception(StoreUnavailable(f"{self.shown}: it refused a message"))

    def _on_return(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        # Its confirm comes right after, and says nothing of this.
        text = f"{self.shown}: there is no queue {method.routing_key!r}; Celery declares its own"
        future = self._by_id.get(properties.correlation_id)
        if future is not None and not future.done():
            future.set_exception(StoreUnavailable(text))

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)
                future.exception()

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()


def _ours(url: str) -> str:
    """``pyamqp`` and ``librabbitmq`` are names that kombu has for the same protocol."""
    scheme, colon, rest = url.partition(":")
    return f"{'amqps' if scheme == 'amqps' else 'amqp'}{colon}{rest}"


class _Line:
    """One queue that is consumed, on a channel of its own: what goes wrong there stays there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[Taken] = deque()
        self.out: dict[int, None] = {}
        self.channel: Channel | None = None
        self.absent_until = 0.0

    @property
    def is_open(self) -> bool:
        return self.channel is not None and not self.channel.closed.done()

    async def open(self, link: Link, shown: str) -> None:
        """Consume it as it is. It is not declared: if it isn't there, it is asked for later."""
        self.ready.clear()
        self.out = {}
        channel = await link.channel()
        # The broker ends it when the queue is deleted; it is asked for anew as soon as it is back.
        channel.raw.add_on_cancel_callback(lambda _: channel.raw.close())
        try:
            await channel.ask(channel.raw.basic_qos, prefetch_count=PREFETCH)
            await channel.ask(channel.raw.basic_consume, self.name, self._on_message)
        except AMQPError as error:
            self.absent_until = asyncio.get_running_loop().time() + ABSENT
            if link.closed.done():
                raise mapped(error, shown) from error
            why = "there is no such queue yet; Celery declares its own"
            if getattr(error, "reply_code", None) != 404:
                why = str(mapped(error, shown))
            log.warning("%s: nothing comes from queue %r: %s", shown, self.name, why)
            return
        self.channel = channel

    def _on_message(self, raw: Any, method: Any, properties: Any, body: bytes) -> None:
        tag = _Tag(raw, method.delivery_tag, self.out)
        again = bool(method.redelivered)
        parcel = _parcel(properties, body)
        self.ready.append(Taken(tag=tag, raw=body, queue=self.name, parcel=parcel, again=again))


def _parcel(properties: Any, body: bytes) -> Parcel:
    return Parcel(
        body=body,
        content_type=properties.content_type or "application/json",
        content_encoding=properties.content_encoding or "utf-8",
        headers=_plain(properties.headers),
        properties=_plain(
            {
                "correlation_id": properties.correlation_id,
                "reply_to": properties.reply_to,
                "priority": properties.priority,
            }
        ),
    )


def _plain(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """What JSON can keep; a table of AMQP may hold moments, decimals and bytes besides."""
    kept: dict[str, Any] = msgspec.json.decode(_json(dict(found or {})))
    return kept


async def _tapped(channel: Channel, **declared: Any) -> asyncio.Queue[Parcel | None]:
    """What is broadcast to Celery's workers from now on; None when no more comes."""
    heard: asyncio.Queue[Parcel | None] = asyncio.Queue()

    def hear(_: Any, __: Any, properties: Any, body: bytes) -> None:
        heard.put_nowait(_parcel(properties, body))

    raw = channel.raw
    await channel.ask(raw.exchange_declare, CONTROL, **declared)
    made = await channel.ask(raw.queue_declare, "", exclusive=True, auto_delete=True)
    queue = made.method.queue
    await channel.ask(raw.queue_bind, queue, CONTROL)
    await channel.ask(raw.basic_consume, queue, hear, auto_ack=True)
    channel.closed.add_done_callback(lambda _: heard.put_nowait(None))
    return heard


class RabbitBroker:
    """What is unacknowledged when we die goes back by itself, and is known by its id."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._publisher = _Publisher(url)
        self._lines: dict[str, _Line] = {}
        self._turn = 0
        self._clock = SystemClock()

    def priority(self, given: int | None) -> int:
        return min(max(given or 0, 0), 100)

    async def take(
        self, queues: Sequence[str], limit: int, left: float | None = None
    ) -> Sequence[Taken]:
        lines = [self._lines.setdefault(name, _Line(name)) for name in queues]
        for line in lines:
            if not line.is_open and asyncio.get_running_loop().time() >= line.absent_until:
                await line.open(await self._publisher.link(), self._publisher.shown)
        # From here on nothing may fail: what is taken and told to nobody stays in our hands.
        self._turn += 1
        first = self._turn % len(lines)
        taken: list[Taken] = []
        for line in (*lines[first:], *lines[:first]):
            while line.ready and len(taken) < limit:
                one = line.ready.popleft()
                one.tag.out[one.tag.number] = None
                taken.append(one)
        if not taken:
            # Whoever asks again at once lets the connection speak meanwhile.
            await self._clock.sleep(0)
        return taken

    async def settle(self, taken: Sequence[Taken]) -> None:
        channels: dict[int, list[_Tag]] = {}
        for one in taken:
            one.tag.out.pop(one.tag.number, None)
            channels.setdefault(id(one.tag.channel), []).append(one.tag)
        for tags in channels.values():
            # Handed out in order and taken in order, so the last one stands for all before it,
            # unless one of them is another's still: of a second worker in this process, perhaps.
            last = tags[-1]
            alone = next(iter(last.out), last.number) < last.number
            for tag in tags if alone else (last,):
                self._answer(tag.channel.basic_ack, tag, multiple=not alone)

    async def give_back(self, taken: Sequence[Taken]) -> None:
        for one in taken:
            one.tag.out.pop(one.tag.number, None)
            self._answer(one.tag.channel.basic_nack, one.tag, requeue=True)

    def _answer(self, call: Any, tag: _Tag, **more: bool) -> None:
        try:
            call(tag.number, **more)
        except AMQPError as error:
            # The broker gives it out again, and it is found to be stored.
            log.info("%s: a message could not be settled: %s", self._publisher.shown, error)

    async def send(self, calls: Sequence[Call]) -> Sequence[BaseException | None]:
        return await self._publisher.publish(map(_letter, calls), mandatory=True)

    async def overhear(self, told: Callable[[Parcel], Awaitable[None]]) -> None:
        # The queue is ours alone and goes with the connection.
        channel = await (await self._publisher.link()).channel()
        try:
            heard = await _tapped(channel, passive=True)
        except AMQPError as error:
            if getattr(error, "reply_code", None) != 404:
                raise mapped(error, self._publisher.shown) from error
            channel = await (await self._publisher.link()).channel()
            heard = await self._made(channel)
        try:
            while (parcel := await heard.get()) is not None:
                await told(parcel)
            raise mapped(channel.why or AMQPError(), self._publisher.shown)
        finally:
            if channel.raw.is_open:
                channel.raw.close()

    async def _made(self, channel: Channel) -> asyncio.Queue[Parcel | None]:
        """Nobody has spoken to a worker of Celery's here yet: the exchange is made as it has it."""
        try:
            return await _tapped(channel, exchange_type="fanout", durable=False)
        except AMQPError as error:
            raise mapped(error, self._publisher.shown) from error

    async def close(self) -> None:
        self._lines.clear()
        await self._publisher.close()


def _letter(call: Call) -> tuple[str, bytes, pika.BasicProperties]:
    parcel = write(call)
    properties = pika.BasicProperties(
        content_type=parcel.content_type,
        content_encoding=parcel.content_encoding,
        headers=parcel.headers,
        correlation_id=call.id,
        reply_to=call.reply_to,
        delivery_mode=2,
        priority=min(max(call.priority or 0, 0), 255),
    )
    return call.queue, bytes(parcel.body), properties


def _answers(
    results: Sequence[Result],
) -> Iterator[tuple[str, bytes, pika.BasicProperties]]:
    """Messages to those who wait for these."""
    for result in results:
        if result.reply_to:
            properties = pika.BasicProperties(
                content_type="application/json",
                content_encoding="utf-8",
                correlation_id=result.id,
                delivery_mode=1,
            )
            yield result.reply_to, _json(result.document), properties


class RpcBackend:
    """``rpc://``: results are messages to whoever waits. It can't count the parts of a chord."""

    keeps_ends = False

    def __init__(self, url: str) -> None:
        self._publisher = _Publisher(url)
        self._ended: dict[str, None] = {}

    async def store(self, results: Sequence[Result], sizes: Sequence[Size]) -> None:
        for result in results:
            self._ended[result.id] = None
        while len(self._ended) > KNOWN:
            del self._ended[next(iter(self._ended))]
        # Who doesn't wait any more has no queue any more.
        await self._publisher.publish(_answers(results), mandatory=False)

    async def note(self, results: Sequence[Result]) -> None:
        # Whoever looks sees the last message, so nothing is told after an end.
        news = [one for one in results if one.id not in self._ended]
        await self._publisher.publish(_answers(news), mandatory=False)

    async def part(self, part: Part) -> tuple[Sequence[Any], Any] | None:
        log.error(
            "chord %s: rpc:// can't count its parts, with Celery's workers neither; use a Redis "
            "as result backend", part.group,
        )  # fmt: skip
        return None

    async def finish(self, group: str) -> None: ...

    async def close(self) -> None:
        await self._publisher.close()
