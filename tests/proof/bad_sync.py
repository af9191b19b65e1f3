"""A sync that fails, then a kill, then a power cut: the worst that Linux makes of a bad disk."""

from __future__ import annotations

import asyncio
import random
import shutil
from typing import TYPE_CHECKING

from tests.proof.disk import MODES, Disk, lay_out
from tests.proof.replay import DB, judge_image, scratch
from tests.proof.stage import Stage
from tests.proof.stores import sqlite_store
from tests.proof.vfs import Tape, watched

if TYPE_CHECKING:
    from pathlib import Path

    from outlast.stores.sqlite.store import SqliteStore

__all__ = ["judge_after"]


def judge_after(folder: Path, nth: int) -> dict[str, list[str]]:
    """What is broken in any image of the disk after the n-th sync failed.

    The process that saw the failure is killed; another one opens the store, whose log holds, for
    readers, what never reached the platter. It adds jobs, and then the power goes.
    """
    first, second = folder / "first", folder / "second"
    first.mkdir()
    second.mkdir()
    tape = Tape()
    with watched("proof-before", tape) as vfs:
        store, seen = asyncio.run(_until_it_fails(first, vfs, tape, nth))
        heir = Tape(known=[str(second / DB), str(second / f"{DB}-wal")])
        for op in tape.ops[:seen]:
            heir.ops.append(op._replace(name=op.name.replace(str(first), str(second))))
        heir.events = list(tape.events)
        for path in first.glob(f"{DB}*"):
            if path.is_file() and not path.name.endswith("-shm"):
                shutil.copy(path, second)
        with watched("proof-after", heir) as other:
            done = asyncio.run(_go_on(second, other, heir))
        asyncio.run(store.close())
    disk = Disk()
    for op in heir.ops[:done]:
        disk.apply(op)
    told = [event for event in heir.events if event.at <= done]
    broken: dict[str, list[str]] = {}
    with scratch() as image:
        for mode in MODES:
            lay_out(disk.after_cut(mode, random.Random(nth)), image)
            broken.update(judge_image(image, told, drain=False))
    return broken


async def _until_it_fails(folder: Path, vfs: str, tape: Tape, nth: int) -> tuple[SqliteStore, int]:
    """A store left open, as it stands after the failure, and the operations by then."""
    store = sqlite_store(folder / DB, vfs=vfs)
    await store.open()
    tape.fail_sync(nth)
    stage = Stage(store, tape)
    for _ in range(nth + 1):
        await stage.add([stage.job(), stage.job(size=6000)])
        if stage.errors:
            return store, len(tape.ops)
    raise AssertionError("no sync failed")


async def _go_on(folder: Path, vfs: str, tape: Tape) -> int:
    """The next process; the operations up to its last acknowledged add."""
    store = sqlite_store(folder / DB, vfs=vfs)
    await store.open()
    stage = Stage(store, tape)
    for _ in range(3):
        if not await stage.add([stage.job()]):
            raise AssertionError(f"it does not serve: {stage.errors}")
    done = len(tape.ops)
    await store.close()
    return done
