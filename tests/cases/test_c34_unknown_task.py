"""C34: a worker that lacks the code for a task deletes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cases.program import NEW_KIND
from tests.cases.rig import scaled
from tests.proof.patience import linger

from outlast.job import Status

if TYPE_CHECKING:
    import pytest
    from tests.cases.rig import Rig


def test_c34(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NEW_KIND, "1")
    new = rig.enqueue(*[("new-kind", n) for n in range(5)])
    monkeypatch.delenv(NEW_KIND)
    known = rig.enqueue(*[("instant", n) for n in range(10)])
    rig.start("-c", "2")
    rig.until_ended(known)
    linger(scaled(60.0, 1.0))
    assert rig.statuses(new) == {Status.QUEUED: 5}
    assert [rig.job(id).attempt for id in new] == [0] * 5
    rig.start("-c", "2", **{NEW_KIND: "1"})
    rig.until_ended(new)
    assert (rig.starts(new), rig.ends(new)) == ([1] * 5, [1] * 5)
