"""The main program of a process that runs ``processes=True`` tasks, one job at a time.

It reads its orders in a thread, so that it notices the end of its worker while a job runs, and ends
with it. Standard output belongs to the talk with the worker: what tasks print goes to standard
error.
"""

from __future__ import annotations

import importlib
import os
import queue
import runpy
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.errors import StoreError, StoreUnavailable, TaskError
from outlast.execution import Means, execute
from outlast.failing import describe
from outlast.job import Claim, Failure, Step, Verdict
from outlast.joining import is_joined
from outlast.running import Current
from outlast.steps import Keeper
from outlast.worker.frames import (
    Begun,
    Hello,
    Known,
    Note,
    Order,
    Outcome,
    Recall,
    Remember,
    Stored,
    Trouble,
    pack,
    unpack,
)

if TYPE_CHECKING:
    from outlast.execution import Runnable
    from outlast.store import Stepping
    from outlast.worker.frames import Frame

__all__ = ["Apart", "Kept", "main"]


class Kept:
    """The steps of one job, which the worker stores: each call is a word to it and its answer.

    After the job's end nothing is asked any more: a thread that it left behind would speak for the
    next job of this process.
    """

    url = ""

    def __init__(self, ask: Callable[[Frame], Frame]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._ended = False

    def end(self) -> None:
        """Wait for what is being asked, and ask nothing more."""
        with self._lock:
            self._ended = True

    def recall_now(self, claim: Claim) -> Sequence[Step]:
        known = self._answer(Recall())
        assert isinstance(known, Known)
        return known.steps

    def remember_now(self, claim: Claim, step: Step) -> bool:
        if is_joined():
            raise TaskError(
                "with processes=True it is the worker that stores a step, so it can't be part of a "
                "transaction here: do the step before or after it"
            )
        stored = self._answer(Remember(step))
        assert isinstance(stored, Stored)
        return stored.held

    async def recall(self, claim: Claim) -> Sequence[Step]:
        """For a loop that the task runs itself."""
        return self.recall_now(claim)

    async def remember(self, claim: Claim, step: Step) -> bool:
        """For a loop that the task runs itself."""
        return self.remember_now(claim, step)

    def _answer(self, asked: Frame) -> Frame:
        with self._lock:
            if self._ended:
                raise TaskError("the job has ended: nothing more can be a step of it")
            answer = self._ask(asked)
        if isinstance(answer, Trouble):
            raise (StoreUnavailable if answer.unavailable else StoreError)(answer.message)
        return answer


class Apart:
    """Runs orders as they come, and answers each with how it went."""

    def __init__(self, answers: int, replies: queue.SimpleQueue[Frame]) -> None:
        self._answers = answers
        self._replies = replies
        self._saying = threading.Lock()
        self._means = Means(clock=SystemClock(), chance=SystemChance())
        self._tasks: dict[str, Runnable] = {}
        self._main: str | None = None
        self._main_names: dict[str, Any] | None = None

    def greet(self, hello: Hello) -> None:
        """Learn where modules are found."""
        sys.path[:] = hello.path
        self._main = hello.main

    def work(self, order: Order) -> None:
        """Run one job, and say how it ended."""
        job = order.job
        try:
            task = self._find(order)
        except BaseException as error:
            self._say(Outcome("dead", None, 0.0, describe(error), False))
            return
        if task is None:
            message = (
                f"task {job.task} was not found in {' or '.join(order.modules)} by a process of "
                "its own: define it at the top level of a module"
            )
            failure = Failure(kind="error", type="UnknownTask", message=message)
            self._say(Outcome("dead", None, 0.0, failure, False))
            return
        self._say(Begun())
        claim = Claim(job, b"", order.fence)
        kept = Kept(self._ask)
        keeper = Keeper(cast("Stepping", kept), self._means.clock) if order.steps else None
        run = Current(claim, lambda progress: self._say(Note(progress)), keeper)
        verdict = _drive(task, claim, run, self._means)
        kept.end()
        self._say(
            Outcome(verdict.kind, verdict.result, verdict.delay, verdict.failure, verdict.started)
        )

    def _say(self, frame: Frame) -> None:
        data = pack(frame)
        with self._saying:
            while data:
                data = data[os.write(self._answers, data) :]

    def _ask(self, frame: Frame) -> Frame:
        self._say(frame)
        return self._replies.get()

    def _find(self, order: Order) -> Runnable | None:
        name = order.job.task or ""
        if name not in self._tasks:
            for module in order.modules:
                names = self._load(module)
                found = _task_in(names, name, order.qualname)
                if found is not None:
                    self._tasks[name] = found
                    break
        return self._tasks.get(name)

    def _load(self, module: str) -> Mapping[str, Any]:
        if module not in ("__main__", "__mp_main__"):
            return vars(importlib.import_module(module))
        if self._main_names is None:
            # As multiprocessing has it: the script runs once more, not as __main__.
            self._main_names = runpy.run_path(self._main or "", run_name="__mp_main__")
        return self._main_names


def _task_in(names: Mapping[str, Any], name: str, qualname: str) -> Runnable | None:
    """The task among a module's names: itself, an app that has it, or inside a class."""
    found: Any
    for found in names.values():
        if getattr(found, "name", None) == name and hasattr(found, "signature"):
            return _runnable(found)
        tasks = getattr(found, "tasks", None)
        if isinstance(tasks, Mapping) and hasattr(tasks.get(name), "signature"):
            return _runnable(tasks[name])
    first, *rest = qualname.split(".")
    found = names.get(first)
    for part in rest:
        found = getattr(found, part, None)
    return _runnable(found) if hasattr(found, "signature") else None


def _runnable(found: Any) -> Runnable:
    task: Runnable = found
    return task


def _drive(task: Runnable, claim: Claim, run: Current, means: Means) -> Verdict:
    """Execute without an event loop, so that the function may start one of its own."""
    steps = execute(claim, task, run, means)
    try:
        steps.send(None)
    except StopIteration as end:
        verdict: Verdict = end.value
        return verdict
    raise AssertionError("a plain function ran in an event loop that isn't there")


def _read(
    source: BinaryIO, orders: queue.SimpleQueue[Order], replies: queue.SimpleQueue[Frame]
) -> None:
    """Pass on what comes; at the end of the input, end the process whatever it does."""
    while True:
        size = source.read(4)
        data = source.read(int.from_bytes(size, "big")) if len(size) == 4 else b""
        if not data:
            os._exit(0)
        frame = unpack(data)
        if isinstance(frame, Order):
            orders.put(frame)
        else:
            replies.put(frame)


def main() -> int:
    """Talk on what were standard input and output, and put others in their place."""
    source = os.fdopen(os.dup(0), "rb")
    replies: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    apart = Apart(os.dup(1), replies)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    greeting = source.read(int.from_bytes(source.read(4), "big"))
    if not greeting:
        return 0  # our worker died before it said anything
    hello = unpack(greeting)
    assert isinstance(hello, Hello)
    apart.greet(hello)
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(source, orders, replies), daemon=True).start()
    while True:
        apart.work(orders.get())


if __name__ == "__main__":
    sys.exit(main())
