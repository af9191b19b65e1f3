"""Looks after the processes that are measured: waits for them, kills them, reads what they use."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.clock import SystemClock

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

__all__ = ["children", "cpu_of", "kill", "memory_of", "until"]

_now = SystemClock().monotonic


def until(
    happened: Callable[[], bool], seconds: float, worker: subprocess.Popen[bytes] | None = None
) -> None:
    """Wait for something to happen; ``TimeoutError`` if it doesn't, or the worker is gone."""
    end = _now() + seconds
    while not happened():
        if worker is not None and worker.poll() is not None:
            raise TimeoutError(f"the worker ended with exit code {worker.returncode}")
        if _now() > end:
            raise TimeoutError(f"did not happen within {seconds} s")
        time.sleep(0.02)


def kill(pids: Sequence[int]) -> None:
    """Kill them all, and come back when the system has let go of what they held."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(_lives, pids)), 30)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def children(pid: int) -> list[int]:
    """The processes that this one started, where the system tells (Linux)."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(status.parent.name))
    return found


def memory_of(pid: int) -> float:
    """MiB that a process and its children held at most."""
    total = 0
    for each in (pid, *children(pid)):
        for line in Path(f"/proc/{each}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1])
    return total / 1024


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process and its children have used.

    Read from each process's own CPU clock: what ``/proc`` counts in ticks is too coarse for an idle
    worker. A process's clock id is made of its pid (Linux; see clock_getcpuclockid(3)).
    """
    return sum(time.clock_gettime((~each << 3) | 2) for each in (pid, *children(pid)))
