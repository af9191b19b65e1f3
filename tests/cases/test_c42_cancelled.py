"""C42: a cancel sent while no worker is up is forgotten: the task runs after the restart."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.cases.rig import everywhere, scaled
from tests.proof.patience import linger, until

from outlast.job import Status

if TYPE_CHECKING:
    from tests.cases.rig import Rig


@everywhere
def test_c42_delayed(rig: Rig) -> None:
    delay = scaled(60.0, 2.5)
    (id,) = rig.enqueue(("instant",), delay=delay)
    due = time.monotonic() + delay
    assert rig.ledger(lambda ledger: ledger.cancel([id])) == ["cancelled"]
    for _ in range(3):
        worker = rig.start("-c", "1")
        (seen,) = rig.enqueue(("instant",))
        rig.until_ended([seen])
        assert rig.stop(worker) == 0
        assert rig.job(id).status is Status.CANCELLED
    rig.start("-c", "1")
    linger(max(0.0, due - time.monotonic()) + 0.5)
    (last,) = rig.enqueue(("instant",))
    rig.until_ended([last])
    assert rig.starts([id]) == [0]
    assert rig.job(id).status is Status.CANCELLED


@everywhere
def test_c42_claimed_ahead(rig: Rig) -> None:
    """Quick ones first, so that the worker learns to claim ahead."""
    quick = rig.enqueue(*[("instant", n) for n in range(400)])
    (long,) = rig.enqueue(("until", str(rig.folder / "go")))
    ahead = rig.enqueue(*[("instant", n) for n in range(20)])
    worker = rig.start("-c", "1")
    rig.until_started(long)
    until(lambda: rig.statuses(quick)[Status.DONE] == len(quick), 60.0, "the quick ones are done")
    answers = rig.ledger(lambda ledger: ledger.cancel(ahead))
    assert set(answers) <= {"cancelled", "requested"}
    # The worker gives up what it had claimed ahead while the long one goes on.
    rig.until_ended(ahead)
    assert rig.job(long).status is Status.RUNNING
    (rig.folder / "go").touch()
    rig.until_ended([long])
    assert rig.starts(ahead) == [0] * 20
    assert rig.statuses(ahead) == {Status.CANCELLED: 20}
    assert rig.stop(worker) == 0
    rig.start("-c", "1")
    (last,) = rig.enqueue(("instant",))
    rig.until_ended([last])
    assert rig.starts(ahead) == [0] * 20
