"""The RabbitMQ store with records: the jobs stand in another store, and the broker shares them out.

The record is the truth. A job is accepted when it is recorded, claimed by compare-and-set in the
record, and the lease is there too. A message only says that there is work.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from outlast.errors import Unsupported
from outlast.movable import Movable
from outlast.store import Direct, Feature, Ledger, offers
from outlast.stores.news import WORK, News
from outlast.stores.rabbitmq.bells import Bells

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.job import Added, Claim, Job, Lost, Verdict
    from outlast.store import Store
    from outlast.stores.rabbitmq.address import Address
    from outlast.stores.rabbitmq.held import Held

__all__ = ["NEEDED", "RecordedStore"]

NEEDED = Feature.KEYS | Feature.INSPECT | Feature.RESULTS | Feature.DELAY
"""What records must be able to do."""


class RecordedStore:
    """The records with all they can do; only what there is to claim is told by the broker.

    Any call that isn't here is theirs. ``features`` are theirs but for ``PROMPT``: a claim waits
    for the broker's word, not for that of the records.
    """

    longest: float | None = None
    """A run may last for ever: no message is held meanwhile."""

    def __init__(
        self,
        address: Address,
        records: Store,
        more_records: Callable[[], Store],
        *,
        namespace: str,
        clock: Clock,
        chance: Chance,
    ) -> None:
        if NEEDED & ~records.features:
            raise Unsupported(
                f"{records.url} can't keep records: use postgresql://, redis:// or sqlite:///"
            )
        self.url = f"{address.shown}?records={quote(records.url, safe=':/,')}"
        self.namespace = namespace
        self.features = (records.features & ~Feature.PROMPT) | Feature.PUSH
        self._address = address
        self.records = records
        """The store where the jobs stand."""
        self._more_records = more_records
        self._clock = clock
        self._chance = chance
        self._news = News()
        self._bells: Bells | None = None
        self._left: list[Bells | None] = []
        """Inherited over a fork, and not to be touched here."""
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"RecordedStore({self.url!r}, namespace={self.namespace!r})"

    def __getattr__(self, name: str) -> Any:
        if name == "records" or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.records, name)

    # -- opening and closing

    async def open(self) -> None:
        """The records must be there; a broker that is away is not waited for."""
        await self.records.open()
        await asyncio.to_thread(self._open_bells)

    def open_now(self) -> None:
        """``open`` for callers without an event loop; blocks."""
        self._direct.open_now()
        self._open_bells()

    def _open_bells(self) -> None:
        if self._pid != os.getpid():
            self._left.append(self._bells)
            self._pid, self._lock, self._bells = os.getpid(), threading.Lock(), None
        with self._lock:
            if self._bells is None:
                bells = Bells(
                    self._address, self.namespace, self._news, self._chance, self.records,
                    self._more_records,
                )  # fmt: skip
                bells.engine.start()
                self._bells = bells

    async def close(self) -> None:
        await asyncio.to_thread(self._close_bells)
        await self.records.close()

    def close_now(self) -> None:
        """``close`` for callers without an event loop; blocks."""
        self._close_bells()
        self._direct.close_now()

    def _close_bells(self) -> None:
        with self._lock:
            bells, self._bells = self._bells, None
            if bells is not None and self._pid == os.getpid():
                bells.engine.close()
        self._news.missed()

    # -- adding

    async def add(self, jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        """Accepted once it is recorded. The bell comes after it, and is not waited for.

        The broker may be away, blocked, or may lose it: a job that is recorded will run, and to
        say of it that nobody knows would have it stored twice.
        """
        added = await self.records.add(jobs, capacity)
        self._ring_for(jobs, added)
        return added

    def add_now(self, jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        """``add`` for callers without an event loop; blocks until it is durable."""
        added = self._direct.add_now(jobs, capacity)
        self._ring_for(jobs, added)
        return added

    def _ring_for(self, jobs: Sequence[Job], added: Sequence[Added]) -> None:
        fresh = (job for job, answer in zip(jobs, added, strict=True) if answer.created)
        self._ring(_due(fresh))

    def _ring(self, lines: Counter[tuple[str, str | None]]) -> None:
        bells = self._bells
        if bells is not None:
            bells.ring(lines)

    # -- claiming

    async def claim(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool = False,
    ) -> Sequence[Claim]:
        """Bells that are here are acknowledged when the records hold the lease, and not before."""
        if limit <= 0:
            return await self.records.claim(queues, tasks, limit, lease, worker, newest)
        bells, found = self._listen(queues, tasks, limit)
        claims: Sequence[Claim] | None = None
        try:
            claims = await self.records.claim(queues, tasks, limit, lease, worker, newest)
        finally:
            self._heed(bells, found, claims, limit, queues)
        return claims

    def claim_soon(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool = False,
    ) -> Future[Sequence[Claim]]:
        """``claim``, begun, for callers without an event loop."""
        if limit <= 0:
            return self._direct.claim_soon(queues, tasks, limit, lease, worker, newest)
        bells, found = self._listen(queues, tasks, limit)
        future = self._direct.claim_soon(queues, tasks, limit, lease, worker, newest)

        def ended(future: Future[Sequence[Claim]]) -> None:
            failed = future.cancelled() or future.exception() is not None
            self._heed(bells, found, None if failed else future.result(), limit, queues)

        future.add_done_callback(ended)
        return future

    def claim_now(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool = False,
    ) -> Sequence[Claim]:
        """``claim`` for callers without an event loop; blocks."""
        return self.claim_soon(queues, tasks, limit, lease, worker, newest).result()

    def _listen(
        self, queues: Sequence[str], tasks: Sequence[str | None], limit: int
    ) -> tuple[Bells | None, list[Held]]:
        bells = self._bells
        seen = self._news.count(WORK, queues)
        self._news.look(WORK, seen)
        return bells, [] if bells is None else bells.take(queues, tasks, limit)

    def _heed(
        self,
        bells: Bells | None,
        found: list[Held],
        claims: Sequence[Claim] | None,
        limit: int,
        queues: Sequence[str],
    ) -> None:
        if claims is None or len(claims) >= limit:
            self._news.overlook(WORK, queues)  # there may be more
        if bells is not None:
            bells.heed(found, claimed=claims is not None)

    async def wait(self, queues: Sequence[str], timeout: float, *, space: bool = False) -> None:
        """Until a bell rings. As long as the broker is away, the records tell."""
        if space or self._bells is None:
            await self.records.wait(queues, timeout, space=space)
            return
        waiter = self._news.wait(WORK, queues)
        try:
            if self._news.is_new(WORK, queues) or timeout <= 0:
                return
            if self._bells.listens:
                await waiter.sleep(self._clock, timeout)
                return
            other = asyncio.ensure_future(self.records.wait(queues, timeout))
            rung = asyncio.ensure_future(waiter.sleep(self._clock, timeout))
            try:
                await asyncio.wait((other, rung), return_when=asyncio.FIRST_COMPLETED)
                if other.done():
                    other.result()
            finally:
                other.cancel()
                rung.cancel()
        finally:
            self._news.drop(waiter)

    # -- settling

    async def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        lost = await self.records.settle(verdicts)
        self._ring(_put_back(verdicts))
        return lost

    def settle_now(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        """``settle`` for callers without an event loop; blocks until it is durable."""
        lost = self._direct.settle_now(verdicts)
        self._ring(_put_back(verdicts))
        return lost

    @property
    def _direct(self) -> Direct:
        if not offers(self.records, Direct):
            raise Unsupported(f"{self.records.url} can only be awaited")
        return self.records


def _due(jobs: Iterable[Job]) -> Counter[tuple[str, str | None]]:
    """The lines of those that can be claimed at once; for the others the sweep rings in time."""
    return Counter((job.queue, job.task) for job in jobs if not job.delay and job.run_at is None)


def _put_back(verdicts: Sequence[Verdict]) -> Counter[tuple[str, str | None]]:
    lines: Counter[tuple[str, str | None]] = Counter()
    for verdict in verdicts:
        if verdict.then:
            lines += _due(verdict.then)
        if verdict.kind in ("retry", "give_back") and not verdict.delay and verdict.event is None:
            lines[verdict.claim.job.queue, verdict.claim.job.task] += 1
    return lines


def _forwarded(name: str) -> Any:
    def call(self: RecordedStore, *args: Any, **options: Any) -> Any:
        return getattr(self.records, name)(*args, **options)

    call.__name__ = name
    return call


def _names(protocol: type) -> Iterable[str]:
    return (name for name, value in vars(protocol).items() if name[0] != "_" and callable(value))


# A protocol that is looked for in a class must be found there, not only when it is asked.
for _protocol in (Ledger, Direct, Movable):
    for _name in _names(_protocol):
        if _name not in vars(RecordedStore):
            setattr(RecordedStore, _name, _forwarded(_name))
