"""C09: a message popped at the very instant of the stop signal never comes back."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.cases.rig import scaled
from tests.proof.patience import linger

if TYPE_CHECKING:
    from tests.cases.rig import Rig


def test_c09(rig: Rig) -> None:
    stop_signals(rig, scaled(300, 12))


def stop_signals(rig: Rig, rounds: int) -> None:
    """In each an idle worker is sent one task, and told to stop a moment later."""
    dice = random.Random(9)
    ids: list[str] = []
    for _ in range(rounds):
        worker = rig.start("-c", "2")
        rig.until_up()
        ids += rig.enqueue(("instant",))
        linger(dice.uniform(0, 0.02))
        assert rig.stop(worker) == 0
    rig.start("-c", "2")
    rig.until_ended(ids)
    assert rig.ends(ids) == [1] * len(ids)
