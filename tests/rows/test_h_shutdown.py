"""H: killed while it drains, and stopped as systemd and Kubernetes stop: with a deadline."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from tests.proof.patience import until

from outlast.job import Status
from outlast.worker.options import WorkerOptions

if TYPE_CHECKING:
    from tests.cases.rig import Rig

DEADLINE = 30.0
"""Seconds from SIGTERM to SIGKILL of systemd's and Kubernetes's defaults (90 and 30)."""


def test_h2_killed_while_it_drains_its_jobs_run_again_and_no_other(rig: Rig) -> None:
    go = str(rig.folder / "go")
    done = rig.enqueue(*[("instant", n) for n in range(20)])
    held = rig.enqueue(*[("until", go) for _ in range(3)])
    worker = rig.start("-c", "3", "--lease", "90")  # they come back long before that
    rig.until_ended(done)
    for id in held:
        rig.until_started(id)
    waiting = rig.enqueue(*[("instant", n) for n in range(20)])
    worker.send_signal(signal.SIGTERM)
    until(lambda: "stopping" in rig.workers_said, 60.0, "it drains")
    rig.kill(worker)
    (rig.folder / "go").touch()
    rig.start("-c", "3")
    rig.until_ended([*done, *held, *waiting])
    assert rig.starts(done) == [1] * 20
    assert rig.starts(waiting) == [1] * 20
    assert rig.starts(held) == [2] * 3
    assert rig.ends([*done, *held, *waiting]) == [1] * 43
    assert {rig.job(id).crashes for id in held} == {0}, "beside others none is blamed"


def test_h3_it_is_gone_before_the_deadline_and_what_ran_is_queued_again(rig: Rig) -> None:
    grace, rest = 1.0, 5.0
    assert WorkerOptions(target="").grace + rest <= DEADLINE
    held = rig.enqueue(*[("until", str(rig.folder / "never")) for _ in range(5)])
    worker = rig.start("-c", "5", "--grace", f"{grace:g}")
    for id in held:
        rig.until_started(id)
    began = time.monotonic()
    assert rig.stop(worker, DEADLINE) == 0
    assert grace <= time.monotonic() - began < grace + rest
    assert "killed" not in rig.workers_said, "it ended by itself"
    assert rig.statuses(held) == {Status.QUEUED: 5}
    jobs = [rig.job(id) for id in held]
    assert {(job.failures, job.crashes) for job in jobs} == {(0, 0)}
