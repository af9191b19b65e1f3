"""Power-loss replay: a recorded life of the store, cut after any operation, in every mode.

``python -m tests.proof.replay --acts add_many,claim_and_settle --replays 1000``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import apsw
import msgspec
from tests.proof.checker import check
from tests.proof.disk import MODES, Mode, images, lay_out
from tests.proof.journal import Event, Memo
from tests.proof.script import play
from tests.proof.stage import Stage, result_of
from tests.proof.stores import sqlite_store
from tests.proof.vfs import Op, Tape, watched

from outlast.chance import SeededChance
from outlast.store import Durability
from outlast.stores.sqlite import log, schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Replayed", "judge_image", "record", "replay", "scratch"]

DB = "proof.db"
IMAGE_PID = 2
ENDLESS = 1e12


@dataclass(slots=True)
class Replayed:
    """The sum over the images that were opened and judged."""

    acts: str = ""
    replays: int = 0
    drained: int = 0
    """Of these, how many were also run dry, so that every job's end was seen."""
    operations: int = 0
    acknowledged: int = 0
    lossy: int = 0
    """Images after which something acknowledged was missing or undone."""
    broken: dict[str, int] = field(default_factory=dict)
    stories: list[str] = field(default_factory=list)
    seconds: float = 0.0
    seed: int = 0


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: images are many and small, and judged unsynced."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def record(
    folder: Path,
    acts: Sequence[str],
    *,
    seed: int = 0,
    durability: Durability = Durability.POWER,
    checkpoint_pages: int = 12,
    bad_sync: int = 0,
) -> Tape:
    """Play the acts on a store in ``folder`` and keep every operation on its files.

    ``bad_sync``: which sync after the opening fails, if any.
    """
    tape = Tape()

    async def life(vfs: str) -> None:
        store = sqlite_store(folder / DB, vfs=vfs, durability=durability, chance=SeededChance(seed))
        await store.open()
        tape.fail_sync(bad_sync)
        stage = Stage(store, tape, chance=SeededChance(seed + 1), seed=seed)
        await play(stage, tuple(acts))
        await store.close()
        if stage.errors and not bad_sync:
            raise stage.errors[0]

    # A checkpoint each few pages: the moments around one are those that can hurt.
    with (
        watched("proof-tape", tape) as vfs,
        mock.patch.object(log, "CHECKPOINT_PAGES", checkpoint_pages),
    ):
        asyncio.run(life(vfs))
    return tape


def judge_image(
    folder: Path, told: Sequence[Event], *, drain: bool, restarted: bool = True
) -> dict[str, list[str]]:
    """Open what the cut left, with the product alone, and say which promises are broken.

    Without ``drain`` the store is only looked at; with it, all that is left is run to its end.
    ``restarted``: as after a cut the machine has started anew, and the store finds that out.
    """
    boot = schema.boot_id() + ("-later" if restarted else "")
    with _quiet(), mock.patch.object(schema, "boot_id", return_value=boot):
        return asyncio.run(_judge(folder, told, drain, restarted))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Only errors are logged meanwhile: each of thousands of images gives cause for warnings."""
    log = logging.getLogger("outlast")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


async def _judge(
    folder: Path, told: Sequence[Event], drain: bool, restarted: bool
) -> dict[str, list[str]]:
    clock = itertools.count(int(told[-1].at) + 2 if told else 0)
    after = Memo(lambda: float(next(clock)), IMAGE_PID)
    after.write("cut")
    store = sqlite_store(folder / DB, durability=Durability.PROCESS)
    # Blocking is quicker than asking a thread, and nobody else waits here.
    store.open_now()
    try:
        stage = Stage(store, after, worker="judge")
        if drain:
            if not restarted:
                # Leases run for real seconds, and the judge has none to spare.
                await stage.take_over()
            await stage.drain()
        final = await stage.dump()
    finally:
        store.close_now()
    report = check([*told, *after.events], final, patience=ENDLESS, result=result_of)
    broken = report.broken
    if not drain:
        broken.pop("stuck", None)
    connection = apsw.Connection(str(folder / DB), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        found = connection.pragma("integrity_check")
    finally:
        connection.close()
    if found != "ok":
        broken["damaged"] = [str(found)]
    return broken


def replay(
    acts: Sequence[str],
    seed: int,
    *,
    replays: int = 1_000_000_000,
    modes: Sequence[Mode] = MODES,
    drain_each: int = 10,
    durability: Durability = Durability.POWER,
    bad_sync: int = 0,
    budget: float = 3600.0,
    to_the_end: bool = True,
) -> Replayed:
    """Judge the images of every prefix in every mode, or of as many prefixes as make ``replays``.

    With time left, the modes that are drawn by lot go round again. One in ``drain_each`` images is
    run dry as well. Unless ``to_the_end``, the first that breaks a promise is the last.
    """
    total = Replayed(acts=",".join(acts), seed=seed)
    began = time.monotonic()
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="outlast-tape-") as made, scratch() as image:
        tape = record(Path(made), acts, seed=seed, durability=durability, bad_sync=bad_sync)
        total.operations = len(tape.ops)
        total.acknowledged = sum(event.kind == "ok" for event in tape.events)
        for point, mode, files in _drawn(_within(tape.ops, made), replays, modes, dice):
            if time.monotonic() - began > budget or total.replays >= replays:
                break
            if total.broken and not to_the_end:
                break
            lay_out(files, image)
            told = [event for event in tape.events if event.at <= point]
            drain = dice.random() < 1 / drain_each
            _count(total, judge_image(image, told, drain=drain), f"{mode} after {point} operations")
            total.drained += drain
    total.seconds = time.monotonic() - began
    return total


def _drawn(
    ops: Sequence[Op], replays: int, modes: Sequence[Mode], dice: random.Random
) -> Iterator[tuple[int, Mode, dict[str, bytes]]]:
    points = range(len(ops) + 1)
    wanted = min(len(points), max(1, replays // len(modes)))
    chosen = sorted(dice.sample(points, wanted)) if wanted < len(points) else points
    yield from images(ops, chosen, modes, dice)
    again = tuple(mode for mode in modes if mode in ("rand", "torn"))
    while again:
        yield from images(ops, points, again, dice)


def _within(ops: Sequence[Op], folder: str) -> list[Op]:
    """Operations on the database's own files; what stands beside it is rebuilt at every start."""
    own = (folder, f"{folder}/{DB}", f"{folder}/{DB}-wal", f"{folder}/{DB}-journal")
    return [op if op.name in own else op._replace(name=f"/elsewhere{op.name}") for op in ops]


def _count(total: Replayed, broken: dict[str, list[str]], where: str) -> None:
    total.replays += 1
    total.lossy += bool(broken)
    for name, found in broken.items():
        total.broken[name] = total.broken.get(name, 0) + len(found)
    if broken and len(total.stories) < 3:
        total.stories.append(f"{where}: {broken}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--acts", default="add_one_by_one,claim_and_settle")
    parser.add_argument("--replays", type=int, default=1_000_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=3600.0)
    told = parser.parse_args()
    total = replay(told.acts.split(","), told.seed, replays=told.replays, budget=told.budget)
    print(msgspec.json.encode(total).decode())


if __name__ == "__main__":
    main()
