"""The records that travel between the layers: jobs, claims, verdicts and what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal, overload

from msgspec import Struct
from msgspec.structs import replace

# gc=False: records hold no reference back, so there is no cycle to look for, and a thousand of them
# in a batch cost the collector nothing.

__all__ = [
    "DAY",
    "Added",
    "Alike",
    "Claim",
    "Death",
    "Depth",
    "Failure",
    "Job",
    "Lost",
    "OnRepeat",
    "Progress",
    "Status",
    "Step",
    "Verdict",
    "cancelled",
    "dead",
    "done",
    "give_back",
    "retry",
]

DAY = 86400.0

OnRepeat = Literal["first", "raise", "replace", "debounce", "throttle"]
"""What becomes of a call whose key is held by an earlier one; see ``Store.add``."""


class Status(StrEnum):
    """The five states of a job. The drawing with every legal step is in ARCHITECTURE.md."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self not in (Status.QUEUED, Status.RUNNING)


class Failure(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Why a run or a job ended badly, as text: no class is ever rebuilt from it.

    ``kind`` is one of ``error`` (the task raised), ``timeout``, ``crash`` (the worker died),
    ``expired``, ``cancelled``, ``undecodable`` (the payload doesn't fit the signature),
    ``damaged`` (the stored bytes changed), ``untrusted`` (the signature is missing or does not
    fit), ``lost`` (the lease ran out). ``since`` is when the
    first of the failed runs was started, by the store's clock, where a retry policy needs to know.
    """

    kind: str
    message: str = ""
    type: str = ""
    traceback: str = ""
    signal: int | None = None
    exit_code: int | None = None
    since: float | None = None

    @property
    def line(self) -> str:
        """What happened, in one line."""
        first = self.message.strip().split("\n")[0]
        parts = (f"{self.kind}:", f"{self.type}:" if self.type and first else self.type, first)
        return " ".join(part for part in parts if part)


class Progress(Struct, frozen=True, gc=False, kw_only=True):
    """How far a running job says it is: a fraction in [0, 1] or None, and a short text."""

    id: str
    value: float | None = None
    text: str = ""


class Job(Struct, frozen=True, gc=False, kw_only=True):
    """One stored call of a task, or one item of a queue (``task`` is then None).

    ``delay`` and ``ttl`` are relative seconds and only read by ``Store.add``, which turns them into
    ``run_at`` and ``expires_at`` by the store's own clock. ``digest`` stands for the arguments when
    keys are compared; ``on_repeat``, read by ``Store.add`` alone, says what becomes of this job if
    another holds its key. With ``key_queued`` the key is held until the job is claimed for the
    first time, and no longer. ``keep`` None means for ever, for what is done; the dead stay until
    purged.
    """

    id: str
    queue: str = "default"
    task: str | None = None
    payload: bytes = b"null"
    codec: str = "json"
    headers: Mapping[str, str] = {}
    priority: int = 0
    rank: bytes = b""
    delay: float | None = None
    ttl: float | None = None
    run_at: float | None = None
    expires_at: float | None = None
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    suspect: bool = False
    max_attempts: int = 1
    max_crashes: int | None = 3
    timeout: float | None = None
    key: str | None = None
    digest: bytes = b""
    keep_key: float = DAY
    key_queued: bool = False
    on_repeat: OnRepeat = "first"
    keep: float | None = DAY
    lane: str | None = None
    status: Status = Status.QUEUED
    created_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    failure: Failure | None = None
    result: bytes | None = None
    progress: Progress | None = None
    worker: str | None = None


class Alike(Sequence[Job]):
    """Jobs that differ in nothing but id and payload; each is made when it is looked at.

    A store may look at ``model``, ``ids`` and ``payloads`` instead, which takes far less time.
    """

    __slots__ = ("ids", "model", "payloads")

    def __init__(self, model: Job, ids: Sequence[str], payloads: Sequence[bytes]) -> None:
        self.model = model
        self.ids = ids
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, at: int) -> Job: ...
    @overload
    def __getitem__(self, at: slice) -> Alike: ...
    def __getitem__(self, at: int | slice) -> Job | Alike:
        if isinstance(at, slice):
            return Alike(self.model, self.ids[at], self.payloads[at])
        return replace(self.model, id=self.ids[at], payload=self.payloads[at])


class Claim(Struct, frozen=True, gc=False):
    """A job in a worker's hands. ``receipt`` is the store's own: random, opaque to others.

    ``fence`` is for the outside world: of two claims of a job that were started, the later one has
    the higher number.
    """

    job: Job
    receipt: bytes
    fence: int = 0


class Step(Struct, frozen=True, gc=False, kw_only=True):
    """A piece of a job that was done once: its result, or how long it is still to be waited for.

    ``digest`` stands for its arguments. ``delay`` is read by ``Stepping.remember`` alone, which
    turns it into a moment by the store's clock; ``left`` is what is left of it when it is read.
    ``event`` names what is waited for, until there is a result.
    """

    name: str
    digest: bytes = b""
    result: bytes | None = None
    delay: float | None = None
    left: float | None = None
    event: str | None = None


class Added(Struct, frozen=True, gc=False):
    """What became of one job given to ``add``.

    ``id`` is the job that now stands for it: itself, or the one that holds its key. ``created`` is
    False when nothing was stored because that job was there already; ``conflict`` is then True if
    it has the same id but another payload.
    """

    id: str
    created: bool = True
    conflict: bool = False


class Lost(Struct, frozen=True, gc=False):
    """A claim that is not ours any more, or that someone asked to cancel."""

    claim: Claim
    reason: Literal["lost", "cancelled"]


class Verdict(Struct, frozen=True, gc=False):
    """What was decided about a claim. Made only by the five functions below.

    ``then`` are jobs added in the same atomic write. ``started`` is False when the task function
    was never entered: such a run leaves no trace in ``attempt``. With ``event``, ``delay`` counts
    for nothing if that event was sent.
    """

    claim: Claim
    kind: Literal["done", "retry", "give_back", "dead", "cancelled"]
    result: bytes | None = None
    delay: float = 0.0
    failure: Failure | None = None
    then: tuple[Job, ...] = ()
    started: bool = True
    event: str | None = None


def done(claim: Claim, result: bytes | None = None, then: tuple[Job, ...] = ()) -> Verdict:
    """The task returned; ``result`` is its encoded value."""
    return Verdict(claim, "done", result, 0.0, None, then)


def retry(claim: Claim, delay: float, failure: Failure, then: tuple[Job, ...] = ()) -> Verdict:
    """The run failed and counts as a failure; again after ``delay`` seconds.

    A failure of kind ``crash`` (the run killed the process of its own that it ran in) counts in
    ``crashes`` instead of ``failures``.
    """
    return Verdict(claim, "retry", None, delay, failure, then)


def give_back(
    claim: Claim, delay: float = 0.0, *, started: bool = True, event: str | None = None
) -> Verdict:
    """Shutdown, snooze or a wait: the job is queued again and no budget is touched.

    For ``delay`` seconds, or until the ``event`` is sent; at once if it was sent already.
    """
    return Verdict(claim, "give_back", None, delay, started=started, event=event)


def dead(
    claim: Claim, failure: Failure, then: tuple[Job, ...] = (), *, started: bool = True
) -> Verdict:
    """The job failed for good; the run counts as a failure, or as a crash if that is its kind."""
    return Verdict(claim, "dead", None, 0.0, failure, then, started)


def cancelled(claim: Claim, failure: Failure | None = None, *, started: bool = True) -> Verdict:
    """Someone, or the task itself, gave the job up."""
    return Verdict(claim, "cancelled", None, 0.0, failure, started=started)


class Death(Struct, frozen=True, kw_only=True):
    """How a worker ended, as far as is known, and which of its claims it had started.

    ``started`` None: nobody knows, so every claim counts as started. What had not started goes back
    untouched, ``attempt`` included.

    ``blamed`` holds those of the started ones that were still running, so that one of them may have
    killed the worker; None stands for all that started. What started and is not blamed (it had
    returned and waited to be settled, or the machine restarted, or the worker stopped in order)
    goes back as by ``give_back``: its ``attempt`` stays, no crash is counted, no suspect is made.

    ``alone`` is true when only one job was running: what is blamed then gets the crash, and else
    becomes a suspect.
    """

    started: frozenset[str] | None = None
    blamed: frozenset[str] | None = None
    alone: bool = False
    signal: int | None = None
    exit_code: int | None = None
    message: str = ""

    @property
    def sole(self) -> bool:
        """Whether just one job was running, as far as is known.

        What counts is how many ran, not how many claims the worker still had: one that had lost
        its claim may have killed it as well.
        """
        suspects = self.started if self.blamed is None else self.blamed
        return self.alone or (suspects is not None and len(suspects) == 1)

    @property
    def failure(self) -> Failure:
        """What is noted of the one job that must have killed the worker."""
        how = "the worker died"
        if self.signal is not None:
            how += f" by signal {self.signal}"
        elif self.exit_code is not None:
            how += f" with exit code {self.exit_code}"
        if self.message:
            how += f": {self.message}"
        return Failure(kind="crash", message=how, signal=self.signal, exit_code=self.exit_code)


class Depth(Struct, frozen=True, kw_only=True):
    """How many jobs a queue holds, by state. ``ready`` and ``delayed`` are both QUEUED."""

    ready: int = 0
    delayed: int = 0
    running: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0

    @property
    def queued(self) -> int:
        """What ``capacity`` counts."""
        return self.ready + self.delayed

    @property
    def live(self) -> int:
        """Jobs that have not ended."""
        return self.ready + self.delayed + self.running
