"""Connections and channels of the client, whose calls can be awaited and never hang."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from pika.exceptions import AMQPError, ChannelClosed

from outlast.errors import StoreUnavailable
from outlast.stores.rabbitmq.faults import mapped
from outlast.stores.rabbitmq.quick import QuickConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outlast.stores.rabbitmq.address import Address

__all__ = ["THREAD", "Channel", "Link", "dial"]

DIAL = 20.0
"""Seconds for a connection to be made and greeted; the client has limits of its own below that."""
ANSWER = 30.0
"""Seconds for the broker's answer to a call."""

_MISSING = 404

THREAD = "outlast-rabbitmq"
"""The name of the thread in which all of this runs."""


_ours: ContextVar[bool] = ContextVar("outlast-rabbitmq", default=False)
"""Whether a connection of ours is at work in another thread, such as a worker's own."""


def _not_ours(record: logging.LogRecord) -> bool:
    """Each connection that breaks is told by us, in one line; the client needs a page for it."""
    return record.threadName != THREAD and not _ours.get()


@contextmanager
def _quiet() -> Iterator[None]:
    """The client keeps its log to itself, and whatever the loop calls for it later does so too."""
    token = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(token)


for _name in list(logging.root.manager.loggerDict):
    if _name.partition(".")[0] == "pika":
        logging.getLogger(_name).addFilter(_not_ours)


class Channel:
    """A channel. What waits for an answer when it closes is told why."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.why: BaseException | None = None
        """Why it is closed."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked: set[asyncio.Future[Any]] = set()
        raw.add_on_close_callback(self._on_close)

    def ask(self, call: Callable[..., Any], *args: Any, **more: Any) -> asyncio.Future[Any]:
        """Make a call now; its answer is the broker's frame, or raises the client's error."""
        future = asyncio.get_running_loop().create_future()
        self._asked.add(future)
        future.add_done_callback(self._answered)
        try:
            call(*args, callback=partial(_set, future), **more)
        except AMQPError as error:
            future.set_exception(error)
        return future

    async def close(self) -> None:
        if self.raw.is_open:
            with _quiet():
                self.raw.close()
        await asyncio.wait((self.closed,), timeout=ANSWER)

    def _answered(self, future: asyncio.Future[Any]) -> None:
        self._asked.discard(future)
        if not future.cancelled():
            future.exception()  # some of them nobody waits for

    def _on_close(self, _: Any, why: BaseException) -> None:
        self.why = why
        if not self.closed.done():
            self.closed.set_result(None)
        for future in list(self._asked):
            if not future.done():
                future.set_exception(why)


class Link:
    """A connection, from its greeting to its end."""

    def __init__(self, address: Address) -> None:
        loop = asyncio.get_running_loop()
        self.raw: Any = None
        self.why: BaseException | None = None
        """Why it has ended."""
        self.closed: asyncio.Future[None] = loop.create_future()
        self._address = address
        self._opened: asyncio.Future[Any] = loop.create_future()

    async def dial(self, name: str) -> None:
        """Raises our errors."""
        loop = asyncio.get_running_loop()
        with _quiet():
            self.raw = QuickConnection(
                self._address.parameters(name),
                on_open_callback=partial(_set, self._opened),
                on_open_error_callback=self._on_failure,
                on_close_callback=self._on_close,
                custom_ioloop=loop,
            )
        try:
            await asyncio.wait((self._opened,), timeout=DIAL)
        except asyncio.CancelledError:
            await self._undo()
            raise
        if not self._opened.done():
            self.drop()
            raise StoreUnavailable(f"{self._address.shown}: no greeting within {DIAL:g} s")
        try:
            self._opened.result()
        except Exception as error:
            raise mapped(error, self._address.shown) from error

    async def _undo(self) -> None:
        """What has begun can't be stopped halfway: it is ended as soon as it is there."""
        await asyncio.wait((self._opened,), timeout=DIAL)
        if self._opened.done() and self._opened.exception() is None:
            await self.close()
        self.drop()

    @property
    def properties(self) -> dict[str, Any]:
        """What the broker says of itself."""
        return self.raw.server_properties or {}

    @property
    def version(self) -> tuple[int, ...]:
        """The broker's, as far as it matters: (4, 3)."""
        said = str(self.properties.get("version"))
        return tuple(int(part) for part in said.split(".")[:2] if part.isdecimal())

    async def look(self, name: str) -> tuple[int, int] | None:
        """How many messages of a queue are ready, and its consumers; None if it is not there.

        Raises our errors.
        """
        channel = await self.channel()
        try:
            answer = await channel.ask(channel.raw.queue_declare, name, passive=True, durable=True)
        except AMQPError as error:
            if isinstance(error, ChannelClosed) and error.reply_code == _MISSING:
                return None
            raise mapped(error, self._address.shown) from error
        await channel.close()
        return answer.method.message_count, answer.method.consumer_count

    async def channel(self) -> Channel:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        try:
            self.raw.channel(on_open_callback=partial(_set, opened))
        except AMQPError as error:
            raise mapped(error, self._address.shown) from error
        await asyncio.wait(
            (opened, self.closed), timeout=ANSWER, return_when=asyncio.FIRST_COMPLETED
        )
        if not opened.done():
            raise self.error()
        return Channel(opened.result())

    async def end(self) -> None:
        """Return when it has ended, however it did."""
        await asyncio.wait((self.closed,))

    def error(self) -> Exception:
        """Why it can't be used, as an error of ours."""
        if self.why is None:
            return StoreUnavailable(f"{self._address.shown}: no answer within {ANSWER:g} s")
        return mapped(self.why, self._address.shown)

    async def close(self) -> None:
        """In order, if that is possible soon."""
        if self.raw is not None and self.raw.is_open:
            with _quiet():
                self.raw.close()
            await asyncio.wait((self.closed,), timeout=5.0)
        self.drop()

    def drop(self) -> None:
        """At once, without a word."""
        transport = getattr(self.raw, "_transport", None)
        if transport is not None and not self.closed.done():
            with _quiet():
                transport.abort()

    def _on_failure(self, _: Any, why: BaseException) -> None:
        if not self._opened.done():
            self._opened.set_exception(why)

    def _on_close(self, _: Any, why: BaseException) -> None:
        self.why = why
        if not self.closed.done():
            self.closed.set_result(None)


def _set(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():
        future.set_result(answer)


async def dial(address: Address, name: str) -> Link:
    """A connection, logged in. Raises our errors."""
    link = Link(address)
    await link.dial(name)
    return link
