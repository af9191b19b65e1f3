"""The store's own thread and event loop: one connection that publishes, one that consumes.

They are apart because a broker that is short of memory or disk stops reading from who publishes,
and an acknowledgement must get through to it even then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from outlast.errors import DurabilityError, OutlastError, StoreClosed, StoreUnavailable
from outlast.stores.news import EVERYWHERE
from outlast.stores.rabbitmq.intake import LOOK, REST, Intake
from outlast.stores.rabbitmq.leaders import Leaders
from outlast.stores.rabbitmq.link import THREAD, dial
from outlast.stores.rabbitmq.outbox import PATIENCE, Outbox
from outlast.stores.rabbitmq.topology import BANDS, Place
from outlast.stores.replies import deliver
from outlast.stores.thread_loop import ThreadLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from outlast.stores.rabbitmq.address import Address
    from outlast.stores.rabbitmq.held import Held
    from outlast.stores.rabbitmq.link import Link
    from outlast.stores.rabbitmq.op import Op
    from outlast.stores.replies import Reply

__all__ = ["NEEDED", "OLDEST", "Engine"]

_log = logging.getLogger(__name__)

OLDEST = (3, 10)
"""The first broker that dead-letters from quorum queues without losing anything."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
TICK = 0.5
NEEDED = ("publisher_confirms", "basic.nack", "consumer_cancel_notify")


class Engine:
    """Runs calls, and keeps its connections up."""

    def __init__(
        self,
        address: Address,
        namespace: str,
        arrived: Callable[[set[str]], None],
        give_back: Callable[[Engine, Sequence[Held]], None],
        *,
        bands: Sequence[str] = BANDS,
        rest: float = REST,
        patient: bool = False,
    ) -> None:
        """``patient``: one that can't be reached yet is no error, and when it is lost is told."""
        self.namespace = namespace
        self.shown = address.shown
        self.outbox = Outbox(address, namespace)
        self.leaders = Leaders(address, self.spawn)
        self.intake = Intake(
            namespace,
            address.shown,
            arrived,
            lambda helds: give_back(self, helds),
            address.longest,
            self.leaders,
            bands,
            rest,
        )
        self.library = ""
        self.link: Link | None = None
        """The connection that publishes."""
        self._thread = ThreadLoop(THREAD)
        self.loop = self._thread.loop
        self._address = address
        self._arrived = arrived
        self._patient = patient
        self._calls: deque[Op[Any]] = deque()
        self._done: list[Reply[Any]] = []
        self._asleep = True
        self._closing = False
        self._consuming = False
        self._ready: asyncio.Future[None] = self.loop.create_future()
        """Done while there is a connection that consumes."""
        self._away_since: float | None = None
        self._away: OutlastError | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.version: tuple[int, ...] = ()
        """Of the broker, once it has been reached."""

    # -- for callers, in any thread

    def start(self) -> None:
        """Start the thread, and connect. Raises what keeps us from it; then it is closed again."""
        self._thread.start()
        try:
            self._thread.run(self._begin())
        except BaseException:
            self._closing = True
            self._thread.end()
            raise

    def hand_over(self, op: Op[Any]) -> None:
        """Have a call made; it is answered whatever becomes of the broker."""
        if self._closing:
            raise StoreClosed("the store is closed")
        self._calls.append(op)
        if self._asleep:
            self._asleep = False
            try:
                self._thread.soon(self._serve)
            except BaseException:  # a signal's handler raised: the next one is to ring
                self._asleep = True
                raise

    def close(self) -> None:
        """Finish what was handed over, give back what was not claimed, let go. Blocks."""
        if self._closing:
            return
        self._closing = True
        self._thread.run(self._finish())
        self._thread.end()

    # -- in the thread

    def answer(self, call: Reply[Any]) -> None:
        """Have it told soon, together with others."""
        if not self._done:
            self.loop.call_soon(self._deliver)
        self._done.append(call)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def consume(self) -> None:
        """From now on there is a connection that consumes.

        Raises ``StoreUnavailable`` if there has been none for a while.
        """
        if not self._consuming:
            self._consuming = True
            self.spawn(self._keep_consuming())
        since = self._away_since
        if since is not None and self._away is not None and self.loop.time() - since > PATIENCE:
            raise type(self._away)(*self._away.args)

    async def consuming(self) -> None:
        """Return when there is a connection that consumes. Raises ``StoreUnavailable``."""
        await asyncio.wait((self._ready,), timeout=PATIENCE)
        if not self.intake.is_on:
            away = self._away or StoreUnavailable(f"{self.shown}: not connected")
            raise type(away)(*away.args)

    def places(self, queue: str) -> set[Place]:
        """The AMQP queues of a queue, as far as this store had to do with them."""
        return {place for place in self.outbox.places if place.queue == queue} | {
            Place.of(self.namespace, queue, task, band)
            for asked, task in {*self.intake.asked, (queue, None)}
            for band in BANDS
            if asked == queue
        }

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("%s: a call broke", self._address, exc_info=task.exception())

    def _deliver(self) -> None:
        done, self._done = self._done, []
        deliver(done)

    def _serve(self) -> None:
        while True:
            while self._calls:
                op = self._calls.popleft()
                try:
                    op.begin(self, op)
                except Exception as error:
                    op.error = error
                    self.answer(op)
            self._asleep = True
            if not self._calls:
                return
            self._asleep = False

    async def _begin(self) -> None:
        link: Link | None = None
        try:
            link = await self._connect()
        except StoreUnavailable as error:
            if not self._patient:
                raise
            _log.warning("%s", error)
        self.spawn(self._keep_publishing(link))
        self.spawn(self._tick_outbox())
        self.spawn(self._tick_intake())

    async def _finish(self) -> None:
        self._serve()
        if self._consuming:
            try:
                await self.intake.stop()
            except OutlastError as error:
                _log.info("what was not claimed comes back by itself: %s", error)
        await asyncio.wait((self.outbox.idle(),), timeout=PATIENCE)
        if self._consuming and self.intake.is_on:
            try:
                await self.intake.settled()
            except OutlastError as error:
                _log.info("what was acknowledged last may come again: %s", error)
        # All of them, those of the outbox and the intake too: none may outlive its loop.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        self.intake.lost()
        self.outbox.lost(StoreUnavailable(f"{self._address.shown}: the store was closed"))
        self.outbox.away(StoreUnavailable(f"{self._address.shown}: the store was closed"))
        self._deliver()
        for _ in range(5):
            await asyncio.sleep(0)  # a transport closes its socket a turn of the loop later

    # -- connections

    async def _connect(self) -> Link:
        link = await dial(self._address, "outlast publishes")
        try:
            self._examine(link)
            await self.outbox.begin(link, self.version)
        except BaseException:
            await link.close()
            raise
        self.link = link
        return link

    def _examine(self, link: Link) -> None:
        known = link.properties
        product, version = str(known.get("product")), str(known.get("version"))
        if product != "RabbitMQ" or link.version < OLDEST:
            raise DurabilityError(
                f"{self._address.shown} is {product} {version}: only RabbitMQ from 3.10 on keeps"
                " what was accepted in quorum queues and in all that they lead to"
            )
        can = link.raw.server_capabilities or {}
        missing = [name for name in NEEDED if not can.get(name)]
        if missing:
            raise DurabilityError(f"{self._address.shown} lacks {', '.join(missing)}")
        self.version = link.version
        self.library = f"RabbitMQ {version}"

    async def _keep_publishing(self, link: Link | None) -> None:
        pause = FIRST_PAUSE
        try:
            while True:
                if link is None:
                    try:
                        link = await self._connect()
                    except Exception as error:
                        self.outbox.away(self._expected(error))
                        await asyncio.sleep(pause)
                        pause = min(pause * 2, LONGEST_PAUSE)
                        continue
                pause = FIRST_PAUSE
                await link.end()
                self.link = None
                self.outbox.lost(StoreUnavailable(str(link.error())))
                link = None
        finally:
            if link is not None:
                await link.close()

    async def _keep_consuming(self) -> None:
        pause = FIRST_PAUSE
        link: Link | None = None
        self._away_since = self.loop.time()
        try:
            while True:
                try:
                    link = await dial(self._address, "outlast consumes")
                    await self.intake.begin(link)
                except Exception as error:
                    self._away = self._expected(error)
                    if link is not None:
                        link.drop()
                        self.intake.lost()
                    link = None
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
                    continue
                pause = FIRST_PAUSE
                self._away_since = self._away = None
                self._ready.set_result(None)
                await link.end()
                self._ready = self.loop.create_future()
                self._away, self._away_since = StoreUnavailable(str(link.error())), self.loop.time()
                _log.warning("%s: what was held goes back to the broker", self._away)
                self.intake.lost()
                if self._patient:
                    self._arrived({EVERYWHERE})
                link = None
        finally:
            if link is not None:
                await link.close()

    async def _tick_outbox(self) -> None:
        """By itself: a line that consumes may be a while without an answer."""
        while True:
            await asyncio.sleep(TICK)
            try:
                self.outbox.tick()
            except Exception as error:
                self._expected(error)

    async def _tick_intake(self) -> None:
        looked = self.loop.time()
        while True:
            await asyncio.sleep(TICK)
            if not self._consuming or not self.intake.is_on:
                continue
            try:
                await self.intake.rest()
                if self.loop.time() - looked > LOOK:
                    looked = self.loop.time()
                    await self.intake.tick()
            except Exception as error:
                _log.info("%s", self._expected(error))

    def _expected(self, error: Exception) -> OutlastError:
        """What is no error of ours is a fault: it is shown in full, and the work goes on."""
        if isinstance(error, OutlastError):
            return error
        _log.error("%s: %r", self.shown, error, exc_info=error)
        return StoreUnavailable(f"{self.shown}: {error!r}")
