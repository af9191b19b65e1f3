"""The jobs in a worker's hands: what waits to be started, what runs, and who runs alone."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from outlast.execution import execute
from outlast.hooks import tell
from outlast.job import Failure, cancelled, give_back
from outlast.running import Current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from outlast.execution import Means, Runnable
    from outlast.hooks import Hooks
    from outlast.job import Claim, Lost, Progress, Verdict
    from outlast.lifeline import Lifeline
    from outlast.running import Why

__all__ = ["Crew"]

log = logging.getLogger(__name__)

PATIENCE = 10.0
"""How long a suspect waits at first for the others to end, in seconds; at most 64 times that."""


class Crew:
    """Starts claimed jobs in their order, as many at once as there are slots.

    A suspect runs alone: it is started when all that ran has ended and is stored, so that there is
    nothing it could take down with it, and nothing else is started until it has ended. If
    that takes too long it is given back for a while, and waited for longer the next time, so that
    one long job can't idle a whole worker for a suspect, nor keep the suspect waiting for ever.
    """

    def __init__(
        self,
        tasks: Mapping[str, Runnable],
        means: Means,
        marks: Lifeline | None,
        settle: Callable[[Verdict], None],
        hooks: Sequence[Hooks],
        slots: int,
    ) -> None:
        self.slots = slots
        self.ready: deque[Claim] = deque()
        self.suspects: deque[Claim] = deque()
        self.runs: dict[str, Current] = {}
        self.held: dict[str, Claim] = {}
        """Every claim whose verdict is not stored yet, by job id. Read by the renewing thread."""
        self.notes: dict[str, Progress] = {}
        """The last progress of each job, until the renewing thread takes it."""
        self.ended = 0
        self.low = -1
        """The claim loop wants to be called when no more than this many wait; -1: not at all."""
        self.call_claims: Callable[[], None] = _nothing
        self.fail: Callable[[BaseException], None] = _raise
        self.begin: Callable[[], None] = _nothing
        """Called when claims come and none was held."""
        self.idle = False
        """Whether nothing has been done for a while. Read by the side loop."""
        self.closed = False
        self._solo = False
        self._tasks = tasks
        self._means = means
        if means.keeper is not None:
            means.keeper.settled = self._settled_itself
        self._marks = marks
        self._settle = settle
        self._hooks = hooks
        self._patience = PATIENCE
        self._blocked_since: float | None = None
        self._still = 0
        self._ended_before = 0
        self._empty: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()

    @property
    def waiting(self) -> int:
        """How many claims wait to be started."""
        return len(self.ready) + len(self.suspects)

    @property
    def exclusive(self) -> bool:
        """Whether a suspect runs alone or waits to: nothing else should be claimed."""
        return self._solo or bool(self.suspects)

    def accept(self, claims: Iterable[Claim]) -> None:
        """Take fresh claims, and start what there is room for."""
        if not self.held:
            self.begin()
        for claim in claims:
            job = claim.job
            self.held[job.id] = claim
            if self.closed:
                self._put_back(claim, 0.0)
            elif job.id in self.runs:
                # We lost it and got it again, and the old run (a thread) has not ended yet. If a
                # power cut took the claim back, that run counts here, or its lane would go on.
                counted = self.runs[job.id].attempt < job.attempt
                self._settle(give_back(claim, 1.0, started=not counted))
            elif job.suspect:
                self.suspects.append(claim)
            else:
                self.ready.append(claim)
        self.fill()

    def fill(self) -> None:
        """Start what may start now."""
        if self.closed or self._solo:
            return
        if self.suspects:
            if not self.runs and len(self.held) <= self.waiting:
                self._solo = True
                self._patience, self._blocked_since = PATIENCE, None
                self._start(self.suspects.popleft(), True)
            return
        ready, runs, slots = self.ready, self.runs, self.slots
        while ready and len(runs) < slots:
            self._start(ready.popleft(), slots == 1)

    def tick(self, now: float) -> None:
        """Called a few times a second: give back what waits here though others could run it."""
        self._still = 0 if self.ended != self._ended_before else self._still + 1
        self._ended_before = self.ended
        if self._still >= 2 and self.waiting:
            self._give_back(self.ready)
            while len(self.suspects) > 1:
                self._put_back(self.suspects.pop(), 0.0)
        if not self.suspects or self._solo:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = now
        elif now - self._blocked_since > self._patience:
            self._put_back(self.suspects.popleft(), PATIENCE)
            self._patience = min(self._patience * 2, PATIENCE * 64)
            self._blocked_since = None
            self.fill()
            self.call_claims()

    def settled(self, verdicts: Sequence[Verdict]) -> None:
        """These verdicts are stored, or were refused."""
        held, marks = self.held, self._marks
        for verdict in verdicts:
            id = verdict.claim.job.id
            # It may be ours again, by a newer claim.
            if held.get(id) is verdict.claim:
                del held[id]
                if marks is not None and id not in self.runs:
                    marks.mark_settled(id)
        if self.suspects:
            self.fill()
        if len(self.ready) <= self.low:
            # Where nothing was claimed because too many verdicts waited, no run may be left to end.
            self.call_claims()

    def refuse(self, lost: Lost) -> None:
        """A renewal came back: the claim is not ours any more, or is to be cancelled."""
        claim = lost.claim
        id = claim.job.id
        if self.held.get(id) is not claim:
            return
        run = self.runs.get(id)
        if lost.reason == "lost":
            del self.held[id]
            if run is None and self._marks is not None:
                self._marks.mark_settled(id)
            log.warning("job %s of task %s was lost to another worker", id, claim.job.task)
            if self._hooks:
                tell(self._hooks, "job_lost", claim.job)
        if run is not None:
            self._interrupt(run, lost.reason)
            return
        for waiting in (self.ready, self.suspects):
            if claim in waiting:
                waiting.remove(claim)
                if lost.reason == "cancelled":
                    failure = Failure(kind="cancelled", message="cancelled before it started")
                    self._settle(cancelled(claim, failure, started=False))
        self.fill()
        self.call_claims()

    def close(self) -> None:
        """Start nothing more; what waits goes back untouched."""
        self.closed = True
        self._give_back(self.ready)
        self._give_back(self.suspects)

    async def emptied(self) -> None:
        """Return when nothing runs any more. Only after ``close``."""
        if self.runs:
            self._empty = self._loop.create_future()
            await self._empty

    def interrupt(self, why: Why) -> None:
        """End every run, as far as each can be."""
        for run in list(self.runs.values()):
            self._interrupt(run, why)

    def _interrupt(self, run: Current, why: Why) -> None:
        # Cancelling the wait for a thread would not end the thread, only hide it.
        ends = why == "abandoned" or self._tasks[run.task or ""].kind != "thread"
        if run.interrupt(why) and ends and run.begun and run.handle is not None:
            run.handle.cancel()

    def _give_back(self, waiting: deque[Claim]) -> None:
        while waiting:
            self._put_back(waiting.pop(), 0.0)

    def _put_back(self, claim: Claim, delay: float) -> None:
        self._settle(give_back(claim, delay, started=False))

    def _start(self, claim: Claim, alone: bool) -> None:
        job = claim.job
        run = Current(claim, self._note, self._means.keeper)
        self.runs[job.id] = run
        # Each in a fresh context: what one job sets there must not be seen by the next.
        run.handle = self._loop.create_task(
            self._run(claim, run, alone), name=job.id, context=self._context.copy()
        )

    async def _run(self, claim: Claim, run: Current, alone: bool) -> None:
        job = claim.job
        began = 0.0
        if self._hooks:
            began = self._means.clock.monotonic()
            tell(self._hooks, "job_started", job)
        try:
            # The store was asked for these tasks only.
            verdict = await execute(claim, self._tasks[job.task or ""], run, self._means, alone)
        except BaseException as error:
            self.fail(error)
            return
        del self.runs[job.id]
        # It stands in the task's context: without this the collector would have to part them.
        run.handle = None
        self.ended += 1
        if self._marks is not None:
            self._marks.mark_ended(job.id)
        if self._hooks:
            seconds = self._means.clock.monotonic() - began
            tell(self._hooks, "job_ended", job, verdict or run.committed, seconds)
        if verdict is not None:
            self._settle(verdict)
        elif self._marks is not None and job.id not in self.held:
            self._marks.mark_settled(job.id)
        self._solo = False
        self.fill()
        if len(self.ready) <= self.low:
            self.call_claims()
        if self._empty is not None and not self.runs and not self._empty.done():
            self._empty.set_result(None)

    def _settled_itself(self, verdict: Verdict) -> None:
        """A run has stored its own end: nobody is to renew its claim any more."""
        self.settled([verdict])

    def _note(self, progress: Progress) -> None:
        self.notes[progress.id] = progress


def _nothing() -> None:
    """Before the claim loop runs there is nobody to call."""


def _raise(error: BaseException) -> Any:
    raise error
