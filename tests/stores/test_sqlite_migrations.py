"""Schema changes: forward only, safe to kill, and made once however many processes start."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.conformance.steps import job
from tests.proof.patience import linger
from tests.proof.processes import fork
from tests.stores.children import Child, listen, say

from outlast.errors import OutlastError, SchemaMismatch
from outlast.job import Failure, dead, done
from outlast.store import Durability
from outlast.stores.sqlite import schema
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from tests.stores.conftest import Opener

pytestmark = pytest.mark.timeout(240)  # each child is a Python that has to start first


COUNT = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
EXTRA = (
    "ALTER TABLE jobs ADD COLUMN note TEXT; CREATE INDEX jobs_note ON jobs (created_at, payload);"
    f"CREATE TABLE numbers AS {COUNT} SELECT i, hex(randomblob(20)) AS text FROM n;",
    "UPDATE jobs SET note = id; CREATE TABLE second (i INTEGER) STRICT;"
    f"INSERT INTO second {COUNT} SELECT i FROM n; DROP TABLE numbers;",
)
NEW = len(schema.MIGRATIONS) + len(EXTRA)


def fill(db: Path) -> None:
    """Jobs in every state."""
    store = SqliteStore(str(db))
    store.open_now()
    store.add_now([job(f"job-{n:04}", task="t", key=f"k{n}", digest=b"d") for n in range(400)])
    store.add_now([job(f"late-{n:04}", task="t", delay=1e6) for n in range(50)])
    claims = store.claim_now(["default"], ["t"], 300, 1e6, "w")
    store.settle_now([done(claim, b"1") for claim in claims[:100]])
    store.settle_now([dead(claim, Failure(kind="error")) for claim in claims[100:200]])
    store.close_now()


def looks(db: Path) -> tuple[int, dict[str, bool], list[Any]]:
    """The version, what each step has made, and all jobs."""
    connection = apsw.Connection(str(db), flags=apsw.SQLITE_OPEN_READWRITE)
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    columns = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info('jobs')")}
    made = {
        "first": {"jobs_note"} <= names and "note" in columns,
        "numbers": "numbers" in names,
        "second": "second" in names,
    }
    jobs = connection.execute("SELECT id, state, payload, crc FROM jobs ORDER BY seq").fetchall()
    found = connection.pragma("user_version"), made, jobs
    assert connection.pragma("integrity_check") == "ok"
    connection.close()
    return found


def expected(steps: int) -> dict[str, bool]:
    return {"first": steps >= 1, "numbers": steps == 1, "second": steps == 2}


def migrate(path: str) -> None:
    schema.MIGRATIONS = (*schema.MIGRATIONS[: NEW - len(EXTRA)], *EXTRA)
    store = SqliteStore(path)
    store.open_now()
    store.close_now()


def be_killed(folder: str, rounds: int, seed: int) -> None:
    """In a child that never touches a store itself: copy, migrate in a fork, kill it, look."""
    base, dice = Path(folder) / "base", random.Random(seed)
    took = 0.05
    for number in range(rounds):
        work = Path(folder) / f"round{number}"
        shutil.copytree(base, work)
        ready, begun = os.pipe()

        def run(path: str = str(work / "jobs.db"), begun: int = begun) -> None:
            os.write(begun, b"x")
            migrate(path)

        began = time.monotonic()
        child = fork(run)
        os.read(ready, 1)
        if number == 0:
            child.wait(60)
            took = time.monotonic() - began
        else:
            linger(dice.uniform(0, took))
            child.kill()
        os.close(ready)
        os.close(begun)
        say([str(work / "jobs.db"), took])


def test_a_migration_that_is_killed_leaves_the_old_schema_or_the_new_one(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    fill(base / "jobs.db")
    version, made, jobs = looks(base / "jobs.db")
    assert made == expected(0)
    rounds = 20
    seen = []
    with Child(be_killed, folder=str(tmp_path), rounds=rounds, seed=1) as child:
        for _ in range(rounds):
            path = Path(child.hear()[0])
            reached, made, kept = looks(path)
            seen.append(reached - version)
            assert made == expected(reached - version)
            assert kept == jobs
            migrated = path.parent / "again.db"
            for suffix in ("", "-wal"):
                if Path(f"{path}{suffix}").exists():
                    shutil.copy(f"{path}{suffix}", f"{migrated}{suffix}")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, *EXTRA))
                store = SqliteStore(str(migrated))
                store.open_now()
                assert store.depth_now("default").live == 250
                store.close_now()
            assert looks(migrated) == (NEW, expected(len(EXTRA)), jobs)
            shutil.rmtree(path.parent)
        child.end()
    assert seen[0] == len(EXTRA), "the first one was not killed"
    assert set(seen[1:]) != {len(EXTRA)}, "no kill came in time"


def opens_when_told(path: str, number: int) -> None:
    schema.MIGRATIONS = (*schema.MIGRATIONS, *EXTRA)
    store = SqliteStore(path)
    say("ready")
    listen()
    store.open_now()
    store.add_now([job(f"new-{number}", task="t")])
    say("stored")
    store.close_now()


@pytest.mark.parametrize("empty", [True, False])
def test_processes_that_start_at_once_migrate_once(db: Path, opened: Opener, empty: bool) -> None:
    if not empty:
        fill(db)
    children = [Child(opens_when_told, path=str(db), number=n) for n in range(3)]
    try:
        for child in children:
            child.hear()
        for child in children:
            child.tell()
        for child in children:
            assert child.hear() == "stored"
        for child in children:
            child.end()
    finally:
        for child in children:
            child.kill()
    version, made, jobs = looks(db)
    assert (version, made) == (NEW, expected(len(EXTRA)))
    assert len(jobs) == 3 + (0 if empty else 450)
    with pytest.raises(SchemaMismatch, match="made by a newer outlast"):
        opened(db)


def test_a_migration_that_fails_changes_nothing(
    db: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(db)
    before = looks(db)
    broken = "CREATE TABLE half (i INTEGER) STRICT; DELETE FROM jobs; SELECT no_such_function()"
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, broken))
        with pytest.raises(OutlastError):
            opened(db)
    assert looks(db) == before
    assert opened(db).depth_now("default").live == 250


def test_the_store_has_an_identity_of_its_own_that_migrations_keep(
    db: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def identity() -> str:
        connection = schema.connect(str(db), Durability.POWER)
        found: str = connection.execute("SELECT value FROM meta WHERE name = 'store_id'").get
        connection.close()
        return found

    opened(db).close_now()
    first = identity()
    assert len(first) == 32
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, *EXTRA))
    opened(db)
    assert identity() == first


def test_every_step_is_known_by_the_next_release(db: Path, opened: Opener) -> None:
    """The list only grows: what is in it has been applied to people's files."""
    opened(db)
    connection = apsw.Connection(str(db))
    assert connection.pragma("user_version") == len(schema.MIGRATIONS)
    assert connection.pragma("application_id") == schema.APPLICATION_ID
    connection.close()
