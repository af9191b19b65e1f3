"""Kills at each system call that writes: strace counts them in one run, then kills at every one.

``python -m tests.proof.calls --acts add_one_by_one,claim_and_settle``.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import msgspec
from tests.proof.actors import drained_in_child
from tests.proof.checker import check
from tests.proof.journal import Journal, read
from tests.proof.script import NEXT_SCHEMA, halves
from tests.proof.stage import result_of
from tests.proof.stores import sqlite_store

from outlast.stores.sqlite import schema

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Swept", "count_calls", "killed_at", "points_of", "sweep"]

WRITES = (
    "write,pwrite64,writev,pwritev,ftruncate,fsync,fdatasync,fallocate,"
    "unlink,unlinkat,rename,renameat2,openat,mkdir,mknodat"
)
ANYWHERE = "pwrite64,ftruncate,fsync,fdatasync,link,linkat"
"""What only SQLite and outlast call in such a process, whatever the file: for copies, whose names
aren't known beforehand."""
ROOT = Path(__file__).parents[2]
LINE = re.compile(r"^(\d+)\s+(\w+)\(")


@dataclass(slots=True)
class Swept:
    """What came of the kills."""

    acts: str = ""
    points: int = 0
    of: int = 0
    """How many there are, if this was the first part of a whole sweep."""
    hit: int = 0
    """Runs that really were killed there; others ran on because the calls came otherwise."""
    acknowledged: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    stories: list[str] = field(default_factory=list)
    seconds: float = 0.0
    seed: int = 0


def _strace(paths: Sequence[Path], extra: Sequence[str], command: Sequence[str]) -> list[str]:
    watched = [word for path in paths for word in ("-P", str(path))]
    return ["strace", "-f", "-qq", *extra, *watched, *command]


def count_calls(paths: Sequence[Path], command: Sequence[str], log: Path) -> dict[str, int]:
    """How often each call touched these files, in the thread that made it most often.

    Without paths, whichever files were touched.
    """
    traced = WRITES if paths else ANYWHERE
    words = _strace(paths, ["-o", str(log), "-e", f"trace={traced}"], command)
    subprocess.run(words, check=True, cwd=ROOT, timeout=120)
    by_thread: Counter[tuple[str, str]] = Counter()
    for line in log.read_text(errors="replace").splitlines():
        found = LINE.match(line)
        if found:
            by_thread[found[1], found[2]] += 1
    most: dict[str, int] = {}
    for (_, call), count in by_thread.items():
        most[call] = max(most.get(call, 0), count)
    return most


def points_of(counts: dict[str, int]) -> list[tuple[str, int]]:
    """Every (call, n-th time) at which a kill may strike."""
    return [(call, n) for call in sorted(counts) for n in range(1, counts[call] + 1)]


def killed_at(paths: Sequence[Path], command: Sequence[str], call: str, nth: int) -> bool:
    """Run the command and kill it as it enters that call for the n-th time; whether it struck."""
    inject = ["-o", os.devnull, "-e", f"trace={call}"]
    inject += ["-e", f"inject={call}:signal=SIGKILL:when={nth}"]
    done = subprocess.run(_strace(paths, inject, command), check=False, cwd=ROOT, timeout=120)
    if done.returncode == 0:
        return False
    if done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return True
    raise RuntimeError(f"ended with {done.returncode} at {call} number {nth}")


def sweep(
    acts: Sequence[str],
    seed: int,
    *,
    before: Sequence[str] = (),
    most: int = 1_000_000,
    part: tuple[int, int] = (0, 1),
    budget: float = 3600.0,
) -> Swept:
    """Kill at every call of these acts (or at ``most`` of them, drawn by lot), and judge each.

    The acts begin on a store that has gone through ``before``; without it, on no store at all.
    ``part`` 1 of 4 is every fourth call, beginning with the second.
    """
    swept = Swept(acts=",".join(acts), seed=seed)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="outlast-calls-") as scratch,
        mock.patch.object(schema, "MIGRATIONS", schema.MIGRATIONS),
    ):
        if "migrate" in acts:
            # The judge is the newer outlast, whatever the killed one had got to.
            schema.MIGRATIONS = (*schema.MIGRATIONS, NEXT_SCHEMA)
        folder = Path(scratch)
        template, work = folder / "template", folder / "work"
        template.mkdir()
        (template / "witness").mkdir()
        if before:
            subprocess.run(_command(template, before), check=True, cwd=ROOT, timeout=60)

        def fresh() -> Path:
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(template, work)
            return work

        def watched() -> list[Path]:
            return [] if "back_up" in acts else _files(work)

        fresh()
        counts = count_calls(watched(), _command(work, acts), folder / "log")
        points = points_of(counts)
        swept.of = 0 if part[0] else len(points)
        points = points[part[0] :: part[1]]
        dice = random.Random(seed)
        for call, nth in dice.sample(points, min(most, len(points))):
            if time.monotonic() - began > budget:
                break
            swept.points += 1
            fresh()
            swept.hit += killed_at(watched(), _command(work, acts), call, nth)
            _judge(work, swept, f"{call} number {nth}")
    swept.seconds = time.monotonic() - began
    return swept


def _files(work: Path) -> list[Path]:
    """The store's files: only calls that touch one of these count."""
    names = ("proof.db", "proof.db-wal", "proof.db-journal", ".proof.db-outlast", ".")
    inner = ("ballast", "turn")
    return [work / name for name in names] + [work / ".proof.db-outlast" / name for name in inner]


def _command(work: Path, acts: Sequence[str]) -> list[str]:
    words = [sys.executable, "-m", "tests.proof.script"]
    return [*words, str(work / "proof.db"), str(work / "witness"), *acts]


def _judge(work: Path, swept: Swept, where: str) -> None:
    witness = work / "witness"
    rig = Journal(witness)
    for pid in {event.pid for event in read(witness)}:
        rig.write("kill", target=pid)
    rig.close()
    db = work / "proof.db"
    final = drained_in_child(lambda: sqlite_store(db), witness, work / "final.json")
    events = read(witness)
    report = check(events, final, result=result_of)
    swept.acknowledged += report.acknowledged
    for name, found in report.broken.items():
        swept.broken[name] = swept.broken.get(name, 0) + len(found)
    if half := halves(work):
        swept.broken["half copy"] = swept.broken.get("half copy", 0) + 1
        swept.stories.append(f"killed at {where}: {half}")
    if report.broken and len(swept.stories) < 3:
        swept.stories.append(f"killed at {where}\n{report.story(events)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--acts", default="add_one_by_one,claim_and_settle")
    parser.add_argument("--before", default="")
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--part", default="0/1", help="NUMBER/PARTS: that share of the calls")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=3600.0)
    told = parser.parse_args()
    before = told.before.split(",") if told.before else ()
    acts = told.acts.split(",")
    number, _, parts = told.part.partition("/")
    swept = sweep(
        acts,
        told.seed,
        before=before,
        most=told.points,
        part=(int(number), int(parts)),
        budget=told.budget,
    )
    print(msgspec.json.encode(swept).decode())


if __name__ == "__main__":
    main()
