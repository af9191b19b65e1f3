"""C40: a lock survives the crash of its holder, or its limit is ignored after the restart."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.cases.rig import UP, everywhere, scaled
from tests.proof.patience import linger, until

from outlast.job import Status

if TYPE_CHECKING:
    from tests.cases.rig import Rig


@everywhere
def test_c40(rig: Rig) -> None:
    nap = ("nap", scaled(3.0, 0.5))
    ids = rig.enqueue(("until", str(rig.folder / "go")), nap, nap, lane="L")
    worker = rig.start("-c", "3", "--lease", "5")
    rig.until_started(ids[0])
    rig.kill(worker)
    up = rig.workers_said.count(UP)
    rig.start("-c", "3", "--lease", "5")
    until(lambda: rig.workers_said.count(UP) > up, 60.0, "it is up")
    began = time.monotonic()
    rig.until_started(ids[0], 2)
    linger(scaled(3.0, 0.0))
    (rig.folder / "go").touch()
    rig.until_ended(ids)
    assert rig.statuses(ids) == {Status.DONE: 3}
    assert (rig.starts(ids), rig.ends(ids)) == ([2, 1, 1], [1, 1, 1])
    begun = rig.said("start")
    assert begun[1].id == ids[0]
    assert begun[1].at - began < 15
    last = 0.0
    for start, end in zip(begun[1:], rig.said("end"), strict=True):
        assert start.id == end.id
        assert start.at >= last
        last = end.at
