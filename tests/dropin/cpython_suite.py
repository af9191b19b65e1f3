"""Runs CPython's own tests of asyncio's queues on ours, in the interpreter it is started with.

    python cpython_suite.py {group|each|asyncio} FOLDER

Prints one JSON object: by test, "passed" or what went wrong. The tests come from the interpreter's
own `test` package. Their three classes are replaced before they are imported; each queue is on a
fresh file in FOLDER. With "asyncio" nothing is replaced.
"""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import json
import signal
import sys
import unittest
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

SECONDS = 8.0
"""A test that counts rounds of the loop may wait for ever where it counts wrong."""
IN_ALL = 240.0
"""Then it says where each thread stands, and ends: nothing else does once the tests are over."""


def replace(commit: str, folder: str) -> None:
    """Put our classes in the place of asyncio's, with the one argument that those take."""
    import outlast

    number = itertools.count()

    def made(ours: type[Any]) -> type[Any]:
        def init(self: Any, maxsize: int = 0) -> None:
            url = f"sqlite:///{folder}/{next(number)}.db?durability=process"
            ours.__init__(self, maxsize, name="test", url=url, commit=commit)
            self.qsize()  # opens the file: one test gives its queue 10 ms for everything

        return type(ours.__name__, (ours,), {"__init__": init})

    for name in ("Queue", "PriorityQueue", "LifoQueue"):
        setattr(asyncio, name, made(getattr(outlast, name)))
    # Before 3.13 asyncio has none, and the tests ask for none.
    vars(asyncio)["QueueShutDown"] = outlast.QueueShutDown


class Results(unittest.TestResult):
    """What became of each test, by its class and name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.found[name_of(test)] = "passed"
        # Again and again: asyncio keeps to itself what is raised amid one of its callbacks.
        signal.setitimer(signal.ITIMER_REAL, SECONDS, SECONDS / 2)

    def stopTest(self, test: unittest.TestCase) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        super().stopTest(test)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.found[name_of(test)] = f"{err[0].__name__}: {err[1]}"

    addError = addFailure

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.found[name_of(test)] = f"skipped: {reason}"


def name_of(test: unittest.TestCase) -> str:
    return ".".join(test.id().split(".")[-2:])


def too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"took longer than {SECONDS} s")


def main() -> None:
    faulthandler.dump_traceback_later(IN_ALL, exit=True)
    commit, folder = sys.argv[1:]
    if commit != "asyncio":
        replace(commit, folder)
    # The tests are not written for it, and some leave items in hand, as they may.
    warnings.simplefilter("ignore", UserWarning)
    signal.signal(signal.SIGALRM, too_long)
    results = Results()
    unittest.defaultTestLoader.loadTestsFromName("test.test_asyncio.test_queues").run(results)
    print(json.dumps(results.found))


if __name__ == "__main__":
    main()
