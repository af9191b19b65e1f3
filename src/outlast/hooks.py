"""What a worker tells those who watch it: one method an event, each called in order and at once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Job, Verdict

__all__ = ["Hooks", "tell", "tell_and_wait"]

log = logging.getLogger(__name__)


class Hooks:
    """Override what you care about, and give an instance to the worker.

    The methods are called in the worker's event loop, between the jobs: keep them short. What they
    raise is logged and never hurts a job. ``loop_blocked`` is the exception: it comes from another
    thread, since the loop is stuck.

    >>> class Slow(Hooks):
    ...     def job_ended(self, job, verdict, seconds):
    ...         if seconds > 10: print(job.task, seconds)
    """

    def worker_started(self, worker: str, queues: Sequence[str], tasks: Sequence[str]) -> None:
        """The store is open and the first claim is about to be made."""

    def worker_stopping(self, worker: str) -> None:
        """No more claims; what runs has its grace time from now."""

    async def worker_ending(self, worker: str) -> None:
        """No job runs any more. It is awaited, and the store is open meanwhile: be brief."""

    def worker_stopped(self, worker: str) -> None:
        """Everything is settled or given back, as far as the store could be reached."""

    def job_started(self, job: Job) -> None:
        """The job's function is about to be entered."""

    def job_ended(self, job: Job, verdict: Verdict | None, seconds: float) -> None:
        """The run is over; the verdict is not stored yet. None: the job is not ours any more."""

    def job_lost(self, job: Job) -> None:
        """The store refused what this worker had to say of the job: another one holds it."""

    async def app_closed(self) -> None:
        """The app whose ``hooks`` hold this was closed. Not told to hooks of one worker alone."""

    def loop_blocked(self, worker: str, seconds: float, stack: str) -> None:
        """The event loop has not turned for so long; where it stands. Called from a thread."""


def tell(hooks: Sequence[Hooks], event: str, *args: Any) -> None:
    """Call one method of each; what they raise is logged."""
    for hook in hooks:
        try:
            getattr(hook, event)(*args)
        except Exception:
            log.exception("hook %s of %s failed", event, type(hook).__name__)


async def tell_and_wait(hooks: Sequence[Hooks], event: str, *args: Any) -> None:
    """The same with methods that are awaited, one after the other."""
    for hook in hooks:
        try:
            await getattr(hook, event)(*args)
        except Exception:
            log.exception("hook %s of %s failed", event, type(hook).__name__)
