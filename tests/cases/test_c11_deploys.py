"""C11: every deploy that interrupts a task uses up one attempt, until it is declared dead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cases.rig import everywhere, scaled
from tests.proof.patience import linger

from outlast.job import Status

if TYPE_CHECKING:
    from tests.cases.rig import Rig


@everywhere
def test_c11(rig: Rig) -> None:
    (id,) = rig.enqueue(("until", str(rig.folder / "go")))
    for round in range(1, 6):
        worker = rig.start("-c", "1", "--grace", scaled("2", "0.2"))
        rig.until_started(id, round)
        linger(scaled(5.0, 0.0))
        assert rig.stop(worker) == 0
        assert rig.job(id).status is Status.QUEUED
    (rig.folder / "go").touch()
    (control,) = rig.enqueue(("raises",))
    rig.start("-c", "1")
    rig.until_ended([id, control])
    assert (rig.job(id).status, rig.ends([id])) == (Status.DONE, [1])
    assert rig.job(id).failures == rig.job(id).crashes == 0
    assert (rig.job(control).status, rig.starts([control])) == (Status.DEAD, [2])
