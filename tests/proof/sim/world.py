"""One world from its first moment to the verdict: who lives in it, and how it is judged."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from tests.proof.checker import Report, check
from tests.proof.journal import Event
from tests.proof.sim.hosts import Morgue, Process, SimClock
from tests.proof.sim.loop import SimLoop, TooLong, inside
from tests.proof.sim.nemesis import Nemesis
from tests.proof.sim.plan import PROFILES, draw
from tests.proof.sim.producer import Producer
from tests.proof.sim.referee import Referee
from tests.proof.sim.store import Server, SimStore
from tests.proof.sim.tasks import Tasks, author

from outlast import Outlast
from outlast.chance import SeededChance
from outlast.errors import StoreError
from outlast.job import Status
from outlast.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.proof.journal import Kind

    from outlast.store import Store

__all__ = ["Outcome", "World", "run_world"]

BOUND = 900.0
"""Seconds after the last fault in which everything must have ended, not counting idle time."""
PROMPT = 1.0
"""Seconds in which an idle fleet must have run a job that it is given."""
PATIENCE = 15.0
LIMIT = 150_000
"""Steps, ten times what a world takes that comes to rest."""
QUIET = 3.0
"""Leases after which the last fault is forgotten: what a worker holds then, it knows of."""


class Outcome(Struct, kw_only=True):
    """What became of a world."""

    seed: int
    profile: str
    broken: dict[str, list[str]]
    digest: str
    steps: int
    seconds: float
    """Virtual ones."""
    idle: float = 0.0
    """Those of them that were skipped."""
    acknowledged: int = 0
    uncertain: int = 0
    runs: int = 0
    explained: int = 0
    zombies: int = 0
    faults: list[str] = []
    story: str = ""


class SimApp(Outlast):
    """The real app; its store is the simulated one of whichever process it runs in."""

    def __init__(self, world: World) -> None:
        super().__init__("memory://sim", clock=world.server.clock, chance=world.chance)
        self._world = world

    def open_store(self, *, create: bool | None = None) -> Store:
        return SimStore(self._world.server)


class Place:
    """Where one worker process after another lives, as a supervisor would have it."""

    def __init__(self, number: int, host: Path | None, clock: SimClock) -> None:
        self.number = number
        self.host = host
        self.clock = clock
        self.process: Process | None = None
        self.worker: Worker | None = None
        self.rest = 0.5
        """Seconds until the next start."""


class World:
    """Everything there is, for one seed."""

    def __init__(self, seed: int, profile: str, only: Sequence[int] | None = None) -> None:
        self.seed = seed
        self.profile_name = profile
        self.profile = PROFILES[profile]
        self.loop = SimLoop(seed, LIMIT)
        self.chance = SeededChance(seed)
        self.dice = random.Random(f"world {seed}")
        self.morgue = Morgue()
        self.referee = Referee(self.morgue)
        self.server = Server(self.loop, seed, self.chance, self.referee, self.harm)
        self.server.latency = self.dice.choice((0.0, 0.002, 0.02))
        self.referee.server, self.referee.tell = self.server, self.tell
        self.lease = self.dice.choice(self.profile.leases)
        self.count = self.dice.randint(*self.profile.workers)
        planned = draw(self.profile, self.dice, self.count, self.lease)
        self.faults = [f for n, f in enumerate(planned) if only is None or n in only]
        self.numbers = [n for n in range(len(planned)) if only is None or n in only]
        self.events: list[Event] = []
        self.calm = False
        self.over = False
        self.zombies = 0
        self.places: list[Place] = []
        self.producers: list[Producer] = []
        self.nemesis = Nemesis(self)
        self._pids = 0
        self._failures: Counter[str] = Counter()
        self._keepers: list[asyncio.Task[None]] = []

    # What the actors call.

    def tell(
        self,
        process: Process | None,
        kind: Kind,
        id: str = "",
        *,
        attempt: int = 0,
        note: str = "",
        lane: str = "",
        target: int = 0,
    ) -> None:
        """Write into the journal."""
        pid = 0 if process is None else process.pid
        # No two events at one moment: what comes later is later.
        at = max(self.loop.time(), self.events[-1].at + 1e-9 if self.events else 0.0)
        event = Event(kind, at, pid, id, attempt, note=note, lane=lane, target=target)
        self.events.append(event)

    def harm(self, process: Process, how: str) -> None:
        """A fault has touched a process: whatever it holds may be lost from here on."""
        self.tell(None, "stop", target=process.pid, note=how)
        process.harms.append(self.loop.time())

    def begins(self, process: Process, id: str, attempt: int, lane: str) -> bool:
        """A run starts. One by a claim that is over already is a zombie's, and needs a fault."""
        process.running[id, attempt] = self.loop.time()
        claimed = self.referee.claimed.get((process.worker_id, id, attempt))
        touched = claimed is not None and process.harmed_since(claimed - 1.0)
        if self.referee.is_current(process.worker_id, id, attempt):
            if touched:
                # What has befallen it since the claim may cost this run its lease.
                self.tell(None, "stop", target=process.pid, note="touched before the start")
            self.tell(process, "start", id, attempt=attempt, lane=lane)
            return True
        self.zombies += 1
        if claimed is None:
            self.referee.blame("run without a claim", id)
        elif not touched:
            self.referee.blame("zombie without a fault", id)
        return False

    def ends(
        self, process: Process, id: str, attempt: int, lane: str, note: str, counts: bool
    ) -> None:
        process.running.pop((id, attempt), None)
        self._failures[id] += note in ("error", "snooze")
        if counts and not self.over:
            self.tell(process, "end", id, attempt=attempt, note=note, lane=lane)

    def failures(self, id: str) -> int:
        return self._failures[id]

    def kill(self, process: Process) -> None:
        """-9: nothing of it runs ever again."""
        if process.dead:
            return
        process.dead = True
        process.leave()
        self.loop.abandon(process)
        self.referee.crash_of[process.worker_id] = frozenset(id for id, _ in process.running)
        self.tell(None, "kill", target=process.pid)
        process.harms.append(self.loop.time())

    def new_process(self, name: str, clock: SimClock, host: Path | None = None) -> Process:
        self._pids += 1
        return Process(self._pids, name, clock, host, self.loop.create_future())

    # The course of events.

    def run(self) -> Outcome:
        """Live through it and judge."""
        broken: dict[str, list[str]] = {}
        silence = logging.root.manager.disable
        with self.morgue.installed():
            logging.disable()
            try:
                self.loop.run_until_complete(self._live())
            except TooLong as error:
                broken["endless"] = [str(error)]
            finally:
                self.over = True
                self.loop.bury()
                logging.disable(silence)
        return self._judge(broken)

    async def _live(self) -> None:
        self._settle_down()
        nemesis = self.nemesis
        self.server.on_cut = nemesis.cut
        done = [asyncio.ensure_future(producer.live()) for producer in self.producers]
        self._keepers = [asyncio.ensure_future(self._keep(place)) for place in self.places]
        if self.profile.seasons:
            await nemesis.seasons()
        else:
            await nemesis.strike()
        await asyncio.wait(done)
        nemesis.heal()
        self.calm = True
        self.tell(None, "calm")
        await self._quiesce(nemesis)
        await self._probe()
        await self._stop_under_load(nemesis)
        await self._stop()

    def _settle_down(self) -> None:
        """Machines with clocks of their own, and who lives on them."""
        hosts = [Path("host-a"), Path("host-b"), None]
        for number in range(self.count):
            offset = self.dice.choice((0.0, 0.0, 7200.0, -7200.0, 3.0))
            rate = self.dice.choice((1.0, 1.0, 0.99, 1.01))
            clock = SimClock(self.loop, offset, rate)
            self.places.append(Place(number, self.dice.choice(hosts), clock))
        days = bool(self.profile.seasons)
        self.app = SimApp(self)
        self.tasks = Tasks(self.app, self, days)
        for number in range(self.profile.producers):
            process = self.new_process(f"producer-{number}", SimClock(self.loop))
            self.producers.append(Producer(self, process, f"{self.seed} {number}"))

    async def _keep(self, place: Place) -> None:
        """Start a worker, see it end, start the next."""
        outside = self.loop.outside
        while not self.over:
            while self.nemesis.asleep is not None:
                await self.nemesis.asleep
            process = self.new_process(f"worker-{place.number}", place.clock, place.host)
            process.worker_id = f"worker-{place.number}.{process.pid}"
            place.process = process
            task = self.loop.create_task(self._work(place, process), context=inside(process))
            task.add_done_callback(process.leave, context=outside)
            await process.gone
            if task.done():
                self._ended(place, process, task)
            place.worker = None
            await self.loop.sleep(place.rest)

    async def _work(self, place: Place, process: Process) -> None:
        place.worker = worker = Worker(
            self.app.open_store,
            self.app.tasks,
            concurrency=1 if place.number == 0 else 1 + place.number,
            lease=self.lease,
            grace=2.0,
            clock=place.clock,
            chance=SeededChance(process.pid),
            id=process.worker_id,
            renew_on="loop",
        )
        await worker.run()

    def _ended(self, place: Place, process: Process, task: asyncio.Task[None]) -> None:
        """A worker came to its end by itself: in order, or because the store was away."""
        process.dead = True
        self.loop.abandon(process)
        error = task.exception()
        if error is not None and not isinstance(error, StoreError):
            self.referee.blame("worker failed", f"{process.name}: {error!r}")
        self.tell(None, "term", target=process.pid)
        held = [id for id, it in self.referee.held.items() if it.worker == process.worker_id]
        quiet = not process.harmed_since(self.loop.time() - QUIET * self.lease)
        if error is None and held and quiet and not process.running:
            for id in held:
                self.referee.blame("not given back at the stop", id)

    async def _quiesce(self, nemesis: Nemesis) -> None:
        """Wait until all has ended; time in which nothing is due is skipped."""
        left = BOUND
        while left > 0:
            table = self.server.room.table
            if all(row.job.status.ended for row in table.rows.values()):
                return
            now = self.server.clock.now()
            queued = [row.job for row in table.rows.values() if row.job.status is Status.QUEUED]
            # Who waits in a lane for another's next try waits as long as that one.
            lanes = {job.lane for job in queued if job.lane and job.attempt and job.run_at}
            due = min(
                (
                    now if job.run_at is None else job.run_at
                    for job in queued
                    if job.run_at is not None or job.lane not in lanes
                ),
                default=now,
            )
            if due > now + 30.0 and not any(table.running.values()):
                await nemesis.skip(due - now - 1.0)
            await self.loop.sleep(1.0)
            left -= 1.0

    async def _probe(self) -> None:
        """An idle fleet starts a new job at once."""
        # Who still waits for the answer to its last verdict, lost in the last fault, isn't idle:
        # its next verdict goes when the network has given that call up.
        while any(place.process and place.process.unanswered for place in self.places):
            await self.loop.sleep(0.1)
        await self.loop.sleep(2.0)
        self.server.latency = min(self.server.latency, 0.002)
        ids = await self.producers[0].probe()
        moment = self.loop.time() + PROMPT
        while self.loop.time() < moment:
            await self.loop.sleep(0.05)
        rows = self.server.room.table.rows
        for id in ids:
            if not rows[id].job.status.ended:
                self.referee.blame("late", id)

    async def _stop_under_load(self, nemesis: Nemesis) -> None:
        """Workers that are stopped in the middle of much work give back what they hold."""
        await self.loop.sleep(QUIET * self.lease)
        await self.producers[0].flood()
        await self.loop.sleep(self.dice.uniform(0.02, 0.4))
        for place in self.places[1:]:
            if place.worker is not None:
                place.worker.stop()
        await self._quiesce(nemesis)

    async def _stop(self) -> None:
        """All workers end in order, having nothing to do."""
        workers = [place.worker for place in self.places if place.worker is not None]
        self.over = True
        for worker in workers:
            worker.stop()
        await asyncio.wait(self._keepers, timeout=20.0)
        for place in self.places:
            if place.process is not None and not place.process.dead:
                self.referee.blame("would not stop", place.process.name)

    def _judge(self, broken: dict[str, list[str]]) -> Outcome:
        final = {id: row.job for id, row in self.server.room.table.rows.items()}
        report = check(self.events, final, patience=PATIENCE, author=lambda j: author(j.result))
        # Each crash was looked at when it was counted: whoever had too many died rightly.
        report.buried = [
            id for id in report.buried
            if (job := final[id]).max_crashes is None or job.crashes < job.max_crashes
        ]  # fmt: skip
        broken |= report.broken | dict(self.referee.broken)
        if self.loop.errors:
            broken["uncaught"] = self.loop.errors
        return Outcome(
            seed=self.seed,
            profile=self.profile_name,
            broken=broken,
            digest=self.loop.digest,
            steps=self.loop.steps,
            seconds=self.loop.time() - 1000.0,
            idle=self.nemesis.skipped,
            acknowledged=report.acknowledged,
            uncertain=report.uncertain,
            runs=report.runs,
            explained=report.explained,
            zombies=self.zombies,
            faults=[f"{n}: {f}" for n, f in zip(self.numbers, self.faults, strict=True)],
            story=self._story(report, broken) if broken else "",
        )

    def _story(self, report: Report, broken: dict[str, list[str]]) -> str:
        """What was broken, and every event of the first of the jobs concerned."""
        ids = {id for found in broken.values() for id in found[:2]}
        lines = [f"{what}: {len(found)}, e.g. {found[:3]}" for what, found in broken.items()]
        pids = {event.pid for event in self.events if event.id in ids}
        for event in self.events:
            if event.id in ids or (event.target in pids and event.target) or event.kind == "cut":
                names = ("id", "attempt", "note", "lane", "target")
                words = [f"{name}={value}" for name in names if (value := getattr(event, name))]
                lines.append(f"{event.at:.3f} pid {event.pid} {event.kind} {' '.join(words)}")
        return "\n".join(lines[:400])


def run_world(seed: int, profile: str, only: Sequence[int] | None = None) -> Outcome:
    """One seed of a profile, with all of its faults or only these."""
    return World(seed, profile, only).run()
