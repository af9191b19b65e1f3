"""One call on its way through the thread that talks to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from outlast.stores.replies import Reply, deliver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from outlast.job import Job, Verdict
    from outlast.stores.postgres.turn import Turn

__all__ = ["Op", "deliver", "reading"]

T = TypeVar("T")


class Op(Reply[T]):
    """A call: ``work`` does it within a transaction.

    Those of ``add`` have ``jobs`` and maybe a ``capacity``, those of ``settle`` have ``verdicts``:
    they are written together with others of their kind and need no ``work``. ``revert`` is the
    transaction that takes back what a call did, where it is known before anybody is answered that
    nobody waits any more. ``fenced`` ones need an epoch. ``swift`` is that of ``Link.run``.
    ``after_reads``: the claims that were begun before come first, although they are made on another
    connection. ``reads``: it promises nothing, and is done beside what is written.
    """

    __slots__ = (
        "after_reads",
        "capacity",
        "fenced",
        "jobs",
        "model",
        "promised",
        "reads",
        "revert",
        "swift",
        "verdicts",
        "work",
    )

    def __init__(
        self,
        work: Callable[[Turn], Awaitable[T]] | None = None,
        *,
        promised: bool = True,
        jobs: Sequence[Job] = (),
        model: Job | None = None,
        capacity: int | None = None,
        verdicts: Sequence[Verdict] = (),
        after_reads: bool = False,
        reads: bool = False,
    ) -> None:
        super().__init__()
        self.work = work
        self.promised = promised
        self.jobs = jobs
        self.model = model
        self.capacity = capacity
        self.verdicts = verdicts
        self.after_reads = after_reads
        self.reads = reads
        self.fenced = False
        self.swift: Callable[[Turn], Awaitable[T | None]] | None = None
        self.revert: Callable[[T], Callable[[Turn], Awaitable[Any]]] | None = None

    @property
    def unheard(self) -> bool:
        """Whether its caller was cancelled meanwhile."""
        return self.reply is not None and self.reply.cancelled()


def reading(work: Callable[[Turn], Awaitable[T]]) -> Op[T]:
    """A call that only looks."""
    return Op(work, promised=False, reads=True)
