"""C01: a task leaves the store when it is picked up, and is gone if the worker is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.job import Status

if TYPE_CHECKING:
    from tests.cases.rig import Rig


def test_c01(rig: Rig) -> None:
    (long,) = rig.enqueue(("until", str(rig.folder / "go")))
    others = rig.enqueue(*[("instant", n) for n in range(4)])
    worker = rig.start("-c", "1")
    rig.until_started(long)
    rig.kill(worker)
    (rig.folder / "go").touch()
    rig.start("-c", "1")
    rig.until_ended([long, *others])
    assert (rig.starts([long]), rig.ends([long])) == ([2], [1])
    assert rig.job(long).attempt == 2
    assert (rig.starts(others), rig.ends(others)) == ([1] * 4, [1] * 4)
    assert rig.statuses([long, *others]) == {Status.DONE: 5}
