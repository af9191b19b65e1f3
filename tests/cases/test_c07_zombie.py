"""C07: a paused worker that lost its claim overwrites a task that has finished since."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.cases.rig import everywhere, scaled
from tests.proof.patience import linger, until

if TYPE_CHECKING:
    from tests.cases.rig import Rig


@everywhere
def test_c07(rig: Rig) -> None:
    lease, away = scaled(("5", 20.0), ("2", 0.0))
    (id,) = rig.enqueue(("until", str(rig.folder / "go")))
    first = rig.start("-c", "1", "--lease", lease)
    rig.until_started(id)
    pid = rig.said("start", id)[0].pid
    rig.freeze(first)
    second = rig.start("-c", "1", "--lease", lease)
    rig.until_started(id, 2)
    linger(away)
    (rig.folder / "go").touch()
    rig.until_ended([id])
    won = rig.job(id)
    rig.signal(first, signal.SIGCONT)
    until(lambda: "another worker" in rig.workers_said, 60.0, "the late worker hears of it")
    linger(scaled(30.0, 1.0))
    assert rig.starts([id]) == [2]
    assert rig.job(id) == won
    assert won.result != str(pid).encode()
    assert won.result in {str(member).encode() for member in rig.members(second)}
