"""Finds out whether a task may run twice: it is cut short everywhere, run again, and compared."""

from __future__ import annotations

import inspect
import linecache
import sys
from typing import TYPE_CHECKING, Any, cast

from outlast.access import ledger_of
from outlast.errors import ConfigurationError
from outlast.job import Status
from outlast.steps import Keeper
from outlast.testing.clock import FakeClock
from outlast.testing.remedies import remedy_for
from outlast.testing.running import drain, in_memory, run_one

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

    from outlast.app import Outlast
    from outlast.execution import Runnable
    from outlast.job import Claim, Step
    from outlast.store import Stepping
    from outlast.task import Task

__all__ = ["Cut", "NotIdempotent", "assert_idempotent"]

_MOST = 10_000


class NotIdempotent(AssertionError):
    """Running the task again shows. ``line`` is the last one that may not be repeated."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class _Killed(BaseException):
    """Ends a run where a kill would have ended it."""


async def assert_idempotent(
    app: Outlast,
    task: Task[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    observe: Callable[[], Any],
    setup: Callable[[], object] | None = None,
) -> int:
    """Run the task once clean; cut it at each line, await and step, run it again, and compare.

    ``setup`` (plain or async) makes the world anew before each trial, ``observe`` (likewise) says
    what it looks like afterwards; both are the test's own. Everything runs on a store in memory,
    whose clock is moved on while the task sleeps. Returns how many cuts were tried.

    A cut between two lines is an exception that only ``finally`` blocks see; a cut at an await is
    a run that is never resumed, as after kill -9; a cut at a step comes when its work is done and
    nothing of it is stored, and again when it is.

    Raises :class:`NotIdempotent` for the first difference, naming the line after which a repeat is
    not safe, and ``ConfigurationError`` if the task does not end well when nothing disturbs it.
    """
    named = dict(kwargs or {})
    clean = await _trial(app, task, args, named, observe, setup, None)
    tried = 0
    for kind in (_LineCut, _StepCut, _AwaitCut) if task.kind == "async" else (_LineCut, _StepCut):
        for at in range(1, _MOST):
            cut = kind(task.fn, at)
            seen = await _trial(app, task, args, named, observe, setup, cut)
            if not cut.happened:
                break
            tried += 1
            if seen != clean:
                raise _difference(task, cut, clean, seen)
    return tried


async def _trial(
    app: Outlast,
    task: Task[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    observe: Callable[[], Any],
    setup: Callable[[], object] | None,
    cut: Cut | None,
) -> Any:
    if setup is not None:
        await _plain(setup())
    clock = FakeClock()
    async with in_memory(app, clock=clock):
        handle = await task.enqueue(*args, **kwargs)
        if cut is not None:
            lines = await ledger_of(app.store).lines()
            queues = sorted({line.queue for line in lines})
            claims = await app.store.claim(queues, [task.name], 1, 3600.0, "outlast-testing")
            await run_one(app, app.store, claims[0], cut.around, lambda: cut.happened, cut.keeping)
        await drain(app, delayed=clock)
        job = await handle.job()
        if job.status is not Status.DONE:
            why = job.failure.message if job.failure else ""
            how = "by itself" if cut is None else f"after a cut behind line {cut.line}"
            raise ConfigurationError(f"{task.name} does not end well {how}: {job.status} {why}")
    return await _plain(observe())


async def _plain(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class Cut:
    """Ends one run of a function at the ``at``-th chance; ``line`` is the last one that was run."""

    def __init__(self, fn: Callable[..., Any], at: int) -> None:
        self.fn = fn
        self.at = at
        self.happened = False
        self.line = 0
        self._chances = 0

    def around(self, task: Runnable) -> Runnable:
        return cast("Runnable", _Stand(task, cast("Any", self).run))

    def keeping(self, keeper: Keeper) -> Keeper:
        return keeper

    def _is_now(self) -> bool:
        self._chances += 1
        self.happened = self.happened or self._chances == self.at
        return self.happened


class _LineCut(Cut):
    """Between two lines of the function's own body, and when it has returned."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        if inspect.iscoroutinefunction(self.fn):
            return self._later(*args, **kwargs)
        with _Tracing(self._trace):
            value = self.fn(*args, **kwargs)
        return self._returned(value)

    async def _later(self, *args: Any, **kwargs: Any) -> Any:
        coroutine = self.fn(*args, **kwargs)
        return self._returned(await _Driven(coroutine, tracing=self._trace))

    def _returned(self, value: Any) -> Any:
        """All is done, and the worker dies before it can say so."""
        if not self.happened and self._is_now():
            raise _Killed
        return value

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not inspect.unwrap(self.fn).__code__:
            return None
        if event == "line":
            if self.line and not self.happened and self._is_now():
                raise _Killed
            if not self.happened:
                self.line = frame.f_lineno
        return self._trace


class _StepCut(Cut):
    """At a step: its work is done and not remembered, and then it is."""

    def around(self, task: Runnable) -> Runnable:
        return task

    def keeping(self, keeper: Keeper) -> Keeper:
        return Keeper(cast("Any", _Forgetful(keeper.store, self._chance)), keeper.clock)

    def _chance(self) -> None:
        code = inspect.unwrap(self.fn).__code__
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        # A step that was handed to another asyncio task is charged to where the function stands.
        self.line = self.line if frame is None else frame.f_lineno
        if self._is_now():
            raise _Killed


class _Forgetful:
    """A keeper of steps that can be killed before and after it remembers one."""

    def __init__(self, store: Stepping, chance: Callable[[], None]) -> None:
        self._store = store
        self._chance = chance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def remember(self, claim: Claim, step: Step) -> bool:
        return self.remember_now(claim, step)

    def remember_now(self, claim: Claim, step: Step) -> bool:
        self._chance()
        stored = self._store.remember_now(claim, step)
        self._chance()
        return stored


class _AwaitCut(Cut):
    """Where the function waits: it is never resumed."""

    def __init__(self, fn: Callable[..., Any], at: int) -> None:
        super().__init__(fn, at)
        self._left: list[object] = []

    async def run(self, *args: Any, **kwargs: Any) -> Any:
        coroutine = self.fn(*args, **kwargs)

        def waits() -> None:
            self.line = coroutine.cr_frame.f_lineno
            if self._is_now():
                # Kept, so that not even its finally blocks run.
                self._left.append(coroutine)
                raise _Killed

        return await _Driven(coroutine, waits=waits)


class _Driven:
    """Awaits a coroutine step by step."""

    def __init__(self, coroutine: Any, *, tracing: Any = None, waits: Any = None) -> None:
        self._coroutine = coroutine
        self._tracing = tracing
        self._waits = waits

    def __await__(self) -> Any:
        steps = self._coroutine.__await__()
        failed: BaseException | None = None
        while True:
            try:
                with _Tracing(self._tracing):
                    waited_for = steps.send(None) if failed is None else steps.throw(failed)
            except StopIteration as end:
                return end.value
            if self._waits is not None:
                self._waits()
            failed = None
            try:
                yield waited_for
            except BaseException as error:
                failed = error


class _Tracing:
    """Has Python tell of each line for a while."""

    def __init__(self, trace: Any) -> None:
        self._trace = trace
        self._before: Any = None

    def __enter__(self) -> None:
        if self._trace is not None:
            self._before = sys.gettrace()
            sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        if self._trace is not None:
            sys.settrace(self._before)


class _Stand:
    """A task with another function in its place."""

    def __init__(self, task: Runnable, fn: Callable[..., Any]) -> None:
        self._task = task
        self.fn = fn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def _difference(task: Task[..., Any], cut: Cut, clean: object, seen: object) -> NotIdempotent:
    code = inspect.unwrap(task.fn).__code__
    source = linecache.getline(code.co_filename, cut.line).strip()
    return NotIdempotent(
        f"{task.name} may not run twice: cut short behind line {cut.line} of {code.co_filename}\n"
        f"    {source}\n"
        f"and run again, the world is {seen!r}; a clean run leaves {clean!r}. "
        f"{remedy_for(source, inspect.getsource(code))}",
        cut.line,
    )
