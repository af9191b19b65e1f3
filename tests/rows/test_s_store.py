"""S: the file system refuses, the log grows, accepted jobs are deleted, an old copy comes back."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest
from tests.conformance.steps import job
from tests.proof.cut import command, make_template
from tests.proof.processes import fork
from tests.stores.children import Child, listen, say

from outlast import JobNotFound, Outlast, Status
from outlast.access import ledger_of
from outlast.doctor import Severity, disk, examine
from outlast.doctor import sqlite as doctor
from outlast.errors import EnqueueUncertain, StoreDamaged, StoreError, StoreFull
from outlast.job import done
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from tests.cases.rig import Rig

PAYLOAD = b'"' + b"x" * 2000 + b'"'


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def fill(db: Path, count: int) -> None:
    store = SqliteStore(str(db))
    store.open_now()
    store.add_now([job(payload=PAYLOAD) for _ in range(count)])
    store.close_now()


# -- S4


def meet_a_quota(path: str) -> None:
    """In a child of which every write to the log fails as one beyond a quota does."""
    store = SqliteStore(path)
    store.open_now()
    said = []
    for number in range(4):
        try:
            store.add_now([job(f"beyond-{number}")])
        except (StoreFull, EnqueueUncertain) as error:
            said.append(type(error).__name__)
    say(said)
    say(store.depth_now("default").live)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.needs("cut")
def test_s4_a_quota_that_is_reached_is_a_full_disk_and_nothing_worse(db: Path) -> None:
    fill(db, 10)
    quota = ("strace", "-f", "-qq", "-o", "/dev/null", "-P", f"{db}-wal", "-e", "trace=pwrite64")
    with Child(
        meet_a_quota, before=(*quota, "-e", "inject=pwrite64:error=EDQUOT"), path=str(db)
    ) as child:
        assert child.hear(40) == ["StoreFull"] * 4
        assert child.hear() == 10
    store = SqliteStore(str(db))
    store.open_now()
    assert store.add_now([job("after")])[0].created
    assert store.depth_now("default").live == 11
    store.close_now()


# -- S5


def lose_the_right_to_write(folder: str) -> None:
    """In a child with mounts of its own: ext4 finds an error, and stops all writing."""
    image, point = make_template(Path(folder)), Path(folder, "disk")
    point.mkdir()
    command("mount", "-o", "loop", image, point)
    store = SqliteStore(f"{point}/jobs.db")
    store.open_now()
    store.add_now([job(f"before-{n}") for n in range(10)])
    command("mount", "-o", "remount,abort", point)
    said = []
    for n in range(6):
        try:
            store.add_now([job(f"during-{n}")])
            said.append("stored")
        except StoreError as error:
            said.append(f"{type(error).__name__}: {error}")
    say(said)
    try:
        store.close_now()
        again = SqliteStore(f"{point}/jobs.db")
        again.open_now()
    except StoreError as error:
        say(f"{type(error).__name__}: {error}")
    command("umount", "--lazy", point)
    listen()


def look_at(folder: str) -> None:
    """In a child with mounts of its own: what is on the disk now."""
    image, point = Path(folder, "template.img"), Path(folder, "disk")
    command("mount", "-o", "loop", image, point)
    store = SqliteStore(f"{point}/jobs.db")
    store.open_now()
    say(sorted(claim.job.id for claim in store.claim_now(["default"], [None], 99, 60.0, "w")))
    store.close_now()
    command("umount", point)


OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")


@pytest.mark.needs("cut")
def test_s5_a_file_system_that_turns_read_only_stops_it_and_costs_nothing(tmp_path: Path) -> None:
    with Child(lose_the_right_to_write, before=OWN_MOUNTS, folder=str(tmp_path)) as child:
        said = child.hear(40)
        assert "stored" not in said
        assert {each.split(":")[0] for each in said} <= {
            "EnqueueUncertain",
            "StoreUnavailable",
            "StoreStopped",
        }
        assert "stopped writing; check the disk" in said[-1]
        assert child.hear().startswith("StoreUnavailable: ")
        child.end()
    with Child(look_at, before=OWN_MOUNTS, folder=str(tmp_path)) as child:
        there = child.hear(40)
        child.end()
    assert [id for id in there if id.startswith("before")] == [f"before-{n}" for n in range(10)]


# -- S6


def test_s6_doctor_says_what_is_damaged_and_never_fails_itself(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(db, 200)
    sound = db.read_bytes()
    monkeypatch.setattr(disk, "disk_findings", lambda *_, **__: [])
    monkeypatch.setattr(doctor, "disk_findings", lambda *_, **__: [])
    pages = len(sound) // 4096
    for page in range(1, pages, max(1, pages // 30)):
        hurt = bytearray(sound)
        hurt[page * 4096 : page * 4096 + 200] = b"\xa5" * 200
        db.write_bytes(hurt)
        report = asyncio.run(examine(f"sqlite:///{db}"))
        errors = {f.id for f in report.findings if f.severity is Severity.ERROR}
        assert errors & {"SQ0", "SQ11"}, f"page {page} of {pages}"
        assert report.exit_code in (1, 2, 3)


# -- S8


def read_for_long(path: str) -> None:
    connection = apsw.Connection(path)
    connection.execute("BEGIN")
    say(connection.execute("SELECT count(*) FROM jobs").get)
    listen()
    connection.close()


async def test_s8_a_reader_that_never_ends_is_named_while_the_log_grows(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_WAL_LIMIT", 1 << 20)
    store = SqliteStore(str(db))
    await store.open()
    await store.add([job("first")])
    with Child(read_for_long, path=str(db)) as child:
        assert child.hear() == 1
        await store.add([job(payload=PAYLOAD) for _ in range(1000)])
        report = await examine(f"sqlite:///{db}", quick=True)
        warned = {f.id: f.read for f in report.findings if f.severity is Severity.WARNING}
        assert "MiB" in warned["SQ8"]
        assert f"({child.pid})" in warned["SQ13"]
        child.end()
    await store.close()
    report = await examine(f"sqlite:///{db}", quick=True)
    assert {f.id for f in report.findings if f.severity is Severity.WARNING} == set()


# -- S12


async def test_s12_whoever_waits_for_an_accepted_job_hears_that_it_was_deleted(db: Path) -> None:
    app = Outlast(f"sqlite:///{db}")

    @app.task(name="keep")
    async def keep() -> None: ...

    async with app:
        handles = [await keep.enqueue() for _ in range(2)]
        waits = [asyncio.ensure_future(handle.result()) for handle in handles]
        await asyncio.sleep(0)
        gone = await ledger_of(app.store).purge("default", [Status.QUEUED])
        assert gone == 2
        for handle, wait in zip(handles, waits, strict=True):
            with pytest.raises(JobNotFound, match=handle.id):
                await asyncio.wait_for(wait, 60)
            with pytest.raises(JobNotFound, match=handle.id):
                await handle.status()


# -- S13


def test_s13_an_old_copy_runs_what_is_in_it_and_says_what_it_never_had(rig: Rig) -> None:
    db, copy = rig.folder / "case.db", rig.folder / "copy.db"
    ran = rig.enqueue(*[("instant", n) for n in range(5)])
    worker = rig.start("-c", "2", "--lease", "1")
    rig.until_ended(ran)
    (running,) = rig.enqueue(("until", str(rig.folder / "go")))
    rig.until_started(running)
    rig.ledger(lambda ledger: ledger.backup(copy))
    after = rig.enqueue(("instant", 9))
    rig.until_ended(after)
    (rig.folder / "go").touch()
    rig.until_ended([running])
    assert rig.stop(worker) == 0
    shutil.move(copy, db)
    # What ran at that moment runs again, since nobody is there any more who runs it.
    rig.start("-c", "2", "--lease", "1")
    rig.until_ended([running, *ran])
    assert rig.starts([*ran, running]) == [1, 1, 1, 1, 1, 2]

    async def ask(app: Outlast) -> None:
        with pytest.raises(JobNotFound):
            await app.handle(after[0]).result(timeout=60)

    rig.run(ask)


def test_s13_a_copy_is_not_mixed_with_the_log_of_the_file_it_replaces(
    db: Path, tmp_path: Path
) -> None:
    fill(db, 100)
    store = SqliteStore(str(db))
    store.open_now()
    asyncio.run(store.backup(tmp_path / "copy.db"))
    store.close_now()

    def work() -> None:
        store = SqliteStore(str(db))
        store.open_now()
        for _ in range(60):
            store.add_now([job(payload=PAYLOAD) for _ in range(100)])
        os.kill(os.getpid(), signal.SIGKILL)

    assert fork(work).wait(40) == -signal.SIGKILL
    shutil.copy(tmp_path / "copy.db", db)
    before = db.read_bytes(), Path(f"{db}-wal").read_bytes()
    with pytest.raises(StoreDamaged, match=f"{db}-wal is the log of another file"):
        SqliteStore(str(db)).open_now()
    assert (db.read_bytes(), Path(f"{db}-wal").read_bytes()) == before
    Path(f"{db}-wal").unlink()
    Path(f"{db}-shm").unlink()
    store.open_now()
    assert store.depth_now("default").live == 100
    (claim,) = store.claim_now(["default"], [None], 1, 60.0, "w")
    assert store.settle_now([done(claim)]) == []
    store.close_now()
