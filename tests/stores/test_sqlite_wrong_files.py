"""Files that are no store, no store any more, not yet one, or may not be written."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest
from tests.conformance.steps import job
from tests.stores.children import NOBODY, Child, become, say

from outlast.errors import OutlastError, SchemaMismatch, StoreDamaged, StoreError, StoreUnavailable
from outlast.stores.sqlite import files, schema
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.stores.conftest import Opener

pytestmark = pytest.mark.timeout(240)  # each child is a Python that has to start first


def everything(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def fill(db: Path, number: int) -> None:
    store = SqliteStore(str(db))
    store.open_now()
    for at in range(0, number, 1000):
        payload = b'"' + b"x" * 200 + b'"'
        store.add_now([job(f"job-{n}", payload=payload) for n in range(at, at + 1000)])
    store.close_now()


@pytest.mark.parametrize(
    "content",
    [
        b"hello\n",
        b"\0" * 4096,
        b"x" * 100_000,
        b"SQLite format 2\0" + b"\0" * 5000,
        b"SQLite format 3\0",
        b"SQLite format 3\0" + b"\xff" * 5000,
    ],
    ids=["text", "zeros", "letters", "sqlite 2", "sixteen bytes", "a header of ones"],
)
async def test_what_is_no_database_is_left_as_it_is(db: Path, content: bytes) -> None:
    db.write_bytes(content)
    with pytest.raises(StoreDamaged, match=f"{db} is damaged or not a database"):
        await SqliteStore(str(db)).open()
    assert everything(db.parent) == {"jobs.db": content}


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE users (id INTEGER PRIMARY KEY); INSERT INTO users VALUES (1)",
        "CREATE TABLE jobs (id TEXT)",
        "CREATE VIEW v AS SELECT 1",
        "PRAGMA application_id = 1196444487; PRAGMA user_version = 1",
        "PRAGMA journal_mode = wal; CREATE TABLE users (id INTEGER PRIMARY KEY)",
    ],
    ids=["tables", "a table of our name", "a view", "an application id", "in WAL mode"],
)
async def test_a_database_of_another_program_is_left_as_it_is(
    db: Path, script: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = apsw.Connection(str(db))
    theirs.execute(script).fetchall()
    theirs.close()
    db.chmod(0o644)
    before = everything(db.parent)
    with pytest.raises(StoreDamaged, match=f"{db} is a database of another program.*its own"):
        await SqliteStore(str(db)).open()
    after = everything(db.parent)
    assert after["jobs.db"] == before["jobs.db"]
    assert set(after) == {"jobs.db"}
    assert not files.companion(str(db)).exists()
    assert "chmod" not in caplog.text  # that may be somebody's /etc/passwd


async def test_a_newer_schema_is_refused_by_both_sides_of_an_upgrade(db: Path) -> None:
    """An outlast of last year meets the file of this year's."""
    fill(db, 1)
    newer = apsw.Connection(str(db))
    newer.pragma("user_version", len(schema.MIGRATIONS) + 1)
    newer.close()
    before = everything(db.parent)
    known = len(schema.MIGRATIONS)
    message = rf"{db} has schema {known + 1}, made by a newer outlast.*up to {known}"
    with pytest.raises(SchemaMismatch, match=message):
        await SqliteStore(str(db)).open()
    assert everything(db.parent) == before


@pytest.mark.parametrize("number", [-1, 0, 1])
async def test_a_schema_number_that_someone_changed_is_named(db: Path, number: int) -> None:
    fill(db, 1000)
    other = apsw.Connection(str(db))
    other.pragma("user_version", number)
    other.close()
    before = schema_of(db)
    with pytest.raises(SchemaMismatch, match=rf"schema {number} \(PRAGMA user_version\)"):
        await SqliteStore(str(db)).open()
    assert schema_of(db) == before
    other = apsw.Connection(str(db))
    other.pragma("user_version", len(schema.MIGRATIONS))
    other.close()
    store = SqliteStore(str(db))
    store.open_now()
    assert store.depth_now("default").queued == 1000
    store.close_now()


def schema_of(db: Path) -> list[object]:
    connection = apsw.Connection(str(db))
    try:
        return [
            connection.pragma("user_version"),
            *connection.execute("SELECT * FROM sqlite_schema"),
        ]
    finally:
        connection.close()


def test_an_empty_file_becomes_a_store_unless_it_may_not(db: Path, opened: Opener) -> None:
    db.touch()
    with pytest.raises(StoreUnavailable, match="there is no store at"):
        opened(db, create=False)
    assert db.stat().st_size == 0
    opened(db).add_now([job()])
    opened(db, create=False)


@pytest.mark.parametrize("size", [0, 1, 100, 512, 1024, 4095, 4096, 4097, 8192, 100_000, 400_000])
async def test_a_file_cut_short_is_called_damaged(db: Path, size: int) -> None:
    """Never a crash, never a silent empty store in place of a full one."""
    fill(db, 2000)
    whole = db.stat().st_size
    assert whole > 400_000
    os.truncate(db, size)
    store = SqliteStore(str(db), create=False)
    expected = "there is no store at" if size == 0 else "is damaged or not a database"
    with pytest.raises(StoreError, match=f"{db}.*{expected}|{expected}.*{db}"):
        await store.open()
    await store.close()
    assert db.stat().st_size == size


def test_a_garbage_log_hurts_nothing_that_was_copied(db: Path, opened: Opener) -> None:
    fill(db, 1000)
    for garbage in (b"x", b"\0" * 32, os.urandom(100_000), b"\x37\x7f\x06\x82" + os.urandom(9000)):
        Path(f"{db}-wal").write_bytes(garbage)
        store = opened(db)
        assert store.depth_now("default").live == 1000
        store.close_now()


def test_a_cut_off_log_loses_only_its_end(db: Path, opened: Opener, tmp_path: Path) -> None:
    """What a copy of the three files of a running store may look like."""
    store = opened(db)
    for n in range(50):
        store.add_now([job(f"job-{n}")])
    log = Path(f"{db}-wal").read_bytes()
    base = db.read_bytes()
    store.close_now()
    last = 0
    for cut in range(0, len(log) + 1, max(1, len(log) // 9)):
        copy = tmp_path / f"copy{cut}" / "jobs.db"
        copy.parent.mkdir()
        copy.write_bytes(base)
        Path(f"{copy}-wal").write_bytes(log[:cut])
        again = opened(copy)
        found = again.depth_now("default").live
        assert found >= last
        last = found
        again.close_now()


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that a user without rights can reach and owns."""
    folder = Path(tempfile.mkdtemp(prefix="outlast-test-"))
    fill(folder / "jobs.db", 1)
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    yield folder
    folder.chmod(0o700)
    shutil.rmtree(folder)


def opens(path: str) -> None:
    become(NOBODY)
    store = SqliteStore(path)
    try:
        store.open_now()
        store.add_now([job()])
    except OutlastError as error:
        say([type(error).__name__, str(error)])
    else:
        say(["stored", ""])
    store.close_now()


def outcome(path: Path) -> list[str]:
    with Child(opens, path=str(path)) as child:
        found: list[str] = child.hear()
        child.end()
    return found


def test_a_read_only_folder(common: Path) -> None:
    """The log needs to be made there. Root may write anywhere, so another user tries."""
    common.chmod(0o500)
    kind, message = outcome(common / "jobs.db")
    assert kind == "StoreUnavailable"
    assert str(common) in message
    kind, message = outcome(common / "new.db")
    assert kind == "StoreUnavailable"
    assert "can't make" in message
    assert "Permission denied" in message
    common.chmod(0o700)
    assert outcome(common / "jobs.db") == ["stored", ""]


def test_a_read_only_file(common: Path) -> None:
    (common / "jobs.db").chmod(0o400)
    kind, message = outcome(common / "jobs.db")
    assert kind == "StoreUnavailable"
    assert f"{common / 'jobs.db'} can't be read and written by this user" in message


def test_a_folder_that_can_not_be_entered(common: Path) -> None:
    common.chmod(0o000)
    kind, message = outcome(common / "jobs.db")
    assert kind == "StoreUnavailable"
    assert "Permission denied" in message
