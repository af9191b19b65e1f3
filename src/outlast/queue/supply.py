"""Claims items ahead into the window, as many as are used up quickly, and gives back the rest."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from outlast.errors import CodecError
from outlast.job import Failure, dead, done
from outlast.queue.window import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from outlast.clock import Clock
    from outlast.job import Claim, Job
    from outlast.queue.items import Codec
    from outlast.queue.settling import Settling
    from outlast.queue.window import Window
    from outlast.store import Direct, Store

__all__ = ["Supply"]

_log = logging.getLogger(__name__)

ITEMS = 1000
"""Items in memory at most, unless more callers of ``get`` wait at once."""
BYTES = 8 << 20
"""Bytes of their payloads, roughly."""
QUICK = 0.1
"""Seconds within which a window must be used up for the next one to be twice as large."""
SURE_FOR = 0.1
"""Seconds for which other processes' items may be overtaken, where order isn't by age."""


class _Flight:
    """A claim on its way, which may be awaited, or landed from synchronous code."""

    __slots__ = ("asked", "future", "task")

    def __init__(self, asked: int) -> None:
        self.asked = asked
        self.future: Future[Sequence[Claim]] | None = None
        self.task: asyncio.Task[Sequence[Claim]] | None = None

    def arrival(self) -> asyncio.Future[Sequence[Claim]]:
        """What to wait for, without cancelling it."""
        if self.future is not None:
            return asyncio.wrap_future(self.future)
        assert self.task is not None
        return self.task

    def result(self) -> Sequence[Claim]:
        """The claims; blocks if need be."""
        if self.future is not None:
            return self.future.result()
        assert self.task is not None
        return self.task.result()


async def _claims(store: Store, ask: tuple[Any, ...]) -> Sequence[Claim]:
    return await store.claim(*ask)


class Supply:
    """The window of one queue, and the claims that fill it.

    ``exact``: claim no more than there are callers waiting. ``pay``: items leave the store before
    they come into the window (``ack="get"``).
    """

    def __init__(
        self,
        store: Store,
        direct: Direct | None,
        queue: str,
        worker: str,
        window: Window,
        codec: Codec,
        settling: Settling,
        clock: Clock,
        *,
        lease: float,
        exact: bool,
        pay: bool,
        alive: Callable[[], None],
    ) -> None:
        self._store = store
        self._direct = direct
        self._queue = queue
        self.worker = worker
        self.window = window
        self._codec = codec
        self._settling = settling
        self._clock = clock
        self._lease = lease
        self._exact = exact
        self._pay = pay
        self._alive = alive
        self._flight: _Flight | None = None
        self._paying: asyncio.Task[None] | None = None
        self._unpaid: list[Entry] = []
        self._batch = 1
        self._size = 256.0
        self._landed = 0.0
        self.moved = 0
        """Grows whenever items come in or one is taken out."""

    # -- what there is

    def sure(self) -> bool:
        """Whether an item can be handed out at once."""
        window = self.window
        if window.settled:
            return len(window) > 0
        if self._clock.monotonic() - self._landed > SURE_FOR:
            window.doubt()
        return window.sure()

    # -- claiming

    async def fetch(self, wanted: int) -> None:
        """Claim at least up to ``wanted`` items, if there are so many. Cancel-safe.

        Nothing can be handed out after this if nothing was there, and then alone: what nobody can
        read is passed over.
        """
        found = True
        while found:
            self._make_way()
            while self._settling.returning:
                await self._settling.flush()
            flight = self._flight or self._begin(wanted)
            await asyncio.shield(flight.arrival())
            found = self._land(flight) and not self.window.sure() and not self._unpaid
        if self._unpaid:
            await self._settle_unpaid()

    async def land(self) -> None:
        """Receive what is on its way, and what is being paid for."""
        flight, paying = self._flight, self._paying
        if flight is not None:
            await asyncio.wait([flight.arrival()])
            self._land(flight)
        if paying is not None and not paying.done():
            await asyncio.wait([paying])

    def fetch_now(self, wanted: int, *, more: bool = False) -> None:
        """The same, blocking: first what is on its way; then, if that isn't enough, or ``more``."""
        self.land_now()
        found = more or not self.window.sure()
        while found:
            self._make_way()
            if self._settling.returning:
                self._settling.flush_now()
            found = self._land(self._begin(wanted)) and not self.window.sure() and not self._unpaid
        if self._unpaid:
            self._settle_unpaid_now()

    def land_now(self) -> None:
        """Receive what is on its way, blocking until it is there."""
        if self._settling.returning:
            self._settling.flush_now()
        flight = self._flight
        if flight is not None and flight.future is not None:
            self._land(flight)

    def _make_way(self) -> None:
        """A stack can't tell which of two claims is the newer one, so it has one at a time."""
        if self.window.newest and self._flight is None and len(self.window):
            self.give_back()

    def _begin(self, wanted: int) -> _Flight:
        self._alive()
        asked = self._limit(wanted)
        flight = self._flight = _Flight(asked)
        self.window.begin()
        ask = ((self._queue,), (None,), asked, self._lease, self.worker, self.window.newest)
        try:
            if self._direct is not None:
                flight.future = self._direct.claim_soon(*ask)
            else:
                flight.task = asyncio.create_task(_claims(self._store, ask))
        except BaseException:
            self._flight = None
            raise
        return flight

    def _limit(self, wanted: int) -> int:
        if self._exact or self._pay:
            return wanted
        quick = self._clock.monotonic() - self._landed < QUICK
        self._batch = min(self._batch * 2, ITEMS) if quick else max(self._batch // 2, 1)
        asked = max(wanted, min(self._batch, int(BYTES / self._size) or 1))
        if quick:  # so many waited: the next one need not begin at less
            self._batch = max(self._batch, min(asked, ITEMS))
        return asked

    def _land(self, flight: _Flight) -> bool:
        """Receive a claim, once: whoever waits for it next finds its items in the window.

        False if there was nothing to claim.
        """
        if self._flight is not flight:
            return True
        self._flight = None
        claims = flight.result()
        self._landed = self._clock.monotonic()
        self.moved += 1
        entries = self._decoded(claims)
        if self._pay and entries:
            self._unpaid += entries
        else:
            self.window.land(entries, full=len(claims) >= flight.asked)
            over = self.window.spill(max(ITEMS, flight.asked))
            self._settling.give_back([entry.claim for entry in over], started=False)
        return bool(claims)

    def _decoded(self, claims: Sequence[Claim]) -> list[Entry]:
        """The items. What nobody can read is buried, its bytes are kept."""
        name, decode = self._codec.name, self._codec.decode
        entries: list[Entry] = []
        size = 0
        for claim in claims:
            job = claim.job
            size += len(job.payload) + len(job.rank)
            try:
                if job.codec != name:
                    raise CodecError(f"it was put with codec {job.codec!r}, not {name!r}")
                entries.append(Entry(claim, decode(job.payload)))
            except Exception as error:
                self._bury(claim, error)
        if claims:
            self._size = (self._size + size / len(claims)) / 2
        return entries

    def _bury(self, claim: Claim, error: Exception) -> None:
        job = claim.job
        _log.error("item %s of queue %r can't be read: %s", job.id, job.queue, error)
        why = Failure(kind="undecodable", message=str(error), type=type(error).__qualname__)
        self._settling.add([dead(claim, why, started=False)])

    # -- ack="get"

    async def _settle_unpaid(self) -> None:
        """Let what was claimed leave the store for good; then it may be handed out."""
        entries, self._unpaid = self._unpaid, []
        self._paying = asyncio.create_task(self._paid_for(entries))
        await asyncio.shield(self._paying)

    async def _paid_for(self, entries: list[Entry]) -> None:
        try:
            lost = await self._store.settle([done(entry.claim) for entry in entries])
        except BaseException:
            self._unpaid[:0] = entries
            raise
        self._land_paid(entries, {each.claim.job.id for each in lost})

    def _settle_unpaid_now(self) -> None:
        assert self._direct is not None
        entries = self._unpaid
        lost = self._direct.settle_now([done(entry.claim) for entry in entries])
        self._unpaid = []
        self._land_paid(entries, {each.claim.job.id for each in lost})

    def _land_paid(self, entries: Sequence[Entry], lost: set[str]) -> None:
        mine = [entry for entry in entries if entry.claim.job.id not in lost]
        for entry in mine:
            entry.paid = True
        self.window.land(mine, full=True)

    # -- giving back

    def give_back(self) -> None:
        """Let others have what nobody here asks for. What has left the store stays."""
        kept: list[Entry] = []
        back = self._unpaid
        self._unpaid = []
        for entry in self.window.spill(0):
            (kept if entry.paid else back).append(entry)
        if kept:
            self.window.land(kept, full=True)
        self._settling.give_back([entry.claim for entry in back], started=False)
        self._batch = 1

    def leftovers(self) -> list[Job]:
        """Take out the items that live only here and that nobody came for, to put them again."""
        return [entry.claim.job for entry in self.window.spill(0)]
