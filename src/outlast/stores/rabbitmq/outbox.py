"""Publishes: many in flight, each confirmed by the broker or told to have failed."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import pika
from pika.exceptions import AMQPError, ChannelWrongStateError, ConnectionWrongStateError

from outlast.errors import OutlastError, StoreUnavailable
from outlast.stores.rabbitmq.declaring import Declaring
from outlast.stores.rabbitmq.faults import mapped
from outlast.stores.rabbitmq.topology import LINES, delay_key, level_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.stores.rabbitmq.address import Address
    from outlast.stores.rabbitmq.link import Channel, Link
    from outlast.stores.rabbitmq.topology import Place

__all__ = ["Batch", "Outbox", "Posting"]

_log = logging.getLogger(__name__)

WINDOW = 2000
"""Publishes under way at once: the broker syncs what it has in one moment together."""
PATIENCE = 5.0
"""Seconds that a message waits for a broker that is away, or takes none."""
CONFIRM = 15.0
"""Seconds to wait for a confirmation before it is called unknown."""
TRIES = 3
"""Times that a message is sent to a queue that turns out to be gone."""
_ENDING = (ChannelWrongStateError, ConnectionWrongStateError)


class Batch:
    """Messages whose fate is awaited together. ``failures`` are those that were not confirmed."""

    __slots__ = ("done", "failures", "left")

    def __init__(self, many: int, done: Callable[[Batch], None]) -> None:
        self.left = many
        self.done = done
        self.failures: list[tuple[Posting, OutlastError, bool]] = []

    def ended(self) -> None:
        self.left -= 1
        if not self.left:
            self.done(self)


class Posting:
    """One message to a line, at once or by the ladder of delays, or to the dead of its queue."""

    __slots__ = (
        "at",
        "batch",
        "body",
        "delay",
        "id",
        "key",
        "mark",
        "place",
        "returned",
        "to_dead",
        "tries",
    )

    def __init__(
        self,
        id: str,
        body: bytes,
        place: Place,
        batch: Batch,
        *,
        delay: float = 0.0,
        to_dead: bool = False,
        mark: Any = None,
    ) -> None:
        self.id = id
        self.body = body
        self.place = place
        self.batch: Batch | None = batch
        self.delay = delay
        self.to_dead = to_dead
        self.mark = mark
        """Whatever the caller wants to find again."""
        self.key = ""
        """How it was last routed."""
        self.returned = False
        self.tries = 0
        self.at = 0.0

    @property
    def first_stop(self) -> str:
        """The AMQP queue that has to confirm it."""
        if self.to_dead:
            return self.place.dead
        if self.delay > 0:
            return level_name(delay_key(self.delay, self.place.name)[0])
        return self.place.name

    def fail(self, error: OutlastError, *, uncertain: bool) -> None:
        batch, self.batch = self.batch, None
        if batch is not None:
            batch.failures.append((self, error, uncertain))
            batch.ended()


class Outbox:
    """The publishing half of an engine, over one connection at a time."""

    def __init__(self, address: Address, namespace: str) -> None:
        self.blocked = ""
        """Why the broker takes no messages, if it said so."""
        self.places: set[Place] = set()
        """The AMQP queues of jobs that anything was sent to."""
        self._address = address
        self._shown = address.shown
        self._namespace = namespace
        self._link: Link | None = None
        self._channel: Channel | None = None
        self._declaring: Declaring | None = None
        self._waiting: deque[Posting] = deque()
        self._parked: dict[tuple[str, int], list[Posting]] = {}
        self._unconfirmed: dict[int, Posting] = {}
        self._tag = 0
        self._away: OutlastError = StoreUnavailable(f"{self._shown}: not connected yet")
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Future[None] | None = None

    @property
    def takes(self) -> bool:
        """Whether a message that is sent now is on its way at once."""
        return self._may_send()

    def idle(self) -> asyncio.Future[None]:
        """Done when nothing waits to be sent or confirmed."""
        self._idle = asyncio.get_running_loop().create_future()
        self._look_idle()
        return self._idle

    def _look_idle(self) -> None:
        idle = self._idle
        busy = self._waiting or self._parked or self._unconfirmed
        if idle is not None and not busy and not idle.done():
            idle.set_result(None)

    async def begin(self, link: Link, version: tuple[int, ...]) -> None:
        """Use a new connection."""
        channel = await link.channel()
        declaring = Declaring(link, version, self._namespace, self._address)
        await declaring.begin()
        channel.raw.add_on_return_callback(self._on_return)
        try:
            await channel.ask(channel.raw.confirm_delivery, self._on_confirm)
        except AMQPError as error:
            raise mapped(error, self._shown) from error
        channel.raw.add_on_close_callback(lambda _, why: self._channel_lost(link, channel, why))
        link.raw.add_on_connection_blocked_callback(self._on_blocked)
        link.raw.add_on_connection_unblocked_callback(self._on_unblocked)
        self.blocked = ""
        self._tag = 0
        self._link, self._channel, self._declaring = link, channel, declaring
        self.flush()

    def lost(self, error: OutlastError) -> None:
        """The connection is gone: what was sent may have been stored, what was not may wait."""
        self._channel = self._declaring = None
        self.blocked = ""
        self._away = error
        unknown, self._unconfirmed = self._unconfirmed, {}
        for posting in unknown.values():
            posting.fail(StoreUnavailable(f"{error}; it was not confirmed"), uncertain=True)
        for parked in self._parked.values():
            self._waiting.extendleft(reversed(parked))
        self._parked.clear()

    def _channel_lost(self, link: Link, channel: Channel, why: BaseException) -> None:
        """The broker refused something: whatever else was under way here goes with it."""
        if channel is self._channel:
            error = StoreUnavailable(str(mapped(why, self._shown)))
            self.lost(error)
            if link.raw.is_open:
                _log.warning("%s: publishing begins anew", error)
                link.raw.close()

    def away(self, error: OutlastError) -> None:
        """It can't be reached: tell those who have waited long enough."""
        self._away = error
        self.tick()

    def send(self, posting: Posting) -> None:
        """Have it published; its batch is told whatever becomes of it."""
        posting.at = asyncio.get_running_loop().time()
        if self._waiting:
            self._waiting.append(posting)
            self.flush()
        else:
            self._try(posting)

    def flush(self) -> None:
        """Send what waits and may go."""
        while self._waiting and self._may_send():
            self._try(self._waiting.popleft())

    def tick(self) -> None:
        """Now and then: nothing may wait for ever."""
        now = asyncio.get_running_loop().time()
        while self._waiting and self._waiting[0].at < now - PATIENCE:
            posting = self._waiting.popleft()
            posting.fail(self._reason(), uncertain=False)
        for parked in self._parked.values():
            self._give_up(parked, now - CONFIRM)
        for posting in list(self._unconfirmed.values()):
            if posting.at >= now - CONFIRM:
                break
            posting.fail(
                StoreUnavailable(
                    f"{self._shown}: not confirmed within {CONFIRM:g} s by {posting.first_stop!r}."
                    " If it is that queue alone, it has no leader: `outlast doctor` can tell"
                ),
                uncertain=True,
            )
        given_up = sum(posting.batch is None for posting in self._unconfirmed.values())
        if 2 * given_up >= WINDOW and self._link is not None:
            # A queue without a leader confirms nothing, and in time nobody else could send.
            link, self._link = self._link, None
            error = StoreUnavailable(f"{self._shown}: {given_up} messages were never confirmed")
            _log.warning("%s: publishing begins anew", error)
            self.lost(error)
            if link.raw.is_open:
                link.raw.close()

    def _give_up(self, parked: list[Posting], since: float) -> None:
        """The broker has not answered what has to be asked before these can be sent."""
        late = [posting for posting in parked if posting.at < since]
        if late:
            parked[:] = [posting for posting in parked if posting.at >= since]
        for posting in late:
            posting.fail(
                StoreUnavailable(
                    f"{self._shown}: {posting.first_stop!r} could not be declared within"
                    f" {CONFIRM:g} s; nothing was stored"
                ),
                uncertain=False,
            )

    def _reason(self) -> OutlastError:
        if self.blocked:
            return StoreUnavailable(
                f"{self._shown}: the broker takes no messages ({self.blocked}); nothing was stored"
            )
        if self._channel is not None:
            return StoreUnavailable(f"{self._shown}: the broker confirms nothing; it was not sent")
        return type(self._away)(*self._away.args)

    def _may_send(self) -> bool:
        return self._channel is not None and not self.blocked and len(self._unconfirmed) < WINDOW

    def _try(self, posting: Posting) -> None:
        declaring = self._declaring
        if not self._may_send() or declaring is None:
            self._waiting.append(posting)
            return
        if posting.delay > 0:
            level, key = delay_key(posting.delay, posting.place.name)
            exchange = level_name(level)
        else:
            level, exchange, key = -1, LINES, posting.place.name
            if posting.to_dead:
                exchange, key = "", posting.place.dead
        needs = (posting.place.name, level)
        parked = self._parked.get(needs)
        if parked is not None:
            parked.append(posting)
        elif declaring.has(posting.place.name, level):
            self._publish(posting, exchange, key)
        else:
            self._parked[needs] = [posting]
            task = asyncio.get_running_loop().create_task(self._declare(posting.place, level))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _declare(self, place: Place, level: int) -> None:
        """And send what was parked until this is there."""
        declaring = self._declaring
        assert declaring is not None
        error: OutlastError | None = None
        made: bool | None = None
        try:
            made = await declaring.declare(place, level)
            self.places.add(place)
        except OutlastError as failure:
            error = failure
        if declaring is not self._declaring:
            return  # the connection was lost meanwhile, and what was parked waits again
        if made is not None:
            done = Batch(1, lambda _: self._unpark(place, level, None))
            self._announce(declaring, place, done, made=made)
        else:
            self._unpark(place, level, error)

    def _announce(self, declaring: Declaring, place: Place, done: Batch, *, made: bool) -> None:
        """Tell the workers that there is such a queue, before there is anything in it."""
        body = "\0".join((place.queue, place.task or "", place.band, "made" if made else ""))
        news = Posting("", body.encode(), place, done)
        self._publish(news, declaring.news, "", mandatory=False)

    def _unpark(self, place: Place, level: int, error: OutlastError | None) -> None:
        for posting in self._parked.pop((place.name, level), ()):
            if error is not None:
                posting.fail(type(error)(*error.args), uncertain=False)
            else:
                self._try(posting)

    def _publish(
        self, posting: Posting, exchange: str, key: str, *, mandatory: bool = True
    ) -> None:
        assert self._channel is not None
        properties = pika.BasicProperties(delivery_mode=2, message_id=_label(posting.id))
        posting.returned, posting.key = False, key
        posting.tries += 1
        posting.at = asyncio.get_running_loop().time()
        try:
            self._channel.raw.basic_publish(
                exchange, key, posting.body, properties, mandatory=mandatory
            )
        except _ENDING as error:  # which is about to be told
            self._channel = self._declaring = None
            self._away = StoreUnavailable(f"{self._shown}: {error}")
            if mandatory:
                self._waiting.appendleft(posting)
            else:
                posting.fail(self._away, uncertain=False)
            return
        self._tag += 1
        self._unconfirmed[self._tag] = posting

    # -- what the broker says

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        tag = method.delivery_tag
        if method.multiple:
            tags = []
            for each in self._unconfirmed:
                if each > tag:
                    break
                tags.append(each)
        else:
            tags = [tag]
        accepted = isinstance(method, pika.spec.Basic.Ack)
        for each in tags:
            posting = self._unconfirmed.pop(each, None)
            if posting is not None:
                self._confirmed(posting, accepted=accepted)
        if self._waiting:
            self.flush()
        self._look_idle()

    def _confirmed(self, posting: Posting, *, accepted: bool) -> None:
        if posting.returned:
            self._came_back(posting)
        elif not accepted:
            posting.fail(
                StoreUnavailable(
                    f"{self._shown}: the broker refused a message of job {posting.id}"
                ),
                uncertain=True,
            )
        else:
            batch, posting.batch = posting.batch, None
            if batch is not None:
                batch.ended()

    def _came_back(self, posting: Posting) -> None:
        """Its queue is gone, so it was not stored: make the queue again."""
        if posting.batch is None:
            return
        if posting.tries >= TRIES:
            posting.fail(
                StoreUnavailable(
                    f"{self._shown}: no queue takes job {posting.id}: {posting.place.name} is"
                    " deleted again and again"
                ),
                uncertain=False,
            )
            return
        if self._declaring is not None:
            self._declaring.forget(posting.place.name)
        self._try(posting)

    def _on_return(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        """Comes before the confirmation of the same message; rarely at all, so it is looked for."""
        for posting in self._unconfirmed.values():
            if (
                posting.key == method.routing_key
                and _label(posting.id) == properties.message_id
                and not posting.returned
                and posting.body == body
            ):
                posting.returned = True
                return

    def _on_blocked(self, _: Any, frame: Any) -> None:
        self.blocked = str(frame.method.reason)
        _log.warning("%s takes no messages for now: %s", self._shown, self.blocked)

    def _on_unblocked(self, *_: Any) -> None:
        self.blocked = ""
        _log.warning("%s takes messages again", self._shown)
        self.flush()


def _label(id: str) -> str:
    """An id as AMQP carries it, in 255 bytes; all of it is in the message."""
    return id if id.isascii() else id[:63]
