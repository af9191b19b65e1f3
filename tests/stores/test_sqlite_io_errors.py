"""A disk that fails now and then, or for good: nothing false is said, and the store goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import apsw
import pytest
from tests.conformance.steps import job
from tests.proof.patience import until
from tests.proof.vfs import Op, OpKind, io_error, watched

from outlast.errors import EnqueueUncertain, StoreDamaged, StoreFull, StoreUnavailable
from outlast.job import done
from outlast.stores.sqlite import log, schema
from outlast.stores.sqlite.op import Op as Call
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from outlast.stores.sqlite.moves import Moves


class Disk:
    """Fails the next so many operations of a kind."""

    def __init__(self) -> None:
        self.kind: OpKind | None = None
        self.left = 0
        self.full = False
        self.struck = 0

    def fail(self, kind: OpKind, times: int = 1, *, full: bool = False) -> None:
        self.kind, self.left, self.full = kind, times, full

    def heal(self) -> None:
        self.kind = None

    def before(self, op: Op) -> None:
        if op.kind == self.kind and self.left and not op.name.endswith("ballast"):
            self.left -= 1
            self.struck += 1
            raise io_error(op.kind, full=self.full)

    def after(self, op: Op) -> None:
        """Nothing is noted."""


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    with watched("failing", disk):
        yield disk


@pytest.fixture
async def store(db: Path, disk: Disk) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(db), vfs="failing")
    await store.open()
    await store.add([job("before")])
    yield store
    disk.heal()
    await store.close()


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_an_add_that_fails_is_uncertain_and_may_be_repeated(
    store: SqliteStore, disk: Disk, kind: OpKind
) -> None:
    jobs = [job("a"), job("b")]
    disk.fail(kind)
    with pytest.raises(EnqueueUncertain, match="may or may not be stored, adding them again") as e:
        await store.add(jobs)
    assert disk.struck == 1
    assert e.value.ids == ("a", "b")
    assert [answer.id for answer in await store.add(jobs)] == ["a", "b"]
    assert not any(answer.created for answer in await store.add(jobs))
    claims = await store.claim(["default"], [None], 10, 60, "w")
    assert [claim.job.id for claim in claims] == ["before", "a", "b"]


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_all_that_share_the_commit_are_told(
    store: SqliteStore, disk: Disk, kind: OpKind
) -> None:
    [claim] = await store.claim(["default"], [None], 1, 60, "w")
    disk.fail(kind)
    found = await asyncio.gather(
        store.add([job("a")]),
        store.add([job("b"), job("c")]),
        store.settle([done(claim)]),
        store.claim(["default"], [None], 1, 60, "w"),
        return_exceptions=True,
    )
    # The first may have been in a commit of its own; whoever was in the bad one has heard of it.
    uncertain = [each for each in found if isinstance(each, EnqueueUncertain)]
    assert uncertain
    assert all(each.ids in (("a",), ("b", "c")) for each in uncertain)
    for each in found[2:]:
        assert isinstance(each, list | StoreUnavailable)
    await store.add([job("a"), job("b"), job("c")])
    await store.settle([done(claim)])
    depth = await store.depth("default")
    assert (depth.done, depth.live) == (1, 3)


async def test_a_settlement_that_fails_may_be_repeated(store: SqliteStore, disk: Disk) -> None:
    [claim] = await store.claim(["default"], [None], 1, 60, "w")
    disk.fail("sync")
    with pytest.raises(StoreUnavailable, match=r"injected"):
        await store.settle([done(claim, b"1")])
    lost = await store.settle([done(claim, b"1")])
    [found] = await store.get(["before"])
    assert found is not None
    assert found.result == b"1"
    assert found.status == "done"
    # It is lost only if the first attempt had reached the disk after all.
    assert [each.claim for each in lost] in ([], [claim])


async def test_the_connection_that_saw_the_error_is_not_used_again(
    store: SqliteStore, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[apsw.Connection] = []
    real = schema.connect

    def connect(*args: object, **more: object) -> apsw.Connection:
        connection = real(*args, **more)  # type: ignore[arg-type]
        opened.append(connection)
        return connection

    assert store._writer is not None
    before = store._writer._connection
    monkeypatch.setattr(store._writer, "_connect", lambda: connect(store.path, store.durability))
    disk.fail("sync")
    with pytest.raises(EnqueueUncertain):
        await store.add([job()])
    await store.add([job()])
    assert len(opened) == 1
    assert store._writer._connection is opened[0]
    with pytest.raises(apsw.ConnectionClosedError):
        before.pragma("user_version")


async def test_three_failures_in_a_row_stop_it_with_a_clear_word(
    store: SqliteStore, disk: Disk
) -> None:
    for _ in range(3):
        disk.fail("sync", 100)
        with pytest.raises((EnqueueUncertain, StoreUnavailable)):
            await store.add([job()])
        disk.heal()
    disk.heal()
    with pytest.raises(
        StoreUnavailable,
        match=r"happened 3 times in a row, so outlast stopped writing; check the disk, then close",
    ):
        await store.add([job()])
    with pytest.raises(StoreUnavailable, match="stopped writing"):
        await store.claim(["default"], [None], 1, 60, "w")
    assert (await store.depth("default")).live >= 1, "reading goes on"
    await store.close()
    await store.open()
    await store.add([job("after")])
    assert (await store.get(["after"]))[0] is not None


async def test_two_failures_and_a_success_are_no_row(store: SqliteStore, disk: Disk) -> None:
    for _ in range(4):
        for _ in range(2):
            disk.fail("sync")
            with pytest.raises(EnqueueUncertain):
                await store.add([job()])
        await store.add([job()])


async def test_a_file_that_can_not_be_opened_again_is_tried_again(
    store: SqliteStore, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store._writer is not None
    real = store._writer._connect
    failures = iter([apsw.CantOpenError("injected: too many open files")])

    def connect() -> apsw.Connection:
        for error in failures:
            raise error
        return real()

    monkeypatch.setattr(store._writer, "_connect", connect)
    disk.fail("sync")
    with pytest.raises(EnqueueUncertain):
        await store.add([job("a")])
    with pytest.raises(StoreUnavailable, match="too many open files"):
        await store.add([job("b")])
    await store.add([job("b")])
    assert (await store.get(["b"]))[0] is not None


async def test_damage_found_while_opening_again_stops_it(
    store: SqliteStore, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = apsw.Connection.pragma

    class Suspicious(apsw.Connection):
        def pragma(self, name: str, *args: object, **more: object) -> object:
            if name == "quick_check":
                return "row 7 missing from index jobs_id"
            return real(self, name, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(apsw, "Connection", Suspicious)
    disk.fail("sync")
    with pytest.raises(EnqueueUncertain):
        await store.add([job()])
    with pytest.raises(StoreDamaged, match="is damaged: row 7 missing from index jobs_id"):
        await store.add([job()])


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_a_failing_copy_of_the_log_loses_nothing(
    store: SqliteStore, disk: Disk, monkeypatch: pytest.MonkeyPatch, kind: OpKind
) -> None:
    monkeypatch.setattr(log, "CHECKPOINT_PAGES", 1)
    await store.add([job("a")])

    def before(op: Op) -> None:
        if op.kind == kind and op.name.endswith("jobs.db"):
            disk.struck += 1
            raise io_error(op.kind)

    monkeypatch.setattr(disk, "before", before)
    await store.add([job("b", payload=b'"' + b"x" * 50_000 + b'"')])
    assert (await store.depth("default")).live == 3
    until(lambda: disk.struck, 60.0, "the log is copied, after the answer")
    monkeypatch.undo()
    await store.add([job("c")])
    await store.close()
    await store.open()
    assert (await store.depth("default")).live == 4


async def test_a_disk_that_is_full_in_the_log_is_no_failure_of_the_disk(
    store: SqliteStore, disk: Disk
) -> None:
    for _ in range(5):
        disk.fail("write", full=True)
        with pytest.raises(StoreFull, match="nothing was stored"):
            await store.add([job("a")])
    await store.add([job("a")])
    [claim] = await store.claim(["default"], [None], 1, 60, "w")
    disk.fail("write", full=True)
    assert await store.settle([done(claim)]) == [], "the ballast was given up for it"


async def test_reads_come_from_a_new_connection_after_an_error(
    store: SqliteStore, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store._reader is not None
    before = store._reader._reads.connection
    before.pragma("cache_size", 0)
    await store.add([job() for _ in range(2000)])
    disk.fail("read", 1000)
    with pytest.raises(StoreUnavailable):
        await store.find()
    disk.heal()
    assert len(await store.find(limit=5000)) == 2001
    assert store._reader._reads.connection is not before


async def test_one_bad_call_does_not_fail_its_neighbours(store: SqliteStore) -> None:
    """An error that tells of one call alone, whatever it is: the rest of the commit is done."""

    def bad(moves: Moves) -> list[str]:
        moves.connection.execute("SELECT no_such_function()")
        return []

    def worse(moves: Moves) -> list[str]:
        raise ZeroDivisionError("a fault of ours")

    found = await asyncio.gather(
        store.add([job("a")]),
        store._do(Call(bad, synced=True)),
        store.add([job("b")]),
        store._do(Call(worse, synced=True)),
        store.add([job("c")]),
        return_exceptions=True,
    )
    assert [type(each).__name__ for each in found] == [
        "list",
        "StoreUnavailable",
        "list",
        "ZeroDivisionError",
        "list",
    ]
    assert (await store.depth("default")).live == 4
    await store.add([job("d")])


async def test_an_error_nobody_expected_stops_the_writer_but_hangs_nobody(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert store._writer is not None

    def transact(group: Sequence[Call[object]]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(store._writer, "_transact", transact)
    async with asyncio.timeout(60):
        with pytest.raises((StoreUnavailable, EnqueueUncertain), match="did not expect"):
            await store.add([job()])
        monkeypatch.undo()
        with pytest.raises(StoreUnavailable, match="close the store, and open it again"):
            await store.claim(["default"], [None], 1, 60, "w")
    assert "stopped writing" in caplog.text
    await store.close()
    await store.open()
    await store.add([job()])
