"""A short life of a store, act by act: everything it does is done once, in a known order."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
from tests.proof.journal import Journal
from tests.proof.stage import QUEUE, Stage
from tests.proof.stores import sqlite_store

from outlast.errors import StoreError
from outlast.job import Progress
from outlast.lifeline import Lifeline
from outlast.stores.sqlite import SqliteStore, schema

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

__all__ = ["ACTS", "halves", "play"]

COPY = "copy.db"

NEXT_SCHEMA = """
ALTER TABLE jobs ADD COLUMN extra TEXT;
CREATE TABLE extras (id INTEGER PRIMARY KEY, job TEXT NOT NULL) STRICT;
INSERT INTO extras (job) SELECT id FROM jobs;
UPDATE jobs SET extra = id || 'x' WHERE state < 4;
CREATE INDEX jobs_extra ON jobs (extra) WHERE extra IS NOT NULL;
"""


async def add_one_by_one(stage: Stage) -> None:
    for _ in range(4):
        await stage.add([stage.job()])


async def add_many(stage: Stage) -> None:
    await stage.add([stage.job(priority=number % 3) for number in range(25)])
    await stage.add([stage.job(size=9000)])
    await stage.add([stage.job() for _ in range(5)])


async def add_keyed(stage: Stage) -> None:
    """Keys, delays, lanes and limits: whatever writes more than one row."""
    first = stage.job(key="k1", digest=b"1")
    await stage.add([first])
    await stage.add([stage.job(key="k1", digest=b"1"), stage.job(key="k2", digest=b"2")])
    await stage.add([stage.job(), stage.job(key="k1", digest=b"other")])
    await stage.add([first])
    await stage.add([stage.job(lane="l") for _ in range(3)])
    await stage.add([stage.job(delay=0.005), stage.job(ttl=3600.0)])
    await stage.add([stage.job()], capacity=1)


async def claim_and_settle(stage: Stage) -> None:
    for _ in range(3):
        await stage.end(await stage.claim(3), "done")


async def settle_every_way(stage: Stage) -> None:
    for ending in ("retry", "give_back", "dead", "cancelled", "done"):
        await stage.end(await stage.claim(2), ending)
    claims = await stage.claim(2)
    follow = stage.job(), stage.job()
    if claims:
        await stage.settle([stage.verdict(claims[0], "done", follow)])
    if claims[1:]:
        await stage.settle([stage.verdict(claims[1], "retry", (stage.job(),))])


async def lose_a_worker(stage: Stage) -> None:
    await stage.claim(4)
    # The journal knows this death: it excuses the next runs.
    stage.witness.write("kill", target=stage.witness.pid)
    await stage.upkeep(dead_worker=stage.worker)


async def ask(stage: Stage) -> None:
    """Cancel, revive, purge, prune."""
    ids = await stage.add([stage.job() for _ in range(4)])
    await stage.cancel(ids[:2])
    await stage.revive(ids[:1])
    running = await stage.claim(1)
    await stage.cancel([claim.job.id for claim in running])
    await stage.end(running, "cancelled")
    await stage.upkeep()


async def fill_the_log(stage: Stage) -> None:
    """Pages enough for several checkpoints, where the rig has made them frequent."""
    for _ in range(8):
        await stage.add([stage.job(size=6000) for _ in range(4)])
        await stage.end(await stage.claim(4), "done")


async def all_at_once(stage: Stage) -> None:
    """Calls that wait together share one commit."""

    async def hand_over() -> None:
        await stage.add([stage.job()])
        await stage.end(await stage.claim(1), "done")

    async def take() -> None:
        await stage.end(await stage.claim(1), "done")

    for _ in range(3):
        await asyncio.gather(*(hand_over() for _ in range(12)))
    # And those that promise nothing beside those that do: one is enough for a sync.
    await stage.add([stage.job() for _ in range(12)])
    for _ in range(3):
        adds = (stage.add([stage.job()]) for _ in range(4))
        takes = (take() for _ in range(4))
        await asyncio.gather(*(each for pair in zip(adds, takes, strict=True) for each in pair))


async def come_back(stage: Stage) -> None:
    """Close in order, and open again."""
    await stage.reopen()
    await stage.add([stage.job()])


async def migrate(stage: Stage) -> None:
    """A newer outlast comes: the caller has to put the schema's steps back afterwards."""
    schema.MIGRATIONS = (*schema.MIGRATIONS, NEXT_SCHEMA)
    await stage.reopen()


async def purge(stage: Stage) -> None:
    """Delete what has ended, and nothing else."""
    await stage.end(await stage.claim(3), "done")
    await stage.end(await stage.claim(1), "dead")
    await stage.purge()
    await stage.upkeep()


async def keep(stage: Stage) -> None:
    """Leases are renewed, with a word on how far it is; the queue pauses meanwhile."""
    claims = await stage.claim(2)
    try:
        notes = [Progress(id=claim.job.id, value=0.5) for claim in claims]
        await stage.store.renew(claims, 60.0, notes)
        await stage.ledger.pause(QUEUE)
        await stage.ledger.pause(QUEUE, False)
    except StoreError as error:
        stage.errors.append(error)
    await stage.end(claims, "done")


async def back_up(stage: Stage) -> None:
    """A copy beside the store: whatever bears its name is whole."""
    store = stage.store
    assert isinstance(store, SqliteStore)
    copy = Path(store.path).with_name(COPY)
    copy.unlink(missing_ok=True)
    try:
        await store.backup(copy)
    except StoreError as error:
        stage.errors.append(error)
    if found := halves(copy.parent):
        raise AssertionError(f"{copy}: {found}")


def halves(folder: Path) -> list[str]:
    """What is wrong with the copy in this folder; nothing if it is whole, or not there."""
    copy = folder / COPY
    if not copy.exists():
        return []
    try:
        connection = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            rows = connection.execute("SELECT count(*) FROM jobs").get
            found = connection.pragma("integrity_check")
        finally:
            connection.close()
    except apsw.Error as error:
        return [str(error)]
    return [] if found == "ok" and rows is not None else [str(found)]


ACTS: Mapping[str, Callable[[Stage], Awaitable[None]]] = {
    "add_one_by_one": add_one_by_one,
    "add_many": add_many,
    "add_keyed": add_keyed,
    "claim_and_settle": claim_and_settle,
    "settle_every_way": settle_every_way,
    "lose_a_worker": lose_a_worker,
    "ask": ask,
    "fill_the_log": fill_the_log,
    "all_at_once": all_at_once,
    "come_back": come_back,
    "migrate": migrate,
    "purge": purge,
    "keep": keep,
    "back_up": back_up,
}


async def play(stage: Stage, acts: tuple[str, ...]) -> None:
    """The acts in that order, on an open store."""
    for name in acts:
        await ACTS[name](stage)


async def _main(db: Path, witness: Path, acts: tuple[str, ...]) -> None:
    store = sqlite_store(db)
    await store.open()
    stage = Stage(store, Journal(witness))
    stage.worker = stage.chance.uuid7()
    if store.lifelines is not None:
        stage.lifeline = Lifeline(store.lifelines, stage.worker)
        stage.lifeline.hold()
    await play(stage, acts)
    if stage.lifeline is not None:
        stage.lifeline.release()
    await store.close()
    for error in stage.errors:
        raise error


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), Path(sys.argv[2]), tuple(sys.argv[3:])))
