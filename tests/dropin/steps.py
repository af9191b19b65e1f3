"""What the drop-in tests share: the kinds of queues, and waiting for a thing to be so."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import outlast

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["ASYNCIO", "KINDS", "OURS", "Queues", "shutdown_on", "until"]

ASYNCIO = "asyncio"
OURS = ["memory-group", "memory-each", "file-group", "file-each"]
KINDS = [ASYNCIO, *OURS]


class Queues:
    """Makes queues of one kind. Options that asyncio's don't have are for ours alone."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.ours = kind != ASYNCIO
        self.each = kind.endswith("each")
        self._folder = folder
        self._number = itertools.count()
        self._made: list[Any] = []

    def queue(self, maxsize: int = 0, **options: Any) -> asyncio.Queue[Any]:
        return self._make(asyncio.Queue, outlast.Queue, maxsize, options)

    def priority(self, maxsize: int = 0, **options: Any) -> asyncio.Queue[Any]:
        return self._make(asyncio.PriorityQueue, outlast.PriorityQueue, maxsize, options)

    def lifo(self, maxsize: int = 0, **options: Any) -> asyncio.Queue[Any]:
        return self._make(asyncio.LifoQueue, outlast.LifoQueue, maxsize, options)

    def url(self) -> str:
        """The same store for all queues of a test; each has a name of its own in it."""
        if self.kind.startswith("memory"):
            return f"memory://{self._folder.name}"
        return f"sqlite:///{self._folder}/queues.db?durability=process"

    def close(self) -> None:
        for queue in self._made:
            queue._line.close_now()

    def _make(
        self,
        theirs: Callable[[int], asyncio.Queue[Any]],
        ours: Callable[..., Any],
        size: int,
        options: dict[str, Any],
    ) -> asyncio.Queue[Any]:
        if not self.ours:
            return theirs(size)
        settings = {
            "name": f"q{next(self._number)}",
            "url": self.url(),
            "commit": "each" if self.each else "group",
            **options,
        }
        queue: asyncio.Queue[Any] = ours(size, **settings)
        self._made.append(queue)
        return queue


def shutdown_on(queue: asyncio.Queue[Any], *, immediate: bool = False) -> None:
    """`queue.shutdown`, which asyncio's have from Python 3.13 on."""
    getattr(queue, "shutdown")(immediate)  # noqa: B009


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Let everybody else go on until it is so."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0)
