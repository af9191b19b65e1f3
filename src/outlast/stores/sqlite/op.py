"""One call on its way through the writer's thread."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from outlast.errors import EnqueueUncertain
from outlast.job import Added, Alike
from outlast.stores.replies import Reply, deliver

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from outlast.job import Job
    from outlast.stores.sqlite.moves import Moves

    Single: TypeAlias = tuple[
        Job, asyncio.AbstractEventLoop, asyncio.Future[Sequence[Added]], str, bytes
    ]

__all__ = ["Op", "Pile", "by_patience", "fail", "merge_adds", "pile"]

T = TypeVar("T")


class Op(Reply[T]):
    """One call waiting for the writer. ``synced``: its answer promises that it is on disk.

    ``jobs`` are those of an ``add``. They have a ``model`` if they differ from it in nothing but id
    and payload and can't be refused: then they are written with those of other calls. ``idle``
    marks a call that waits until there is something to do for it, and says whether that is still
    so; ``landed`` is told the news of the transaction in which it was done, as the last of its
    calls; ``start`` claims jobs as they are added, if it may: see ``claims.start``.
    """

    __slots__ = ("idle", "jobs", "landed", "model", "run", "size", "start", "synced")

    def __init__(
        self,
        run: Callable[[Moves], T] | None,
        synced: bool,
        size: int = 1,
        jobs: Sequence[Job] | None = None,
        model: Job | None = None,
    ) -> None:
        # What ``Reply`` does, without a call: one is made for each job of a hundred callers.
        self.error = self.answer = self.undo = self.reply = None
        self.told = False
        self.run = run
        self.synced = synced
        self.size = size
        self.jobs = jobs
        self.model = model
        self.idle: Callable[[], bool] | None = None
        self.landed: Callable[[int], None] | None = None
        self.start: Callable[[Moves, Job, Sequence[str], Sequence[bytes]], T | None] | None = None

    def do(self, moves: Moves) -> T:
        """Its step of the transaction."""
        if self.run is not None:
            return self.run(moves)
        return cast("T", moves.add(self.jobs or ()))

    def apart(self) -> Sequence[Op[Any]]:
        """The calls that it consists of: itself."""
        return (self,)


class Pile(Op["Sequence[Added]"]):
    """Calls of one loop that each add one job, all like one model: one call for the writer.

    A hundred callers at once are so many in a transaction, and what is done for each of them,
    step by step on the way there and back, would be a good part of all that is done.
    """

    __slots__ = ("_replies",)

    def __init__(
        self,
        model: Job,
        replies: Sequence[asyncio.Future[Sequence[Added]]],
        ids: Sequence[str],
        payloads: Sequence[bytes],
    ) -> None:
        super().__init__(None, True, len(ids), Alike(model, ids, payloads), model)
        self.reply = replies[0]  # for whoever asks in which loop they wait
        self._replies = replies

    def resolve(self) -> None:
        self.reply = None
        replies, self._replies = self._replies, ()
        if self.error is None:
            for reply, answer in zip(replies, self.answer or (), strict=True):
                if not reply.done():
                    reply.set_result((answer,))
            return
        for reply, job in zip(replies, self.jobs or (), strict=True):
            if not reply.done():
                own = isinstance(self.error, EnqueueUncertain)
                reply.set_exception(
                    EnqueueUncertain(str(self.error), [job.id]) if own else self.error
                )

    def apart(self) -> Sequence[Op[Any]]:
        """One call for each job."""
        calls = []
        for reply, job in zip(self._replies, self.jobs or (), strict=True):
            call: Op[Sequence[Added]] = Op(None, True, 1, (job,), self.model)
            call.reply = reply
            calls.append(call)
        return calls


def pile(singles: Sequence[Single]) -> list[Op[Any]]:
    """Calls that add one job each, in as few as can be."""
    models, loops, replies, ids, payloads = zip(*singles, strict=True)
    number = len(singles)
    if models.count(models[0]) == loops.count(loops[0]) == number:
        return [Pile(models[0], replies, ids, payloads)]
    kinds = groupby(sorted(singles, key=_kind), _kind)
    return [call for _, same in kinds for call in pile(list(same))]


def _kind(single: Single) -> tuple[int, int]:
    return id(single[0]), id(single[1])


def merge_adds(moves: Moves, group: Sequence[Op[Any]]) -> list[Op[Any]]:
    """Write what many callers add in one statement; the calls that are still to be done.

    Their order among the other calls doesn't matter: nobody has been answered yet. A claim that
    waits for just that takes it as it is written.
    """
    only = group[0]
    if only.model is not None and len(group) <= 2:
        parts = _parts_of(group[:1])
        if len(group) == 1:
            only.error, only.answer = None, moves.add_alike(only.model, *parts)
            return []
        if _started(group[1], moves, only.model, *parts):
            only.error, only.answer = None, list(map(Added, parts[0]))
            return []
    kinds, rest = _by_model(group)
    for model, same in kinds:
        answers = moves.add_alike(model, *_parts_of(same))
        at = 0
        for op in same:
            end = at + op.size
            op.error, op.answer, at = None, answers[at:end], end
    return rest


def _started(
    claim: Op[Any], moves: Moves, model: Job, ids: Sequence[str], payloads: Sequence[bytes]
) -> bool:
    if claim.start is None:
        return False
    found = claim.start(moves, model, ids, payloads)
    if found is None:
        return False
    claim.error, claim.answer = None, found
    return True


def _by_model(
    group: Sequence[Op[Any]],
) -> tuple[Iterable[tuple[Job, list[Op[Any]]]], list[Op[Any]]]:
    """The calls that add jobs of one kind, for each kind; and the others."""
    rest: list[Op[Any]] = []
    kinds: dict[int, tuple[Job, list[Op[Any]]]] = {}
    last: Job | None = None
    same: list[Op[Any]] = []
    for op in group:
        model = op.model
        if model is None:
            rest.append(op)
            continue
        if model is not last:
            last, (_, same) = model, kinds.setdefault(id(model), (model, []))
        same.append(op)
    return kinds.values(), rest


def _parts_of(ops: Sequence[Op[Any]]) -> tuple[Sequence[str], Sequence[bytes]]:
    """The ids and the payloads of what these calls add, in their order."""
    if len(ops) == 1 and type(ops[0].jobs) is Alike:
        return ops[0].jobs.ids, ops[0].jobs.payloads
    ids: list[str] = []
    payloads: list[bytes] = []
    for op in ops:
        jobs = op.jobs
        if type(jobs) is Alike:
            ids += jobs.ids
            payloads += jobs.payloads
        else:
            ids += [job.id for job in jobs or ()]
            payloads += [job.payload for job in jobs or ()]
    return ids, payloads


def by_patience(group: Sequence[Op[Any]], news: int) -> tuple[list[Op[Any]], list[Op[Any]]]:
    """Those that may have waited, told of the news; and the others."""
    first: list[Op[Any]] = []
    rest: list[Op[Any]] = []
    for op in group:
        if op.landed is None:
            rest.append(op)
        else:
            op.landed(news)
            first.append(op)
    return first, rest


def fail(group: Sequence[Op[Any]], error: BaseException, *, uncertain: bool = False) -> None:
    """Answer with this error, except those that have one of their own."""
    for op in group:
        if op.error is None:
            op.error = error
            if uncertain and op.jobs:
                op.error = EnqueueUncertain(
                    f"{error}; these jobs may or may not be stored, adding them again is safe",
                    [job.id for job in op.jobs],
                )
    deliver(group)
