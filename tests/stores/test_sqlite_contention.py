"""Several processes write to one file: nobody starves, nobody hears of SQLite's busy, none lose."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.conformance.steps import job
from tests.fakes import FakeClock
from tests.stores.children import Child, listen, say

from outlast.errors import StoreUnavailable
from outlast.job import Status, done
from outlast.stores.sqlite import writer
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stores.conftest import Opener

pytestmark = pytest.mark.timeout(240)  # each child is a Python that has to start first


LOCKED = "BEGIN IMMEDIATE"


def adds_one_by_one(path: str, name: str, seconds: float) -> None:
    """In a child: how many it could add, and the longest that one took."""
    store = SqliteStore(path)
    store.open_now()
    say("ready")
    listen()
    number, worst, end = 0, 0.0, time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        store.add_now([job(f"{name}-{number}")])
        worst = max(worst, time.monotonic() - began)
        number += 1
    store.close_now()
    say([number, worst])


def together(children: list[Child], wait: float = 60.0) -> list[Any]:
    """Let them begin at one moment; what each said in the end."""
    try:
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.tell()
        return [child.hear(wait) for child in children]
    finally:
        for child in children:
            child.kill()


@pytest.mark.alone
def test_four_writers_get_their_share(db: Path, opened: Opener) -> None:
    """The slowest does at least a quarter of the fastest, in the best of three attempts.

    SQLite's own waiting lets one of them have nearly everything, again and again.
    """
    shares, total = [], 0
    for attempt in range(3):
        children = [
            Child(adds_one_by_one, path=str(db), name=f"{attempt}-{n}", seconds=1.5)
            for n in range(4)
        ]
        found = together(children)
        counts = [number for number, _ in found]
        total += sum(counts)
        shares.append(min(counts) / max(counts))
        assert min(counts) > 0
        assert max(worst for _, worst in found) < 20, "one of them waited for ages"
        if shares[-1] >= 0.25:
            break
    assert max(shares) >= 0.25
    assert opened(db).depth_now("default").live == total, "what was acknowledged is there"


def claims_and_settles(path: str, name: str, number: int) -> None:
    store = SqliteStore(path)
    store.open_now()
    say("ready")
    listen()
    mine: list[str] = []
    while len(mine) < number and (claims := store.claim_now(["default"], [None], 3, 600, name)):
        assert store.settle_now([done(claim) for claim in claims]) == []
        mine += [claim.job.id for claim in claims]
    store.close_now()
    say(mine)


def test_each_job_goes_to_one_of_them(db: Path, opened: Opener) -> None:
    store = opened(db)
    wanted = [f"job-{n}" for n in range(300)]
    store.add_now([job(each) for each in wanted])
    store.close_now()
    children = [
        Child(claims_and_settles, path=str(db), name=f"w{n}", number=1000) for n in range(3)
    ]
    found = together(children)
    assert sorted(each for mine in found for each in mine) == sorted(wanted)
    assert sum(bool(mine) for mine in found) >= 2


@pytest.fixture
def other(db: Path, opened: Opener) -> apsw.Connection:
    """Another program's connection to the file of a store."""
    opened(db).close_now()
    return apsw.Connection(str(db))


def test_a_lock_that_is_held_for_long_is_waited_for_and_then_named(
    db: Path, opened: Opener, other: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOCK_WAIT", 0.3)
    store = opened(db)
    store.add_now([job("a")])
    other.execute(LOCKED)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=f"{db} stays locked by another process"):
        store.add_now([job("b")])
    assert 0.3 <= time.monotonic() - began < 20
    with pytest.raises(StoreUnavailable, match="stays locked"):
        store.claim_now(["default"], [None], 1, 60, "w")
    assert store.depth_now("default").live == 1, "reading needs no lock"
    other.execute("ROLLBACK")
    store.add_now([job("b")])
    assert len(store.claim_now(["default"], [None], 9, 60, "w")) == 2
    other.close()


def test_a_lock_that_is_held_for_a_moment_is_not_noticed(
    db: Path, opened: Opener, other: apsw.Connection
) -> None:
    assert writer.LOCK_WAIT == 30
    store = opened(db)
    other.execute(LOCKED)
    reply = store._hand_over(store._add_op([job("a")], None))
    with pytest.raises(TimeoutError):
        reply.result(0.2)
    other.execute("ROLLBACK")
    began = time.monotonic()
    assert reply.result(60)[0].created
    assert time.monotonic() - began < 10, "it looks again every millisecond or so"
    other.close()


def test_a_store_can_be_opened_while_somebody_writes(
    db: Path, opened: Opener, other: apsw.Connection
) -> None:
    """Opening writes nothing if nothing has changed, so it needn't wait for a lock."""
    opened(db).close_now()
    other.execute(LOCKED)
    began = time.monotonic()
    store = opened(db)
    assert store.depth_now("default").live == 0
    assert time.monotonic() - began < 10
    other.execute("ROLLBACK")
    other.close()


def test_many_stores_in_one_process_share_the_file_too(db: Path, opened: Opener) -> None:
    stores = [opened(db, namespace=f"n{n % 2}") for n in range(4)]
    replies = [
        store._hand_over(store._add_op([job(f"{n}-{at}")], None))
        for at in range(25)
        for n, store in enumerate(stores)
    ]
    assert all(reply.result(60)[0].created for reply in replies)
    assert stores[0].depth_now("default").live == 50
    assert stores[1].depth_now("default").live == 50


def test_a_frozen_process_holds_nobody_up_unless_it_holds_the_lock(
    db: Path, opened: Opener
) -> None:
    store = opened(db)
    with Child(waits_for_ever, path=str(db)) as child:
        child.hear()
        child.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        for _ in range(20):
            store.add_now([job()])
        assert time.monotonic() - began < 20
        child.process.send_signal(signal.SIGCONT)


def waits_for_ever(path: str) -> None:
    async def wait() -> None:
        store = SqliteStore(path)
        await store.open()
        say("waiting")
        while True:
            await store.wait(["default"], 30)

    asyncio.run(wait())


def tries_to_be_alone(path: str) -> None:
    """In a child: asks for the lock that SQLite takes before it deletes a log."""
    with open(path, "r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)
        except BlockingIOError:
            say("refused")
        else:
            say("granted")


def test_nothing_that_is_opened_and_closed_drops_the_locks_of_a_store(
    db: Path, opened: Opener, tmp_path: Path
) -> None:
    """POSIX locks go when a process closes any descriptor of the file, whoever had opened it.

    Another process would then think that it is the last one, and delete the log of the living.
    """
    store = opened(db)
    store.add_now([job("a")])
    second = opened(db, namespace="second")
    second.add_now([job("a")])
    third = opened(db)
    asyncio.run(store.backup(tmp_path / "copy.db"))
    third.close_now()
    second.close_now()
    with Child(tries_to_be_alone, path=str(db)) as child:
        assert child.hear() == "refused"
    store.close_now()
    with Child(tries_to_be_alone, path=str(db)) as child:
        assert child.hear() == "granted", "the test sees what it looks for"


class Sleepy:
    """The ``time`` of a writer whose machine was suspended for an hour between two looks."""

    def __init__(self) -> None:
        self.slept = 0.0
        self.naps = 0
        self.awake = threading.Event()

    def monotonic(self) -> float:
        return time.monotonic() + self.slept

    def sleep(self, seconds: float) -> None:
        threading.Event().wait(seconds)
        self.naps += 1
        if self.naps == 3:
            self.slept = 3600.0
        elif self.naps == 6:
            self.awake.set()


def test_time_in_which_the_process_stood_still_was_not_waited(
    db: Path, opened: Opener, other: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sleepy = opened(db), Sleepy()
    monkeypatch.setattr(writer, "time", sleepy)
    other.execute(LOCKED)
    reply = store._hand_over(store._add_op([job("a")], None))
    assert sleepy.awake.wait(60)
    other.execute("ROLLBACK")
    assert reply.result(60)[0].created
    other.close()


@pytest.mark.parametrize("beside", [True, False], ids=["nobody knows who is first", "second"])
@pytest.mark.parametrize(
    ("before", "waiting"), [(0.0, 20.0), (14.8, 0.5), (16.0, 5.0)], ids=["long", "short", "late"]
)
async def test_a_lease_that_ran_out_while_all_waited_for_the_lock_is_renewed(
    db: Path, opened: Opener, other: apsw.Connection, beside: bool, before: float, waiting: float
) -> None:
    """Its worker waits beside the one that recovers, or comes after it.

    Who recovers came when the lock was taken, or in time, or when the lease was over already.
    """
    clock = FakeClock()
    mine, theirs = opened(db, clock=clock), opened(db, clock=clock)
    mine.add_now([job("a")])
    [claim] = mine.claim_now(["default"], [None], 1, 15, "w")
    other.execute(LOCKED)
    clock.advance(before)
    recovered = asyncio.ensure_future(theirs.recover(10))
    await asyncio.sleep(0)
    clock.advance(waiting)
    renewed = asyncio.ensure_future(mine.renew([claim], 15)) if beside else None
    await asyncio.sleep(0)
    other.execute("ROLLBACK")
    assert await recovered == 0
    assert await (renewed or mine.renew([claim], 15)) == []
    clock.advance(20)
    assert await theirs.recover(10) == 1
    other.close()


async def test_a_purge_takes_nothing_that_is_added_after_its_last_bite(
    db: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a busy producer could keep it from ending, and lose what it adds."""
    store = opened(db)
    await store.add([job("before")])
    do, meanwhile = store._do, iter([job("meanwhile")])

    async def answered_late(op: Any) -> Any:
        gone = await do(op)
        await store.add(list(meanwhile))
        return gone

    monkeypatch.setattr(store, "_do", answered_late)
    assert await store.purge("default", [Status.QUEUED]) == 1
    assert (await store.depth("default")).queued == 1
