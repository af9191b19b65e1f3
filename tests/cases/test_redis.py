"""The cases that were seen on Redis, and those of all stores, on a Redis server of their own."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cases.program import CLOCK, FiledClock
from tests.cases.rig import SECRET, Rig, assert_hidden, outlast, scaled
from tests.cases.test_c09_stop_signal import test_c09 as test_c09
from tests.cases.test_c29_cancelled_calls import calls_are_cancelled
from tests.cases.test_c38_repeats import (
    test_c38_again_while_remembered as test_c38_again_while_remembered,
)
from tests.cases.test_c38_repeats import test_c38_fifty_at_once as test_c38_fifty_at_once
from tests.cases.test_c40_lanes import test_c40 as test_c40
from tests.cases.test_c42_cancelled import test_c42_claimed_ahead as test_c42_claimed_ahead
from tests.cases.test_c42_cancelled import test_c42_delayed as test_c42_delayed
from tests.cases.ticks import one_job_a_tick
from tests.proof.patience import linger, until
from tests.servers import RedisServer

from outlast.job import Status

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.needs("redis")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer(appendfsync="always")
    server.start()
    yield server
    server.remove()


@pytest.fixture
def rig(tmp_path: Path, server: RedisServer) -> Iterator[Rig]:
    made = Rig(tmp_path, server.url())
    yield made
    made.close()


def test_c03(rig: Rig) -> None:
    """C03: what was handed to a worker that then dies is never read again."""
    ids = rig.enqueue(*[("nap", scaled(3.0, 0.3)) for _ in range(10)])
    first = rig.start("-c", "1")
    rig.until_started(ids[0])
    rig.kill(first)
    rig.start("-c", "1")
    rig.until_ended(ids, 90.0)
    assert rig.ends(ids) == [1] * 10
    assert sorted(rig.starts(ids)) == [1] * 9 + [2]
    depth = rig.run(lambda app: app.store.depth("default"))
    assert (depth.running, depth.done) == (0, 10)


def test_c05(rig: Rig) -> None:
    """C05: the lease is shorter than the task, so it is handed out again while it runs."""
    lease = scaled(5.0, 1.0)
    for _ in range(3):
        rig.start("-c", "10", "--lease", f"{lease:g}")
    ids = [rig.enqueue(("nap", 6 * lease), key=f"k{n}")[0] for n in range(20)]
    rig.until_ended(ids, 120.0)
    assert rig.starts(ids) == [1] * 20
    assert rig.ends(ids) == [1] * 20


def test_c13(rig: Rig) -> None:
    """C13: a due time beyond the lease lets each lease hand out another copy."""
    lease, delay = scaled(60.0, 1.0), 90 * 86400.0
    clock = FiledClock(rig.folder / "clock")
    began = time.time()
    clock.move(began)
    os.environ[CLOCK] = str(rig.folder / "clock")
    ids = rig.enqueue(("instant", 1), delay=delay)
    for stands in (scaled(300.0, 1.5), lease):
        workers = [rig.start("-c", "2", "--lease", f"{lease:g}") for _ in range(3)]
        rig.until_up()
        linger(stands)
        for worker in workers:
            assert rig.stop(worker) == 0
    for _ in range(3):
        rig.start("-c", "2", "--lease", f"{lease:g}")
    rig.until_up()
    clock.move(began + delay - 1.0)
    linger(1.5 * lease)
    assert rig.starts(ids) == [0]
    clock.move(began + delay + 2.0)
    rig.until_ended(ids, 60.0)
    linger(1.5 * lease)
    assert (rig.starts(ids), rig.ends(ids)) == ([1], [1])
    assert rig.job(ids[0]).started_at == began + delay + 2.0


def test_c15(rig: Rig, server: RedisServer) -> None:
    """C15: tasks that are due much later fill the worker, or hide those that are due now.

    And a worker has no more connections than docs/redis.md says: four, of which none blocks.
    """
    empty = rig.start("-c", "2")
    rig.until_up()
    before = memory(rig, empty)
    assert rig.stop(empty) == 0
    many = scaled(100_000, 10_000)
    for _ in range(many // 1000):
        rig.enqueue(*[("instant", n) for n in range(1000)], delay=30 * 86400)
    full = rig.start("-c", "2")
    rig.until_up()
    linger(scaled(60.0, 0.0))
    ids = rig.enqueue(*[("instant", n) for n in range(10)])
    rig.until_ended(ids, scaled(2.0, 60.0))
    assert rig.starts(ids) == [1] * 10
    assert rig.run(lambda app: app.store.depth("default")).delayed == many
    assert memory(rig, full) < before + 50 * 2**20
    lines = server.say("CLIENT", "LIST").split(b"\r\n")[1].splitlines()
    theirs = [line for line in lines if b"cmd=client" not in line]
    assert 0 < len(theirs) <= 4, lines
    assert b"blocked_clients:0\r" in server.say("INFO", "clients")


def memory(rig: Rig, worker: subprocess.Popen[bytes]) -> int:
    """Bytes that its processes have in memory."""
    statuses = (Path(f"/proc/{pid}/status").read_text() for pid in rig.members(worker))
    return sum(int(each.split("VmRSS:")[1].split()[0]) * 1024 for each in statuses)


def test_c19(rig: Rig) -> None:
    """C19: several who see the same tick make a task each, or a killed one's tick is lost."""
    one_job_a_tick(rig)


async def test_c29(server: RedisServer) -> None:
    """C29: a cancelled call leaves its answer behind for the next one on that connection."""
    await calls_are_cancelled(server.port, lambda port: server.url(port=port))


def test_c51(rig: Rig, server: RedisServer) -> None:
    """C51: the password is shown in a message, a log, or a listing; and an argument unescaped.

    There are no pages: what is shown is what the commands print, and what workers log.
    """
    server.say("CONFIG", "SET", "requirepass", SECRET)
    right = server.url().replace("//", f"//:{SECRET}@")
    rig.url = right
    (shown,) = rig.enqueue(("until", "<script>\x1b[31m"))
    worker = rig.start("-c", "1", "--log-level", "debug", PYTHONASYNCIODEBUG="1")
    rig.until_started(shown)
    said = ""
    for words in (["status"], ["jobs"], ["show", shown], ["workers"], ["health"], ["doctor"]):
        done = outlast(right, *words)
        assert done.returncode == 0, done.stderr
        said += done.stdout + done.stderr
    server.end(signal.SIGKILL)
    away = outlast(right, "status")
    server.start()  # and now without a password
    server.say("CONFIG", "SET", "requirepass", "another")
    wrong = [outlast(right, word) for word in ("status", "doctor")]
    for done in (away, *wrong):
        assert done.returncode != 0
        assert "127.0.0.1" in done.stderr + done.stdout
        said += done.stdout + done.stderr
    until(lambda: "refuses the user or the password" in rig.workers_said, 60.0, "it was told")
    rig.kill(worker)
    said += rig.workers_said
    assert "<script>" in said
    assert_hidden(said)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_c22(rig: Rig, server: RedisServer, how: int) -> None:
    """C22: after a restart of Redis the worker takes no more tasks, or exits."""
    (running,) = rig.enqueue(("until", str(rig.folder / "go")))
    busy = rig.start("-c", "2")
    rig.until_started(running)
    idle = rig.start("-c", "2")
    rig.until_up()
    pids = [*rig.members(busy), *rig.members(idle)]
    for _ in range(scaled(10, 2)):
        server.end(how)
        linger(scaled(20.0, 1.5))
        server.start()
        ids = rig.enqueue(*[("instant", n) for n in range(10)])
        rig.until_ended(ids, scaled(10.0, 60.0))
        assert rig.ends(ids) == [1] * 10
    (rig.folder / "go").touch()
    rig.until_ended([running], 60.0)
    assert (rig.starts([running]), rig.ends([running])) == ([1], [1])
    assert [*rig.members(busy), *rig.members(idle)] == pids


def test_workers_and_the_server_are_killed(rig: Rig, server: RedisServer) -> None:
    """Whatever dies in whichever order: what was acknowledged ends."""
    acknowledged: list[str] = []
    over = threading.Event()

    def produce() -> None:
        while not over.is_set():
            try:
                acknowledged.extend(rig.enqueue(*[("instant", n) for n in range(5)]))
            except Exception:
                continue

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for n in range(scaled(30, 3)):
            worker = rig.start("-c", "4")
            rig.until_up()
            have = len(acknowledged)
            while len(acknowledged) < have + 20:
                linger(0.01)
            if n % 2:
                server.end(signal.SIGKILL)
                server.start()
            rig.kill(worker)
    finally:
        over.set()
        producer.join()
    rig.start("-c", "4")
    rig.until_ended(acknowledged, 120.0)
    assert rig.statuses(acknowledged) == {Status.DONE: len(acknowledged)}
    assert len(acknowledged) == len(set(acknowledged))
