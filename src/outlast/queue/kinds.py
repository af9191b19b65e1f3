"""``PriorityQueue`` and ``LifoQueue``: the same queue in another order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, Literal, Required, TypedDict, TypeVar, Unpack

from outlast.errors import ConfigurationError
from outlast.queue.queue import Queue
from outlast.queue.rank import kind, rank
from outlast.queue.window import Lifo, Ranked
from outlast.store import Feature

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import UnionType

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.job import Job
    from outlast.queue.items import Codec
    from outlast.store import Durability

__all__ = ["LifoQueue", "PriorityQueue"]

T = TypeVar("T")


class Options(TypedDict, Generic[T], total=False):
    """What every queue is made with, by name; see :class:`~outlast.Queue`."""

    name: Required[str]
    url: str
    type: type[T] | UnionType | None
    codec: Codec | None
    ack: Literal["done", "get"]
    commit: Literal["group", "each"]
    namespace: str
    durability: Durability | None
    max_crashes: int | None
    clock: Clock | None
    chance: Chance | None


class PriorityQueue(Queue[T], asyncio.PriorityQueue[Any]):
    """A queue that gives the lowest item first; equal ones in the order in which they were put.

    Items are ordered as Python orders numbers, strings, bytes, dates, datetimes, tuples of these,
    and dataclasses with ``order=True``. For others give a ``key``, as for ``sorted``. An item that
    has no order, or can't be compared with those that wait, raises ``TypeError`` at ``put``. A
    tuple may hold anything behind its first element: a tie there is decided by insertion order.

    >>> jobs: PriorityQueue[tuple[int, str]] = PriorityQueue(name="jobs")
    >>> await jobs.put((2, "later"))
    >>> await jobs.put((1, "now"))
    >>> await jobs.get()
    (1, 'now')

    Everything else is as in :class:`~outlast.Queue`. What another process puts may be overtaken by
    items that were in this process's memory, for a tenth of a second at most.
    """

    _window = Ranked
    _needs = Feature.ORDER | Feature.PRIORITY

    def __init__(
        self,
        maxsize: int = 0,
        *,
        key: Callable[[T], Any] | None = None,
        **options: Unpack[Options[T]],
    ) -> None:
        if key is not None and not callable(key):
            raise ConfigurationError(f"key {key!r}: use a function, as for sorted")
        super().__init__(maxsize, **options)
        self._key = key
        self._kind = ""

    def _job(self, item: T) -> Job:
        ranked = rank(item if self._key is None else self._key(item))
        job = self._line.job(item, ranked)
        self._check_kind(kind(ranked))
        return job

    def _check_kind(self, found: str) -> None:
        """Refuse what Python would not compare with the items put before, while any are left."""
        if found != self._kind:
            if self._kind and not self.empty():
                raise TypeError(f"{found} can't be ordered among items that are each {self._kind}")
            self._kind = found


class LifoQueue(Queue[T], asyncio.LifoQueue[T]):
    """A queue that gives the item first that was put last. Else as :class:`~outlast.Queue`.

    What another process puts may be overtaken by items that were in this process's memory, for a
    tenth of a second at most.
    """

    _window = Lifo
