"""What a running task can ask and say: which job it is, its progress, its steps and waits."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from outlast.codec import ItemCodec
from outlast.errors import TaskError
from outlast.failing import MAX_MESSAGE, clean
from outlast.job import Progress
from outlast.joining import MOST, Transaction
from outlast.limits import check_name
from outlast.steps import Parked, Steps, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from datetime import timedelta

    from outlast.codec import Signature
    from outlast.job import Claim, Job, Verdict
    from outlast.steps import Changed, Keeper
    from outlast.store import Store

__all__ = ["Current", "Why", "current", "enter"]

T = TypeVar("T")


class Encoder(Protocol):
    """What is asked of the task that runs."""

    @property
    def signature(self) -> Signature: ...


Why = Literal["cancelled", "lost", "shutdown", "abandoned"]
"""Why the worker interrupts a run. ``abandoned``: a thread that would not end before the worker."""


_events = ItemCodec(Any, label="the event's payload")


class Current:
    """The job that is running here, as :func:`current` shows it to the task.

    ``cancelled`` is true once somebody asked to cancel the job, or its time was up, and
    ``lease_lost`` once another worker may hold it: functions in threads should look from time to
    time and end. Coroutines are cancelled anyway.
    """

    __slots__ = (
        "_claim",
        "_job",
        "_keeper",
        "_steps",
        "_tell",
        "_transaction",
        "begun",
        "cancelled",
        "committed",
        "handle",
        "lease_lost",
        "parked",
        "runnable",
        "then",
        "then_dead",
        "why",
    )

    def __init__(
        self, claim: Claim, tell: Callable[[Progress], None], keeper: Keeper | None = None
    ) -> None:
        self._claim = claim
        self._job = claim.job
        self._tell = tell
        self._keeper = keeper
        self._steps: Steps | None = None
        self._transaction: Transaction | None = None
        self.runnable: Encoder | None = None
        self.committed: Verdict | None = None
        """What the run has stored of itself, in a transaction of its own."""
        self.parked: Parked | None = None
        self.cancelled = False
        self.lease_lost = False
        self.begun = False
        self.why: Why | None = None
        self.handle: asyncio.Task[Any] | None = None
        self.then: tuple[Job, ...] = ()
        """Jobs to be stored with the end of this one, in the same write, if it is done."""
        self.then_dead: tuple[Job, ...] = ()
        """The same if the run is its last and has failed."""

    def __repr__(self) -> str:
        return f"<Current {self._job.task} {self._job.id} attempt {self._job.attempt}>"

    @property
    def id(self) -> str:
        """The job's id."""
        return self._job.id

    @property
    def task(self) -> str | None:
        """The task's name."""
        return self._job.task

    @property
    def queue(self) -> str:
        """The queue it waited in."""
        return self._job.queue

    @property
    def attempt(self) -> int:
        """How often it was started, this time included."""
        return self._job.attempt

    @property
    def failures(self) -> int:
        """How many of its earlier runs failed; those that were cut short are not counted."""
        return self._job.failures

    @property
    def headers(self) -> Mapping[str, str]:
        """What the caller sent along."""
        return self._job.headers

    @property
    def timeout(self) -> float | None:
        """How many seconds this run may take, or None."""
        return self._job.timeout

    @property
    def idempotency_key(self) -> str:
        """The same text at every run of this job: its key, or else its id.

        Give it to services that take such a key, so that a repeated run has no second effect.
        """
        return self._job.id if self._job.key is None else self._job.key

    @property
    def fence(self) -> int:
        """A number that is higher at each run of this job than at all those before.

        Hand it to what can refuse the lower of two numbers, such as a row of a database, so that a
        run that was thought dead can't undo what the next one has done.
        """
        return self._claim.fence

    def step(
        self, name: str, fn: Callable[..., Any], /, *args: Any, changed: Changed = "raise"
    ) -> Coroutine[Any, Any, Any]:
        """Do a piece of the job once: ``fn(*args)``, plain or async, and remember its result.

        When the job is run again, the stored result is returned instead. It is stored as ``fn``'s
        return annotation says, else as plain JSON. The n-th step of a name in one run is the n-th
        in the next, so a loop needs no names of its own; steps of one name that run side by side
        are numbered in the order of these calls.

        Raises what ``fn`` raises, and then nothing is remembered; ``StepChanged`` if it was done
        with other arguments, unless ``changed="run"``; ``LeaseLost`` if the job is not ours any
        more; ``EncodeError`` if the result can't be stored. A worker that dies after ``fn`` did
        its work and before it is stored does it again: give ``idempotency_key`` to what is outside.

        >>> receipt = await current().step("charge", charge_card, order)
        """
        steps = self._stepping()
        return steps.run(steps.label(name), fn, args, changed)

    def step_sync(
        self, name: str, fn: Callable[..., T], /, *args: Any, changed: Changed = "raise"
    ) -> T:
        """``step`` for tasks that are plain functions; it blocks until the result is stored."""
        steps = self._stepping()
        return steps.run_now(steps.label(name), fn, args, changed)

    async def sleep(self, duration: float | timedelta | None = None, **parts: float) -> None:
        """Sleep without a worker: the job goes back to the store and is run anew afterwards.

        Seconds, a timedelta, or its parts. What came before runs again then, but for its steps;
        the time counts once. Only in ``async def`` tasks.

        >>> await current().sleep(hours=6)
        """
        self._check_can_wait()
        await self._stepping().sleep(seconds_of(duration, **parts))

    async def wait_event(self, name: str, timeout: float | timedelta | None = None) -> Any:
        """Wait, without a worker, until ``app.emit(name, payload)``; the payload.

        An event that was sent before counts as well. As for ``sleep``, the job is run anew
        afterwards. Raises ``TimeoutError`` after ``timeout`` seconds, and does so again in every
        later run. Only in ``async def`` tasks.

        >>> decision = await current().wait_event(f"approved-{order}", timeout=86400)
        """
        self._check_can_wait()
        check_name(name, "event")
        left = None if timeout is None else seconds_of(timeout)
        return _events.decode(await self._stepping().wait(name, left))

    def transaction(self, conn: Any = None) -> Transaction:
        """Commit rows of your own, steps, further jobs and the end of this job as one.

        So the effect happens exactly once. The rows are in the store's own file (SQLite) or
        database (PostgreSQL): tables of your own beside outlast's. ``tx.execute(text, values)``
        runs a statement, ``tx.result`` is what the job will have returned; what is enqueued,
        emitted or done as a
        step inside is part of it. At the end of the block all of it is committed, if the job is
        still ours: else nothing is, and ``LeaseLost`` is raised. An exception undoes all of it.
        What the task does after the block changes nothing any more.

        ``conn`` is a connection of your own, as for ``app.joined``. Others wait for what you have
        locked (on SQLite the whole file), so the block may take 5 seconds, and half the lease, at
        most: ``TimeoutError`` then. One for a run; only in ``async def`` tasks.

        >>> async with current().transaction() as tx:
        ...     await tx.execute("UPDATE stock SET n = n - 1 WHERE item = ?", (item,))
        ...     await send_receipt.enqueue(order)
        ...     tx.result = "sold"
        """
        keeper, runnable = self._keeper, self.runnable
        if keeper is None or runnable is None or self.handle is None:
            raise TaskError(
                "a transaction is there for async def tasks, in a store that has them: sqlite or "
                "postgresql"
            )
        if self._transaction is not None and (self.committed or self._transaction.is_open):
            raise TaskError("this run has a transaction already: there is one for a run")

        def committed(verdict: Verdict) -> None:
            self.committed = verdict
            keeper.settled(verdict)

        self._transaction = Transaction(
            self._claim,
            cast("Store", keeper.store),
            min(MOST, keeper.lease / 2),
            conn,
            runnable.signature.encode_result,
            committed,
        )
        return self._transaction

    def _stepping(self) -> Steps:
        if self._steps is None:
            if self._keeper is None:
                raise TaskError("steps are kept by stores that can: sqlite, postgresql and redis")
            self._steps = Steps(self._claim, self._keeper, lambda: self.lease_lost, self._park)
        return self._steps

    def _check_can_wait(self) -> None:
        if self.handle is None or self.handle.get_loop() is not _running_loop():
            raise TaskError(
                "only async def tasks can sleep or wait without a worker; raise Snooze instead"
            )
        if self._transaction is not None and self._transaction.is_open:
            raise TaskError("no sleep and no wait inside a transaction: it would end the run")

    async def _park(self, parked: Parked) -> None:
        """End the run here; it is cancelled, so that all that runs beside ends with it."""
        assert self.handle is not None
        self.parked = parked
        self.handle.cancel()
        await asyncio.get_running_loop().create_future()

    def progress(self, value: float | None = None, text: str = "") -> None:
        """Say how far the job is: a fraction from 0 to 1, and a short text. From any thread.

        It costs next to nothing and is stored with the next renewal, within about a second.
        Raises ``ValueError`` for other numbers.
        """
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"progress {value!r}: use a fraction from 0 to 1, or None")
        self.pass_on(Progress(id=self._job.id, value=value, text=clean(str(text), MAX_MESSAGE)))

    def pass_on(self, progress: Progress) -> None:
        """The worker's part: progress that a process of its own reported."""
        self._tell(progress)

    def interrupt(self, why: Why) -> bool:
        """The worker's part: note why the run is to end. From any thread; whether that is news.

        The first reason stays, unless the job is not ours any more. The caller then cancels the
        asyncio task, if ``begun`` says that it has reached ``execute``.
        """
        if why == "lost":
            self.lease_lost = True
        self.cancelled = True
        news = self.why is None or (why in ("lost", "abandoned") and self.why != why)
        if news:
            self.why = why
        return news


_current: contextvars.ContextVar[Current] = contextvars.ContextVar("outlast.current")


def enter(run: Current) -> None:
    """From here on, in this context, it is this job that runs."""
    _current.set(run)


def current() -> Current:
    """The job that is running here: in a task, what it calls, and the threads it runs in.

    Raises ``TaskError`` outside of a job.

    >>> current().progress(0.4, "parsing")
    """
    try:
        return _current.get()
    except LookupError:
        raise TaskError("current() is there only while a worker runs a task") from None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
