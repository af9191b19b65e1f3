"""The files of a store are for its user alone, whatever the umask."""

from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import job

from outlast.errors import ConfigurationError
from outlast.lifeline import Lifeline
from outlast.stores.sqlite import backup, files
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=lambda mask: f"umask{mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {
        path.name.split(".")[-1]: stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")
    }


@pytest.mark.usefixtures("umask")
async def test_everything_a_store_makes_is_private(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "jobs.db"))
    await store.open()
    await store.add([job()])
    await store.claim(["default"], [None], 1, 60, "w")  # from here on it listens
    assert store.lifelines is not None
    lifeline = Lifeline(store.lifelines, "w")
    lifeline.hold()
    await store.backup(tmp_path / "copy.backup")
    found = modes(tmp_path)
    lifeline.release()
    await store.close()
    folder = files.companion(store.path).name.split(".")[-1]
    assert found == {
        "db": 0o600,
        "db-wal": 0o600,
        "db-shm": 0o600,
        "backup": 0o600,
        folder: 0o700,
        "ballast": 0o600,
        "turn": 0o600,
        "bell": 0o600,
        "life": 0o600,
    }


@pytest.mark.usefixtures("umask")
async def test_a_copy_is_private_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(str(tmp_path / "jobs.db"))
    await store.open()
    await store.add([job()])
    seen: dict[str, int] = {}

    def look_then_sync(folder: str) -> None:
        seen.update(modes(tmp_path / "copies"))

    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(backup, "sync_folder", look_then_sync)
    real_link = os.link

    def look_then_link(source: str, target: str) -> None:
        seen.update(modes(tmp_path / "copies"))
        real_link(source, target)

    monkeypatch.setattr(os, "link", look_then_link)
    await store.backup(tmp_path / "copies" / "copy.db")
    await store.close()
    assert set(seen.values()) == {0o600}
    assert len(seen) >= 2, "the unfinished copy was not seen"


async def test_an_empty_file_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch(mode=0o666)
    path.chmod(0o666)
    store = SqliteStore(str(path))
    await store.open()
    assert set(modes(tmp_path).values()) == {0o600, 0o700}
    await store.close()


async def test_a_store_that_others_may_read_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody may want it so, or has copied it back without its mode."""
    path = tmp_path / "jobs.db"
    store = SqliteStore(str(path))
    await store.open()
    await store.close()
    with caplog.at_level(logging.WARNING):
        await store.open()
        await store.close()
        assert caplog.text == ""
        path.chmod(0o644)
        await store.open()
        await store.close()
    assert f"{path} can be read by other users (mode 644); chmod 600 it" in caplog.text


async def test_a_companion_folder_that_others_may_use_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    files.companion(str(path)).mkdir(mode=0o777)
    files.companion(str(path)).chmod(0o777)
    store = SqliteStore(str(path))
    await store.open()
    await store.close()
    assert stat.S_IMODE(files.companion(str(path)).stat().st_mode) == 0o700


async def test_a_copy_overwrites_nothing_and_follows_no_link(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "jobs.db"))
    await store.open()
    await store.add([job()])
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / "link").symlink_to(mine)
    (tmp_path / "dangling").symlink_to(tmp_path / "made")
    for name in ("mine", "link", "dangling", "jobs.db"):
        with pytest.raises(ConfigurationError, match="exists already"):
            await store.backup(tmp_path / name)
    assert mine.read_text() == "precious"
    assert not (tmp_path / "made").exists()
    await store.close()
