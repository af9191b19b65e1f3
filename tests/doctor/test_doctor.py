"""Each check of the doctor, on a sound store and on one that lacks just that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import apsw
import pytest
from tests.proof.patience import until

from outlast.chance import SystemChance
from outlast.doctor import Report, Severity, disk, examine, look_over
from outlast.doctor.torture import Toll
from outlast.errors import ConfigurationError, DurabilityError, Unsupported
from outlast.job import Failure, Job, dead
from outlast.store import Durability, WorkerInfo
from outlast.stores import connect
from outlast.stores.sqlite import files, schema

if TYPE_CHECKING:
    from pathlib import Path

    from outlast.stores.sqlite import SqliteStore


@pytest.fixture
async def db(tmp_path: Path) -> Path:
    """A sound store with ten jobs, closed."""
    path = tmp_path / "it.db"
    store = connect(f"sqlite:///{path}")
    await store.open()
    chance = SystemChance()
    await store.add([Job(id=chance.uuid7(), task="t") for _ in range(10)])
    await store.close()
    return path


def found(report: Report, id: str, severity: Severity) -> str:
    """What was read by that check, which must have come to that verdict."""
    texts = [f.read for f in report.findings if f.id == id and f.severity is severity]
    assert texts, [f"{f.id} {f.severity} {f.read}" for f in report.findings]
    return " ".join(texts)


async def look(path: Path, query: str = "", **options: object) -> Report:
    return await examine(f"sqlite:///{path}{query}", **options)  # type: ignore[arg-type]


async def test_a_sound_store(db: Path) -> None:
    report = await look(db, deep=True)
    assert (report.accepted, report.completed) == (Durability.POWER, Durability.POWER)
    assert report.exit_code == 0
    ids = {finding.id for finding in report.findings}
    assert ids == {f"SQ{number}" for number in range(1, 15)}
    assert not [f for f in report.findings if f.severity is Severity.ERROR]


async def test_nothing_is_changed(db: Path) -> None:
    before = db.read_bytes()
    await look(db, deep=True)
    assert db.read_bytes() == before


@pytest.mark.parametrize(
    ("query", "read"), [("process", "synchronous=NORMAL"), ("memory", "synchronous=OFF")]
)
async def test_sq1_weaker_by_the_url(db: Path, query: str, read: str) -> None:
    report = await look(db, f"?durability={query}", required=Durability.POWER)
    assert read in found(report, "SQ1", Severity.WARNING)
    assert (report.accepted, report.exit_code) == (Durability.PROCESS, 1)
    # What the URL asks for is enough, if nobody requires more.
    assert (await look(db, f"?durability={query}")).exit_code == 0


async def test_sq3_a_worker_with_an_old_library(db: Path) -> None:
    store = connect(f"sqlite:///{db}")
    await store.open()
    info = WorkerInfo(id="w1", host="h", pid=1, library="SQLite 3.46.1 (apsw 3.46.1.0)")
    await store.beat(info)  # type: ignore[attr-defined]
    await store.close()
    report = await look(db)
    assert "3.46.1 in worker w1 on h" in found(report, "SQ3", Severity.ERROR)
    assert "2 versions" in found(report, "SQ3", Severity.NOTE)
    assert report.exit_code == 1


async def test_sq4_in_memory(monkeypatch: pytest.MonkeyPatch, db: Path, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / {tmp_path} rw - tmpfs none rw\n")
    monkeypatch.setattr(files, "MOUNTS", str(mounts))
    report = await look(db)
    assert "tmpfs" in found(report, "SQ4", Severity.ERROR)
    assert (report.accepted, report.exit_code) == (Durability.PROCESS, 1)
    # Whoever asks for no more gets what they ask for, and is told.
    report = await look(db, "?durability=process")
    assert "tmpfs" in found(report, "SQ4", Severity.NOTE)
    assert (report.accepted, report.exit_code) == (Durability.PROCESS, 0)


async def test_sq4_on_a_network(monkeypatch: pytest.MonkeyPatch, db: Path, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / {tmp_path} rw - nfs4 host:/x rw\n")
    monkeypatch.setattr(files, "MOUNTS", str(mounts))
    report = await look(db)
    assert "nfs4" in found(report, "SQ0", Severity.ERROR)
    assert (report.accepted, report.exit_code) == (Durability.MEMORY, 1)


async def test_sq4_without_barriers(
    monkeypatch: pytest.MonkeyPatch, db: Path, tmp_path: Path
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / {tmp_path} rw,noatime - ext4 /dev/x rw,nobarrier\n")
    monkeypatch.setattr(files, "MOUNTS", str(mounts))
    report = await look(db)
    assert "nobarrier" in found(report, "SQ4", Severity.WARNING)
    assert report.accepted is Durability.PROCESS


async def test_a_worker_does_not_begin_below_what_its_app_asks_for(
    monkeypatch: pytest.MonkeyPatch, db: Path, tmp_path: Path
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / {tmp_path} rw,noatime - ext4 /dev/x rw,nobarrier\n")
    monkeypatch.setattr(files, "MOUNTS", str(mounts))
    store = connect(f"sqlite:///{db}")
    await store.open()
    with pytest.raises(DurabilityError, match=r"durability process, and power.*nobarrier"):
        await look_over(store)
    await store.close()
    store = connect(f"sqlite:///{db}", durability=Durability.PROCESS)
    await store.open()
    assert any("nobarrier" in line for line in await look_over(store))
    await store.close()


async def test_a_worker_that_has_what_it_asks_for_begins(db: Path) -> None:
    store = connect(f"sqlite:///{db}")
    await store.open()
    assert [line for line in await look_over(store) if not line.startswith("SQ9")] == []
    await store.close()
    store = connect("memory://none")
    await store.open()
    assert await look_over(store) == []
    await store.close()


WORKER = """
import outlast
app = outlast.Outlast("sqlite:///{db}?durability=process")
@app.task
async def nothing(): pass
"""


@pytest.mark.timeout(90)
def test_a_worker_says_once_that_its_place_is_volatile(tmp_path: Path) -> None:
    if files.file_system("/dev/shm") != "tmpfs":
        pytest.skip("no tmpfs here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        (tmp_path / "shop.py").write_text(WORKER.format(db=f"{memory}/it.db"))
        words = [sys.executable, "-m", "outlast", "worker", "shop:app", "--create"]
        with (tmp_path / "log").open("wb") as log:
            worker = subprocess.Popen(words, cwd=tmp_path, stderr=log)
        until(lambda: "tasks: " in (tmp_path / "log").read_text(), 60, "it has started")
        worker.terminate()
        assert worker.wait(60) == 0
    assert (tmp_path / "log").read_text().count("gone when the machine stops") == 1


async def test_sq6_a_disk_too_fast(monkeypatch: pytest.MonkeyPatch, db: Path) -> None:
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    assert "fdatasync" in found(await look(db), "SQ6", Severity.WARNING)


async def test_sq7_no_shared_memory(monkeypatch: pytest.MonkeyPatch, db: Path) -> None:
    monkeypatch.setattr(disk, "_READER", "raise SystemExit('no such table')")
    report = await look(db)
    assert "no such table" in found(report, "SQ7", Severity.ERROR)
    assert report.accepted is Durability.MEMORY


async def test_sq9_no_ballast(monkeypatch: pytest.MonkeyPatch, db: Path) -> None:
    monkeypatch.setattr(files.Ballast, "keep", lambda _: False)
    (files.companion(str(db)) / "ballast").unlink()
    assert "ballast 0 MiB" in found(await look(db), "SQ9", Severity.WARNING)


async def test_sq10_open_to_others(db: Path) -> None:
    db.chmod(0o644)
    report = await look(db)
    assert "mode 644" in found(report, "SQ10", Severity.WARNING)
    (db.parent / "second").hardlink_to(files.companion(str(db)) / "ballast")
    assert "2 names" in str([each.read for each in (await look(db)).findings])


async def test_sq0_two_names(db: Path) -> None:
    (db.parent / "second").hardlink_to(db)
    assert "has 2 names" in found(await look(db), "SQ0", Severity.ERROR)


async def test_sq11_a_flipped_bit(db: Path) -> None:
    connection = apsw.Connection(str(db))
    connection.execute("UPDATE jobs SET payload = x'31' WHERE seq = 3")
    connection.close()
    assert "1" in found(await look(db, deep=True), "SQ11", Severity.ERROR)
    assert (await look(db, deep=True)).exit_code == 1
    # The quick form reads pages, not rows.
    assert (await look(db)).exit_code == 0


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM jobs").fetchall()
print("holding", flush=True)
sys.stdin.read()
"""


async def test_sq13_another_program(db: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(db)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holding\n"
        assert str(holder.pid) in found(await look(db), "SQ13", Severity.WARNING)
    finally:
        holder.communicate()
    found(await look(db), "SQ13", Severity.OK)


async def test_sq14_a_backup_is_remembered(db: Path, tmp_path: Path) -> None:
    assert "none" in found(await look(db), "SQ14", Severity.NOTE)
    store = connect(f"sqlite:///{db}")
    await store.open()
    await store.backup(tmp_path / "copy.db")  # type: ignore[attr-defined]
    await store.close()
    assert "+00:00" in found(await look(db), "SQ14", Severity.NOTE)


async def test_sq14_a_folder_that_is_copied(tmp_path: Path) -> None:
    folder = tmp_path / "Dropbox"
    folder.mkdir()
    store = connect(f"sqlite:///{folder / 'it.db'}")
    await store.open()
    await store.close()
    assert "dropbox" in found(await look(folder / "it.db"), "SQ14", Severity.WARNING)


async def test_what_waits_for_somebody(db: Path) -> None:
    store: SqliteStore = connect(f"sqlite:///{db}")  # type: ignore[assignment]
    await store.open()
    (claim,) = await store.claim(["default"], ["t"], 1, 60.0, "w")
    await store.settle([dead(claim, Failure(kind="error"))])
    await store.beat(WorkerInfo(id="w", host="h", pid=1, queues=("default",), tasks=("other",)))
    await store.close()
    report = await look(db)
    assert "1 dead" in found(report, "JOBS1", Severity.WARNING)
    assert "9 of t in default" in found(report, "JOBS2", Severity.WARNING)


async def test_unreachable(tmp_path: Path) -> None:
    report = await look(tmp_path / "nowhere.db")
    assert (report.accepted, report.exit_code) == (None, 3)
    assert not (tmp_path / "nowhere.db").exists()
    (tmp_path / "not.db").write_text("this is a text file and no database, as anybody can see")
    broken = await look(tmp_path / "not.db")
    assert (broken.accepted, broken.exit_code) == (Durability.MEMORY, 1)


async def test_what_can_not_be_meant() -> None:
    with pytest.raises(ConfigurationError):
        await examine("nonsense")
    with pytest.raises(Unsupported):
        await examine("memory://")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "outlast", "doctor", *words],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command(db: Path, tmp_path: Path) -> None:
    good = run(f"sqlite:///{db}", "--json")
    assert good.returncode == 0
    document = json.loads(good.stdout)
    assert (document["accepted"], document["required"]) == ("power", "power")
    weak = run(f"sqlite:///{db}?durability=process", "--require", "power")
    assert weak.returncode == 1
    assert "not a power cut" in weak.stdout
    assert "do: take ?durability=process" in weak.stdout
    assert run(f"sqlite:///{tmp_path / 'nowhere.db'}").returncode == 3


@pytest.mark.timeout(240)
def test_torture(db: Path) -> None:
    answer = run(f"sqlite:///{db}", "--torture", "8")
    assert answer.returncode == 0, answer.stderr
    assert "lost 0, invented 0, stuck 0" in answer.stdout
    connection = schema.connect(str(db), Durability.MEMORY)
    left = connection.execute("SELECT count(*) FROM jobs").get
    connection.close()
    assert left == 10, "the users' jobs stay, its own are gone"


@pytest.mark.parametrize(
    ("accepted", "interrupted", "lost", "code"),
    [(5, 1, 0, 0), (5, 1, 1, 1), (0, 3, 0, 2), (5, 0, 0, 2)],
    ids=["fine", "lost", "nothing accepted", "no run cut off"],
)
def test_a_torture_that_met_nothing_shows_nothing(
    accepted: int, interrupted: int, lost: int, code: int
) -> None:
    toll = Toll(
        seconds=1.0, kills=1, interrupted=interrupted, accepted=accepted, ended=0, lost=lost,
        invented=0, twice=0, unexplained=0, stuck=0, slowest=0.0,
    )  # fmt: skip
    assert toll.exit_code == code
    assert ("this shows nothing" in "\n".join(toll.lines())) == (code == 2)
