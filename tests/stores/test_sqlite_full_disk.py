"""A disk that fills up, a quota that is reached: new work is refused, accepted work goes on."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.steps import job
from tests.proof.patience import until
from tests.stores.children import Child, listen, say

from outlast.errors import EnqueueUncertain, StoreFull, StoreUnavailable
from outlast.job import Status, done
from outlast.lifeline import BALLAST, Lifeline, dead
from outlast.store import Durability
from outlast.stores.sqlite import files, writer
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(240)  # each child is a Python that has to start first


OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")
PAYLOAD = b'"' + b"x" * 10_000 + b'"'


def mount(point: str, options: str) -> None:
    """In a child with mounts of its own, which end with it."""
    Path(point).mkdir()
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", point]
    subprocess.run(words, check=True, env={**os.environ, "PATH": path})


def ram_store(point: str) -> SqliteStore:
    return SqliteStore(f"{point}/jobs.db", durability=Durability.PROCESS)


def add_until_refused(store: SqliteStore, batch: int = 20) -> tuple[list[str], str]:
    """The ids that were accepted, and what was said in the end."""
    accepted: list[str] = []
    while True:
        jobs = [job(payload=PAYLOAD) for _ in range(batch)]
        try:
            store.add_now(jobs)
        except StoreFull as error:
            return accepted, str(error)
        accepted += [each.id for each in jobs]


def fill_up(point: str) -> None:
    """Somebody else takes every byte that is left."""
    with Path(f"{point}/filler").open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2


def live_on_a_full_disk(point: str) -> None:
    mount(point, "size=88m")
    Path(f"{point}/spare").write_bytes(bytes(24 << 20))  # what is freed once it is too late
    store = ram_store(point)
    store.open_now()
    accepted, message = add_until_refused(store)
    say(["accepted", len(accepted), message, files.BALLAST])
    store.close_now()
    store.open_now()  # with a log that has no room of its own yet
    fill_up(point)
    assert os.statvfs(point).f_bavail == 0
    settled = []
    while claims := store.claim_now(["default"], [None], 25, 1e6, "w"):
        assert store.settle_now([done(claim, b'"result"') for claim in claims]) == []
        settled += [claim.job.id for claim in claims]
        try:
            store.add_now([job(payload=PAYLOAD)])
        except StoreFull:
            continue
        raise AssertionError("new work was taken while the disk is full")
    say(["settled", sorted(settled) == sorted(accepted)])
    Path(f"{point}/filler").unlink()
    Path(f"{point}/spare").unlink()
    freed = time.monotonic()
    until(lambda: adds(store), 10.0, "new work is taken again")
    say(["resumed", time.monotonic() - freed])
    assert (files.companion(store.path) / "ballast").stat().st_size == files.BALLAST
    depth = store.depth_now("default")
    say(["kept", depth.done, depth.live, len(accepted)])
    store.close_now()
    again = ram_store(point)
    again.open_now()
    say(["kept", again.depth_now("default").done, again.depth_now("default").live, len(accepted)])
    again.close_now()


def adds(store: SqliteStore) -> bool:
    try:
        store.add_now([job()])
    except StoreFull:
        return False
    return True


@pytest.mark.needs("cut")
def test_a_full_disk_refuses_new_work_and_lets_accepted_work_end(tmp_path: Path) -> None:
    point = str(tmp_path / "small")
    with Child(live_on_a_full_disk, before=OWN_MOUNTS, point=point) as child:
        _, accepted, message, ballast = child.hear()
        assert accepted > 500
        assert ballast < 64 << 20
        assert "nearly full" in message
        assert "Nothing was stored" in message
        assert point in message
        assert child.hear() == ["settled", True]
        assert child.hear()[0] == "resumed"
        assert child.hear() == ["kept", accepted, 1, accepted]
        assert child.hear() == ["kept", accepted, 1, accepted]
        child.end()


def fill_without_a_look(point: str) -> None:
    """As when the disk fills up between the look at it and the write."""
    mount(point, "size=40m")
    store = ram_store(point)
    store.open_now()
    accepted, _ = add_until_refused(store)
    fill_up(point)
    look = files.Ballast.room
    files.Ballast.room = lambda self, pending: True  # type: ignore[method-assign]
    try:
        store.add_now([job(payload=PAYLOAD) for _ in range(6000)])
    except StoreFull as error:
        say(str(error))
    files.Ballast.room = look  # type: ignore[method-assign]
    claims = store.claim_now(["default"], [None], 50, 1e6, "w")
    lost = store.settle_now([done(claim) for claim in claims])
    say([len(claims), len(lost)])
    depth = store.depth_now("default")
    say([depth.live + depth.done, len(accepted)])
    store.close_now()
    again = ram_store(point)
    again.open_now()
    depth = again.depth_now("default")
    say([depth.live, depth.done, len(accepted)])
    again.close_now()


@pytest.mark.needs("cut")
def test_a_write_that_finds_no_space_is_undone_whole(tmp_path: Path) -> None:
    with Child(fill_without_a_look, before=OWN_MOUNTS, point=str(tmp_path / "small")) as child:
        assert "no space left" in child.hear()
        assert child.hear() == [50, 0]
        there, accepted = child.hear()
        assert there == accepted
        assert child.hear() == [accepted - 50, 50, accepted]
        child.end()


def open_without_inodes(point: str) -> None:
    mount(point, "size=64m,nr_inodes=2")
    try:
        ram_store(point).open_now()
    except StoreUnavailable as error:
        say([type(error).__name__, str(error)])


@pytest.mark.needs("cut")
def test_a_disk_without_room_for_a_file(tmp_path: Path) -> None:
    with Child(open_without_inodes, before=OWN_MOUNTS, point=str(tmp_path / "small")) as child:
        kind, message = child.hear()
        assert kind == "StoreFull"
        assert "no space left to make" in message
        child.end()


def live_under_a_limit(path: str, limit: int) -> None:
    """No file of this process may grow beyond the limit, until it is lifted."""
    store = SqliteStore(path, durability=Durability.PROCESS)
    store.open_now()
    store.add_now([job(f"before-{n}") for n in range(100)])
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    accepted, message = add_until_refused(store)
    say([len(accepted), message])
    errors = set()
    for _ in range(5):
        try:
            store.add_now([job(payload=PAYLOAD) for _ in range(20)])
        except StoreFull as error:
            errors.add(type(error).__name__)
    say(sorted(errors))
    say(store.depth_now("default").live)
    listen()
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    store.add_now([job("after")])
    claims = store.claim_now(["default"], [None], 1000, 1e6, "w")
    store.settle_now([done(claim) for claim in claims])
    say(store.depth_now("default").live)
    store.close_now()


@pytest.mark.parametrize("limit", [1 << 20, 11 << 20])
def test_a_limit_on_the_size_of_files(db: Path, limit: int) -> None:
    with Child(live_under_a_limit, path=str(db), limit=limit) as child:
        accepted, message = child.hear()
        assert "no space left" in message or "nearly full" in message
        assert child.hear() == ["StoreFull"], "it stays the same error, however often"
        assert child.hear() == 100 + accepted
        child.tell()
        assert child.hear() == max(0, 101 + accepted - 1000)
        child.end()
    store = SqliteStore(str(db), durability=Durability.PROCESS)
    store.open_now()
    depth = store.depth_now("default")
    store.close_now()
    assert depth.live + depth.done == 101 + accepted


def test_a_ballast_that_was_taken_away_is_made_again(db: Path) -> None:
    store = SqliteStore(str(db))
    store.open_now()
    ballast = files.companion(store.path) / "ballast"
    assert ballast.stat().st_blocks * 512 >= files.BALLAST, "it takes real space"
    ballast.unlink()
    store.add_now([job()])
    assert ballast.stat().st_size == files.BALLAST
    store.close_now()


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Makes the disk look full, or not, without filling one."""
    monkeypatch.setattr(writer, "GLANCE", 0.0)
    real = os.statvfs

    def pretend(full: bool) -> None:
        def look(path: Any) -> Any:
            found = real(path)
            if not full:
                return found
            return os.statvfs_result((*found[:4], 0, *found[5:]))

        monkeypatch.setattr(os, "statvfs", look)

    return pretend


async def test_only_what_is_new_is_refused(db: Path, no_room: Callable[[bool], None]) -> None:
    store = SqliteStore(str(db))
    await store.open()
    await store.add([job("a"), job("b"), job("c")])
    [claim] = await store.claim(["default"], [None], 1, 60, "w")
    no_room(True)
    with pytest.raises(StoreFull):
        await store.add([job("d")])
    assert await store.renew([claim], 60) == []
    assert await store.cancel(["b"]) == ["cancelled"]
    assert await store.revive(["b"]) == [True]
    assert await store.settle([done(claim)]) == []
    assert await store.purge("default", [Status.QUEUED]) == 2
    no_room(False)
    await store.add([job("d")])
    await store.close()
    assert not issubclass(StoreFull, EnqueueUncertain)


async def test_what_the_log_wrote_over_again_and_again_is_not_counted_as_growth(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(str(db))
    await store.open()
    await store.add([job("a"), job("b")])
    [claim] = await store.claim(["default"], [None], 1, 60, "w")
    while log_size(db) < 4 << 20:
        assert await store.renew([claim], 60) == []
    real = os.statvfs

    def look(path: Any) -> Any:
        found = real(path)
        free = (files.BALLAST + (1 << 20)) // found.f_frsize  # less than the log holds
        return os.statvfs_result((*found[:4], free, *found[5:]))

    monkeypatch.setattr(writer, "GLANCE", 0.0)
    monkeypatch.setattr(os, "statvfs", look)
    await store.add([job("c")])
    assert store.depth_now("default").ready == 2
    await store.close()


def log_size(db: Path) -> int:
    return Path(f"{db}-wal").stat().st_size


def open_without_a_byte(point: str) -> None:
    mount(point, "size=40m")
    store = ram_store(point)
    store.open_now()
    store.add_now([job(f"j-{number}") for number in range(100)])
    store.close_now()
    fill_up(point)
    store = ram_store(point)
    store.open_now()
    claims = store.claim_now(["default"], [None], 100, 60.0, "w")
    lost = store.settle_now([done(claim) for claim in claims])
    say([len(claims), len(lost), store.depth_now("default").queued, adds(store)])
    store.close_now()


@pytest.mark.needs("cut")
def test_a_disk_without_a_byte_free_can_still_be_opened(tmp_path: Path) -> None:
    """SQLite wants room for its shared memory even to look: the ballast gives it."""
    with Child(open_without_a_byte, before=OWN_MOUNTS, point=str(tmp_path / "small")) as child:
        assert child.hear() == [100, 0, 0, False]
        child.end()


def hold_a_life_sign_without_a_byte(point: str) -> None:
    mount(point, "size=40m")
    store = ram_store(point)
    store.open_now()
    folder = files.companion(store.path)
    fill_up(point)
    line = Lifeline(folder, "with-the-ballast", 5000)
    line.hold()
    say((folder / BALLAST).exists())
    fill_up(point)
    # Every mark there is: in a hole of the file, the first of them would be our end.
    for number in range(5000):
        line.mark_started(f"{number:0128}", False)
    say(os.statvfs(point).f_bavail)
    other = Lifeline(folder, "without-a-ballast", 5000)
    try:
        other.hold()
    except StoreFull as error:
        say([str(error), other.path, os.path.exists(other.path)])
    Path(f"{point}/filler").unlink()
    other.hold()
    say(len(dead(folder)))
    store.close_now()


@pytest.mark.needs("cut")
def test_a_worker_has_a_life_sign_on_a_disk_without_a_byte_free(tmp_path: Path) -> None:
    point = str(tmp_path / "small")
    with Child(hold_a_life_sign_without_a_byte, before=OWN_MOUNTS, point=point) as child:
        assert child.hear() is False, "it is made of what the ballast gave up"
        assert child.hear() == 0
        message, path, left = child.hear()
        assert message.startswith("the disk has no room left for a worker's life sign in")
        assert message.endswith("free a few MiB")
        assert os.path.dirname(path) in message
        assert left is False
        assert child.hear() == 0
        child.end()


PROGRAM = """
from outlast import Outlast
app = Outlast("sqlite:///jobs.db?durability=process")
@app.task(name="quick")
async def quick() -> None: ...
"""


def work_once_there_is_room(point: str) -> None:
    mount(point, "size=40m")
    Path(f"{point}/program.py").write_text(PROGRAM)
    store = ram_store(point)
    store.open_now()
    store.add_now([job("waiting", task="quick", payload=b"{}")])
    (files.companion(store.path) / BALLAST).unlink()
    fill_up(point)
    words = [sys.executable, "-m", "outlast", "worker", "program:app"]
    with subprocess.Popen(words, cwd=point, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        said = ""
        while "free a few MiB" not in said:
            line = worker.stderr.readline()
            assert line, f"it ended: {said}"
            said += line
        Path(f"{point}/filler").unlink()
        until(lambda: store.depth_now("default").done, 100, "the job is done")
        worker.send_signal(signal.SIGTERM)
        say(said + worker.stderr.read())
        say(worker.wait())
    store.close_now()


@pytest.mark.needs("cut")
@pytest.mark.timeout(200)
def test_a_worker_on_a_full_disk_says_what_it_lacks_and_begins_once_it_is_there(
    tmp_path: Path,
) -> None:
    point = str(tmp_path / "small")
    with Child(work_once_there_is_room, before=OWN_MOUNTS, point=point) as child:
        said = child.hear(150)
        assert "ERROR the disk has no room left for a worker's life sign in" in said
        assert "Traceback" not in said
        assert child.hear() == 0
        child.end()
