"""W: a worker that is process number one of a container, beside another of the same number."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from tests.cases.rig import children_of

from outlast.job import Status

if TYPE_CHECKING:
    import subprocess

    from tests.cases.rig import Rig

CONTAINER = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child")


def inside(worker: subprocess.Popen[bytes]) -> int:
    """The worker's number as it is seen from here."""
    (pid,) = children_of(worker.pid)
    return pid


@pytest.mark.needs("netns")
def test_w10_two_workers_of_the_same_number_are_two(rig: Rig) -> None:
    go = str(rig.folder / "go")
    first = rig.start("-c", "1", before=CONTAINER)
    (one,) = rig.enqueue(("until", go))
    rig.until_started(one)
    second = rig.start("-c", "1", before=CONTAINER)
    (two,) = rig.enqueue(("until", go))
    rig.until_started(two)
    numbers = {line.pid for line in rig.said("start")}
    assert len(numbers) == 1, "else this test shows nothing"
    # Killed from outside: its job starts again, and that of its namesake does not.
    os.kill(inside(first), signal.SIGKILL)
    first.wait(10)
    third = rig.start("-c", "1", before=CONTAINER)
    rig.until_started(one, 2)
    (rig.folder / "go").touch()
    rig.until_ended([one, two])
    assert rig.starts([one, two]) == [2, 1]
    assert rig.statuses([one, two]) == {Status.DONE: 2}
    # And as process number one it obeys, though nobody forwards signals and there is no default.
    for worker in (second, third):
        os.kill(inside(worker), signal.SIGTERM)
        assert worker.wait(15) == 0
