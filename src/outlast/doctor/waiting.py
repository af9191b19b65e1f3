"""What stands in any store and will not move by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.doctor.report import Finding, Severity
from outlast.movable import Movable
from outlast.store import offers

if TYPE_CHECKING:
    from outlast.store import Ledger

__all__ = ["waiting"]


async def waiting(store: Ledger) -> list[Finding]:
    """The dead jobs, and those whose task no worker knows; and whether all have moved away."""
    lines, workers = await store.lines(), await store.workers()
    served = {(queue, task) for info in workers for queue in info.queues for task in info.tasks}
    dead = sum(line.depth.dead for line in lines)
    findings = []
    if dead:
        findings.append(
            Finding(
                id="JOBS1",
                severity=Severity.WARNING,
                read=f"{dead} dead jobs",
                means="they failed for good and wait for somebody",
                remedy="outlast jobs --state dead, then outlast retry or outlast purge",
            )
        )
    lost = [
        f"{line.depth.queued} of {line.task} in {line.queue}"
        for line in lines
        if workers and line.task and line.depth.queued and (line.queue, line.task) not in served
    ]
    if lost:
        findings.append(
            Finding(
                id="JOBS2",
                severity=Severity.WARNING,
                read="no worker that is known runs " + ", ".join(lost[:5]),
                means="they stay queued until a worker knows the task and serves the queue",
                remedy="start a worker with the code, or with -q QUEUE",
            )
        )
    if offers(store, Movable) and (mark := await store.departure()) is not None:
        findings.append(
            Finding(
                id="JOBS3",
                severity=Severity.ERROR,
                read=f"the jobs were moved to {mark.to}, or are on their way",
                means="nothing can be stored here any more, and workers get nothing",
                remedy="use that store: change the URL of programs, workers and checks",
            )
        )
    return findings
