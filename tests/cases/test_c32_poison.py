"""C32: a task that kills its worker is redelivered for ever, or acknowledged and lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.cases.rig import scaled
from tests.proof.patience import linger

from outlast.job import Status

if TYPE_CHECKING:
    from tests.cases.rig import Rig


def test_c32(rig: Rig) -> None:
    before = rig.enqueue(*[("instant", n) for n in range(25)])
    (poison,) = rig.enqueue(("kills",))
    after = rig.enqueue(*[("instant", n) for n in range(25)])
    rig.start("-c", "1")
    rig.until_ended([poison, *before, *after], 120.0)
    linger(scaled(300.0, 1.0))
    job = rig.job(poison)
    assert rig.starts([poison]) == [3]
    assert (job.status, job.crashes) == (Status.DEAD, 3)
    assert job.failure is not None
    assert (job.failure.kind, job.failure.exit_code) == ("crash", 137)
    assert "worker died" in job.failure.message
    others = before + after
    assert rig.statuses(others) == {Status.DONE: 50}
    assert all(1 <= number <= 2 for number in rig.ends(others))


@pytest.mark.parametrize("task", ["stops-the-loop", "cancels-everything", "closes-descriptors"])
def test_a_task_that_breaks_the_event_loop_is_poison_too(rig: Rig, task: str) -> None:
    # Blamed on nobody, as an end of the worker's own would be, it breaks each process that comes.
    neighbour, poison = rig.enqueue(("nap", 1.0), (task,))
    rig.start()
    rig.until_ended([neighbour, poison], 120.0)
    job = rig.job(poison)
    assert (job.status, job.crashes) == (Status.DEAD, 3)
    assert job.failure is not None
    assert job.failure.kind == "crash"
    assert "a task broke the event loop" in job.failure.message
    assert rig.job(neighbour).status is Status.DONE
