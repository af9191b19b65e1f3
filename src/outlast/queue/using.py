"""Items in blocks and loops: settled without a call of ``task_done()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from outlast.errors import QueueShutDown

if TYPE_CHECKING:
    from types import TracebackType

    from outlast.queue.gets import Gets
    from outlast.queue.line import Line
    from outlast.queue.waiters import Bind
    from outlast.queue.window import Entry

__all__ = ["Item", "Items"]

T = TypeVar("T")


class Item(Generic[T]):
    """``async with queue.item() as item``: done if the block ends well, else given back."""

    def __init__(self, line: Line, gets: Gets, owner: object, bind: Bind) -> None:
        self._line = line
        self._gets = gets
        self._owner = owner
        self._bind = bind
        self._entry: Entry | None = None

    async def __aenter__(self) -> T:
        self._entry = entry = await self._gets.get(self._owner, self._bind)
        item: T = entry.item
        return item

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entry, self._entry = self._entry, None
        # The block may have said task_done() itself, or closed the queue.
        if entry is not None and self._line.holds.has(entry):
            if kind is None:
                self._gets.done(self._line.holds.done_with(entry))
            else:
                self._line.holds.release(entry)
                self._line.give_back(entry)


class Items(Generic[T]):
    """``async for item in queue``: each is done when the next one is asked for."""

    def __init__(self, line: Line, gets: Gets, owner: object, bind: Bind) -> None:
        self._line = line
        self._gets = gets
        self._owner = owner
        self._bind = bind
        self._entry: Entry | None = None

    def __aiter__(self) -> Items[T]:
        return self

    async def __anext__(self) -> T:
        entry, self._entry = self._entry, None
        if entry is not None and self._line.holds.has(entry):
            self._gets.done(self._line.holds.done_with(entry))
        try:
            self._entry = entry = await self._gets.get(self._owner, self._bind)
        except QueueShutDown:
            raise StopAsyncIteration from None
        item: T = entry.item
        return item
