"""What became of a call: Celery's result objects, read from the jobs themselves."""

from __future__ import annotations

import ast
import builtins
import sys
from typing import TYPE_CHECKING, Any

from msgspec import DecodeError, json

from outlast.clock import SystemClock
from outlast.contrib.celery.values import Others, restore, stands_in
from outlast.errors import JobFailed, Unsupported
from outlast.job import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from outlast.job import Job
    from outlast.store import Ledger

__all__ = [
    "Absent", "AsyncResult", "Control", "EagerResult", "GroupResult", "TaskRevokedError",
    "members_of", "rebuilt", "value_of",
]  # fmt: skip

SLICE = 0.25
"""Seconds between two looks at a job that is not stored yet."""

STATES = {
    Status.QUEUED: "PENDING",
    Status.RUNNING: "STARTED",
    Status.DONE: "SUCCESS",
    Status.DEAD: "FAILURE",
    Status.CANCELLED: "REVOKED",
}


class Absent(Unsupported, AttributeError):
    """What Celery's classes have and ours don't; to ``hasattr`` it is just not there."""


class TaskRevokedError(Exception):
    """The job was cancelled, or expired before it could start."""


def value_of(job: Job) -> Any:
    """What the job returned."""
    return None if job.result is None else restore(json.decode(job.result))


def rebuilt(app: Any, kind: str, message: str) -> BaseException:
    """An exception of the class that was raised, where that is Python's or of the tasks' modules.

    Its arguments are the message alone, and its ``__init__`` is not called. Nothing is imported:
    what stands in a store is not to choose what is run here.
    """
    module, _, name = kind.rpartition(".")
    homes = [builtins] if not module else []
    known = {type(task).__module__ for task in app.tasks.values()} | {
        getattr(task.run, "__module__", "") for task in app.tasks.values()
    }
    ours = ("outlast.contrib.celery.tasks", "outlast.contrib.celery.results")
    homes += [
        sys.modules[each]
        for each in known
        if each in sys.modules and (each == module or not module)
    ]
    homes += [sys.modules[each] for each in ours if each == module]
    for home in homes:
        cls = getattr(home, name, None)
        if isinstance(cls, type) and issubclass(cls, Exception):
            made = cls.__new__(cls)
            made.args = (_key_of(message) if cls is KeyError else message,)
            return made
    return JobFailed(f"{kind}: {message}" if kind else message, None)


def _key_of(message: str) -> Any:
    """A ``KeyError`` says of its key what ``repr`` says."""
    try:
        return ast.literal_eval(message)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return message


class AsyncResult:
    """A call by its id, whoever made it."""

    def __init__(self, id: str, app: Any = None, parent: Any = None) -> None:
        from outlast.contrib.celery.registry import current_app

        self.id = id
        self.app = current_app() if app is None else app
        self.parent = parent

    @property
    def task_id(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<AsyncResult: {self.id}>"

    def __str__(self) -> str:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncResult) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def get(
        self, timeout: float | None = None, propagate: bool = True, interval: float = 0.5,
        disable_sync_subtasks: bool = True, **_: Any,
    ) -> Any:  # fmt: skip
        """Wait for the end; what the task returned, or, with ``propagate``, what it raised.

        Raises ``TimeoutError``, and ``RuntimeError`` inside a task.
        """
        from outlast.contrib.celery.tasks import _request

        if disable_sync_subtasks and _request.get() is not None:
            raise RuntimeError(
                "Never call result.get() within a task! It would wait for a slot that it holds: "
                "use a chain or a chord"
            )
        clock = SystemClock()
        deadline = None if timeout is None else clock.monotonic() + timeout
        job = self.app.outlast.ask(lambda ledger: _ended(self, ledger, deadline))
        return self._outcome(job, propagate)

    wait = get

    def _outcome(self, job: Job, propagate: bool) -> Any:
        if job.status is Status.DONE:
            return value_of(job)
        error = self._error(job)
        if propagate:
            raise error
        return error

    def _error(self, job: Job) -> BaseException:
        failure = job.failure
        if job.status is Status.CANCELLED:
            return TaskRevokedError(failure.message if failure is not None else "revoked")
        if failure is None:
            return JobFailed(f"job {job.id} is dead", None)
        if failure.kind not in ("error", "timeout"):
            return JobFailed(f"{failure.kind}: {failure.message}", failure)
        return rebuilt(self.app, failure.type, failure.message)

    def _job(self) -> Job | None:
        async def ask(ledger: Ledger) -> Job | None:
            result, job = await _standing_in(self, ledger)
            return job if job is not None else await _failed_before(result.parent, ledger)

        found: Job | None = self.app.outlast.ask(ask)
        return found

    @property
    def state(self) -> str:
        return _state(self._job())

    status = state

    @property
    def result(self) -> Any:
        """What the task returned or raised; while it runs, what it said with ``update_state``."""
        job = self._job()
        if job is None or not job.status.ended:
            return (_told(job) or {}).get("meta")
        return self._outcome(job, propagate=False)

    info = result

    @property
    def traceback(self) -> str | None:
        job = self._job()
        return None if job is None or job.failure is None else job.failure.traceback

    @property
    def name(self) -> str | None:
        job = self._job()
        return None if job is None else job.task

    @property
    def date_done(self) -> Any:
        from datetime import UTC, datetime

        job = self._job()
        if job is None or job.finished_at is None:
            return None
        return datetime.fromtimestamp(job.finished_at, UTC)

    def ready(self) -> bool:
        job = self._job()
        return job is not None and job.status.ended

    def successful(self) -> bool:
        return self.state == "SUCCESS"

    def failed(self) -> bool:
        return self.state == "FAILURE"

    def maybe_throw(self) -> Any:
        return self.get(propagate=True) if self.ready() else None

    def revoke(self, *_: Any, **__: Any) -> None:
        """Cancel the job: at once while it waits, else by asking its worker."""
        self.app.outlast.ask(lambda ledger: _cancel(ledger, [self.id]))

    def forget(self) -> None:
        """Nothing: results are deleted after ``result_expires``."""

    @property
    def children(self) -> Any:
        raise Unsupported("children are not recorded: keep the results that apply_async() returned")

    graph = collect = children


async def _ended(result: AsyncResult, ledger: Ledger, deadline: float | None) -> Job:
    """The job, once it has ended; or the one before it whose end means that it never comes."""
    clock = SystemClock()
    while True:
        left = 60.0 if deadline is None else deadline - clock.monotonic()
        result, job = await _standing_in(result, ledger)
        if job is not None:
            for ended in await ledger.finished((result.id,), max(0.0, min(left, 60.0))):
                if stands_in(ended.result) is None:
                    bad = None if ended.status is Status.DONE else result.parent
                    return await _failed_before(bad, ledger) or ended
        else:
            if bad := await _failed_before(result.parent, ledger):
                return bad
            await clock.sleep(max(0.0, min(left, SLICE)))
        if deadline is not None and clock.monotonic() >= deadline:
            raise TimeoutError("The operation timed out.")


async def _failed_before(parent: Any, ledger: Ledger) -> Job | None:
    while parent is not None:
        results = parent.leaves() if isinstance(parent, GroupResult) else [parent]
        for job in await members_of([each.id for each in results], ledger):
            if job is not None and job.status in (Status.DEAD, Status.CANCELLED):
                return job
        parent = parent.parent
    return None


async def _standing_in(result: AsyncResult, ledger: Ledger) -> tuple[AsyncResult, Job | None]:
    """The job of a result, or of what runs in its place; and the result of that."""
    while True:
        (job,) = await ledger.get((result.id,))
        others = None if job is None else stands_in(job.result)
        if others is None:
            return result, job
        app = result.app
        before = [AsyncResult(id, app) for id in others.before]
        parent = GroupResult(None, before, app, result.parent) if before else result.parent
        result = AsyncResult(others.end, app, parent)


async def members_of(ids: Sequence[str], ledger: Ledger) -> list[Job | None]:
    """These jobs, each of them or the one that gives the result in its place; and after them all
    others that stand in, any of which may have failed.
    """
    jobs = list(await ledger.get(ids))
    look = list(range(len(jobs)))
    while look:
        found = {at: others for at in look if (others := _others(jobs[at])) is not None}
        look = []
        wanted = [id for others in found.values() for id in (others.end, *others.before)]
        got = iter(await ledger.get(wanted) if wanted else ())
        for at, others in found.items():
            jobs[at] = next(got)
            look += [at, *range(len(jobs), len(jobs) + len(others.before))]
            jobs += [next(got) for _ in others.before]
    return jobs


def _others(job: Job | None) -> Others | None:
    return None if job is None else stands_in(job.result)


async def _cancel(ledger: Ledger, ids: Sequence[str]) -> None:
    """Cancel these, and what runs in their place."""
    while ids:
        await ledger.cancel(ids)
        found = filter(None, map(_others, await ledger.get(ids)))
        ids = [id for others in found for id in (others.end, *others.before)]


class Control:
    """``app.control``: revoke, and no more."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def revoke(self, ids: Any, *_: Any, **__: Any) -> None:
        """Cancel jobs: at once while they wait, else by asking their worker."""
        named = [ids] if isinstance(ids, str) else [str(each) for each in ids]
        self._app.outlast.ask(lambda ledger: _cancel(ledger, named))

    def __getattr__(self, name: str) -> Any:
        raise Absent(
            f"app.control.{name} is not there: use the commands of outlast: status, jobs, workers,"
            " pause, purge"
        )


def _told(job: Job | None) -> dict[str, Any] | None:
    if job is None or job.progress is None or not job.progress.text.startswith("{"):
        return None
    try:
        found: dict[str, Any] = json.decode(job.progress.text)
    except DecodeError:
        return None
    return {"state": found.get("state"), "meta": restore(found.get("meta"))}


def _state(job: Job | None) -> str:
    if job is None:
        return "PENDING"
    if job.status is Status.RUNNING and (told := _told(job)):
        return str(told["state"])
    if job.status is Status.QUEUED and job.failures:
        return "RETRY"
    return STATES[job.status]


class GroupResult:
    """Several calls at once."""

    def __init__(self, id: str | None, results: list[Any], app: Any = None, parent: Any = None):
        self.id = id
        self.results = list(results)
        self.app = app
        self.parent = parent

    @property
    def children(self) -> list[Any]:
        return self.results

    def __repr__(self) -> str:
        return f"<GroupResult: {self.id} [{', '.join(str(each.id) for each in self.results)}]>"

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.results)

    def __getitem__(self, at: Any) -> Any:
        return self.results[at]

    def leaves(self) -> list[AsyncResult]:
        found: list[AsyncResult] = []
        for each in self.results:
            while each is not None:
                found += each.leaves() if isinstance(each, GroupResult) else [each]
                each = each.parent
        return found

    def get(self, timeout: float | None = None, propagate: bool = True, **options: Any) -> Any:
        """The results, in the order of the group."""
        clock = SystemClock()
        deadline = None if timeout is None else clock.monotonic() + timeout
        found = []
        for each in self.results:
            left = None if deadline is None else max(0.0, deadline - clock.monotonic())
            found.append(each.get(timeout=left, propagate=propagate, **options))
        return found

    join = join_native = get

    def iterate(self, timeout: float | None = None, propagate: bool = True) -> Iterator[Any]:
        return iter(self.get(timeout, propagate))

    def _all(self, ask: Callable[[Any], bool]) -> list[bool]:
        return [ask(each) for each in self.results]

    def ready(self) -> bool:
        return all(self._all(lambda each: each.ready()))

    def successful(self) -> bool:
        return all(self._all(lambda each: each.successful()))

    def failed(self) -> bool:
        return any(self._all(lambda each: each.failed()))

    def waiting(self) -> bool:
        return not self.ready()

    def completed_count(self) -> int:
        return sum(self._all(lambda each: each.successful()))

    def revoke(self, *_: Any, **__: Any) -> None:
        for each in self.results:
            each.revoke()

    def forget(self) -> None:
        """Nothing: results are deleted after ``result_expires``."""

    def save(self, *_: Any) -> None:
        raise Unsupported("groups are not saved: keep the ids of their results")

    @classmethod
    def restore(cls, *_: Any) -> None:
        raise Unsupported("groups are not saved: keep the ids of their results")


class EagerResult:
    """What ``apply`` gives: the task has run already."""

    parent = None

    def __init__(self, id: str, value: Any, state: str) -> None:
        self.id = self.task_id = id
        self.result = self.info = value
        self.state = self.status = state
        self.traceback = None

    def get(self, timeout: float | None = None, propagate: bool = True, **_: Any) -> Any:
        if propagate and self.state == "FAILURE":
            raise self.result
        return self.result

    wait = get

    def ready(self) -> bool:
        return True

    def successful(self) -> bool:
        return self.state == "SUCCESS"

    def failed(self) -> bool:
        return self.state == "FAILURE"

    def revoke(self, *_: Any, **__: Any) -> None:
        """Too late."""

    def forget(self) -> None:
        """Nothing is kept of it."""
