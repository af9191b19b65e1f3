"""A store and its witness: every call is told before and after, so that the judge can judge it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Literal

from outlast.chance import SystemChance
from outlast.errors import EnqueueUncertain, KeyConflict, QueueFull, StoreError
from outlast.job import (
    Claim,
    Death,
    Failure,
    Job,
    Status,
    Verdict,
    cancelled,
    dead,
    done,
    give_back,
    retry,
)
from outlast.store import Ledger, offers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.proof.journal import Kind, Witness

    from outlast.chance import Chance
    from outlast.job import Lost
    from outlast.lifeline import Lifeline
    from outlast.store import Store

__all__ = ["QUEUE", "TASK", "Ending", "Stage", "payload_of", "result_of"]

QUEUE, TASK = "toll", "toll"
Ending = Literal["done", "retry", "give_back", "dead", "cancelled"]
FAILURE = Failure(kind="error", message="on purpose", type="Planned")
NOTES: dict[Ending, str] = {
    "done": "done",
    "retry": "error",
    "give_back": "stopped",
    "dead": "error",
    "cancelled": "cancel",
}


def payload_of(id: str, size: int = 0) -> bytes:
    """What a job of the rigs carries: its own id, so that mixed-up bytes are noticed."""
    return b'"' + id.encode() + b"." * size + b'"'


def result_of(job: Job) -> bytes:
    """What every run of a job of the rigs comes to, so that mixed-up results are noticed."""
    return payload_of(job.id)


class Stage:
    """The calls of one process to its store, on record. Store errors are kept in ``errors``."""

    def __init__(
        self,
        store: Store,
        witness: Witness,
        *,
        worker: str = "w",
        chance: Chance | None = None,
        seed: int = 0,
        lifeline: Lifeline | None = None,
    ) -> None:
        self.store = store
        self.witness = witness
        self.worker = worker
        self.chance = chance or SystemChance()
        self.dice = random.Random(seed)
        self.lifeline = lifeline
        self.errors: list[StoreError] = []

    @property
    def ledger(self) -> Ledger:
        assert offers(self.store, Ledger)
        return self.store

    def job(self, *, size: int = 0, **fields: Any) -> Job:
        id = self.chance.uuid7()
        plain = {"queue": QUEUE, "task": TASK, "max_attempts": 1000, "max_crashes": None}
        return Job(id=id, payload=payload_of(id, size), **{**plain, **fields})

    async def add(self, jobs: Sequence[Job], capacity: int | None = None) -> list[str]:
        """Add them; the ids that are acknowledged."""
        for job in jobs:
            self.tell("invoke", job.id, lane=job.lane or "")
        try:
            answers = await self.store.add(jobs, capacity)
        except EnqueueUncertain as error:
            if not set(error.ids) >= {job.id for job in jobs}:
                raise AssertionError(f"uncertain about {error.ids}, not about {jobs}") from error
            self.errors.append(error)
            for job in jobs:
                self.tell("info", job.id)
            return []
        except (KeyConflict, QueueFull, StoreError) as error:
            if isinstance(error, StoreError):
                self.errors.append(error)
            for job in jobs:
                self.tell("fail", job.id)
            return []
        sure = []
        for job, answer in zip(jobs, answers, strict=True):
            # The holder of the key stands for this one, which must never be seen then.
            mine = answer.id == job.id
            self.tell("ok" if mine else "fail", job.id, lane=job.lane or "")
            if mine:
                sure.append(job.id)
        return sure

    async def claim(self, limit: int, lease: float = 15.0, **options: Any) -> list[Claim]:
        try:
            claims = await self.store.claim([QUEUE], [TASK], limit, lease, self.worker, **options)
        except StoreError as error:
            self.errors.append(error)
            return []
        for claim in claims:
            job = claim.job
            if not job.payload.startswith(payload_of(job.id)[:-1]):
                raise AssertionError(f"job {job.id} came with {job.payload!r}")
            if self.lifeline is not None:
                self.lifeline.mark_started(job.id, alone=len(claims) == 1)
            receipt = claim.receipt.hex()
            self.tell("start", job.id, attempt=job.attempt, token=receipt, lane=job.lane or "")
        return list(claims)

    def verdict(self, claim: Claim, ending: Ending, then: tuple[Job, ...] = ()) -> Verdict:
        for job in then:
            self.tell("invoke", job.id)
        if ending == "done":
            return done(claim, result_of(claim.job), then)
        if ending == "retry":
            return retry(claim, self.dice.choice((0.0, 0.01)), FAILURE, then)
        if ending == "dead":
            return dead(claim, FAILURE, then)
        return give_back(claim) if ending == "give_back" else cancelled(claim, FAILURE)

    async def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Lost] | None:
        """Hand them in; None if the answer never came."""
        for verdict in verdicts:
            id = verdict.claim.job.id
            if self.lifeline is not None:
                self.lifeline.mark_ended(id)
            self.tell("end", id, note=NOTES[verdict.kind])
            self.tell("settle", id, note=verdict.kind)
        try:
            lost = await self.store.settle(verdicts)
        except StoreError as error:
            self.errors.append(error)
            for verdict in verdicts:
                for job in verdict.then:
                    self.tell("info", job.id)
            return None
        refused = {missed.claim.receipt for missed in lost}
        for verdict in verdicts:
            ours = verdict.claim.receipt not in refused
            self.tell("settled" if ours else "refused", verdict.claim.job.id, note=verdict.kind)
            for job in verdict.then:
                self.tell("ok" if ours else "fail", job.id)
            if self.lifeline is not None:
                self.lifeline.mark_settled(verdict.claim.job.id)
        return lost

    async def end(self, claims: Sequence[Claim], ending: Ending) -> None:
        """Settle them all the same way."""
        if claims:
            await self.settle([self.verdict(claim, ending) for claim in claims])

    async def cancel(self, ids: Sequence[str]) -> None:
        for id in ids:
            self.tell("cancel", id)
        try:
            await self.ledger.cancel(ids)
        except StoreError as error:
            self.errors.append(error)

    async def revive(self, ids: Sequence[str]) -> None:
        for id in ids:
            self.tell("revive", id)
        try:
            await self.ledger.revive(ids)
        except StoreError as error:
            self.errors.append(error)

    async def purge(self) -> None:
        """Delete what has ended."""
        ended = [status for status in Status if status.ended]
        try:
            for job in await self.ledger.find(status=ended, queue=QUEUE, limit=1_000_000):
                self.tell("purge", job.id)
            await self.ledger.purge(QUEUE, ended)
        except StoreError as error:
            self.errors.append(error)

    async def upkeep(self, *, dead_worker: str | None = None) -> None:
        """What a worker does between jobs."""
        try:
            await self.store.recover(100)
            if dead_worker is not None:
                await self.store.recover_worker(dead_worker, Death(message="on purpose"))
            await self.store.prune(100)
        except StoreError as error:
            self.errors.append(error)

    async def reopen(self) -> None:
        """Close, and open again, at the second try if need be; it may stay closed."""
        await self.store.close()
        for _ in range(2):
            try:
                await self.store.open()
            except StoreError as error:
                self.errors.append(error)
            else:
                return

    async def drain(self, patience: int = 2000) -> None:
        """Run everything to its end; ``AssertionError`` when it won't come to one."""
        await self.ledger.pause(QUEUE, False)  # who paused it may have been killed meanwhile
        for _ in range(patience):
            await self.store.recover(1000)
            claims = await self.store.claim([QUEUE], [TASK], 100, 60.0, self.worker)
            for claim in claims:
                self.tell("start", claim.job.id, attempt=claim.job.attempt)
            if claims:
                await self.end(claims, "done")
                continue
            if (await self.store.depth(QUEUE)).live == 0:
                return
            await self.store.wait([QUEUE], 0.05)
        raise AssertionError(f"never empty: {await self.store.depth(QUEUE)}")

    async def take_over(self) -> None:
        """Recover whatever somebody is said to be running: they are all dead."""
        running = await self.ledger.find(status=[Status.RUNNING], limit=1_000_000)
        for worker in sorted({job.worker or "" for job in running}):
            await self.store.recover_worker(worker, Death(message="the rig killed it"))

    async def dump(self) -> dict[str, Job]:
        """Everything the store holds."""
        found: dict[str, Job] = {}
        after: str | None = None
        while True:
            page = await self.ledger.find(limit=5000, after=after)
            found.update({job.id: job for job in page})
            if not page:
                return found
            after = page[-1].id

    def tell(
        self,
        kind: Kind,
        id: str,
        *,
        attempt: int = 0,
        token: str = "",
        note: str = "",
        lane: str = "",
    ) -> None:
        self.witness.write(kind, id, attempt=attempt, token=token, note=note, lane=lane)
