"""Programs that use a queue in a process of their own, to be killed while they do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from tests.proof.processes import import_path

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Child", "child"]

ROOT = Path(__file__).parents[2]
FRAME = """
import asyncio, itertools, os, sys
import outlast
from outlast import LifoQueue, PriorityQueue, Queue
URL = sys.argv[1]
def say(*words): print(*words, flush=True)
async def forever(): await asyncio.Event().wait()
async def main():
{body}
asyncio.run(main())
"""


class Child:
    """A running program. What it says is read line by line, also after its death."""

    def __init__(self, body: str, url: str) -> None:
        code = FRAME.format(body=textwrap.indent(textwrap.dedent(body), "    "))
        self.process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-W", "error", "-c", code, url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": import_path(ROOT / "src")},
        )  # fmt: skip

    def line(self) -> str:
        """The next line it says. Fails if it ends before."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return line.strip()

    def say(self, line: str) -> None:
        """Something for it to read."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def expect(self, *lines: str) -> None:
        for line in lines:
            assert self.line() == line

    def kill(self) -> list[str]:
        """SIGKILL; what it had said and we had not read."""
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait() == -signal.SIGKILL
        return self._rest()

    def end(self) -> list[str]:
        """Wait for its own end, which must be a good one; what is left to read."""
        assert self.process.stderr is not None
        code = self.process.wait(timeout=60)
        errors = self.process.stderr.read()
        assert code == 0, errors
        # In development mode asyncio tells of slow steps, and the first one imports a lot.
        told = [line for line in errors.splitlines() if not line.startswith("Executing <")]
        assert told == []
        return self._rest()

    def _rest(self) -> list[str]:
        """Not by ``communicate``: that forgets what ``readline`` had read ahead."""
        assert self.process.stdout is not None
        return self.process.stdout.read().splitlines()


@contextlib.contextmanager
def child(body: str, url: str) -> Iterator[Child]:
    """A program whose ``main`` has that body. It is dead at the end of the block."""
    running = Child(body, url)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
        running.process.communicate()
