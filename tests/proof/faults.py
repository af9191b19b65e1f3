"""Faults of the machine: a full disk, limits of a process, memory that runs out, bits that flip.

Each is a scenario of its own process. ``python -m tests.proof.faults full-disk`` and so on; those
that mount something do so in a mount namespace of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from tests.proof.checker import check
from tests.proof.cut import command
from tests.proof.journal import Memo
from tests.proof.stage import QUEUE, TASK, Stage, payload_of, result_of
from tests.proof.stores import sqlite_store

from outlast.errors import OutlastError, StoreDamaged, StoreError, StoreFull
from outlast.job import Status
from outlast.store import Durability

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["Seen", "flip_bits", "in_process"]

ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Seen:
    """What a scenario found."""

    acknowledged: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    story: str = ""
    notes: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    """Kinds of the errors that callers met, each once, in the order of their coming."""

    def note_errors(self, stage: Stage) -> None:
        for error in stage.errors:
            name = type(error).__name__
            if name not in self.errors:
                self.errors.append(name)

    async def judge(self, stage: Stage, memo: Memo) -> Seen:
        report = check(memo.events, await stage.dump(), patience=1e9, result=result_of)
        self.acknowledged = report.acknowledged
        self.broken = {name: len(found) for name, found in report.broken.items()}
        self.story = report.story(memo.events)[-3000:]
        self.note_errors(stage)
        return self


def memo() -> Memo:
    clock = itertools.count(1)
    return Memo(lambda: float(next(clock)))


async def full_disk(folder: Path) -> Seen:
    """S4: new work is refused early, what is there is settled from the ballast, all goes on."""
    seen, witness = Seen(), memo()
    store = sqlite_store(folder / "proof.db", durability=Durability.PROCESS)
    await store.open()
    stage = Stage(store, witness)
    for _ in range(1000):
        if not await stage.add([stage.job(size=20_000) for _ in range(10)]):
            break
    seen.notes["refused early"] = int(isinstance(stage.errors[-1], StoreFull))
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    adds = [bool(await stage.add([stage.job()])) for _ in range(3)]
    seen.notes["adds while full"] = sum(adds)
    errors = len(stage.errors)
    ended = 0
    while claims := await stage.claim(10):
        await stage.end(claims, "done")
        ended += len(claims)
    seen.notes["ended while full"] = ended
    seen.notes["errors while settling"] = len(stage.errors) - errors
    filler.unlink()
    began = time.monotonic()
    while not (added := await stage.add([stage.job()])) and time.monotonic() - began < 60:
        await asyncio.sleep(0)
    seen.notes["microseconds until an add"] = round((time.monotonic() - began) * 1e6)
    seen.notes["adds after"] = len(added)
    await stage.drain()
    await seen.judge(stage, witness)
    await store.close()
    return seen


async def file_limit(folder: Path) -> Seen:
    """S4: a limit on the size of files (RLIMIT_FSIZE) comes, and goes again."""
    seen, witness = Seen(), memo()
    store = sqlite_store(folder / "proof.db")
    await store.open()
    stage = Stage(store, witness)
    await stage.add([stage.job() for _ in range(20)])
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    log = (folder / "proof.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (log + 30_000, hard))
    for _ in range(4):
        await stage.add([stage.job(size=9000) for _ in range(3)])
    seen.notes["errors"] = len(stage.errors)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await stage.reopen()
    seen.notes["adds after"] = len(await stage.add([stage.job()]))
    await stage.take_over()
    await stage.drain()
    await seen.judge(stage, witness)
    await store.close()
    return seen


async def few_descriptors(folder: Path) -> Seen:
    """M1: hardly any file descriptors left: a clean refusal, and it works when there are more."""
    seen, witness = Seen(), memo()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    store = sqlite_store(folder / "proof.db")
    used = len(os.listdir("/proc/self/fd"))
    for more in range(12):
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, before[1]))
        try:
            await store.open()
        except StoreError as error:
            seen.notes["refusals"] = seen.notes.get("refusals", 0) + 1
            seen.story = str(error)
        else:
            break
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    await store.open()
    stage = Stage(store, witness)
    await stage.add([stage.job()])
    await stage.drain()
    await seen.judge(stage, witness)
    await store.close()
    return seen


SCENARIOS: dict[str, Callable[[Path], Coroutine[None, None, Seen]]] = {
    "full-disk": full_disk,
    "file-limit": file_limit,
    "few-descriptors": few_descriptors,
}


def in_process(scenario: str, *, tmpfs: str = "") -> Seen:
    """Run a scenario in a process of its own, on a tmpfs of that size if one is named."""
    words = [sys.executable, "-m", "tests.proof.faults", scenario]
    if tmpfs:
        words = ["unshare", "--mount", "--propagation", "private", *words, "--tmpfs", tmpfs]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=100)
    return msgspec.json.decode(done.stdout, type=Seen)


def flip_bits(folder: Path, flips: int, seed: int) -> Seen:
    """S6: one bit of the database flips; each time in a fresh copy, which is then run dry.

    Noticed is whatever names the damage: an error of ours, a job buried as damaged, or the
    integrity check. A wrong payload must never reach a task.
    """
    dice = random.Random(seed)
    seen = Seen()
    ids = asyncio.run(_grow(folder / "whole.db"))
    whole = (folder / "whole.db").read_bytes()
    seen.acknowledged = len(ids)
    for number in range(flips):
        at, bit = dice.randrange(100, len(whole)), 1 << dice.randrange(8)
        hurt = bytearray(whole)
        hurt[at] ^= bit
        path = folder / f"{number}.db"
        path.write_bytes(hurt)
        path.chmod(0o600)
        what = asyncio.run(_live_with(path, ids))
        seen.notes[what] = seen.notes.get(what, 0) + 1
    return seen


async def _grow(path: Path) -> set[str]:
    store = sqlite_store(path)
    await store.open()
    stage = Stage(store, memo())
    ids = await stage.add([stage.job(size=400) for _ in range(150)])
    await store.close()
    return set(ids)


async def _live_with(path: Path, ids: set[str]) -> str:
    """Run all that is there; how the damage showed."""
    store = sqlite_store(path)
    ran: set[str] = set()
    try:
        await store.open()
        stage = Stage(store, memo())
        while True:
            claims = await store.claim([QUEUE], [TASK], 50, 15.0, "w")
            for claim in claims:
                if claim.job.payload != payload_of(claim.job.id, 400):
                    return "wrong payload"
                ran.add(claim.job.id)
            if not claims:
                break
            await stage.end(claims, "done")
        jobs = await stage.dump()
    except StoreDamaged:
        return "store damaged"
    except OutlastError:
        return "other error"
    finally:
        await store.close()
    if any(job.status is Status.DEAD for job in jobs.values()):
        return "job buried"
    return "harmless" if ran == ids else "unnoticed"


def flipped(seed: int, budget: float) -> dict[str, object]:
    """Flip bits until the time is over; what became of them."""
    began = time.monotonic()
    notes: Counter[str] = Counter()
    number = 0
    while not number or time.monotonic() - began < budget:
        with tempfile.TemporaryDirectory(prefix="outlast-flips-") as scratch:
            notes.update(flip_bits(Path(scratch), 50, seed * 1_000_000 + number).notes)
        number += 1
    wrong = notes["wrong payload"]
    return {
        "flips": sum(notes.values()),
        "harmless": notes["harmless"],
        "buried": notes["job buried"],
        "damaged": notes["store damaged"] + notes["other error"],
        "unnoticed": notes["unnoticed"],
        "broken": {"wrong payload": wrong} if wrong else {},
        "seed": seed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=[*SCENARIOS, "flip-bits"])
    parser.add_argument("--tmpfs", default="", help="the size of a tmpfs to run on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=10.0)
    told = parser.parse_args()
    if told.scenario == "flip-bits":
        print(msgspec.json.encode(flipped(told.seed, told.budget)).decode())
        return
    with tempfile.TemporaryDirectory(prefix="outlast-faults-") as scratch:
        folder = Path(scratch)
        if told.tmpfs:
            size = f"size={told.tmpfs},mode=0700"
            command("mount", "-t", "tmpfs", "-o", size, "tmpfs", folder)
        try:
            seen = asyncio.run(SCENARIOS[told.scenario](folder))
        finally:
            if told.tmpfs:
                command("umount", "--lazy", folder)
    print(msgspec.json.encode(seen).decode())


if __name__ == "__main__":
    main()
