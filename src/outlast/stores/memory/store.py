"""The memory store: all promises but durability, and the reference for every other store."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.errors import DurabilityError, QueueFull, StoreClosed, StoreMoved, Unsupported
from outlast.store import Durability, Feature
from outlast.stores.memory import ledger
from outlast.stores.memory.moving import Moved

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.job import Added, Claim, Death, Depth, Job, Lost, Progress, Status, Step, Verdict
    from outlast.store import Cancelled, Line, WorkerInfo
    from outlast.stores.memory.bell import Topic, Waiter
    from outlast.stores.memory.registry import House
    from outlast.stores.memory.room import Room

__all__ = ["MemoryStore"]

_HOUR = 3600.0


class MemoryStore(Moved):
    """One handle on a room. Its calls never suspend but in ``wait`` and ``finished``.

    Handles in several threads, each with a loop of its own, may share a room.
    """

    features = (
        Feature.DELAY
        | Feature.PRIORITY
        | Feature.ORDER
        | Feature.KEYS
        | Feature.REPEATS
        | Feature.RESULTS
        | Feature.INSPECT
        | Feature.LANES
        | Feature.CAPACITY
        | Feature.STEPS
        | Feature.PUSH
    )
    durability = Durability.MEMORY
    lifelines: Path | None = None
    longest: float | None = None

    def __init__(
        self,
        house: House,
        namespace: str,
        *,
        durability: Durability | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
    ) -> None:
        self.url = f"memory://{house.name}"
        self._house = house
        self._room = house.room(namespace)
        self._required = durability
        self._clock = clock or SystemClock()
        self._chance = chance or SystemChance()
        self._opened = False
        self._looked: dict[Topic, int] = {}

    def __repr__(self) -> str:
        return f"MemoryStore({self.url!r})"

    async def open(self) -> None:
        self.open_now()

    def open_now(self) -> None:
        if self._required is not None and self._required > Durability.MEMORY:
            raise DurabilityError(
                f"{self.url} loses everything with the process, but durability "
                f"{self._required} was asked for: use sqlite:///FILE"
            )
        self._opened = True

    async def close(self) -> None:
        self.close_now()

    def close_now(self) -> None:
        self._opened = False
        with self._room.lock:
            self._room.bell.call(self._closing)

    async def add(self, jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        return self.add_now(jobs, capacity)

    def add_now(self, jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        with self._entered(changing=True) as room:
            try:
                return room.add(jobs, capacity, self._clock.now())
            except QueueFull:
                self._look("room", {job.queue for job in jobs})
                raise

    async def claim(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool = False,
    ) -> Sequence[Claim]:
        return self._claim(queues, tasks, limit, lease, worker, newest)

    def claim_soon(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool = False,
    ) -> Future[Sequence[Claim]]:
        future: Future[Sequence[Claim]] = Future()
        future.set_result(self._claim(queues, tasks, limit, lease, worker, newest))
        return future

    def _claim(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool,
    ) -> Sequence[Claim]:
        with self._entered() as room:
            if limit <= 0 or room.departure is not None:
                return []
            until = self._clock.monotonic() + lease
            now, token = self._clock.now(), self._chance.token
            claims = room.claim(queues, tasks, limit, until, worker, newest, now, token)
            if len(claims) < limit:
                self._look("news", queues)
            return claims

    async def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        return self.settle_now(verdicts)

    def settle_now(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        with self._entered() as room:
            return room.settle(verdicts, self._clock.now())

    async def renew(
        self, claims: Sequence[Claim], lease: float, notes: Sequence[Progress] = ()
    ) -> Sequence[Lost]:
        with self._entered() as room:
            return room.renew(claims, self._clock.monotonic() + lease, notes)

    async def recover(self, limit: int) -> int:
        with self._entered() as room:
            return room.recover(limit, self._clock.now(), self._clock.monotonic())

    async def recover_worker(self, worker: str, cause: Death) -> int:
        with self._entered() as room:
            room.workers.pop(worker, None)
            return room.recover_worker(worker, cause, self._clock.now())

    async def prune(self, limit: int) -> int:
        with self._entered(changing=True) as room:
            return room.prune(limit, self._clock.now())

    async def wait(self, queues: Sequence[str], timeout: float, *, space: bool = False) -> None:
        kind = "room" if space else "news"
        topics = [(kind, queue) for queue in queues]
        deadline = self._clock.monotonic() + timeout
        self._check_open()
        while self._opened:
            now, left = self._clock.now(), deadline - self._clock.monotonic()
            with self._room.lock:
                due = None if space else self._room.next_due(queues, now)
                if self._is_new(topics) or left <= 0:
                    return
                waiter = self._room.bell.listen([*topics, self._closing])
            await self._sleep(waiter, left if due is None else min(left, due - now))

    async def depth(self, queue: str) -> Depth:
        return self.depth_now(queue)

    def depth_now(self, queue: str) -> Depth:
        with self._entered() as room:
            return room.depth(queue, self._clock.now())

    async def get(self, ids: Sequence[str]) -> Sequence[Job | None]:
        with self._entered() as room:
            rows = [room.table.rows.get(id_) for id_ in ids]
            return [None if row is None else row.job for row in rows]

    async def find(
        self,
        *,
        status: Sequence[Status] = (),
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        since: float | None = None,
        until: float | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Job]:
        with self._entered() as room:
            return ledger.find(
                room.table,
                status=status,
                queue=queue,
                task=task,
                key=key,
                since=since,
                until=until,
                after=after,
                limit=limit,
            )

    async def cancel(self, ids: Sequence[str]) -> Sequence[Cancelled]:
        with self._entered(changing=True) as room:
            return ledger.cancel(room.table, ids, self._clock.now())

    async def revive(self, ids: Sequence[str]) -> Sequence[bool]:
        with self._entered(changing=True) as room:
            return ledger.revive(room.table, ids, self._clock.now())

    async def purge(self, queue: str, status: Sequence[Status], *, dry_run: bool = False) -> int:
        with self._entered(changing=True) as room:
            return ledger.purge(room.table, queue, status, dry_run=dry_run)

    async def finished(self, ids: Sequence[str], timeout: float) -> Sequence[Job]:
        topics = [("job", id_) for id_ in ids]
        deadline = self._clock.monotonic() + timeout
        while True:
            with self._entered() as room:
                ended = ledger.ended(room.table, ids)
                left = deadline - self._clock.monotonic()
                if ended or left <= 0:
                    return ended
                waiter = room.bell.listen([*topics, self._closing])
            await self._sleep(waiter, left)

    async def namespaces(self) -> Sequence[str]:
        self._check_open()
        return [name for name, room in self._house.rooms() if room.table.lines or room.workers]

    async def recall(self, claim: Claim) -> Sequence[Step]:
        return self.recall_now(claim)

    def recall_now(self, claim: Claim) -> Sequence[Step]:
        with self._entered() as room:
            return room.deeds.recall(claim.job.id, self._clock.now())

    async def remember(self, claim: Claim, step: Step) -> bool:
        return self.remember_now(claim, step)

    def remember_now(self, claim: Claim, step: Step) -> bool:
        with self._entered() as room:
            return room.remember(claim, step, self._clock.now())

    async def emit(self, event: str, payload: bytes, keep: float) -> bool:
        with self._entered(changing=True) as room:
            return room.deeds.emit(event, payload, keep, self._clock.now())

    async def event(self, event: str) -> bytes | None:
        with self._entered() as room:
            return room.deeds.event(event, self._clock.now())

    async def lines(self) -> Sequence[Line]:
        with self._entered() as room:
            return ledger.lines(room.table, self._clock.now())

    async def pause(self, queue: str, paused: bool = True) -> None:
        with self._entered() as room:
            ledger.pause(room.table, queue, paused)

    async def beat(self, info: WorkerInfo) -> None:
        with self._entered() as room:
            room.workers[info.id] = replace(info, seen_at=self._clock.now())

    async def leave(self, worker: str) -> None:
        with self._entered() as room:
            room.workers.pop(worker, None)

    async def workers(self) -> Sequence[WorkerInfo]:
        with self._entered() as room:
            since = self._clock.now() - _HOUR
            room.workers = {id_: it for id_, it in room.workers.items() if it.seen_at >= since}
            return list(room.workers.values())

    async def backup(self, path: Path) -> dict[str, Any]:
        self._check_open()
        raise Unsupported(f"{self.url} has no file to copy to {path}: use sqlite:///FILE")

    @property
    def _closing(self) -> Topic:
        return ("close", str(id(self)))

    @contextmanager
    def _entered(self, *, changing: bool = False) -> Iterator[Room]:
        """``changing``: not when the jobs have been moved elsewhere."""
        self._check_open()
        with self._room.lock:
            mark = self._room.departure
            if changing and mark is not None and mark.stage != "draining":
                raise StoreMoved(
                    f"the jobs of {self.url} were moved to {mark.to}, or are on their way: use that"
                )
            yield self._room

    def _check_open(self) -> None:
        if not self._opened:
            raise StoreClosed(f"{self.url} is not open: use it between open() and close()")

    def _look(self, kind: str, queues: Iterable[str]) -> None:
        """Remember that the caller knows all that has happened to these queues by now."""
        for queue in queues:
            self._looked[kind, queue] = self._room.bell.count((kind, queue))

    def _is_new(self, topics: Sequence[Topic]) -> bool:
        """Whether something happened since the last look; asking is the next look."""
        counts = {topic: self._room.bell.count(topic) for topic in topics}
        fresh = any(count > self._looked.get(topic, 0) for topic, count in counts.items())
        self._looked.update(counts)
        return fresh

    async def _sleep(self, waiter: Waiter, seconds: float) -> None:
        """Until the waiter is rung or ``seconds`` have passed by the store's clock."""
        sleeper = asyncio.ensure_future(self._clock.sleep(max(0.0, seconds)))
        try:
            await asyncio.wait((waiter.rung, sleeper), return_when=asyncio.FIRST_COMPLETED)
            if sleeper.done():
                sleeper.result()
        finally:
            sleeper.cancel()
            with self._room.lock:
                self._room.bell.forget(waiter)
