"""A channel: where kombu publishes, consumes and acknowledges, on the store of its process."""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from kombu.exceptions import OperationalError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments

from outlast.contrib.kombu.batch import PublishBatch
from outlast.contrib.kombu.calls import finish
from outlast.contrib.kombu.messages import delivered, encode, job_for, note_ids, noted_ids
from outlast.contrib.kombu.names import our_name
from outlast.contrib.kombu.running import follows, running
from outlast.errors import EnqueueUncertain, StoreError, StoreStopped, StoreUnavailable
from outlast.limits import MAX_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from outlast.contrib.kombu.shared import Shared
    from outlast.job import Claim, Job

__all__ = ["Channel"]

_log = logging.getLogger(__name__)
T = TypeVar("T")

WINDOW = 100
"""Messages taken at once by a consumer that sets no limit."""
AHEAD = 0.1
"""Seconds of work that are claimed ahead of those who may have it, so that claims are few."""
MOST = 100
"""Messages that are claimed ahead at most."""
CAREFUL = 3
"""Deliveries after which a message is handed out alone, since it may be what kills its workers."""
PAUSE = 0.5
"""Seconds between two tries to store what follows a task, while the store is away."""
STALE = 0.25
"""Seconds after which what was claimed ahead goes back, if nothing of it was wanted meanwhile."""


class QoS(virtual.QoS):
    """What was delivered on one channel and not acknowledged. Acks come from any thread."""

    def ack(self, delivery_tag: str) -> None:
        self.channel.shared.hands.done(delivery_tag)
        super().ack(delivery_tag)
        self.channel.has_room()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue and self.channel.closed:
            self.channel.shared.hands.give_back(delivery_tag)
            return
        if not requeue:
            self.channel.shared.hands.bury(delivery_tag, "the consumer rejected the message")
        super().reject(delivery_tag, requeue=requeue)
        if requeue:
            self.channel.shared.hands.flush()  # whoever looks next is to find it
        self.channel.has_room()


class Channel(virtual.Channel):
    """Messages are durable when ``basic_publish`` returns, in all their queues or in none."""

    QoS = QoS
    supports_fanout = True
    supports_batch_publish = True
    body_encoding = None
    max_priority = MAX_PRIORITY

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._no_ack: set[str] = set()
        self._fleeting: set[str] = set()
        self._ready: deque[Claim] = deque()
        self._claiming: Future[Sequence[Claim]] | None = None
        self._holding = threading.Lock()
        self._ahead = 0
        self._careful = False
        self._passed = 0
        self._counted_at = self._taken_at = 0.0
        self._asked = 0
        self._more = True
        self._was: Shared | None = None
        self._going_on: set[str] = set()

    @property
    def shared(self) -> Shared:
        """The store. One that is closed keeps it: what is at work still is acknowledged there."""
        shared: Shared = self._was or self.connection.shared
        return shared

    # -- publishing

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> None:
        jobs = self._patiently(lambda: self.jobs(message, exchange, routing_key))
        try:
            self._patiently(lambda: self.shared.add(jobs))
        except EnqueueUncertain:
            note_ids(message, jobs)
            raise

    def _patiently(self, what: Callable[[], T]) -> T:
        """Do it; for what follows a task that has run, again and again until the store is back."""
        told = False
        while True:
            try:
                return what()
            except (StoreUnavailable, EnqueueUncertain) as error:
                if isinstance(error, StoreStopped) or not follows():
                    raise
                if not told:
                    _log.warning("what follows a task waits to be stored: %s", error)
                told = True
                threading.Event().wait(PAUSE)

    def jobs(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> list[Job]:
        """The message once for each queue that it goes to.

        Raises ``OperationalError`` for a task that no queue would get: it would be lost.
        """
        self._inplace_augment_message(message, exchange, routing_key)
        queues = sorted(self._lookup(exchange, routing_key)) if exchange else [routing_key]
        if not queues and "task" in (message.get("headers") or {}):
            raise OperationalError(
                f"task {message['headers']['task']} was not sent: no queue is bound to exchange "
                f"{exchange!r} with routing key {routing_key!r}"
            )
        return self._jobs(message, queues)

    def _jobs(self, message: dict[str, Any], queues: Sequence[str]) -> list[Job]:
        ids = noted_ids(message)
        shared, payload = self.shared, encode(message)
        now, time_to_live = shared.clock.now(), shared.places.time_to_live
        return [
            job_for(
                ids.get(our_name(queue)) or shared.chance.uuid7(),
                queue, message, payload, now, time_to_live(queue),
            ) for queue in queues
        ]  # fmt: skip

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """What ``Producer.batch()`` uses: so many messages in one commit."""
        return PublishBatch(self, max_size)

    def encode_body(self, body: Any, encoding: str | None = None) -> Any:
        """Text is stored as it is; only bytes need a form that JSON has."""
        if encoding is None and isinstance(body, bytes | bytearray | memoryview):
            body, encoding = bytes(body), "base64"
        return super().encode_body(body, encoding)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self.shared.add(self._jobs(message, [queue]))

    # -- exchanges, queues and bindings: declared by one process, known to all

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str = "direct",
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        name = exchange or f"amq.{type or 'direct'}"
        if passive and self.shared.places.exchange_kind(name) is not None:
            return
        super().exchange_declare(exchange, type, durable, auto_delete, arguments, nowait, passive)
        self._patiently(lambda: self.shared.places.declare_exchange(name, type or "direct"))

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        self.shared.places.delete_exchange(exchange)
        self.state.exchanges.pop(exchange, None)
        for queue, bound_to, key in list(self.state.bindings):
            if bound_to == exchange:
                self.state.binding_delete(queue, bound_to, key)

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        known = exchange in self.state.exchanges
        kind = None if known else self.shared.places.exchange_kind(exchange)
        return self.exchange_types[kind] if kind else super().typeof(exchange, default)

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        return self.shared.places.table(exchange)

    def list_bindings(self) -> Any:
        return [
            (queue, exchange, key)
            for exchange in self.shared.places.exchanges()
            for key, _, queue in self.get_table(exchange)
        ]

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        self._patiently(lambda: self.shared.places.bind(exchange, routing_key, pattern, queue))

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        exchange = exchange or "amq.direct"
        self.state.binding_delete(queue, exchange, routing_key)
        self.shared.places.unbind(exchange, routing_key, queue)

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    def _new_queue(self, queue: str, **options: Any) -> None:
        wanted = ("durable", "auto_delete", "exclusive", "arguments")
        if options.get("auto_delete"):
            self._fleeting.add(queue)
        given = {name: options.get(name) for name in wanted}
        self._patiently(lambda: self.shared.places.declare_queue(queue, given))

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return self.shared.places.queue(queue) is not None

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        if if_empty and self._size(queue):
            return
        self.shared.places.delete_queue(queue)
        self.state.queue_bindings_delete(queue)
        self._purge(queue)

    def _size(self, queue: str) -> int:
        return self.shared.store.depth_now(our_name(queue)).queued

    def _purge(self, queue: str) -> int:
        return finish(self.shared.places.purge(self.shared.store, queue))

    # -- consuming

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        if no_ack:
            self._no_ack.add(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self.shared.hands.consumes(queue)
        self.shared.hands.watch(self.let_go)
        self._more = True
        self.connection.ear.ring()

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or not self.connection.mine:
            return
        self.shared.hands.consumes_no_more(queue)
        if queue not in self._active_queues:
            self._no_ack.discard(queue)
            self._give_back(our_name(queue))
            if queue in self._fleeting:
                self._fleeting.discard(queue)
                try:
                    self.queue_delete(queue)
                except StoreError as error:
                    _log.info(
                        "queue %s ends by itself, a while after its consumer: %s", queue, error
                    )

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        hands = self.shared.hands
        raw = None
        while raw is None:
            claims = hands.take(hands.claim([our_name(queue)], 1))
            if not claims:
                return None
            raw = self._message(claims[0])
        message = self.Message(raw, channel=self)
        if no_ack:
            self.shared.hands.done(message.delivery_tag)
        else:
            self.qos.append(message, message.delivery_tag)
        return message

    def _restore(self, message: Any) -> None:
        tag = message.delivery_tag
        if tag in self._going_on:
            self.shared.hands.keep(tag)
        else:
            self.shared.hands.give_back(tag)

    def close(self) -> None:
        """Give back what is held, but for messages whose tasks run: these stay ours to their end.

        Celery closes it when the store was away for a moment, and its tasks go on.
        """
        if self.closed:
            return
        if not self.connection.mine:
            # In a forked child: what this channel holds is its parent's.
            self._ready.clear()
            self._fleeting.clear()
            self._consumers.clear()
            self._claiming = self._qos = None
            super().close()
            return
        shared = self._was = self.connection.shared
        self._going_on = running()
        shared.hands.watch_no_more(self.let_go)
        super().close()
        try:
            shared.hands.flush()
        except StoreError as error:
            _log.warning("what was acknowledged or goes back will be stored later: %s", error)

    # -- claims: begun here, and delivered when they have come, so that no event loop waits

    @property
    def urgent(self) -> bool:
        """Whether it serves remote control and the like, which goes before tasks."""
        return bool(self._no_ack)

    @property
    def wants(self) -> list[str]:
        """Our names of the queues it consumes from."""
        return [our_name(queue) for queue in self._active_queues]

    @property
    def claiming(self) -> bool:
        return self._claiming is not None

    def heard(self) -> None:
        """There may be something new."""
        self._more = True

    def has_room(self) -> None:
        """Something was acknowledged, in whatever thread."""
        transport = self.connection
        if self.closed:
            return
        if self._active_queues and (self._more or self._ready) and not transport.turns:
            transport.ear.ring()

    def fetch(self) -> bool:
        """Begin a claim, if there is room and may be something; whether it knows of nothing."""
        if self._claiming is not None or not self._active_queues:
            return False
        if self._more:
            missing = self._room() + self._ahead - len(self._ready)
            if missing > self._ahead // 2:
                self._asked = missing
                self._claiming = self.shared.hands.claim(self.wants, missing)
                self._claiming.add_done_callback(self.connection.ear.ring)
        return not self._more

    def collect(self) -> None:
        """Take over what the claim has brought, if it is there. Raises what kept it from it."""
        claiming = self._claiming
        if claiming is not None and claiming.done():
            self._claiming = None
            claims = self.shared.hands.take(claiming)
            self._more = len(claims) >= self._asked
            self._look_ahead()
            with self._holding:
                self._ready.extend(claims)

    def _look_ahead(self) -> None:
        """As much as was wanted lately in a moment: nothing, where tasks take their time."""
        now = self._taken_at = self.shared.clock.monotonic()
        span = now - self._counted_at
        if not self._more or self.urgent or not self.qos.prefetch_count:
            self._ahead = 0
        elif span >= AHEAD:
            self._ahead = min(int(self._passed / span * AHEAD), MOST)
        if span >= AHEAD:
            self._passed, self._counted_at = 0, now

    def let_go(self) -> None:
        """Give back what was claimed ahead and isn't wanted; others may. Any thread may call it."""
        qos: Any = self._qos
        with self._holding:
            waited = self.shared.clock.monotonic() - self._taken_at
            if not self._ready or waited < STALE or qos is None or not qos.prefetch_count:
                return
            left, self._ready = self._ready, deque()
            self._ahead = 0
            self._more = True
        for claim in left:
            self.shared.hands.give_back(claim.receipt.hex(), started=False)

    def deliver(self) -> bool:
        """Hand one message to its consumer; False if there is none, or no room for it."""
        while self._ready and (self.urgent or self.qos.can_consume()):
            claim = self._next()
            if claim is None:
                break
            queue = next((q for q in self._active_queues if our_name(q) == claim.job.queue), None)
            if queue is None or queue not in self.connection._callbacks:
                self.shared.hands.give_back(claim.receipt.hex(), started=False)
                continue
            raw = self._message(claim)
            if raw is not None:
                if queue in self._no_ack:
                    self.shared.hands.done(claim.receipt.hex())
                self.connection._deliver(raw, queue)
                return True
        return False

    def _next(self) -> Claim | None:
        """The next one in our hands; None if it has to wait, or all have just been given back."""
        with self._holding:
            if not self._ready:
                return None
            tried = self._ready[0].job.attempt > CAREFUL
            if not self.urgent and (tried or self._careful):
                if self._is_busy():
                    return None
                self._careful = tried
            self._passed += 1
            return self._ready.popleft()

    def _is_busy(self) -> bool:
        """Whether something of this channel is unacknowledged."""
        return len(self.qos._delivered) > len(self.qos._dirty)

    def _room(self) -> int:
        estimate = None if self.urgent else self.qos.can_consume_max_estimate()
        return WINDOW if estimate is None else estimate

    def _message(self, claim: Claim) -> dict[str, Any] | None:
        """The message of a claim, or None if it is none: then it is kept among the dead."""
        hands, limit = self.shared.hands, self.connection.max_redeliveries
        if limit is not None and claim.job.attempt > limit + 1:
            why = f"it was given out {limit + 1} times, and its workers died or put it back"
            _log.error("message %s of queue %s is buried: %s", claim.job.id, claim.job.queue, why)
            hands.bury(claim.receipt.hex(), why, kind="crash")
            return None
        tag = hands.deliver(claim)
        try:
            return delivered(claim, tag)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            hands.bury(tag, f"this is no message of kombu: {error!r}", kind="undecodable")
            return None

    def _give_back(self, name: str) -> None:
        """What was claimed from this queue and not delivered."""
        if self._claiming is not None:
            wait([self._claiming])
            with suppress(StoreError):  # it has brought nothing; who claims next is told why
                self.collect()
        with self._holding:
            left = [claim for claim in self._ready if claim.job.queue == name]
            self._ready = deque(claim for claim in self._ready if claim.job.queue != name)
        for claim in left:
            self.shared.hands.give_back(claim.receipt.hex(), started=False)
