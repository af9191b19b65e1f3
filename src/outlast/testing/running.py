"""Runs an app's jobs in the test itself, one after the other, with no worker and no file."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from outlast.access import ledger_of
from outlast.chance import SystemChance
from outlast.execution import Means, execute
from outlast.job import Death, Job, Progress, Status
from outlast.running import Current
from outlast.steps import keeper_of
from outlast.stores.memory.registry import Registry
from outlast.testing.crash import dies_after

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from outlast.app import Outlast
    from outlast.clock import Clock
    from outlast.execution import Runnable
    from outlast.job import Claim
    from outlast.steps import Keeper
    from outlast.store import Ledger, Store
    from outlast.task import Task
    from outlast.testing.clock import FakeClock

__all__ = [
    "Enqueued",
    "assert_enqueued",
    "drain",
    "enqueued",
    "in_memory",
    "inline",
    "run_one",
]

_WORKER = "outlast-testing"
_LEASE = 3600.0
_TOO_MANY = 100_000


@asynccontextmanager
async def in_memory(app: Outlast, *, clock: Clock | None = None) -> AsyncIterator[Outlast]:
    """The app, open, on an empty store in memory instead of its own; with a clock of the test's.

    Nothing of it is left afterwards, and the app is on its own store again.
    """
    name = f"test-{SystemChance().uuid7()}"
    with app.stand_in(f"memory://{name}", clock):
        try:
            async with app:
                yield app
        finally:
            Registry.forget(name)


async def drain(
    app: Outlast, *, delayed: FakeClock | None = None, queues: Sequence[str] | None = None
) -> list[Job]:
    """Run all jobs that are due, in order, here, until none is left; the jobs as they ended.

    What they enqueue is run as well. Jobs of tasks that the app doesn't have stay queued. With
    ``delayed``, the clock that the store was given, time is let pass until delayed jobs and
    retries are due, and they are run too. Plain functions run in this thread.
    """
    store, ledger = app.store, ledger_of(app.store)
    ended: list[Job] = []
    for _ in range(_TOO_MANY):
        where = queues or sorted({line.queue for line in await ledger.lines()})
        claims = await store.claim(where, [*app.tasks], 1, _LEASE, _WORKER)
        if claims:
            if await run_one(app, store, claims[0]):
                (job,) = await ledger.get([claims[0].job.id])
                if job is not None and job.status.ended:
                    ended.append(job)
        elif delayed is None or not await _let_pass(ledger, delayed, [*app.tasks]):
            return ended
    raise AssertionError(f"{_TOO_MANY} runs, and there is still work: does a job enqueue itself?")


async def _let_pass(ledger: Ledger, clock: FakeClock, tasks: Sequence[str]) -> bool:
    """Move the clock to the next due time; False if nothing is delayed."""
    waiting = await ledger.find(status=[Status.QUEUED], limit=_TOO_MANY)
    moments = [job.run_at for job in waiting if job.run_at is not None and job.task in tasks]
    if not moments:
        return False
    clock.advance(max(0.001, min(moments) - clock.now()))
    return True


async def run_one(
    app: Outlast,
    store: Store,
    claim: Claim,
    around: Callable[[Runnable], Runnable] | None = None,
    cut: Callable[[], bool] = bool,
    keeping: Callable[[Keeper], Keeper] | None = None,
) -> bool:
    """Run a claimed job as a worker would; False if the worker died of a planted crash.

    ``around`` replaces the task by something like it, ``keeping`` what keeps its steps; ``cut``
    says afterwards whether the run was cut short, so that nothing may be said about it.
    """
    job = claim.job
    task: Runnable = app.tasks[job.task or ""]
    notes: list[Progress] = []
    keeper = keeper_of(store, app.clock)
    if keeper is not None and keeping is not None:
        keeper = keeping(keeper)
    run = Current(claim, notes.append, keeper)
    if dies_after("claimed"):
        await store.recover_worker(_WORKER, Death(started=frozenset()))
        return False
    means = Means(clock=app.clock, chance=SystemChance())
    if not dies_after("started"):
        # In a task of its own, since a run that sleeps cancels itself; cut short just then, it has
        # nothing to say.
        execution = execute(claim, task if around is None else around(task), run, means)
        work = asyncio.create_task(execution)
        await asyncio.wait((work,))
        verdict = None if work.cancelled() else work.result()
        if not cut() and not dies_after("returned"):
            if notes:
                await store.renew([claim], _LEASE, notes[-1:])
            if verdict is not None:
                await store.settle([verdict])
            return not dies_after("settled")
    started = frozenset([job.id])
    await store.recover_worker(_WORKER, Death(started=started, blamed=frozenset()))
    return False


@contextmanager
def inline(app: Outlast) -> Iterator[None]:
    """Inside, ``enqueue`` runs the job, and all that follows from it, before it returns.

    Arguments and results still travel as they do in life. A job that fails does not raise in
    ``enqueue``: its handle's ``result`` does.
    """
    desk: Any = app._desk
    ways = {name: getattr(desk, name) for name in ("submit", "submit_one")}

    def and_run(submit: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        async def submit_and_run(given: Any) -> Any:
            answer = await submit(given)
            await drain(app)
            return answer

        return submit_and_run

    # The desk is the one place that all calls pass.
    for name, submit in ways.items():
        setattr(desk, name, and_run(submit))
    try:
        yield
    finally:
        for name, submit in ways.items():
            setattr(desk, name, submit)


class Enqueued(Struct, frozen=True, kw_only=True):
    """A stored call, its arguments as the task will get them."""

    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    job: Job


class _Named(Protocol):
    @property
    def name(self) -> str: ...


async def enqueued(app: Outlast, task: _Named | None = None) -> list[Enqueued]:
    """The calls that wait in the app's store, in the order of their storing."""
    jobs = await ledger_of(app.store).find(status=[Status.QUEUED], limit=_TOO_MANY)
    found = []
    for job in reversed(jobs):
        known: Task[..., Any] | None = app.tasks.get(job.task or "")
        if known is not None and (task is None or job.task == task.name):
            args, kwargs = known.signature.decode(job.payload)
            found.append(Enqueued(task=known.name, args=args, kwargs=kwargs, job=job))
    return found


async def assert_enqueued(
    app: Outlast, task: Task[..., Any], /, *args: Any, **kwargs: Any
) -> Enqueued:
    """The one call of the task that waits with these arguments.

    Raises ``AssertionError`` that lists what waits instead, if there is none or more than one.
    """
    # By way of the codec, so that positional and keyword arguments mean the same.
    wanted = task.signature.decode(task.signature.encode(args, kwargs))
    all_of_it = await enqueued(app, task)
    found = [each for each in all_of_it if (each.args, each.kwargs) == wanted]
    if len(found) == 1:
        return found[0]
    shown = [f"{task.name}{each.args}{each.kwargs or ''}" for each in all_of_it] or ["nothing"]
    raise AssertionError(
        f"{len(found)} calls {task.name}{args}{kwargs or ''} are enqueued; waiting: "
        + ", ".join(shown)
    )
