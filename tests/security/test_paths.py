"""Paths of stores: nothing is followed, opened or made that was not meant."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.steps import job
from tests.stores.children import NOBODY, Child, become, say

from outlast.errors import ConfigurationError, OutlastError, StoreError, StoreUnavailable
from outlast.stores import connect
from outlast.stores.sqlite import files, schema
from outlast.stores.sqlite.store import SqliteStore
from outlast.stores.urls import file_url, parse

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)  # each child is a Python that has to start first


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///file:jobs.db",
        "sqlite:///file:jobs.db?mode=memory",
        "sqlite:///file:///{folder}/jobs.db?vfs=unix-none",
        "sqlite:///{folder}/jobs.db?mode=memory",
        "sqlite:///{folder}/jobs.db?vfs=unix-none",
        "sqlite:///{folder}/jobs.db?immutable=1",
        "sqlite:///{folder}/jobs.db?nolock=1",
        "sqlite:///{folder}/jobs.db?cache=shared",
        "sqlite:///{folder}/jobs.db?durability=power&nolock=1",
        "sqlite:///{folder}/jobs.db?durability=power&durability=memory",
        "sqlite:///{folder}/jobs.db?durability=everything",
        "sqlite:///{folder}/jobs.db?durability",
        "sqlite:///{folder}/jobs.db?=",
        "sqlite:///{folder}/jobs.db#x",
        "sqlite:///{folder}/jo%00bs.db",
        "sqlite:///{folder}/jo\0bs.db",
        "sqlite:///{folder}/jo%0Abs.db",
        "sqlite:///{folder}/jo%1b[2Jbs.db",
        "sqlite:///{folder}/jo\u202ebs.db",
        "sqlite:///{folder}/jo%e2%80%aebs.db",
        "sqlite:///:memory:",
        "sqlite:///",
        "sqlite:////",
        "sqlite:///{folder}/",
        "sqlite://{folder}",
        "sqlite://localhost/{folder}/jobs.db",
        "sqlite:{folder}/jobs.db",
        "{folder}/jobs.db",
        "file:{folder}/jobs.db",
        "",
        "   ",
    ],
)
async def test_urls_that_ask_for_something_else_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = str(tmp_path).lstrip("/")
    with pytest.raises(ConfigurationError):
        await connect(url.format(folder=relative if "localhost" in url else tmp_path)).open()
    assert contents(tmp_path) == set()


async def test_relative_paths_are_meant_from_here_and_said_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for url, path in (
        ("sqlite:///x.db", tmp_path / "here" / "x.db"),
        ("sqlite:///../x.db", tmp_path / "x.db"),
        ("sqlite:///%2e%2e/here/./y.db", tmp_path / "here" / "y.db"),
        ("sqlite:///C:x.db", tmp_path / "here" / "C:x.db"),
    ):
        store = connect(url)
        assert store.url == f"sqlite:///{path}"
        monkeypatch.chdir(tmp_path)  # what it is was settled when it was named
        await store.open()
        await store.close()
        monkeypatch.chdir(tmp_path / "here")
        assert path.exists()


@pytest.mark.parametrize("name", ["a?b.db", "100%.db", "a%20b.db", "a#b.db", "ü ☃.db", "a@b:c.db"])
async def test_a_store_is_found_again_by_the_url_it_gives(tmp_path: Path, name: str) -> None:
    store = SqliteStore(str(tmp_path / name))
    await store.open()
    await store.add([job()])
    await store.close()
    again = connect(store.url, create=False)
    await again.open()
    assert (await again.depth("default")).live == 1
    await again.close()
    assert again.url == store.url


@given(st.text(st.characters(exclude_characters="\0/"), min_size=1).filter(str.isprintable))
def test_urls_of_files_give_the_path_back(name: str) -> None:
    path = f"/srv/{name}"
    if name != ":memory:":
        assert parse(file_url(path)).path == path


async def test_a_link_is_refused_and_its_target_named(tmp_path: Path) -> None:
    real = tmp_path / "real.db"
    store = SqliteStore(str(real))
    await store.open()
    await store.close()
    before = contents(tmp_path)
    link = tmp_path / "link.db"
    link.symlink_to(real)
    with pytest.raises(ConfigurationError, match=f"symbolic link; name the real file {real}"):
        await SqliteStore(str(link)).open()
    dangling = tmp_path / "dangling.db"
    dangling.symlink_to(tmp_path / "nowhere.db")
    with pytest.raises(ConfigurationError, match="symbolic link"):
        await SqliteStore(str(dangling)).open()
    assert contents(tmp_path) == before | {"link.db", "dangling.db"}


async def test_a_link_put_in_the_way_after_the_look_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim.db"
    victim.touch()
    link = tmp_path / "jobs.db"
    link.symlink_to(victim)
    monkeypatch.setattr(files, "look", lambda path, create: True)
    with pytest.raises(StoreUnavailable):
        await SqliteStore(str(link)).open()
    assert victim.stat().st_size == 0


async def test_links_to_the_folder_lead_to_one_store(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    stores = [SqliteStore(str(tmp_path / way / "jobs.db")) for way in ("real", "link")]
    for store in stores:
        await store.open()
    await stores[0].add([job()])
    assert len(await stores[1].claim(["default"], [None], 1, 60, "w")) == 1
    assert {store.path for store in stores} == {str(tmp_path / "real" / "jobs.db")}
    for store in stores:
        await store.close()


def make_folder(path: Path) -> None:
    path.mkdir()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


@pytest.mark.parametrize("make", [make_folder, make_pipe, make_socket])
async def test_only_a_plain_file_is_opened(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "thing")
    with pytest.raises(ConfigurationError, match="thing is not a plain file"):
        await SqliteStore(str(tmp_path / "thing")).open()


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero", "/dev/tty"])
async def test_devices_are_refused(device: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{device} is not a plain file"):
        await connect(f"sqlite:///{device}").open()


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o702])
async def test_a_folder_in_which_anyone_may_replace_files_is_refused(
    tmp_path: Path, mode: int
) -> None:
    """Both for a new store and for one that is there."""
    folder = tmp_path / "open"
    folder.mkdir()
    made = SqliteStore(str(folder / "old.db"))
    await made.open()
    await made.close()
    folder.chmod(mode)
    for name in ("old.db", "new.db"):
        with pytest.raises(ConfigurationError, match=f"mode {mode:o}.*chmod o-w {folder}"):
            await SqliteStore(str(folder / name)).open()
    assert not (folder / "new.db").exists()


@pytest.mark.parametrize("mode", [0o1777, 0o770, 0o755, 0o700])
async def test_folders_in_which_not_anyone_may_are_fine(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "fine"
    folder.mkdir()
    folder.chmod(mode)
    store = SqliteStore(str(folder / "jobs.db"))
    await store.open()
    await store.close()
    assert (folder / "jobs.db").stat().st_size > 0


async def test_a_companion_folder_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    files.companion(str(tmp_path / "a.db")).symlink_to(tmp_path / "elsewhere")
    files.companion(str(tmp_path / "b.db")).write_text("mine")
    for name in ("a.db", "b.db"):
        with pytest.raises(ConfigurationError, match=f"{name}-outlast is not a folder"):
            await SqliteStore(str(tmp_path / name)).open()
    assert contents(tmp_path / "elsewhere") == set()


def opens(path: str) -> None:
    """In a child without rights: what becomes of opening that file."""
    become(NOBODY)
    try:
        SqliteStore(path).open_now()
    except OutlastError as error:
        say([type(error).__name__, str(error)])
    else:
        say(["opened", ""])


@pytest.mark.needs("cut")
@pytest.mark.parametrize("file", [True, False])
def test_what_another_user_has_put_there_is_refused(shared: Path, file: bool) -> None:
    """In a sticky folder such as /tmp anyone may make a file and wait for its victim."""
    shared.chmod(0o1777)
    trap = shared / "jobs.db"
    if file:
        trap.touch()
        trap.chmod(0o666)
    else:
        trap = files.companion(str(trap))
        trap.mkdir()
        trap.chmod(0o777)
    os.chown(trap, 12345, 12345)
    with Child(opens, path=str(shared / "jobs.db")) as child:
        kind, message = child.hear()
        child.end()
    assert kind == "ConfigurationError"
    assert re.search(rf"{trap} belongs to another user \(uid 12345\)", message)


def uses(path: str, user: int, number: int) -> None:
    """In a child: one add, one claim, with the rights of that user."""
    if user:
        become(user)
    store = SqliteStore(path)
    store.open_now()
    store.add_now([job(f"job-{user}-{number}")])
    say(len(store.claim_now(["default"], [None], 10, 60, "w")))
    store.close_now()


@pytest.mark.needs("cut")
@pytest.mark.parametrize("first", [0, NOBODY])
def test_root_may_look_and_leaves_the_store_to_its_owner(shared: Path, first: int) -> None:
    """``sudo outlast status`` must not lock the service out of its own store."""
    path = str(shared / "jobs.db")
    owned = SqliteStore(path)
    owned.open_now()
    owned.close_now()
    os.chown(path, NOBODY, NOBODY)
    if first == 0:
        folder = files.companion(path)
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()
    else:
        for each in (files.companion(path), *files.companion(path).iterdir()):
            os.chown(each, NOBODY, NOBODY)
    for number, user in enumerate((0, NOBODY, 0, NOBODY)):
        with Child(uses, path=path, user=user, number=number) as child:
            assert child.hear() == 1
            child.end()


def test_the_library_is_told_not_to_follow_links(tmp_path: Path) -> None:
    """The last line of defence is SQLite's own open call."""
    real, link = tmp_path / "real.db", tmp_path / "link.db"
    real.touch()
    link.symlink_to(real)
    import apsw

    from outlast.store import Durability

    def attempt(path: Path, durability: Durability = Durability.POWER) -> None:
        schema.connect(str(path), durability).close()

    attempt(real)
    with pytest.raises(apsw.CantOpenError):
        attempt(link)


async def test_a_missing_file_is_not_made_unless_wanted(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"there is no store at .*typo.db.*--create"):
        await connect(f"sqlite:///{tmp_path}/typo.db", create=False).open()
    with pytest.raises(ConfigurationError, match=f"the folder {tmp_path}/nowhere does not exist"):
        await connect(f"sqlite:///{tmp_path}/nowhere/x.db").open()
    (tmp_path / "file").touch()
    with pytest.raises((ConfigurationError, StoreError), match="is not a folder"):
        await connect(f"sqlite:///{tmp_path}/file/x.db").open()
    assert contents(tmp_path) == {"file"}
