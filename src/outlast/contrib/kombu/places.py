"""Exchanges, queues and bindings, as all processes see them: kept on the store's shelf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from outlast.contrib.kombu.names import our_name
from outlast.errors import JobNotFound
from outlast.job import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.contrib.kombu.shared import Whole
    from outlast.contrib.kombu.shelves import Shelf

__all__ = ["Places"]

BRIEF = 300.0
"""Seconds that a queue outlives its consumer, if it is to end with it and doesn't say when."""
MOST = 10_000
"""Queues of which it is remembered how long their messages live."""


class Places:
    """Keys are ``exchange [name]``, ``queue [name]`` and ``bound [exchange, queue, key]``.

    A queue that ends when it isn't used for a while takes its bindings with it: they pass away
    together, since both are kept by whoever consumes from it.
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._times: dict[str, float | None] = {}

    # -- exchanges

    def declare_exchange(self, name: str, kind: str) -> None:
        self._put_if_new(_key("exchange", name), kind.encode(), None)

    def exchange_kind(self, name: str) -> str | None:
        found = self._shelf.get([_key("exchange", name)])[0]
        return None if found is None else found.decode()

    def delete_exchange(self, name: str) -> None:
        bound = self._shelf.starting(_start("bound", name))
        self._shelf.drop([_key("exchange", name), *bound])

    def exchanges(self) -> list[str]:
        return [_parts(key)[0] for key in self._shelf.starting("exchange [")]

    # -- queues

    def declare_queue(self, name: str, options: dict[str, Any]) -> None:
        """Note that a queue is there: its ``durable``, ``auto_delete`` and such, ``arguments``."""
        self._put_if_new(_key("queue", name), msgspec.json.encode(options), _life(options))

    def time_to_live(self, name: str) -> float | None:
        """Seconds that each message of a queue lives at most, if the queue says so."""
        if name not in self._times:
            options = self.queue(name)
            if options is None:
                return None  # nobody has declared it yet
            if len(self._times) >= MOST:
                self._times.clear()  # queues for replies come and go
            milliseconds = (options.get("arguments") or {}).get("x-message-ttl")
            self._times[name] = None if milliseconds is None else float(milliseconds) / 1000
        return self._times[name]

    def queue(self, name: str) -> dict[str, Any] | None:
        found = self._shelf.get([_key("queue", name)])[0]
        return None if found is None else msgspec.json.decode(found)

    def delete_queue(self, name: str) -> None:
        self._times.pop(name, None)
        self._shelf.drop([_key("queue", name), *self._bindings_of(name)])

    def keep(self, queues: Sequence[str]) -> None:
        """These are in use."""
        for name in queues:
            options = self.queue(name)
            life = None if options is None else _life(options)
            if life is not None:
                self._shelf.keep([_key("queue", name), *self._bindings_of(name)], life)

    def ended(self) -> list[str]:
        """Queues that nobody used for too long, forgotten hereby."""
        gone = self._shelf.tidy(200)
        return [_parts(key)[0] for key in gone if key.startswith("queue [")]

    async def purge(self, store: Whole, name: str) -> int:
        """Delete what waits in a queue, delayed messages included; how many."""
        try:
            return await store.purge(our_name(name), [Status.QUEUED])
        except JobNotFound:
            return 0  # nothing was ever in it

    # -- bindings

    def bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        options = self.queue(queue)
        # A queue that has just ended must leave no binding behind.
        life = BRIEF if options is None else _life(options)
        key = _key("bound", exchange, queue, routing_key)
        self._put_if_new(key, msgspec.json.encode([routing_key, pattern, queue]), life)

    def unbind(self, exchange: str, routing_key: str, queue: str) -> None:
        self._shelf.drop([_key("bound", exchange, queue, routing_key)])

    def table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """Routing key, pattern and queue of each binding."""
        found = self._shelf.starting(_start("bound", exchange)).values()
        return [tuple(msgspec.json.decode(value)) for value in found]

    def _bindings_of(self, queue: str) -> list[str]:
        return [key for key in self._shelf.starting("bound [") if _parts(key)[1] == queue]

    def _put_if_new(self, key: str, value: bytes, life: float | None) -> None:
        """Every connection declares everything, and mostly it is there."""
        if self._shelf.get([key])[0] != value:
            self._shelf.put({key: value}, life)
        elif life is not None:
            self._shelf.keep([key], life)


def _life(options: dict[str, Any]) -> float | None:
    """Seconds that a queue lasts when nobody uses it; None is for ever."""
    expires = (options.get("arguments") or {}).get("x-expires")
    if expires is not None:
        return float(expires) / 1000
    return BRIEF if options.get("auto_delete") or options.get("exclusive") else None


def _key(kind: str, *parts: str) -> str:
    return f"{kind} {msgspec.json.encode(parts).decode()}"


def _start(kind: str, first: str) -> str:
    return _key(kind, first)[:-1] + ","


def _parts(key: str) -> list[str]:
    parts: list[str] = msgspec.json.decode(key.partition(" ")[2])
    return parts
