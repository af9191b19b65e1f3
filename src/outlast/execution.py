"""Runs one claimed job and says what became of it, as a verdict. Why a job died is decided here.

What ends a run, and the verdict that follows:

    returns                      done; dead if the result can't be stored (the effect has happened)
    raises Retry, Snooze, Cancel as they say
    raises anything else         retry while attempts are left and the policy allows, else dead
    times out                    the same, with kind "timeout"
    payload doesn't decode       dead, kind "undecodable", the bytes stay in the job
    cancelled on request         cancelled
    cancelled by a shutdown      given back, no budget touched
    sleeps, or awaits an event   given back until then, no budget touched
    its lease was lost           no verdict: the job belongs to somebody else
    raises CancelledError itself a failure like any other

A thread can't be killed. When a task in one times out, ``current().cancelled`` turns true, a
warning with the thread's stack is logged, and the job keeps its slot and its lease until the thread
really ends: only then is it failed or tried again. So a timeout never makes a job run twice at a
time.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
from asyncio import CancelledError
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from outlast.chance import Chance
from outlast.clock import Clock
from outlast.errors import Cancel, DecodeError, Retry, Snooze
from outlast.failing import MAX_MESSAGE, TimedOut, clean, describe, text_of, undecodable
from outlast.job import Failure, cancelled, dead, done, give_back, retry
from outlast.running import Current, enter
from outlast.steps import Keeper

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.codec import Signature
    from outlast.job import Claim, Job, Verdict
    from outlast.retry import RetryPolicy
    from outlast.running import Why

__all__ = [
    "Marks",
    "Means",
    "Processes",
    "Runnable",
    "ThreadRun",
    "Threads",
    "crashed",
    "execute",
    "failed",
]

log = logging.getLogger(__name__)


class Runnable(Protocol):
    """What execution needs to know of a task."""

    @property
    def name(self) -> str: ...
    @property
    def fn(self) -> Callable[..., Any]: ...
    @property
    def kind(self) -> Literal["async", "thread", "process"]: ...
    @property
    def signature(self) -> Signature: ...
    def policy(self, job: Job) -> RetryPolicy:
        """The retry policy for a job; ``DecodeError`` if the job's own can't be read."""
        ...


class Marks(Protocol):
    """Where it is noted that a job's function is about to be entered."""

    def mark_started(self, id: str, alone: bool) -> None: ...


class ThreadRun(Protocol):
    """A call that runs in a thread."""

    ended: asyncio.Future[tuple[Any, BaseException | None]]
    """What it returned, or what it raised; never fails itself."""

    def stack(self) -> str:
        """Where the thread stands."""
        ...


class Threads(Protocol):
    """Where plain functions run."""

    def start(self, call: Callable[[], Any]) -> ThreadRun: ...


class Processes(Protocol):
    """Where tasks with ``processes=True`` run, each job in a process that can be killed."""

    async def run(self, claim: Claim, task: Runnable, run: Current) -> Verdict:
        """Cancelled, the process is killed."""
        ...


class Means(Struct, frozen=True, kw_only=True):
    """What a run needs of its surroundings. Without threads or processes, it all runs in place."""

    clock: Clock
    chance: Chance
    marks: Marks | None = None
    threads: Threads | None = None
    processes: Processes | None = None
    keeper: Keeper | None = None
    """What keeps steps, if the store can."""


async def execute(
    claim: Claim, task: Runnable, run: Current, means: Means, alone: bool = False
) -> Verdict | None:
    """Run a claimed job's function and say what became of it; None if it is not ours to say.

    Call it in an asyncio task of its own: it sets a context variable. It raises nothing, whatever
    the task does; to interrupt it, call ``run.interrupt(why)`` first and cancel it then.
    """
    run.begun = True
    run.runnable = task
    if run.handle is None and task.kind == "async":
        run.handle = asyncio.current_task()
    if run.why is not None:
        return _unstarted(claim, run.why)
    job = claim.job
    if task.kind == "process" and means.processes is not None:
        return await _in_process(claim, task, run, means, means.processes, alone)
    try:
        args, kwargs = task.signature.decode(job.payload)
    except DecodeError as error:
        return dead(claim, undecodable(error), started=False)
    if means.marks is not None:
        means.marks.mark_started(job.id, alone)
    enter(run)
    began = means.clock.monotonic()
    try:
        if task.kind == "async" and job.timeout is None:
            value = await task.fn(*args, **kwargs)
        else:
            value = await _call(partial(task.fn, *args, **kwargs), job, task, run, means)
    except BaseException as error:
        return _verdict(claim, task, run, error, means, began)
    if (run.lease_lost and _is_lost(run)) or run.committed is not None:
        return None
    try:
        return done(claim, task.signature.encode_result(value), run.then)
    except Exception as error:
        # Its effect has happened, and would happen again.
        text = f"the task returned, but its result can't be stored: {text_of(error)}"
        return dead(claim, describe(error, message=text), run.then_dead)


async def _call(
    call: Callable[[], Any], job: Job, task: Runnable, run: Current, means: Means
) -> Any:
    """Everything but the plain case: with a timeout, in a thread, or a plain function in place."""
    if task.kind == "async":
        limit = asyncio.timeout(job.timeout)
        try:
            async with limit:
                return await call()
        except BaseException as error:
            if limit.expired() and run.why is None:
                raise TimedOut(job.timeout, error) from None
            raise
    if task.kind == "thread" and means.threads is not None:
        return await _in_thread(call, job, run, means.threads)
    return call()


async def _in_process(
    claim: Claim, task: Runnable, run: Current, means: Means, processes: Processes, alone: bool
) -> Verdict | None:
    if means.marks is not None:
        means.marks.mark_started(claim.job.id, alone)
    began = means.clock.monotonic()
    try:
        return await processes.run(claim, task, run)
    except BaseException as error:
        return _verdict(claim, task, run, error, means, began)


async def _in_thread(call: Callable[[], Any], job: Job, run: Current, threads: Threads) -> Any:
    thread = threads.start(partial(contextvars.copy_context().run, call))
    # Waiting in this way leaves the future alone when we are cancelled.
    finished, _ = await asyncio.wait((thread.ended,), timeout=job.timeout)
    if not finished:
        run.cancelled = True
        log.warning(
            "job %s of task %s is over its timeout of %g s, in a thread that can't be killed; "
            "its slot and lease are kept until it ends. It stands at:\n%s",
            job.id, job.task, job.timeout, thread.stack(), extra=_extra(job),
        )  # fmt: skip
        await asyncio.wait((thread.ended,))
    value, error = thread.ended.result()
    if not finished and run.why is None:
        raise TimedOut(job.timeout, error)
    if error is not None:
        raise error
    # A plain function may well hand back a coroutine; that one belongs in the loop.
    return await value if inspect.isawaitable(value) else value


def _is_lost(run: Current) -> bool:
    # ``lease_lost`` alone may pass again: the store was away for longer than the lease.
    return run.why == "lost"


def _unstarted(claim: Claim, why: Why) -> Verdict | None:
    if why == "cancelled":
        failure = Failure(kind="cancelled", message="cancelled before it started")
        return cancelled(claim, failure, started=False)
    return give_back(claim, started=False) if why == "shutdown" else None


def _verdict(
    claim: Claim, task: Runnable, run: Current, error: BaseException, means: Means, began: float
) -> Verdict | None:
    """The verdict on a run that raised, with what is to follow it."""
    verdict = _judged(claim, task, run, error, means, began)
    if run.then_dead and verdict is not None and verdict.kind == "dead":
        return replace(verdict, then=run.then_dead)
    return verdict


def _judged(
    claim: Claim, task: Runnable, run: Current, error: BaseException, means: Means, began: float
) -> Verdict | None:
    if run.committed is not None:
        # To be told to end, while it waits for its commit say, is not the task's error.
        ours = run.why is not None and isinstance(error, CancelledError)
        log.log(
            logging.DEBUG if ours else logging.ERROR,
            "job %s of task %s raised after its transaction was committed; it is done",
            claim.job.id, task.name, exc_info=error, extra=_extra(claim.job),
        )  # fmt: skip
        return None
    why = run.why
    if why in ("lost", "abandoned"):
        return None
    if run.parked is not None and why is None and isinstance(error, CancelledError):
        if run.handle is not None:
            run.handle.uncancel()
        return give_back(claim, run.parked.delay, event=run.parked.event)
    if why != "cancelled" and isinstance(error, Snooze | Cancel | Retry):
        return _steered(claim, task, error, means, began)
    if why == "cancelled":
        return cancelled(claim, Failure(kind="cancelled", message="cancelled on request"))
    if why == "shutdown":
        return give_back(claim)
    return failed(claim, task, describe(error), error, means, began)


def _steered(
    claim: Claim, task: Runnable, error: Snooze | Cancel | Retry, means: Means, began: float
) -> Verdict:
    if isinstance(error, Cancel):
        return cancelled(claim, Failure(kind="cancelled", message=clean(error.reason, MAX_MESSAGE)))
    try:
        delay = None if error.delay is None else _seconds(error.delay)
    except ValueError as wrong:
        return failed(claim, task, describe(wrong), wrong, means, began)
    if isinstance(error, Snooze):
        return give_back(claim, delay or 0.0)
    return failed(claim, task, describe(error), error, means, began, delay)


def failed(
    claim: Claim,
    task: Runnable,
    failure: Failure,
    error: BaseException,
    means: Means,
    began: float,
    delay: float | None = None,
) -> Verdict:
    """Retry or dead, for a run that failed: the policy of the job decides.

    With ``Retry``, ``error`` asks for it, and ``delay`` may overrule the policy's.
    """
    job = claim.job
    if job.failures + 1 >= job.max_attempts:
        return dead(claim, failure)
    try:
        policy = task.policy(job)
    except DecodeError as wrong:
        return dead(claim, undecodable(wrong))
    if not isinstance(error, Retry) and not policy.retries(_cause(error)):
        return dead(claim, failure)
    if policy.total is not None:
        first = _first_start(job)
        ran = means.clock.monotonic() - began
        if policy.out_of_time(ran if first is None else (job.started_at or first) - first + ran):
            return dead(claim, failure)
        failure = replace(failure, since=first)
    if delay is None:
        delay = policy.next_delay(job.failures + 1, means.chance)
    return retry(claim, delay, failure)


def crashed(claim: Claim, failure: Failure) -> Verdict:
    """Retry or dead, for a run that killed the process of its own it ran in."""
    job = claim.job
    if job.max_crashes is not None and job.crashes + 1 >= job.max_crashes:
        return dead(claim, failure)
    return retry(claim, 0.0, failure)


def _cause(error: BaseException) -> BaseException:
    """What the policy is asked about: a timeout is a TimeoutError, a stray cancel an Exception."""
    if isinstance(error, TimedOut):
        return TimeoutError(str(error))
    if isinstance(error, CancelledError):
        return RuntimeError("cancelled itself")
    return error


def _first_start(job: Job) -> float | None:
    """When the first of this job's failed runs was started, this one included; store's clock."""
    if job.failure is not None and job.failure.since is not None:
        return job.failure.since
    return job.started_at


def _seconds(delay: float | timedelta) -> float:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"delay {delay!r}: use a number of seconds from 0 up")
    return seconds


def _extra(job: Job) -> dict[str, Any]:
    return {"job": job.id, "queue": job.queue, "task": job.task, "attempt": job.attempt}
