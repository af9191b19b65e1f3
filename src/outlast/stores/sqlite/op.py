"""One call on its way through the writer's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from outlast.stores.replies import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.job import Job
    from outlast.stores.sqlite.moves import Moves

__all__ = ["Op"]

T = TypeVar("T")


class Op(Reply[T]):
    """One call waiting for the writer. ``synced``: its answer promises that it is on disk.

    ``jobs`` are those of an ``add``. They have a ``model`` if they differ from it in nothing but id
    and payload and can't be refused: then they are written with those of other calls. ``idle``
    marks a call that waits until there is something to do for it, and says whether that is still
    so; ``landed`` is told the news of the transaction in which it was done, as the last of its
    calls.
    """

    __slots__ = ("idle", "jobs", "landed", "model", "run", "size", "synced")

    def __init__(
        self,
        run: Callable[[Moves], T] | None,
        synced: bool,
        size: int = 1,
        jobs: Sequence[Job] | None = None,
        model: Job | None = None,
    ) -> None:
        super().__init__()
        self.run = run
        self.synced = synced
        self.size = size
        self.jobs = jobs
        self.model = model
        self.idle: Callable[[], bool] | None = None
        self.landed: Callable[[int], None] | None = None

    def do(self, moves: Moves) -> T:
        """Its step of the transaction."""
        if self.run is not None:
            return self.run(moves)
        assert self.jobs is not None
        assert self.model is not None
        return cast("T", moves.add_alike(self.jobs, self.model))
