"""N-th failure loops: one operation on the files fails, the first, then the second, and so on.

A loop is over when the workload runs through without the failure being reached.
``python -m tests.proof.nth --points 500``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args
from unittest import mock

import msgspec
from tests.proof.journal import Memo
from tests.proof.replay import DB, judge_image, scratch
from tests.proof.script import halves, play
from tests.proof.stage import QUEUE, Stage
from tests.proof.stores import sqlite_store
from tests.proof.vfs import Op, OpKind, ShortWrite, io_error, watched

from outlast.errors import StoreError
from outlast.job import Status
from outlast.store import Durability
from outlast.stores.sqlite import files, log, schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["ENDLESS_LOOPS", "Fault", "Loop", "Points", "strike", "sweep"]

Flavour = Literal["io", "full", "short"]


class Loop(NamedTuple):
    """What fails: an operation of that kind, how, and whether it goes on failing."""

    kind: OpKind
    flavour: Flavour
    sticky: bool


ENDLESS_LOOPS: tuple[Loop, ...] = (
    Loop("write", "io", sticky=False),
    Loop("write", "io", sticky=True),
    Loop("write", "full", sticky=False),
    Loop("write", "full", sticky=True),
    Loop("write", "short", sticky=False),
    Loop("write", "short", sticky=True),
    Loop("sync", "io", sticky=False),
    Loop("sync", "io", sticky=True),
    Loop("truncate", "io", sticky=False),
    Loop("delete", "io", sticky=False),
    Loop("create", "io", sticky=False),
    Loop("read", "io", sticky=False),
    Loop("read", "io", sticky=True),
)


class Fault:
    """Lets the n-th operation of a kind fail, and all later ones if it is sticky."""

    def __init__(self, loop: Loop, nth: int) -> None:
        self.loop = loop
        self.nth = nth
        self.count = 0
        self.struck = False
        self.healed = False

    def before(self, op: Op) -> None:
        if self.healed or op.kind != self.loop.kind:
            return
        self.count += 1
        if self.count == self.nth or (self.loop.sticky and self.count > self.nth):
            self.struck = True
            error = io_error(op.kind, full=self.loop.flavour == "full")
            raise ShortWrite(error) if self.loop.flavour == "short" else error

    def after(self, op: Op) -> None:
        """Nothing is noted."""


@dataclass(slots=True)
class Points:
    """The sum over the points that were struck."""

    acts: str = ""
    points: int = 0
    loops: int = 0
    """Loops that were begun."""
    clean: int = 0
    """Of these, how many went on until the acts ran through without reaching the failure."""
    errors: int = 0
    """Calls that failed with an error of outlast's, as they should."""
    acknowledged: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    stories: list[str] = field(default_factory=list)
    seconds: float = 0.0
    seed: int = 0


def strike(loop: Loop, nth: int, acts: Sequence[str], template: Path, work: Path) -> Points | None:
    """One run on a copy of the template; None if the failure was never reached.

    Judged twice: as if the process had been killed right after the acts, and after an orderly end.
    """
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(template, work)
    with mock.patch.object(schema, "MIGRATIONS", schema.MIGRATIONS):
        return _strike(Fault(loop, nth), acts, work)


def _strike(fault: Fault, acts: Sequence[str], work: Path) -> Points | None:
    loop, nth = fault.loop, fault.nth
    clock = itertools.count(1)
    memo = Memo(lambda: float(next(clock)))
    with watched("proof-nth", fault) as vfs, _any_place_will_do():
        stage, seen = asyncio.run(_live(fault, vfs, memo, acts, work))
    if not fault.struck:
        return None
    result = Points(points=1, errors=len(stage.errors))
    result.acknowledged = sum(event.kind == "ok" for event in memo.events)
    killed, ended = memo.events[:seen], memo.events
    if found := halves(work):
        result.broken["half copy"] = 1
        result.stories.append(f"{loop} number {nth}: {found}")
    for name, folder, events in (("killed", work / "killed", killed), ("ended", work, ended)):
        for what, found in judge_image(folder, events, drain=True, restarted=False).items():
            result.broken[what] = result.broken.get(what, 0) + len(found)
            result.stories.append(f"{loop} number {nth}, {name}: {what} {found[:3]}")
    return result


@contextlib.contextmanager
def _any_place_will_do() -> Iterator[None]:
    """Let the store sync each commit although the files are in memory, where that is fast.

    And let it checkpoint often, so that failures strike there too.
    """
    best = Durability.POWER, ""
    with (
        mock.patch.object(files, "path_durability", return_value=best),
        mock.patch.object(log, "CHECKPOINT_PAGES", 12),
    ):
        yield


async def _live(
    fault: Fault, vfs: str, memo: Memo, acts: Sequence[str], work: Path
) -> tuple[Stage, int]:
    """The acts under the failure; then the disk is well again, and the store must serve again.

    Also, how many events there were when the files were copied.
    """
    store = sqlite_store(work / DB, vfs=vfs)
    stage = Stage(store, memo, worker="struck")
    try:
        await store.open()
    except StoreError as error:
        stage.errors.append(error)
        fault.healed = fault.loop.sticky
        await store.open()
    await play(stage, tuple(acts))
    killed = work / "killed"
    killed.mkdir()
    for path in work.glob(f"{DB}*"):
        if path.is_file() and not path.name.endswith("-shm"):
            shutil.copy(path, killed)
    seen = len(memo.events)
    fault.healed = True
    if fault.loop.sticky:
        await stage.reopen()
    for _ in range(2):
        if await stage.add([stage.job()]):
            break
    else:
        raise AssertionError(f"{fault.loop} number {fault.nth}: it never served again")
    await store.close()
    return stage, seen


def _template(folder: Path) -> None:
    """A store that has seen some life, closed in order."""

    async def life() -> None:
        store = sqlite_store(folder / DB, durability=Durability.PROCESS)
        await store.open()
        stage = Stage(store, Memo(lambda: 0.0), worker="before")
        await play(stage, ("add_many", "settle_every_way"))
        await stage.take_over()
        await stage.drain()
        await stage.ledger.purge(QUEUE, [Status.DONE, Status.DEAD, Status.CANCELLED])
        await store.close()

    asyncio.run(life())


def sweep(
    acts: Sequence[str],
    seed: int,
    *,
    loops: Sequence[Loop] = ENDLESS_LOOPS,
    most: int = 1_000_000,
    stride: int = 1,
    budget: float = 3600.0,
) -> Points:
    """Each loop from its first operation on, by ``stride``, until the workload runs clean."""
    total = Points(acts=",".join(acts), seed=seed)
    began = time.monotonic()
    dice = random.Random(seed)
    with scratch() as folder:
        template, work = folder / "template", folder / "work"
        template.mkdir()
        _template(template)
        for loop in loops:
            if total.points >= most or time.monotonic() - began > budget:
                break
            total.loops += 1
            for nth in _numbers(stride, dice):
                found = strike(loop, nth, acts, template, work)
                total.clean += found is None
                over = total.points >= most or time.monotonic() - began > budget
                if found is None or over:
                    break
                _add(total, found)
    total.seconds = time.monotonic() - began
    return total


def _numbers(stride: int, dice: random.Random) -> Iterator[int]:
    start = dice.randint(1, stride)
    return itertools.count(start, stride)


def _add(total: Points, found: Points) -> None:
    total.points += found.points
    total.errors += found.errors
    total.acknowledged += found.acknowledged
    for name, count in found.broken.items():
        total.broken[name] = total.broken.get(name, 0) + count
    total.stories.extend(found.stories[: 3 - len(total.stories)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--acts", default="add_one_by_one,claim_and_settle")
    parser.add_argument("--kinds", default="", help="operations that fail, by comma; else all")
    parser.add_argument("--skip", type=int, default=0, help="so many of the loops")
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=3600.0)
    told = parser.parse_args()
    acts = told.acts.split(",")
    kinds = told.kinds.split(",") if told.kinds else get_args(OpKind)
    total = sweep(
        acts,
        told.seed,
        loops=[loop for loop in ENDLESS_LOOPS if loop.kind in kinds][told.skip :],
        most=told.points,
        stride=told.stride,
        budget=told.budget,
    )
    print(msgspec.json.encode(total).decode())


if __name__ == "__main__":
    main()
