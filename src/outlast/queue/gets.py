"""Getting: how a caller waits for an item and comes to hold it."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

from outlast.errors import QueueEmpty, QueueShutDown

if TYPE_CHECKING:
    from outlast.queue.line import Line
    from outlast.queue.pump import Pump
    from outlast.queue.waiters import Bind
    from outlast.queue.window import Entry

__all__ = ["Gets"]

FORGOTTEN = 100
"""Items in hand, and not one ``task_done()`` so far: worth a warning."""
UNCLEAR = 1000
"""Items in hand, and calls of ``task_done()`` that can't be put down to any: worth another."""


class Gets:
    """The way out."""

    def __init__(self, line: Line, pump: Pump) -> None:
        self._line = line
        self._pump = pump
        self._may_warn = True
        self.never_done = True
        """Whether no item was ever said to be done."""

    async def get(self, owner: object, bind: Bind) -> Entry:
        """The next item, when there is one, for ``owner``."""
        if self.must_wait():
            await self.wait(bind)
        return self.hand_out(owner)

    def must_wait(self) -> bool:
        """Whether there may be nothing to hand out at once."""
        return self._pump.shut or not self._line.supply.sure()

    def get_now(self, owner: object) -> Entry:
        """The next item, or ``QueueEmpty``; may block."""
        pump, supply = self._pump, self._line.supply
        if not pump.ended and not supply.sure():
            self._fetch_now("get_nowait()")
        if pump.ended or not supply.sure():
            raise QueueShutDown if pump.shut else QueueEmpty
        return self.hand_out(owner)

    async def get_many(self, limit: int, owner: object, bind: Bind) -> list[Entry]:
        """Up to ``limit`` items that are there, at least one."""
        supply = self._line.supply
        await self.wait(bind)
        short = limit - len(supply.window)
        if short > 0 and supply.window.settled:
            if self._line.each:
                self._fetch_now("get_many()", short, more=True)
            else:
                await supply.fetch(short)
                self._pump.holds_stock()
                await self.wait(bind)
        entries = [self.hand_out(owner)]
        while len(entries) < limit and supply.sure():
            entries.append(self.hand_out(owner))
        return entries

    def empty(self) -> bool:
        """Whether no item waits, in memory or in the store."""
        return self._pump.ended or (not self._line.supply.window and not self._line.size())

    def done(self, entries: list[Entry]) -> None:
        """One item more is done, and these are known to be."""
        line = self._line
        self.never_done = False
        line.unfinished -= 1
        line.settle(entries)
        if line.unfinished <= 0:
            self._all_done()

    async def wait(self, bind: Bind) -> None:
        """Return when there is an item for us. Nothing may be awaited before it is taken."""
        pump = self._pump
        turn = pump.getters.turn()
        while pump.ended or not self._has_item():
            if pump.shut and self._over():
                raise QueueShutDown
            try:
                await pump.getters.wait(turn, bind, pump.getter_waits)
            except BaseException:
                # With "group" the pump sees to it, in its own time.
                if pump.getters.was_woken(turn) and self._line.each and not self.empty():
                    pump.getters.wake()
                raise
            finally:
                pump.getter_left()
        if turn.waiter is not None:
            pump.getter_served()

    def _over(self) -> bool:
        """After a shutdown: whether nothing is left. Where that must be awaited, the pump sees."""
        line = self._line
        return self._pump.ended or (
            line.direct is not None and not line.intake.busy and self.empty()
        )

    def _has_item(self) -> bool:
        supply = self._line.supply
        if supply.sure():
            return True
        if self._line.each:
            self._fetch_now("get()")
        return supply.sure()

    def _fetch_now(self, call: str, wanted: int = 1, *, more: bool = False) -> None:
        supply = self._line.supply
        self._line.open_now(call)
        supply.fetch_now(wanted, more=more)
        if self._line.leased:
            self._pump.holds_claims()
        if len(supply.window) > wanted:
            self._pump.holds_stock()

    def hand_out(self, owner: object) -> Entry:
        entry = self._line.take(owner)
        if self._pump.putters.line:
            self._pump.putters.wake()
        if entry.paid and self._line.unfinished <= 0:
            self._all_done()
        if self._may_warn and self._line.holds.size >= FORGOTTEN:
            self._look_at_holds()
        return entry

    def _all_done(self) -> None:
        """With ``each`` that is durable by now; else somebody watches for the moment it is."""
        if self._line.each:
            self._pump.joiners.wake_all()

    def _look_at_holds(self) -> None:
        holds = self._line.holds
        if self.never_done and holds.piled:
            self._may_warn = False
            self.warn_of_growth()
        elif len(holds) >= UNCLEAR and holds.counted:
            self._may_warn = False
            warnings.warn(
                f"queue {self._line.name!r}: {len(holds)} items are in hand, and nobody can say "
                f"which of them {holds.counted} calls of task_done() mean, so none leaves the "
                f"store: call task_done(item), or use `async with queue.item()`",
                stacklevel=_users_line(),
            )

    def warn_of_growth(self) -> None:
        """Tell that nothing will ever leave the store, if it goes on like this."""
        warnings.warn(
            f"queue {self._line.name!r}: {len(self._line.holds)} items were taken out and "
            f"task_done() was never called, so they stay in the store and come again: call it for "
            f"each item, or make the queue with ack='get'",
            stacklevel=_users_line(),
        )


def _users_line() -> int:
    """How far up the first line is that is not ours: a get has many ways in."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("outlast."):
        level, frame = level + 1, frame.f_back
    return level
