"""C30: after a power cut the queue can't be opened; items taken but not finished vanish."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest
from tests.cases.rig import scaled
from tests.proof.patience import linger, until
from tests.proof.processes import fork

from outlast.chance import SystemChance
from outlast.job import Job, Status, done
from outlast.lifeline import Lifeline
from outlast.stores.sqlite import SqliteStore
from outlast.stores.sqlite.files import companion

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.proof.processes import Child

LOST_AT_MOST = 400
"""Jobs in the last transactions, which a damaged end of the log may take with it."""


def note(path: Path, word: str, id: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{word} {id}\n".encode())
    os.close(descriptor)


def produce(db: Path, journal: Path) -> None:
    async def work() -> None:
        store, chance = SqliteStore(str(db)), SystemChance()
        await store.open()
        while True:
            id = chance.uuid7()
            await store.add([Job(id=id)])
            note(journal, "added", id)

    asyncio.run(work())


def consume(db: Path, journal: Path) -> None:
    async def work() -> None:
        store, name = SqliteStore(str(db)), f"consumer-{os.getpid()}"
        await store.open()
        line = Lifeline(companion(str(db)), name)
        line.hold()
        while True:
            claims = await store.claim(["default"], [None], 3, 60.0, name)
            for claim in claims:
                line.mark_started(claim.job.id, alone=False)
                note(journal, "taken", claim.job.id)
            await store.settle([done(claim) for claim in claims])
            for claim in claims:
                line.mark_settled(claim.job.id)
                note(journal, "settled", claim.job.id)

    asyncio.run(work())


def noted(journal: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {"added": set(), "taken": set(), "settled": set()}
    whole, _, _ = journal.read_text().rpartition("\n")  # the last line may be under way
    for line in whole.splitlines():
        word, id = line.split()
        found[word].add(id)
    return found


def zeroed(wal: Path) -> None:
    with wal.open("r+b") as file:
        file.seek(max(0, wal.stat().st_size - 4096))
        file.write(bytes(4096))


def cut_off(wal: Path) -> None:
    os.truncate(wal, max(0, wal.stat().st_size - 4096))


def copied(db: Path, folder: Path, damage: Callable[[Path], None] | None) -> Path:
    folder.mkdir()
    for end in ("", "-wal"):
        if Path(f"{db}{end}").exists():
            shutil.copy(f"{db}{end}", folder / f"copy.db{end}")
    copy = folder / "copy.db"
    shutil.copytree(
        companion(str(db)), companion(str(copy)), ignore=shutil.ignore_patterns("*.bell")
    )
    if damage is not None and Path(f"{copy}-wal").exists():
        damage(Path(f"{copy}-wal"))
    return copy


async def judge(copy: Path, before: dict[str, set[str]], *, damaged: bool) -> None:
    """Open it with the product, with no step by hand, and look for what was confirmed."""
    store = SqliteStore(str(copy), create=False)
    await store.open()
    ids = sorted(before["added"])
    jobs = dict(zip(ids, await store.get(ids), strict=True))
    missing = [id for id, job in jobs.items() if job is None]
    undone = [id for id in before["settled"] if (job := jobs[id]) and job.status is not Status.DONE]
    if damaged:
        assert len(missing) <= LOST_AT_MOST
    else:
        assert not missing
        assert not undone
        open_ones = before["taken"] - before["settled"]
        again = await store.claim(["default"], [None], 1_000_000, 60.0, "after")
        settled_unnoted = {id for id in open_ones if jobs[id].status is Status.DONE}  # type: ignore[union-attr]
        assert open_ones - settled_unnoted <= {claim.job.id for claim in again}
        assert (await store.depth("default")).queued == 0
    await store.close()
    connection = apsw.Connection(str(copy))
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_c30(tmp_path: Path) -> None:
    db, journal, dice = tmp_path / "c30.db", tmp_path / "journal", random.Random(30)
    journal.touch()
    children: list[Child] = []
    rounds = scaled(200, 8)
    try:
        children += [fork(lambda: produce(db, journal)) for _ in range(4)]
        children += [fork(lambda: consume(db, journal)) for _ in range(2)]
        until(lambda: len(noted(journal)["settled"]) > 20, 60.0, "items are settled")
        for number in range(rounds):
            said = journal.stat().st_size
            until(lambda size=said: journal.stat().st_size > size, 60.0, "they go on")  # type: ignore[misc]
            linger(dice.uniform(0.0, 0.05))
            for child in children:
                child.freeze()
            before = noted(journal)
            copies = [
                copied(db, tmp_path / f"{number}-{index}", damage)
                for index, damage in enumerate((None, zeroed, cut_off))
            ]
            # They stand still meanwhile: else there is more to judge each time, and no end to it.
            for index, copy in enumerate(copies):
                asyncio.run(judge(copy, before, damaged=index > 0))
                shutil.rmtree(copy.parent)
            for child in children:
                child.send(signal.SIGCONT)
            assert all(child.alive for child in children)
    finally:
        for child in children:
            child.send(signal.SIGCONT)
            child.kill()
