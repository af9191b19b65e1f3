"""Stands beside the store and sees every call: what it may do at all, whoever asked for it.

It keeps few facts of its own (who holds which claim until when, what is due when, whose a key is)
and compares each answer with them. What a whole history must look like is the checker's business.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from tests.proof.sim.hosts import Process

from outlast.job import Claim, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.proof.journal import Kind
    from tests.proof.sim.hosts import Morgue
    from tests.proof.sim.store import Server

    from outlast.job import Death, Job, Verdict

__all__ = ["Referee"]

SOON = 1e-6


class Held(Struct):
    """A claim that counts, as far as the referee knows."""

    claim: Claim
    worker: str
    process: Process
    until: float
    suspect: bool


class Referee:
    """Told before and after each call that reaches the store, in the order of their effects."""

    def __init__(self, morgue: Morgue) -> None:
        self.broken: defaultdict[str, list[str]] = defaultdict(list)
        self.held: dict[str, Held] = {}
        self.tell: Any = None
        """Writes into the journal: ``tell(process, kind, id, note=...)``."""
        self.server: Server
        self.workers: dict[str, Process] = {}
        self.claimed: dict[tuple[str, str, int], float] = {}
        """When a worker was given an attempt at a job."""
        self.crash_of: dict[str, frozenset[str]] = {}
        """What ran in a worker when it died, by worker id."""
        self._morgue = morgue
        self._due: dict[str, float] = {}
        self._keys: dict[tuple[str | None, str], str] = {}
        self._ended: set[str] = set()
        self._crashes: dict[str, int] = {}

    def blame(self, what: str, id: str) -> None:
        self.broken[what].append(id)

    def asked(self, process: Process, verdicts: Sequence[Verdict]) -> None:
        """A worker is about to hand these in."""
        for verdict in verdicts:
            self._note(process, "settle", verdict.claim.job, note=verdict.kind)

    def unclaimed(self, claim: Claim) -> None:
        """A power cut took this claim back."""
        self.held.pop(claim.job.id, None)

    def clock_is_set(self) -> None:
        """The store's clock is about to jump: what has come due by the old one stays due."""
        now = self.server.clock.now()
        self._due = {id: due for id, due in self._due.items() if due > now}

    def is_current(self, worker: str, id: str, attempt: int) -> bool:
        """Whether this run is one by a claim that still counts."""
        held = self.held.get(id)
        return held is not None and (held.worker, held.claim.job.attempt) == (worker, attempt)

    def before(self, process: Process, name: str, args: tuple[Any, ...]) -> None:
        if name == "recover_worker":
            worker = args[0]
            if self._morgue.death_of(worker) is None and any(
                held.worker == worker and not held.process.dead for held in self.held.values()
            ):
                self.blame("buried alive", worker)

    def after(self, process: Process, name: str, args: tuple[Any, ...], outcome: Any) -> None:
        judge = getattr(self, f"_after_{name}", None)
        if judge is not None:
            judge(process, args, outcome)

    def _after_add(self, process: Process, args: tuple[Any, ...], outcome: Any) -> None:
        for job, added in zip(args[0], outcome, strict=True):
            key = (job.task, job.key)
            if added.created:
                if job.key is not None:
                    if key in self._keys:
                        self.blame("key given twice", job.id)
                    self._keys[key] = job.id
                if job.delay:
                    self._due[job.id] = self.server.clock.now() + job.delay
            elif added.id != job.id and self._keys.get(key) != added.id:
                self.blame("key of another", job.id)

    def _after_claim(self, process: Process, args: tuple[Any, ...], outcome: Any) -> None:
        _, _, limit, lease, worker, _ = args
        now, order = self.server.clock.now(), []
        if len(outcome) > limit:
            self.blame("claimed too many", worker)
        for claim in outcome:
            job = claim.job
            order.append(-job.priority)
            if job.id in self.held:
                self.blame("claimed twice", job.id)
            if job.id in self._ended:
                self.blame("claimed after its end", job.id)
            if self._due.get(job.id, now) > now + SOON:
                self.blame("too early", job.id)
            until = self.server.clock.monotonic() + lease
            self.held[job.id] = Held(claim, worker, process, until, job.suspect)
            self.claimed[worker, job.id, job.attempt] = self.server.loop.time()
            if job.crashes != self._crashes.get(job.id, 0):
                self.blame("crash nobody saw", job.id)
        if order != sorted(order):
            self.blame("priority ignored", outcome[0].job.id)

    def _after_settle(self, process: Process, args: tuple[Any, ...], outcome: Any) -> None:
        refused = {lost.claim.receipt for lost in outcome}
        for verdict in args[0]:
            job = verdict.claim.job
            held = self.held.get(job.id)
            ours = held is not None and held.claim.receipt == verdict.claim.receipt
            taken = verdict.claim.receipt not in refused
            if taken and not ours:
                self.blame("stale verdict taken", job.id)
            if ours and not taken:
                self.blame("good verdict refused", job.id)
            self._note(process, "settled" if taken else "refused", job, note=verdict.kind)
            if not taken:
                continue
            self.held.pop(job.id, None)
            row = self.server.room.table.rows.get(job.id)
            if row is None or row.job.status.ended:
                self._ended.add(job.id)
            elif verdict.delay:
                self._due[job.id] = self.server.clock.now() + verdict.delay

    def _after_renew(self, process: Process, args: tuple[Any, ...], outcome: Any) -> None:
        claims, lease, _ = args
        refused = {lost.claim.receipt for lost in outcome if lost.reason == "lost"}
        for claim in claims:
            held = self.held.get(claim.job.id)
            ours = held is not None and held.claim.receipt == claim.receipt
            if ours == (claim.receipt in refused):
                self.blame("renewed wrongly", claim.job.id)
            if held is not None and ours:
                held.until = self.server.clock.monotonic() + lease

    def _after_recover(self, process: Process, args: tuple[Any, ...], outcome: Any) -> None:
        if outcome:
            now = self.server.clock.monotonic()
            for id, held, job in self._gone():
                if held.until > now + SOON:
                    self.blame("taken before the lease ran out", id)
                if job.crashes > self._crashes.get(id, 0) and not held.suspect:
                    self.blame("crash without suspicion", id)
                self._forget(id, job)

    def _after_recover_worker(self, process: Process, args: tuple[Any, ...], outcome: Any) -> None:
        worker: str = args[0]
        cause: Death = args[1]
        ran = self.crash_of.get(worker, frozenset())
        for id, held, job in self._gone():
            if held.worker != worker:
                self.blame("another's claim taken", id)
            if job.crashes > self._crashes.get(id, 0) and ran != {id}:
                self.blame("crash of an innocent", id)
            if cause.blamed is not None and id in ran and id not in cause.blamed:
                self.blame("crash nobody is blamed for", id)
            self._forget(id, job)

    def _after_cancel(self, process: Process, args: tuple[Any, ...], outcome: Any) -> None:
        for id, answer in zip(args[0], outcome, strict=True):
            if answer == "cancelled":
                if id in self.held:
                    self.blame("cancelled while it ran", id)
                self._ended.add(id)

    def _gone(self) -> list[tuple[str, Held, Job]]:
        """The claims that the last call took away from whoever held them."""
        rows = self.server.room.table.rows
        return [
            (id, held, rows[id].job)
            for id, held in list(self.held.items())
            if rows[id].receipt != held.claim.receipt or rows[id].job.status is not Status.RUNNING
        ]

    def _forget(self, id: str, job: Job) -> None:
        del self.held[id]
        self._crashes[id] = job.crashes
        if job.status.ended:
            self._ended.add(id)

    def _note(self, process: Process, kind: Kind, job: Job, *, note: str) -> None:
        self.tell(process, kind, job.id, note=note, attempt=job.attempt)
