"""Notices that a task blocks the event loop: says where, and in the end has the process killed."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from outlast.hooks import tell
from outlast.worker.threads import stack_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.clock import Clock
    from outlast.hooks import Hooks
    from outlast.lifeline import Lifeline
    from outlast.running import Current
    from outlast.store import Store
    from outlast.worker.crew import Crew

__all__ = ["Watch"]

log = logging.getLogger(__name__)

PERIOD = 0.5
TOLERATED = 1.0
"""A loop that has not turned for so many seconds counts as blocked."""
LONGEST = 300.0
"""A job without a timeout may block the loop for so long."""


class Watch:
    """The event loop reports with :meth:`beat`; the side loop looks at when it did so last."""

    def __init__(
        self,
        crew: Crew,
        clock: Clock,
        marks: Lifeline | None,
        hooks: Sequence[Hooks],
        *,
        worker: str,
        grace: float,
        kill: Callable[[], None] | None,
    ) -> None:
        self._crew = crew
        self._clock = clock
        self._marks = marks
        self._hooks = hooks
        self._worker = worker
        self._grace = grace
        self._kill = kill
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._beat_at = self._looked_at = clock.monotonic()
        self._begun = False
        self._pause = 0.0
        self._report_at = TOLERATED

    def beat(self, now: float, pause: float = 0.0) -> None:
        """The event loop turns. For so many seconds it needn't say so again: nothing runs in it.

        Before the first time nothing is held against it.
        """
        self._begun = True
        self._beat_at = now
        self._pause = pause

    async def turn(self, store: Store) -> float:
        """Look once."""
        now = self._clock.monotonic()
        if not self._begun or now - self._looked_at > TOLERATED + self._pause:
            # It waits for its store, or the whole process stood still: the loop is not to blame.
            self._beat_at = now
        self._looked_at = now
        blocked = now - self._beat_at
        if blocked < TOLERATED + self._pause:
            self._report_at = TOLERATED
            return PERIOD
        run = self._on_loop()
        if blocked >= self._report_at:
            self._report_at *= 2
            self._report(run, blocked)
        if self._kill is not None and run is not None and blocked > self._limit(run):
            message = f"blocked the event loop for {blocked:.0f} s"
            log.error("job %s of task %s %s: this process ends", run.id, run.task, message)
            if self._marks is not None:
                self._marks.blame(frozenset((run.id,)), message)
            self._kill()
        return PERIOD

    def _limit(self, run: Current) -> float:
        return LONGEST if run.timeout is None else run.timeout + self._grace

    def _on_loop(self) -> Current | None:
        """The job whose task is on the loop right now."""
        task = asyncio.current_task(self._loop)
        for run in list(self._crew.runs.values()):
            if run.handle is task and task is not None:
                return run
        return None

    def _report(self, run: Current | None, blocked: float) -> None:
        stack = stack_of(self._ident)
        what = "something" if run is None else f"job {run.id} of task {run.task}"
        log.warning(
            "%s has blocked the event loop for %.1f s; nothing else can run. It stands at:\n%s",
            what, blocked, stack,
        )  # fmt: skip
        if self._hooks:
            tell(self._hooks, "loop_blocked", self._worker, blocked, stack)
