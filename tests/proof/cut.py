"""Real power cuts: an ext4 of our own on a loop device, shut down in mid-write, and mounted again.

The whole rig runs in a mount namespace of its own, so that not even a kill leaves a mount or a loop
device behind. Run it as root: ``python -m tests.proof.cut --rounds 20 --load plain-full``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from tests.proof import journal as journals
from tests.proof.actors import drained_in_child, live
from tests.proof.checker import check
from tests.proof.journal import Journal
from tests.proof.patience import linger, until
from tests.proof.processes import Child, fork, in_child
from tests.proof.stage import result_of
from tests.proof.stores import sqlite_store

from outlast.doctor import examine
from outlast.store import Durability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from outlast.job import Job
    from outlast.stores.sqlite.store import SqliteStore

__all__ = ["Load", "Outcome", "Tally", "judged", "main", "run_rounds", "sweep"]

EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
"""What was not yet in the file system's own journal is dropped as well."""
IMAGE_BYTES = 48 << 20


@dataclass(slots=True)
class Outcome:
    """One cut: what had been acknowledged, and which of it was gone."""

    acknowledged: int = 0
    lost: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    story: str = ""
    beside: int = 0
    """What was lost of something weaker that was written at the same time."""


class Load(Protocol):
    """A program that writes to the disk until the power goes, and its judge afterwards."""

    children: int
    size: int
    """Bytes of the disk that it writes to."""

    def lay(self, folder: Path) -> None:
        """Put there what every round begins with."""

    def predict(self, folder: Path) -> str:
        """The class that doctor says such a store has in this folder; empty if it isn't ours."""

    def prepare(self, folder: Path) -> None:
        """Make the store; synced to the disk before the load begins."""

    def run(self, folder: Path, journal: Journal, number: int) -> None:
        """Work without end in one of the forked children."""

    def end(self) -> None:
        """The power has gone: end what ``prepare`` has started."""

    def judge(self, folder: Path, witness: Path) -> Outcome:
        """Compare what the disk holds with the journals; called in the rig's own process."""


@dataclass(slots=True)
class Tally:
    """The sum over many rounds."""

    load: str
    predicted: str = ""
    """What doctor says of such a store on such a disk."""
    rounds: int = 0
    empty: int = 0
    """Rounds in which nothing had been acknowledged yet: they prove nothing."""
    acknowledged: int = 0
    lost: int = 0
    worst: int = 0
    hurt: int = 0
    """Rounds that lost something."""
    beside: int = 0
    """Lost by something weaker in the same rounds: that the rig sees a loss."""
    broken: dict[str, int] = field(default_factory=dict)
    stories: list[str] = field(default_factory=list)
    seconds: float = 0.0
    seed: int = 0

    def add(self, outcome: Outcome) -> None:
        self.rounds += 1
        self.empty += outcome.acknowledged == 0
        self.acknowledged += outcome.acknowledged
        self.lost += outcome.lost
        self.worst = max(self.worst, outcome.lost)
        self.hurt += outcome.lost > 0
        self.beside += outcome.beside
        for name, count in outcome.broken.items():
            self.broken[name] = self.broken.get(name, 0) + count
        if outcome.story and len(self.stories) < 3:
            self.stories.append(outcome.story)


def command(*words: str | Path) -> None:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    done = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


def make_template(folder: Path, size: int = IMAGE_BYTES) -> Path:
    """An empty ext4 in a sparse file, made once and copied for each round."""
    template = folder / "template.img"
    with template.open("wb") as file:
        file.truncate(size)
    command("mke2fs", "-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0", template)
    return template


@contextlib.contextmanager
def mounted(image: Path | None, point: Path) -> Iterator[Path]:
    """The image mounted; its loop device lets go of it by itself when it is unmounted.

    Without an image, a tmpfs: each time an empty one.
    """
    point.mkdir(exist_ok=True)
    if image is None:
        command("mount", "-t", "tmpfs", "-o", "size=48m,mode=0700", "tmpfs", point)
    else:
        command("mount", "-o", "loop", image, point)
    try:
        yield point
    finally:
        _unmount(point)


def _unmount(point: Path) -> None:
    def gone() -> bool:
        try:
            command("umount", point)
        except OSError as error:
            if "busy" in str(error):
                return False
            raise
        return True

    until(gone, 60.0, f"{point} can be unmounted")


def pull_the_plug(point: Path) -> None:
    """From this moment on the file system writes nothing more, its own journal included."""
    folder = os.open(point, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(folder, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
    finally:
        os.close(folder)


def one_cut(load: Load, image: Path | None, folder: Path, seconds: float) -> Outcome:
    """Load, freeze, cut, mount again, judge.

    Frozen first, so that no acknowledgement can race the cut: what the journals hold then is
    exactly what had been promised.
    """
    witness, point = folder / "witness", folder / "mnt"
    shutil.rmtree(witness, ignore_errors=True)
    witness.mkdir()
    children: list[Child] = []
    with mounted(image, point):
        load.prepare(point)
        os.sync()
        try:
            for number in range(load.children):
                children.append(fork(lambda n=number: load.run(point, Journal(witness), n)))  # type: ignore[misc]
            until(lambda: _acknowledged(witness) or not _all(children), 60.0, "a first add")
            linger(seconds)
            if not _all(children):
                raise RuntimeError("a child ended before the cut")
            for child in children:
                child.freeze()
            Journal(witness).write("cut")
            if image is not None:
                pull_the_plug(point)
        finally:
            for child in children:
                child.kill()
            load.end()
    with mounted(image, point):
        return load.judge(point, witness)


def _all(children: list[Child]) -> bool:
    return all(child.alive for child in children)


def _acknowledged(witness: Path) -> bool:
    return any(b'"kind":"ok"' in path.read_bytes() for path in witness.glob("*.jsonl"))


def run_rounds(
    name: str, load: Load, rounds: int, seed: int, budget: float = float("inf")
) -> Tally:
    """So many cuts at times drawn by lot, or as many as fit into ``budget`` seconds."""
    dice = random.Random(seed)
    tally = Tally(name, seed=seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outlast-cut-") as scratch:
        folder = Path(scratch)
        template = make_template(folder, load.size)
        with mounted(template, folder / "mnt") as point:
            load.lay(point)
        image = None if name.endswith("tmpfs") else folder / "disk.img"

        def renew() -> None:
            if image is not None:
                command("cp", "--sparse=always", template, image)

        renew()
        with mounted(image, folder / "mnt") as point:
            tally.predicted = load.predict(point)
        while tally.rounds < rounds and time.monotonic() - began < budget:
            renew()
            tally.add(one_cut(load, image, folder, dice.uniform(0.01, 0.25)))
    tally.seconds = time.monotonic() - began
    return tally


class OnFile:
    """What all loads have in common whose store is a file of their own."""

    size = IMAGE_BYTES

    def lay(self, folder: Path) -> None:
        """The file is made under load as well."""

    def end(self) -> None:
        """Nothing runs but the children."""


class PlainSqlite(OnFile):
    """SQLite alone, one row a commit: shows what the rig can see."""

    children = 1

    def __init__(self, synchronous: int) -> None:
        self.synchronous = synchronous

    def predict(self, folder: Path) -> str:
        """Nothing: doctor looks at stores of outlast."""
        return ""

    def prepare(self, folder: Path) -> None:
        """The table is part of what must survive: it is made under load."""

    def _connect(self, folder: Path) -> Any:
        import apsw

        connection = apsw.Connection(str(folder / "plain.db"))
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", self.synchronous)
        return connection

    def run(self, folder: Path, journal: Journal, number: int) -> None:
        connection = self._connect(folder)
        connection.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, data BLOB)")
        row = 0
        while True:
            connection.execute("INSERT INTO item VALUES (?, zeroblob(300))", (row,))
            journal.write("ok", str(row))
            row += 1

    def judge(self, folder: Path, witness: Path) -> Outcome:
        import apsw  # here: the other loads do without

        events = journals.read(witness)
        acknowledged = {int(event.id) for event in events if event.kind == "ok"}
        try:
            with contextlib.closing(self._connect(folder)) as connection:
                if not connection.execute("SELECT name FROM sqlite_schema").get:
                    return Outcome(len(acknowledged), len(acknowledged))
                there = {row[0] for row in connection.execute("SELECT id FROM item")}
                sound = connection.pragma("integrity_check") == "ok"
        except (apsw.CorruptError, apsw.NotADBError):
            there, sound = set(), False
        broken = {} if sound else {"damaged": 1}
        return Outcome(len(acknowledged), len(acknowledged - there), broken)


class Outlast(OnFile):
    """Two processes on one store: they add, claim and settle, until the power goes."""

    children = 2

    def __init__(self, durability: Durability) -> None:
        self.durability = durability

    def predict(self, folder: Path) -> str:
        """What doctor says of a store that was made there, in words of the enum."""
        answer = folder / "said"

        def look() -> None:
            store = self._store(folder)
            store.open_now()
            store.close_now()
            answer.write_text(str(asyncio.run(examine(self.url(folder))).accepted))

        in_child(look, 60)
        return answer.read_text()

    def prepare(self, folder: Path) -> None:
        """The file is made under load as well."""

    def url(self, folder: Path) -> str:
        """Where the store is, on a disk that is mounted there."""
        return f"sqlite:///{folder / 'proof.db'}?durability={self.durability}"

    def _store(self, folder: Path) -> SqliteStore:
        return sqlite_store(folder / "proof.db", durability=self.durability)

    def run(self, folder: Path, journal: Journal, number: int) -> None:
        asyncio.run(live(lambda: self._store(folder), journal, os.getpid(), lease=0.5))

    def judge(self, folder: Path, witness: Path) -> Outcome:
        answer = witness / "final.json"
        events = journals.read(witness)
        try:
            final = drained_in_child(lambda: self._store(folder), witness, answer)
        except RuntimeError:
            if self.durability > Durability.MEMORY:
                raise
            # Without any sync SQLite itself promises nothing: the file may be no database now.
            gone = sum(event.kind == "ok" for event in events)
            return Outcome(gone, gone)
        return judged(witness, final)


def judged(witness: Path, final: Mapping[str, Job]) -> Outcome:
    """What the journals say against what a store of outlast held in the end."""
    events = journals.read(witness)
    report = check(events, final, result=result_of)
    broken = {name: len(found) for name, found in report.broken.items()}
    gone = broken.pop("lost", 0) + broken.pop("undone", 0)
    story = report.story(events) if broken or gone else ""
    return Outcome(report.acknowledged, gone, broken, story[-5000:])


LOADS: Mapping[str, Callable[[], Load]] = {
    "plain-full": lambda: PlainSqlite(2),
    "plain-normal": lambda: PlainSqlite(1),
    "plain-off": lambda: PlainSqlite(0),
    "outlast-power": lambda: Outlast(Durability.POWER),
    "outlast-process": lambda: Outlast(Durability.PROCESS),
    "outlast-memory": lambda: Outlast(Durability.MEMORY),
    "outlast-tmpfs": lambda: Outlast(Durability.PROCESS),
}


def sweep(
    load: str, rounds: int, seed: int, budget: float = 3600.0, module: str = "tests.proof.cut"
) -> Tally:
    """Start the rig in a mount namespace of its own and return what it found."""
    words = ["--load", load, "--rounds", str(rounds), "--seed", str(seed), "--budget", str(budget)]
    own = ["unshare", "--mount", "--propagation", "private"]
    done = subprocess.run(
        [*own, sys.executable, "-m", module, *words],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        check=True,
        timeout=budget + 120,
    )
    return msgspec.json.decode(done.stdout, type=Tally)


def main(loads: Mapping[str, Callable[[], Load]] = LOADS) -> None:
    """One load of these, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", choices=sorted(loads), default=next(iter(loads)))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=3600.0)
    told = parser.parse_args()
    tally = run_rounds(told.load, loads[told.load](), told.rounds, told.seed, told.budget)
    print(msgspec.json.encode(tally).decode())


if __name__ == "__main__":
    main()
