"""What a store needs so that its jobs can be moved into another: the protocol, and what travels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from outlast.job import Failure, Job, Step

__all__ = ["BYTES", "Arrival", "Crate", "Departure", "HeldKey", "Movable", "Parcel", "SentEvent"]

BYTES = 4 << 20
"""A crate holds no further job once its payloads and results come to so many bytes."""

DAMAGED = Failure(
    kind="damaged",
    message="the stored bytes had changed when the job was moved (digest mismatch); it was not run",
)
"""What is noted of a job that had been damaged where it came from."""


class Departure(Struct, frozen=True, kw_only=True):
    """The mark on a store whose jobs go elsewhere. ``id`` is random: one for each move.

    Claims give nothing, or raise ``StoreMoved``. While it is ``draining``, all else goes on, so
    that what runs can end. ``sealed``, nothing of a job can be added or changed: such calls raise
    ``StoreMoved``. It is ``moved`` once everything has arrived: then jobs may be deleted here, and
    still not be added.
    """

    id: str
    to: str
    """The URL of the other store, without secrets; its namespace follows if it has another."""
    stage: Literal["draining", "sealed", "moved"] = "draining"


class Parcel(Struct, frozen=True, gc=False):
    """A job that isn't running, and its steps: ``Step.left`` counts from when it was packed."""

    job: Job
    steps: Sequence[Step] = ()


class HeldKey(Struct, frozen=True, gc=False):
    """An idempotency key; ``until`` is a moment, or None while its job is live."""

    task: str | None
    key: str
    job: str
    digest: bytes
    until: float | None


class SentEvent(Struct, frozen=True, gc=False):
    """An event that was sent; ``until`` is the moment when it is forgotten."""

    name: str
    payload: bytes
    until: float


class Crate(Struct, frozen=True, kw_only=True):
    """One bite of a store: what stands between two places, opaque texts of the store's own.

    ``fence``: no claim of any of these jobs had a higher one.
    """

    after: str
    upto: str
    jobs: Sequence[Parcel] = ()
    keys: Sequence[HeldKey] = ()
    events: Sequence[SentEvent] = ()
    pauses: Sequence[str] = ()
    adds: Sequence[Job] = ()
    """New jobs, added as ``Verdict.then`` are: where a key is taken, the job that holds it stands.
    """
    fence: int = 0


class Arrival(Struct, frozen=True, kw_only=True):
    """How far a move has come, and what became of the last crate.

    ``known`` jobs were stored here already, and stayed as they were; ``keyless`` ones were live and
    came without their key, which another job holds here.
    """

    place: str
    known: int = 0
    keyless: int = 0


class Movable(Protocol):
    """Stores whose jobs can be moved, or that can take in those of another.

    Every call may be repeated. Who moves is killed anywhere and goes on later, or two do it at
    once: what has come in is written down in one transaction with the place up to which it has.
    """

    async def departure(self) -> Departure | None:
        """The mark on this store, if its jobs are being moved or were."""
        ...

    async def depart(self, mark: Departure, before: Departure | None) -> int:
        """Set the mark, durably; how many jobs are running. While any is, none is ``sealed``.

        Raises ``StoreMoved`` if another mark stands here than the one ``before``, or this one.
        """
        ...

    async def stay(self, mark: Departure) -> bool:
        """Take this mark away; whether it stood here."""
        ...

    async def pack(self, after: str, limit: int) -> Crate | None:
        """What comes next in a sealed store, at most ``limit`` jobs; "" is before the first.

        Jobs come in the order in which they were added, after all that is not a job. None: that
        was all.
        """
        ...

    async def discard(self, limit: int) -> int:
        """Delete at most ``limit`` jobs of a store that was ``moved``, keys and all; how many."""
        ...

    async def expect(self, move: str) -> None:
        """Begin to take in a move."""
        ...

    async def arrived(self, move: str) -> str | None:
        """Up to which place this move has come in, or None if it is not expected."""
        ...

    async def unpack(self, move: str, crate: Crate) -> Arrival:
        """Store a crate, durable when this returns, if the move stands where the crate begins.

        Else nothing is done. Raises ``StoreMoved`` if that move is not expected. Fences of later
        claims are higher than the crate's.
        """
        ...

    async def unexpect(self, move: str) -> None:
        """Forget a move: it has ended, or never began."""
        ...
