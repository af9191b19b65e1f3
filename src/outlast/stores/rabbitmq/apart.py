"""Jobs that were set apart, because they came back too often: fetched one by one, to run alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pika.exceptions import AMQPError
from pika.spec import Basic

from outlast.stores.rabbitmq.faults import mapped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from outlast.stores.rabbitmq.held import Held
    from outlast.stores.rabbitmq.link import Channel
    from outlast.stores.rabbitmq.source import Source
    from outlast.stores.rabbitmq.topology import Place

__all__ = ["Apart"]


class Apart:
    """Nobody is sent these, so what comes back from there was run."""

    def __init__(
        self,
        make: Callable[[Place], Source],
        open_channel: Callable[[Source], Awaitable[Channel]],
        deliver: Callable[[Source, int, Mapping[str, Any], bytes], None],
        is_idle: Callable[[], bool],
        shown: str,
    ) -> None:
        self.pending: set[Place] = set()
        """Where there may be some."""
        self._make = make
        self._open = open_channel
        self._deliver = deliver
        self._is_idle = is_idle
        self._shown = shown
        self._sources: dict[Place, Source] = {}
        self._one = asyncio.Lock()

    def clear(self) -> None:
        self.pending.clear()
        self._sources.clear()

    def lost(self, source: Source) -> None:
        """Its channel is closed."""
        if self._sources.get(source.place) is source:
            del self._sources[source.place]

    @property
    def is_in_use(self) -> bool:
        return bool(self._sources or self.pending)

    @property
    def runs(self) -> bool:
        """Whether one of them is claimed, or about to be."""
        return self._one.locked() or any(source.unacked for source in self._sources.values())

    def of(self, queues: Sequence[str], tasks: Sequence[str | None]) -> Place | None:
        """Where there may be one of these."""
        for place in self.pending:
            if place.queue in queues and place.task in tasks:
                return place
        return None

    async def fetch_alone(self, place: Place) -> Held | None:
        """``fetch``, if nothing else is claimed when its turn has come."""
        async with self._one:
            return await self._fetch(place) if self._is_idle() else None

    async def fetch(self, place: Place) -> Held | None:
        """The next one, if there is one. It is ours from here on, and was not before."""
        async with self._one:
            return await self._fetch(place)

    async def _fetch(self, place: Place) -> Held | None:
        source = self._sources.get(place)
        if source is None:
            source = self._sources[place] = self._make(place)
        channel = source.channel or await self._open(source)
        answer = asyncio.get_running_loop().create_future()

        def found(_: Any, method: Any, properties: Any, body: bytes) -> None:
            if not answer.done():
                self._deliver(source, method.delivery_tag, properties.headers or {}, body)
                answer.set_result(source.buffer.pop())

        def empty(_: Any) -> None:
            if not answer.done():
                answer.set_result(None)

        try:
            channel.raw.add_callback(empty, [Basic.GetEmpty], one_shot=True)
            channel.raw.basic_get(place.name, found)
        except AMQPError as error:
            raise mapped(error, self._shown) from error
        await asyncio.wait((answer, channel.closed), return_when=asyncio.FIRST_COMPLETED)
        held: Held | None = answer.result() if answer.done() else None
        if held is None:
            self.pending.discard(place)
        return held
