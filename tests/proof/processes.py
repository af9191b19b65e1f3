"""Child processes of the rigs: forked, never outliving the rig, stopped and killed by their id."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING

from tests.proof.patience import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Child", "die_with_parent", "fork", "import_path", "in_child"]

PR_SET_PDEATHSIG = 1


def import_path(*folders: Path) -> str:
    """For the environment of a child: where it looks for modules, after those told to us.

    Whoever runs tests on a copy of the product tells them so by PYTHONPATH.
    """
    told = os.environ.get("PYTHONPATH")
    return os.pathsep.join(([told] if told else []) + [str(folder) for folder in folders])


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the one that made it ends (Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


class Child:
    """A forked process. Its end is waited for exactly once, so its id is never used too late."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None

    @property
    def alive(self) -> bool:
        return self.status is None and not self._reap(os.WNOHANG)

    def send(self, number: int) -> None:
        if self.alive:
            os.kill(self.pid, number)

    def freeze(self) -> None:
        """Stop every thread of it, and return when they stand still."""
        self.send(signal.SIGSTOP)
        until(self._frozen, 60.0, f"process {self.pid} stands still", beat=0.001)

    def _frozen(self) -> bool:
        if self.status is not None:
            return True
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return False
        if not os.WIFSTOPPED(status):
            self.status = status
        return True

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._reap(0)

    def wait(self, seconds: float) -> int:
        """Its exit code, or minus the signal that ended it; ``TimeoutError`` after that time."""
        until(lambda: not self.alive, seconds, f"process {self.pid} ends")
        if self.status is None:
            raise AssertionError("ended without a status")
        return os.waitstatus_to_exitcode(self.status)

    def _reap(self, options: int) -> bool:
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self.status = status
        return bool(pid)


def fork(body: Callable[[], None]) -> Child:
    """Run ``body`` in a forked child that exits with 0, or with 1 after printing the traceback.

    The caller must hold no open database: a connection must not cross a fork.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Child(pid)
    code = 1
    try:
        die_with_parent()
        body()
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def in_child(body: Callable[[], None], seconds: float) -> None:
    """Run ``body`` in a forked child and wait for its good end."""
    child = fork(body)
    try:
        code = child.wait(seconds)
    finally:
        child.kill()
    if code != 0:
        raise RuntimeError(f"the child ended with {code}")
