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
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.execution import Means, execute
from outlast.failing import describe
from outlast.job import Claim, Failure, Verdict
from outlast.running import Current
from outlast.worker.frames import Begun, Hello, Note, Order, Outcome, pack, unpack

if TYPE_CHECKING:
    from outlast.execution import Runnable
    from outlast.worker.frames import Frame

__all__ = ["Apart", "main"]


class Apart:
    """Runs orders as they come, and answers each with how it went."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
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
        run = Current(claim, lambda progress: self._say(Note(progress)))
        verdict = _drive(task, claim, run, self._means)
        self._say(
            Outcome(verdict.kind, verdict.result, verdict.delay, verdict.failure, verdict.started)
        )

    def _say(self, frame: Frame) -> None:
        data = pack(frame)
        while data:
            data = data[os.write(self._answers, data) :]

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


def _read(source: BinaryIO, orders: queue.SimpleQueue[Order]) -> None:
    """Pass the orders on; at the end of the input, end the process whatever it does."""
    while True:
        size = source.read(4)
        data = source.read(int.from_bytes(size, "big")) if len(size) == 4 else b""
        if not data:
            os._exit(0)
        frame = unpack(data)
        assert isinstance(frame, Order)
        orders.put(frame)


def main() -> int:
    """Talk on what were standard input and output, and put others in their place."""
    source = os.fdopen(os.dup(0), "rb")
    apart = Apart(os.dup(1))
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
    threading.Thread(target=_read, args=(source, orders), daemon=True).start()
    while True:
        apart.work(orders.get())


if __name__ == "__main__":
    sys.exit(main())
