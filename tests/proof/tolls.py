"""The app of the fleet: tasks that tell an outside journal when they begin and how they end.

``PROOF_WITNESS`` names the folder of the journals, ``OUTLAST_URL`` the store.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.proof.journal import Journal

from outlast import Outlast, RetryPolicy, Snooze, current

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "QUEUE",
    "app",
    "author",
    "heavy",
    "hog",
    "in_lane",
    "quick",
    "slow",
    "threaded",
    "unsure",
]

QUEUE = "tolls"
app = Outlast()


class _Told:
    """Holds the journal of this process."""

    journal = Journal(Path(os.devnull))


def say_hello() -> Journal:
    """Note that this process is there, and whose child it is; the journal to write into."""
    _Told.journal = Journal(Path(os.environ["PROOF_WITNESS"]))
    _Told.journal.write("birth", target=os.getppid())
    return _Told.journal


if "PROOF_WITNESS" in os.environ:
    say_hello()


@contextmanager
def told(lane: str = "") -> Iterator[list[int]]:
    """Write down the begin and the end of this run; yields what makes the result traceable."""
    run, journal = current(), _Told.journal
    journal.write("start", run.id, attempt=run.attempt, lane=lane)
    note = "error"
    try:
        yield [os.getpid(), run.attempt]
        note = "done"
    except asyncio.CancelledError:
        note = "stopped"
        raise
    except Snooze:
        note = "snooze"
        raise
    finally:
        journal.write("end", run.id, attempt=run.attempt, note=note, lane=lane)


@app.task(queue=QUEUE, max_crashes=None)
async def quick(filling: str) -> list[int]:
    """What most jobs are like."""
    with told() as result:
        return result


@app.task(queue=QUEUE, max_crashes=None)
async def slow(seconds: float) -> list[int]:
    """Long enough to be hit while it runs."""
    with told() as result:
        await asyncio.sleep(seconds)
        return result


@app.task(queue=QUEUE, max_crashes=None)
def threaded(seconds: float) -> list[int]:
    """The same in a thread, which no cancellation ends."""
    with told() as result:
        time.sleep(seconds)
        return result


@app.task(queue=QUEUE, max_crashes=None, processes=True)
def heavy(seconds: float) -> list[int]:
    """The same in a process of its own, which may be killed by itself."""
    with told() as result:
        time.sleep(seconds)
        return result


@app.task(queue=QUEUE, max_crashes=None, retry=RetryPolicy(attempts=1000, delay=0.01, cap=0.05))
async def unsure(turns: int) -> list[int]:
    """Fails, or asks for another turn, until it has been started so often."""
    with told() as result:
        attempt = current().attempt
        if attempt < turns:
            if attempt % 2:
                raise ValueError("not yet")
            raise Snooze(0.01)
        return result


@app.task(queue=QUEUE, max_crashes=None, lane=lambda lane, seconds: lane)
async def in_lane(lane: str, seconds: float) -> list[int]:
    """One at a time in its lane, in the order of the adds."""
    with told(lane) as result:
        await asyncio.sleep(seconds)
        return result


@app.task(queue=QUEUE, max_crashes=2)
async def hog(size: int) -> int:
    """Eats that many bytes, and really touches them."""
    with told():
        return len(bytearray(b"x") * size)


def author(result: bytes | None) -> tuple[int, int] | None:
    """Which run made this result: its process and its attempt."""
    if not result:
        return None
    pid, attempt = result.decode().strip("[]").split(",")
    return int(pid), int(attempt)
