"""Celery's queues on RabbitMQ, used as they are; and results as messages, as with ``rpc://``."""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pika

from outlast.contrib.celery.beside.carrier import Taken
from outlast.contrib.celery.beside.wire import Parcel, write
from outlast.errors import StoreUnavailable
from outlast.stores.rabbitmq.address import read
from outlast.stores.rabbitmq.faults import mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outlast.contrib.celery.beside.canvas import Part, Result, Size
    from outlast.contrib.celery.beside.wire import Call

__all__ = ["RabbitBroker", "RpcBackend"]

T = TypeVar("T")

PREFETCH = 500
"""Messages that the broker hands us ahead; it has them back when the connection ends."""
HEARTBEAT = 300
"""Seconds. It is answered when there is something to do, and the intake may rest for a while."""

_json = msgspec.json.Encoder(enc_hook=str).encode


class _Link:
    """One connection that blocks, in a thread of the event loop's; one call at a time."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        self._address = read(f"{'amqps' if scheme == 'amqps' else 'amqp'}://{rest}", {})
        self._lock = asyncio.Lock()
        self._connection: Any = None
        self.epoch = 0

    async def run(self, call: Callable[[Any], T]) -> T:
        """``call`` is given the connection. After an error it is another one, the next time."""
        async with self._lock:
            work = asyncio.ensure_future(asyncio.to_thread(self._guarded, call))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                # Nobody else may use the connection before the thread has left it.
                await asyncio.wait((work,))
                raise

    def _guarded(self, call: Callable[[Any], T]) -> T:
        try:
            if self._connection is None:
                parameters = self._address.parameters("outlast beside Celery")
                parameters.heartbeat = HEARTBEAT
                self._connection = pika.BlockingConnection(parameters)
                self.epoch += 1
            return call(self._connection)
        except Exception as error:
            self._drop()
            if isinstance(error, StoreUnavailable):
                raise
            raise mapped(error, self._address.shown) from error

    async def close(self) -> None:
        async with self._lock:
            # At once and not in a thread: the event loop may be about to end.
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.is_open:
            try:
                connection.close()
            except Exception as error:
                raise mapped(error, self._address.shown) from error


class RabbitBroker:
    """No queue is ever declared: what is there is used, and what isn't there is an error."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._in, self._out = _Link(url), _Link(url)
        self._channel: Any = None
        self._epoch = 0
        self._waiting: deque[Taken] = deque()
        self._sending: tuple[int, Any] = (0, None)

    def priority(self, given: int | None) -> int:
        return min(max(given or 0, 0), 100)

    async def take(
        self, queues: Sequence[str], limit: int, left: float | None = None
    ) -> Sequence[Taken]:
        def take(connection: Any) -> list[Taken]:
            if self._epoch != self._in.epoch:
                self._consume(connection, queues)
            connection.process_data_events(time_limit=0)
            if not self._channel.is_open:
                raise StoreUnavailable("Celery's RabbitMQ has closed our channel")
            count = min(limit, len(self._waiting))
            return [self._waiting.popleft() for _ in range(count)]

        return await self._in.run(take)

    def _consume(self, connection: Any, queues: Sequence[str]) -> None:
        """On a new connection; what the old one held is the broker's again."""
        self._waiting.clear()
        self._channel = connection.channel()
        self._channel.basic_qos(prefetch_count=PREFETCH)
        for queue in queues:
            self._channel.basic_consume(queue, self._hear(queue, self._in.epoch))
        self._epoch = self._in.epoch

    def _hear(self, queue: str, epoch: int) -> Any:
        def heard(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            parcel = Parcel(
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
            raw = {
                "headers": parcel.headers,
                "properties": parcel.properties,
                "content-type": properties.content_type,
                "content-encoding": properties.content_encoding,
                "body": base64.b64encode(body).decode(),
            }
            tag = epoch, method.delivery_tag
            self._waiting.append(
                Taken(tag=tag, raw=_json(raw), queue=queue, parcel=parcel, again=method.redelivered)
            )

        return heard

    async def settle(self, taken: Sequence[Taken]) -> None:
        await self._answer(taken, lambda channel, tag: channel.basic_ack(tag))

    async def give_back(self, taken: Sequence[Taken]) -> None:
        await self._answer(taken, lambda channel, tag: channel.basic_nack(tag, requeue=True))

    async def _answer(self, taken: Sequence[Taken], answer: Callable[[Any, int], None]) -> None:
        def tell(connection: Any) -> None:
            for one in taken:
                epoch, tag = one.tag
                # Of an earlier connection: the broker has it again, and its id tells what it is.
                if epoch == self._in.epoch == self._epoch:
                    answer(self._channel, tag)
            connection.process_data_events(time_limit=0)

        await self._in.run(tell)

    async def send(self, calls: Sequence[Call]) -> None:
        def send(connection: Any) -> None:
            epoch, channel = self._sending
            if epoch != self._out.epoch:
                channel = connection.channel()
                channel.confirm_delivery()
                self._sending = self._out.epoch, channel
            for call in calls:
                _publish(channel, call)

        await self._out.run(send)

    async def close(self) -> None:
        await self._in.close()
        await self._out.close()


def _publish(channel: Any, call: Call) -> None:
    parcel = write(call)
    properties = pika.BasicProperties(
        content_type=parcel.content_type,
        content_encoding=parcel.content_encoding,
        headers=parcel.headers,
        delivery_mode=2,
        priority=call.priority,
        correlation_id=call.id,
        reply_to=call.reply_to,
    )
    try:
        channel.basic_publish("", call.queue, parcel.body, properties, mandatory=True)
    except (pika.exceptions.UnroutableError, pika.exceptions.NackError) as error:
        raise StoreUnavailable(
            f"Celery's RabbitMQ takes no message for queue {call.queue!r}: is it there, and has it"
            f" room? ({type(error).__name__})"
        ) from error


def _plain(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """What JSON can keep; a table of AMQP may hold moments, decimals and bytes besides."""
    kept: dict[str, Any] = msgspec.json.decode(_json(dict(found or {})))
    return kept


class RpcBackend:
    """Results as messages to the queue that the caller named. Chords have no place there."""

    def __init__(self, url: str) -> None:
        self._link = _Link(url)
        self._sending: tuple[int, Any] = (0, None)

    async def store(self, results: Sequence[Result], sizes: Sequence[Size]) -> None:
        def send(connection: Any) -> None:
            epoch, channel = self._sending
            if epoch != self._link.epoch:
                channel = connection.channel()
                channel.confirm_delivery()
                self._sending = self._link.epoch, channel
            for result in results:
                if not result.reply_to:
                    continue
                properties = pika.BasicProperties(
                    content_type="application/json",
                    content_encoding="utf-8",
                    delivery_mode=1,
                    correlation_id=result.id,
                )
                # Not mandatory: the caller may be gone by now, and his queue with him.
                channel.basic_publish("", result.reply_to, _json(result.document), properties)

        await self._link.run(send)

    async def part(self, part: Part) -> Sequence[Any] | None:
        return None

    async def finish(self, group: str) -> None:
        return None

    async def close(self) -> None:
        await self._link.close()
