"""C19 on any store: schedulers that see the same tick, and workers that are killed meanwhile."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.cases.rig import scaled
from tests.proof.patience import linger

from outlast.job import Status

if TYPE_CHECKING:
    from tests.cases.rig import Rig

__all__ = ["one_job_a_tick"]


def one_job_a_tick(rig: Rig) -> None:
    """Whoever makes the job of a tick gives it the tick as its key: that and leases do the rest."""
    dice = random.Random(19)
    workers = [rig.start("-c", "2", "--lease", "2") for _ in range(scaled(5, 3))]
    rig.until_up()
    made: list[str] = []
    with ThreadPoolExecutor(5) as schedulers:
        for tick in range(scaled(120, 6)):

            def fire(_: int, key: str = f"tick {tick}") -> str:
                return rig.enqueue(("nap", 0.001), key=key)[0]

            ids = set(schedulers.map(fire, range(5)))
            assert len(ids) == 1, "one record a tick"
            made += ids
            if tick % scaled(5, 3) == 2:
                rig.kill(workers.pop(dice.randrange(len(workers))))
                workers.append(rig.start("-c", "2", "--lease", "2"))
            linger(scaled(1.0, 0.0))
    rig.until_ended(made, 120.0)
    assert len(set(made)) == len(made)
    assert rig.statuses(made) == {Status.DONE: len(made)}
    jobs = rig.ledger(lambda ledger: ledger.find(limit=1000))
    assert sorted(job.id for job in jobs) == sorted(made)
    for job in jobs:
        # Of two that were in its hands, neither is blamed: both are suspects.
        from_killed = job.crashes or job.suspect
        assert job.attempt == 1 or from_killed, f"twice, not from a killed worker: {job}"
