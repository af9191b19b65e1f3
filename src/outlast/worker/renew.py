"""Keeps a worker's leases, stores progress, and learns which jobs are lost or cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.clock import Clock
    from outlast.job import Claim, Lost, Progress
    from outlast.store import Store
    from outlast.worker.crew import Crew

__all__ = ["Renewal"]

CHUNK = 500


class Renewal:
    """One round renews what was held at the round before already: fast jobs are never renewed.

    Rounds are a third of the lease apart or less, so a lease is renewed at least once before two
    thirds of it are over.
    """

    def __init__(
        self, crew: Crew, lease: float, clock: Clock, refuse: Callable[[Lost], object]
    ) -> None:
        self.pause = min(lease / 3, 1.0)
        self._crew = crew
        self._lease = lease
        self._clock = clock
        self._refuse = refuse
        self._seen: dict[str, Claim] = {}
        self._notes: dict[str, Progress] = {}
        self._renewed_at = clock.monotonic()

    async def turn(self, store: Store) -> float:
        """Renew once. Raises ``StoreUnavailable``, having told the runs whose leases are over."""
        held = {claim.job.id: claim for claim in list(self._crew.held.values())}
        self._collect_notes(held)
        due = [
            claim for id, claim in held.items() if self._seen.get(id) is claim or id in self._notes
        ]
        self._seen = held
        for start in range(0, len(due), CHUNK):
            await self._renew(store, due[start : start + CHUNK])
        self._renewed_at = self._clock.monotonic()
        return self.pause

    def _collect_notes(self, held: dict[str, Claim]) -> None:
        fresh = self._crew.notes
        while fresh:
            # One step each, because the tasks go on adding to it in other threads.
            id, note = fresh.popitem()
            self._notes[id] = note
        self._notes = {id: note for id, note in self._notes.items() if id in held}

    async def _renew(self, store: Store, claims: list[Claim]) -> None:
        notes = [self._notes[claim.job.id] for claim in claims if claim.job.id in self._notes]
        try:
            lost = await store.renew(claims, self._lease, notes)
        except StoreUnavailable:
            if self._clock.monotonic() - self._renewed_at > self._lease:
                self._flag(True)
            raise
        for note in notes:
            del self._notes[note.id]
        for refused in lost:
            run = self._crew.runs.get(refused.claim.job.id)
            if run is not None and self._crew.held.get(run.id) is refused.claim:
                # At once, for functions in threads: the event loop may be blocked.
                run.cancelled = True
                run.lease_lost = run.lease_lost or refused.reason == "lost"
            self._refuse(refused)
        if self._clock.monotonic() - self._renewed_at > self._lease:
            self._flag(False)

    def _flag(self, lost: bool) -> None:
        """Tell the runs that their leases ran out with the store away, or that they still hold."""
        for run in list(self._crew.runs.values()):
            run.lease_lost = lost or run.why == "lost"
