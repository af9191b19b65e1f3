"""Files that are deleted, moved or replaced under a running process: it stops, and makes no new."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.steps import job
from tests.stores.children import Child, listen, say

from outlast.errors import EnqueueUncertain, StoreError, StoreStopped, StoreUnavailable
from outlast.job import done
from outlast.stores.sqlite import files, writer
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.stores.conftest import Opener

pytestmark = pytest.mark.timeout(240)  # each child is a Python that has to start first


def companion(db: Path) -> Path:
    return files.companion(str(db))


def delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def replace(path: Path) -> None:
    """A copy takes its place, as ``cp`` and ``mv`` of a backup or a restore would do."""
    fresh = path.with_name("fresh")
    if path.is_dir():
        shutil.copytree(path, fresh, ignore=lambda _, names: [n for n in names if "bell" in n])
        shutil.rmtree(path)
    else:
        shutil.copy(path, fresh)
    fresh.rename(path)


@pytest.fixture(autouse=True)
def _always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would believe for a few milliseconds what it has seen last."""
    monkeypatch.setattr(writer, "GLANCE", 0.0)


VICTIMS: dict[str, Callable[[Path], Path]] = {
    "database": lambda db: db,
    "log": lambda db: Path(f"{db}-wal"),
    "index of the log": lambda db: Path(f"{db}-shm"),
    "folder": companion,
}


async def waits(store: SqliteStore) -> None:
    """It may return at once when something has happened since the last look."""
    await store.wait(["default"], 30)
    await store.wait(["default"], 30)


@pytest.mark.parametrize("victim", list(VICTIMS))
@pytest.mark.parametrize("act", [delete, replace])
async def test_every_call_says_which_file_is_gone(
    db: Path, opened: Opener, victim: str, act: Callable[[Path], None]
) -> None:
    store = opened(db)
    await store.add([job("kept")])
    [claim] = await store.claim(["default"], [None], 1, 60, "w")
    path = VICTIMS[victim](db)
    act(path)
    there = {each for each in db.parent.rglob("*") if not each.name.endswith(".bell")}
    how = "deleted" if act is delete else "replaced"
    calls: dict[str, Any] = {
        "add": lambda: store.add([job("lost")]),
        "claim": lambda: store.claim(["default"], [None], 1, 60, "w"),
        "settle": lambda: store.settle([done(claim)]),
        "renew": lambda: store.renew([claim], 60),
        "recover": lambda: store.recover(10),
        "prune": lambda: store.prune(10),
        "get": lambda: store.get(["kept"]),
        "find": store.find,
        "depth": lambda: store.depth("default"),
        "lines": store.lines,
        "wait": lambda: waits(store),
        "finished": lambda: store.finished(["kept"], 30),
        "cancel": lambda: store.cancel(["kept"]),
    }
    said = {}
    for name, call in calls.items():
        async with asyncio.timeout(60):
            try:
                await call()
            except StoreUnavailable as error:
                said[name] = str(error).split(";")[0]
    assert said == dict.fromkeys(calls, f"{path} was {how} while it was in use")
    found = {each for each in db.parent.rglob("*") if not each.name.endswith(".bell")}
    assert found <= there, "something was made in its place"
    await store.close()
    assert {each for each in db.parent.rglob("*") if each.is_file()} <= there


async def test_a_log_deleted_before_the_first_commit_is_missed_as_well(
    db: Path, opened: Opener
) -> None:
    opened(db).close_now()
    store = opened(db)
    Path(f"{db}-wal").unlink()
    with pytest.raises(StoreUnavailable, match=f"{db}-wal was deleted"):
        await store.add([job()])


async def test_deleted_between_the_look_and_the_commit_is_uncertain(
    db: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was committed, but to a file that nobody may ever find again: both must be said."""
    store = opened(db)
    looks = 0
    real = files.Identity.check

    def check(self: files.Identity) -> None:
        nonlocal looks
        real(self)
        looks += 1
        if looks == 1:
            db.unlink()

    monkeypatch.setattr(files.Identity, "check", check)
    with pytest.raises(EnqueueUncertain, match=f"{db} was deleted.*adding them again is safe") as e:
        await store.add([job("a"), job("b")])
    assert e.value.ids == ("a", "b")
    with pytest.raises(StoreUnavailable, match=f"{db} was deleted"):
        await store.add([job("c")])


async def test_moved_away_and_put_back_nothing_is_lost(db: Path, opened: Opener) -> None:
    store = opened(db)
    await store.add([job("a")])
    moved = [(Path(f"{db}{end}"), Path(f"{db}{end}.away")) for end in ("", "-wal", "-shm")]
    for path, away in moved:
        path.rename(away)
    with pytest.raises(StoreUnavailable, match="was deleted"):
        await store.add([job("b")])
    for path, away in moved:
        away.rename(path)
    await store.add([job("b")])  # the very files it has held all the time
    await store.close()
    await store.open()
    await store.add([job("c")])
    assert [found and found.id for found in await store.get(["a", "b", "c"])] == ["a", "b", "c"]


async def test_put_back_after_a_commit_that_it_missed_it_goes_on(
    db: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that took the commit are there again: nothing speaks against using them."""
    monkeypatch.setattr(writer, "GLANCE", 60.0)  # nor is it believed what was seen before
    store = opened(db)
    await store.add([job("a")])
    away = db.with_name("away")
    db.rename(away)
    for error, id in ((EnqueueUncertain, "b"), (StoreStopped, "c")):
        with pytest.raises(error, match=f"{db} was deleted"):
            await store.add([job(id)])
    away.rename(db)
    await store.add([job("d")])
    found = await store.get(["a", "b", "c", "d"])
    assert [each and each.id for each in found] == ["a", "b", None, "d"]


async def test_what_could_not_be_looked_at_is_looked_at_again(db: Path, opened: Opener) -> None:
    store = opened(db)
    await store.add([job("a")])
    away = db.with_name("away")
    db.rename(away)
    db.symlink_to(db.name)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=f"can't look at {db}"):
            await store.add([job("b")])
    db.unlink()
    away.rename(db)
    await store.add([job("c")])
    assert [found and found.id for found in await store.get(["a", "b", "c"])] == ["a", None, "c"]


async def test_no_new_log_is_begun_beside_one_that_was_deleted(db: Path, opened: Opener) -> None:
    """What those who have it open store goes into it, and is saved when the last one closes."""
    first, second = opened(db), opened(db)
    await first.add([job("a")])
    Path(f"{db}-wal").unlink()
    with pytest.raises(StoreUnavailable, match=f"{db}-wal was deleted. Put it back"):
        opened(db)
    await first.close()
    with pytest.raises(StoreUnavailable, match=f"{db}-wal was deleted"):
        opened(db)
    assert not Path(f"{db}-wal").exists()
    await second.close()
    assert [found and found.id for found in await opened(db).get(["a"])] == ["a"]


async def test_after_a_crash_a_lost_log_is_given_up_on_purpose_only(
    db: Path, tmp_path: Path
) -> None:
    with Child(adds_until_told, path=str(db)) as child:
        assert child.hear() == "ready"
        for _ in range(5):
            child.hear()
        child.kill()
    Path(f"{db}-wal").unlink()
    store = SqliteStore(str(db))
    with pytest.raises(StoreUnavailable, match=f"move {db}-shm away as well"):
        await store.open()
    Path(f"{db}-shm").unlink()
    await store.open()
    await store.close()


def adds_until_told(path: str) -> None:
    """In a child: adds one by one, says each that was acknowledged, and how it ended."""
    store = SqliteStore(path)
    store.open_now()
    number = 0
    say("ready")
    while True:
        try:
            store.add_now([job(f"job-{os.getpid()}-{number}")])
        except StoreError as error:
            say(["stopped", type(error).__name__, str(error)])
            break
        say(["ok", f"job-{os.getpid()}-{number}"])
        number += 1
    listen()


@pytest.mark.parametrize("restored", [False, True])
def test_a_file_replaced_under_two_processes(db: Path, tmp_path: Path, restored: bool) -> None:
    """Whatever was acknowledged is in the old file or in the new one, which no one else made."""
    children = [Child(adds_until_told, path=str(db)) for _ in range(2)]
    acknowledged: list[str] = []
    try:
        for child in children:
            assert child.hear() == "ready"
        for _ in range(20):
            for child in children:
                acknowledged.append(child.hear()[1])
        os.link(db, tmp_path / "old.db")
        os.link(f"{db}-wal", tmp_path / "old.db-wal")
        db.unlink()
        if restored:
            shutil.copy(tmp_path / "old.db", tmp_path / "fresh")
            (tmp_path / "fresh").rename(db)
        for child in children:
            while (word := child.hear())[0] == "ok":
                acknowledged.append(word[1])
            assert word[1] in ("StoreStopped", "EnqueueUncertain")
            assert str(db) in word[2]
        assert db.exists() is restored
    finally:
        for child in children:
            child.kill()
    (tmp_path / "old").mkdir()
    for end in ("", "-wal"):
        (tmp_path / f"old.db{end}").rename(tmp_path / "old" / f"jobs.db{end}")
    old = SqliteStore(str(tmp_path / "old" / "jobs.db"))
    old.open_now()
    there = {claim.job.id for claim in old.claim_now(["default"], [None], 10**6, 60, "w")}
    old.close_now()
    assert set(acknowledged) <= there


@pytest.fixture
def stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked at without need, and a stamp is believed though it is a new one."""
    monkeypatch.setattr(writer, "GLANCE", 60.0)
    monkeypatch.setattr(files, "SETTLED", 0)
    monkeypatch.setattr(files, "TICK", 1 << 62)


def stamp_anew(folder: Path, before: int) -> None:
    """Change the folder until that shows: its stamps come from a clock that ticks."""
    while folder.stat().st_ctime_ns == before:
        (folder / "other").touch()
        (folder / "other").unlink()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[files.Identity]:
    seen: list[files.Identity] = []
    real = files.Identity.check

    def check(self: files.Identity) -> None:
        seen.append(self)
        real(self)

    monkeypatch.setattr(files.Identity, "check", check)
    return seen


@pytest.mark.skipif(not files.STAMPED, reason="stamps of folders are believed there alone")
@pytest.mark.parametrize("victim", list(VICTIMS))
@pytest.mark.parametrize("act", [delete, replace])
async def test_a_stamp_of_the_folder_stands_for_its_files_until_it_changes(
    db: Path,
    opened: Opener,
    monkeypatch: pytest.MonkeyPatch,
    stamps: None,
    victim: str,
    act: Callable[[Path], None],
) -> None:
    """Commits one after the other look at one thing instead of four, and miss nothing by it."""
    store = opened(db)
    await store.add([job("a")])
    looks = counted(monkeypatch)
    await store.add([job("b")])
    looks.clear()
    await store.add([job("c")])
    assert not looks
    before = db.parent.stat().st_ctime_ns
    act(VICTIMS[victim](db))
    stamp_anew(db.parent, before)
    with pytest.raises(EnqueueUncertain, match=r"was (deleted|replaced) while it was in use"):
        await store.add([job("d")])


@pytest.mark.parametrize("stamp", ["fresh", "coarse", "of another kind of system"])
def test_a_stamp_that_may_not_show_the_next_change_is_not_believed(
    db: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch, stamp: str
) -> None:
    opened(db).close_now()
    identity = files.Identity(str(db))
    identity.learn()
    looks = counted(monkeypatch)
    changed = db.parent.stat().st_ctime_ns
    if stamp == "coarse":
        monkeypatch.setattr(files, "TICK", 1)
    if stamp == "of another kind of system":
        monkeypatch.setattr(files, "STAMPED", False)
    later = files.SETTLED - 1 if stamp == "fresh" else 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: changed + later)
    for _ in range(3):
        identity.look()
    assert len(looks) == 3
