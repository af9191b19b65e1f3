"""Cases from the field, for Celery's workers on our broker: C13, C15, C34, C49."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, group
from tests.cases.rig import FULL, scaled
from tests.contrib.kombu.rig import PATIENCE, Rig
from tests.contrib.kombu.store import look, outlast
from tests.proof.patience import until

from outlast.job import Status

if TYPE_CHECKING:
    import subprocess

DAY = 86400.0
MIB = 1 << 20


def many(rig: Rig, count: int, **headers: Any) -> None:
    """So many tasks in few commits, as protocol 2 has them."""
    with rig.app.producer_or_acquire() as producer, producer.batch(max_size=1000):
        for number in range(count):
            rig.app.send_task("note", [number], producer=producer, **headers)


def memory(worker: subprocess.Popen[bytes]) -> int:
    """Of a worker without child processes."""
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def test_c13_a_task_for_later_runs_once_however_often_workers_restart(rig: Rig) -> None:
    """There is no visibility timeout, and so nothing that hands out a second copy."""
    due = time.time() + scaled(30.0, 4.0)
    rig.send("note", 1, eta=datetime.fromtimestamp(due, UTC))
    for _ in range(scaled(2, 1)):
        worker = rig.worker("-c", "1", "-P", "threads")
        assert rig.stop(worker) == 0
    for name in "ab":
        rig.worker("-c", "1", "-P", "threads", name=name)
    rig.wait_for(1)
    assert time.time() >= due
    rig.send("note", 2)
    rig.wait_for(2)
    assert rig.ends() == [1, 2]


def test_c15_far_off_tasks_fill_no_memory_and_hold_up_nothing(rig: Rig) -> None:
    count = scaled(100_000, 3_000)
    worker = rig.worker("-c", "2", "-P", "threads")
    rig.send("note", 0)
    rig.wait_for(0)
    before = memory(worker)
    many(rig, count, countdown=30 * DAY)
    for number in range(1, 11):
        rig.send("note", number)
    rig.wait_for(*range(1, 11))
    assert memory(worker) - before < 50 * MIB
    assert look(rig)[0].delayed == count


def test_c34_a_task_that_no_worker_knows_waits_for_one_that_does(rig: Rig) -> None:
    """Celery's worker rejects it, and other brokers delete what is rejected."""
    for number in range(5):
        rig.send("to_come", number)
    for number in range(10):
        rig.send("note", number)
    old = rig.worker("-c", "1", "-P", "threads")
    rig.wait_for(*range(10))
    until(lambda: look(rig)[0].dead == 5, PATIENCE, "the five are dead")
    assert rig.stop(old) == 0
    assert look(rig)[0].live == 0
    listed = outlast(rig, "jobs", "--state", "dead", "--json")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.count("the consumer rejected the message") == 5
    revived = outlast(rig, "retry", "--dead", "--yes")
    assert revived.returncode == 0, revived.stderr
    assert look(rig)[0].ready == 5
    rig.newer = True
    rig.worker("-c", "1", "-P", "threads")
    rig.wait_for(*(f"new {number}" for number in range(5)))
    assert len(rig.ends()) == 15


def test_c49_purge_takes_what_waits_and_nothing_else(rig: Rig) -> None:
    worker = rig.worker("-c", "1", "-P", "threads", "-Q", "a", worker_prefetch_multiplier=1)
    rig.send("hold", 1, rig.gate, queue="a")
    until(lambda: rig.starts() == [1], PATIENCE, "it runs")
    for queue in ("a", "b", "c"):
        for number in range(100, 120):
            rig.send("note", number, queue=queue)
    for number in range(200, 205):
        rig.send("note", number, queue="a", countdown=3600)
    with rig.app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge("a") == 25
        assert connection.default_channel.queue_purge("nowhere") == 0
    assert [look(rig, name)[0].queued for name in "abc"] == [0, 20, 20]
    rig.open_gate()
    rig.wait_for(1)
    assert rig.stop(worker) == 0
    assert rig.ends() == [1]
    assert look(rig, "a")[0].live == 0


def test_a_worker_that_is_full_still_answers(rig: Rig) -> None:
    """It holds all it may, more is waiting, and nothing is acknowledged meanwhile."""
    rig.worker("-c", "1", "-P", "threads", worker_prefetch_multiplier=1)
    rig.send("hold", 0, rig.gate)
    for number in range(1, 4):
        rig.send("note", number)
    until(lambda: rig.starts() == [0], PATIENCE, "it runs")
    inspect = rig.app.control.inspect(timeout=PATIENCE / 4, limit=1)
    for _ in range(3):
        assert inspect.ping() == {"w@here": {"ok": "pong"}}
    rig.open_gate()
    rig.wait_for(0, 1, 2, 3)


def test_a_group_inside_a_chord_needs_no_second_process(rig: Rig) -> None:
    """Celery counts groups there, and would wait in the worker for what only it can run."""
    rig.backend = rig.broker
    rig.worker("-P", "solo")

    def step(number: int) -> Any:
        return rig.app.signature("note", args=(number,), immutable=True)

    inner = chain(step(3), group(step(4), step(5)))
    whole = chain(step(1), group(step(2), inner), step(6))
    assert whole.apply_async().get(timeout=PATIENCE) == 6
    assert sorted(rig.ends()) == [1, 2, 3, 4, 5, 6]


@pytest.mark.skipif(not FULL, reason="the waiting is Celery's own; OUTLAST_FULL_CASES=1")
def test_what_waits_for_a_rate_limit_is_not_lost_with_its_worker(rig: Rig) -> None:
    """Celery's workers hold it in their memory; it is unacknowledged until it has run."""
    limit = {"note": {"rate_limit": "1/h"}}
    slow = rig.worker(
        "-c", "1", "-P", "threads", task_annotations=limit, worker_prefetch_multiplier=4
    )  # fmt: skip
    for number in range(4):
        rig.send("note", number)
    rig.wait_for(0)
    until(lambda: look(rig)[0].running == 3, PATIENCE, "the worker holds what it may")
    assert rig.ends() == [0]
    rig.kill(slow)
    rig.worker("-c", "1", "-P", "threads", name="second")
    rig.wait_for(*range(4))
    assert sorted(rig.ends()) == [0, 1, 2, 3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_program_that_forks_goes_on_publishing(rig: Rig) -> None:
    """As gunicorn does with preloaded programs: the child must not use what its parent opened."""
    rig.send("note", 1)
    child = os.fork()
    if child == 0:
        try:
            rig.send("note", 2)
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    rig.send("note", 3)
    depth, jobs = look(rig, "celery", Status.QUEUED)
    assert depth.ready == len(jobs) == 3
