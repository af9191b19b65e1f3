"""Settles what was decided about items, behind the program's back: in batches, one at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from outlast.errors import StoreError, StoreUnavailable
from outlast.job import give_back

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.clock import Clock
    from outlast.job import Claim, Lost, Verdict
    from outlast.store import Direct, Store

__all__ = ["Settling"]

_log = logging.getLogger(__name__)

BATCH = 2000
"""Verdicts in one write."""
PAUSES = (0.1, 1.0, 5.0)
"""Seconds between tries while the store can't be reached; the last one from then on."""


class Settling:
    """Verdicts on their way to the store.

    Nothing gets lost by a failure: a batch whose outcome isn't known is repeated, which is
    harmless, and what never gets there leaves its items in the store, to come again.
    """

    def __init__(self, store: Store, direct: Direct | None, clock: Clock) -> None:
        self._store = store
        self._direct = direct
        self._clock = clock
        self._waiting: list[Verdict] = []
        self.returning = False
        """Whether items that go back are among those not sent: a claim must not overtake them."""
        self._sender: asyncio.Task[None] | None = None
        self._unsure: set[bytes] = set()
        """Receipts of what was on its way when its sender was cancelled: perhaps it is settled."""

    def __bool__(self) -> bool:
        return bool(self._waiting) or self._sending

    @property
    def _sending(self) -> bool:
        sender = self._sender
        return sender is not None and not sender.done()

    def add(self, verdicts: Sequence[Verdict], *, now: bool = False) -> None:
        """Settle these soon, or ``now``: then, and without a running event loop, this blocks."""
        self._waiting += verdicts
        sender = self._sender
        if not (now or sender is None or sender.done()) and sender.get_loop().is_running():
            return  # it takes these as well
        if (now or self._start() is None) and self._direct is not None:
            self.flush_now()

    def give_back(self, claims: Sequence[Claim], *, started: bool, now: bool = False) -> None:
        """Let these items be claimed again."""
        if claims:
            self.returning = True
            self.add([give_back(claim, started=started) for claim in claims], now=now)

    async def flush(self) -> None:
        """Return when everything that was added before is durable.

        Raises the ``StoreError`` that keeps it from being so, unless trying again is sensible.
        """
        while self:
            sender = self._start()
            if sender is not None:
                await asyncio.shield(sender)

    def flush_now(self) -> None:
        """The same, blocking. Only with ``Direct``."""
        assert self._direct is not None
        while self._waiting:
            batch = self._take()
            try:
                self._report(self._direct.settle_now(batch))
            except BaseException:
                self._put_back(batch)
                raise

    def _start(self) -> asyncio.Task[None] | None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        sender = self._sender
        if sender is None or sender.done() or sender.get_loop() is not loop:
            sender = self._sender = loop.create_task(self._send())
            # Who cares for the failure sees it in `flush`; it is logged in any case.
            sender.add_done_callback(_look_at)
        return sender

    async def _send(self) -> None:
        failures = 0
        while self._waiting:
            batch = self._take()
            try:
                self._report(await self._store.settle(batch))
                failures = 0
            except StoreUnavailable as error:
                self._put_back(batch)
                pause = PAUSES[min(failures, len(PAUSES) - 1)]
                failures += 1
                _log.warning("%d items can't be settled yet: %s", len(self._waiting), error)
                await self._clock.sleep(pause)
            except BaseException as error:
                self._put_back(batch)
                if isinstance(error, asyncio.CancelledError):
                    self._unsure.update(verdict.claim.receipt for verdict in batch)
                if isinstance(error, StoreError):
                    _log.error("%d items can't be settled: %s", len(self._waiting), error)
                raise

    def _take(self) -> list[Verdict]:
        batch = self._waiting[:BATCH]
        del self._waiting[:BATCH]
        self.returning = self.returning and bool(self._waiting)
        return batch

    def _put_back(self, batch: list[Verdict]) -> None:
        self._waiting[:0] = batch
        self.returning = any(verdict.kind == "give_back" for verdict in self._waiting)

    def _report(self, lost: Sequence[Lost]) -> None:
        for each in lost:
            if each.claim.receipt in self._unsure:
                continue  # by the one that was cancelled, as at the end of `asyncio.run`
            _log.warning(
                "item %s of queue %r was not ours any more when it was settled: it may be handled "
                "twice", each.claim.job.id, each.claim.job.queue,
            )  # fmt: skip
        if not self._waiting:
            self._unsure.clear()


def _look_at(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
