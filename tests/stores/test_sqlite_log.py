"""The write-ahead log stays small, and shrinks again after somebody has read for long."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest
from tests.conformance.steps import job
from tests.stores.children import Child, listen, say

from outlast.job import done
from outlast.stores.sqlite import log, schema

if TYPE_CHECKING:
    from tests.stores.conftest import Opener

    from outlast.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.timeout(240)  # each child is a Python that has to start first


PAYLOAD = b'"' + b"x" * 20_000 + b'"'
PAGES = 128
LIMIT = PAGES * 4096


@pytest.fixture(autouse=True)
def _all_is_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sixteenth and less of what it is in life, so that little has to be written."""
    assert schema.LOG_BYTES <= 2 * log.CHECKPOINT_PAGES * 4096 * 1.1
    assert log.RESTART_PAGES >= 4 * log.CHECKPOINT_PAGES
    monkeypatch.setattr(schema, "LOG_BYTES", 2 * LIMIT)
    monkeypatch.setattr(log, "CHECKPOINT_PAGES", PAGES)
    monkeypatch.setattr(log, "RESTART_PAGES", 16 * PAGES)


def log_size(db: Path) -> int:
    return Path(f"{db}-wal").stat().st_size


def churn(store: SqliteStore, times: float) -> None:
    """So many times the limit is written, in many commits, and deleted again."""
    batch = 5
    for _ in range(int(times * LIMIT / len(PAYLOAD) / batch)):
        store.add_now([job(payload=PAYLOAD, keep=0) for _ in range(batch)])
        claims = store.claim_now(["default"], [None], batch, 60, "w")
        store.settle_now([done(claim) for claim in claims])


def read_for_long(path: str) -> None:
    """In a child: a program that leaves a transaction open, as a person's shell may do."""
    connection = apsw.Connection(path)
    connection.execute("BEGIN")
    say(connection.execute("SELECT count(*) FROM jobs").get)
    listen()
    connection.execute("COMMIT")
    say("over")
    listen()
    connection.close()


def test_in_steady_work_it_is_copied_and_begun_anew(db: Path, opened: Opener) -> None:
    store = opened(db)
    churn(store, 12)
    assert log_size(db) <= 2 * LIMIT


def test_it_grows_while_somebody_reads_and_shrinks_when_that_ends(db: Path, opened: Opener) -> None:
    store = opened(db)
    store.add_now([job("first")])
    assert len(store.claim_now(["default"], [None], 1, 1e6, "w")) == 1
    with Child(read_for_long, path=str(db)) as child:
        assert child.hear() == 1
        churn(store, 8)
        grown = log_size(db)
        assert grown > 8 * LIMIT, "the reader's moment must be kept, so the log can't start anew"
        child.tell()
        assert child.hear() == "over"
        churn(store, 4)
        assert log_size(db) <= 2 * LIMIT
        assert log_size(db) < grown
        child.end()


def test_our_own_readers_are_short(db: Path, opened: Opener) -> None:
    """However much is read, the log is begun anew under it."""
    store = opened(db)

    async def read_and_write() -> None:
        store.add_now([job(f"j-{n}", payload=PAYLOAD) for n in range(100)])
        over = False

        async def read() -> int:
            count = 0
            while not over:
                await store.find(limit=100)
                await store.lines()
                count += 1
            return count

        readers = [asyncio.ensure_future(read()) for _ in range(3)]
        await asyncio.to_thread(churn, store, 12)
        over = True
        assert sum(await asyncio.gather(*readers)) > 10

    asyncio.run(read_and_write())
    assert log_size(db) <= 20 * LIMIT, "about thirty times the limit was written"


def test_no_read_transaction_is_left_open(db: Path, opened: Opener) -> None:
    """Reading, waiting and claiming nothing: afterwards the whole log can be copied and emptied."""
    store = opened(db)
    store.add_now([job("a")])

    async def look_around() -> None:
        await store.get(["a"])
        await store.find()
        await store.lines()
        await store.workers()
        await store.wait(["default"], 0.01)
        await store.finished(["a"], 0.01)
        await store.claim(["other"], [None], 1, 60, "w")

    asyncio.run(look_around())
    other = apsw.Connection(str(db))
    assert other.execute("SELECT count(*) FROM jobs").get == 1
    assert other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE) == (0, 0)
    assert log_size(db) == 0
    other.close()


def test_many_readers_that_overlap_do_not_keep_it_growing(
    db: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is always somebody reading: past a size it is waited for a moment without."""
    monkeypatch.setattr(log, "RESTART_PAGES", 2 * PAGES)
    store = opened(db)
    store.add_now([job("first")])
    children = [Child(read_in_turns, path=str(db)) for _ in range(2)]
    try:
        for child in children:
            child.hear()
        churn(store, 8)
        assert log_size(db) < 6 * LIMIT
    finally:
        for child in children:
            child.kill()


def read_in_turns(path: str) -> None:
    """In a child: reads for 20 ms again and again."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(1000)
    say("ready")
    while True:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM jobs").fetchall()
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            connection.execute("SELECT 1").fetchall()
        connection.execute("COMMIT")


def test_the_last_to_close_leaves_one_file(db: Path, opened: Opener) -> None:
    store, other = opened(db), opened(db)
    churn(store, 1)
    store.close_now()
    assert Path(f"{db}-wal").exists()
    other.close_now()
    assert not Path(f"{db}-wal").exists()
    assert not Path(f"{db}-shm").exists()
