"""C22: after the store was away the worker takes no more tasks, or exits."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import apsw
import pytest
from tests.cases.rig import scaled
from tests.proof.patience import linger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.cases.rig import Rig


@contextmanager
def locked(rig: Rig) -> Iterator[None]:
    """Somebody else holds the file."""
    connection = apsw.Connection(str(rig.folder / "case.db"))
    connection.set_busy_timeout(10_000)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("ROLLBACK")
    connection.close()


@contextmanager
def moved_away(rig: Rig) -> Iterator[None]:
    """The disk with the file is gone, and comes back."""
    names = [f"case.db{end}" for end in ("", "-wal", "-shm")]
    for name in names:
        os.rename(rig.folder / name, rig.folder / f"{name}.away")
    yield
    for name in names:
        os.rename(rig.folder / f"{name}.away", rig.folder / name)


@pytest.mark.parametrize("away", [locked, moved_away])
def test_c22(rig: Rig, away: Callable[[Rig], AbstractContextManager[None]]) -> None:
    (running,) = rig.enqueue(("until", str(rig.folder / "go")))
    busy = rig.start("-c", "2")
    rig.until_started(running)
    idle = rig.start("-c", "2")
    rig.until_up()
    pids = [*rig.members(busy), *rig.members(idle)]
    for _ in range(scaled(10, 2)):
        with away(rig):
            linger(scaled(20.0, 1.5))
        ids = rig.enqueue(*[("instant", n) for n in range(10)])
        rig.until_ended(ids)
        assert rig.ends(ids) == [1] * 10
        # The ten took 25 ms. A worker that got none of them tries about twice a second, and if it
        # never sees the store between two outages, they are one to it: after two leases it ends.
        linger(scaled(5.0, 0.5))
    (rig.folder / "go").touch()
    rig.until_ended([running])
    assert (rig.starts([running]), rig.ends([running])) == ([1], [1])
    assert [*rig.members(busy), *rig.members(idle)] == pids
