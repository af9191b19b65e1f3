"""Lifelines: who lives is seen at once, and what a dead worker had started is read off its file."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import timeit
from typing import TYPE_CHECKING, Any

import pytest

from outlast import ConfigurationError, StoreUnavailable, lifeline
from outlast.clock import SystemClock
from outlast.job import Death, Job
from outlast.lifeline import Lifeline, SupervisorLock, adopt, dead, forget, write_cause
from outlast.stores.sqlite.store import SqliteStore
from outlast.worker.neighbours import Neighbours
from outlast.worker.side import Outage
from outlast.worker.tend import Upkeep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLDER = """
import os, sys
from outlast.lifeline import Lifeline
line = Lifeline(sys.argv[1], sys.argv[2], 8)
line.hold()
exec(sys.argv[3])
os.write(1, b"held\\n")
sys.stdin.read()
"""


@pytest.fixture
def holders() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def start(
    holders: list[subprocess.Popen[bytes]], folder: Path, worker: str, what: str = ""
) -> subprocess.Popen[bytes]:
    """A process that holds a lifeline, once it does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), worker, what],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    holders.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


MARKS = """
line.mark_started("a", False)
line.mark_started("b", False)
line.mark_started("c", False)
line.mark_started("d", False)
line.mark_ended("b")
line.mark_ended("c")
line.mark_settled("c")
"""


def test_a_killed_process_is_dead_at_once_and_its_marks_are_there(
    holders: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = start(holders, tmp_path, "w-1", MARKS)
    assert dead(tmp_path) == []
    kill(process)
    death = Death(started=frozenset("abd"), blamed=frozenset("ad"))
    assert dead(tmp_path) == [("w-1", death)]
    assert dead(tmp_path) == [("w-1", death)], "until it is forgotten"
    forget(tmp_path, "w-1")
    assert dead(tmp_path) == []
    forget(tmp_path, "w-1")


def test_a_stopped_process_is_alive(holders: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    process = start(holders, tmp_path, "w-1", MARKS)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert dead(tmp_path) == []
    kill(process)
    assert [worker for worker, _ in dead(tmp_path)] == ["w-1"]


def test_only_the_dead_are_listed(holders: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    processes = [start(holders, tmp_path, f"w-{n}") for n in range(3)]
    kill(processes[2])
    kill(processes[0])
    assert [worker for worker, _ in dead(tmp_path)] == ["w-0", "w-2"]


def test_a_forked_child_does_not_keep_its_parent_alive(
    holders: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    fork = """
import os, signal
pid = os.fork()
if pid == 0:
    os.write(1, b"forked\\n")
    signal.pause()
os.write(1, b"%d\\n" % pid)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), "w-1", fork],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    holders.append(process)
    assert process.stdout is not None
    said = sorted(process.stdout.readline() for _ in range(3))
    child = int(said[0])
    assert said[1:] == [b"forked\n", b"held\n"]
    try:
        kill(process)
        os.kill(child, 0)
        assert [worker for worker, _ in dead(tmp_path)] == ["w-1"]
    finally:
        os.kill(child, signal.SIGKILL)


def test_one_that_runs_alone_is_to_blame_alone(
    holders: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    kill(start(holders, tmp_path, "w-1", "line.mark_started('a', True)"))
    ((_, death),) = dead(tmp_path)
    assert death == Death(started=frozenset("a"), blamed=frozenset("a"), alone=True)


def test_in_order_it_leaves_nothing(tmp_path: Path) -> None:
    line = Lifeline(tmp_path, "w-1")
    line.hold()
    assert stat.S_IMODE((tmp_path / "w-1.life").stat().st_mode) == 0o600
    line.mark_started("a", False)
    line.release()
    line.release()
    assert list(tmp_path.iterdir()) == []


def test_abandoned_it_is_read_by_others(tmp_path: Path) -> None:
    line = Lifeline(tmp_path, "w-1")
    line.hold()
    line.mark_started("a", False)
    line.mark_started("b", False)
    line.blame(frozenset(), "it stopped")
    line.abandon()
    ((_, death),) = dead(tmp_path)
    assert death == Death(started=frozenset("ab"), blamed=frozenset(), message="it stopped")


def test_one_can_be_blamed_for_all(tmp_path: Path) -> None:
    line = Lifeline(tmp_path, "w-1")
    line.hold()
    for id in "abc":
        line.mark_started(id, False)
    line.blame(frozenset("b"), "blocked the event loop")
    line.abandon()
    ((_, death),) = dead(tmp_path)
    assert death == Death(
        started=frozenset("abc"), blamed=frozenset("b"), alone=True,
        message="blocked the event loop",
    )  # fmt: skip


def test_a_machine_that_restarted_is_nobodys_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Lifeline(tmp_path, "w-1")
    line.hold()
    line.mark_started("a", True)
    line.abandon()
    monkeypatch.setattr(lifeline, "_boot_id", lambda: b"another boot")
    ((_, death),) = dead(tmp_path)
    assert death == Death(
        started=frozenset("a"), blamed=frozenset(), message="the machine restarted"
    )


def test_marks_that_a_power_cut_damaged_blame_nobody(tmp_path: Path) -> None:
    (tmp_path / "w-1.life").write_bytes(bytes(4096))
    (tmp_path / "w-2.life").write_bytes(b"OUT")
    line = Lifeline(tmp_path, "w-3", 64)
    line.hold()
    line.mark_started("a", False)
    line.abandon()
    os.truncate(tmp_path / "w-3.life", 600)
    deaths = dict(dead(tmp_path))
    for worker in ("w-1", "w-2"):
        assert (deaths[worker].started, deaths[worker].blamed) == (None, frozenset())
    assert deaths["w-3"].started == frozenset()


def test_what_a_killed_start_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "w-1.life").touch()
    (tmp_path / "x.super").touch()
    (tmp_path / "other").touch()
    assert dead(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert dead(tmp_path / "not there") == []


def test_an_id_cannot_be_used_twice(tmp_path: Path) -> None:
    line = Lifeline(tmp_path, "w-1")
    line.hold()
    with pytest.raises(ConfigurationError, match="in use"):
        Lifeline(tmp_path, "w-1").hold()
    line.abandon()
    with pytest.raises(ConfigurationError, match="in use"):
        Lifeline(tmp_path, "w-1").hold()
    assert [worker for worker, _ in dead(tmp_path)] == ["w-1"], "its marks are still there"


@pytest.mark.parametrize("worker", ["", "../x", "a/b", ".hidden", "x" * 101, "a b", "ä"])
def test_an_id_must_be_fit_for_a_file_name(tmp_path: Path, worker: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(repr(worker))):
        Lifeline(tmp_path, worker)


def test_with_more_started_than_there_are_slots_nothing_is_claimed_to_be_known(
    tmp_path: Path,
) -> None:
    for ids in (["a", "b", "c"], ["a", "x" * 129]):
        line = Lifeline(tmp_path, "w-1", 2)
        line.hold()
        for id in ids:
            line.mark_started(id, False)
        for id in ids:
            line.mark_ended(id)
            line.mark_settled(id)
        line.mark_started("d", False)
        line.abandon()
        ((_, death),) = dead(tmp_path)
        assert (death.started, death.blamed, death.alone) == (None, None, False)
        forget(tmp_path, "w-1")


def test_in_a_broken_process_what_has_returned_is_under_suspicion_too(tmp_path: Path) -> None:
    line = Lifeline(tmp_path, "w-1")
    line.hold()
    for id in "abc":
        line.mark_started(id, False)
    line.mark_ended("b")
    line.mark_ended("c")
    line.mark_settled("c")
    line.accuse("a task broke the event loop")
    line.abandon()
    ((_, death),) = dead(tmp_path)
    assert (death.started, death.blamed, death.sole) == (frozenset("ab"), frozenset("ab"), False)
    assert death.message == "a task broke the event loop"


def test_slots_are_used_again(tmp_path: Path) -> None:
    line = Lifeline(tmp_path, "w-1", 2)
    line.hold()
    for number in range(1000):
        line.mark_started(f"job-{number}", False)
        line.mark_ended(f"job-{number}")
        line.mark_settled(f"job-{number}")
    line.mark_started("x" * 128, False)
    line.abandon()
    assert [death.started for _, death in dead(tmp_path)] == [frozenset(["x" * 128])]


def test_while_a_supervisor_lives_its_word_is_waited_for(tmp_path: Path) -> None:
    line = Lifeline(tmp_path, "w-1")
    line.hold()
    line.mark_started("a", False)
    lock = SupervisorLock(str(tmp_path), "s-1")
    adopt(line.path, lock)
    line.abandon()
    assert dead(tmp_path) == [], "it is about to say how it died"
    write_cause(line.path, signal=9, exit_code=None)
    ((_, death),) = dead(tmp_path)
    assert (death.signal, death.exit_code, death.alone) == (9, None, True)
    assert death.blamed == frozenset("a")
    lock.release()
    assert not (tmp_path / "s-1.super").exists()


def test_without_its_supervisor_a_death_is_told_as_it_is(
    holders: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    line = Lifeline(tmp_path, "w-1")
    line.hold()
    supervisor = (
        "from outlast.lifeline import SupervisorLock, adopt\n"
        "lock = SupervisorLock(sys.argv[1], 's-1')\n"
        "adopt(sys.argv[1] + '/w-1.life', lock)"
    )
    process = start(holders, tmp_path, "other", supervisor)
    line.abandon()
    assert dead(tmp_path) == []
    kill(process)
    assert [worker for worker, _ in dead(tmp_path)] == ["other", "w-1"]
    assert not (tmp_path / "s-1.super").exists()


def test_the_first_message_stays_and_a_shutdown_blames_nobody(tmp_path: Path) -> None:
    line = Lifeline(tmp_path, "w-1")
    line.hold()
    line.mark_started("a", False)
    line.abandon()
    write_cause(line.path, signal=None, exit_code=None, message="stopping", blame=False)
    write_cause(line.path, signal=9, exit_code=None, message="killed")
    ((_, death),) = dead(tmp_path)
    assert (death.signal, death.message, death.blamed) == (9, "stopping", frozenset())
    forget(tmp_path, "w-1")
    write_cause(line.path, signal=9, exit_code=None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.alone
def test_a_mark_costs_less_than_a_microsecond(tmp_path: Path) -> None:
    line = Lifeline(tmp_path, "w-1")
    line.hold()
    id = "01a2282e-8f34-7109-a36f-753c4a853332"

    def mark() -> None:
        line.mark_started(id, False)
        line.mark_ended(id)
        line.mark_settled(id)

    # Three marks, and room for a slow machine.
    assert min(timeit.repeat(mark, number=2000, repeat=20)) / 2000 < 3e-6
    line.release()


def test_those_who_tidy_up_never_keep_a_worker_from_its_start(tmp_path: Path) -> None:
    ended = threading.Event()

    def tidy() -> None:
        while not ended.is_set():
            dead(tmp_path)

    tidying = [threading.Thread(target=tidy) for _ in range(2)]
    for thread in tidying:
        thread.start()
    try:
        for number in range(200):
            line = Lifeline(tmp_path, f"w-{number}", 8)
            line.hold()
            assert (tmp_path / f"w-{number}.life").exists()
            line.release()
    finally:
        ended.set()
        for thread in tidying:
            thread.join()


def test_a_folder_that_is_no_folder_is_said(tmp_path: Path) -> None:
    line = Lifeline(tmp_path / "gone", "w")
    with pytest.raises(StoreUnavailable, match=r"can't make a worker's life sign .*: No such"):
        line.hold()


def test_what_is_not_ours_in_the_folder_is_no_dead_worker(tmp_path: Path) -> None:
    for name in ("folder.life", "folder.super"):
        (tmp_path / name).mkdir()
    (tmp_path / "empty.life").touch()
    (tmp_path / "rubbish.life").write_bytes(os.urandom(5000))
    (tmp_path / "rubbish inside.life").write_bytes(b"OUTLIFE1" + os.urandom(5000))
    found = dict(dead(tmp_path))
    assert set(found) == {"rubbish", "rubbish inside"}
    assert found["rubbish"].blamed == frozenset()
    assert not (tmp_path / "empty.life").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there everybody looks each time")
def test_a_look_at_the_neighbours_misses_nobody_who_comes_or_goes(
    holders: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    neighbours = Neighbours()
    past = time.time() - 60

    def settle() -> None:
        """As if the folder had last changed a while ago, and somebody had looked since."""
        nonlocal past
        past += 1
        os.utime(tmp_path, (past, past))
        neighbours.same(tmp_path)

    assert not neighbours.same(tmp_path)
    settle()
    assert neighbours.same(tmp_path)
    process = start(holders, tmp_path, "a")
    assert not neighbours.same(tmp_path), "one has come"
    settle()
    assert neighbours.same(tmp_path)
    process.kill()
    process.wait()
    assert not neighbours.same(tmp_path), "one has died"
    assert not neighbours.same(tmp_path), "and nobody has seen to it"
    forget(tmp_path, "a")
    assert not neighbours.same(tmp_path), "one is gone"
    settle()
    assert neighbours.same(tmp_path)
    neighbours.close()


async def test_who_takes_over_from_the_dead_leaves_nothing_of_them(tmp_path: Path) -> None:
    """Else it would be told of them again, and again, as long as there is a worker."""
    store = SqliteStore(str(tmp_path / "it.db"))
    await store.open()
    gone = Lifeline(store.lifelines or "", "gone")
    gone.hold()
    await store.add([Job(id="a")])
    await store.claim(["default"], [None], 1, 60.0, "gone")
    gone.abandon()
    clock = SystemClock()
    nobody: Any = None
    upkeep = Upkeep(nobody, clock, Outage(clock, 15.0), worker="w", queues=(), tasks=(), lease=15.0)
    await upkeep.bury(store)
    assert (await store.depth("default")).ready == 1
    assert dead(store.lifelines or "") == []
    await store.close()
