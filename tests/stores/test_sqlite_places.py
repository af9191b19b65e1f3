"""Where a store may lie: local disks, RAM disks, network file systems, containers' layers."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import job

from outlast.errors import ConfigurationError, DurabilityError, StoreFull, StoreUnavailable
from outlast.store import Durability
from outlast.stores import connect
from outlast.stores.sqlite import files
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.stores.conftest import Opener

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
24 22 0:22 / /dev/shm rw,nosuid,nodev shared:2 - tmpfs tmpfs rw
25 22 0:30 / /srv/share rw,relatime shared:3 - nfs4 files:/export rw,vers=4.2
26 22 8:1 / /srv/with\040a\040space\134and\011more rw - cifs //server/x rw
27 25 8:2 / /srv/share/local rw,relatime - xfs /dev/sdb1 rw
28 22 0:40 / /var/lib/box rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w
29 22 0:41 / /mnt/over rw - tmpfs tmpfs rw
30 22 8:3 / /mnt/over rw - ext4 /dev/sdc1 rw
31 22 0:42 / /home/me/remote rw - fuse.sshfs me@host: rw
32 22 0:43 / /home/me/union rw - fuse.mergerfs a:b rw
33 22 0:44 /sub /srv/bound rw master:4 propagate_from:2 - btrfs /dev/sdd rw
34 22 0:45 / /srv/sharepoint rw - ext4 /dev/sde rw
this line is no mount at all
"""


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/", "ext4"),
        ("/srv", "ext4"),
        ("/dev/shm", "tmpfs"),
        ("/dev/shm/deep/er", "tmpfs"),
        ("/dev/shmoo", "ext4"),
        ("/srv/share", "nfs4"),
        ("/srv/share/app/data", "nfs4"),
        ("/srv/sharepoint/x", "ext4"),
        ("/srv/share/local/app", "xfs"),
        ("/srv/with a space\\and\tmore/app", "cifs"),
        ("/var/lib/box", "overlay"),
        ("/mnt/over/x", "ext4"),
        ("/home/me/remote/x", "fuse.sshfs"),
        ("/srv/bound/x", "btrfs"),
    ],
)
def test_the_file_system_is_that_of_the_innermost_and_last_mount(place: str, kind: str) -> None:
    assert files.file_system(place, MOUNTS) == kind


def test_a_system_without_mountinfo_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOUNTS", "/proc/no/such/file")
    assert files.file_system("/") == ""
    assert files.path_durability("/x.db") == (Durability.POWER, "")


@pytest.fixture
def mounted_as(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.FixtureRequest | object]:
    """Makes the file system of this test's folder look like another one."""

    def pretend(kind: str) -> None:
        text = tmp_path / "mountinfo"
        text.write_text(f"22 1 254:0 / / rw,relatime shared:1 - {kind} thing rw\n")
        monkeypatch.setattr(files, "MOUNTS", str(text))

    return pretend  # type: ignore[return-value]


@pytest.mark.parametrize("kind", sorted(files.NETWORK))
@pytest.mark.parametrize("durability", [Durability.POWER, Durability.MEMORY])
async def test_network_file_systems_are_refused_whatever_was_asked_for(
    db: Path, mounted_as: Opener, kind: str, durability: Durability
) -> None:
    mounted_as(kind)  # type: ignore[arg-type]
    with pytest.raises(DurabilityError, match=rf"network file system \({kind}\).*local disk"):
        await SqliteStore(str(db), durability=durability).open()
    assert not db.exists()


@pytest.mark.parametrize("kind", ["tmpfs", "ramfs", "fuse", "fuse.mergerfs"])
async def test_what_may_not_survive_a_power_cut_is_refused_unless_less_is_asked_for(
    db: Path,
    opened: Opener,
    mounted_as: Opener,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    mounted_as(kind)  # type: ignore[arg-type]
    with pytest.raises(DurabilityError, match=rf"{kind}.*\?durability=process"):
        await SqliteStore(str(db)).open()
    assert not db.exists()
    with caplog.at_level(logging.WARNING):
        store = opened(db, durability=Durability.PROCESS)
    assert store.durability is Durability.PROCESS
    assert kind in caplog.text


def test_a_containers_own_layer_is_named(
    db: Path, opened: Opener, mounted_as: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    mounted_as("overlay")  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        store = opened(db)
    assert store.durability is Durability.POWER
    assert "mount a volume" in caplog.text
    assert str(db) in caplog.text


def test_a_plain_disk_gives_no_warning(
    db: Path, opened: Opener, mounted_as: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    mounted_as("ext4")  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        opened(db)
    assert caplog.text == ""


async def test_one_file_is_no_replica(db: Path) -> None:
    with pytest.raises(DurabilityError, match=r"one file on one disk.*durability=power"):
        await SqliteStore(str(db), durability=Durability.REPLICA).open()


@pytest.fixture
def ram() -> Iterator[Path]:
    """A folder on a real RAM disk."""
    if not os.path.isdir("/dev/shm") or files.file_system("/dev/shm") != "tmpfs":
        pytest.skip("there is no RAM disk at /dev/shm")
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="outlast-test-"))
    yield folder
    shutil.rmtree(folder)


async def test_a_real_ram_disk(ram: Path) -> None:
    with pytest.raises(DurabilityError, match="tmpfs, which is gone when the machine stops"):
        await connect(f"sqlite:///{ram}/jobs.db").open()
    assert list(ram.iterdir()) == []
    store = connect(f"sqlite:///{ram}/jobs.db?durability=process")
    await store.open()
    await store.add([job("kept")])
    await store.close()
    assert store.durability is Durability.PROCESS
    again = connect(f"sqlite:///{ram}/jobs.db?durability=process")
    await again.open()
    assert (await again.depth("default")).live == 1
    await again.close()


def test_one_file_under_two_names_is_refused(tmp_path: Path) -> None:
    """Each would have a log of its own: of what was stored by both, a third was gone."""
    path, other = tmp_path / "jobs.db", tmp_path / "other.db"
    store = SqliteStore(str(path))
    store.open_now()
    store.close_now()
    other.hardlink_to(path)
    for name in (path, other):
        with pytest.raises(ConfigurationError, match="has 2 names"):
            SqliteStore(str(name)).open_now()
    other.unlink()
    store.open_now()
    store.close_now()


def test_a_file_that_is_mounted_by_itself_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore(str(path))
    store.open_now()
    store.close_now()
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"{MOUNTS}35 22 254:0 /a.db {path} rw - ext4 /dev/vda rw\n")
    monkeypatch.setattr(files, "MOUNTS", str(mounts))
    with pytest.raises(ConfigurationError, match="Mount the folder"):
        SqliteStore(str(path)).open_now()


def test_what_is_missing_is_not_told_as_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.Ballast, "is_needed", lambda _: True)
    with pytest.raises(StoreUnavailable, match="there is no store at") as told:
        SqliteStore(str(tmp_path / "jobs.db"), create=False).open_now()
    assert not isinstance(told.value, StoreFull)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are none")
async def test_a_schema_is_read_from_a_file_alone(tmp_path: Path) -> None:
    """A pipe would be waited for, and a link would lead to a log with another name."""
    pipe, link = tmp_path / "pipe.db", tmp_path / "link.db"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "jobs.db")
    for name, what in ((pipe, "not a plain file"), (link, "symbolic link")):
        with pytest.raises(ConfigurationError, match=what):
            await SqliteStore(str(name)).versions()
