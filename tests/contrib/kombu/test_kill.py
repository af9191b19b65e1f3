"""A worker killed with SIGKILL: what kombu's own file brokers lose, and what ours does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.contrib.kombu.rig import PATIENCE, Rig
from tests.proof.patience import until

if TYPE_CHECKING:
    from pathlib import Path

TASKS = 6
LAST = 99


def lost(folder: Path, broker: str, **options: Any) -> set[int]:
    """The tasks that never ended, of a worker killed in the midst of one and started again."""
    folder.mkdir()
    for name in options.values():
        (folder / name).mkdir(exist_ok=True)
    rig = Rig(folder, broker, **{key: str(folder / name) for key, name in options.items()})
    try:
        rig.send("hold", 0, rig.gate)
        for number in range(1, TASKS):
            rig.send("note", number)
        victim = rig.worker("-c", "1", "-P", "prefork")
        # The filesystem transport keeps no order: another may have come before it.
        until(lambda: 0 in rig.starts(), PATIENCE, "the task that holds runs")
        rig.kill(victim)
        assert 0 not in rig.ends()
        rig.open_gate()
        rig.worker("-c", "1", "-P", "prefork", name="second")
        # Queues are served in order, and what comes back comes before what is sent now.
        rig.send("note", LAST)
        rig.wait_for(LAST)
        return set(range(TASKS)) - set(rig.ends())
    finally:
        rig.close()


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::sqlalchemy.exc.SADeprecationWarning"
)
def test_side_by_side(tmp_path: Path) -> None:
    """The same program, killed in the same way, with acks_late and reject_on_worker_lost."""
    files = {"data_folder_in": "data", "data_folder_out": "data", "processed_folder": "done"}
    files["control_folder"] = "control"
    theirs_sql = lost(tmp_path / "sqla", f"sqla+sqlite:///{tmp_path}/sqla/broker.db")
    theirs_files = lost(tmp_path / "files", "filesystem://", **files)
    ours = lost(tmp_path / "ours", f"outlast+sqlite:///{tmp_path}/ours/app.db")
    print(f"lost: sqlalchemy {theirs_sql}, filesystem {theirs_files}, ours {ours}")
    assert 0 in theirs_sql, "kombu's SQLAlchemy transport loses what was being run"
    assert 0 in theirs_files, "kombu's filesystem transport loses what was being run"
    assert ours == set()


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_another_worker_takes_over_at_once(rig: Rig, pool: str) -> None:
    """No visibility timeout: the survivor runs what the dead one held, marked as redelivered."""
    victim = rig.worker("-c", "1", "-P", pool, name="victim", worker_prefetch_multiplier=1)
    rig.send("hold", 1, rig.gate)
    until(lambda: rig.starts() == [1], PATIENCE, "the task runs")
    rig.worker("-c", "1", "-P", pool, name="survivor")
    rig.send("note", 2)
    rig.wait_for(2)
    rig.kill(victim)
    rig.open_gate()
    rig.wait_for(1)
    assert [line["redelivered"] for line in rig.said() if line.get("end") == 1] == [True]
    assert sorted(rig.ends()) == [1, 2]


def test_a_child_that_dies_gives_its_task_back(rig: Rig) -> None:
    """``task_reject_on_worker_lost``: the main process lives, and requeues."""
    rig.worker("-c", "1", "-P", "prefork")
    rig.send("die_once", 1, str(rig.folder / "died"))
    rig.wait_for(1)
    assert rig.starts() == [1, 1]
