"""The model of a disk, and the proof that it has teeth: plain SQLite loses only what it should."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest
from tests.proof.disk import MODES, Disk, Mode, images, lay_out
from tests.proof.vfs import Op, Tape, io_error, watched

if TYPE_CHECKING:
    from collections.abc import Iterator

W = "/d/f"


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder in memory where there is one: images are many and small."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def disk(*ops: Op) -> Disk:
    made = Disk()
    for op in ops:
        made.apply(op)
    return made


def left(made: Disk, mode: Mode) -> dict[str, bytes]:
    return made.after_cut(mode, random.Random(1))


def test_what_was_not_synced_is_dropped_and_what_was_is_kept() -> None:
    made = disk(
        Op("create", W),
        Op("syncdir", "/d"),
        Op("write", W, 0, b"aa"),
        Op("sync", W),
        Op("write", W, 1, b"bb"),
    )
    assert left(made, "drop") == {W: b"aa"}
    assert left(made, "keep") == {W: b"abb"}


def test_a_name_lasts_only_from_the_sync_of_its_folder() -> None:
    made = disk(Op("create", W), Op("write", W, 0, b"a"), Op("sync", W))
    assert left(made, "drop") == {}
    made.apply(Op("syncdir", "/other"))
    assert left(made, "drop") == {}
    made.apply(Op("syncdir", "/d"))
    assert left(made, "drop") == {W: b"a"}
    made.apply(Op("delete", W))
    assert left(made, "drop") == {W: b"a"}
    assert left(made, "keep") == {}
    made.apply(Op("syncdir", "/d"))
    assert left(made, "drop") == {}


def test_files_are_synced_one_by_one() -> None:
    made = Disk()
    made.preload("/d/x", b"x")
    made.preload("/d/y", b"y")
    for op in (Op("write", "/d/x", 0, b"X"), Op("write", "/d/y", 0, b"Y"), Op("sync", "/d/y")):
        made.apply(op)
    assert left(made, "drop") == {"/d/x": b"x", "/d/y": b"Y"}


def test_after_a_failed_sync_only_what_is_written_again_gets_there() -> None:
    made = Disk()
    made.preload(W, b"0" * 12288)
    made.apply(Op("write", W, 10, b"a"))
    made.apply(Op("write", W, 8192, b"b"))
    made.apply(Op("badsync", W))
    made.apply(Op("write", W, 20, b"c"))
    made.apply(Op("sync", W))
    data = left(made, "keep")[W]
    assert (data[10:11], data[20:21], data[8192:8193]) == (b"a", b"c", b"0")


def test_truncation_is_as_volatile_as_a_write() -> None:
    made = Disk()
    made.preload(W, b"abcd")
    made.apply(Op("truncate", W, 1))
    made.apply(Op("write", W, 3, b"z"))
    assert left(made, "drop") == {W: b"abcd"}
    assert left(made, "keep") == {W: b"a\0\0z"}


def test_a_torn_write_loses_whole_sectors_only() -> None:
    made = Disk()
    made.preload(W, b"o" * 2048)
    made.apply(Op("write", W, 256, b"n" * 1536))
    seen = set()
    for seed in range(200):
        data = made.after_cut("torn", random.Random(seed))[W]
        pieces = data[:256], data[256:512], data[512:1024], data[1024:1536], data[1536:1792]
        assert all(len(set(piece)) == 1 for piece in pieces)
        assert pieces[0] == b"o" * 256
        seen.add(data)
    assert len(seen) == 16


def test_any_subset_of_the_loose_operations_may_be_there() -> None:
    made = Disk()
    made.preload(W, b"00")
    made.apply(Op("write", W, 0, b"1"))
    made.apply(Op("write", W, 1, b"1"))
    found = {made.after_cut("rand", random.Random(seed))[W] for seed in range(50)}
    assert found == {b"00", b"01", b"10", b"11"}


def record(folder: Path, synchronous: int, rows: int = 40) -> Tape:
    """Plain SQLite in WAL mode, one row a commit, with checkpoints on the way."""
    tape = Tape()
    with watched("proof-plain", tape) as vfs:
        connection = apsw.Connection(str(folder / "plain.db"), vfs=vfs)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", synchronous)
        connection.pragma("wal_autocheckpoint", 15)
        connection.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, data BLOB)")
        tape.write("calm")
        for row in range(rows):
            connection.execute("INSERT INTO item VALUES (?, zeroblob(900))", (row,))
            tape.write("ok", str(row))
        connection.close()
    return tape


def losses(
    tape: Tape, shm: Path, modes: tuple[Mode, ...] = MODES, step: int = 1
) -> tuple[int, int]:
    """(cuts after which an acknowledged row was missing, cuts in all); damage raises."""
    bad = total = 0
    for point, _mode, files in images(
        tape.ops, range(0, len(tape.ops) + 1, step), modes, random.Random(7)
    ):
        lay_out(files, shm)
        connection = apsw.Connection(str(shm / "plain.db"))
        assert connection.pragma("integrity_check") == "ok"
        due = [event for event in tape.events if event.at <= point]
        there = connection.execute("SELECT name FROM sqlite_schema").get
        rows = connection.execute("SELECT id FROM item").fetchall() if there else []
        connection.close()
        acknowledged = {int(event.id) for event in due if event.kind == "ok"}
        missing_table = bool(due) and not there
        bad += missing_table or not acknowledged <= {row[0] for row in rows}
        total += 1
    return bad, total


@pytest.mark.timeout(240)
def test_plain_sqlite_with_full_sync_loses_nothing(tmp_path: Path, shm: Path) -> None:
    tape = record(tmp_path, synchronous=2)
    assert len([op for op in tape.ops if op.kind == "sync"]) > 40
    assert losses(tape, shm)[0] == 0


def test_the_rig_sees_the_loss_of_normal_sync(tmp_path: Path, shm: Path) -> None:
    tape = record(tmp_path, synchronous=1)
    lost, total = losses(tape, shm, step=3)
    assert lost > total / 10
    kept, _ = losses(tape, shm, modes=("keep",), step=3)
    assert kept == 0


def test_syncs_of_the_program_itself_are_recorded(tmp_path: Path) -> None:
    tape = Tape()
    with watched("proof-own", tape):
        file = tmp_path / "a"
        with file.open("wb") as opened:
            os.fsync(opened.fileno())
            os.fdatasync(opened)
        folder = os.open(tmp_path, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    assert [(op.kind, op.name) for op in tape.ops] == [
        ("sync", str(file)),
        ("sync", str(file)),
        ("syncdir", str(tmp_path)),
    ]
    assert os.fsync.__module__ == "posix"


def test_a_file_made_by_the_program_lasts_once_it_synced_the_folder(tmp_path: Path) -> None:
    def made(sync: bool) -> Tape:
        tape, name = Tape(), tmp_path / f"{sync}.db"
        with watched("proof-found", tape) as vfs:
            name.touch()
            if sync:
                folder = os.open(tmp_path, os.O_RDONLY)
                os.fsync(folder)
                os.close(folder)
            apsw.Connection(str(name), vfs=vfs).close()
        return tape

    assert left(disk(*made(sync=True).ops), "drop") == {str(tmp_path / "True.db"): b""}
    assert left(disk(*made(sync=False).ops), "drop") == {}


def test_an_injected_error_looks_like_sqlites_own() -> None:
    error = io_error("sync")
    assert isinstance(error, apsw.IOError)
    assert vars(error)["extendedresult"] == apsw.SQLITE_IOERR_FSYNC
    assert isinstance(io_error("write", full=True), apsw.FullError)
    assert isinstance(io_error("create"), apsw.CantOpenError)
