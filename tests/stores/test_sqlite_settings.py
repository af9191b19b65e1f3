"""What SQLite is told, that it is read back, and which versions of SQLite may serve at all."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.conformance.steps import job

from outlast.errors import DurabilityError, StoreUnavailable
from outlast.job import done
from outlast.store import Durability
from outlast.stores.sqlite import schema
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stores.conftest import Opener

SYNCHRONOUS = {Durability.MEMORY: 0, Durability.PROCESS: 1, Durability.POWER: 2}


@pytest.mark.parametrize("durability", list(SYNCHRONOUS))
def test_every_connection_has_the_settings_of_its_class(
    db: Path, opened: Opener, durability: Durability
) -> None:
    opened(db, durability=durability)
    connection = schema.connect(str(db), durability)
    found = {
        name: connection.pragma(name)
        for name in (
            "journal_mode synchronous mmap_size fullfsync checkpoint_fullfsync wal_autocheckpoint"
            " journal_size_limit"
        ).split()
    }
    connection.close()
    assert found == {
        "journal_mode": "wal",
        "synchronous": SYNCHRONOUS[durability],
        "mmap_size": 0,
        "fullfsync": 1,
        "checkpoint_fullfsync": 1,
        "wal_autocheckpoint": 0,
        "journal_size_limit": 1 << 24,
    }


def test_the_writer_syncs_what_is_promised_and_not_what_is_not(
    db: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level is read when the transaction is committed: by then it is what it will be."""
    levels: list[int] = []

    class Watched(apsw.Connection):
        def execute(self, statements: str, *args: Any, **more: Any) -> apsw.Cursor:
            if statements == "COMMIT":
                levels.append(self.pragma("synchronous"))
            return super().execute(statements, *args, **more)

    monkeypatch.setattr(apsw, "Connection", Watched)
    store = opened(db)
    levels.clear()
    store.add_now([job()])
    assert levels == [2]
    claims = store.claim_now(["default"], [None], 10, 60, "w")
    assert levels == [2, 1], "a claim that is lost in a power cut is queued again, which is right"
    store.settle_now([done(claim) for claim in claims])
    assert levels == [2, 1, 2]


class Stubborn(apsw.Connection):
    """Keeps one setting as it is, and says nothing."""

    refused = ""

    def pragma(self, name: str, value: Any = None, **more: Any) -> Any:
        if name == self.refused and value is not None:
            return super().pragma(name)
        return super().pragma(name) if value is None else super().pragma(name, value, **more)


@pytest.mark.parametrize(
    "setting",
    "journal_mode synchronous fullfsync checkpoint_fullfsync wal_autocheckpoint"
    " journal_size_limit".split(),
)
async def test_a_setting_that_does_not_stick_is_refused(
    db: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setattr(Stubborn, "refused", setting)
    monkeypatch.setattr(apsw, "Connection", Stubborn)
    # NORMAL, because FULL is what SQLite begins with.
    store = SqliteStore(str(db), durability=Durability.PROCESS)
    with pytest.raises(DurabilityError, match=f"told {setting}=.* answers"):
        await store.open()
    with pytest.raises(DurabilityError):
        await store.open()


def test_a_writer_that_can_not_go_back_to_full_sync_acknowledges_nothing(
    db: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apsw, "Connection", Stubborn)
    store = opened(db)
    store.add_now([job("kept")])
    assert store.claim_now(["default"], [None], 1, 60, "w")
    monkeypatch.setattr(Stubborn, "refused", "synchronous")
    with pytest.raises(StoreUnavailable, match="won't set synchronous=2"):
        store.add_now([job("lost")])
    monkeypatch.setattr(Stubborn, "refused", "")
    store.close_now()
    again = opened(db)
    assert again.depth_now("default").live == 1


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("3.7.0", False),
        ("3.40.1", False),
        ("3.44.5", False),
        ("3.44.6", True),
        ("3.44.10", True),
        ("3.45.0", False),
        ("3.46.1", False),
        ("3.50.6", False),
        ("3.50.7", True),
        ("3.50.7.1", True),
        ("3.51.0", False),
        ("3.51.2", False),
        ("3.51.3", True),
        ("3.52.0", True),
        ("3.53.0", True),
        ("3.54.1", True),
        ("4.0.0", True),
    ],
)
def test_versions_with_the_wal_reset_bug(version: str, safe: bool) -> None:
    flaw = schema.library_flaw(version)
    assert (flaw is None) is safe
    if flaw is not None:
        assert version in flaw
        assert "3.51.3" in flaw


async def test_a_flawed_library_is_refused_before_any_file_is_made(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(DurabilityError, match=r"3\.51\.2 can lose committed rows.*upgrade apsw"):
        await SqliteStore(str(db)).open()
    assert not db.exists()


@pytest.mark.parametrize(("version", "warned"), [("3.52.0", True), ("3.54.1", False)])
def test_the_version_that_was_withdrawn_is_named(
    db: Path,
    opened: Opener,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    version: str,
    warned: bool,
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    with caplog.at_level(logging.WARNING, "outlast"):
        opened(db)
    assert ("withdrawn" in caplog.text) is warned
