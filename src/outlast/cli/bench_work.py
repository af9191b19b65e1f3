"""The tasks that `outlast bench` runs in worker processes, and how they are counted."""

from __future__ import annotations

import mmap
import os
import struct
import threading
from pathlib import Path
from urllib.parse import quote

from outlast.app import Outlast
from outlast.clock import SystemClock

__all__ = ["FOLDER", "Counts", "app", "count", "counts_in", "hold", "noop", "ping", "url_in"]

FOLDER = "OUTLAST_BENCH"
"""Names the folder in which each worker process keeps its counts."""

_RECORD = struct.Struct("<qdd")
_SIZE = 64


def url_in(folder: str | Path) -> str:
    """The store of a measurement in this folder."""
    return f"sqlite:///{quote(str(Path(folder).resolve() / 'bench.db'))}"


# Its URL is never the environment's: that may name the store of a real program, and measuring
# fills a store with jobs.
app = Outlast(url_in(os.environ.get(FOLDER, os.curdir)))
_clock = SystemClock()
_lock = threading.Lock()


class _Counter:
    """Counts in a shared map, so that nothing has to be written while it is measured."""

    def __init__(self) -> None:
        path = Path(os.environ[FOLDER], f"count-{os.getpid()}")
        with path.open("w+b") as file:
            file.write(bytes(_SIZE))
            file.flush()
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self.number = 0
        self.first = _clock.monotonic()

    def one(self) -> None:
        self.number += 1
        _RECORD.pack_into(self._map, 0, self.number, self.first, _clock.monotonic())


_counters: dict[int, _Counter] = {}


def count() -> None:
    with _lock:
        counter = _counters.get(os.getpid())
        if counter is None:
            counter = _counters[os.getpid()] = _Counter()
        counter.one()


class Counts:
    """What all worker processes did: how many, when the first began, when the last ended."""

    def __init__(self, number: int, first: float, last: float) -> None:
        self.number = number
        self.first = first
        self.last = last

    @property
    def rate(self) -> float:
        return (self.number - 1) / (self.last - self.first) if self.last > self.first else 0.0


def counts_in(folder: Path) -> Counts:
    number, first, last = 0, float("inf"), 0.0
    for path in folder.glob("count-*"):
        data = path.read_bytes()
        if len(data) >= _RECORD.size:
            its_number, its_first, its_last = _RECORD.unpack_from(data)
            if its_number:
                number += its_number
                first, last = min(first, its_first), max(last, its_last)
    return Counts(number, first, last)


@app.task(name="noop")
async def noop(payload: str) -> None:
    count()


@app.task(name="ping")
async def ping(sent: float) -> None:
    """Say when it began, on the machine's monotonic clock, which all processes share."""
    _append("pings", struct.pack("<dd", sent, _clock.monotonic()))


@app.task(name="hold", max_crashes=None)
async def hold(name: str) -> None:
    """Begin, say so, and stay at work until killed the first time."""
    if _append(f"held-{name}", struct.pack("<d", _clock.monotonic())) == 0:
        await _clock.sleep(600)


def _append(name: str, data: bytes) -> int:
    """Add to a file of the folder; how long it was before."""
    with Path(os.environ[FOLDER], name).open("ab", buffering=0) as file:
        before = file.tell()
        file.write(data)
    return before
