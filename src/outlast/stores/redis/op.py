"""One call on its way to the server, and what becomes of its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from outlast.errors import KeyConflict, KeyRepeated, QueueFull
from outlast.job import Added
from outlast.stores.redis.rows import body_of, option_of, payload_of
from outlast.stores.replies import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outlast.job import Job, Verdict

__all__ = ["MORE", "Arg", "Op", "Place", "add_args", "added_from", "listed_jobs"]

_PROMISED: Mapping[str, Sequence[str]] = {
    "moving": ("depart", "stay", "discard", "expect", "unexpect", "unpack"),
    "scan": ("purge",),
    "shelf": ("put", "count"),
    "steer": ("cancel", "revive", "pause"),
    "steps": ("remember", "emit", "wake"),
}
"""Of scripts that do several things, those whose effect is promised."""

T = TypeVar("T")
Arg = str | bytes | int | float
MORE: Any = object()
"""What ``parse`` makes of an answer that is but a piece: the call is made again for the next."""


class Place:
    """How far a set or a hash was looked through; the server says where to go on.

    That holds in one run of it. In another one all begins anew.
    """

    __slots__ = ("_run", "_seen", "text")

    def __init__(self, run: Callable[[], str]) -> None:
        self._run = run
        self._seen = run()
        self.text = "0"

    def look(self) -> bool:
        """As the call is sent: whether it begins with the first piece."""
        if self._seen != self._run():
            self._seen = self._run()
            self.text = "0"
        return self.text == "0"


class Op(Reply[T]):
    """A call of one script. ``parse`` makes its answer of what the script returns.

    Those of ``add`` have ``jobs`` and maybe a ``capacity``, those of ``settle`` have ``verdicts``:
    several of them may share one call. ``again`` says that an answer was lost and the call is
    repeated, which only those may be that are ``repeatable``.
    """

    __slots__ = (
        "again", "args", "broken", "capacity", "jobs", "mergeable", "parse", "repeatable", "script",
        "since", "verdicts",
    )  # fmt: skip

    def __init__(
        self,
        script: str,
        args: Callable[[bool], Sequence[Arg]] | Sequence[Arg] = (),
        parse: Callable[[Any], T] | None = None,
        *,
        repeatable: bool = True,
        jobs: Sequence[Job] = (),
        capacity: int | None = None,
        verdicts: Sequence[Verdict] = (),
    ) -> None:
        super().__init__()
        self.script = script
        self.args = args
        self.parse = parse
        self.repeatable = repeatable
        self.jobs = jobs
        self.capacity = capacity
        self.verdicts = verdicts
        self.mergeable = bool(verdicts) or (
            bool(jobs) and capacity is None and all(job.key is None for job in jobs)
        )
        self.again = False
        self.broken = 0
        self.since = 0.0

    @property
    def writes(self) -> bool:
        return bool(self.jobs or self.verdicts)

    @property
    def promises(self) -> bool:
        """Whether its caller relies on what it wrote; else a power cut may take that back."""
        if self.writes:
            return True
        words = _PROMISED.get(self.script, ())
        return bool(words) and not callable(self.args) and self.args[0] in words


def listed_jobs(jobs: Sequence[Job], after: Sequence[int] = ()) -> list[Arg]:
    """The arguments that ``insert.lua`` reads: options, then jobs, maybe each with an index."""
    options: dict[bytes, int] = {}
    args: list[Arg] = []
    for n, job in enumerate(jobs):
        option = option_of(job)
        args += (job.id, options.setdefault(option, len(options) + 1), body_of(job))
        if after:
            args.append(after[n])
    return [len(options), *options, len(jobs), *args]


def add_args(jobs: Sequence[Job], capacity: int | None, again: bool) -> list[Arg]:
    return ["" if capacity is None else capacity, int(again), *listed_jobs(jobs)]


def added_from(raw: Sequence[Any], jobs: Sequence[Job], *, again: bool) -> list[Added]:
    """What ``add.lua`` answered. Raises what it refused."""
    if not raw:
        return [Added(job.id) for job in jobs]
    if raw[0] == b"!":
        raise _refusal(raw, jobs)
    return [_added(raw[n], job, jobs, again=again) for n, job in enumerate(jobs)]


def _added(entry: Any, job: Job, jobs: Sequence[Job], *, again: bool) -> Added:
    if entry == 1:
        return Added(job.id)
    if isinstance(entry, bytes):
        return Added(entry.decode(), created=False)
    if len(entry) == 1:
        twin = jobs[entry[0] - 1]
        same = (job.queue, job.task, job.payload) == (twin.queue, twin.task, twin.payload)
        return Added(job.id, created=False, conflict=not same)
    line = job.queue if job.task is None else f"{job.queue}/{job.task}"
    same = line == entry[0].decode() and job.payload == payload_of(entry[1])
    # The answer to the same call was lost: that it is there already is that call's doing.
    return Added(job.id, created=again and same, conflict=not same)


def _refusal(raw: Sequence[Any], jobs: Sequence[Job]) -> Exception:
    if raw[1] == b"full":
        return QueueFull(f"queue {raw[2].decode()!r} holds {raw[3]} jobs, and no more fit")
    job, holder = jobs[raw[2] - 1], raw[3].decode()
    if raw[1] == b"repeated":
        return KeyRepeated(
            f"key {job.key!r} of task {job.task!r} is held by job {holder}; nothing was stored",
            holder,
        )
    return KeyConflict(
        f"key {job.key!r} of task {job.task!r} belongs to job {holder}, which has other arguments;"
        " nothing was stored"
    )
