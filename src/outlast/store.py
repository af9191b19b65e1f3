"""The seam: what the engine asks of any place where jobs live, and what that place promises."""

from __future__ import annotations

from enum import Flag, IntEnum, auto
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from msgspec import Struct

from outlast.job import Depth

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from typing_extensions import TypeIs

    from outlast.job import Added, Claim, Death, Job, Lost, Progress, Status, Step, Verdict

__all__ = [
    "Cancelled",
    "Direct",
    "Durability",
    "Feature",
    "Joined",
    "Joining",
    "Ledger",
    "Line",
    "Prompt",
    "Stepping",
    "Store",
    "Transaction",
    "WorkerInfo",
    "offers",
]

T = TypeVar("T")

Cancelled = Literal["cancelled", "requested", "ended", "missing"]
"""What ``Ledger.cancel`` did: at once, asked of the worker, too late, or no such job."""


class Durability(IntEnum):
    """What an accepted job survives. Each class includes those below it."""

    MEMORY = 0
    """Dies with the process."""
    PROCESS = 1
    """Survives kill -9 of every process; may die with the machine."""
    POWER = 2
    """Survives a power cut of the machine."""
    REPLICA = 3
    """Survives the loss of the machine or its disk."""

    def __str__(self) -> str:
        return self.name.lower()


class Feature(Flag):
    """What a store can do, known before it is asked. Checked when a task is registered."""

    DELAY = auto()
    """Due times and delayed retries."""
    PRIORITY = auto()
    """Priorities: exact, or in the bands that the store's page names."""
    ORDER = auto()
    """Ranks, the newest first, and a place that is kept by what is given back."""
    KEYS = auto()
    """Idempotency keys."""
    REPEATS = auto()
    """Other answers to a repeated key than the first job, and keys held only while queued."""
    RESULTS = auto()
    """Results are kept and can be awaited."""
    INSPECT = auto()
    """The ``Ledger`` protocol."""
    LANES = auto()
    """Jobs of one lane run one at a time, in order."""
    CAPACITY = auto()
    """``add`` with a limit that holds across processes."""
    STEPS = auto()
    """Steps done once."""
    JOIN = auto()
    """``add`` and ``settle`` inside the caller's own transaction."""
    PUSH = auto()
    """``wait`` wakes on news instead of polling."""
    PROMPT = auto()
    """The ``Prompt`` protocol."""


class Store(Protocol):
    """Where jobs live. Every method is cancel-safe: cancelled midway, it happened or it did not.

    Driver errors leave as the errors of :mod:`outlast.errors`. What a store can't do raises
    ``Unsupported`` before anything is touched.
    """

    url: str
    """Where this is, absolute, without any secret."""
    features: Feature
    durability: Durability
    """What an accepted job truly survives; found out by ``open``."""
    longest: float | None
    """Seconds that a run may last, whoever renews its lease: a broker's limit. Mostly None."""
    lifelines: Path | None
    """A folder on this host where worker processes keep their locks, or None if there is none."""

    async def open(self) -> None:
        """Create, check or migrate the schema; idempotent.

        Raises ``DurabilityError`` if the store guarantees less than was asked for,
        ``SchemaMismatch``, ``StoreDamaged`` or ``StoreUnavailable``.
        """
        ...

    async def close(self) -> None:
        """Let go of everything; idempotent. What was accepted before is stored."""
        ...

    async def add(self, jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        """Store jobs, all or none, durable when this returns; answers are aligned with the input.

        An id that is stored already, or a key that is live or remembered, changes nothing and
        answers ``created=False``. A key with another digest raises ``KeyConflict`` and stores none.
        A key is live from here to its job's end, or with ``key_queued`` to the job's first claim,
        and is remembered for ``keep_key`` seconds after the end.

        Where another job holds the key, the new one's ``on_repeat`` decides (``REPEATS``):
        ``"raise"`` raises ``KeyRepeated`` and stores none. The rest concerns holders that were
        never claimed; for all others it is as with ``"first"``. ``"replace"`` cancels the holder
        and stores the new job. ``"debounce"`` gives the holder the new one's payload, headers and
        options, due time and expiry, ``"throttle"`` all of these but due time and expiry; queue,
        priority and lane stay as they are, and the answer is the holder with ``created=False``.
        The same id again is never a repeat.

        With ``capacity``, ``QueueFull`` if a queue named here would then hold more queued jobs,
        delayed ones included: a slot is free again when its job is claimed.
        Raises ``EnqueueUncertain`` with the ids if it may or may not have happened.
        Concurrent calls share one commit.
        """
        ...

    async def claim(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool = False,
    ) -> Sequence[Claim]:
        """Take at once up to ``limit`` due jobs whose queue and task are named, in claim order.

        ``None`` among the tasks names queue items. ``newest`` takes the last added first, after
        priority and rank; which job of one lane comes next is then not promised. The jobs become
        RUNNING, with ``attempt`` one higher. Never waits for work. A claim's ``fence`` is higher
        than that of any earlier claim of the job that was started: also after a power cut that
        lost claims, and after ``revive``.
        """
        ...

    async def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        """Apply each verdict whose receipt still holds its job; durable when this returns.

        Returns those that were not ours any more. One write for the batch; repeating is harmless.
        """
        ...

    async def renew(
        self, claims: Sequence[Claim], lease: float, notes: Sequence[Progress] = ()
    ) -> Sequence[Lost]:
        """Let the leases run ``lease`` seconds from now and store progress.

        Returns the claims that are lost and those that someone asked to cancel.
        """
        ...

    async def recover(self, limit: int) -> int:
        """Put back, or bury if spent, at most ``limit`` claims whose lease ran out; how many."""
        ...

    async def recover_worker(self, worker: str, cause: Death) -> int:
        """The same at once for all claims of a worker that is known to be dead; how many.

        What had not started goes back untouched. What was running alone gets a crash, and is
        buried at ``max_crashes``; what was running beside others becomes a suspect, uncounted.
        """
        ...

    async def prune(self, limit: int) -> int:
        """Expire what is past its time and delete at most ``limit`` old jobs and keys; how many."""
        ...

    async def wait(self, queues: Sequence[str], timeout: float, *, space: bool = False) -> None:
        """Return when something may have become claimable, or after ``timeout`` seconds.

        With ``space``: when these queues may hold fewer jobs than before. May return early, never
        misses what was committed after the caller's last look: that is its last ``claim``, or its
        last ``add`` that raised ``QueueFull``. One handle serves one such caller.
        """
        ...

    async def depth(self, queue: str) -> Depth:
        """Counts by state; cheap at any size."""
        ...


def offers(store: object, protocol: Callable[..., T]) -> TypeIs[T]:
    """Whether it does what an optional protocol asks, by itself or by a store behind it.

    ``isinstance`` doesn't ask ``__getattr__``, as of Python 3.12.
    """
    return all(hasattr(store, name) for name in vars(protocol) if name[0] != "_")


class Direct(Protocol):
    """The same promises for callers that can't await: each call blocks, with or without a loop.

    They may be mixed with the awaitable calls of the same store; one order holds for all.
    """

    def open_now(self) -> None:
        """``Store.open``."""
        ...

    def close_now(self) -> None:
        """``Store.close``; works while the interpreter ends, too."""
        ...

    def add_now(self, jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        """``Store.add``."""
        ...

    def claim_soon(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool = False,
    ) -> Future[Sequence[Claim]]:
        """``Store.claim``, begun: to be awaited or blocked upon, whichever turns out to be needed.

        It ends without anybody's event loop. Cancelling the future changes nothing: whoever began
        a claim must receive it.
        """
        ...

    def settle_now(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        """``Store.settle``."""
        ...

    def depth_now(self, queue: str) -> Depth:
        """``Store.depth``."""
        ...


class Stepping(Protocol):
    """Where ``Feature.STEPS`` is set: pieces of a job that are done once, and events.

    A job's steps live as long as the job; ``revive`` keeps them.
    """

    async def recall(self, claim: Claim) -> Sequence[Step]:
        """All steps of the job that are stored, in no order, whoever stored them."""
        ...

    def recall_now(self, claim: Claim) -> Sequence[Step]:
        """``recall`` for callers that can't await; blocks."""
        ...

    async def remember(self, claim: Claim, step: Step) -> bool:
        """Store a step in place of any of that name; durable when this returns.

        False, and nothing is stored, if the receipt does not hold the job any more.
        """
        ...

    def remember_now(self, claim: Claim, step: Step) -> bool:
        """``remember`` for callers that can't await; blocks."""
        ...

    async def emit(self, event: str, payload: bytes, keep: float) -> bool:
        """Send an event, and let the jobs go on that wait for it; durable when this returns.

        The first one counts: False, and nothing happens, if it was sent already, in this
        namespace, less than ``keep`` seconds (as that one had it) ago. A job that was given back
        with that ``event`` is due at once, whichever of the two came first.
        """
        ...

    async def event(self, event: str) -> bytes | None:
        """The payload of an event, if it was sent and is remembered."""
        ...


class Joined(Protocol):
    """Calls that are part of a transaction of the caller's, on his connection and in his thread.

    They promise what those of ``Store`` and ``Stepping`` do, once that transaction is committed;
    each is done in full or not at all. Raises ``ConfigurationError`` outside of a transaction.
    """

    plain: bool
    """Whether the connection blocks, so that these never wait for the event loop: ``at_once``."""

    async def add(self, jobs: Sequence[Job]) -> Sequence[Added]:
        """``Store.add``."""

    async def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        """``Store.settle``."""

    async def remember(self, claim: Claim, step: Step) -> bool:
        """``Stepping.remember``."""

    def remember_now(self, claim: Claim, step: Step) -> bool:
        """The same, blocking. Raises ``TaskError`` if the connection needs the event loop."""

    async def emit(self, event: str, payload: bytes, keep: float) -> bool:
        """``Stepping.emit``."""

    async def confirm(self) -> None:
        """After the commit: have it as durable as the store promises. ``ConfigurationError`` if it
        was not committed, ``StoreUnavailable`` if a standby can't be had or it can't be told."""


class Transaction(Protocol):
    """A transaction that has begun, with what can be done in it. Used by one task at a time."""

    joined: Joined

    async def execute(self, text: str, values: Any = ()) -> list[Any]:
        """One statement of the user's; its rows. The driver's errors come as they are."""
        ...

    async def commit(self) -> None:
        """Durable when this returns; cancelling it doesn't stop it."""
        ...

    async def close(self) -> None:
        """Undo what was not committed, and let go."""
        ...


class Joining(Protocol):
    """Where ``Feature.JOIN`` is set: work inside the user's own transactions."""

    def joined(self, connection: Any) -> Joined:
        """A view on that connection, whose transaction may be open or yet to begin.

        Raises ``Unsupported`` if it can't be one transaction with the store, saying why, and
        ``DurabilityError`` if what it commits would be less durable than the store promises.
        """
        ...

    async def begin(self, within: float, connection: Any = None) -> Transaction:
        """A transaction on a connection of the store's or of the caller's, as in ``joined``.

        Raises ``StoreUnavailable`` if it can't begin within so many seconds.
        """
        ...


class Prompt(Protocol):
    """Where ``Feature.PROMPT`` is set: a claim that waits where the work arrives."""

    async def claim_next(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        timeout: float,
        enough: asyncio.Future[None],
    ) -> Sequence[Claim]:
        """``claim`` at once if something may have changed since the last look, and else then.

        It waits as ``wait`` does, for at most ``timeout`` seconds or until ``enough`` is done, and
        then claims what there is, which may be nothing. To be used instead of ``claim`` and
        ``wait`` by the one caller that a handle serves.
        """
        ...


class Line(Struct, frozen=True, kw_only=True):
    """The jobs of one task in one queue, counted."""

    queue: str
    task: str | None
    depth: Depth
    paused: bool = False
    oldest: float | None = None
    """``created_at`` of the job at the head of the line, or None when nothing is queued."""


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """What a worker process says of itself; each call of ``beat`` replaces it."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    concurrency: int = 1
    running: int = 0
    started_at: float = 0.0
    seen_at: float = 0.0
    version: str = ""
    library: str = ""
    """Name and version of the library that serves the store in that process."""


class Ledger(Protocol):
    """Inspection, where ``Feature.INSPECT`` is set: for people, handles and the command line."""

    async def get(self, ids: Sequence[str]) -> Sequence[Job | None]:
        """The jobs as they stand, aligned with the ids; None for what isn't stored."""
        ...

    async def find(
        self,
        *,
        status: Sequence[Status] = (),
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        since: float | None = None,
        until: float | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Job]:
        """Jobs that fit, newest first; ``after`` is the last id of the page before.

        ``since`` and ``until`` bound ``created_at``. Payloads are included.
        """
        ...

    async def cancel(self, ids: Sequence[str]) -> Sequence[Cancelled]:
        """Cancel queued jobs at once and ask the worker of running ones; durable."""
        ...

    async def revive(self, ids: Sequence[str]) -> Sequence[bool]:
        """Queue DEAD and CANCELLED jobs again with fresh budgets; durable. False if it is neither.

        Takes the key again, or raises ``KeyConflict`` when another job holds it.
        """
        ...

    async def purge(self, queue: str, status: Sequence[Status], *, dry_run: bool = False) -> int:
        """Delete the queue's jobs in these states, keys included; how many. Never RUNNING ones.

        Raises ``JobNotFound`` if no such queue was ever used.
        """
        ...

    async def finished(self, ids: Sequence[str], timeout: float) -> Sequence[Job]:
        """Those of the jobs that have ended, as soon as there is one, or none after ``timeout``.

        Raises ``JobNotFound`` for an id that isn't stored.
        """
        ...

    async def namespaces(self) -> Sequence[str]:
        """The namespaces of this store in which anything was ever stored, sorted.

        Jobs, that is, or signs of a worker; also if nothing of it is kept any more.
        """
        ...

    async def lines(self) -> Sequence[Line]:
        """Every line there is, with its counts."""
        ...

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Stop, or let go on, all claims from a queue; durable."""
        ...

    async def beat(self, info: WorkerInfo) -> None:
        """Record a worker; not durable."""
        ...

    async def leave(self, worker: str) -> None:
        """Forget a worker that ended in order."""
        ...

    async def workers(self) -> Sequence[WorkerInfo]:
        """The workers that were seen in the last hour and did not leave."""
        ...

    async def backup(self, path: Path) -> dict[str, Any]:
        """Copy the whole store to a new file while it is in use, verify the copy, describe it.

        Raises ``Unsupported`` where the store has a tool of its own for that.
        """
        ...
