"""Copies of a store that is in use: whole, verified, and never in the way of the work."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.conformance.steps import job
from tests.proof.patience import until
from tests.stores.children import NOBODY, Child, become, say
from tests.stores.test_sqlite_counts import findings

from outlast.errors import (
    ConfigurationError,
    OutlastError,
    StoreClosed,
    StoreDamaged,
    StoreFull,
)
from outlast.job import Failure, dead, done
from outlast.stores.sqlite import backup
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from tests.stores.conftest import Opener

pytestmark = pytest.mark.timeout(240)  # each child is a Python that has to start first


def adds(path: str) -> None:
    """In a child: adds and settles without end, and says each batch that was acknowledged."""
    store = SqliteStore(path)
    store.open_now()
    number = 0
    while True:
        names = [f"w-{number}-{n}" for n in range(10)]
        store.add_now([job(name) for name in names])
        claims = store.claim_now(["default"], [None], 3, 600, "w")
        store.settle_now([done(claim) for claim in claims])
        say(number)
        number += 1


def test_a_copy_made_while_another_process_writes(db: Path, tmp_path: Path, opened: Opener) -> None:
    """All that was acknowledged before it began is in it, and what is in it is in order."""
    store = opened(db)
    store.add_now([job(f"old-{n}", payload=b'"' + b"x" * 2000 + b'"') for n in range(1000)])
    with Child(adds, path=str(db)) as child:
        for number in range(3):
            last = max(child.hear() for _ in range(5))
            path = tmp_path / f"copy{number}.db"
            said = asyncio.run(store.backup(path))
            assert said["path"] == str(path)
            assert said["bytes"] == path.stat().st_size
            before = child.hear()
            until(lambda b=before: child.hear() > b, 60.0, "the writer goes on")  # type: ignore[misc]
            assert {each.name for each in tmp_path.glob("copy*")} == {
                f"copy{n}.db" for n in range(number + 1)
            }
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert findings(str(path)) == []
            copy = opened(path)
            found = asyncio.run(copy.find(limit=100_000))
            names = {each.id for each in found}
            assert names >= {f"w-{b}-{n}" for b in range(last + 1) for n in range(10)}
            assert len(names) == said["jobs"]
            assert len(copy.claim_now(["default"], [None], 100_000, 60, "w")) > 900
            copy.close_now()


async def test_a_copy_has_everything(db: Path, tmp_path: Path, opened: Opener) -> None:
    store = opened(db)
    other = opened(db, namespace="other")
    await store.add([job("a", task="t", key="k", digest=b"d"), job("b"), job("c", delay=60)])
    await other.add([job("a")])
    [a, b] = await store.claim(["default"], ["t", None], 2, 60, "w")
    await store.settle([done(a, b"1"), dead(b, Failure(kind="error"))])
    await store.pause("default")
    said = await store.backup(tmp_path / "copy.db")
    assert (said["jobs"], said["live"]) == (4, 2)
    copy, copied = opened(tmp_path / "copy.db"), opened(tmp_path / "copy.db", namespace="other")
    # The copy is made before it is noted that it was made.
    assert await copy.find() == await store.find()
    assert await copy.lines() == await store.lines()
    assert await copied.find() == await other.find()
    [again] = await copy.add([job("z", task="t", key="k", digest=b"d")])
    assert (again.id, again.created) == ("a", False)


async def test_a_copy_is_one_file_that_needs_no_log(
    db: Path, tmp_path: Path, opened: Opener
) -> None:
    store = opened(db)
    await store.add([job("a")])
    await store.backup(tmp_path / "copy.db")
    moved = tmp_path / "elsewhere" / "renamed.db"
    moved.parent.mkdir()
    shutil.copy(tmp_path / "copy.db", moved)
    connection = apsw.Connection(str(moved), flags=apsw.SQLITE_OPEN_READONLY)
    assert connection.pragma("journal_mode") == "delete"
    assert connection.execute("SELECT id FROM jobs").get == "a"
    connection.close()


async def test_a_damaged_copy_is_not_kept(
    db: Path, tmp_path: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SQLite finds may be several lines of several lines."""

    real: Any = apsw.Connection

    class Suspicious(real):  # type: ignore[misc]
        def execute(self, text: str, *args: Any, **more: Any) -> Any:
            if "integrity_check" in text:
                return [("page 3:\nbroken",), ("page 4: too",)]
            return real.execute(self, text, *args, **more)

    store = opened(db)
    await store.add([job()])
    before = {each.name for each in tmp_path.iterdir()}
    monkeypatch.setattr(apsw, "Connection", Suspicious)
    with pytest.raises(StoreDamaged, match=r"and was not kept: page 3: broken; page 4: too$"):
        await store.backup(tmp_path / "copy.db")
    assert {each.name for each in tmp_path.iterdir()} == before


async def test_a_target_that_appears_meanwhile_is_left_alone(
    db: Path, tmp_path: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(db)
    target = tmp_path / "copy.db"
    real = backup._copy

    def copy_slowly(connection: apsw.Connection, part: Path) -> tuple[int, int]:
        target.write_text("mine")
        return real(connection, part)

    monkeypatch.setattr(backup, "_copy", copy_slowly)
    for no_links in (False, True):
        if no_links:
            monkeypatch.setattr(os, "link", refuse)
        target.unlink(missing_ok=True)
        with pytest.raises(ConfigurationError, match="exists already; name a new file"):
            await store.backup(target)
        assert target.read_text() == "mine"


def refuse(*_: Any) -> None:
    raise PermissionError(1, "Operation not permitted")


async def test_where_there_are_no_hard_links(
    db: Path, tmp_path: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(db)
    await store.add([job("a")])
    monkeypatch.setattr(os, "link", refuse)
    await store.backup(tmp_path / "copy.db")
    assert opened(tmp_path / "copy.db").depth_now("default").live == 1
    assert not list(tmp_path.glob(".copy*.part*"))


async def test_what_a_killed_attempt_left_is_no_hindrance(
    db: Path, tmp_path: Path, opened: Opener
) -> None:
    store = opened(db)

    def part() -> Path:
        return tmp_path / f".copy.db.{os.getpid()}-{threading.get_ident()}.part"

    def leave_rubbish() -> None:
        part().write_bytes(b"rubbish")
        part().with_name(part().name + "-journal").write_bytes(b"rubbish")

    await asyncio.to_thread(leave_rubbish)
    await store.backup(tmp_path / "copy.db")
    assert findings(str(tmp_path / "copy.db")) == []


async def test_folders_that_are_missing_and_stores_that_are_closed(
    db: Path, tmp_path: Path, opened: Opener
) -> None:
    store = opened(db)
    with pytest.raises(ConfigurationError, match=r"the folder .*nowhere does not exist; make it"):
        await store.backup(tmp_path / "nowhere" / "copy.db")
    await store.close()
    with pytest.raises(StoreClosed):
        await store.backup(tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


async def test_a_full_disk_leaves_nothing_behind(
    db: Path, tmp_path: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(db)
    await store.add([job()])

    def copy_badly(connection: apsw.Connection, part: Path) -> tuple[int, int]:
        raise apsw.FullError("injected: no space left")

    monkeypatch.setattr(backup, "_copy", copy_badly)
    with pytest.raises(StoreFull, match=r"no space left for .*copy\.db; the copy was given up"):
        await store.backup(tmp_path / "copy.db")
    assert not list(tmp_path.glob("*copy*"))


def backs_up(path: str, target: str) -> None:
    store = SqliteStore(path)
    store.open_now()
    become(NOBODY)
    try:
        asyncio.run(store.backup(Path(target)))
    except OutlastError as error:
        say([type(error).__name__, str(error)])
    os._exit(0)


@pytest.mark.needs("cut")
def test_a_folder_in_which_nothing_can_be_made(db: Path, tmp_path: Path) -> None:
    """The rights are given up after opening, so that only the copy is refused."""
    with Child(backs_up, path=str(db), target=str(tmp_path / "copy.db")) as child:
        kind, message = child.hear()
        assert kind == "StoreUnavailable"
        assert "ermission denied" in message or "unable to open" in message
