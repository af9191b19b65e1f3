"""W2: a worker frozen beyond its lease, and awake again: its late verdict must not count."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import apsw
import pytest
from tests.proof import journal as journals
from tests.proof import tolls
from tests.proof.actors import dumped_in_child
from tests.proof.checker import check
from tests.proof.fleet import work
from tests.proof.journal import Journal
from tests.proof.patience import until
from tests.proof.processes import Child, fork, in_child
from tests.proof.recovery import enqueue_slow
from tests.proof.stores import sqlite_store

if TYPE_CHECKING:
    from pathlib import Path

    from outlast.job import Job

LEASE = 1.0


@pytest.fixture
def witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "witness"
    folder.mkdir()
    monkeypatch.setenv("PROOF_WITNESS", str(folder))
    monkeypatch.setenv("OUTLAST_URL", f"sqlite:///{tmp_path / 'proof.db'}")
    return folder


def count(witness: Path, kind: str) -> int:
    return sum(event.kind == kind for event in journals.read(witness))


def author(job: Job) -> tuple[int, int] | None:
    return tolls.author(job.result)


def frozen_without_the_lock(child: Child, db: Path) -> bool:
    """Stop it; in the middle of a commit it would stop everybody else too: let it go on then."""
    child.freeze()
    connection = apsw.Connection(str(db), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.execute("BEGIN IMMEDIATE; ROLLBACK")
    except apsw.BusyError:
        os.kill(child.pid, signal.SIGCONT)
        return False
    finally:
        connection.close()
    return True


@pytest.mark.timeout(240)
def test_w2_a_zombies_verdict_is_refused(witness: Path, tmp_path: Path) -> None:
    rig = Journal(witness)
    in_child(lambda: enqueue_slow(0.5), 60.0)
    zombie = fork(lambda: work(LEASE))
    heir: Child | None = None
    try:
        until(lambda: count(witness, "start") == 1, 60.0, "the first run begins")
        rig.write("stop", target=zombie.pid)
        until(lambda: frozen_without_the_lock(zombie, tmp_path / "proof.db"), 60.0, "it stopped")
        heir = fork(lambda: work(LEASE))
        until(lambda: count(witness, "end") == 1, 60.0, "the heir has done it")
        os.kill(zombie.pid, signal.SIGCONT)
        until(lambda: count(witness, "end") == 2, 60.0, "the zombie's run ends as well")
        rig.write("calm")
        for child in (zombie, heir):
            rig.write("term", target=child.pid)
            child.send(signal.SIGTERM)
            assert child.wait(60) == 0
    finally:
        for left in (zombie, heir):
            if left is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(left.pid, signal.SIGCONT)
                left.kill()
    final = dumped_in_child(lambda: sqlite_store(tmp_path / "proof.db"), tmp_path / "final.json")
    events = journals.read(witness)
    report = check(events, final, author=author)
    assert report.broken == {}, report.story(events)
    assert (report.runs, report.explained) == (2, 1)
    (job,) = final.values()
    made = author(job)
    assert made is not None
    assert made[0] == heir.pid
