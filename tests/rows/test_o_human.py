"""O: people who copy half of a store, and people who edit its rows."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest
from tests.conformance.steps import job

from outlast.doctor import Severity, examine
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(db: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(str(db))
    store.open_now()
    yield store
    store.close_now()


def test_o3_a_copy_without_the_log_is_a_sound_store_of_an_earlier_moment(
    db: Path, store: SqliteStore, tmp_path: Path
) -> None:
    """And the command that copies the whole of it is complete."""
    store.add_now([job(f"old-{n}") for n in range(10)])
    store.close_now()
    store.open_now()
    store.add_now([job(f"new-{n}") for n in range(10)])
    assert Path(f"{db}-wal").stat().st_size > 0
    asyncio.run(store.backup(tmp_path / "whole.db"))
    half = tmp_path / "half" / "jobs.db"
    half.parent.mkdir()
    shutil.copy(db, half)
    found = {}
    for path in (half, tmp_path / "whole.db"):
        copy = SqliteStore(str(path), create=False)
        copy.open_now()
        found[path.name] = {c.job.id for c in copy.claim_now(["default"], [None], 99, 60.0, "w")}
        copy.close_now()
        report = asyncio.run(examine(f"sqlite:///{path}", deep=True))
        assert not [f for f in report.findings if f.severity is Severity.ERROR]
    assert found["jobs.db"] == {f"old-{n}" for n in range(10)}
    assert len(found["whole.db"]) == 20


REFUSED = (
    "UPDATE jobs SET state = 9",
    "UPDATE jobs SET state = 'done'",
    "UPDATE jobs SET priority = 'high'",
    "UPDATE jobs SET payload = NULL",
    "UPDATE jobs SET payload = 'text'",
    "UPDATE jobs SET id = NULL",
    "UPDATE jobs SET due = 'soon'",
    "UPDATE jobs SET id = 'job-1' WHERE id = 'job-2'",
    "INSERT INTO jobs (id, space, line, state) VALUES ('mine', 1, 1, 1)",
    "UPDATE lines SET ready = 'many'",
)


def test_o5_what_makes_no_sense_can_not_be_written_by_hand(db: Path, store: SqliteStore) -> None:
    store.add_now([job(f"job-{n}") for n in range(4)])
    shell = apsw.Connection(str(db))
    for text in REFUSED:
        with pytest.raises(apsw.ConstraintError):
            shell.execute(text)
    shell.close()
    assert len(store.claim_now(["default"], [None], 9, 60.0, "w")) == 4


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE jobs SET payload = x'22686922' WHERE id = 'job-1'",
        "UPDATE lines SET ready = ready + 5",
        "DELETE FROM jobs WHERE id = 'job-1'",
        "UPDATE jobs SET state = 3 WHERE id = 'job-1'",
        "UPDATE jobs SET line = 77 WHERE id = 'job-1'",
    ],
)
def test_o5_what_was_edited_by_hand_is_found_and_the_rest_runs(
    db: Path, store: SqliteStore, text: str
) -> None:
    store.add_now([job(f"job-{n}") for n in range(4)])
    shell = apsw.Connection(str(db))
    shell.execute(text)
    shell.close()
    report = asyncio.run(examine(f"sqlite:///{db}", deep=True))
    assert [f.id for f in report.findings if f.severity is Severity.ERROR] == ["SQ11"]
    ran = {claim.job.id for claim in store.claim_now(["default"], [None], 9, 60.0, "w")}
    assert ran >= {"job-0", "job-2", "job-3"}
