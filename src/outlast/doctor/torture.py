"""`outlast doctor --torture`: own producers and workers, killed without mercy, then counted.

It works in a namespace of its own, which is emptied afterwards; nothing else is touched.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from outlast.access import ledger_of
from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.doctor.torture_work import JOURNAL, NAMESPACE, make
from outlast.job import Status
from outlast.store import Feature
from outlast.stores.urls import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.store import Ledger

__all__ = ["Toll", "torture"]

Notes = dict[str, dict[str, list[tuple[int, float]]]]

PRODUCERS, WORKERS = 2, 2
QUIET = 60.0
"""Seconds in which everything must have ended once nobody is killed any more."""


class Toll(Struct, frozen=True, kw_only=True):
    """What was counted."""

    seconds: float
    kills: int
    interrupted: int
    """Runs that a kill cut off: what is lost in one is what a torture is to find."""
    accepted: int
    ended: int
    lost: int
    invented: int
    twice: int
    unexplained: int
    stuck: int
    slowest: float
    """The longest time from a kill to the next start of a job that it interrupted, in seconds."""

    @property
    def exit_code(self) -> int:
        """0 fine, 1 broken, 2 can't tell: where no run was cut off, nothing could be lost."""
        if self.lost or self.invented or self.unexplained or self.stuck:
            return 1
        return 0 if self.accepted and self.interrupted else 2

    def document(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def lines(self) -> Sequence[str]:
        return (
            f"torture: {self.kills} kills in {self.seconds:.0f} s, and {self.interrupted} runs cut"
            " off",
            f"  accepted {self.accepted}, ended {self.ended}, lost {self.lost},"
            f" invented {self.invented}, stuck {self.stuck}",
            f"  run twice {self.twice}, without a kill to explain it {self.unexplained}",
            f"  an interrupted job started again after {self.slowest:.2f} s at most",
            *(["  this shows nothing: try again for longer"] if self.exit_code == 2 else []),
        )


def torture(url: str, *, seconds: float) -> Toll:
    """Kill for so many seconds, let the rest be worked off, count, and tidy up. Blocks."""
    namespace = f"outlast-verify-{SystemChance().uuid7()[-12:]}"
    with tempfile.TemporaryDirectory(prefix="outlast-torture-") as folder:
        journal = Path(folder, "journal")
        journal.touch(0o600)
        os.environ.update({"OUTLAST_URL": url, NAMESPACE: namespace, JOURNAL: str(journal)})
        left = 0
        try:
            kills = asyncio.run(_kill(seconds, journal))
            found = asyncio.run(_tidy_up())
        finally:
            if parse(url).scheme == "rabbitmq":
                from outlast.doctor.rabbitmq import remove

                left = remove(parse(url), namespace)
        if found is None:
            found = _remembered(_notes(journal), left)
        return _count(_notes(journal), kills, found, seconds)


async def _kill(seconds: float, journal: Path) -> list[tuple[float, int]]:
    """When each kill was, and of which process."""
    clock, chance = SystemClock(), SystemChance()
    roles = ["produce"] * PRODUCERS + ["work"] * WORKERS
    processes = [_start(role) for role in roles]
    kills: list[tuple[float, int]] = []

    def kill(at: int) -> None:
        processes[at].kill()
        kills.append((clock.monotonic(), processes[at].pid))
        processes[at].wait()
        processes[at] = _start(roles[at])

    try:
        # A slow machine takes longer to start them than they would live.
        end = clock.monotonic() + QUIET
        while not _has_begun(journal) and clock.monotonic() < end:
            await clock.sleep(0.05)
        end = clock.monotonic() + seconds
        while clock.monotonic() < end:
            await clock.sleep(0.3 + chance.random())
            kill(int(chance.random() * len(processes)))
        # Chance may have met nobody with a job in its hands.
        end = clock.monotonic() + QUIET
        while not _interrupted(_notes(journal), kills) and clock.monotonic() < end:
            if (at := _busy(_notes(journal), processes)) is not None:
                kill(at)
            await clock.sleep(0.05)
        for process in processes[:PRODUCERS]:
            process.kill()
            process.wait()
        await _until_empty(clock, journal)
    finally:
        for process in processes:
            if process.poll() is None:
                process.communicate()
    return kills


def _has_begun(journal: Path) -> bool:
    """Whether something was accepted."""
    return b"added" in journal.read_bytes()


def _unended(notes: Notes) -> list[int]:
    """Whose runs have begun and not ended, from the first to begin on."""
    return [
        worker
        for id, starts in notes["start"].items()
        for worker, _ in starts
        if worker not in {each for each, _ in notes["end"].get(id, ())}
    ]


def _interrupted(notes: Notes, kills: Sequence[tuple[float, int]]) -> int:
    """How many runs were cut off by a kill."""
    killed = {pid for _, pid in kills}
    return sum(worker in killed for worker in _unended(notes))


def _busy(notes: Notes, processes: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """One that has a job in its hands, as far as is noted."""
    workers = _unended(notes)
    return next((at for at, each in enumerate(processes) if each.pid in workers), None)


def _notes(journal: Path) -> Notes:
    """What was noted of each job: by which process, and when."""
    notes: Notes = defaultdict(lambda: defaultdict(list))
    for line in journal.read_text().splitlines():
        word, id, pid, at = line.split()
        notes[word][id].append((int(pid), float(at)))
    return notes


def _start(role: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "outlast.doctor.torture_work", role], stdin=subprocess.PIPE
    )


async def _until_empty(clock: SystemClock, journal: Path) -> None:
    app = make()
    end = clock.monotonic() + QUIET
    async with app:
        while clock.monotonic() < end and (
            (await app.store.depth("default")).live
            if Feature.INSPECT in app.store.features
            else (notes := _notes(journal))["added"].keys() - notes["end"].keys()
        ):
            await clock.sleep(0.05)


def _remembered(notes: Notes, left: int) -> dict[str, Status]:
    """What became of the jobs of a store that forgets what is done: their tasks have noted it."""
    found = dict.fromkeys(notes["end"], Status.DONE)
    waiting = [id for id in (notes["added"] | notes["start"]) if id not in found]
    return found | dict.fromkeys(waiting[:left], Status.QUEUED)


async def _tidy_up() -> dict[str, Status] | None:
    """What became of every job, if the store can tell; then the namespace is emptied."""
    app = make()
    found: dict[str, Status] = {}
    if Feature.INSPECT not in app.open_store().features:
        return None
    async with app:
        ledger: Ledger = ledger_of(app.store)
        after = None
        while jobs := await ledger.find(limit=1000, after=after):
            found.update({job.id: job.status for job in jobs})
            after = jobs[-1].id
        if found:
            await ledger.purge("default", list(Status))
    return found


def _count(
    notes: Notes, kills: list[tuple[float, int]], stored: dict[str, Status], seconds: float
) -> Toll:
    accepted = set(notes["added"])
    killed = {pid: at for at, pid in kills}
    twice = [id for id, ends in notes["end"].items() if len(ends) > 1]
    unexplained, slowest = 0, 0.0
    for starts in notes["start"].values():
        for (worker, _), (_, again) in pairwise(starts):
            if worker in killed:
                slowest = max(slowest, again - killed[worker])
            else:
                unexplained += 1
    return Toll(
        seconds=seconds,
        kills=len(kills),
        interrupted=_interrupted(notes, kills),
        accepted=len(accepted),
        ended=sum(status is Status.DONE for status in stored.values()),
        lost=sum(id not in stored for id in accepted),
        invented=sum(id not in notes["adding"] for id in stored),
        twice=len(twice),
        unexplained=unexplained,
        stuck=sum(not status.ended for status in stored.values()),
        slowest=slowest,
    )
