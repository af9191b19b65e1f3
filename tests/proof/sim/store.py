"""The simulated store: a real memory store behind a network and a machine that fail on schedule."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from tests.proof.sim.hosts import Process, SimClock
from tests.proof.sim.loop import OWNER, SimLoop

from outlast.errors import EnqueueUncertain, StoreClosed, StoreUnavailable, Unsupported
from outlast.job import Status
from outlast.stores.memory.registry import House
from outlast.stores.memory.store import MemoryStore

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

    from tests.proof.sim.referee import Referee

    from outlast.chance import Chance
    from outlast.job import Added, Claim, Death, Depth, Job, Lost, Progress, Verdict
    from outlast.store import Cancelled, Line, WorkerInfo

__all__ = ["Server", "SimStore", "Weather"]

TIMEOUT = 4.0
"""Seconds after which a caller gives a silent store up."""


class Weather:
    """How likely each mishap is for one call. All zero: a fine day."""

    KINDS = ("before", "after", "mute", "twice", "late")

    def __init__(self) -> None:
        self.rates: dict[str, float] = dict.fromkeys(self.KINDS, 0.0)

    def draw(self, dice: random.Random) -> str:
        """What befalls this call: an error before or after it was done, no answer, two of it, or a
        long way; usually nothing."""
        if not any(self.rates.values()):
            return ""
        point = dice.random()
        for kind, rate in self.rates.items():
            point -= rate
            if point < 0:
                return kind
        return ""


class Server:
    """The machine that the store runs on, with the network before it."""

    def __init__(
        self,
        loop: SimLoop,
        seed: int,
        chance: Chance,
        referee: Referee,
        harm: Callable[[Process, str], None],
    ) -> None:
        self.loop = loop
        self._house = House("sim")
        self.room = self._house.room("default")
        self.clock = SimClock(loop)
        self.weather = Weather()
        self.down = False
        self.cut_armed = ""
        """A power cut waits for the next claim: "before" or "after" its answer is on the way."""
        self.on_cut: Callable[[], None] = lambda: None
        self.calls: Counter[str] = Counter()
        self.latency = 0.0
        self._dice = random.Random(seed)
        self._chance = chance
        self.referee = referee
        self._harm = harm
        self._unsynced: list[Claim] = []

    def handle(self) -> MemoryStore:
        store = MemoryStore(self._house, "default", clock=self.clock, chance=self._chance)
        store.open_now()
        return store

    def send(
        self, process: Process, store: MemoryStore, name: str, args: tuple[Any, ...]
    ) -> asyncio.Future[Any]:
        """A request sets out; the future is its answer."""
        self.calls[name] += 1
        answer = self.loop.create_future()
        request = (process, store, name, args, answer)
        if self.down or process.cut_off == "refused":
            self._harm(process, name)
            error = StoreUnavailable(f"{name}: connection refused")
            self._later(self._way(), _fail, answer, error)
        elif process.cut_off == "silent":
            self._give_up(process, name, args, answer)
        else:
            fate = self.weather.draw(self._dice)
            if process.cut_off == "deaf":
                fate = "mute"
            way = self._way()
            if fate == "late":
                way += self._dice.uniform(0.2, 2 * TIMEOUT)
                process.unanswered += 1
            if fate:
                self._harm(process, name)
            self._later(way, self._arrive, request, fate)
            if fate == "twice":
                self._later(way + self._dice.uniform(0.0, 20.0), self._again, request)
        return answer

    def cut(self) -> None:
        """The power goes: what was not synced is lost, which can only be claims."""
        for claim in reversed(self._unsynced):
            row = self.room.table.rows.get(claim.job.id)
            if row is None or row.receipt != claim.receipt or row.job.status is not Status.RUNNING:
                continue
            old = replace(claim.job, attempt=claim.job.attempt - 1, started_at=None)
            self.room.table.requeue(row, old, self.clock.now())
            self.referee.unclaimed(claim)
        self._unsynced.clear()

    def _arrive(self, request: tuple[Any, ...], fate: str) -> None:
        process, store, name, args, answer = request
        if fate == "late":
            process.unanswered -= 1
            self._harm(process, name)
        if self.down or fate == "before" or process.cut_off == "silent":
            self._harm(process, name)
            self._later(self._way(), _fail, answer, _doubt(name, args))
            return
        ok, outcome = self._apply(process, store, name, args)
        cut = self.cut_armed if name == "claim" and outcome and ok else ""
        if cut:
            self.cut_armed = ""
            self.on_cut()
        if fate == "after" or cut == "before":
            self._later(self._way(), _fail, answer, _doubt(name, args))
        elif fate == "mute" or process.cut_off:
            self._give_up(process, name, args, answer)
        elif ok:
            self._later(self._way(), _succeed, answer, outcome)
        else:
            self._later(self._way(), _fail, answer, outcome)

    def _again(self, request: tuple[Any, ...]) -> None:
        process, store, name, args, _ = request
        if not self.down:
            # The answer finds nobody: what is claimed so stays with it until the lease is over.
            self._harm(process, name)
            self._apply(process, store, name, args)

    def _apply(
        self, process: Process, store: MemoryStore, name: str, args: tuple[Any, ...]
    ) -> tuple[bool, Any]:
        """Do it, before the referee's eyes; whether it went well, and the answer or the error."""
        self.referee.before(process, name, args)
        try:
            outcome = _run_now(getattr(store, name)(*args))
        except Exception as error:
            return False, error
        self.referee.after(process, name, args, outcome)
        if name in ("add", "settle", "cancel"):
            self._unsynced.clear()
        elif name == "claim":
            self._unsynced.extend(outcome)
        return True, outcome

    def _give_up(
        self, process: Process, name: str, args: tuple[Any, ...], answer: asyncio.Future[Any]
    ) -> None:
        self._harm(process, name)
        process.unanswered += 1
        self._later(TIMEOUT, self._expire, process, name, args, answer)

    def _expire(
        self, process: Process, name: str, args: tuple[Any, ...], answer: asyncio.Future[Any]
    ) -> None:
        process.unanswered -= 1
        # Its loop stood still all that time, so what it holds may be lost up to now.
        self._harm(process, name)
        _fail(answer, _doubt(name, args))

    def _way(self) -> float:
        return self._dice.expovariate(1 / self.latency) if self.latency else 0.0

    def _later(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        self.loop.call_later(seconds, call, *args, context=self.loop.outside)


class SimStore:
    """One process's handle on the store, as the engine gets it."""

    url = "memory://sim"
    features = MemoryStore.features
    durability = MemoryStore.durability

    def __init__(self, server: Server) -> None:
        process = OWNER.get()
        assert isinstance(process, Process)
        self._process = process
        self._server = server
        self._inner = server.handle()
        self._opened = False
        self.lifelines: Path | None = process.host
        self.longest: float | None = None

    async def open(self) -> None:
        self._opened = True
        try:
            await self._call("depth", "none")
        except BaseException:
            self._opened = False
            raise

    async def close(self) -> None:
        self._opened = False
        self._inner.close_now()

    async def add(self, jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        added: Sequence[Added] = await self._call("add", jobs, capacity)
        return added

    async def claim(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool = False,
    ) -> Sequence[Claim]:
        claims: Sequence[Claim] = await self._call(
            "claim", queues, tasks, limit, lease, worker, newest
        )
        return claims

    async def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        self._server.referee.asked(self._process, verdicts)
        lost: Sequence[Lost] = await self._call("settle", tuple(verdicts))
        return lost

    async def renew(
        self, claims: Sequence[Claim], lease: float, notes: Sequence[Progress] = ()
    ) -> Sequence[Lost]:
        lost: Sequence[Lost] = await self._call("renew", tuple(claims), lease, tuple(notes))
        return lost

    async def recover(self, limit: int) -> int:
        return int(await self._call("recover", limit))

    async def recover_worker(self, worker: str, cause: Death) -> int:
        return int(await self._call("recover_worker", worker, cause))

    async def prune(self, limit: int) -> int:
        return int(await self._call("prune", limit))

    async def wait(self, queues: Sequence[str], timeout: float, *, space: bool = False) -> None:
        self._check_open()
        await self._inner.wait(queues, timeout, space=space)
        if self._server.down or self._process.cut_off == "refused":
            raise StoreUnavailable("wait: connection lost")

    async def depth(self, queue: str) -> Depth:
        depth: Depth = await self._call("depth", queue)
        return depth

    async def get(self, ids: Sequence[str]) -> Sequence[Job | None]:
        jobs: Sequence[Job | None] = await self._call("get", ids)
        return jobs

    async def find(self, **wanted: Any) -> Sequence[Job]:
        raise Unsupported(f"nobody looks around in a simulation, for {wanted}")

    async def cancel(self, ids: Sequence[str]) -> Sequence[Cancelled]:
        answers: Sequence[Cancelled] = await self._call("cancel", ids)
        return answers

    async def revive(self, ids: Sequence[str]) -> Sequence[bool]:
        answers: Sequence[bool] = await self._call("revive", ids)
        return answers

    async def purge(self, queue: str, status: Sequence[Status], *, dry_run: bool = False) -> int:
        raise Unsupported("nobody purges in a simulation")

    async def finished(self, ids: Sequence[str], timeout: float) -> Sequence[Job]:
        self._check_open()
        await self._call("depth", "none")
        return await self._inner.finished(ids, timeout)

    async def lines(self) -> Sequence[Line]:
        lines: Sequence[Line] = await self._call("lines")
        return lines

    async def pause(self, queue: str, paused: bool = True) -> None:
        await self._call("pause", queue, paused)

    async def beat(self, info: WorkerInfo) -> None:
        await self._call("beat", info)

    async def leave(self, worker: str) -> None:
        await self._call("leave", worker)

    async def workers(self) -> Sequence[WorkerInfo]:
        workers: Sequence[WorkerInfo] = await self._call("workers")
        return workers

    async def backup(self, path: Path) -> dict[str, Any]:
        raise Unsupported(f"there is nothing to copy to {path}")

    async def _call(self, name: str, *args: Any) -> Any:
        self._check_open()
        return await self._server.send(self._process, self._inner, name, args)

    def _check_open(self) -> None:
        if not self._opened:
            raise StoreClosed("the simulated store is not open")


def _doubt(name: str, args: tuple[Any, ...]) -> Exception:
    """What a caller is told who can't know whether it was done."""
    if name == "add":
        return EnqueueUncertain("no answer to add", [job.id for job in args[0]])
    return StoreUnavailable(f"{name}: no answer")


def _succeed(answer: asyncio.Future[Any], outcome: Any) -> None:
    if not answer.done():
        answer.set_result(outcome)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        # Whoever asked may be dead by now.
        answer.exception()


def _run_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a call to the memory store was suspended")
