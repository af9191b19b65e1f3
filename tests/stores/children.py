"""Functions of the tests that run in processes of their own, and talk by lines of JSON.

``python -m tests.stores.children MODULE FUNCTION ARGUMENTS``, as ``Child`` does.
"""

from __future__ import annotations

import codecs
import importlib
import inspect
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.proof.processes import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["NOBODY", "Child", "become", "listen", "say"]

ROOT = Path(__file__).parents[2]
NOBODY = 65534


class Child:
    """``body(**told)`` in a process of its own, killed at the end of the ``with`` block.

    ``before`` are words put before the command: ``unshare``, ``setpriv`` and the like.
    """

    def __init__(self, body: Callable[..., None], *, before: Sequence[str] = (), **told: Any):
        file = Path(inspect.getsourcefile(body) or "").relative_to(ROOT)
        module = ".".join(file.with_suffix("").parts)
        words = [sys.executable, "-m", "tests.stores.children", module, body.__name__]
        self.process = subprocess.Popen(
            [*before, *words, json.dumps(told)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self, seconds: float = 60.0) -> Any:
        """The next thing it says. Fails if it ends, or says nothing for that long."""
        line = self._lines.get(timeout=seconds)
        assert line, f"it ended with {self.process.wait(60)} and said nothing"
        return json.loads(line)

    def tell(self, word: str = "go") -> None:
        """One line for its ``listen``."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def rest(self) -> list[Any]:
        """All that it said and nobody has heard, once it has ended."""
        self._reader.join(60)
        found = []
        while line := self._lines.get_nowait():
            found.append(json.loads(line))
        return found

    def end(self, seconds: float = 60.0, code: int = 0) -> list[Any]:
        """Let it come to its end; what it said that nobody has heard."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(seconds) == code
        return self.rest()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(60)
        self._reader.join(60)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


def say(word: Any) -> None:
    """In the child: one line for the parent's ``hear``."""
    print(json.dumps(word), flush=True)


def listen() -> str:
    """In the child: wait for the parent's ``tell``; empty when the parent wants it to end."""
    return sys.stdin.readline().strip()


def become(user: int) -> None:
    """In the child: have no more rights than that user, for good."""
    for name in ("ascii", "latin-1", "utf-8"):
        codecs.lookup(name)  # Python's own files may be closed to that user
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)


if __name__ == "__main__":
    die_with_parent()
    _module, _function, _told = sys.argv[1:]
    getattr(importlib.import_module(_module), _function)(**json.loads(_told))
