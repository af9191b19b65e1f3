"""Jobs into messages and messages into jobs: what an add, a claim and a verdict come to."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from outlast.errors import DecodeError, Unsupported
from outlast.job import Claim, Failure, Status
from outlast.limits import check_timeout
from outlast.stores.rabbitmq.letters import Packer, State, read
from outlast.stores.rabbitmq.outbox import Posting
from outlast.stores.rabbitmq.topology import ALONE, LEVELS, UNIT, Place, band_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.job import Job, Verdict
    from outlast.stores.rabbitmq.held import Held
    from outlast.stores.rabbitmq.outbox import Batch

__all__ = ["Work", "check", "check_delay"]

_log = logging.getLogger(__name__)

NEEDS_RECORDS = (
    'which needs records, and RabbitMQ keeps none itself: say where, by records="postgresql://..."'
    " or ?records= in the URL, or leave it out"
)


LADDER = UNIT * ((1 << LEVELS) - 1)
"""Seconds that all levels together hold a job."""


def check(jobs: Sequence[Job], longest: float | None, now: float) -> None:
    """Refuse what a broker can't do, before anything is touched. Raises ``Unsupported``."""
    for job in jobs:
        for name, asked in (("key", job.key), ("lane", job.lane), ("rank", job.rank)):
            if asked:
                raise Unsupported(f"job {job.id} has a {name}, {NEEDS_RECORDS}")
        check_timeout(f"job {job.id}", job.timeout, longest)
        check_delay(job.id, job.delay or 0.0 if job.run_at is None else job.run_at - now)


def check_delay(id: str, seconds: float) -> None:
    if seconds >= LADDER:
        raise Unsupported(f"job {id}: RabbitMQ holds jobs back for 17 years at most")


class Work:
    """Knows the clock and the namespace; lives in the engine's thread."""

    def __init__(self, namespace: str, clock: Clock, chance: Chance, longest: float | None) -> None:
        self._namespace = namespace
        self._clock = clock
        self._chance = chance
        self._longest = longest
        self._packer = Packer()

    # -- into messages

    def posting(self, job: Job, batch: Batch, model: Job | None = None) -> Posting:
        """A new job."""
        now = self._clock.now()
        state = State(now)
        delay = job.delay or 0.0
        if job.run_at is not None:
            delay = job.run_at - now
            state.run_at = job.run_at
        elif delay:
            state.run_at = now + delay
        state.expires_at = now + job.ttl if job.ttl is not None else job.expires_at
        body = self._packer.pack(job, state, model)
        return Posting(job.id, body, self._place(job), batch, delay=max(0.0, delay))

    def again(self, held: Held, batch: Batch, verdict: Verdict) -> Posting:
        """The same job once more, after a run that was no success, or with the dead."""
        assert held.claim is not None
        job, now = held.claim.job, self._clock.now()
        failure, failures, crashes = verdict.failure or job.failure, job.failures, job.crashes
        if verdict.kind in ("retry", "dead") and verdict.started:
            crash = verdict.failure is not None and verdict.failure.kind == "crash"
            crashes, failures = crashes + crash, failures + (not crash)
        to_dead = verdict.kind == "dead" or (
            verdict.kind == "retry" and self._is_spent(job, failures, crashes)
        )
        state = State(
            created_at=now if job.created_at is None else job.created_at,
            run_at=now + verdict.delay if verdict.delay else None,
            expires_at=None if verdict.started else job.expires_at,
            attempt=job.attempt - (not verdict.started),
            failures=failures,
            crashes=crashes,
            fence=held.claim.fence - (not verdict.started),
            failure=failure,
        )
        # As it was stored, not as it was claimed: that one is held to the broker's timeout.
        body = self._packer.pack(read(held.body)[0], state)
        delay = 0.0 if to_dead else verdict.delay
        # A run that was no crash ends the suspicion; one that never started proves nothing.
        place = self._place(job) if verdict.started else held.source.place
        return Posting(job.id, body, place, batch, delay=delay, to_dead=to_dead, mark=held)

    def unclaimed(self, held: Held, batch: Batch) -> Posting:
        """What was delivered and not claimed, as if it had never been sent here."""
        body = held.body
        if held.crashes:
            try:
                job, state = read(body)
            except DecodeError:
                pass
            else:
                _count(state, held)
                body = self._packer.pack(job, state)
        return Posting("", body, held.source.place, batch, mark=held)

    def set_apart(self, held: Held, batch: Batch) -> Posting:
        """What came back too often, to where it is fetched alone; it is counted anew there."""
        job, state = read(held.body)
        _count(state, held)
        place = Place.of(self._namespace, job.queue, job.task, ALONE)
        return Posting(job.id, self._packer.pack(job, state), place, batch, mark=held)

    def buried(self, held: Held, failure: Failure, batch: Batch) -> Posting:
        """What may not be given out any more, with the dead; unreadable, just as it is."""
        body, id = held.body, ""
        try:
            job, state = read(body)
        except DecodeError:
            pass
        else:
            _count(state, held)
            state.failure = failure
            body, id = self._packer.pack(job, state), job.id
        return Posting(id, body, held.source.place, batch, to_dead=True, mark=held)

    def _place(self, job: Job) -> Place:
        return Place.of(self._namespace, job.queue, job.task, band_of(job.priority))

    @staticmethod
    def _is_spent(job: Job, failures: int, crashes: int) -> bool:
        return failures >= job.max_attempts or (
            job.max_crashes is not None and crashes >= job.max_crashes
        )

    # -- and back

    def claim(
        self, held: Held, worker: str, age: float
    ) -> Claim | Failure | Literal["apart"] | None:
        """A claim on it; or why it must be buried; or that it must be set apart; or None: expired.

        ``age`` is how many seconds ago it was delivered.

        A job that came back without a word may have killed its worker, or just been sent to one
        that died. So after the last but one time that it may it is set apart, and runs alone from
        there: only what comes back from there is known to have killed a worker.
        """
        try:
            job, state = read(held.body)
        except DecodeError as error:
            return Failure(kind="undecodable", message=str(error))
        now = self._clock.now()
        if job.expires_at is not None and job.expires_at <= now:
            return None
        alone = held.source.place.band == ALONE
        crashes = job.crashes + held.crashes
        if alone and held.crashes and job.max_crashes is not None:
            return Failure(kind="crash", message=f"{crashes} workers died while they held it")
        if not alone and held.crashes and crashes >= max(1, (job.max_crashes or 3) - 1):
            return "apart"
        job = replace(
            job,
            status=Status.RUNNING,
            attempt=job.attempt + held.crashes + 1,
            crashes=crashes,
            suspect=alone,
            worker=worker,
            started_at=now,
            timeout=self._timeout(job, age),
        )
        return Claim(job, self._chance.token(), state.fence + held.crashes + 1)

    def _timeout(self, job: Job, age: float) -> float | None:
        """The broker's clock runs from the delivery on."""
        if self._longest is None:
            return job.timeout
        most = self._longest - age
        return most if job.timeout is None else min(job.timeout, most)


def _count(state: State, held: Held) -> None:
    """The broker's count begins anew with a new message: what it was goes into that."""
    state.attempt += held.crashes
    state.crashes += held.crashes
    state.fence += held.crashes
