"""What a caller keeps of a job: its id, what became of it, and the ways to wait and to cancel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct

from outlast.errors import JobCancelled, JobFailed, JobNotFound
from outlast.job import Status
from outlast.limits import shown

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from datetime import timedelta

    from outlast.job import Failure, Job
    from outlast.store import Cancelled, Ledger

__all__ = ["Handle", "Reader"]

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

SLICE = 60.0
"""A wait without a timeout asks the store again this often, in seconds."""


class Reader(Protocol):
    """Where a handle asks: the app, seen from below."""

    def ledger(self) -> Ledger:
        """The store that is open in this event loop; ``StoreClosed`` or ``Unsupported`` if none."""
        ...

    def ask(self, question: Callable[[Ledger], Coroutine[Any, Any, T]], instead: str) -> T:
        """Answer a question from a thread that has no event loop."""
        ...

    def decoder(self, task: str | None) -> Callable[[bytes], Any]:
        """How results of a task are read, known or not."""
        ...

    def patience(self, timeout: float | timedelta | None) -> float | None:
        """Seconds to wait, or None for as long as it takes; ``ConfigurationError`` for nonsense."""
        ...


class Handle(Struct, Generic[R_co], eq=False, gc=False):
    """One job that was accepted. It holds no connection, so keeping many of them is cheap.

    ``created`` is False when the job was there already, under the same key or id.

    >>> handle = await send_receipt.enqueue(42, to="a@b.example")
    >>> await handle.result(timeout=10)
    """

    __module__ = "outlast"

    # A struct, since a thousand of them are made at once: it takes a third of the time, and holds
    # nothing that could lead back to it, so that the garbage collector need not look.
    id: str
    created: bool
    _reader: Reader
    _decode: Callable[[bytes], R_co] | None = None

    def __repr__(self) -> str:
        return f"<Handle {self.id}{'' if self.created else ' (there already)'}>"

    async def result(self, timeout: float | timedelta | None = None) -> R_co:
        """Wait for the job to end and give back what the task returned, as the annotated type.

        Raises ``JobFailed`` (what killed it is in ``.failure``), ``JobCancelled``, ``JobNotFound``
        if it was never stored or is not kept any more, and ``TimeoutError`` after ``timeout``
        seconds. Neither a timeout nor cancelling the wait changes anything about the job.
        """
        seconds = self._reader.patience(timeout)
        return self._outcome(await _ended(self._reader.ledger(), self.id, seconds))

    def result_sync(self, timeout: float | timedelta | None = None) -> R_co:
        """The same for synchronous callers, from any thread.

        Raises ``RuntimeError`` in a thread whose event loop is running: await ``result`` there.
        """
        seconds = self._reader.patience(timeout)
        job = self._reader.ask(
            lambda ledger: _ended(ledger, self.id, seconds), "await handle.result()"
        )
        return self._outcome(job)

    async def status(self) -> Status:
        """Where the job stands now. Raises ``JobNotFound`` if it is not stored (any more)."""
        return (await self.job()).status

    async def job(self) -> Job:
        """The whole record as it stands now. Raises ``JobNotFound`` if it is not stored."""
        (job,) = await self._reader.ledger().get((self.id,))
        if job is None:
            raise JobNotFound(
                f"no job {shown(self.id)}: it was never stored, or is not kept any more"
            )
        return job

    async def cancel(self) -> Cancelled:
        """Give the job up: at once if it is queued, else by asking the worker that runs it.

        Answers ``"cancelled"``, ``"requested"`` or ``"ended"`` (too late); durable when it
        returns. Raises ``JobNotFound`` if the job is not stored.
        """
        (answer,) = await self._reader.ledger().cancel((self.id,))
        if answer == "missing":
            raise JobNotFound(
                f"no job {shown(self.id)}: it was never stored, or is not kept any more"
            )
        return answer

    def _outcome(self, job: Job) -> R_co:
        if job.status is Status.DEAD:
            raise JobFailed(_obituary(job), job.failure)
        if job.status is Status.CANCELLED:
            raise JobCancelled(f"{_named(job)} {_reason(job.failure)}")
        decode = self._decode or self._reader.decoder(job.task)
        return decode(job.result if job.result is not None else b"null")


async def _ended(ledger: Ledger, id: str, timeout: float | None) -> Job:
    while True:
        for job in await ledger.finished((id,), SLICE if timeout is None else timeout):
            return job
        if timeout is not None:
            raise TimeoutError(f"job {id} has not ended after {timeout:g} s; it goes on")


def _named(job: Job) -> str:
    return f"job {job.id} of task {job.task}" if job.task else f"job {job.id}"


def _obituary(job: Job) -> str:
    runs = "1 run" if job.attempt == 1 else f"{job.attempt} runs"
    failure = job.failure
    if failure is None:
        return f"{_named(job)} is dead after {runs}"
    what = f"{failure.type}: {failure.message}" if failure.type else failure.message
    return f"{_named(job)} is dead after {runs} ({failure.kind}): {what or 'no message'}"


def _reason(failure: Failure | None) -> str:
    if failure is not None and failure.kind == "expired":
        return "expired before it could start"
    note = f": {failure.message}" if failure is not None and failure.message else ""
    return f"was cancelled{note}"
