"""C40: a lock survives the crash of its holder, or its limit is ignored after the restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cases.rig import everywhere, scaled

from outlast.job import Status

if TYPE_CHECKING:
    from tests.cases.rig import Rig


@everywhere
def test_c40(rig: Rig) -> None:
    ids = rig.enqueue(*[("nap", scaled(3.0, 0.5))] * 3, lane="L")
    worker = rig.start("-c", "3", "--lease", "5")
    rig.until_started(ids[0])
    rig.kill(worker)
    rig.start("-c", "3", "--lease", "5")
    rig.until_ended(ids, 40.0)
    assert rig.statuses(ids) == {Status.DONE: 3}
    assert (rig.starts(ids), rig.ends(ids)) == ([2, 1, 1], [1, 1, 1])
    begun = rig.said("start")
    assert begun[1].id == ids[0]
    assert begun[1].at - begun[0].at < 15
    last = 0.0
    for start, end in zip(begun[1:], rig.said("end"), strict=True):
        assert start.id == end.id
        assert start.at >= last
        last = end.at
