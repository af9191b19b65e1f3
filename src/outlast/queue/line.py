"""One process's end of a named line of items: everything between a queue object and its store.

It knows nothing of the queue object, so that it can tidy up when that one is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from math import ceil, inf
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from outlast import lifeline
from outlast.errors import EncodeError, StoreError, Unsupported
from outlast.job import DAY, Alike, Job, done
from outlast.queue.holds import Holds
from outlast.queue.intake import Intake
from outlast.queue.settling import Settling
from outlast.queue.supply import Supply
from outlast.store import Direct, offers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.job import Depth
    from outlast.queue.items import Codec
    from outlast.queue.window import Entry, Window
    from outlast.store import Store

__all__ = ["SHOWN", "Line"]

_log = logging.getLogger(__name__)

LEASE = 60.0
"""Seconds for which claims hold where nobody can see at once that a process is dead."""
LOCAL = ("memory:", "sqlite:")
"""Stores of this machine, whose processes all see at once who is dead. Elsewhere a lease tells."""
RECOVER = 500
"""Overdue claims of others that are put back when a line is opened."""
SHOWN = 10
"""Items that people are shown of a line."""
SEVERAL = 2048
"""Items whose start is marked at once, where deaths are counted."""


class Line:
    """The items of one queue, as this process puts, gets and settles them.

    ``each``: every call is durable when it returns, and blocks. ``pays``: an item leaves the store
    before it is handed out. ``unfinished`` counts what is put and not done, as far as is known
    here.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        window: Callable[[], Window],
        codec: Codec,
        ack: Literal["done", "get"],
        commit: Literal["group", "each"],
        maxsize: int,
        max_crashes: int | None,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self.store = store
        self.name = name
        self.codec = codec
        self.direct: Direct | None = store if offers(store, Direct) else None
        self.each = commit == "each"
        self.pays = ack == "get"
        self.maxsize = maxsize
        # As asyncio's, which compares and nothing else: infinity and NaN are no limit either.
        self.capacity = ceil(maxsize) if 0 < maxsize < inf else None
        self.leased = self.direct is None or not store.url.startswith(LOCAL)
        self._lease = LEASE if self.leased else DAY
        self._recovered = 0.0
        self._window = window
        self._clock = clock
        self._chance = chance
        self._max_crashes = max_crashes
        self._model = Job(
            id="-", queue=name, payload=b"", codec=codec.name, keep=0.0, max_crashes=max_crashes
        )
        self._start_anew()
        if hasattr(os, "register_at_fork"):
            forget = weakref.WeakMethod(self._start_anew)
            os.register_at_fork(after_in_child=lambda: (forget() or _nothing)())

    def _start_anew(self) -> None:
        """Nothing is open and nothing in our hands; in a forked child, that is the parent's."""
        self.opened = False
        self.thread = 0
        """Where the event loop runs whose tasks wait here, if any."""
        self.unfinished = 0
        self.sending = 0
        """Items on their way into the store, where there is a ``maxsize``."""
        self.changes = 0
        """Counts what would make a look at the store stale: items put and settled here."""
        self.recent: dict[str, Any] = {}
        """The first items that were put here and have not come back, to be shown to people."""
        self.holds = Holds()
        self.settling = Settling(self.store, self.direct, self._clock)
        self.intake = Intake(self.store, self.alike)
        self.supply = Supply(
            self.store, self.direct, self.name, self._new_worker(), self._window(), self.codec,
            self.settling, self._clock, lease=self._lease, exact=self.capacity is not None,
            pay=self.pays, alive=self._alive,
        )  # fmt: skip
        self._opening: asyncio.Task[None] | None = None
        self._renewer: asyncio.Task[None] | None = None
        self._lifeline: lifeline.Lifeline | None = None

    # -- opening and closing

    async def open(self) -> None:
        """Open the store, once, whoever asks."""
        while not self.opened:
            opening, loop = self._opening, asyncio.get_running_loop()
            if opening is None or opening.done() or opening.get_loop() is not loop:
                opening = self._opening = loop.create_task(self._open())
            await asyncio.shield(opening)

    async def _open(self) -> None:
        await self.store.open()
        await self.recover_dead()
        await self.store.recover(RECOVER)
        depth = await self.store.depth(self.name)
        if not self.opened:
            self._adopt(depth)

    def open_now(self, call: str) -> Direct:
        """The store for blocking calls, open. ``call`` is what needs it, for people.

        Raises ``Unsupported`` if the store can only be awaited.
        """
        direct = self.direct
        if direct is None:
            raise Unsupported(
                f"{call} would have to wait for {self.store.url}, which can only be awaited: use "
                f"await get(), put(), depth() or join()"
            )
        if not self.opened:
            direct.open_now()
            self._adopt(direct.depth_now(self.name))
        return direct

    def _adopt(self, depth: Depth) -> None:
        """What was there before we came counts as unfinished here, too."""
        self.opened = True
        self.unfinished += depth.live

    async def close(self) -> None:
        """Settle what is done, give back the rest, close the store."""
        if not self.opened:
            return
        clean = False
        try:
            await self.supply.land()
            left = self._let_go()
            if left:
                await self.store.add(left)
            await self.settling.flush()
            clean = True
        finally:
            self.opened = False
            await self.store.close()
            self._release(clean=clean)

    def close_now(self) -> None:
        """The same, blocking; nothing if it is closed, or where the store can only be awaited."""
        direct = self.direct
        if not self.opened or direct is None:
            return
        clean = False
        try:
            self.supply.land_now()
            left = self._let_go()
            if left:
                direct.add_now(left)
            self.settling.flush_now()
            clean = True
        finally:
            self.opened = False
            direct.close_now()
            self._release(clean=clean)

    def _let_go(self) -> Sequence[Job]:
        """Decide about everything in our hands; what has to be put again."""
        if self._renewer is not None and not (loop := self._renewer.get_loop()).is_closed():
            loop.call_soon_threadsafe(self._renewer.cancel)  # the collector runs in any thread
        covered = self.holds.covered
        held = [entry for entry in self.holds.drain() if not entry.paid]
        if covered:
            self.settling.add([done(entry.claim) for entry in held])
        else:
            self.settling.give_back([entry.claim for entry in held], started=True)
        self.supply.give_back()
        self.unfinished = 0
        self.recent.clear()
        return self.supply.leftovers()

    # -- items

    def job(self, item: Any, rank: bytes) -> Job:
        """The stored form of an item. It leaves no trace once it is done."""
        payload = self.codec.encode(item)
        if payload.__class__ is not bytes:
            raise EncodeError(
                f"codec {self.codec.name!r} made {type(payload).__name__} of the item, not bytes"
            )
        return replace(self._model, id=self._chance.uuid7(), payload=payload, rank=rank)

    def alike(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """The same jobs, which were made here, in a form that stores write faster if it can be."""
        if any(job.rank for job in jobs):
            return jobs
        return Alike(self._model, [job.id for job in jobs], [job.payload for job in jobs])

    def added(self, job: Job, item: Any) -> None:
        """This one is stored."""
        self.supply.window.outside(job.rank)
        self.unfinished += 1
        self.changes += 1
        if len(self.recent) < SHOWN:
            self.recent[job.id] = item

    def size(self) -> int:
        """How many items wait, in the store and in memory; may block."""
        direct = self.open_now("qsize()")
        self.supply.land_now()
        queued = direct.depth_now(self.name).queued
        if not queued:
            self.recent.clear()
        return queued + len(self.supply.window)

    def room(self, depth: Depth) -> int:
        """How many more may wait, given what the store says; there has to be a limit."""
        assert self.capacity is not None
        return self.capacity - depth.queued - len(self.supply.window) - self.sending

    def shown(self) -> list[Any]:
        """The first items, as far as they are known here."""
        items = [entry.item for entry in self.supply.window]
        known = {entry.claim.job.id for entry in self.supply.window} if self.recent else set()
        items += [item for id_, item in self.recent.items() if id_ not in known]
        return items[:SHOWN]

    def take(self, owner: object) -> Entry:
        """Hand the first item to ``owner``. Only where the supply is sure."""
        supply = self.supply
        supply.moved += 1
        entry = supply.window.pop()
        if self.recent:
            self.recent.pop(entry.claim.job.id, None)
        if entry.paid:
            self.unfinished -= 1
            return entry
        holds = self.holds
        if self._lifeline is not None and self._max_crashes is not None:
            self._lifeline.mark_started(entry.claim.job.id, alone=not holds)
        holds.take(entry, owner)
        held = holds.size - holds.counted
        if self.unfinished < held:  # others have put items since we last looked
            self.unfinished = held
        return entry

    def settle(self, entries: Sequence[Entry]) -> None:
        """These are done: durable at once with ``each`` or without an event loop, else soon."""
        self.changes += 1
        if self._max_crashes is not None:
            self._unmark(entries)
        if len(entries) == 1:  # the usual case, without a loop
            verdicts = [done(entries[0].claim)]
        else:
            verdicts = [done(entry.claim) for entry in entries]
        self.settling.add(verdicts, now=self.each)

    def give_back(self, entry: Entry) -> None:
        """This one isn't done: it may be claimed again, in its old place."""
        if self._max_crashes is not None:
            self._unmark([entry])
        self.settling.give_back([entry.claim], started=True, now=self.each)
        self.supply.window.outside(entry.claim.job.rank)

    async def recount(self) -> None:
        """Look into the store how much is unfinished, over all processes."""
        before = self.changes
        live = (await self.store.depth(self.name)).live
        if before == self.changes and not self.settling:
            self.unfinished = live - self.holds.counted

    def forget_others(self) -> None:
        """Nothing more comes here: what is unfinished is what is in hand, whatever was counted."""
        self.unfinished = max(0, self.holds.size - self.holds.counted)

    def drop(self) -> None:
        """Let go of what waits: nobody will ask for it here."""
        self.forget_others()
        self.recent.clear()
        self.supply.give_back()
        if self.each:
            self.settling.flush_now()

    def _unmark(self, entries: Sequence[Entry]) -> None:
        if self._lifeline is not None:
            for entry in entries:
                self._lifeline.mark_settled(entry.claim.job.id)

    # -- staying alive, and seeing who is not

    def _alive(self) -> None:
        """Before the first claim: let everybody see when this process is dead."""
        if self._lifeline is None and self.store.lifelines is not None:
            slots = 1 if self._max_crashes is None else SEVERAL
            line = lifeline.Lifeline(self.store.lifelines, self.supply.worker, slots)
            line.hold()
            self._lifeline = line

    def _release(self, *, clean: bool) -> None:
        line, self._lifeline = self._lifeline, None
        if line is not None:
            if clean:
                line.release()
            else:
                line.abandon()
            self.supply.worker = self._new_worker()

    def _new_worker(self) -> str:
        return f"queue-{self._chance.uuid7()}"

    async def recover_dead(self) -> None:
        """Put back at once what the dead processes of this machine held; of others, in time."""
        now = self._clock.monotonic()
        if self.leased and now - self._recovered > self._lease / 4:
            self._recovered = now
            await self.store.recover(RECOVER)
        folder = self.store.lifelines
        if folder is None:
            return
        for worker, cause in lifeline.dead(folder):
            await self.store.recover_worker(worker, cause)
            lifeline.forget(folder, worker)

    def start_renewing(self) -> None:
        """Keep what is in our hands for as long as this process lives."""
        if self._renewer is None or self._renewer.done():
            self._renewer = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(self._lease / 3)
            entries = [*self.holds, *self.supply.window]
            claims = [entry.claim for entry in entries if not entry.paid]
            if not claims:
                return
            try:
                lost = await self.store.renew(claims, self._lease)
            except StoreError as error:
                _log.warning("the claims on queue %r can't be renewed: %s", self.name, error)
                continue
            if lost:
                _log.warning("queue %r lost %d claims to others", self.name, len(lost))


def _nothing() -> None:
    """Stands in for a line that is gone."""
