"""Those who wait at a queue, in the order in which they came."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    Bind = Callable[[], asyncio.AbstractEventLoop]
    """Gives the running loop, and binds the queue to it, as asyncio's does when it has to wait."""

__all__ = ["Turn", "Waiters"]


class Turn:
    """The place of one caller, which it keeps if it is woken and comes too late."""

    __slots__ = ("number", "waiter")

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiter: asyncio.Future[None] | None = None


class Waiters:
    """A line of futures. Waking one takes it out of the line.

    ``strict``: who was woken and came too late goes to the end of the line, as with asyncio.
    """

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self.line: deque[asyncio.Future[None]] = deque()
        self.called = 0
        """How many were woken and have not gone on yet."""
        self._numbers = count()
        self._places: dict[asyncio.Future[None], int] = {}

    def __len__(self) -> int:
        return sum(not waiter.done() for waiter in self.line)

    def turn(self) -> Turn:
        """A place behind all others."""
        return Turn(next(self._numbers))

    async def wait(self, turn: Turn, bind: Bind, started: Callable[[], None]) -> None:
        """Until woken. ``started`` is called once we stand in the line.

        Whoever is cancelled while being woken finds out by ``was_woken``.
        """
        if turn.waiter is not None and self._strict:
            turn.number = next(self._numbers)
        turn.waiter = waiter = bind().create_future()
        self._stand(waiter, turn.number)
        started()
        try:
            await waiter
        finally:
            waiter.cancel()
            if self.was_woken(turn):
                self.called -= 1
            elif self._places.pop(waiter, None) is not None:
                self.line.remove(waiter)

    def was_woken(self, turn: Turn) -> bool:
        """Whether that caller was woken, and neither cancelled before nor failed."""
        waiter = turn.waiter
        return (
            waiter is not None
            and waiter.done()
            and not waiter.cancelled()
            and waiter.exception() is None
        )

    def wake(self, many: int = 1) -> None:
        """Let the first so many go on."""
        while many > 0 and self.line:
            waiter = self.line.popleft()
            ours = self._places.pop(waiter, None) is not None
            if not waiter.done():
                many -= 1
                self.called += ours  # asyncio's own tests put others here
                waiter.set_result(None)

    def wake_all(self) -> None:
        """Let everybody go on."""
        self.wake(len(self.line))

    def fail(self, error: Exception) -> None:
        """Let everybody see what went wrong."""
        while self.line:
            waiter = self.line.popleft()
            self._places.pop(waiter, None)
            if not waiter.done():
                waiter.set_exception(error)

    def _stand(self, waiter: asyncio.Future[None], number: int) -> None:
        places = self._places
        at = len(self.line)
        while at > 0 and places.get(self.line[at - 1], -1) > number:
            at -= 1
        places[waiter] = number
        self.line.insert(at, waiter)
